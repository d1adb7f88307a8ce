/* Private and leased pages; see pages.h. */
#include "client/sequence/pages.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client/connection/client.h"
#include "client/model/model.h"
#include "gpu/device.h"

#define SLAB_BYTES ((size_t) 4 << 20)

static int pages_heap_take(struct heap_pool *p, uint8_t **ret)
{
    if (!p->free) {
        size_t n = SLAB_BYTES / p->slot_bytes > 0 ? SLAB_BYTES / p->slot_bytes : 1;
        void **slabs = realloc(p->slabs, (p->n_slabs + 1) * sizeof(*slabs));
        uint8_t *slab;

        if (!slabs)
            return -ENOMEM;
        p->slabs = slabs;
        slab = aligned_alloc(PAGE_ALIGN, n * p->slot_bytes); /* slots are multiples of PAGE_ALIGN */
        if (!slab)
            return -ENOMEM;
        slabs[p->n_slabs++] = slab;
        for (size_t i = n; i-- > 0;) {
            void *slot = slab + i * p->slot_bytes;

            memcpy(slot, &p->free, sizeof(p->free));
            p->free = slot;
        }
    }
    *ret = p->free;
    memcpy(&p->free, *ret, sizeof(p->free));
    return 0;
}

static void pages_heap_give(struct heap_pool *p, void *slot)
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

/* Handles are recycled: a sequence in steady state allocates nothing. */
static struct page *pages_handle_new(struct kvc_client *c)
{
    struct page *p = c->free_pages;

    if (!p)
        return calloc(1, sizeof(*p));
    c->free_pages = p->next;
    memset(p, 0, sizeof(*p));
    return p;
}

static void pages_handle_free(struct kvc_client *c, struct page *p)
{
    p->next = c->free_pages;
    c->free_pages = p;
}

/* Memory of this process for a page, on the host or on the GPU. Return: 0; -ENOMEM, -EBUSY, -EIO. */
static int pages_private_take(struct kvc_client *c, struct page *p)
{
    if (c->gpu)
        return gpu_slot_take(c->gpu, &p->table->gpu_heap[p->class], &p->device, &c->error);
    return pages_heap_take(&p->table->heap[p->class], &p->bytes);
}

int page_claim(struct kvc_client *c, struct model_table *t, enum page_class class, bool in_arena,
               struct page **ret)
{
    struct page *p = pages_handle_new(c);
    int r = 0;

    if (!p)
        return -ENOMEM;
    *p = (struct page){.table = t, .refs = 1, .class = class, .place = in_arena ? PAGE_ARENA : PAGE_HEAP};
    if (!in_arena)
        r = pages_private_take(c, p);
    else if (arena_take(&c->session.arena, t->layout.slot_bytes[class], &p->arena_off))
        p->bytes = (uint8_t *) extent_data(c->session.arena_extent) + p->arena_off;
    else
        r = -ENOSPC;
    if (r < 0) {
        pages_handle_free(c, p);
        return r;
    }
    *ret = p;
    return 0;
}

static void pages_put_into_pool(struct page *p, const struct page_grant *grant)
{
    p->place = PAGE_POOL;
    if (grant->extent->device)
        p->device = cuda_extent_address(grant->extent->device) + grant->offset;
    else /* mapped read-only: nobody writes through it */
        p->bytes = (uint8_t *) extent_data(grant->extent->extent) + grant->offset;
    p->extent = grant->extent;
    p->slot = grant->slot;
    p->generation = grant->generation;
    p->lease = grant->lease;
    p->lease_item = grant->item;
    lease_hold(grant->lease);
}

int page_leased(struct kvc_client *c, struct model_table *t, enum page_class class,
                const struct chunk_key *key, const struct page_grant *grant, struct page **ret)
{
    struct page *p = pages_handle_new(c);

    if (!p)
        return -ENOMEM;
    *p = (struct page){.table = t, .refs = 1, .class = class, .has_key = true, .key = *key};
    pages_put_into_pool(p, grant);
    *ret = p;
    return 0;
}

bool page_is_shared(const struct page *p)
{
    return p->place == PAGE_POOL && !p->lease->forgotten && !p->extent->orphan;
}

/* Gives back the bytes, wherever they are. */
static void pages_give_bytes(struct kvc_client *c, struct page *p)
{
    switch (p->place) {
    case PAGE_HEAP:
        if (c->gpu)
            gpu_slot_give(&p->table->gpu_heap[p->class], p->device);
        else
            pages_heap_give(&p->table->heap[p->class], p->bytes);
        break;
    case PAGE_ARENA:
        arena_give(&c->session.arena, p->arena_off, p->table->layout.slot_bytes[p->class]);
        break;
    case PAGE_POOL:
        extents_put(&c->extents, p->extent);
        lease_drop(p->lease, p->lease_item, 1);
        break;
    }
    p->bytes = NULL;
    p->device = 0;
}

void page_move_to_pool(struct kvc_client *c, struct page *p, const struct page_grant *grant)
{
    assert(!page_is_shared(p));
    pages_give_bytes(c, p);
    pages_put_into_pool(p, grant);
    c->pages_moved++;
}

int page_move_to_heap(struct kvc_client *c, struct page *p)
{
    struct page to = {.table = p->table, .class = p->class};
    size_t bytes = p->table->layout.page_bytes[p->class];
    int r;

    assert(p->place != PAGE_HEAP);
    r = pages_private_take(c, &to);
    if (r < 0)
        return r;
    if (!c->gpu)
        memcpy(to.bytes, p->bytes, bytes);
    else
        r = gpu_copy(c->gpu, to.device + PAGE_HEADER_BYTES, p->device + PAGE_HEADER_BYTES,
                     bytes - PAGE_HEADER_BYTES, &c->error);
    if (r < 0) {
        gpu_slot_give(&p->table->gpu_heap[p->class], to.device);
        return r;
    }
    pages_give_bytes(c, p);
    p->place = PAGE_HEAP;
    p->bytes = to.bytes;
    p->device = to.device;
    c->pages_moved++;
    return 0;
}

void page_unref(struct kvc_client *c, struct page *p)
{
    if (--p->refs > 0)
        return;
    pages_give_bytes(c, p);
    pages_handle_free(c, p);
}
