/* See offload_cluster.h. */
#include "daemon/offload/offload_cluster.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/errmsg.h"
#include "daemon/config/config.h"
#include "daemon/loop/ev.h"
#include "daemon/store/store.h"
#include "daemon/tier/keyring.h"

/* ---- time ---- */

static void offload_cluster_on_tick(void *ctx)
{
    struct offload *o = ctx;
    struct offload_cluster *c = o->cluster;
    bool is_ready = cluster_link_is_ready(c->link);

    if (is_ready != c->was_ready) {
        c->was_ready = is_ready;
        for (struct tenant *t = o->store->tenants; t; t = t->next)
            offload_announce_filter(o, t);
    }
    if (o->stopping || !is_ready)
        return;
    offload_publish_pump(o);
    offload_refresh_go_on(o);
}

/* ---- start and end ---- */

const struct listen_socket *offload_cluster_socket(const struct offload *o)
{
    return o && o->cluster ? cluster_link_socket(o->cluster->link) : NULL;
}

int offload_cluster_start(struct offload *o, struct errmsg *e)
{
    const struct config *config = o->rooms.config;
    const struct cluster_link_options options = {
        .socket_path = config->cluster_socket,
        .uid = config->cluster_uid,
        .fleet = keyring_fleet(o->keyring),
        .memory_bytes = config->cluster_memory_bytes,
        .tick = offload_cluster_on_tick,
        .ctx = o,
    };

    if (keyring_is_of_host(o->keyring))
        return fail(e, -EINVAL,
                    "the cluster tier needs the key ring of a fleet, and this host made its own: set "
                    "key-file");

    o->cluster = calloc(1, sizeof(*o->cluster));
    if (!o->cluster)
        return fail(e, -ENOMEM, "out of memory for the cluster tier");

    cluster_name_key(o->keyring, o->cluster->name_key);
    o->cluster->refresh.next_ms = ev_now_ms(o->rooms.ev) + config->cluster_ttl_s * 1000 / 4;
    return cluster_link_new(o->rooms.ev, &options, &o->cluster->link, e);
}

void offload_cluster_end(struct offload *o)
{
    if (!o->cluster)
        return;

    o->cluster->link = cluster_link_free(o->cluster->link); /* ends what is on its way */
    explicit_bzero(o->cluster->name_key, sizeof(o->cluster->name_key));
    free(o->cluster);
    o->cluster = NULL;
}
