/* See extent_wait.h. */
#include "daemon/requests/extent_wait.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "daemon/config/config.h"
#include "daemon/requests/job.h"
#include "daemon/requests/state.h"
#include "daemon/store/account.h"
#include "daemon/store/tenant_types.h"

struct extent_wait_job {
    struct job job;
    struct extent_wait_job *next;
    struct account *account; /* has a reference */
};

static int extent_wait_conclude(struct job *job, struct request *rq)
{
    if (!rq)
        return 0;
    if (job->work.expired)
        return fail(&rq->error, -ETIMEDOUT,
                    "no new extent was ready before the request's deadline: retry later");

    return rq->steps.go_on(rq);
}

static void extent_wait_append(struct extent_wait_queue *q, struct extent_wait_job *j)
{
    q->n++;
    j->account->n_extent_waits++;
    j->next = NULL;
    if (q->last)
        q->last->next = j;
    else
        q->first = j;
    q->last = j;
}

/* Takes all requests out of the queue. Return: the first. */
static struct extent_wait_job *extent_wait_take_all(struct extent_wait_queue *q)
{
    struct extent_wait_job *first = q->first;

    for (struct extent_wait_job *j = first; j; j = j->next)
        j->account->n_extent_waits--;
    *q = (struct extent_wait_queue){NULL, NULL, 0};
    return first;
}

static void extent_wait_end(struct extent_wait_job *j)
{
    struct account *account = j->account;

    job_end(&j->job);
    (void) account_unref(account);
}

static int extent_wait_check_room(struct request *rq)
{
    const struct account *a = rq->tenant->account;
    uint32_t n = rq->server->extent_waits->n, max = rq->server->config->work_queue_max;

    if (account_may_take(a->n_extent_waits, n, max, max))
        return 0;
    return fail(&rq->error, -EAGAIN,
                "%" PRIu32 " requests wait for a new extent, %" PRIu32
                " of them of tenant %s; the maximum is --work-queue %" PRIu32
                ", less what is left for other tenants: retry later",
                n, a->n_extent_waits, a->name, max);
}

int extent_wait_begin(struct request *rq)
{
    struct extent_wait_job *j;
    int r = extent_wait_check_room(rq);

    if (r < 0)
        return r;

    j = calloc(1, sizeof(*j));
    if (!j)
        return fail(&rq->error, -ENOMEM, "out of memory for a request that waits");

    j->job.finish = extent_wait_conclude;
    r = job_begin(&j->job, rq);
    if (r < 0) {
        free(j);
        return r;
    }

    j->account = account_ref(rq->tenant->account);
    /* from the request's begin: a request that waits anew has no more time than before */
    j->job.work.deadline_ms = job_deadline_ms(&j->job, rq->began_ns / 1000000);
    errmsg_clear(&rq->error);
    extent_wait_append(rq->server->extent_waits, j);
    return r;
}

void extent_wait_retry(void *ctx)
{
    struct server *s = ctx;
    struct extent_wait_job *j = extent_wait_take_all(s->extent_waits), *next;

    for (; j; j = next) { /* a request that needs another extent waits anew, in the same order */
        next = j->next;
        extent_wait_end(j);
    }
}

void extent_wait_expire(struct server *s, uint64_t now_ms)
{
    struct extent_wait_job *j = extent_wait_take_all(s->extent_waits), *next;

    for (; j; j = next) {
        next = j->next;
        if (j->job.work.deadline_ms > now_ms) {
            extent_wait_append(s->extent_waits, j);
            continue;
        }

        j->job.work.expired = true;
        extent_wait_end(j);
    }
}
