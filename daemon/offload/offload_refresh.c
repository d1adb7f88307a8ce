/*
 * Times to live in a shared tier. A page that clients hold, or that was leased since, is refreshed by a pass
 * over the pool in each quarter of its time. Who writes or reads a chunk holds its ancestors or leased them
 * (of layers with a window, those that the window has), so the pass refreshes them too, and the cluster
 * forgets a chunk that stays in memory at the earliest three quarters of the time after its last use. A
 * fetched page is refreshed when it arrives, since it may leave memory before the next pass, unless a refresh
 * is on its way.
 */
#include <stddef.h>
#include <string.h>

#include "daemon/config/config.h"
#include "daemon/loop/ev.h"
#include "daemon/offload/offload_shared.h"
#include "daemon/store/store.h"

enum { SLOTS_PER_STEP = 8192 };

static void offload_refresh_on_done(struct tier_touch *touch)
{
    struct offload_refresh *f =
        (struct offload_refresh *) ((char *) touch - offsetof(struct offload_refresh, touch));
    struct offload_shared *x =
        (struct offload_shared *) ((char *) f - offsetof(struct offload_shared, refresh));

    f->is_sent = false;
    if (touch->result < 0)
        return; /* they are sent again at the next tick */

    x->counts.n_refreshed += touch->n_touched;
    touch->n = 0;
}

static void offload_refresh_slot(struct offload_tier *t, const struct page_handle *h)
{
    struct tier_touch *touch = &t->shared->refresh.touch;
    struct tier_group id;

    if (h->slot->state != SLOT_COMMITTED || (!h->slot->was_leased && h->slot->holds == 0) ||
        !offload_admits(t, h->group->tenant))
        return;

    h->slot->was_leased = 0;
    offload_group_id(h->group, &id);
    t->ops->make_name(t->self, &id, &h->slot->key, touch->names[touch->n++]);
}

void offload_refresh_go_on(struct offload_tier *t)
{
    struct offload_refresh *f = &t->shared->refresh;
    struct offload *o = t->offload;
    uint64_t now_ms = ev_now_ms(o->rooms.ev);

    if (f->is_sent)
        return;
    if (!f->runs && now_ms >= f->next_ms) {
        f->runs = true;
        f->at = (struct offload_cursor){0, 0};
        f->next_ms = now_ms + o->rooms.config->cluster_ttl_s * 1000 / 4;
    }

    for (uint32_t n = SLOTS_PER_STEP; f->runs && n > 0 && f->touch.n < TIER_NAMES_MAX; n--) {
        struct page_handle h;

        if (offload_cursor_next(&o->store->pool, &f->at, &h))
            offload_refresh_slot(t, &h);
        else if (f->at.span == 0) /* behind the last span */
            f->runs = false;
    }
    if (f->touch.n == 0)
        return;

    f->touch.done = offload_refresh_on_done;
    f->is_sent = t->ops->touch(t->self, &f->touch) == 0; /* else at the next tick */
}

void offload_refresh_note(struct offload_tier *t, const uint8_t name[static TIER_NAME_BYTES])
{
    uint64_t first, now_ms = ev_now_ms(t->offload->rooms.ev);
    uint64_t ttl_ms = t->offload->rooms.config->cluster_ttl_s * 1000;
    struct offload_refresh *f = &t->shared->refresh;
    struct offload_touched *x;

    memcpy(&first, name, sizeof(first)); /* a hash, so its bits choose the place */
    x = &f->touched[first % OFFLOAD_TOUCHED_MAX];
    if (f->is_sent || f->touch.n == TIER_NAMES_MAX ||
        (x->ms > 0 && x->name == first && now_ms - x->ms < ttl_ms / 4))
        return;

    *x = (struct offload_touched){first, now_ms};
    memcpy(f->touch.names[f->touch.n++], name, TIER_NAME_BYTES);
}
