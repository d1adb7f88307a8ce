/*
 * Requests to the disk about one page, without its bytes: to forget one that did not open, or that an
 * operator flushed, and to look for one, or for what continues it, that an operator asks about.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "daemon/offload/offload_state.h"
#include "daemon/store/account.h"

struct offload_forget {
    struct tier_request request; /* first member */
    struct account *account;     /* has a reference */
    void (*done)(void *ctx, int err);
    void *ctx;
};

static void offload_forget_on_done(struct tier_request *r)
{
    struct offload_forget *x = (struct offload_forget *) r;
    int err = r->result;

    if (err == -ENOENT && r->kind != TIER_ASK && r->kind != TIER_ASK_OTHERS)
        err = 0; /* the disk does not have the page, which is the aim */

    if (x->done)
        x->done(x->ctx, err);
    (void) account_unref(x->account);
    free(x);
}

int offload_forget(struct offload *o, const struct offload_subject *s, enum tier_kind kind,
                   void (*done)(void *ctx, int err), void *ctx)
{
    _cleanup_(freep) struct offload_forget *x = NULL;
    int r;

    if (!o->disk)
        return -ENODEV;

    x = calloc(1, sizeof(*x));
    if (!x)
        return -ENOMEM;

    *x = (struct offload_forget){
        .request =
            {
                .kind = kind,
                .group = s->group,
                .key = s->key,
                .family = s->family,
                .deadline_ms = work_clock_ms() + OFFLOAD_READ_MS,
                .done = offload_forget_on_done,
            },
        .account = account_ref(s->account),
        .done = done,
        .ctx = ctx,
    };
    r = disk_submit(o->disk, &s->account->disk_share, &x->request);
    if (r < 0) {
        (void) account_unref(x->account);
        return r;
    }

    (void) take_ptr(x);
    return 0;
}
