/* The cluster forgets a page that an operator flushed, or whose value did not open. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "daemon/offload/offload_cluster.h"
#include "daemon/store/account.h"

struct offload_remove {
    struct cluster_call call;           /* first member */
    struct offload_remove *next, *prev; /* in offload_cluster.removing */
    struct offload_cluster *cluster;
    uint8_t name[CLUSTER_NAME_BYTES];
    void (*done)(void *ctx, int err); /* or NULL */
    void *ctx;
};

bool offload_cluster_is_removing(const struct offload_cluster *c,
                                 const uint8_t name[static CLUSTER_NAME_BYTES])
{
    for (const struct offload_remove *x = c->removing; x; x = x->next)
        if (memcmp(x->name, name, sizeof(x->name)) == 0)
            return true;
    return false;
}

static void offload_remove_on_done(struct cluster_call *call)
{
    struct offload_remove *x = (struct offload_remove *) call;

    if (x->prev)
        x->prev->next = x->next;
    else
        x->cluster->removing = x->next;
    if (x->next)
        x->next->prev = x->prev;
    if (x->done)
        x->done(x->ctx, call->result);
    free(x);
}

int offload_cluster_remove(struct offload_cluster *c, const uint8_t name[static CLUSTER_NAME_BYTES],
                           void (*done)(void *ctx, int err), void *ctx)
{
    _cleanup_(freep) struct offload_remove *x = calloc(1, sizeof(*x));
    int r;

    if (!x)
        return -ENOMEM;

    x->done = done;
    x->ctx = ctx;
    x->cluster = c;
    memcpy(x->name, name, sizeof(x->name));
    x->call = (struct cluster_call){
        .kind = CLUSTER_REMOVE,
        .timeout_ms = OFFLOAD_PUT_MS,
        .n_names = 1,
        .names = x->name,
        .done = offload_remove_on_done,
    };
    r = cluster_link_submit(c->link, &x->call);
    if (r < 0)
        return r;

    x->next = c->removing;
    if (x->next)
        x->next->prev = x;
    c->removing = take_ptr(x);
    return 0;
}

int offload_flush_shared(struct offload *o, const struct tenant *t, const struct offload_subject *s,
                         void (*done)(void *ctx, int err), void *ctx, uint32_t *ret_on_the_way)
{
    uint8_t name[CLUSTER_NAME_BYTES];

    if (!offload_is_shared(o, t))
        return -ENOENT;

    offload_cluster_name(o->cluster, &s->group, &s->key, name);
    *ret_on_the_way = offload_publish_flush(o, name);
    return offload_cluster_remove(o->cluster, name, done, ctx);
}
