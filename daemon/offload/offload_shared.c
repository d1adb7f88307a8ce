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

void offload_cluster_name(const struct offload_cluster *c, const struct disk_group_id *id,
                          const struct chunk_key *key, uint8_t ret[static CLUSTER_NAME_BYTES])
{
    cluster_name(c->name_key, id, key, ret);
}

bool offload_may_look(const struct offload *o, const struct tenant *t)
{
    return o && !o->stopping && offload_is_shared(o, t) && cluster_link_is_ready(o->cluster->link) &&
           ev_now_ms(o->rooms.ev) >= o->cluster->look_pause_until_ms;
}

/* ---- values that did not open ---- */

void offload_cluster_note_spoilt(struct offload_cluster *c, const uint8_t name[static CLUSTER_NAME_BYTES])
{
    memcpy(c->spoilt[c->n_spoilt++ % OFFLOAD_SPOILT_MAX], name, CLUSTER_NAME_BYTES);
}

bool offload_cluster_take_spoilt(struct offload_cluster *c, const uint8_t name[static CLUSTER_NAME_BYTES])
{
    uint32_t n = c->n_spoilt < OFFLOAD_SPOILT_MAX ? c->n_spoilt : OFFLOAD_SPOILT_MAX;
    bool found = false;

    for (uint32_t i = 0; i < n; i++) {
        if (memcmp(c->spoilt[i], name, CLUSTER_NAME_BYTES) != 0)
            continue;
        memset(c->spoilt[i], 0, CLUSTER_NAME_BYTES);
        found = true;
    }
    return found;
}
