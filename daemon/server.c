/* See server.h. */
#include "daemon/server.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "daemon/config/config.h"
#include "daemon/config/config_keys.h"
#include "daemon/gpu/gpu_open.h"
#include "daemon/gpu/gpu_pool.h"
#include "daemon/gpu/mover.h"
#include "daemon/loop/ev.h"
#include "daemon/loop/heap.h"
#include "daemon/loop/listen.h"
#include "daemon/loop/log.h"
#include "daemon/loop/names.h"
#include "daemon/loop/supervisor.h"
#include "daemon/loop/work.h"
#include "daemon/offload/offload.h"
#include "daemon/operator/metrics_http.h"
#include "daemon/operator/quota.h"
#include "daemon/reload.h"
#include "daemon/requests/change.h"
#include "daemon/requests/conn.h"
#include "daemon/requests/extent_wait.h"
#include "daemon/requests/pages.h"
#include "daemon/requests/request.h"
#include "daemon/server_parts.h"
#include "daemon/session/session.h"
#include "daemon/session/session_types.h"
#include "daemon/store/control.h"
#include "daemon/store/device.h"
#include "daemon/store/host_extents.h"
#include "daemon/store/host_memory.h"
#include "daemon/store/kept.h"
#include "daemon/store/persist.h"
#include "daemon/store/pool_mark.h"
#include "daemon/store/share.h"
#include "daemon/store/space.h"
#include "daemon/tables/live_moments.h"
#include "daemon/tables/table_entry.h"
#include "daemon/tables/tables.h"
#include "daemon/tier/keyring.h"

enum {
    FDS_PER_SESSION = 9, /* socket, pidfd and its stored copy, arena, session page; copies for a reply */
    FDS_PER_EXTENT = 2,
    FDS_PER_TENANT = 5, /* control page; index and filter, each twice while it is made anew */
    FDS_RESERVED = 64,
    TICK_MS_MIN = 20,
    TICK_MS_MAX = 1000,
    STOP_MS = 5000, /* for pages that are not on the disk yet; the unit waits longer */
    DISK_END_MS = 2000,
};

/* ---- time and signals ---- */

static void server_close_slow_handshakes(struct server *s, uint64_t now)
{
    for (struct conn *c = s->conns->first, *next; c; c = next) {
        next = c->next;
        if (c->state == CONN_OPEN || now - c->accepted_ms < s->config->handshake_ms)
            continue;
        log_client_event(&c->account->log, LOG_NOTICE, "handshake-timeout",
                         "pid=%ld uid=%ld, closing the connection", (long) c->peer.pid, (long) c->peer.uid);
        conn_close(c);
    }
}

/* Cheap checks that fail only if memory was damaged. */
static bool server_is_sane(const struct server *s)
{
    uint32_t n_extents = 0, n_sessions = 0;

    for (uint32_t i = 0; i < s->devices->n; i++)
        n_extents += s->devices->list[i].store.pool.n_extents;
    for (const struct tenant *t = NULL; (t = devices_next_tenant(s->devices, t));) {
        n_extents -= t->n_extents;
        n_sessions += t->n_sessions;
    }
    return n_extents == 0 && n_sessions == s->sessions->n &&
           s->persist->journal.head->magic == JOURNAL_MAGIC &&
           s->persist->journal.head->generation == s->devices->serials.generation;
}

/* Called from the event loop only, so that the watchdog detects a loop that hangs. */
static void server_feed_watchdog(struct server *s, uint64_t now)
{
    if (s->frame->watchdog_ms == 0 || now - s->frame->fed_ms < s->frame->watchdog_ms / 3)
        return;
    if (!server_is_sane(s)) {
        log_event(LOG_CRIT, "self-check-failed",
                  "message=\"accounts do not agree: waiting for the supervisor to restart kvcobrad\"");
        return;
    }
    s->frame->fed_ms = now;
    supervisor_notify(s->supervisor, "WATCHDOG=1");
}

static void server_update_tick(struct server *s);

/* Return: whether any page is pinned. */
static bool server_end_pins(struct server *s, uint64_t now)
{
    bool any = false;

    for (uint32_t i = 0; i < s->devices->n; i++)
        any |= kept_tick(&s->devices->list[i].store, now);
    return any;
}

static void server_on_tick(void *ctx)
{
    struct server *s = ctx;
    uint64_t now = ev_now_ms(s->ev);

    server_feed_watchdog(s, now);
    work_expire(s->work, now);
    state_writer_tick(&s->tables->state);
    extent_wait_expire(s, now);
    offload_tick(s->offload);
    host_extents_tick(&s->frame->host_extents);
    server_close_slow_handshakes(s, now);
    sessions_tick(s->sessions, now);
    tables_retire_idle(s->tables, now);
    for (uint32_t i = 0; i < s->devices->n; i++)
        share_tick(&s->devices->list[i].store, now, s->config->lease_ms);
    for (uint32_t i = 1; i < s->devices->n; i++)
        gpu_pool_tick(s->devices->list[i].gpu, now);
    s->has_kept = server_end_pins(s, now);
    metrics_http_tick(s->frame->metrics_http);
    s->frame->has_idle_tenants = devices_forget_idle(s->devices, now, s->config->lease_ms);
    heap_tick(s->heap, now);
    server_update_tick(s);
    server_tier_stop_if_flushed(s);
}

/*
 * Sets the timer for connections, sessions, idle tenants, pinned pages, draining tables, freed heap and
 * monitoring; else for the watchdog only.
 */
static void server_update_tick(struct server *s)
{
    uint64_t shortest =
        s->config->lease_ms < s->config->handshake_ms ? s->config->lease_ms : s->config->handshake_ms;
    uint64_t period = shortest / 4;

    if (period < TICK_MS_MIN)
        period = TICK_MS_MIN;
    if (period > TICK_MS_MAX)
        period = TICK_MS_MAX;
    if (s->frame->watchdog_ms > 0 && period > s->frame->watchdog_ms / 4)
        period = s->frame->watchdog_ms / 4;
    if (s->frame->stop_by_ms > 0)
        period = TICK_MS_MIN;
    ev_tick_set_demand(s->ev, period);

    if (s->frame->stop_by_ms == 0 &&
        s->conns->n_clients + s->conns->n_operators + s->sessions->n + s->sessions->n_watched +
                s->tables->n_draining ==
            0 &&
        !s->frame->has_idle_tenants && !s->has_kept && !heap_is_due(s->heap) &&
        !metrics_http_is_busy(s->frame->metrics_http))
        period = s->frame->watchdog_ms / 4; /* 0: off */
    ev_tick_every(s->ev, period, server_on_tick, s);
}

/* Tenants change with the next HELLO of each connection; sessions stay in theirs. */
static int server_apply_config(struct server *s, struct config *fresh, struct keyring *ring, struct errmsg *e)
{
    int r = quota_check_reload(s, fresh, e);

    if (r == 0 && ring)
        r = keyring_check_successor(s->frame->keyring, ring, e);
    if (r < 0)
        return r;

    if (ring)
        server_tier_set_keyring(s, ring);

    config_reload(s->config, fresh);
    s->n_reloads++;
    log_open(s->config->log_level);
    log_set_format(s->config->log_format);
    quota_reload(s);
    server_update_tick(s);
    log_event(LOG_NOTICE, "reloaded", "tenants=%" PRIu32 " message=\"the configuration was read again\"",
              s->config->tenants.n_sections);
    return 0;
}

static void server_on_signal(void *ctx)
{
    struct server *s = ctx;
    struct signalfd_siginfo info;

    if (read(s->frame->signal_fd, &info, sizeof(info)) != sizeof(info))
        return;
    if (info.ssi_signo == SIGHUP) {
        reload_begin(s->frame->reload);
        return;
    }
    log_event(LOG_INFO, "stopping", "signal=%" PRIu32 " sessions=%" PRIu32, info.ssi_signo, s->sessions->n);
    if (server_tier_begin_stop(s, STOP_MS))
        server_update_tick(s);
    server_tier_stop_if_flushed(s);
}

static int server_watch_signals(struct server *s, struct errmsg *e)
{
    sigset_t mask;
    int r;

    (void) sigemptyset(&mask);
    (void) sigaddset(&mask, SIGTERM);
    (void) sigaddset(&mask, SIGINT);
    (void) sigaddset(&mask, SIGHUP);
    if (sigprocmask(SIG_BLOCK, &mask, NULL) < 0)
        return fail(e, -errno, "cannot block signals: %s", strerror(errno));

    s->frame->signal_fd = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
    if (s->frame->signal_fd < 0)
        return fail(e, -errno, "cannot receive signals: %s", strerror(errno));

    r = ev_watch(s->ev, s->frame->signal_fd, server_on_signal, s, &s->frame->signals);
    return r < 0 ? fail(e, r, "cannot watch for signals: %s", strerror(-r)) : 0;
}

/* ---- limit of descriptors ---- */

/* Raises the limit of open descriptors to what all connections, tables, tenants and extents can need. */
static void server_fit_descriptors(const struct devices *d, const struct config *c)
{
    uint64_t need = FDS_RESERVED +
                    ((uint64_t) c->connections_max + OPERATOR_CONNECTIONS_MAX) * FDS_PER_SESSION +
                    c->tables_max;
    struct rlimit limit;

    for (uint32_t i = 0; i < d->n; i++)
        need += d->list[i].pool_bytes / d->list[i].extent_bytes * FDS_PER_EXTENT +
                (uint64_t) c->tenants_max * FDS_PER_TENANT;
    if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
        return;
    if (limit.rlim_cur < need && limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = need < limit.rlim_max ? need : limit.rlim_max;
        (void) setrlimit(RLIMIT_NOFILE, &limit);
        (void) getrlimit(RLIMIT_NOFILE, &limit);
    }

    if (limit.rlim_cur < need)
        log_event(LOG_WARNING, "few-descriptors",
                  "limit=%llu wanted=%" PRIu64
                  " message=\"clients above the limit get EAGAIN: raise LimitNOFILE or lower --connections\"",
                  (unsigned long long) limit.rlim_cur, need);
}

/* ---- start and end ---- */

static int server_start_loop(struct server *s, struct errmsg *e)
{
    int r = ev_new(&s->ev, e);

    if (r < 0)
        return r;

    s->started_ms = ev_now_ms(s->ev);
    return 0;
}

/* Sets the pointers and callbacks that the rooms below get. */
static void server_connect_rooms(struct server *s)
{
    *s->gpus = (struct gpus){
        .config = s->config,
        .ev = s->ev,
        .devices = s->devices,
        .persist = s->persist,
        .memory = s->memory,
        .sessions = sessions_for_gpus(s->sessions),
    };
    *s->sessions = (struct sessions){
        .config = s->config,
        .ev = s->ev,
        .devices = s->devices,
        .persist = s->persist,
        .memory = s->memory,
        .tables = s->tables,
        .owner = conn_session_owner(s),
    };
    s->devices->accounts.journal = &s->persist->journal;
    s->recheck_on_gpu = recheck_gpu_begin;
}

static int server_start_pools(struct server *s, struct errmsg *e)
{
    const struct host_extents_owner owner = {extent_wait_retry, s};
    int r = s->devices->n > 1 ? mover_new(s->ev, s->config->mover_path, &s->gpus->mover, e) : 0;

    if (r < 0)
        return r;

    r = persist_open(s->persist, s->supervisor, s->devices, e);
    if (r < 0)
        return r;

    host_extents_init(&s->frame->host_extents, s->ev, s->memory, &s->devices->list[0].store.pool,
                      s->config->spare_extents, &owner);

    for (uint32_t i = 1; i < s->devices->n; i++) {
        r = gpu_pool_new(&s->devices->list[i], s->gpus, &s->devices->list[i].gpu, e);
        if (r < 0)
            return r;
    }

    return 0;
}

/* Creates everything that must exist before the pages of an earlier process are restored. */
static int server_start(struct server *s, struct errmsg *e)
{
    int r = dispatch_start(s, e);

    if (r == 0)
        r = server_names_open(s, e);
    if (r == 0)
        r = server_start_loop(s, e);
    if (r < 0)
        return r;

    server_connect_rooms(s);

    r = work_new(s->ev, s->config->work_threads, s->config->work_queue_max, &s->work, e);
    if (r < 0)
        return r;

    r = host_memory_init(s->memory, s->ev, e);
    if (r < 0)
        return r;

    r = server_start_pools(s, e);
    if (r < 0)
        return r;

    r = sessions_init(s->sessions, e);
    if (r < 0)
        return r;

    s->scratch = request_scratch_new();
    if (!s->scratch)
        return fail(e, -ENOMEM, "out of memory for replies");

    r = tables_init(s->tables, s->config, s->devices, e);
    if (r < 0)
        return r;

    r = server_tier_start(s, e);
    if (r < 0)
        return r;

    pool_mark_set(s->config->state_dir, s->supervisor->keeps);
    return server_watch_signals(s, e);
}

int server_new(struct config *config, reload_read_fn read_config, struct server **ret, struct errmsg *e)
{
    _cleanup_(server_freep) struct server *s = server_rooms_new(config);
    int r;

    if (!s)
        return fail(e, -ENOMEM, "out of memory at the start");

    s->persist->journal.fd = -1;
    listen_init(&s->frame->client_socket);
    listen_init(&s->frame->operator_socket);
    listen_init(&s->frame->metrics_socket);
    if (sodium_init() < 0)
        return fail(e, -EIO, "libsodium does not start: this machine has no source of random numbers");

    devices_init(s->devices, config);
    randombytes_buf(s->devices->boot_id, sizeof(s->devices->boot_id));
    server_fit_descriptors(s->devices, config);
    r = supervisor_init(s->supervisor, config->state_dir ? config->keep_pool : KEEP_NO, e);
    if (r < 0)
        return r;

    r = server_start(s, e);
    if (r == 0)
        r = reload_new(s, read_config, server_apply_config, &s->frame->reload, e);
    if (r < 0)
        return r;

    r = quota_load(s, e);
    if (r < 0)
        return r;

    r = restore_pools(s->sessions, e);
    if (r < 0) {
        /* a cleanup would meet half-restored pages, and change their records */
        log_event(LOG_ERR, "failed", "message=\"%s\"", e->text);
        _exit(EXIT_FAILURE);
    }

    host_extents_tick(&s->frame->host_extents);
    errmsg_clear(e);

    r = server_sockets_open(s, e);
    if (r == 0)
        r = server_names_watch(s, e);
    if (r < 0)
        return r;

    s->tables->returns_until_ms = ev_now_ms(s->ev) + config->lease_ms;
    s->frame->watchdog_ms = supervisor_watchdog_ms();
    state_writer_start(&s->tables->state, s->work);
    gpu_open_all(s->gpus);
    server_update_tick(s);
    *ret = take_ptr(s);
    return 0;
}

int server_run(struct server *s, struct errmsg *e)
{
    int r;

    s->frame->served = true;
    r = ev_run(s->ev);
    return r < 0 ? fail(e, r, "the event loop failed: %s", strerror(-r)) : 0;
}

/* Drops pages, groups and tenants, which refer to the tables. The pools free the memory of pages later. */
static void server_drop_pages(struct server *s, struct store *st)
{
    for (struct tenant *t = st->tenants; t; t = t->next)
        kept_end_tenant(st, t, NULL);
    for (struct table_entry *t = s->tables->entries; t; t = t->next)
        for (struct space *x = t->spaces; x; x = x->next)
            store_drop_space(st, x, GHOST_EVICTED);
    while (st->tenants) {
        struct tenant *t = st->tenants;

        st->tenants = t->next;
        (void) tenant_free(t);
    }
}

struct server *server_free(struct server *s)
{
    if (!s)
        return NULL;

    offload_stop(s->offload);
    s->work = work_free(s->work); /* first: threads read arenas and write pages */
    s->names = names_free(s->names);
    s->offload = offload_free(s->offload, DISK_END_MS);
    change_end_all(s);
    extent_wait_expire(s, UINT64_MAX);
    s->gpus->mover = mover_free(s->gpus->mover);
    if (s->supervisor->keeps && s->persist->journal.data && persist_freeze(s->persist) < 0)
        _exit(s->frame->served ? EXIT_SUCCESS : EXIT_FAILURE); /* cleaning up would delete the stored pool */
    while (s->conns->first)
        conn_close(s->conns->first);
    sessions_deinit(s->sessions);
    host_memory_deinit(s->memory); /* after the sessions: it frees their arenas */
    host_extents_deinit(&s->frame->host_extents);
    for (uint32_t i = 0; i < s->devices->n; i++)
        server_drop_pages(s, &s->devices->list[i].store);
    tables_deinit(s->tables);
    live_deinit(s->live);
    closep(&s->moments_fd);
    for (uint32_t i = 1; i < s->devices->n; i++)
        s->devices->list[i].gpu = gpu_pool_free(s->devices->list[i].gpu);
    devices_deinit(s->devices);
    persist_deinit(s->persist);
    supervisor_deinit(s->supervisor);
    s->frame->listener = ev_source_free(s->frame->listener);
    s->frame->operator_listener = ev_source_free(s->frame->operator_listener);
    s->frame->signals = ev_source_free(s->frame->signals);
    s->frame->reload = reload_free(s->frame->reload);
    s->frame->metrics_http = metrics_http_free(s->frame->metrics_http);
    s->ev = ev_free(s->ev);
    closep(&s->frame->signal_fd);
    server_names_close(s);
    listen_deinit(&s->frame->client_socket);
    listen_deinit(&s->frame->operator_socket);
    listen_deinit(&s->frame->metrics_socket);
    (void) keyring_unref(s->frame->keyring);
    free(s->scratch);
    free(s);
    return NULL;
}
