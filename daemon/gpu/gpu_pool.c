/* See gpu_pool.h. */
#include "daemon/gpu/gpu_pool.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "daemon/config/config.h"
#include "daemon/gpu/gpu_open.h"
#include "daemon/gpu/mover.h"
#include "daemon/loop/log.h"
#include "daemon/store/device.h"
#include "daemon/store/extent_maker.h"
#include "daemon/store/persist.h"
#include "daemon/store/retire.h"

static uint64_t gpu_pool_now_of(const struct gpu_pool *g)
{
    return ev_now_ms(g->device->gpus->ev);
}

/* Extents that the pool may still add. */
static uint32_t gpu_pool_room_of(const struct gpu_pool *g)
{
    const struct pool *p = &g->device->store.pool;

    return p->n_extents_max - p->n_extents;
}

/* ---- extents ---- */

static void gpu_pool_fail_extent(struct gpu_pool *g, int err, const char *why)
{
    preallocated_fail(&g->preallocated, err, why, gpu_pool_now_of(g));
    if (err != -ECANCELED && log_is_due(g->preallocated.n_failed))
        log_event(LOG_WARNING, "extent-not-created",
                  "device=%s failed=%" PRIu64 " message=\"%s\", trying again", g->device->name,
                  g->preallocated.n_failed, why);
}

static void gpu_pool_on_made(void *ctx, struct pool_memory *m, int err, const char *why)
{
    struct gpu_pool *g = ctx;

    if (err == 0)
        preallocated_add(&g->preallocated, m);
    else
        gpu_pool_fail_extent(g, err, why);
}

static void gpu_pool_on_created(void *ctx, struct mover_reply *reply)
{
    struct gpu_pool *g = ctx;
    const struct extent_maker_owner owner = {gpu_pool_on_made, g};
    struct errmsg e = {""};
    int r = reply->err;

    if (r < 0)
        (void) fail(&e, r, "%s", reply->message);
    else if (reply->fd < 0)
        r = fail(&e, -EMFILE, "kvcobra-mover sent no descriptor: kvcobrad has too many open");
    else
        r = extent_maker_begin(g->device->gpus->memory, &g->device->store.pool, reply->fd, &owner, &e);
    if (r < 0)
        gpu_pool_fail_extent(g, r, e.text);
    else
        reply->fd = -1; /* the maker has it */
}

static int gpu_pool_begin_extent(void *ctx, struct errmsg *e)
{
    struct gpu_pool *g = ctx;
    struct device *d = g->device;
    Kvcobra__MoverCreate create = KVCOBRA__MOVER_CREATE__INIT;
    Kvcobra__MoverRequest request = KVCOBRA__MOVER_REQUEST__INIT;
    int r = gpu_open_check(d, e); /* opens an unavailable device again */

    if (r < 0)
        return r;

    create.device = d->number;
    create.bytes = d->store.pool.extent_bytes;
    request.body_case = KVCOBRA__MOVER_REQUEST__BODY_CREATE;
    request.create = &create;
    r = mover_ask(d->gpus->mover, &request, NULL, 0, GPU_CREATE_MS, gpu_pool_on_created, g);
    return r < 0 ? fail(e, r, "cannot send a request to kvcobra-mover: %s", strerror(-r)) : 0;
}

/* A request does not wait for the mover, which may have to open the GPU first: its client retries. */
static int gpu_pool_take_extent(void *ctx, struct pool_memory *ret, struct errmsg *e)
{
    struct gpu_pool *g = ctx;
    int r = preallocated_take(&g->preallocated, gpu_pool_room_of(g), gpu_pool_now_of(g), ret, e);

    return r == -EINPROGRESS ? -EAGAIN : r;
}

/* ---- dead processes ---- */

/*
 * Retires the extents of all pages that @session holds. The cells of the journal have all holds, orphaned
 * ones too. This is rare, so the whole list is searched.
 */
static void gpu_pool_retire_held(const struct journal *j, struct store *st, uint32_t session)
{
    for (uint64_t i = 0; i < j->head->n_holds; i++) {
        const struct hold_cell *c = &j->holds[i];
        struct page_handle h;

        if (c->slot != SLOT_NONE && hold_session(c) == session && pool_resolve(&st->pool, c->slot, &h))
            retire_extent(st, h.span->extent);
    }
}

void gpu_pool_retire_session(struct gpu_pool *g, uint32_t session, const char *why)
{
    struct store *st = &g->device->store;

    log_event(LOG_WARNING, "memory-retired",
              "device=%s session=%" PRIu64 " message=\"%s: extents that its process used take no new pages\"",
              g->device->name, g->device->gpus->persist->journal.sessions[session].serial, why);
    retire_reserved(st, session);
    gpu_pool_retire_held(&g->device->gpus->persist->journal, st, session);
}

static void gpu_pool_end_session(struct gpu_pool *g, uint32_t number, bool retired)
{
    const struct gpu_sessions *sessions = &g->device->gpus->sessions;

    sessions->end(sessions->ctx, number, retired);
}

static void gpu_pool_on_release(void *ctx, uint32_t number)
{
    gpu_pool_end_session(ctx, number, false);
}

static void gpu_pool_on_retire(void *ctx, uint32_t number, const char *why)
{
    struct gpu_pool *g = ctx;

    gpu_pool_retire_session(g, number, why);
    gpu_pool_end_session(g, number, true);
    retire_tick(&g->device->store);
}

static void gpu_pool_on_listed(void *ctx, struct mover_reply *reply)
{
    struct gpu_pool *g = ctx;

    if (reply->err == -EOPNOTSUPP) /* no list exists, or it would be wrong: mover/README.md */
        quarantine_retire_all(&g->quarantine, reply->message);
    else if (reply->err < 0)
        quarantine_unanswered(&g->quarantine);
    else
        quarantine_listed(&g->quarantine, reply->body->processes->pids, reply->body->processes->n_pids,
                          gpu_pool_now_of(g));
}

static void gpu_pool_ask_for_list(struct gpu_pool *g)
{
    struct device *d = g->device;
    Kvcobra__MoverProcesses processes = KVCOBRA__MOVER_PROCESSES__INIT;
    Kvcobra__MoverRequest request = KVCOBRA__MOVER_REQUEST__INIT;

    if (!quarantine_needs_list(&g->quarantine) || gpu_open_check(d, NULL) < 0)
        return;

    processes.device = d->number;
    request.body_case = KVCOBRA__MOVER_REQUEST__BODY_PROCESSES;
    request.processes = &processes;
    if (mover_ask(d->gpus->mover, &request, NULL, 0, GPU_LIST_MS, gpu_pool_on_listed, g) == 0)
        quarantine_requested(&g->quarantine);
}

void gpu_pool_process_gone(struct gpu_pool *g, uint32_t session, pid_t pid)
{
    quarantine_add(&g->quarantine, session, pid, gpu_pool_now_of(g));
    gpu_pool_ask_for_list(g);
}

void gpu_pool_delay_reuse(struct gpu_pool *g)
{
    g->delay_until_ms = gpu_pool_now_of(g) + g->reuse_ms + 1;
}

static void gpu_pool_end_delay(struct gpu_pool *g, uint64_t now_ms)
{
    if (g->delay_until_ms == 0 || now_ms < g->delay_until_ms)
        return;

    g->delay_until_ms = 0;
    store_discard_reserved(&g->device->store, SLOT_WITHOUT_SESSION);
}

/* ---- creation, tick, metrics ---- */

int gpu_pool_new(struct device *d, struct gpus *gpus, struct gpu_pool **ret, struct errmsg *e)
{
    _cleanup_(freep) struct gpu_pool *g = calloc(1, sizeof(*g));
    struct quarantine_owner owner = {gpu_pool_on_release, gpu_pool_on_retire, g};
    struct preallocated_maker maker = {gpu_pool_begin_extent, g};
    int r;

    if (!g)
        return fail(e, -ENOMEM, "out of memory for the pool of %s", d->name);

    r = quarantine_init(&g->quarantine, &owner, GPU_DEAD_PROCESSES_MAX, gpus->config->gpu_reuse_ms,
                        GPU_LIST_PATIENCE_MS, e);
    if (r < 0)
        return r;

    d->gpus = gpus;
    g->device = d;
    g->reuse_ms = gpus->config->gpu_reuse_ms;
    g->source = (struct pool_source){gpu_pool_take_extent, g};
    preallocated_init(&g->preallocated, &maker, gpus->config->gpu_spare_extents);
    d->store.pool.source = &g->source;
    *ret = take_ptr(g);
    return 0;
}

struct gpu_pool *gpu_pool_free(struct gpu_pool *g)
{
    if (!g)
        return NULL;

    g->device->store.pool.source = NULL;
    quarantine_deinit(&g->quarantine);
    preallocated_deinit(&g->preallocated);
    free(g);
    return NULL;
}

void gpu_pool_tick(struct gpu_pool *g, uint64_t now_ms)
{
    if (g->device->state == DEVICE_READY)
        preallocated_tick(&g->preallocated, gpu_pool_room_of(g), now_ms);
    gpu_pool_ask_for_list(g);
    quarantine_tick(&g->quarantine, now_ms);
    gpu_pool_end_delay(g, now_ms);
    retire_tick(&g->device->store);
}

void gpu_pool_metrics(const struct gpu_pool *g, struct gpu_pool_metrics *ret)
{
    const struct gpu_sessions *sessions = &g->device->gpus->sessions;
    const struct pool *p = &g->device->store.pool;

    *ret = (struct gpu_pool_metrics){.spare_extents = g->preallocated.n};
    for (uint32_t i = 0; i < g->quarantine.n; i++)
        ret->quarantined_slots += sessions->count_slots(sessions->ctx, g->quarantine.entries[i].session);
    for (uint32_t i = 0; i < p->n_extents; i++)
        ret->retired_extents += p->extents[i]->retired;
}
