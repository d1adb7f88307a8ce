/* See pages.h. */
#include "client/sequence/pages.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client/model/model.h"
#include "gpu/device.h"

/* ---- memory of the host ---- */

static int pages_take_host(struct kvc_client *c, struct page *p)
{
    (void) c;
    return heap_pool_take(&p->table->heap[p->class], &p->bytes);
}

static void pages_give_host(struct kvc_client *c, struct page *p)
{
    (void) c;
    heap_pool_give(&p->table->heap[p->class], p->bytes);
}

static int pages_copy_host(struct kvc_client *c, struct page *to, const struct page *from)
{
    (void) c;
    memcpy(to->bytes, from->bytes, from->table->layout.page_bytes[from->class]);
    return 0;
}

const struct page_ops page_host_ops = {
    .take = pages_take_host,
    .give = pages_give_host,
    .copy = pages_copy_host,
};

/* ---- handles ---- */

/* Handles are used again: a sequence in steady state allocates nothing. */
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

int page_claim(struct kvc_client *c, struct model_table *t, enum page_class class, bool in_arena,
               struct page **ret)
{
    struct page *p = pages_handle_new(c);
    int r = 0;

    if (!p)
        return -ENOMEM;

    *p = (struct page){.table = t, .refs = 1, .class = class, .place = in_arena ? PAGE_ARENA : PAGE_HEAP};
    if (!in_arena)
        r = c->ops->pages->take(c, p);
    else
        r = session_arena_take(&c->session, t->layout.slot_bytes[class], &p->arena_off);
    if (r < 0) {
        pages_handle_free(c, p);
        return r;
    }

    if (in_arena)
        p->bytes = (uint8_t *) extent_data(c->session.arena_extent) + p->arena_off;
    *ret = p;
    return 0;
}

static void pages_put_into_pool(struct page *p, const struct page_grant *grant)
{
    const struct mapped_extent *x = grant->extent;

    p->place = PAGE_POOL;
    p->bytes = x->host ? (uint8_t *) x->host + grant->offset : NULL; /* the mapping is read-only */
    p->device = x->host ? 0 : x->device + grant->offset;
    p->extent = grant->extent;
    p->slot = grant->slot;
    p->generation = grant->generation;
    p->lease = grant->lease;
    p->lease_item = grant->item;
    client_lease_hold(grant->lease);
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

int page_absent(struct kvc_client *c, struct model_table *t, enum page_class class,
                const struct chunk_key *key, struct page **ret)
{
    struct page *p = pages_handle_new(c);

    if (!p)
        return -ENOMEM;

    *p = (struct page){
        .table = t, .refs = 1, .class = class, .place = PAGE_ABSENT, .has_key = true, .key = *key};
    *ret = p;
    return 0;
}

bool page_is_shared(const struct page *p)
{
    return p->place == PAGE_POOL && !p->lease->forgotten && !p->extent->orphan;
}

bool page_is_private(const struct page *p)
{
    return p->place != PAGE_ABSENT && !page_is_shared(p);
}

/* Frees the bytes in the heap or arena, or releases the page in the pool. */
static void pages_give_bytes(struct kvc_client *c, struct page *p)
{
    switch (p->place) {
    case PAGE_HEAP:
        c->ops->pages->give(c, p);
        break;
    case PAGE_ARENA:
        arena_give(&c->session.arena, p->arena_off, p->table->layout.slot_bytes[p->class]);
        break;
    case PAGE_POOL:
        extents_put(&c->extents, p->extent);
        client_lease_drop(p->lease, p->lease_item, 1);
        break;
    case PAGE_ABSENT:
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
    int r;

    assert(p->place != PAGE_HEAP);
    r = c->ops->pages->take(c, &to);
    if (r < 0)
        return r;

    r = c->ops->pages->copy(c, &to, p);
    if (r < 0) {
        c->ops->pages->give(c, &to);
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
