/* See cluster_tier.h. */
#include "daemon/cluster/cluster_tier.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "daemon/cluster/cluster_name.h"
#include "daemon/loop/work.h"
#include "daemon/tier/seal.h"

_Static_assert(TIER_NAME_BYTES == CLUSTER_NAME_BYTES && TIER_NAMES_MAX == CLUSTER_NAMES_MAX, "names");

struct cluster_tier {
    struct cluster_link *link;
    uint8_t name_key[CLUSTER_NAME_KEY_BYTES];
    uint64_t ttl_ms;
};

struct cluster_tier_call {    /* on its way */
    struct cluster_call call; /* first member */
    union {
        struct tier_request *request;
        struct tier_look *look;
        struct tier_touch *touch;
    } of;
};

/* ---- start and end ---- */

/* It owns no thread: nothing is waited for. */
static void cluster_tier_free(void *tier, uint64_t wait_ms)
{
    struct cluster_tier *t = tier;

    (void) wait_ms;
    if (!t)
        return;

    t->link = cluster_link_free(t->link);
    explicit_bzero(t->name_key, sizeof(t->name_key));
    free(t);
}

static void cluster_tier_freep(struct cluster_tier **t)
{
    cluster_tier_free(*t, 0);
}

int cluster_tier_new(struct ev *ev, const struct cluster_link_options *options, const struct keyring *ring,
                     uint64_t ttl_ms, struct cluster_tier **ret, struct errmsg *e)
{
    _cleanup_(cluster_tier_freep) struct cluster_tier *t = calloc(1, sizeof(*t));
    int r;

    if (!t)
        return fail(e, -ENOMEM, "out of memory for the cluster tier");

    cluster_name_key(ring, t->name_key);
    t->ttl_ms = ttl_ms;
    r = cluster_link_new(ev, options, &t->link, e);
    if (r < 0)
        return r;

    *ret = take_ptr(t);
    return 0;
}

struct cluster_link *cluster_tier_link(const struct cluster_tier *t)
{
    return t->link;
}

/* ---- calls ---- */

/* Sends a copy of @call. */
static int cluster_tier_send(struct cluster_tier *t, const struct cluster_tier_call *call)
{
    struct cluster_tier_call *c = malloc(sizeof(*c));
    int r;

    if (!c)
        return -ENOMEM;

    *c = *call;
    r = cluster_link_submit(t->link, &c->call);
    if (r < 0)
        free(c);
    return r;
}

/* What is left of a deadline; at least a millisecond, so that the link ends the call. */
static uint32_t cluster_tier_left_ms(uint64_t deadline_ms)
{
    uint64_t now_ms = work_clock_ms(), left_ms = deadline_ms > now_ms ? deadline_ms - now_ms : 1;

    return left_ms < CLUSTER_TIMEOUT_MS_MAX ? (uint32_t) left_ms : CLUSTER_TIMEOUT_MS_MAX;
}

/* -EFBIG and -EBADMSG of a GET: it is no value of kvcobrad. */
static void cluster_tier_on_done(struct cluster_call *call)
{
    struct cluster_tier_call *c = (struct cluster_tier_call *) call;
    struct tier_request *r = c->of.request;

    r->result = call->result;
    if (call->kind == CLUSTER_REMOVE && call->result == 0 && !(call->reply && cluster_bit(call->reply, 0)))
        r->result = -ENOENT;
    r->data = call->data;
    r->value_bytes = call->value_bytes;
    free(c);
    r->done(r);
}

static int cluster_tier_submit(void *tier, struct tier_share *s, struct tier_request *r)
{
    struct cluster_tier *t = tier;
    struct cluster_tier_call c = {
        .call = {.share = s,
                 .timeout_ms = cluster_tier_left_ms(r->deadline_ms),
                 .n_names = 1,
                 .names = r->name,
                 .done = cluster_tier_on_done},
        .of.request = r,
    };

    r->share = s;
    switch (r->kind) {
    case TIER_GET:
        c.call.kind = CLUSTER_GET;
        c.call.bytes = seal_bytes(r->group.page_bytes);
        break;
    case TIER_PUT:
        c.call.kind = CLUSTER_PUT;
        c.call.ttl_ms = t->ttl_ms;
        c.call.bytes = seal_bytes(r->group.page_bytes);
        c.call.data = r->data;
        break;
    case TIER_FORGET:
    case TIER_REMOVE:
        c.call.kind = CLUSTER_REMOVE;
        break;
    default:
        return -EOPNOTSUPP;
    }
    return cluster_tier_send(t, &c);
}

static void cluster_tier_on_looked(struct cluster_call *call)
{
    struct cluster_tier_call *c = (struct cluster_tier_call *) call;
    struct tier_look *l = c->of.look;

    l->result = call->result;
    for (uint32_t i = 0; i < l->n; i++)
        l->found[i] = call->reply && cluster_bit(call->reply, i);
    free(c);
    l->done(l);
}

static int cluster_tier_look(void *tier, struct tier_look *l)
{
    const struct cluster_tier_call c = {
        .call = {.kind = CLUSTER_EXISTS,
                 .share = l->share,
                 .timeout_ms = l->timeout_ms,
                 .n_names = l->n,
                 .names = l->names[0],
                 .done = cluster_tier_on_looked},
        .of.look = l,
    };

    return cluster_tier_send(tier, &c);
}

static void cluster_tier_on_touched(struct cluster_call *call)
{
    struct cluster_tier_call *c = (struct cluster_tier_call *) call;
    struct tier_touch *t = c->of.touch;

    t->result = call->result;
    t->n_touched = 0;
    for (uint32_t i = 0; i < t->n; i++)
        t->n_touched += call->reply && cluster_bit(call->reply, i);
    free(c);
    t->done(t);
}

static int cluster_tier_touch(void *tier, struct tier_touch *t)
{
    enum { TOUCH_MS = 10000 };
    struct cluster_tier *self = tier;
    const struct cluster_tier_call c = {
        .call = {.kind = CLUSTER_TOUCH,
                 .timeout_ms = TOUCH_MS,
                 .ttl_ms = self->ttl_ms,
                 .n_names = t->n,
                 .names = t->names[0],
                 .done = cluster_tier_on_touched},
        .of.touch = t,
    };

    return cluster_tier_send(self, &c);
}

/* ---- the rest of the interface ---- */

static bool cluster_tier_is_ready(void *tier)
{
    return cluster_link_is_ready(((const struct cluster_tier *) tier)->link);
}

static uint8_t *cluster_tier_take(void *tier, uint64_t page_bytes)
{
    return cluster_link_take(((struct cluster_tier *) tier)->link, seal_bytes(page_bytes));
}

static void cluster_tier_give_back(void *tier, uint8_t *data)
{
    cluster_link_give_back(((struct cluster_tier *) tier)->link, data);
}

static bool cluster_tier_fits(void *tier, uint64_t page_bytes)
{
    return cluster_link_fits(((const struct cluster_tier *) tier)->link, seal_bytes(page_bytes));
}

static void cluster_tier_make_name(void *tier, const struct tier_group *g, const struct chunk_key *key,
                                   uint8_t ret[static TIER_NAME_BYTES])
{
    cluster_name(((const struct cluster_tier *) tier)->name_key, g, key, ret);
}

/* A slot without a node, or one node that is down among others that answer, keeps no other page waiting. */
static bool cluster_tier_is_partial(void *tier, int result)
{
    struct cluster_link_status status;

    if (result != -EHOSTUNREACH && result != -EHOSTDOWN)
        return false;
    cluster_link_status(((const struct cluster_tier *) tier)->link, &status);
    return status.counters[CLUSTER_COUNTER_NODES_READY] > 0;
}

static uint64_t cluster_tier_losses(void *tier)
{
    struct cluster_link_status status;

    cluster_link_status(((const struct cluster_tier *) tier)->link, &status);
    /* a process that joins counts from 0, and does not know what was lost before */
    return status.n_joined << 32 | (uint32_t) status.counters[CLUSTER_COUNTER_LOSSES];
}

const struct tier_ops cluster_tier_ops = {
    .name = "cluster",
    .is_shared = true,
    .free = cluster_tier_free,
    .submit = cluster_tier_submit,
    .take = cluster_tier_take,
    .give_back = cluster_tier_give_back,
    .fits = cluster_tier_fits,
    .is_ready = cluster_tier_is_ready,
    .make_name = cluster_tier_make_name,
    .look = cluster_tier_look,
    .touch = cluster_tier_touch,
    .losses = cluster_tier_losses,
    .is_partial = cluster_tier_is_partial,
};
