/* See job.h. */
#include "daemon/requests/job.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "daemon/requests/conn.h"
#include "daemon/requests/state.h"
#include "daemon/session/session.h"
#include "daemon/store/account.h"

static bool job_is_awaited(const struct job *j)
{
    return !j->conn->closed && j->conn->session == j->session && !(j->session && j->session->ended);
}

/* A connection that sent BYE gets an answer too: it is open, although its session has ended. */
static void job_answer(struct job *j)
{
    struct request rq = {
        .server = j->server,
        .conn = j->conn,
        .message = j->message,
        .began_ns = j->began_ns,
        .ends_job = true,
    };
    int r;

    request_set_session(&rq, j->session);
    kvcobra__reply__init(&rq.reply);
    if (job_is_awaited(j)) {
        r = j->finish(j, &rq);
    } else {
        (void) j->finish(j, NULL);
        r = fail(&rq.error, -ESTALE, "the session ended before its request was done");
    }

    request_answer(&rq, r);
}

void job_end(struct job *j)
{
    struct conn *c = j->conn;
    struct session *x = j->session;

    job_answer(j);
    free(j);
    if (x && --x->n_jobs == 0 && x->ended)
        session_reap(x);
    if (--c->n_jobs == 0 && c->closed)
        conn_reap(c);
}

static void job_on_done(struct work_item *i)
{
    struct job *j = (struct job *) i;

    if (j->work.expired || !j->resume_elsewhere || !j->resume_elsewhere(j))
        job_end(j);
}

int job_begin(struct job *j, struct request *rq)
{
    if (rq->conn->n_jobs - rq->ends_job >= JOBS_PER_CONNECTION_MAX)
        return fail(&rq->error, -EAGAIN,
                    "%d requests of this connection are not answered yet, the maximum: wait for a reply",
                    JOBS_PER_CONNECTION_MAX);

    j->server = rq->server;
    j->conn = rq->conn;
    j->session = rq->session;
    j->message = (Kvcobra__Request *) rq->message;
    j->began_ns = rq->began_ns;
    rq->conn->n_jobs++;
    if (rq->session)
        rq->session->n_jobs++;
    return REQUEST_PENDING;
}

void job_cancel(struct job *j)
{
    j->conn->n_jobs--;
    if (j->session)
        j->session->n_jobs--;
}

uint64_t job_deadline_ms(const struct job *j, uint64_t from_ms)
{
    uint32_t timeout_ms = j->message->timeout_ms ? j->message->timeout_ms : JOB_TIMEOUT_MS;

    return from_ms + (timeout_ms < JOB_TIMEOUT_MS_MAX ? timeout_ms : JOB_TIMEOUT_MS_MAX);
}

int job_work(struct job *j, struct errmsg *e)
{
    struct account *account = j->conn->account;
    struct work_share *share = j->conn->is_operator ? &j->server->operator_work : &account->work_share;
    int r;

    j->work.done = job_on_done;
    j->work.deadline_ms = job_deadline_ms(j, work_clock_ms());
    r = work_submit(j->server->work, share, &j->work);
    if (r == -EAGAIN)
        return fail(e, r,
                    "tenant %s has %" PRIu32
                    " requests in the queue of kvcobrad's threads, and no more places "
                    "than that are free: wait for a reply, or retry later",
                    account->name, share->n_items);
    return r < 0 ? fail(e, r, "out of memory for a request") : 0;
}

int job_start(struct job *j, struct request *rq)
{
    int r = job_begin(j, rq);

    if (r < 0)
        return r;

    r = job_work(j, &rq->error);
    if (r == 0)
        return REQUEST_PENDING;

    job_cancel(j);
    return r;
}

int job_expired(struct request *rq)
{
    return fail(&rq->error, -ETIMEDOUT,
                "kvcobrad had no thread free before the request's deadline: retry later");
}
