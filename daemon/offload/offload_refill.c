/*
 * Pages that a shared tier lost. It says how often it may have lost some: a server came back without its
 * data, or is new, or all were emptied; and some PUTs fail. Then a pass over the pool asks it for every page,
 * and queues what it does not have as if a client had committed it now. A page that comes from the disk is
 * asked for, too. The pass waits where the queue has no room, so it writes no faster than commits do. A pass
 * over the tier of the host follows it (offload_copy.c).
 */
#include <stddef.h>

#include "daemon/config/config.h"
#include "daemon/loop/ev.h"
#include "daemon/offload/offload_shared.h"
#include "daemon/store/space.h"
#include "daemon/store/store.h"

enum {
    REFILL_MS = 10000, /* from the begin of a pass to that of the next one */
    LOOK_MS = 2000,
    SLOTS_PER_STEP = 8192,
};

static void offload_refill_on_done(struct tier_look *look)
{
    struct offload_refill *f =
        (struct offload_refill *) ((char *) look - offsetof(struct offload_refill, look));
    struct offload_shared *x =
        (struct offload_shared *) ((char *) f - offsetof(struct offload_shared, refill));

    f->is_sent = false;
    if (look->result < 0) { /* a name without an answer is not known to be missing */
        f->repeats = true;
        look->n = 0;
        return;
    }

    for (uint32_t i = 0; i < look->n; i++) {
        if (f->found[i])
            continue;
        offload_publish_append(x, f->pages[i]);
        x->counts.n_refilled++;
    }
    look->n = 0; /* the next tick writes them and goes on */
}

/* Names that fit the queue if the tier has none of them. */
static uint32_t offload_refill_room(const struct offload_shared *x)
{
    uint32_t room = OFFLOAD_PUBLISH_MAX - x->n_queued;

    return room < TIER_NAMES_MAX ? room : TIER_NAMES_MAX;
}

static void offload_refill_add(struct offload_tier *t, const struct page_handle *h)
{
    struct offload_refill *f = &t->shared->refill;
    struct tier_group id;

    if (h->slot->state != SLOT_COMMITTED || !offload_admits(t, h->group->tenant) ||
        !t->ops->fits(t->self, h->group->page_bytes))
        return;

    offload_group_id(h->group, &id);
    t->ops->make_name(t->self, &id, &h->slot->key, f->names[f->look.n]);
    f->pages[f->look.n++] = offload_publish_of(h);
}

static void offload_refill_begin(struct offload_tier *t)
{
    struct offload_refill *f = &t->shared->refill;
    uint64_t now_ms = ev_now_ms(t->offload->rooms.ev);
    uint64_t losses = (t->ops->losses ? t->ops->losses(t->self) : 0) + t->shared->n_failed;

    if (f->runs || now_ms < f->next_ms || (losses == f->losses && !f->repeats))
        return;

    offload_copies_start(t);
    f->runs = true;
    f->repeats = false;
    f->losses = losses;
    f->at = (struct offload_cursor){0, 0};
    f->next_ms = now_ms + REFILL_MS;
}

static void offload_refill_send(struct offload_tier *t)
{
    struct offload_refill *f = &t->shared->refill;

    f->look.names = f->names;
    f->look.found = f->found;
    f->look.timeout_ms = LOOK_MS;
    f->look.done = offload_refill_on_done;
    f->is_sent = t->ops->look(t->self, &f->look) == 0; /* else at the next tick */
}

void offload_refill_go_on(struct offload_tier *t)
{
    struct offload_refill *f = &t->shared->refill;
    const struct pool *pool = &t->offload->store->pool;
    uint32_t room = offload_refill_room(t->shared);

    if (f->is_sent)
        return;

    offload_refill_begin(t);
    for (uint32_t n = SLOTS_PER_STEP; f->runs && n > 0 && f->look.n < room; n--) {
        struct page_handle h;

        if (offload_cursor_next(pool, &f->at, &h))
            offload_refill_add(t, &h);
        else if (f->at.span == 0) /* behind the last span */
            f->runs = false;
    }
    if (f->look.n > 0)
        offload_refill_send(t);
}

void offload_refill_note(struct offload_tier *t, const struct page_handle *h)
{
    struct offload_refill *f = &t->shared->refill;

    if (!f->is_sent && f->look.n < offload_refill_room(t->shared))
        offload_refill_add(t, h);
}
