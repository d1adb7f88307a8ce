/*
 * Times to live in the cluster. A page that clients hold, or that was leased since, is refreshed by a pass
 * over the pool in each quarter of its time. Who writes or reads a chunk holds its ancestors or leased them,
 * so the pass refreshes them too, and the cluster forgets a chunk that stays in memory at the earliest three
 * quarters of the time after its last use. A fetched page is refreshed when it arrives, since it may leave
 * memory before the next pass, unless a refresh is on its way.
 */
#include <string.h>

#include "daemon/config/config.h"
#include "daemon/loop/ev.h"
#include "daemon/offload/offload_cluster.h"
#include "daemon/store/store.h"

enum {
    SLOTS_PER_STEP = 8192,
    TOUCH_MS = 10000,
};

static void offload_refresh_on_done(struct cluster_call *call)
{
    struct offload_refresh *f =
        (struct offload_refresh *) ((char *) call - offsetof(struct offload_refresh, call));
    struct offload_cluster *c =
        (struct offload_cluster *) ((char *) f - offsetof(struct offload_cluster, refresh));

    f->is_sent = false;
    if (call->result < 0)
        return; /* they are sent again at the next tick */

    for (uint32_t i = 0; i < f->n; i++)
        c->counts.n_refreshed += call->reply && cluster_bit(call->reply, i);
    f->n = 0;
}

static void offload_refresh_send(struct offload *o)
{
    struct offload_refresh *f = &o->cluster->refresh;

    f->call = (struct cluster_call){
        .kind = CLUSTER_TOUCH,
        .timeout_ms = TOUCH_MS,
        .ttl_ms = o->rooms.config->cluster_ttl_s * 1000,
        .n_names = f->n,
        .names = f->names[0],
        .done = offload_refresh_on_done,
    };
    f->is_sent = cluster_link_submit(o->cluster->link, &f->call) == 0; /* else at the next tick */
}

static void offload_refresh_slot(struct offload *o, const struct page_handle *h)
{
    struct offload_refresh *f = &o->cluster->refresh;
    struct tier_group id;

    if (h->slot->state != SLOT_COMMITTED || (!h->slot->was_leased && h->slot->holds == 0) ||
        !offload_is_shared(o, h->group->tenant))
        return;

    h->slot->was_leased = 0;
    offload_group_id(h->group, &id);
    offload_cluster_name(o->cluster, &id, &h->slot->key, f->names[f->n++]);
}

void offload_refresh_go_on(struct offload *o)
{
    struct offload_refresh *f = &o->cluster->refresh;
    uint64_t now_ms = ev_now_ms(o->rooms.ev);

    if (f->is_sent)
        return;
    if (!f->runs && now_ms >= f->next_ms) {
        f->runs = true;
        f->at = (struct offload_cursor){0, 0};
        f->next_ms = now_ms + o->rooms.config->cluster_ttl_s * 1000 / 4;
    }

    for (uint32_t n = SLOTS_PER_STEP; f->runs && n > 0 && f->n < CLUSTER_NAMES_MAX; n--) {
        struct page_handle h;

        if (offload_cursor_next(&o->store->pool, &f->at, &h))
            offload_refresh_slot(o, &h);
        else if (f->at.span == 0) /* behind the last span */
            f->runs = false;
    }
    if (f->n > 0)
        offload_refresh_send(o);
}

void offload_refresh_note(struct offload *o, const uint8_t name[static CLUSTER_NAME_BYTES])
{
    struct offload_refresh *f = &o->cluster->refresh;
    uint64_t first, now_ms = ev_now_ms(o->rooms.ev);
    struct offload_touched *t;

    memcpy(&first, name, sizeof(first)); /* a hash, so its bits choose the place */
    t = &f->touched[first % OFFLOAD_TOUCHED_MAX];
    if (f->is_sent || f->n == CLUSTER_NAMES_MAX ||
        (t->ms > 0 && t->name == first && now_ms - t->ms < o->rooms.config->cluster_ttl_s * 1000 / 4))
        return;

    *t = (struct offload_touched){first, now_ms};
    memcpy(f->names[f->n++], name, CLUSTER_NAME_BYTES);
}
