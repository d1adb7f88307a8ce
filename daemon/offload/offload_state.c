/* What the files of this room share; see offload_state.h. */
#include "daemon/offload/offload_state.h"

#include <string.h>
#include <sys/timerfd.h>

#include "daemon/loop/ev.h"
#include "daemon/loop/metrics.h"
#include "daemon/offload/offload_shared.h"
#include "daemon/store/account.h"
#include "daemon/store/device.h"
#include "daemon/store/space.h"

void offload_place_id(const struct offload_place *p, struct tier_group *ret)
{
    tier_group_init(ret, p->tenant->account->name);
    memcpy(ret->table_digest, p->space->table_digest, TIER_TABLE_BYTES);
    ret->first_head = (uint16_t) p->space->layout.shard.first_head;
    ret->n_heads = (uint16_t) p->space->layout.shard.n_heads;
    ret->page_class = (uint8_t) p->page_class;
    ret->page_bytes = p->space->layout.page_bytes[p->page_class];
}

void offload_group_id(const struct group *g, struct tier_group *ret)
{
    const struct offload_place p = {g->tenant, g->space, g->page_class};

    offload_place_id(&p, ret);
}

bool offload_has(const struct offload *o, const struct tenant *t, const struct chunk_key *key)
{
    return o && o->host && t->device == o->rooms.devices->list &&
           o->host->ops->has(o->host->self, t->account->name, key);
}

void offload_set_timer(struct offload *o, long ms)
{
    const struct timespec t = {.tv_nsec = ms * 1000000};
    const struct itimerspec period = {.it_interval = t, .it_value = t};

    (void) timerfd_settime(o->timer_fd, 0, &period, NULL); /* cannot fail with these arguments */
    o->timer_runs = ms > 0;
}

void offload_start_timer(struct offload *o)
{
    if (!o->timer_runs)
        offload_set_timer(o, OFFLOAD_TIMER_MS);
}

/* ---- shared tiers ---- */

bool offload_admits(const struct offload_tier *t, const struct tenant *x)
{
    const struct offload *o = t->offload;

    return x->device == o->rooms.devices->list &&
           (!t->admits || t->admits(o->rooms.config, x->account->name));
}

bool offload_shared_looks(const struct offload_tier *t, const char *tenant)
{
    const struct offload *o = t->offload;

    return t->shared && (!t->admits || t->admits(o->rooms.config, tenant)) && t->ops->is_ready(t->self) &&
           ev_now_ms(o->rooms.ev) >= t->shared->look_pause_until_ms;
}

bool offload_may_look(const struct offload *o, const struct tenant *x)
{
    if (!o || o->stopping || x->device != o->rooms.devices->list)
        return false;

    for (unsigned i = 0; i < o->n_tiers; i++)
        if (offload_shared_looks(&o->tiers[i], x->account->name))
            return true;
    return false;
}

bool offload_skips(struct offload *o, bool is_shared, uint64_t client_bytes_per_s)
{
    struct offload_tier *slow = NULL;

    for (unsigned i = 0; o && i < o->n_tiers; i++) {
        struct offload_tier *t = &o->tiers[i];

        if (t->ops->is_shared != is_shared)
            continue;
        if (offload_rate_reaches(&t->rate, client_bytes_per_s, metrics_now_ns()))
            return false;
        slow = t;
    }
    if (slow)
        slow->n_skipped++;
    return slow != NULL;
}
