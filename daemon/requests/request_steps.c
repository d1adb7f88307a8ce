/* See request_steps.h. */
#include "daemon/requests/request_steps.h"

#include "daemon/requests/fetch_wait.h"
#include "daemon/requests/state.h"

static int request_steps_recheck(struct request *rq, const struct page_context *c)
{
    const struct step_plan *plan = rq->steps.plan;

    return plan->find ? recheck_begin(rq, rq->server->scratch->found, plan->find(rq, c)) : 0;
}

/* Whether the request waits for slower tiers. */
static bool request_steps_fetches(const struct request *rq, struct fetch_wait_run *ret)
{
    if (!rq->steps.plan->run || !rq->server->offload || rq->store->pool.on_gpu)
        return false;

    *ret = rq->steps.plan->run(rq);
    return ret->fetch_ms > 0;
}

static int request_steps_look(struct request *rq, const struct page_context *c)
{
    struct fetch_wait_run run;

    return request_steps_fetches(rq, &run) ? fetch_look_begin(rq, c, &run) : 0;
}

static int request_steps_fetch(struct request *rq, const struct page_context *c)
{
    struct fetch_wait_run run;

    return request_steps_fetches(rq, &run) ? fetch_wait_begin(rq, c, &run) : 0;
}

static int request_steps_go_on(struct request *rq)
{
    static const struct {
        unsigned step;
        int (*begin)(struct request *rq, const struct page_context *c);
    } steps[] = {{STEP_RECHECK, request_steps_recheck},
                 {STEP_LOOK, request_steps_look},
                 {STEP_FETCH, request_steps_fetch}};
    struct page_context c = {NULL};
    int r = rq->steps.plan->resolve(rq, &c);

    for (unsigned i = 0; r == 0 && i < sizeof(steps) / sizeof(steps[0]); i++) {
        if (rq->steps.done & steps[i].step)
            continue;
        rq->steps.done |= steps[i].step; /* before it begins: a job keeps it */
        r = steps[i].begin(rq, &c);
    }
    return r == 0 ? rq->steps.plan->act(rq, &c) : r;
}

int request_steps_run(struct request *rq, const struct step_plan *plan)
{
    rq->steps = (struct request_steps){.plan = plan, .go_on = request_steps_go_on};
    return request_steps_go_on(rq);
}
