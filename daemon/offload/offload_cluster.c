/* The row of the cluster tier. */
#include <errno.h>

#include "base/errmsg.h"
#include "daemon/cluster/cluster_tier.h"
#include "daemon/config/config.h"
#include "daemon/offload/offload_shared.h"
#include "daemon/tier/keyring.h"

static void offload_cluster_on_tick(void *ctx)
{
    offload_shared_tick(ctx);
}

const struct listen_socket *offload_cluster_socket(const struct offload *o)
{
    return o && o->cluster ? cluster_link_socket(cluster_tier_link(o->cluster->self)) : NULL;
}

int offload_cluster_start(struct offload *o, struct errmsg *e)
{
    const struct config *config = o->rooms.config;
    struct cluster_link_options options = {
        .socket_path = config->cluster_socket,
        .uid = config->cluster_uid,
        .fleet = keyring_fleet(o->keyring),
        .memory_bytes = config->cluster_memory_bytes,
        .tick = offload_cluster_on_tick,
    };
    struct cluster_tier *tier;
    int r;

    if (keyring_is_of_host(o->keyring))
        return fail(e, -EINVAL,
                    "the cluster tier needs the key ring of a fleet, and this host made its own: set "
                    "key-file");

    r = offload_add_tier(o, &cluster_tier_ops, config_has_cluster_tenant, &o->cluster);
    if (r < 0)
        return fail(e, r, "out of memory for the cluster tier");

    options.ctx = o->cluster;
    r = cluster_tier_new(o->rooms.ev, &options, o->keyring, config->cluster_ttl_s * 1000, &tier, e);
    if (r == 0)
        o->cluster->self = tier;
    return r;
}

void offload_cluster_end(struct offload *o)
{
    if (o->cluster)
        o->cluster->self = cluster_tier_free(o->cluster->self); /* ends what is on its way */
}
