/* See tenant_index.h. */
#include "daemon/store/tenant_index.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "daemon/store/pool.h"
#include "gpu/device.h"

enum {
    /* smaller indexes are doubled, since each new object costs every client a message */
    INDEX_ENTRIES_DOUBLE_BELOW = 65536,
    /*
     * One step, at most some 50 us: memory of 16 pages to allocate or to give back, or 64 slots to copy. To
     * pass a span of another tenant takes an eighth of a slot's time. A page brings two steps, with its
     * reservation and with its insertion, so a copy is complete before the present index is 1 % fuller,
     * unless the pool has many more spans than the tenant has pages.
     */
    INDEX_STEP_BYTES = 64 << 10,
    INDEX_STEP_SLOTS = 64,
    INDEX_SPANS_PER_SLOT = 8,
    /* while a larger index is made, the present one may be this part of its capacity fuller: 82.5 % load */
    INDEX_GROWING_PART = 32,
    INDEX_PAGE_BYTES = 4096,
};

/* Bytes of an object that count for the quota: the first index of a tenant does not. */
static uint64_t tenant_index_charge(size_t bytes)
{
    return bytes > index_object_bytes(TENANT_PAGES_FREE) ? bytes : 0;
}

int tenant_index_init(struct tenant *t, struct errmsg *e)
{
    size_t bytes = index_object_bytes(TENANT_PAGES_FREE);
    int r = extent_new("kvcobra-index", bytes, EXTENT_READ, &t->index_memory, e);

    if (r < 0)
        return r;

    index_writer_init(&t->index, extent_data(t->index_memory), bytes);
    /* an account that had a tenant before, which was forgotten, gets objects of other numbers */
    t->index_object = t->number << 32 | 1;
    return 0;
}

/* ---- the end of an object ---- */

static struct extent *tenant_index_free(struct tenant *t, struct extent *memory)
{
    if (memory &&
        !(memory == t->old_memory && t->old_bytes_left == INDEX_PAGE_BYTES)) /* already given back */
        t->index_bytes -= tenant_index_charge(extent_bytes(memory));
    return extent_free(memory);
}

/* Clients may keep the object open for ever: its memory is given back all the same. */
static struct extent *tenant_index_give_back(struct tenant *t, struct extent *memory)
{
    if (memory)
        extent_discard(memory, 0, extent_bytes(memory));
    return tenant_index_free(t, memory);
}

static void tenant_index_drop_next(struct tenant *t)
{
    t->next_memory = tenant_index_free(t, t->next_memory);
    closep(&t->next_fd);
    t->next_fd = -1;
    t->next_index = (struct index_writer){0};
    t->next_span = t->next_slot = 0;
    t->next_allocated = 0;
}

void tenant_index_deinit(struct tenant *t)
{
    tenant_index_drop_next(t);
    t->old_memory = tenant_index_give_back(t, t->old_memory);
    t->index_memory = tenant_index_give_back(t, t->index_memory);
}

/* Clients read that the present index was moved, and ask for @memory. */
static void tenant_index_replace(struct tenant *t, struct extent *memory, const struct index_writer *writer)
{
    index_mark_moved(&t->index);
    t->old_memory = t->index_memory;
    t->old_bytes_left = extent_bytes(t->old_memory);
    t->index_memory = memory;
    t->index = *writer;
    t->index_object++;
}

/* ---- a larger index, in steps ---- */

static int tenant_index_begin_next(struct tenant *t, struct errmsg *e)
{
    uint64_t n = index_capacity(&t->index);
    size_t bytes;
    int r;

    n += n < INDEX_ENTRIES_DOUBLE_BELOW ? n : n / 4;
    bytes = index_object_bytes(n);
    if (bytes > tenant_room_bytes(t))
        return fail(e, -EDQUOT,
                    "the index of tenant %s has room for %" PRIu64
                    " pages, and a larger one of %zu bytes would "
                    "exceed the quota of %" PRIu64 " bytes, of which %" PRIu64
                    " are in use: release pages, end clients or raise the quota",
                    t->name, index_capacity(&t->index), bytes, t->quota_bytes, tenant_used_bytes(t));

    t->old_memory = tenant_index_give_back(t, t->old_memory);
    r = extent_new_sparse("kvcobra-index", bytes, EXTENT_READ, &t->next_memory, &t->next_fd, e);
    if (r == 0)
        t->index_bytes += tenant_index_charge(bytes);
    return r;
}

/*
 * A failure is not final: the next reservation begins again. Each page is touched now: keys spread, so the
 * first steps that copy would else wait for a page fault with every key (measured 2026-11: 500 us).
 */
static void tenant_index_allocate_step(struct tenant *t)
{
    volatile uint8_t *data = extent_data(t->next_memory);
    size_t bytes = extent_bytes(t->next_memory), left = bytes - t->next_allocated;
    size_t n = left < INDEX_STEP_BYTES ? left : INDEX_STEP_BYTES;

    if (extent_allocate(t->next_fd, t->next_allocated, n) < 0) {
        tenant_index_drop_next(t);
        return;
    }

    for (size_t at = t->next_allocated; at < t->next_allocated + n; at += INDEX_PAGE_BYTES)
        data[at] = 0;
    t->next_allocated += n;
    if (t->next_allocated == bytes)
        index_writer_init(&t->next_index, extent_data(t->next_memory), bytes);
}

/*
 * The larger index has no place for a key that has one in the present index: keys were chosen to share homes
 * there. The next attempt waits until as many pages were published as the index has.
 */
static void tenant_index_give_up(struct tenant *t)
{
    tenant_index_drop_next(t);
    t->index_pause = t->index.n_entries;
}

/* Copies at most @budget slots of one span. Return: 0; -ENOSPC: the larger index has no place for a key. */
static int tenant_index_copy_span(struct tenant *t, const struct pool *p, const struct span *s,
                                  uint32_t *budget)
{
    for (; *budget > 0 && t->next_slot < s->n_fresh_from; t->next_slot++, --*budget) {
        const struct slot *slot = &s->slots[t->next_slot];
        struct index_hit hit = {
            .slot = s->number << POOL_SLOT_BITS | t->next_slot,
            .page_class = s->group->page_class,
            .generation = slot->generation,
        };
        struct page_handle found;
        int r = 0;

        /* a page that is being added or removed is not in the present index: the caller changes both */
        if (slot->state == SLOT_COMMITTED && tenant_index_find(t, p, &slot->key, &found) &&
            found.number == hit.slot)
            r = index_insert(&t->next_index, &slot->key, &hit);
        if (r < 0)
            return r;
    }

    if (t->next_slot < s->n_fresh_from)
        return 0;

    t->next_span++;
    t->next_slot = 0;
    return 0;
}

/* Fills the larger index from the slot records, never from memory that clients map. */
static void tenant_index_copy_step(struct tenant *t, const struct pool *p)
{
    uint32_t budget = INDEX_STEP_SLOTS, n_skipped = 0;

    while (t->next_span < p->n_spans_max && budget > 0) {
        const struct span *s = p->spans[t->next_span];

        if (!s || s->group->tenant != t) {
            t->next_span++;
            t->next_slot = 0;
            budget -= ++n_skipped % INDEX_SPANS_PER_SLOT == 0;
        } else if (tenant_index_copy_span(t, p, s, &budget) < 0) {
            tenant_index_give_up(t);
            return;
        }
    }

    if (t->next_span < p->n_spans_max)
        return;

    tenant_index_replace(t, take_ptr(t->next_memory), &t->next_index);
    tenant_index_drop_next(t);
}

/*
 * From the end on. The first page, where clients read that the index was moved, stays until the next larger
 * index; after that they read zeros, which are no index.
 */
static void tenant_index_discard_step(struct tenant *t)
{
    size_t left = t->old_bytes_left - INDEX_PAGE_BYTES;
    size_t n = left < INDEX_STEP_BYTES ? left : INDEX_STEP_BYTES;

    t->old_bytes_left -= n;
    extent_discard(t->old_memory, t->old_bytes_left, n);
    if (t->old_bytes_left == INDEX_PAGE_BYTES)
        t->index_bytes -= tenant_index_charge(extent_bytes(t->old_memory));
}

static bool tenant_index_is_discarding(const struct tenant *t)
{
    return t->old_memory && t->old_bytes_left > INDEX_PAGE_BYTES;
}

static void tenant_index_step(struct tenant *t, const struct pool *p)
{
    if (tenant_index_is_discarding(t))
        tenant_index_discard_step(t);
    else if (t->next_index.object)
        tenant_index_copy_step(t, p);
    else if (t->next_memory)
        tenant_index_allocate_step(t);
}

int tenant_index_make_room(struct tenant *t, const struct pool *p, struct errmsg *e)
{
    uint64_t n;
    int r = 0;

    tenant_index_step(t, p);
    n = index_capacity(&t->index);
    if (t->n_slots >= n && !t->next_memory && !tenant_index_is_discarding(t) && t->index_pause == 0)
        r = tenant_index_begin_next(t, e);
    if (t->n_slots < n || (t->next_memory && t->n_slots < n + n / INDEX_GROWING_PART))
        return 0;
    if (r < 0)
        return r;
    if (t->index_pause > 0)
        return fail(e, -ENOSPC,
                    "the index of tenant %s has room for %" PRIu64
                    " pages, and in a larger one their keys do not find places: release pages",
                    t->name, n);
    return fail(e, -EAGAIN, "a larger index of tenant %s is being filled: retry later", t->name);
}

/* ---- keys ---- */

int tenant_index_insert(const struct pool *p, const struct page_handle *h, struct errmsg *e)
{
    struct index_hit hit = {
        .slot = h->number,
        .page_class = h->group->page_class,
        .generation = h->slot->generation,
    };
    const struct chunk_key *key = &h->slot->key;
    struct tenant *t = h->group->tenant;
    int r;

    tenant_index_step(t, p);
    r = index_insert(&t->index, key, &hit);
    if (r < 0)
        return fail(e, r,
                    "the index of tenant %s has no place for a page: the places that its key may have are in "
                    "use; continue without sharing the page",
                    t->name);

    if (t->index_pause > 0)
        t->index_pause--;
    if (t->next_index.object && index_insert(&t->next_index, key, &hit) < 0)
        tenant_index_give_up(t);
    return 0;
}

int tenant_index_reserve(struct tenant *t, uint64_t n_pages, struct errmsg *e)
{
    size_t bytes = index_object_bytes(n_pages + n_pages / 8); /* with room for new pages */
    struct index_writer writer;
    struct extent *memory;
    int r;

    assert(t->index.n_entries == 0 && !t->next_memory && !t->old_memory);
    if (n_pages < index_capacity(&t->index))
        return 0;

    r = extent_new("kvcobra-index", bytes, EXTENT_READ, &memory, e);
    if (r < 0)
        return r;

    t->index_bytes += tenant_index_charge(bytes);
    index_writer_init(&writer, extent_data(memory), bytes);
    tenant_index_replace(t, memory, &writer);
    t->old_memory = tenant_index_free(t, t->old_memory); /* no client has it yet */
    return 0;
}

void tenant_index_remove(struct tenant *t, const struct chunk_key *key)
{
    (void) index_remove(&t->index, key);
    if (t->next_index.object)
        (void) index_remove(&t->next_index, key);
}

bool tenant_index_find(const struct tenant *t, const struct pool *p, const struct chunk_key *key,
                       struct page_handle *ret)
{
    struct index_reader reader = {t->index.object, t->index.bytes, t->index.n_buckets};
    struct index_hit hit;
    struct page_handle h;

    if (index_lookup(&reader, key, &hit) != INDEX_FOUND || !pool_resolve(p, hit.slot, &h) ||
        h.slot->state != SLOT_COMMITTED || h.slot->generation != hit.generation ||
        memcmp(&h.slot->key, key, sizeof(*key)) != 0 || h.group->tenant != t)
        return false;

    *ret = h;
    return true;
}
