/* LEND_EXTENT, and the end of what was lent; see lend.h. */
#include "daemon/session/external_memory.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "daemon/loop/log.h"
#include "daemon/requests/request.h"
#include "daemon/server.h"
#include "daemon/session/session.h"
#include "daemon/store/share.h"

static bool external_memory_lends(const struct session *x, const struct pool_extent *extent)
{
    return extent->lent && extent->lent->session == x->number && !extent->lent->gone;
}

static uint32_t external_memory_count(const struct session *x)
{
    const struct pool *p = &store_of(x->tenant)->pool;
    uint32_t n = 0;

    for (uint32_t i = 0; i < p->n_extents; i++)
        n += external_memory_lends(x, p->extents[i]);
    return n;
}

bool lend_any(const struct session *x)
{
    return external_memory_count(x) > 0;
}

/* ---- the request ---- */

static int external_memory_check_message(struct request *rq, const Kvcobra__LendExtent *m)
{
    const struct device *d = rq->session->tenant->device;

    if (!device_is_gpu(d))
        return fail(&rq->error, -EOPNOTSUPP,
                    "memory can be lent for pages on a GPU, those of this session are in the host's");
    if (!rq->server->config->gpu_lend)
        return fail(&rq->error, -EOPNOTSUPP,
                    "this kvcobrad takes no memory from clients: it is not configured with \"gpu-lend = "
                    "yes\"");
    if (m->ipc_handle.len != LENT_HANDLE_BYTES)
        return fail(&rq->error, -EINVAL, "a handle of %zu bytes instead of %d", m->ipc_handle.len,
                    LENT_HANDLE_BYTES);
    if (m->bytes != d->store.pool.extent_bytes)
        return fail(&rq->error, -EINVAL, "%" PRIu64 " bytes were lent: an extent of %s has %" PRIu64,
                    m->bytes, d->name, d->store.pool.extent_bytes);
    return 0;
}

/* The same memory has the same handle as long as it is allocated. */
static const struct pool_extent *external_memory_find_handle(const struct pool *p, const uint8_t *handle)
{
    for (uint32_t i = 0; i < p->n_extents; i++)
        if (p->extents[i]->lent && memcmp(p->extents[i]->lent->handle, handle, LENT_HANDLE_BYTES) == 0)
            return p->extents[i];
    return NULL;
}

static int external_memory_check_room(struct request *rq, const uint8_t *handle)
{
    const struct session *x = rq->session;
    const struct store *st = store_of(x->tenant);
    uint32_t n = external_memory_count(x);

    if (external_memory_find_handle(&st->pool, handle))
        return fail(&rq->error, -EEXIST,
                    "this memory is lent already, or somebody holds pages in it from an earlier time");
    if (n >= rq->server->config->lent_extents_per_session_max)
        return fail(&rq->error, -EDQUOT, "this session lends %" PRIu32 " extents, which is the most", n);
    if (!share_may_lend(st, x->tenant))
        return fail(&rq->error, -ENOSPC,
                    "the pool of %" PRIu64 " bytes has all its extents, or the rest of it is guaranteed to "
                    "others: raise --gpu-pool-bytes",
                    st->pool.pool_bytes);
    return 0;
}

int handle_lend_extent(struct request *rq)
{
    const Kvcobra__LendExtent *m = rq->message->lend_extent;
    Kvcobra__LendExtentReply *reply = &rq->server->scratch->body.lend_extent;
    const struct session *x = rq->session;
    struct span_owner owner = {.uid = x->tenant->uid, .place = x->tenant->device->place};
    struct pool_lent lent = {.session = x->number, .pid = x->pid};
    struct pool_extent *extent;
    int r = external_memory_check_message(rq, m);

    if (r == 0)
        r = external_memory_check_room(rq, m->ipc_handle.data);
    if (r < 0)
        return r;
    memcpy(lent.handle, m->ipc_handle.data, LENT_HANDLE_BYTES);
    r = pool_extent_lend(&store_of(x->tenant)->pool, x->tenant, &lent, &owner, &extent, &rq->error);
    if (r < 0)
        return r;
    log_event(LOG_INFO, "extent-lent", "extent=%" PRIu64 " tenant=%s session=%" PRIu32 " pid=%ld", extent->id,
              x->tenant->name, x->number, (long) x->pid);
    kvcobra__lend_extent_reply__init(reply);
    reply->extent = extent->id;
    rq->reply.body_case = KVCOBRA__REPLY__BODY_LEND_EXTENT;
    rq->reply.lend_extent = reply;
    return 0;
}

/* ---- the end ---- */

/* Nothing is put into these slots again: it does no harm if somebody still writes there. */
static void external_memory_discard_reserved(struct server *s, struct store *st, uint32_t span)
{
    uint32_t n = st->pool.spans[span]->n_fresh_from;

    for (uint32_t i = 0; i < n; i++) {
        uint32_t number = span << POOL_SLOT_BITS | i;
        const struct slot *slot = pool_slot(&st->pool, number); /* NULL: the span went with its last one */

        if (!slot || slot->state != SLOT_RESERVED)
            continue;
        session_take_reservation(s->sessions[slot->session], number);
        store_discard(st, number);
    }
}

static void external_memory_end_one(struct server *s, struct store *st, struct pool_extent *extent)
{
    for (uint32_t i = 0; i < extent->n_units; i++)
        if (extent->span_of_unit[i] != UINT32_MAX)
            external_memory_discard_reserved(s, st, extent->span_of_unit[i]);
    store_lender_gone(st, extent);
}

void lend_end(struct session *x)
{
    struct store *st = store_of(x->tenant);
    bool any = false;

    for (uint32_t i = 0; i < st->pool.n_extents; i++) {
        if (!external_memory_lends(x, st->pool.extents[i]))
            continue;
        external_memory_end_one(x->server, st, st->pool.extents[i]);
        any = true;
    }
    if (any)
        store_tick(st);
}
