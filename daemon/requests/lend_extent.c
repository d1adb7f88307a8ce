/*
 * LEND_EXTENT: a client registers GPU memory that it allocated as an extent of
 * its tenant. See external_memory.h.
 */
#include "daemon/requests/handlers.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "daemon/config/config.h"
#include "daemon/loop/log.h"
#include "daemon/requests/request.h"
#include "daemon/requests/state.h"
#include "daemon/session/external_memory.h"
#include "daemon/session/session.h"
#include "daemon/store/share.h"

static int lend_extent_check_message(struct request *rq, const Kvcobra__LendExtent *m)
{
    const struct device *d = rq->session->tenant->device;

    if (!device_is_gpu(d))
        return fail(
            &rq->error, -EOPNOTSUPP,
            "external memory is for pages on a GPU, and this session's pages are in the host's memory");
    if (!rq->server->config->gpu_lend)
        return fail(
            &rq->error, -EOPNOTSUPP,
            "this kvcobrad accepts no memory of clients: set \"gpu-lend = yes\" in its configuration");
    if (m->bytes != d->store.pool.extent_bytes)
        return fail(&rq->error, -EINVAL, "an extent of %" PRIu64 " bytes: extents of %s have %" PRIu64,
                    m->bytes, d->name, d->store.pool.extent_bytes);
    return 0;
}

/* The same memory has the same handle while it is allocated. */
static const struct pool_extent *lend_extent_find_handle(const struct pool *p, const uint8_t *handle)
{
    for (uint32_t i = 0; i < p->n_extents; i++)
        if (p->extents[i]->external &&
            memcmp(p->extents[i]->external->handle, handle, LENT_HANDLE_BYTES) == 0)
            return p->extents[i];
    return NULL;
}

static int lend_extent_check_room(struct request *rq, const uint8_t *handle)
{
    const struct session *x = rq->session;
    const struct store *st = store_of(x->tenant);
    uint32_t n = external_memory_count(x);

    if (lend_extent_find_handle(&st->pool, handle))
        return fail(&rq->error, -EEXIST,
                    "this memory is registered already, or pages of an earlier registration are still held");
    if (n >= rq->server->config->lent_extents_per_session_max)
        return fail(&rq->error, -EDQUOT, "this session has registered %" PRIu32 " extents, the maximum", n);
    if (!share_may_register(st, x->tenant))
        return fail(
            &rq->error, -ENOSPC,
            "the pool of %" PRIu64
            " bytes has all its extents, or the rest of it is guaranteed to others: raise --gpu-pool-bytes",
            st->pool.pool_bytes);
    return 0;
}

int lend_extent_handle(struct request *rq)
{
    const Kvcobra__LendExtent *m = rq->message->lend_extent;
    Kvcobra__LendExtentReply *reply = &rq->server->scratch->body.lend_extent;
    const struct session *x = rq->session;
    struct span_owner owner = {.place = x->tenant->device->store.place};
    struct pool_external external = {.session = x->number, .pid = x->pid};
    struct pool_extent *extent;
    int r = lend_extent_check_message(rq, m);

    if (r < 0)
        return r;

    r = request_check_bytes(rq, &m->ipc_handle, LENT_HANDLE_BYTES, "handle");
    if (r < 0)
        return r;

    r = lend_extent_check_room(rq, m->ipc_handle.data);
    if (r < 0)
        return r;

    memcpy(external.handle, m->ipc_handle.data, LENT_HANDLE_BYTES);
    r = pool_extent_register(&store_of(x->tenant)->pool, x->tenant, &external, &owner, &extent, &rq->error);
    if (r < 0)
        return r;

    log_client_event(&x->tenant->account->log, LOG_INFO, "extent-external",
                     "extent=%" PRIu64 " tenant=%s session=%" PRIu64 " pid=%ld", extent->id, x->tenant->name,
                     x->serial, (long) x->pid);
    kvcobra__lend_extent_reply__init(reply);
    reply->extent = extent->id;
    rq->reply.body_case = KVCOBRA__REPLY__BODY_LEND_EXTENT;
    rq->reply.lend_extent = reply;
    return 0;
}
