/* The life of a page; see store.h. */
#include "daemon/store/store.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "base/errmsg.h"
#include "daemon/loop/log.h"
#include "daemon/store/evict_queue.h"
#include "daemon/store/kept.h"
#include "daemon/store/space.h"
#include "daemon/store/span.h"
#include "daemon/store/tenant_index.h"

enum { RANDOM_KEYS = 16 }; /* tries: each has homes of its own, and an index is never full */

/* The slot is held or pinned from now on, or is neither. */
static void store_set_busy(const struct page_handle *h, bool busy)
{
    pool_slot_set_busy(h, busy);
    h->group->space->n_busy += busy ? 1 : UINT64_MAX;
}

/* The first hold of a page was taken, or its last one ended. */
static void store_set_held(const struct page_handle *h, bool held)
{
    const struct group *g = h->group;

    g->tenant->held_bytes += held ? g->slot_bytes : -(uint64_t) g->slot_bytes;
    if (!h->slot->pinned)
        store_set_busy(h, held);
}

/* A slot of @g more or less is in use. */
static void store_charge(struct group *g, int sign)
{
    g->tenant->page_bytes += (uint64_t) sign * g->slot_bytes;
    g->tenant->n_slots += (uint64_t) sign;
}

void store_claim(const struct page_handle *h)
{
    assert(h->slot->state == SLOT_RESERVED);
    h->slot->state = SLOT_COPYING;
}

void store_unclaim(const struct page_handle *h)
{
    assert(h->slot->state == SLOT_COPYING);
    h->slot->state = SLOT_RESERVED;
}

void store_discard(struct store *st, const struct page_handle *h)
{
    struct group *g = h->group;

    assert(h->slot->state == SLOT_RESERVED || h->slot->state == SLOT_COPYING);
    store_charge(g, -1);
    g->tenant->held_bytes -= g->slot_bytes;
    g->space->n_busy--;
    pool_slot_give(&st->pool, h);
}

int store_publish(struct store *st, const struct page_handle *h, const struct chunk_key *key,
                  uint32_t payload_crc32c, struct errmsg *e)
{
    struct slot *slot = h->slot;
    struct group *g = h->group;
    int r;

    assert(slot->state == SLOT_RESERVED || slot->state == SLOT_COPYING);
    slot->key = *key;
    slot->payload_crc32c = payload_crc32c;
    r = tenant_index_insert(&st->pool, h, e);
    if (r < 0)
        return r;

    slot->holds = 1; /* the slot stays busy: it was reserved, now it is held */
    slot->next = slot->prev = SLOT_NONE;
    /* a page that a pool twice as large would still have */
    slot->was_main = ghosts_was_evicted(&g->tenant->ghosts, key, (uint64_t) g->tenant->n_pages + 1);
    /* written last, after key and checksum: a restart reads COMMITTED slots */
    atomic_signal_fence(memory_order_seq_cst);
    slot->state = SLOT_COMMITTED;
    ghosts_remove(&g->tenant->ghosts, key);
    g->n_pages++;
    g->tenant->n_pages++;
    g->space->n_pages++;
    return 0;
}

/* ---- restart ---- */

int store_adopt(struct store *st, const struct page_handle *h, struct errmsg *e)
{
    struct group *g = h->group;
    struct page_handle present;
    bool exists = store_find(st, g->tenant, &h->slot->key, &present);
    int r;

    (void) tenant_index_make_room(g->tenant, &st->pool, NULL); /* the insertion fails if there is none */
    r = exists ? -EEXIST : tenant_index_insert(&st->pool, h, e);
    if (r < 0) {
        pool_slot_give(&st->pool, h);
        return r;
    }

    g->n_pages++;
    g->tenant->n_pages++;
    g->space->n_pages++;
    store_charge(g, 1);
    return 0;
}

void store_adopt_holds(struct store *st, const struct page_handle *h)
{
    if (h->slot->holds > 0) {
        store_set_held(h, true);
        return;
    }
    evict_queue_enter(&st->pool, h);
    /* the earlier process retired the extent */
    if (pool_extent_is_closed(h->span->extent))
        store_drop(st, h, GHOST_EVICTED);
}

void store_adopt_reserved(const struct page_handle *h)
{
    struct group *g = h->group;

    assert(h->slot->state == SLOT_RESERVED);
    store_charge(g, 1);
    g->tenant->held_bytes += g->slot_bytes;
    g->space->n_busy++;
}

void store_page_checked(struct store *st, const struct page_handle *h, bool whole)
{
    struct slot *slot = h->slot;

    if (whole) {
        slot->unchecked = 0;
        return;
    }

    if (log_is_due(++st->n_damaged))
        log_event(LOG_ERR, "page-damaged",
                  "slot=%" PRIu32 " tenant=%s damaged=%" PRIu64
                  " message=\"the checksum of the page changed over a restart\", dropping the page",
                  h->number, h->group->tenant->name, st->n_damaged);
    if (slot->is_kept)
        kept_end(st, h);
    if (slot->state == SLOT_COMMITTED && slot->holds == 0 && !slot->pinned)
        store_drop(st, h, GHOST_EVICTED);
}

bool store_page_is_whole(struct store *st, const struct page_handle *h)
{
    size_t bytes = h->group->page_bytes;
    const uint8_t *page;
    bool whole;

    if (!h->slot->unchecked)
        return true;
    if (st->pool.on_gpu)
        return false;

    page = pool_slot_data(&st->pool, h);
    whole = crc32c(page + PAGE_HEADER_BYTES, bytes - PAGE_HEADER_BYTES) == h->slot->payload_crc32c;
    store_page_checked(st, h, whole);
    return whole;
}

int store_find_whole(struct store *st, const struct tenant *t, const struct chunk_key *key,
                     struct page_handle *ret, struct errmsg *e)
{
    struct page_handle h;
    bool exists = store_find(st, t, key, &h);

    if (exists && !store_page_is_whole(st, &h)) {
        exists = store_find(st, t, key, &h);
        if (exists)
            return fail(e, -EAGAIN,
                        "the page of this key was damaged over a restart and is still held: continue without "
                        "sharing");
    }

    *ret = exists ? h : PAGE_NONE;
    return 0;
}

/* ---- retiring ---- */

void store_discard_reserved(struct store *st, uint32_t session)
{
    for (uint32_t i = 0; i < st->pool.n_spans_max; i++) {
        uint32_t n_slots = st->pool.spans[i] ? st->pool.spans[i]->n_fresh_from : 0;

        for (uint32_t k = 0; k < n_slots; k++) {
            struct page_handle h;

            /* the span is freed with its last slot */
            if (pool_resolve(&st->pool, i << POOL_SLOT_BITS | k, &h) && h.slot->state == SLOT_RESERVED &&
                h.slot->session == session)
                store_discard(st, &h);
        }
    }
}

/* ---- lookup, holds, drops ---- */

bool store_find(const struct store *st, const struct tenant *t, const struct chunk_key *key,
                struct page_handle *ret)
{
    return tenant_index_find(t, &st->pool, key, ret);
}

bool store_find_again(const struct store *st, uint32_t number, uint64_t generation, struct page_handle *ret)
{
    struct page_handle h;

    if (!pool_resolve(&st->pool, number, &h) || h.slot->state != SLOT_COMMITTED ||
        h.slot->generation != generation)
        return false;

    *ret = h;
    return true;
}

/* A page that is neither held nor pinned leaves an extent that is being reclaimed or retired. */
static void store_drop_if_closed(struct store *st, const struct page_handle *h)
{
    if (pool_extent_is_closed(h->span->extent) && !h->slot->pinned)
        store_drop(st, h, GHOST_EVICTED);
}

void store_hold(struct store *st, const struct page_handle *h)
{
    assert(h->slot->state == SLOT_COMMITTED);
    if (h->slot->holds++ == 0) {
        evict_queue_leave(&st->pool, h);
        store_set_held(h, true);
    }
}

void store_unhold(struct store *st, const struct page_handle *h)
{
    assert(h->slot->state == SLOT_COMMITTED && h->slot->holds > 0);
    if (--h->slot->holds > 0)
        return;

    store_set_held(h, false);
    evict_queue_enter(&st->pool, h);
    store_drop_if_closed(st, h);
}

void store_pin(const struct page_handle *h)
{
    assert(h->slot->state == SLOT_COMMITTED && !h->slot->pinned);
    if (h->slot->holds == 0)
        store_set_busy(h, true);
    h->slot->pinned = 1;
}

void store_unpin(struct store *st, const struct page_handle *h)
{
    assert(h->slot->state == SLOT_COMMITTED && h->slot->pinned);
    h->slot->pinned = 0;
    if (h->slot->holds > 0)
        return;

    store_set_busy(h, false);
    store_drop_if_closed(st, h);
}

void store_drop(struct store *st, const struct page_handle *h, enum ghost_reason reason)
{
    struct slot *slot = h->slot;
    struct group *g = h->group;

    assert(slot->state == SLOT_COMMITTED && slot->holds == 0 && !slot->pinned);
    evict_queue_leave(&st->pool, h);
    tenant_index_remove(g->tenant, &slot->key);
    ghosts_add(&g->tenant->ghosts, &slot->key, reason);
    store_charge(g, -1);
    g->n_pages--;
    g->tenant->n_pages--;
    g->space->n_pages--;
    pool_slot_give(&st->pool, h);
}

/* Gives a COMMITTED page another key. Return: 0; -ENOSPC: it has no place in the index. */
static int store_rename(struct store *st, const struct page_handle *h, const struct chunk_key *key,
                        struct errmsg *e)
{
    tenant_index_remove(h->group->tenant, &h->slot->key);
    h->slot->key = *key;
    return tenant_index_insert(&st->pool, h, e);
}

int store_forget(struct store *st, const struct page_handle *h, struct errmsg *e)
{
    struct slot *slot = h->slot;
    const struct chunk_key before = slot->key;
    struct chunk_key random;
    int r = -ENOSPC;

    assert(slot->state == SLOT_COMMITTED);
    if (slot->holds == 0 && !slot->pinned) {
        store_drop(st, h, GHOST_EVICTED);
        st->n_flushed++;
        return 0;
    }

    for (int i = 0; i < RANDOM_KEYS && r == -ENOSPC; i++) {
        randombytes_buf(&random, sizeof(random));
        r = store_rename(st, h, &random, e);
    }
    if (r < 0) {
        (void) store_rename(st, h, &before, NULL); /* its place is free still */
        return r;
    }

    slot->is_on_disk = 0;
    slot->is_refused = 1; /* not worth a place on the disk: no client finds it */
    st->n_flushed++;
    return 0;
}

struct store_drop_visit {
    struct store *st;
    enum ghost_reason reason;
};

static void store_drop_one(void *ctx, const struct page_handle *h)
{
    struct store_drop_visit *v = ctx;

    store_drop(v->st, h, v->reason);
}

void store_drop_space(struct store *st, struct space *space, enum ghost_reason reason)
{
    struct store_drop_visit v = {st, reason};

    assert(space->n_busy == 0);
    for (struct tenant *t = st->tenants; t; t = t->next) {
        for (unsigned class = 0; class < 2; class ++) {
            struct group *g = tenant_group_find(t, space, class);

            if (g)
                span_visit_slots(g, store_drop_one, &v);
        }

        tenant_groups_free(t, space);
    }
}

/* ---- validation ---- */

static bool store_queue_is_valid(const struct store *st, const struct group *g, const struct slot_queue *q,
                                 uint8_t id, struct errmsg *e)
{
    uint32_t n = 0, prev = SLOT_NONE;

    for (uint32_t at = q->head; at != SLOT_NONE && n <= q->n; n++) {
        struct page_handle h;

        if (!pool_resolve(&st->pool, at, &h) || h.slot->state != SLOT_COMMITTED || h.slot->holds > 0 ||
            h.slot->queue != id || h.slot->prev != prev || h.group != g ||
            (pool_extent_is_closed(h.span->extent) && !h.slot->pinned))
            return refute(e, "slot %" PRIu32 " does not belong in eviction queue %u", at, id);

        prev = at;
        at = h.slot->next;
    }

    if (n != q->n || prev != q->tail)
        return refute(e, "eviction queue %u counts %" PRIu32 " pages, has %" PRIu32, id, q->n, n);

    return true;
}

struct store_group_count {
    const struct store *st;
    const struct tenant *tenant;
    uint64_t n_pages, n_held, n_reserved;
    bool findable;
};

static void store_count_slot(void *ctx, const struct page_handle *h)
{
    struct store_group_count *c = ctx;
    const struct slot *slot = h->slot;
    struct page_handle found;

    c->n_pages += slot->state == SLOT_COMMITTED;
    c->n_held += slot->holds > 0;
    c->n_reserved += slot->state == SLOT_RESERVED || slot->state == SLOT_COPYING;
    if (slot->state == SLOT_COMMITTED &&
        (!store_find(c->st, c->tenant, &slot->key, &found) || found.number != h->number))
        c->findable = false;
}

static bool store_tenant_is_valid(const struct store *st, const struct tenant *t, struct errmsg *e)
{
    uint64_t page_bytes = 0, held_bytes = 0, n_pages = 0, n_slots = 0;

    for (struct group *g = t->groups; g; g = g->next) {
        struct store_group_count c = {.st = st, .tenant = t, .findable = true};

        span_visit_slots(g, store_count_slot, &c);
        if (!c.findable)
            return refute(e, "a committed page of tenant %s is not in its index", t->name);
        if (c.n_pages != g->n_pages || c.n_pages + c.n_reserved != g->n_used ||
            g->small_queue.n + g->main_queue.n + c.n_held != c.n_pages)
            return refute(e, "a group of tenant %s counts %" PRIu32 " slots", t->name, g->n_used);
        if (!store_queue_is_valid(st, g, &g->small_queue, SLOT_QUEUE_SMALL, e) ||
            !store_queue_is_valid(st, g, &g->main_queue, SLOT_QUEUE_MAIN, e))
            return false;

        page_bytes += g->n_used * (uint64_t) g->slot_bytes;
        held_bytes += (c.n_held + c.n_reserved) * (uint64_t) g->slot_bytes;
        n_pages += c.n_pages;
        n_slots += g->n_used;
    }

    if (n_slots != t->n_slots || page_bytes != t->page_bytes || held_bytes != t->held_bytes ||
        n_pages != t->n_pages || n_pages != t->index.n_entries)
        return refute(e, "the accounts of tenant %s do not add up", t->name);
    if (tenant_used_bytes(t) > t->quota_bytes)
        return refute(e, "tenant %s is above its quota", t->name);

    return true;
}

bool store_is_valid(const struct store *st, struct errmsg *e)
{
    if (!pool_is_valid(&st->pool, e))
        return false;

    for (const struct tenant *t = st->tenants; t; t = t->next)
        if (!store_tenant_is_valid(st, t, e))
            return false;
    return true;
}
