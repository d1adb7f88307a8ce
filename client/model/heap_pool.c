/* See heap_pool.h. */
#include "client/model/heap_pool.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/page_layout.h"

#define SLAB_BYTES ((size_t) 4 << 20)

static int heap_pool_add_slab(struct heap_pool *p)
{
    size_t n = SLAB_BYTES / p->slot_bytes > 0 ? SLAB_BYTES / p->slot_bytes : 1;
    void **slabs = realloc(p->slabs, (p->n_slabs + 1) * sizeof(*slabs));
    uint8_t *slab;

    if (!slabs)
        return -ENOMEM;

    p->slabs = slabs;

    slab = aligned_alloc(PAGE_ALIGN, n * p->slot_bytes);
    if (!slab)
        return -ENOMEM;

    slabs[p->n_slabs++] = slab;
    for (size_t i = n; i-- > 0;)
        heap_pool_give(p, slab + i * p->slot_bytes);
    return 0;
}

int heap_pool_take(struct heap_pool *p, uint8_t **ret_slot)
{
    int r = p->free ? 0 : heap_pool_add_slab(p);

    if (r < 0)
        return r;

    *ret_slot = p->free;
    memcpy(&p->free, *ret_slot, sizeof(p->free));
    return 0;
}

void heap_pool_give(struct heap_pool *p, void *slot)
{
    memcpy(slot, &p->free, sizeof(p->free));
    p->free = slot;
}

void heap_pool_deinit(struct heap_pool *p)
{
    for (size_t i = 0; i < p->n_slabs; i++)
        free(p->slabs[i]);
    free(p->slabs);
    *p = (struct heap_pool){.slot_bytes = p->slot_bytes};
}
