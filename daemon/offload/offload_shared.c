/* Whose pages are shared, and how they are named; see offload_cluster.h. */
#include <string.h>

#include "daemon/config/config.h"
#include "daemon/loop/ev.h"
#include "daemon/offload/offload_cluster.h"
#include "daemon/store/account.h"
#include "daemon/store/device.h"

/* ---- who and what ---- */

bool offload_is_shared(const struct offload *o, const struct tenant *t)
{
    return o->cluster && t->device == o->rooms.devices->list &&
           config_has_cluster_tenant(o->rooms.config, t->account->name);
}

void offload_cluster_name(const struct offload_cluster *c, const struct tier_group *id,
                          const struct chunk_key *key, uint8_t ret[static CLUSTER_NAME_BYTES])
{
    cluster_name(c->name_key, id, key, ret);
}

bool offload_may_look(const struct offload *o, const struct tenant *t)
{
    return o && !o->stopping && offload_is_shared(o, t) && cluster_link_is_ready(o->cluster->link) &&
           ev_now_ms(o->rooms.ev) >= o->cluster->look_pause_until_ms;
}
