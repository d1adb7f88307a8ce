/* See span.h. */
#include "daemon/store/span.h"

#include <assert.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"

void span_list_append(struct span_list *l, struct span *s)
{
    s->next = NULL;
    s->prev = l->tail;
    if (l->tail)
        l->tail->next = s;
    else
        l->head = s;
    l->tail = s;
}

void span_list_remove(struct span_list *l, struct span *s)
{
    if (s->prev)
        s->prev->next = s->next;
    else
        l->head = s->next;
    if (s->next)
        s->next->prev = s->prev;
    else
        l->tail = s->prev;
    s->prev = s->next = NULL;
}

/*
 * A span has at least POOL_SLOTS_PER_SPAN_MIN slots in whole units. For large pages, it is a whole extent
 * with as many slots as fit.
 */
uint32_t span_units(const struct pool *p, const struct group *g)
{
    uint64_t n_units_extent = p->extent_bytes / p->unit_bytes;
    /* a slot fits an extent: no overflow */
    uint64_t bytes = (uint64_t) g->slot_bytes * POOL_SLOTS_PER_SPAN_MIN;
    uint64_t n = (bytes + p->unit_bytes - 1) / p->unit_bytes;

    return (uint32_t) (n < n_units_extent ? n : n_units_extent);
}

static bool span_has_room(const struct span *s)
{
    return s->n_used < s->n_slots && !pool_extent_is_closed(s->extent);
}

void span_file(struct span *s)
{
    struct span_list *to = span_has_room(s) ? &s->group->partial : &s->group->full;

    if (s->list == to)
        return;
    if (s->list)
        span_list_remove(s->list, s);
    span_list_append(to, s);
    s->list = to;
}

/* First fit: a run of @n free units of @x, or UINT32_MAX. */
static uint32_t span_find_units(const struct pool_extent *x, uint32_t n)
{
    uint32_t run = 0;

    if (n > x->n_units - x->n_units_used)
        return UINT32_MAX;

    for (uint32_t i = 0; i < x->n_units; i++) {
        run = x->span_of_unit[i] == UINT32_MAX ? run + 1 : 0;
        if (run == n)
            return i + 1 - n;
    }
    return UINT32_MAX;
}

/* in_use is written last: a restart reads only heads with in_use set. */
static void span_record(const struct span *s, const struct span_owner *owner)
{
    struct span_head *h = slot_records_span(&s->extent->records, s->first_unit);

    *h = (struct span_head){
        .first_head = (uint16_t) owner->first_head,
        .n_heads = (uint16_t) owner->n_heads,
        .page_class = (uint8_t) s->group->page_class,
        .n_slots = (uint16_t) s->n_slots,
        .n_units = s->n_units,
        .number = s->number,
        .slot_bytes = s->group->slot_bytes,
        .page_bytes = s->group->page_bytes,
    };
    memcpy(h->table_digest, owner->table_digest, sizeof(h->table_digest));
    atomic_signal_fence(memory_order_seq_cst); /* the compiler keeps the order; there is one thread */
    h->in_use = 1;
}

static void span_place(struct pool *p, struct span *s)
{
    struct pool_extent *x = s->extent;

    for (uint32_t i = 0; i < s->n_units; i++)
        x->span_of_unit[s->first_unit + i] = s->number;
    x->n_units_used += s->n_units;
    p->spans[s->number] = s;
    s->group->n_spans++;
}

int span_new(struct pool *p, struct pool_extent *x, struct group *g, uint32_t n_units,
             const struct span_owner *owner, struct span **ret)
{
    uint32_t unit = span_find_units(x, n_units);
    uint64_t n_slots = n_units * p->unit_bytes / g->slot_bytes;
    struct span *s;

    if (unit == UINT32_MAX || p->n_free_numbers == 0)
        return -ENOSPC;

    s = malloc(sizeof(*s));
    if (!s)
        return -ENOMEM;

    *s = (struct span){
        .number = p->free_numbers[--p->n_free_numbers],
        .extent = x,
        .group = g,
        .first_unit = unit,
        .n_units = n_units,
        .n_slots = (uint32_t) (n_slots < POOL_SLOTS_PER_SPAN_MAX ? n_slots : POOL_SLOTS_PER_SPAN_MAX),
        .free = SLOT_NONE,
        .slots = slot_records_slots(&x->records, unit),
    };
    span_record(s, owner);
    span_place(p, s);
    span_file(s);
    *ret = s;
    return 0;
}

static bool span_head_is_possible(const struct pool *p, const struct pool_extent *x, const struct group *g,
                                  uint32_t unit)
{
    const struct span_head *h = slot_records_span(&x->records, unit);

    if (h->n_units == 0 || h->n_units > x->n_units - unit || h->number >= p->n_spans_max ||
        p->spans[h->number] || h->slot_bytes != g->slot_bytes || h->page_bytes != g->page_bytes ||
        h->n_slots == 0 || h->n_slots > POOL_SLOTS_PER_SPAN_MAX ||
        h->n_slots * h->slot_bytes > h->n_units * p->unit_bytes)
        return false;

    for (uint32_t i = 0; i < h->n_units; i++)
        if (x->span_of_unit[unit + i] != UINT32_MAX)
            return false;
    return true;
}

/* On a GPU, the client that reserved the slot, or the earlier process's mover, may still write to it. */
static void span_adopt_reserved(struct span *s, struct slot *slot)
{
    if (slot->state == SLOT_COPYING)
        slot->session = SLOT_WITHOUT_SESSION;
    slot->state = SLOT_RESERVED;
    s->n_busy++;
}

/* Lists, holds and queues of the earlier process are rebuilt by the caller. */
static void span_adopt_slots(struct pool *p, struct span *s)
{
    for (uint32_t i = 0; i < s->n_slots; i++) {
        struct slot *slot = &s->slots[i];

        if (slot->generation == 0 || slot->generation > SLOT_GENERATION_MAX) { /* never used, or damaged */
            slot->state = SLOT_FREE;
            slot->generation = 0;
        }
        if (slot->state == SLOT_COMMITTED) {
            slot->unchecked = 1;
        } else if (s->extent->gpu_fd >= 0 && (slot->state == SLOT_RESERVED || slot->state == SLOT_COPYING)) {
            span_adopt_reserved(s, slot);
        } else {
            slot->state = SLOT_FREE;
        }

        if (slot->state != SLOT_FREE) {
            s->n_fresh_from = i + 1;
            s->n_used++;
        }

        slot->queue = SLOT_QUEUE_NONE;
        slot->holds = 0;
        slot->pinned = slot->is_on_disk = slot->was_replaced = slot->is_refused = slot->is_kept =
            slot->was_leased = 0;
        slot->next = slot->prev = SLOT_NONE;
        if (slot->generation > p->serials->generation)
            p->serials->generation = slot->generation;
    }

    for (uint32_t i = s->n_fresh_from; i-- > 0;) {
        if (s->slots[i].state != SLOT_FREE)
            continue;

        s->slots[i].next = s->free;
        s->free = s->number << POOL_SLOT_BITS | i;
    }
}

int span_adopt(struct pool *p, struct pool_extent *x, struct group *g, uint32_t unit, struct span **ret)
{
    struct span_head *h = slot_records_span(&x->records, unit);
    struct span *s;

    if (!span_head_is_possible(p, x, g, unit))
        return -EBADMSG;

    s = malloc(sizeof(*s));
    if (!s)
        return -ENOMEM;

    *s = (struct span){
        .number = h->number,
        .extent = x,
        .group = g,
        .first_unit = unit,
        .n_units = h->n_units,
        .n_slots = h->n_slots,
        .free = SLOT_NONE,
        .slots = slot_records_slots(&x->records, unit),
    };
    span_adopt_slots(p, s);
    if (s->n_used == 0) {
        h->in_use = 0;
        free(s);
        return -ENOENT;
    }

    for (uint32_t i = 0; i < p->n_free_numbers; i++) {
        if (p->free_numbers[i] == s->number) {
            p->free_numbers[i] = p->free_numbers[--p->n_free_numbers];
            break;
        }
    }

    span_place(p, s);
    g->n_used += s->n_used;
    span_file(s);
    *ret = s;
    return 0;
}

/* All slots of @s are free. */
static void span_free(struct pool *p, struct span *s)
{
    struct pool_extent *x = s->extent;

    assert(s->n_used == 0 && s->n_busy == 0);
    slot_records_span(&x->records, s->first_unit)->in_use = 0;
    slot_records_discard(s->slots, s->n_fresh_from);
    for (uint32_t i = 0; i < s->n_units; i++)
        x->span_of_unit[s->first_unit + i] = UINT32_MAX;
    x->n_units_used -= s->n_units;
    p->spans[s->number] = NULL;
    p->free_numbers[p->n_free_numbers++] = s->number;
    span_list_remove(s->list, s);
    s->group->n_spans--;
    free(s);
}

void span_slot_take(struct pool *p, struct span *s, struct page_handle *ret)
{
    struct pool_serials *n = p->serials;
    uint32_t number = s->free;
    struct slot *slot;

    assert(span_has_room(s));
    if (number != SLOT_NONE) {
        slot = &s->slots[number & (POOL_SLOTS_PER_SPAN_MAX - 1)];
        s->free = slot->next;
    } else {
        number = s->number << POOL_SLOT_BITS | s->n_fresh_from;
        slot = &s->slots[s->n_fresh_from++];
    }

    n->generation++;
    if (n->generation_record)
        *(volatile uint64_t *) n->generation_record = n->generation;
    *slot = (struct slot){
        .generation = n->generation,
        .next = SLOT_NONE,
        .prev = SLOT_NONE,
        .state = SLOT_RESERVED,
    };
    s->n_used++;
    s->n_busy++;
    s->group->n_used++;
    span_file(s);
    *ret = (struct page_handle){number, slot, s, s->group};
}

void span_slot_give(struct pool *p, const struct page_handle *h)
{
    struct slot *slot = h->slot;
    struct span *s = h->span;

    assert(slot->state != SLOT_FREE && slot->holds == 0 && slot->queue == SLOT_QUEUE_NONE);
    if (slot->state != SLOT_COMMITTED)
        s->n_busy--;
    slot->state = SLOT_FREE;
    slot->prev = SLOT_NONE;
    slot->next = s->free;
    s->free = h->number;
    s->n_used--;
    s->group->n_used--;
    if (s->n_used == 0)
        span_free(p, s);
    else
        span_file(s);
}

static void span_visit_list(struct span_list *l, void (*visit)(void *ctx, const struct page_handle *h),
                            void *ctx)
{
    for (struct span *s = l->head, *next; s; s = next) {
        uint32_t n = s->n_fresh_from, number = s->number << POOL_SLOT_BITS, left = s->n_used;
        struct slot *slots = s->slots;

        next = s->next;
        for (uint32_t i = 0; i < n && left > 0; i++) { /* the span is freed with its last used slot */
            if (slots[i].state == SLOT_FREE)
                continue;

            left--;
            visit(ctx, &(struct page_handle){number | i, &slots[i], s, s->group});
        }
    }
}

void span_visit_slots(struct group *g, void (*visit)(void *ctx, const struct page_handle *h), void *ctx)
{
    struct span_list full = g->full;

    /* Full spans first: freeing a slot of one moves it to the end of the partial list. */
    span_visit_list(&full, visit, ctx);
    span_visit_list(&g->partial, visit, ctx);
}
