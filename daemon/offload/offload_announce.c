/* What clients see of slower tiers; see offload.h. */
#include <errno.h>

#include "daemon/loop/ev.h"
#include "daemon/offload/offload_state.h"
#include "daemon/store/account.h"
#include "daemon/store/control.h"
#include "daemon/store/device.h"

void offload_announce_filter(struct offload *o, struct tenant *t)
{
    if (!o || t->device != o->rooms.devices->list)
        return;

    if (o->disk) {
        if (t->n_sessions > 0)
            disk_want_filter(o->disk, t->account->name, ev_now_ms(o->rooms.ev));
        control_set_filter(t, disk_filter_object(o->disk, t->account->name));
    }
    /* until the disk's thread has made the filter, clients ask for everything */
    control_set_asks(t, offload_may_look(o, t) ||
                            (o->disk && disk_filter_is_unknown(o->disk, t->account->name)));
}

int offload_open_filter(const struct offload *o, const struct tenant *t, int *ret_fd, size_t *ret_bytes,
                        uint64_t *ret_object)
{
    if (!o || !o->disk || t->device != o->rooms.devices->list)
        return -ENOENT;
    return disk_open_filter(o->disk, t->account->name, ret_fd, ret_bytes, ret_object);
}
