/* A request that asks the shared tiers which of its pages they have. See fetch_wait.h. */
#include "daemon/requests/fetch_wait.h"

#include <stdlib.h>

#include "base/cleanup.h"
#include "daemon/offload/offload.h"
#include "daemon/requests/job.h"
#include "daemon/requests/pages.h"
#include "daemon/requests/state.h"
#include "daemon/store/account.h"

struct fetch_look_job {
    struct job job;
    struct offload_look look;
    uint16_t *items;                /* [n] of the message, by place in @look */
    struct offload_tier *in_tier[]; /* [n] by item, then the memory of @look, then @items */
};

static int fetch_look_conclude(struct job *job, struct request *rq)
{
    struct fetch_look_job *j = (struct fetch_look_job *) job;
    int r;

    if (!rq)
        return 0;

    for (uint32_t i = 0; i < j->look.n; i++)
        j->in_tier[j->items[i]] = j->look.found[i];
    rq->steps.in_tier = j->in_tier;
    r = rq->steps.go_on(rq);
    rq->steps.in_tier = NULL;
    return r;
}

static void fetch_look_on_ended(struct offload_look *l)
{
    struct fetch_look_job *j = (struct fetch_look_job *) ((char *) l - offsetof(struct fetch_look_job, look));

    job_end(&j->job);
}

/* Adds the pages that neither memory nor the disk has. */
static void fetch_look_fill(struct fetch_look_job *j, struct request *rq, const struct page_context *c,
                            const struct fetch_wait_run *run)
{
    struct offload *o = rq->server->offload;

    for (size_t i = 0; i < run->n; i++) {
        struct fetch_wait_item item;

        if (run->item(rq, c, i, &item) < 0)
            break;
        if (item.page.slot || offload_has(o, rq->tenant, &item.key))
            continue;

        const struct offload_place place = {rq->tenant, c->space, item.page_class};

        j->items[j->look.n] = (uint16_t) i;
        offload_look_add(o, &j->look, &place, &item.key);
    }
    errmsg_clear(&rq->error); /* the handler reports a bad key later */
}

/* A job for @n pages, with what it needs and no more. NULL: out of memory. */
static struct fetch_look_job *fetch_look_new(size_t n)
{
    size_t tiers = n * sizeof(struct offload_tier *), look = OFFLOAD_LOOK_BYTES(n);
    struct fetch_look_job *j = calloc(1, sizeof(*j) + tiers + (look + look % 2) + n * sizeof(uint16_t));
    uint8_t *memory;

    if (!j)
        return NULL;

    memory = (uint8_t *) (j->in_tier + n);
    offload_look_init(&j->look, (uint32_t) n, memory);
    j->items = (uint16_t *) (void *) (memory + look + look % 2);
    return j;
}

int fetch_look_begin(struct request *rq, const struct page_context *c, const struct fetch_wait_run *run)
{
    _cleanup_(freep) struct fetch_look_job *j = NULL;

    if (!offload_may_look(rq->server->offload, rq->tenant))
        return 0;

    j = fetch_look_new(run->n);
    if (!j)
        return 0; /* nothing is asked */

    fetch_look_fill(j, rq, c, run);
    if (j->look.n == 0 || offload_skips(rq->server->offload, true, fetch_wait_client_bytes_per_s(run, c)))
        return 0;

    j->job.finish = fetch_look_conclude;
    j->look.ended = fetch_look_on_ended;
    j->look.account = rq->tenant->account;
    if (job_begin(&j->job, rq) != REQUEST_PENDING) {
        errmsg_clear(&rq->error);
        return 0;
    }
    if (offload_look(rq->server->offload, &j->look, run->fetch_ms) < 0) {
        job_cancel(&j->job);
        return 0;
    }

    (void) take_ptr(j);
    return REQUEST_PENDING;
}
