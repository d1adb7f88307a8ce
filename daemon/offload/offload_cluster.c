/* The row of the cluster tier. */
#include <errno.h>

#include "base/errmsg.h"
#include "daemon/cluster/cluster_tier.h"
#include "daemon/config/config.h"
#include "daemon/loop/metrics.h"
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

int offload_cluster_start(struct offload_tier *t, struct errmsg *e)
{
    struct offload *o = t->offload;
    const struct config *config = o->rooms.config;
    const struct cluster_link_options options = {
        .socket_path = config->cluster_socket,
        .uid = config->cluster_uid,
        .fleet = keyring_fleet(o->keyring),
        .memory_bytes = config->cluster_memory_bytes,
        .tick = offload_cluster_on_tick,
        .ctx = t,
    };
    struct cluster_tier *tier;
    int r;

    if (keyring_is_of_host(o->keyring))
        return fail(e, -EINVAL,
                    "the cluster tier needs the key ring of a fleet, and this host made its own: set "
                    "key-file");

    r = cluster_tier_new(o->rooms.ev, &options, o->keyring, config->cluster_ttl_s * 1000, &tier, e);
    if (r == 0)
        t->self = tier;
    return r;
}

void offload_cluster_status(const struct offload *o, struct offload_status *ret)
{
    const struct offload_tier *t = o->cluster;

    if (!t)
        return;

    ret->has_cluster = true;
    cluster_link_status(cluster_tier_link(t->self), &ret->cluster);
    ret->shared = t->shared->counts;
    ret->n_unopened_shared = t->n_unopened;
    ret->n_late_shared = t->n_late;
    ret->n_skipped_shared = t->n_skipped;
    ret->bytes_per_s_shared = (uint64_t) offload_rate_now(&t->rate, metrics_now_ns());
    ret->n_to_publish = t->shared->n_queued + t->n_puts;
}
