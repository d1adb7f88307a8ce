/* See gpu_slots.h. */
#include "client/gpu/gpu_slots.h"

#include <errno.h>
#include <stdlib.h>

#include "client/gpu/gpu_memory.h"

#define SLAB_BYTES ((size_t) 4 << 20)

static int gpu_slots_add_slab(struct gpu *g, struct gpu_slots *p, struct errmsg *e)
{
    size_t n = SLAB_BYTES / p->slot_bytes > 0 ? SLAB_BYTES / p->slot_bytes : 1;
    struct gpu_memory *slabs = realloc(p->slabs, (p->n_slabs + 1) * sizeof(*slabs));
    cu_ptr *slots;
    int r;

    if (!slabs)
        return fail(e, -ENOMEM, "out of memory");

    p->slabs = slabs;

    slots = realloc(p->free, (p->n_slots + n) * sizeof(*slots));
    if (!slots)
        return fail(e, -ENOMEM, "out of memory");

    p->free = slots;
    r = gpu_alloc(g, n * p->slot_bytes, &slabs[p->n_slabs], e);
    if (r < 0)
        return r;

    for (size_t i = n; i-- > 0;)
        p->free[p->n_free++] = slabs[p->n_slabs].at + i * p->slot_bytes;
    p->n_slots += n;
    p->n_slabs++;
    return 0;
}

int gpu_slot_take(struct gpu *g, struct gpu_slots *p, cu_ptr *ret, struct errmsg *e)
{
    int r = p->n_free > 0 ? gpu_check_usable(g, e) : gpu_slots_add_slab(g, p, e);

    if (r < 0)
        return r;

    *ret = p->free[--p->n_free];
    return 0;
}

void gpu_slot_give(struct gpu_slots *p, cu_ptr slot)
{
    p->free[p->n_free++] = slot;
}

void gpu_slots_deinit(struct gpu *g, struct gpu_slots *p)
{
    for (size_t i = 0; i < p->n_slabs; i++)
        gpu_free(g, &p->slabs[i]);
    free(p->slabs);
    free(p->free);
    *p = (struct gpu_slots){.slot_bytes = p->slot_bytes};
}
