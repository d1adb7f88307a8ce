/* See host_extents.h. */
#include "daemon/store/host_extents.h"

#include <errno.h>
#include <inttypes.h>

#include "base/errmsg.h"
#include "daemon/loop/ev.h"
#include "daemon/loop/log.h"
#include "daemon/store/extent_maker.h"
#include "daemon/store/pool.h"

static uint32_t host_extents_room(const struct host_extents *h)
{
    return h->pool->n_extents_max - h->pool->n_extents;
}

static void host_extents_on_made(void *ctx, struct pool_memory *m, int err, const char *why)
{
    struct host_extents *h = ctx;

    if (err == 0) {
        preallocated_add(&h->preallocated, m);
        host_extents_tick(h);
    } else {
        /* a memfd without memory is ENOSPC, which would mean that the pool is full */
        preallocated_fail(&h->preallocated, err == -ENOSPC ? -ENOMEM : err, why, ev_now_ms(h->ev));
        if (err != -ECANCELED && log_is_due(h->preallocated.n_failed))
            log_event(LOG_WARNING, "extent-not-created",
                      "device=cpu failed=%" PRIu64 " message=\"%s\", trying again", h->preallocated.n_failed,
                      why);
    }

    if (err != -ECANCELED)
        h->owner.changed(h->owner.ctx);
}

static int host_extents_begin(void *ctx, struct errmsg *e)
{
    struct host_extents *h = ctx;
    const struct extent_maker_owner owner = {host_extents_on_made, h};

    return extent_maker_begin(h->memory, h->pool, -1, &owner, e);
}

static int host_extents_take(void *ctx, struct pool_memory *ret, struct errmsg *e)
{
    struct host_extents *h = ctx;

    return preallocated_take(&h->preallocated, host_extents_room(h), ev_now_ms(h->ev), ret, e);
}

void host_extents_init(struct host_extents *h, struct ev *ev, struct host_memory *memory, struct pool *p,
                       uint32_t n_spare, const struct host_extents_owner *owner)
{
    const struct preallocated_maker maker = {host_extents_begin, h};

    *h = (struct host_extents){
        .ev = ev,
        .memory = memory,
        .pool = p,
        .source = {host_extents_take, h},
        .owner = *owner,
    };
    preallocated_init(&h->preallocated, &maker, n_spare);
    p->source = &h->source;
    p->freeing = memory;
}

void host_extents_deinit(struct host_extents *h)
{
    if (!h->pool)
        return;

    preallocated_deinit(&h->preallocated);
    h->pool->source = NULL;
    h->pool->freeing = NULL;
    h->pool = NULL;
}

void host_extents_tick(struct host_extents *h)
{
    preallocated_tick(&h->preallocated, host_extents_room(h), ev_now_ms(h->ev));
}
