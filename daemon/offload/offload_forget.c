/*
 * Requests to a tier about one page, without its bytes: to drop one that did not open, or that an operator
 * flushed, and to look for one, or for what continues it, that an operator asks about.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "daemon/offload/offload_state.h"
#include "daemon/store/account.h"

struct offload_forget {
    struct tier_request request;        /* first member */
    struct offload_forget *next, *prev; /* in offload_tier.forgets */
    struct offload_tier *tier;
    struct account *account; /* has a reference */
    void (*done)(void *ctx, int err);
    void *ctx;
};

static bool offload_forget_removes(const struct offload_forget *x)
{
    return x->request.kind == TIER_FORGET || x->request.kind == TIER_REMOVE;
}

bool offload_is_forgetting(const struct offload_tier *t, const struct tier_group *g,
                           const struct chunk_key *key)
{
    for (const struct offload_forget *x = t->forgets; x; x = x->next)
        if (offload_forget_removes(x) && memcmp(&x->request.key, key, sizeof(*key)) == 0 &&
            tier_group_equal(&x->request.group, g))
            return true;
    return false;
}

static void offload_forget_free(struct offload_forget *x)
{
    if (x->prev)
        x->prev->next = x->next;
    else
        x->tier->forgets = x->next;
    if (x->next)
        x->next->prev = x->prev;
    (void) account_unref(x->account);
    free(x);
}

static void offload_forget_on_done(struct tier_request *r)
{
    struct offload_forget *x = (struct offload_forget *) r;
    int err = r->result;

    if (err == -ENOENT && offload_forget_removes(x))
        err = 0; /* the tier does not have the page, which is the aim */

    if (x->done)
        x->done(x->ctx, err);
    offload_forget_free(x);
}

int offload_forget(struct offload_tier *t, const struct offload_subject *s, enum tier_kind kind,
                   void (*done)(void *ctx, int err), void *ctx)
{
    struct offload_forget *x = malloc(sizeof(*x));
    int r;

    if (!x)
        return -ENOMEM;

    *x = (struct offload_forget){
        .request =
            {
                .kind = kind,
                .group = s->group,
                .key = s->key,
                .family = s->family,
                .deadline_ms = work_clock_ms() + (t->shared ? OFFLOAD_PUT_MS : OFFLOAD_READ_MS),
                .done = offload_forget_on_done,
            },
        .next = t->forgets,
        .tier = t,
        .account = account_ref(s->account),
        .done = done,
        .ctx = ctx,
    };
    if (t->shared)
        t->ops->make_name(t->self, &s->group, &s->key, x->request.name);
    if (x->next)
        x->next->prev = x;
    t->forgets = x;
    r = t->ops->submit(t->self, &s->account->tier_shares[t->number], &x->request);
    if (r < 0)
        offload_forget_free(x);
    return r;
}
