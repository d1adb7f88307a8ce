/* See session.h. */
#include "daemon/session/session.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "daemon/config/config.h"
#include "daemon/gpu/gpu_pool.h"
#include "daemon/loop/ev.h"
#include "daemon/loop/log.h"
#include "daemon/loop/supervisor.h"
#include "daemon/session/orphans.h"
#include "daemon/session/reservations.h"
#include "daemon/store/control.h"
#include "daemon/store/device.h"
#include "daemon/store/evict.h"
#include "daemon/store/host_memory.h"
#include "daemon/store/persist.h"
#include "daemon/tables/tables.h"
#include "gpu/device.h"

/* ---- create and free ---- */

static bool session_quarantine(struct session *x);

static void session_on_exit_of_process(void *ctx)
{
    struct session *x = ctx;
    const struct session_owner *owner = &x->sessions->owner;
    struct conn *c = x->conn;

    log_client_event(&x->tenant->account->log, LOG_INFO, "process-gone",
                     "session=%" PRIu64 " pid=%ld held=%" PRIu32 " reserved=%" PRIu32, x->serial,
                     (long) x->pid, x->leases.n_held, x->n_reservations);
    if (!session_quarantine(x))
        (void) session_close(x, "the process exited");
    if (c)
        owner->close_conn(owner->ctx, c);
}

static void session_init_leases(struct session *x)
{
    const struct config *c = x->sessions->config;
    const struct lease_limits limits = {
        .leases_per_session = c->leases_per_session_max,
        .leases_per_tenant = c->leases_per_tenant_max,
        .pages_per_session = c->leased_pages_per_session_max,
        .pages_per_tenant = c->leased_pages_per_tenant_max,
    };

    lease_init(&x->leases, &x->sessions->persist->journal, x->tenant->account, x->number, &limits);
}

/* Creates a session, new or restored. Takes over @pidfd on success. */
static int session_create(struct sessions *ss, uint32_t number, const struct session_record *who,
                          struct tenant *t, int pidfd, struct session **ret, struct errmsg *e)
{
    struct session *x = calloc(1, sizeof(*x));
    int r;

    if (!x)
        return fail(e, -ENOMEM, "out of memory for a session");

    *x = (struct session){
        .sessions = ss,
        .number = number,
        .pid = (pid_t) who->pid,
        .uid = who->uid,
        .pidfd = pidfd,
        .tenant = t,
        .reservations = SLOT_NONE,
        .opened_ms = ev_now_ms(ss->ev),
        .seen_ms = ev_now_ms(ss->ev),
    };
    r = ev_watch(ss->ev, pidfd, session_on_exit_of_process, x, &x->exit_watch);
    if (r == 0)
        r = ev_source_set_share(x->exit_watch, &t->account->loop_share);
    if (r < 0) {
        x->exit_watch = ev_source_free(x->exit_watch);
        free(x);
        return fail(e, r, "cannot watch process %" PRIu32 ": %s", who->pid, strerror(-r));
    }

    session_init_leases(x);
    ss->list[number] = x;
    ss->n++;
    t->n_sessions++;
    t->n_refs++;
    t->account->n_sessions++;
    account_note_member(t->account, x->uid);
    *ret = x;
    return 0;
}

/* Written before any grant. The pidfd may be stored later: a start opens it again if it is missing. */
static void session_write_record(struct session *x)
{
    struct sessions *ss = x->sessions;
    struct session_record record = {.pid = (uint32_t) x->pid,
                                    .uid = x->uid,
                                    .account = x->tenant->account->number,
                                    .place = (uint8_t) x->tenant->device->store.place};
    char name[PERSIST_NAME_BYTES];

    memcpy(record.token, x->token, sizeof(record.token));
    memcpy(record.client_name, x->client_name, sizeof(record.client_name));
    journal_session_add(&ss->persist->journal, x->number, &record);
    sodium_memzero(record.token, sizeof(record.token)); /* stacks are in core files */
    x->serial = ss->persist->journal.head->session_serial;
    supervisor_store_soon(ss->persist->supervisor, persist_name(name, "pid", x->serial), x->pidfd);
}

int session_new(struct sessions *ss, const struct session_record *who, struct tenant *t, int pidfd,
                struct session **ret, struct errmsg *e)
{
    uint32_t number = 0;
    int r;

    if (!account_may_take(t->account->n_sessions, ss->n, ss->n_max, ss->config->sessions_per_tenant_max))
        return fail(e, -EDQUOT,
                    "tenant %s has %" PRIu32 " of kvcobrad's %" PRIu32
                    " sessions, its maximum (--sessions-per-tenant): end a client, or retry later",
                    t->account->name, t->account->n_sessions, ss->n);

    while (number < ss->n_max && (ss->list[number] || orphans_is_watched(ss, number)))
        number++;
    if (number == ss->n_max)
        return fail(e, -EDQUOT,
                    "kvcobrad has %" PRIu32
                    " sessions, the maximum (--connections and --sessions-per-tenant): "
                    "retry later",
                    number);

    r = session_create(ss, number, who, t, pidfd, ret, e);
    if (r < 0)
        return r;

    memcpy((*ret)->token, who->token, sizeof((*ret)->token));
    memcpy((*ret)->client_name, who->client_name, sizeof((*ret)->client_name));
    session_write_record(*ret);
    return 0;
}

int session_restore(struct sessions *ss, uint32_t number, const struct session_record *record,
                    struct tenant *t, int pidfd, struct session **ret, struct errmsg *e)
{
    int r = session_create(ss, number, record, t, pidfd, ret, e);

    if (r < 0)
        return r;

    (*ret)->serial = record->serial;
    memcpy((*ret)->token, record->token, sizeof((*ret)->token));
    memcpy((*ret)->client_name, record->client_name, sizeof((*ret)->client_name));
    (*ret)->client_name[WIRE_CLIENT_NAME_BYTES_MAX] = '\0';
    return 0;
}

static void session_forget_record(struct session *x)
{
    char name[PERSIST_NAME_BYTES];

    journal_session_remove(&x->sessions->persist->journal, x->number);
    supervisor_remove(x->sessions->persist->supervisor, persist_name(name, "pid", x->serial));
}

/* read(2), not the mapping: a load from a hole that the client punched could fault if memory is short. */
static void session_copy_page(struct session *x, uint64_t now_ms)
{
    uint64_t words[3];

    if (!x->page || pread(extent_fd(x->page), words, sizeof(words), 0) != sizeof(words))
        return;
    if (words[0] != x->renewals)
        x->seen_ms = now_ms;
    /*
     * The client writes these counts about itself: whatever it writes, only the sums of
     * its own tenant change.
     */
    x->tenant->counters.hits += words[1] - x->hits;
    x->tenant->counters.misses += words[2] - x->misses;
    x->renewals = words[0];
    x->hits = words[1];
    x->misses = words[2];
}

static void session_on_arena_freed(void *ctx, uint64_t bytes)
{
    account_add_arena(ctx, -bytes);
    (void) account_unref(ctx);
}

/*
 * A thread frees the memory. Until then it counts for the account, not for the quota: a client that comes
 * back finds its quota free. What READ_RAW wrote was allocated here, so it is freed even if the client keeps
 * the arena mapped; what the client wrote was allocated by the client.
 */
static void session_drop_memory(struct session *x)
{
    struct host_memory *memory = x->sessions->memory;

    if (x->arena) {
        struct host_memory_owner owner = {session_on_arena_freed, account_ref(x->tenant->account)};

        x->host->arena_bytes -= extent_bytes(x->arena);
        host_memory_free(memory, x->arena, x->arena_is_filled, &owner);
    }
    host_memory_free(memory, x->page, false, NULL);
    x->arena = x->page = NULL;
}

/* Ends the references, models and the watch of the process, at its exit or at BYE. Pages may stay held. */
static void session_disconnect(struct session *x)
{
    x->sessions->owner.forget(x->sessions->owner.ctx, x);
    session_copy_page(x, x->seen_ms); /* counts since the last tick */
    for (uint32_t i = 0; i < x->n_refs; i++)
        x->refs[i].table->n_refs -= x->refs[i].n;
    for (uint32_t i = 0; i < x->n_models; i++)
        if (x->models[i].is_published)
            control_model_unref(x->tenant, x->models[i].digest);
    free(x->refs);
    free(x->models);
    x->refs = NULL;
    x->models = NULL;
    x->n_refs = x->n_models = 0;
    x->exit_watch = ev_source_free(x->exit_watch);
}

/*
 * On a GPU kernels may outlive the process: the session stays, with its reservations and holds,
 * until the quarantine ends.
 */
static bool session_quarantine(struct session *x)
{
    if (!device_is_gpu(x->tenant->device) || !session_has_anything(x))
        return false;

    session_disconnect(x);
    if (x->n_jobs == 0)
        session_drop_memory(x);
    (void) lease_expire(&x->leases);
    x->conn = NULL;
    x->dead = true;
    gpu_pool_process_gone(x->tenant->device->gpu, x->number, x->pid); /* may free it */
    return true;
}

struct session *session_free(struct session *x)
{
    if (!x)
        return NULL;

    session_disconnect(x);
    reservations_discard_all(x);
    lease_release_all(&x->leases, store_of(x->tenant));
    lease_deinit(&x->leases);
    orphans_end(x->sessions, x->number);
    session_forget_record(x);
    (void) close(x->pidfd);
    x->tenant->n_sessions--;
    x->tenant->account->n_sessions--;
    x->sessions->list[x->number] = NULL;
    x->sessions->n--;
    x->ended = true;
    if (x->n_jobs == 0)
        session_reap(x);
    return NULL;
}

struct session *session_close(struct session *x, const char *why)
{
    log_client_event(&x->tenant->account->log, LOG_INFO, "session-close",
                     "session=%" PRIu64 " pid=%ld tenant=%s seconds=%" PRIu64 " message=\"%s\"", x->serial,
                     (long) x->pid, x->tenant->name, (ev_now_ms(x->sessions->ev) - x->opened_ms) / 1000, why);
    return session_free(x);
}

void session_reap(struct session *x)
{
    session_drop_memory(x);
    x->tenant->n_refs--;
    free(x);
}

bool session_has_anything(const struct session *x)
{
    return x->leases.n_held + orphans_holds(x->sessions, x->number) + x->n_reservations > 0;
}

void session_detach(struct session *x)
{
    x->conn = NULL;
    if (!device_is_gpu(x->tenant->device))
        reservations_discard_all(x);
    if (!session_has_anything(x)) {
        (void) session_close(x, "the connection was closed");
        return;
    }
    (void) lease_expire(&x->leases);
    log_client_event(&x->tenant->account->log, LOG_INFO, "session-detached",
                     "session=%" PRIu64 " pid=%ld held=%" PRIu32 " reserved=%" PRIu32, x->serial,
                     (long) x->pid, x->leases.n_held, x->n_reservations);
}

void session_resume(struct session *x, struct conn *c)
{
    x->conn = c;
    x->seen_ms = ev_now_ms(x->sessions->ev);
    x->earlier_generation = x->sessions->devices->serials.generation;
}

bool session_is(const struct session *x, const uint8_t *token, pid_t pid, const struct account *a)
{
    /* The pidfd proves that the pid is still the same process. */
    return !x->dead && x->pid == pid && x->tenant->account == a &&
           sodium_memcmp(x->token, token, sizeof(x->token)) == 0 &&
           syscall(SYS_pidfd_send_signal, x->pidfd, 0, NULL, 0) == 0;
}

/* ---- models, tables, memory ---- */

/* Whether all clients' arenas leave room for another one of @a. Return: 0; -ENOSPC; -EDQUOT. */
static int session_check_arenas(const struct account *a, const struct config *c, struct errmsg *e)
{
    uint64_t all = a->accounts->arena_bytes;

    if (account_may_take(a->arena_bytes, all + c->arena_bytes - 1, c->arenas_bytes, UINT64_MAX))
        return 0;
    if (c->arena_bytes > c->arenas_bytes || all > c->arenas_bytes - c->arena_bytes)
        return fail(e, -ENOSPC,
                    "the arenas of all clients have %" PRIu64 " bytes: another one of %" PRIu64
                    " exceeds --arenas-bytes %" PRIu64 ": end clients or raise it",
                    all, c->arena_bytes, c->arenas_bytes);
    return fail(e, -EDQUOT,
                "the arenas of tenant %s have %" PRIu64 " bytes: the last eighth of --arenas-bytes %" PRIu64
                " is for tenants that have fewer: end clients or raise it",
                a->name, a->arena_bytes, c->arenas_bytes);
}

int session_make_memory(struct session *x, struct errmsg *e)
{
    uint64_t bytes = x->sessions->config->arena_bytes;
    struct tenant *t;
    int r = 0;

    if (!x->page)
        r = extent_new_unmapped("kvcobra-session", SESSION_PAGE_BYTES, &x->page, e);
    if (r < 0 || x->arena)
        return r;

    r = session_check_arenas(x->tenant->account, x->sessions->config, e);
    if (r < 0)
        return r;

    r = devices_tenant(x->sessions->devices, &x->sessions->devices->list[0], x->tenant->account, &t, e);
    if (r < 0)
        return r;
    if (!evict_for_quota(store_of(t), t, bytes))
        return fail(e, -EDQUOT,
                    "tenant %s has %" PRIu64 " of its %" PRIu64
                    " bytes in use: no room for an arena of %" PRIu64,
                    t->name, tenant_used_bytes(t), t->quota_bytes, bytes);

    r = extent_new_unmapped("kvcobra-arena", bytes, &x->arena, e);
    if (r < 0)
        return r;

    t->arena_bytes += bytes;
    account_add_arena(t->account, bytes);
    x->host = t;
    return 0;
}

int session_model_add(struct session *x, const struct session_model *m, uint32_t *ret_handle,
                      struct errmsg *e)
{
    struct session_model *models;

    for (uint32_t i = 0; i < x->n_models; i++) {
        const struct session_model *o = &x->models[i];

        if (memcmp(o->digest, m->digest, DIGEST_BYTES) == 0 &&
            memcmp(o->geometry_digest, m->geometry_digest, DIGEST_BYTES) == 0 &&
            o->shard.first_head == m->shard.first_head && o->shard.n_heads == m->shard.n_heads) {
            *ret_handle = i + 1;
            return 0;
        }
    }

    if (x->n_models >= x->sessions->config->models_per_session_max)
        return fail(e, -EDQUOT, "this session has opened %" PRIu32 " models, the maximum", x->n_models);

    models = reallocarray(x->models, x->n_models + 1, sizeof(*models));
    if (!models)
        return fail(e, -ENOMEM, "out of memory for a model");

    x->models = models;
    models[x->n_models] = *m;
    models[x->n_models++].is_published = false;
    *ret_handle = x->n_models;
    return 0;
}

void session_model_published(struct session *x, uint32_t handle, uint32_t slot)
{
    struct session_model *m = &x->models[handle - 1];

    if (!m->is_published)
        control_model_ref(x->tenant, slot);
    m->is_published = true;
}

const struct session_model *session_model(const struct session *x, uint32_t handle)
{
    return handle >= 1 && handle <= x->n_models ? &x->models[handle - 1] : NULL;
}

static struct session_ref *session_find_ref(const struct session *x, const struct table_entry *t)
{
    for (uint32_t i = 0; i < x->n_refs; i++)
        if (x->refs[i].table == t)
            return &x->refs[i];
    return NULL;
}

int session_ref_table(struct session *x, struct table_entry *t)
{
    struct session_ref *ref = session_find_ref(x, t);

    if (!ref) {
        struct session_ref *refs = reallocarray(x->refs, x->n_refs + 1, sizeof(*refs));

        if (!refs)
            return -ENOMEM;

        x->refs = refs;
        ref = &refs[x->n_refs++];
        *ref = (struct session_ref){t, 0};
    }

    if (ref->n == UINT32_MAX)
        return -ENOMEM;

    ref->n++;
    t->n_refs++;
    return 0;
}

int session_unref_table(struct session *x, struct table_entry *t)
{
    struct session_ref *ref = session_find_ref(x, t);

    if (!ref)
        return -ENOENT;

    t->n_refs--;
    if (--ref->n == 0)
        *ref = x->refs[--x->n_refs];
    return 0;
}

bool session_has_table(const struct session *x, const struct table_entry *t)
{
    return session_find_ref(x, t) != NULL;
}

/* ---- time ---- */

static void session_tick(struct session *x, uint64_t now_ms)
{
    uint32_t n_expired, n_discarded;

    session_copy_page(x, now_ms);
    if (now_ms - x->seen_ms < x->sessions->config->lease_ms)
        return;

    n_discarded = device_is_gpu(x->tenant->device) ? 0 : x->n_reservations;
    if (n_discarded > 0)
        reservations_discard_all(x);
    n_expired = lease_expire(&x->leases);
    if (n_expired + n_discarded > 0)
        log_client_event(&x->tenant->account->log, LOG_INFO, "expired",
                         "session=%" PRIu64 " pid=%ld leases=%" PRIu32 " reservations=%" PRIu32, x->serial,
                         (long) x->pid, n_expired, n_discarded);
}

/* ---- all sessions ---- */

/* The quarantine of a GPU is over for a dead process: see struct gpu_sessions. */
static void session_end_dead(void *ctx, uint32_t number, bool retired)
{
    struct sessions *ss = ctx;
    struct session *x = ss->list[number];

    if (!retired)
        log_client_event(&x->tenant->account->log, LOG_INFO, "memory-released",
                         "device=%s session=%" PRIu64 " pid=%ld held=%" PRIu32 " reserved=%" PRIu32,
                         x->tenant->device->name, x->serial, (long) x->pid, x->leases.n_held,
                         x->n_reservations);
    (void) session_close(x, "the GPU driver no longer lists its process");
}

static uint64_t session_count_slots(void *ctx, uint32_t number)
{
    const struct sessions *ss = ctx;
    const struct session *x = ss->list[number];

    return x->leases.n_held + orphans_holds(ss, number) + x->n_reservations;
}

struct gpu_sessions sessions_for_gpus(struct sessions *ss)
{
    return (struct gpu_sessions){session_end_dead, session_count_slots, ss};
}

int sessions_init(struct sessions *ss, struct errmsg *e)
{
    ss->n_max = ss->config->connections_max + ss->config->sessions_per_tenant_max;
    if (ss->n_max > JOURNAL_SESSIONS_MAX)
        ss->n_max = JOURNAL_SESSIONS_MAX;
    if (ss->n_max < ss->persist->journal.head->n_sessions) /* an earlier start allowed more */
        ss->n_max = ss->persist->journal.head->n_sessions;
    ss->list = calloc(ss->n_max, sizeof(struct session *));
    ss->orphans = calloc(ss->n_max, sizeof(*ss->orphans));
    if (!ss->list || !ss->orphans)
        return fail(e, -ENOMEM, "out of memory for %" PRIu32 " sessions", ss->n_max);
    return 0;
}

void sessions_deinit(struct sessions *ss)
{
    for (uint32_t i = 0; ss->list && i < ss->n_max; i++)
        ss->list[i] = session_free(ss->list[i]);
    for (uint32_t i = 0; ss->n_watched > 0 && i < ss->n_max; i++)
        if (orphans_is_watched(ss, i))
            orphans_end(ss, i);
    freep(&ss->list);
    freep(&ss->orphans);
    ss->list = NULL;
    ss->orphans = NULL;
}

void sessions_tick(struct sessions *ss, uint64_t now_ms)
{
    for (uint32_t i = 0; i < ss->n_max; i++)
        if (ss->list[i])
            session_tick(ss->list[i], now_ms);
    orphans_tick(ss);
}
