/* See offload.h. */
#include "daemon/offload/offload.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "daemon/cluster/cluster_tier.h"
#include "daemon/config/config.h"
#include "daemon/loop/ev.h"
#include "daemon/loop/log.h"
#include "daemon/offload/offload_shared.h"
#include "daemon/store/device.h"
#include "daemon/store/space.h"
#include "daemon/tier/keyring.h"

enum {
    SCAN_MS = 1, /* between two looks at the queues that requests cause */
};

/* ---- the timer ---- */

/* Whether slots are to be looked at without a request. */
static bool offload_has_work(const struct offload *o)
{
    return o->state == TIER_READY && (!o->pass.rests || o->sweep.runs);
}

static void offload_on_timer(void *ctx)
{
    struct offload *o = ctx;
    uint64_t n_times;

    if (read(o->timer_fd, &n_times, sizeof(n_times)) != sizeof(n_times))
        return;

    if (o->host)
        o->host->ops->expire(o->host->self, ev_now_ms(o->rooms.ev));
    offload_fetch_expire(o, ev_now_ms(o->rooms.ev));
    offload_pump(o);
    if ((!o->host || o->host->n_puts == 0) && o->n_fetches == 0 && !offload_has_work(o))
        offload_set_timer(o, 0);
}

/* ---- writing ---- */

/* What was refused is tried again after a while: a quota may be larger now, or the disk have other pages. */
static void offload_forgive(struct offload *o, uint64_t now_ms)
{
    if (o->forgive_at_ms == 0 || now_ms < o->forgive_at_ms)
        return;

    o->forgive_at_ms = 0;
    offload_pass_begin(o);
    o->pass.forgives = true;
}

static void offload_write_some(struct offload *o)
{
    struct offload_choice c;
    int r = 0;

    offload_choice_init(&c, o);
    while (o->host->n_puts < OFFLOAD_WRITES_MAX && (r == 0 || r == -EFBIG)) {
        struct page_handle h;

        if (!offload_pick(&c, &h))
            break;
        r = offload_put_begin(o->host, &h);
    }
}

void offload_pump(struct offload *o)
{
    uint64_t now_ms = ev_now_ms(o->rooms.ev);

    if (o->stopping || o->state != TIER_READY)
        return;

    offload_note_removed(o);
    offload_forgive(o, now_ms);
    if (now_ms >= o->host->pause_until_ms && offload_sweep_go_on(o)) {
        o->scanned_ms = now_ms;
        offload_write_some(o);
    }
    if (offload_has_work(o))
        offload_start_timer(o);
}

void offload_note_requests(struct offload *o)
{
    if (!o || ev_now_ms(o->rooms.ev) - o->scanned_ms < SCAN_MS ||
        (o->pass.rests && o->pass.n_entered == o->store->pool.n_entered &&
         o->n_evicted == o->store->n_evicted))
        return;

    offload_pump(o);
}

/* ---- states ---- */

void offload_tick(struct offload *o)
{
    if (!o)
        return;

    for (struct tenant *t = o->store->tenants; t; t = t->next)
        offload_announce_filter(o, t);
    if (o->host) /* the timer may be off: a drop is no page on its way */
        o->host->ops->expire(o->host->self, ev_now_ms(o->rooms.ev));
    offload_pump(o);
}

/* ---- operators ---- */

void offload_status(const struct offload *o, struct offload_status *ret)
{
    *ret = (struct offload_status){.has_disk = false};
    offload_disk_status(o, ret);
    offload_cluster_status(o, ret);
    ret->n_lost = o->store->n_lost;
    ret->n_fetching = o->n_fetches;
    ret->has_written_all = offload_has_written_all(o);
}

void offload_write_all(struct offload *o)
{
    offload_pass_begin(o);
    o->pass.rewrites = true;
    if (o->state == TIER_READY)
        offload_start_timer(o);
}

bool offload_has_written_all(const struct offload *o)
{
    if (o->state == TIER_OFF || !o->host)
        return true;
    return !offload_has_work(o) && o->state == TIER_READY && o->host->n_puts == 0;
}

int offload_resume(struct offload *o)
{
    return o->host ? o->host->ops->resume(o->host->self) : -EALREADY;
}

static void offload_on_dropped(struct tier_request *r)
{
    struct offload_drop *d = (struct offload_drop *) r;
    struct offload *o = d->offload;

    for (struct tenant *t = o->store->tenants; t; t = t->next)
        offload_announce_filter(o, t);
    offload_sweep_begin(o); /* pages in memory may have been written */
    offload_start_timer(o);
    d->done(d);
}

int offload_drop(struct offload *o, const char *tenant, const uint8_t *table_digest, struct offload_drop *d)
{
    if (!o->host)
        return -ENODEV;

    d->offload = o;
    d->request = (struct tier_request){
        .kind = TIER_DROP,
        .drops_any_tenant = !tenant,
        .drops_any_table = !table_digest,
        .deadline_ms = work_clock_ms() + OFFLOAD_PUT_MS,
        .done = offload_on_dropped,
    };
    tier_group_init(&d->request.group, tenant ? tenant : "");
    if (table_digest)
        memcpy(d->request.group.table_digest, table_digest, TIER_TABLE_BYTES);
    offload_start_timer(o);
    return o->host->ops->submit(o->host->self, &o->drops, &d->request);
}

static void offload_on_table_dropped(struct offload_drop *d)
{
    if (d->request.result < 0 && d->request.result != -ENODEV && d->request.result != -ENOENT)
        log_event(LOG_WARNING, "disk-tier-drop",
                  "message=\"the pages of a retired table stay on the disk: %s\"",
                  strerror(-d->request.result));
    free(d);
}

void offload_drop_table(struct offload *o, const uint8_t *table_digest)
{
    struct offload_drop *d = o && o->host ? calloc(1, sizeof(*d)) : NULL;

    if (!d)
        return;

    d->done = offload_on_table_dropped;
    if (offload_drop(o, NULL, table_digest, d) < 0)
        free(d);
}

/* ---- flushed pages ---- */

int offload_flush_page(struct offload *o, const struct tenant *t, const struct offload_subject *s,
                       void (*done)(void *ctx, int err), void *ctx, unsigned *ret_pending,
                       uint32_t *ret_on_the_way)
{
    unsigned n_pending = 0;
    uint32_t n_puts = 0;
    int r = 0;

    offload_fetch_flush(o, t, &s->key);
    for (unsigned i = 0; i < o->n_tiers; i++) {
        int err;

        if (!offload_admits(&o->tiers[i], t))
            continue;
        n_puts += offload_put_flush(&o->tiers[i], s) + offload_copies_flush(&o->tiers[i], s);
        err = offload_forget(&o->tiers[i], s, TIER_REMOVE, done, ctx);
        n_pending += err == 0;
        r = err < 0 ? err : r;
    }

    *ret_pending = n_pending;
    *ret_on_the_way = n_puts;
    return r;
}

int offload_ask(struct offload *o, const struct tenant *t, const struct offload_subject *s,
                void (*done)(void *ctx, int err), void *ctx)
{
    if (!o || !o->host || t->device != o->rooms.devices->list)
        return -ENOENT;
    /* a tenant without sessions may have no filter */
    return t->n_sessions == 0 || offload_has(o, t, &s->key) ? offload_forget(o->host, s, TIER_ASK, done, ctx)
                                                            : -ENOENT;
}

int offload_ask_others(struct offload *o, const struct offload_subject *s, void (*done)(void *ctx, int err),
                       void *ctx)
{
    return o->host ? offload_forget(o->host, s, TIER_ASK_OTHERS, done, ctx) : -ENODEV;
}

/* ---- start and end ---- */

void offload_set_keyring(struct offload *o, struct keyring *ring)
{
    struct keyring *old = o->keyring;

    o->keyring = keyring_ref(ring);
    (void) keyring_unref(old);
}

static void offload_pump_host(struct offload_tier *t)
{
    offload_pump(t->offload);
}

int offload_add_tier(struct offload *o, const struct tier_ops *ops,
                     bool (*admits)(const struct config *c, const char *tenant), struct offload_tier **ret)
{
    struct offload_tier *t = &o->tiers[o->n_tiers];

    assert(o->n_tiers < TIERS_MAX && (ops->is_shared ? o->n_shared < OFFLOAD_SHARED_MAX : !o->host));
    *t = (struct offload_tier){.ops = ops,
                               .admits = admits,
                               .pump = ops->is_shared ? offload_publish_pump : offload_pump_host,
                               .offload = o,
                               .number = o->n_tiers};
    if (!ops->is_shared) {
        o->host = t;
    } else {
        t->shared = calloc(1, sizeof(*t->shared));
        if (!t->shared)
            return -ENOMEM;
        t->number_of_shared = o->n_shared++;
        t->shared->refresh.next_ms = ev_now_ms(o->rooms.ev) + o->rooms.config->cluster_ttl_s * 1000 / 4;
    }

    o->n_tiers++;
    *ret = t;
    return 0;
}

static int offload_start_tier(struct offload *o, const struct tier_ops *ops,
                              bool (*admits)(const struct config *c, const char *tenant),
                              int (*start)(struct offload_tier *t, struct errmsg *e),
                              struct offload_tier **ret, struct errmsg *e)
{
    int r = offload_add_tier(o, ops, admits, ret);

    return r < 0 ? fail(e, r, "out of memory for the %s tier", ops->name) : start(*ret, e);
}

static void offload_freep(struct offload **o)
{
    *o = offload_free(*o, 0);
}

int offload_new(const struct offload_rooms *rooms, struct keyring *ring, struct offload **ret,
                struct errmsg *e)
{
    _cleanup_(offload_freep) struct offload *o = calloc(1, sizeof(*o));
    int r;

    if (!o)
        return fail(e, -ENOMEM, "out of memory for the disk tier");

    o->rooms = *rooms;
    o->store = &rooms->devices->list[0].store;
    o->keyring = keyring_ref(ring);
    o->pass.rests = true;
    o->n_rewrites_left = OFFLOAD_REWRITES_MAX;
    o->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (o->timer_fd < 0)
        return fail(e, -errno, "cannot create a timer: %s", strerror(errno));

    r = ev_watch(rooms->ev, o->timer_fd, offload_on_timer, o, &o->timer);
    if (r < 0)
        return fail(e, r, "cannot watch a timer: %s", strerror(-r));

    o->state = TIER_OFF;
    if (rooms->config->disk_dir) {
        o->state = TIER_OPENING;
        r = offload_start_tier(o, &disk_tier_ops, NULL, offload_disk_start, &o->disk, e);
    }
    if (r == 0 && rooms->config->cluster_socket)
        r = offload_start_tier(o, &cluster_tier_ops, config_has_cluster_tenant, offload_cluster_start,
                               &o->cluster, e);
    if (r < 0)
        return r;

    for (uint32_t i = 1; i < rooms->devices->n; i++)
        log_event(LOG_NOTICE, "gpu-without-disk-tier",
                  "device=%s message=\"pages in the memory of a GPU have no disk or cluster tier\"",
                  rooms->devices->list[i].name);
    *ret = take_ptr(o);
    return 0;
}

void offload_stop(struct offload *o)
{
    if (!o)
        return;

    o->stopping = true;
    offload_fetch_open_read(o);
}

struct offload *offload_free(struct offload *o, uint64_t wait_ms)
{
    if (!o)
        return NULL;

    offload_stop(o);
    for (unsigned i = 0; i < o->n_tiers; i++) { /* ends what is on its way */
        o->tiers[i].ops->free(o->tiers[i].self, wait_ms);
        o->tiers[i].self = NULL;
    }
    offload_fetch_expire(o, UINT64_MAX); /* what arrived */
    assert(o->n_fetches == 0 && !o->fetch_tree);
    for (unsigned i = 0; i < o->n_tiers; i++) {
        assert(o->tiers[i].n_puts == 0 && !o->tiers[i].forgets);
        if (o->tiers[i].shared) {
            assert(o->tiers[i].shared->copies.n == 0);
            offload_copies_deinit(&o->tiers[i].shared->copies);
        }
        free(o->tiers[i].shared);
    }
    o->timer = ev_source_free(o->timer);
    closep(&o->timer_fd);
    (void) keyring_unref(o->keyring);
    free(o->removed);
    free(o);
    return NULL;
}
