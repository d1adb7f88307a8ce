/* Which page is written next: see offload.h and offload_state.h. */
#include <string.h>

#include "daemon/loop/ev.h"
#include "daemon/offload/offload_state.h"
#include "daemon/store/account.h"
#include "daemon/store/store.h"

enum {
    TAIL_SLOTS = 64, /* of each eviction queue, from its old end */
    REWRITES_PER_EVICTION = 2,
    SLOTS_PER_PUMP = 2048,  /* looked at in the queues, and as many in a pass: some ten microseconds */
    SLOTS_PER_SWEEP = 8192, /* likewise: nothing is looked up */
};

static void offload_raise_rewrites(struct offload *o)
{
    uint64_t n = o->n_rewrites_left + REWRITES_PER_EVICTION * (o->store->n_evicted - o->n_evicted);

    o->n_rewrites_left = n < OFFLOAD_REWRITES_MAX ? (uint32_t) n : OFFLOAD_REWRITES_MAX;
    o->n_evicted = o->store->n_evicted;
}

void offload_choice_init(struct offload_choice *c, struct offload *o)
{
    struct tier_status s;

    o->host->ops->status(o->host->self, &s);
    offload_raise_rewrites(o);
    *c = (struct offload_choice){.o = o,
                                 .now_ms = ev_now_ms(o->rooms.ev),
                                 .has_room = s.has_room,
                                 .victim_budget = SLOTS_PER_PUMP,
                                 .pass_budget = SLOTS_PER_PUMP};
}

/* Whether the page is to be written, now or when its group's pause is over. */
static bool offload_wants(const struct offload_choice *c, const struct page_handle *h)
{
    const struct slot *slot = h->slot;

    if (slot->state != SLOT_COMMITTED || slot->pinned || slot->is_refused || slot->is_on_disk ||
        pool_extent_is_closed(h->span->extent))
        return false;
    return c->has_room || slot->was_main || slot->uses > 0;
}

/* How long the page's group makes a pause. */
static uint64_t offload_pause_ms(const struct offload_choice *c, const struct page_handle *h)
{
    uint64_t after_ms = h->group->offload_after_ms;

    return after_ms > c->now_ms ? after_ms - c->now_ms : 0;
}

/* ---- pages that are next to be evicted ---- */

/* Whether the page is to be written now. */
static bool offload_tail_takes(struct offload_choice *c, const struct page_handle *h)
{
    struct offload *o = c->o;

    if (!offload_wants(c, h) || offload_pause_ms(c, h) > 0 ||
        (h->slot->was_replaced && o->n_rewrites_left == 0))
        return false;

    o->n_rewrites_left -= h->slot->was_replaced;
    h->slot->was_replaced = 0;
    return true;
}

static bool offload_pick_tail(struct offload_choice *c, const struct slot_queue *q, struct page_handle *ret)
{
    uint32_t number = q->tail;

    for (uint32_t n = 0; n < TAIL_SLOTS && c->victim_budget > 0; n++) {
        if (!pool_resolve(&c->o->store->pool, number, ret)) /* SLOT_NONE: the queue ends */
            return false;
        c->victim_budget--;
        if (offload_tail_takes(c, ret))
            return true;
        number = ret->slot->prev;
    }
    return false;
}

static bool offload_pick_of_tenant(struct offload_choice *c, const struct tenant *t, struct page_handle *ret)
{
    for (const struct group *g = t->groups; g; g = g->next)
        if (offload_pick_tail(c, &g->small_queue, ret) || offload_pick_tail(c, &g->main_queue, ret))
            return true;
    return false;
}

/* Tenants take turns. */
static bool offload_pick_next_victim(struct offload_choice *c, struct page_handle *ret)
{
    uint32_t n = c->o->store->n_tenants, first = n > 0 ? c->o->turn++ % n : 0;
    const struct tenant *all = c->o->store->tenants, *t = all;

    for (uint32_t i = 0; t && i < first; i++)
        t = t->next;
    for (uint32_t i = 0; all && i < n; i++) {
        if (!t)
            t = all;
        if (offload_pick_of_tenant(c, t, ret))
            return true;
        t = t->next;
    }
    return false;
}

/* ---- all pages ---- */

bool offload_cursor_next(const struct pool *p, struct offload_cursor *at, struct page_handle *ret)
{
    const struct span *s = p->spans[at->span];

    if (s && at->index < s->n_fresh_from) {
        *ret = pool_handle(p, at->span << POOL_SLOT_BITS | at->index++);
        return true;
    }

    at->span = (at->span + 1) % p->n_spans_max;
    at->index = 0;
    return false;
}

/* The first span is visited from the cursor on, and again at the end. */
void offload_pass_begin(struct offload *o)
{
    o->pass = (struct offload_pass){.at = o->pass.at,
                                    .n_spans_left = o->store->pool.n_spans_max + 1,
                                    .n_entered = o->store->pool.n_entered,
                                    .forgives = o->pass.forgives,
                                    .rewrites = o->pass.rewrites};
}

void offload_pass_demand(struct offload *o)
{
    if (o->pass.rests)
        offload_pass_begin(o);
    else
        o->pass.n_found++; /* another pass follows */
}

/*
 * The end of a pass. If it found a page, or pages came to the queues meanwhile, another one follows.
 */
static void offload_pass_end(struct offload *o)
{
    bool rests = o->pass.n_found == 0 && o->pass.n_entered == o->store->pool.n_entered;

    o->pass.forgives = o->pass.rewrites = false;
    offload_pass_begin(o);
    o->pass.rests = rests;
}

/* Whether the page is to be written now. */
static bool offload_pass_takes(const struct offload_choice *c, const struct page_handle *h)
{
    struct offload_pass *p = &c->o->pass;
    uint64_t pause_ms;

    if (p->forgives)
        h->slot->is_refused = 0;
    if (!offload_wants(c, h) || (h->slot->was_replaced && !p->rewrites))
        return false;

    pause_ms = offload_pause_ms(c, h);
    p->n_found += pause_ms <= OFFLOAD_BUSY_MS; /* after a long pause, all pages are looked at anyway */
    if (pause_ms > 0)
        return false;

    h->slot->was_replaced = 0;
    return true;
}

static bool offload_pass_next(struct offload_choice *c, struct page_handle *ret)
{
    struct offload *o = c->o;

    for (; c->pass_budget > 0; c->pass_budget--) {
        if (o->pass.n_spans_left == 0) {
            offload_pass_end(o);
            return false;
        }

        if (!offload_cursor_next(&o->store->pool, &o->pass.at, ret))
            o->pass.n_spans_left--;
        else if (offload_pass_takes(c, ret))
            return true;
    }
    return false;
}

bool offload_pick(struct offload_choice *c, struct page_handle *ret)
{
    struct offload *o = c->o;

    if (o->pass.rests && o->pass.n_entered != o->store->pool.n_entered)
        offload_pass_begin(o);

    c->no_victim = c->no_victim || !offload_pick_next_victim(c, ret);
    if (!c->no_victim)
        return true;
    return !o->pass.rests && offload_pass_next(c, ret);
}

/* ---- forgetting ---- */

void offload_sweep_begin(struct offload *o)
{
    o->sweep = (struct offload_sweep){.runs = true};
}

static void offload_sweep_slot(struct slot *slot)
{
    slot->is_on_disk = slot->was_replaced = 0;
}

bool offload_sweep_go_on(struct offload *o)
{
    struct offload_sweep *s = &o->sweep;

    for (uint32_t budget = SLOTS_PER_SWEEP; s->runs && budget > 0; budget--) {
        struct page_handle h;

        if (offload_cursor_next(&o->store->pool, &s->at, &h))
            offload_sweep_slot(h.slot);
        else if (s->at.span == 0) /* behind the last span */
            s->runs = false;
        if (!s->runs)
            offload_pass_demand(o);
    }
    return !s->runs;
}
