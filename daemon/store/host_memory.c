/* See host_memory.h. */
#include "daemon/store/host_memory.h"

#include <stdlib.h>

#include "gpu/device.h"

struct host_memory_item {
    struct work_item work;
    struct extent *extent;
    uint64_t bytes;
    bool discard;
    struct host_memory_owner owner;
};

static void host_memory_end(struct host_memory_item *i)
{
    /* as far as the kernel can: a client that writes gets memory again, which is charged to the client */
    if (i->extent && i->discard && extent_data(i->extent))
        extent_discard(i->extent, 0, extent_bytes(i->extent));
    else if (i->extent && i->discard)
        (void) extent_empty(i->extent);
    i->extent = extent_free(i->extent);
}

static bool host_memory_run(struct work_item *work)
{
    host_memory_end((struct host_memory_item *) work);
    return false;
}

static void host_memory_on_done(struct work_item *work)
{
    struct host_memory_item *i = (struct host_memory_item *) work;

    host_memory_end(i); /* the daemon ends, and the thread did not come to it */
    if (i->owner.freed)
        i->owner.freed(i->owner.ctx, i->bytes);
    free(i);
}

int host_memory_init(struct host_memory *m, struct ev *ev, struct errmsg *e)
{
    return work_new(ev, 1, UINT32_MAX, &m->work, e);
}

void host_memory_deinit(struct host_memory *m)
{
    m->work = work_free(m->work);
}

void host_memory_free(struct host_memory *m, struct extent *x, bool discard,
                      const struct host_memory_owner *owner)
{
    struct host_memory_item on_stack, *i;

    if (!x)
        return;

    on_stack = (struct host_memory_item){
        .work = {.run = host_memory_run, .done = host_memory_on_done, .deadline_ms = UINT64_MAX},
        .extent = x,
        .bytes = extent_bytes(x),
        .discard = discard,
    };
    if (owner)
        on_stack.owner = *owner;
    i = malloc(sizeof(*i));
    if (i)
        *i = on_stack;
    if (i && work_submit(m->work, &m->freeing, &i->work) == 0)
        return;

    free(i); /* no memory for an item: the loop frees the object, which gives some back */
    host_memory_end(&on_stack);
    if (owner)
        owner->freed(owner->ctx, on_stack.bytes);
}
