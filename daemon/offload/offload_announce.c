/* What clients see of slower tiers; see offload.h. */
#include <errno.h>

#include "daemon/loop/ev.h"
#include "daemon/offload/offload_state.h"
#include "daemon/store/account.h"
#include "daemon/store/control.h"
#include "daemon/store/device.h"

void offload_announce_filter(struct offload *o, struct tenant *t)
{
    bool is_unknown = false; /* until the tier has made the filter, clients ask for everything */

    if (!o || t->device != o->rooms.devices->list)
        return;

    if (o->host)
        control_set_filter(t, o->host->ops->filter(o->host->self, t->account->name, t->n_sessions > 0,
                                                   ev_now_ms(o->rooms.ev), &is_unknown));
    control_set_asks(t, offload_may_look(o, t) || is_unknown);
}

int offload_open_filter(const struct offload *o, const struct tenant *t, int *ret_fd, size_t *ret_bytes,
                        uint64_t *ret_object)
{
    if (!o || !o->host || t->device != o->rooms.devices->list)
        return -ENOENT;
    return o->host->ops->open_filter(o->host->self, t->account->name, ret_fd, ret_bytes, ret_object);
}

bool offload_note_state(struct offload *o)
{
    struct tier_status s;

    o->host->ops->status(o->host->self, &s);
    if (s.state == o->state && s.n_openings == o->n_openings)
        return false;

    o->state = s.state;
    o->n_openings = s.n_openings;
    if (s.state == TIER_READY) { /* it may have other pages than before */
        offload_sweep_begin(o);
        offload_start_timer(o);
    }
    for (struct tenant *t = o->store->tenants; t; t = t->next)
        offload_announce_filter(o, t);
    return true;
}
