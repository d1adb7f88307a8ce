/*
 * The cluster forgets a page that an operator flushed. The wire has no removal: the value is replaced by one
 * byte, which opens nowhere and vanishes after a millisecond.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "daemon/offload/offload_cluster.h"
#include "daemon/store/account.h"

struct offload_vanish {
    struct cluster_call call;           /* first member */
    struct offload_vanish *next, *prev; /* in offload_cluster.vanishing */
    struct offload_cluster *cluster;
    uint8_t name[CLUSTER_NAME_BYTES];
    void (*done)(void *ctx, int err);
    void *ctx;
};

bool offload_cluster_is_vanishing(const struct offload_cluster *c,
                                  const uint8_t name[static CLUSTER_NAME_BYTES])
{
    for (const struct offload_vanish *v = c->vanishing; v; v = v->next)
        if (memcmp(v->name, name, sizeof(v->name)) == 0)
            return true;
    return false;
}

static void offload_vanish_on_done(struct cluster_call *call)
{
    struct offload_vanish *v = (struct offload_vanish *) call;

    if (v->prev)
        v->prev->next = v->next;
    else
        v->cluster->vanishing = v->next;
    if (v->next)
        v->next->prev = v->prev;
    v->done(v->ctx, call->result);
    free(v);
}

int offload_flush_shared(struct offload *o, const struct tenant *t, const struct offload_subject *s,
                         void (*done)(void *ctx, int err), void *ctx, uint32_t *ret_on_the_way)
{
    _cleanup_(freep) struct offload_vanish *v = NULL;
    int r;

    if (!offload_is_shared(o, t))
        return -ENOENT;

    v = calloc(1, sizeof(*v));
    if (!v)
        return -ENOMEM;

    v->done = done;
    v->ctx = ctx;
    offload_cluster_name(o->cluster, &s->group, &s->key, v->name);
    *ret_on_the_way = offload_publish_flush(o, v->name);
    v->call = (struct cluster_call){
        .kind = CLUSTER_PUT,
        .timeout_ms = OFFLOAD_PUT_MS,
        .replaces = true,
        .ttl_ms = 1,
        .bytes = 1,
        .data = cluster_link_take(o->cluster->link, 1),
        .n_names = 1,
        .names = v->name,
        .done = offload_vanish_on_done,
    };
    if (!v->call.data)
        return -EAGAIN;

    v->call.data[0] = 0;
    r = cluster_link_submit(o->cluster->link, &v->call);
    if (r < 0) {
        cluster_link_give_back(o->cluster->link, v->call.data);
        return r;
    }

    v->cluster = o->cluster;
    v->next = o->cluster->vanishing;
    if (v->next)
        v->next->prev = v;
    o->cluster->vanishing = take_ptr(v);
    return 0;
}
