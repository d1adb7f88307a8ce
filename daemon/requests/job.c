/* See job.h. */
#include "daemon/requests/job.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <malloc.h>
#include <stdlib.h>

#include "daemon/config/config.h"
#include "daemon/loop/heap.h"
#include "daemon/loop/work.h"
#include "daemon/requests/conn.h"
#include "daemon/requests/state.h"
#include "daemon/session/session.h"
#include "daemon/store/account.h"
#include "proto/wire_copy.h"

/* ---- what a job keeps ---- */

static struct job_message *job_message_unref(struct job_message *m)
{
    if (m && --m->n_refs == 0)
        free(m);
    return NULL;
}

/* Bytes that requests that wait keep, without those of the job that ends when @rq is answered. */
static uint64_t job_less_ending(const struct request *rq, uint64_t bytes)
{
    return bytes - (rq->ending ? rq->ending->bytes : 0);
}

static int job_check_bytes(struct request *rq, uint64_t bytes)
{
    const struct config *config = rq->server->config;
    const struct account *a = rq->conn->account;
    uint64_t own = job_less_ending(rq, a->waiting_bytes);
    uint64_t all = job_less_ending(rq, a->accounts->waiting_bytes);

    if (rq->conn->is_operator)
        return 0;
    if (own + bytes > config->waiting_bytes_per_tenant_max)
        return fail(&rq->error, -EDQUOT,
                    "requests of tenant %s that wait keep %" PRIu64 " bytes; its maximum is %" PRIu64
                    " (--waiting-bytes-per-tenant): wait for a reply, or ask for fewer pages at a time",
                    a->name, own, config->waiting_bytes_per_tenant_max);
    if (!account_may_take(own, all + bytes, config->waiting_bytes_max, UINT64_MAX))
        return fail(&rq->error, -EAGAIN,
                    "requests of all tenants that wait keep %" PRIu64 " bytes; the maximum is %" PRIu64
                    " (--waiting-bytes), less what is left for other tenants: retry later",
                    all, config->waiting_bytes_max);
    return 0;
}

/* Keeps the message and charges its bytes and those of the job. */
static int job_keep(struct job *j, struct request *rq)
{
    const ProtobufCMessage *message = &rq->message->base;
    struct job_message *kept = rq->ending ? rq->ending->message : NULL;
    uint64_t own = malloc_usable_size(j) + j->extra_bytes;
    size_t copied = kept ? 0 : wire_copy_bytes(message);
    uint64_t bytes = own + (kept ? kept->bytes : sizeof(*kept) + copied);
    int r = job_check_bytes(rq, bytes);

    if (r < 0)
        return r;
    if (!kept) {
        kept = malloc(sizeof(*kept) + copied);
        if (!kept)
            return fail(&rq->error, -ENOMEM, "out of memory for a request that waits");
        *kept = (struct job_message){.bytes = sizeof(*kept) + copied};
        kept->message = (const Kvcobra__Request *) wire_copy(message, kept->block);
    }

    kept->n_refs++;
    j->message = kept;
    j->bytes = rq->conn->is_operator ? 0 : bytes;
    account_add_waiting(rq->conn->account, j->bytes);
    return 0;
}

static void job_forget(struct job *j)
{
    struct server *s = j->server;

    account_add_waiting(j->conn->account, -j->bytes);
    heap_note_freed(s->heap, malloc_usable_size(j) + j->message->bytes);
    j->message = job_message_unref(j->message);
}

/* ---- the end ---- */

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
        .message = j->message->message,
        .began_ns = j->began_ns,
        .steps = j->steps,
        .ending = j,
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
    job_forget(j);
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

/* ---- begin ---- */

int job_begin(struct job *j, struct request *rq)
{
    int r;

    if (rq->conn->n_jobs - (rq->ending != NULL) >= JOBS_PER_CONNECTION_MAX)
        return fail(&rq->error, -EAGAIN,
                    "%d requests of this connection are not answered yet, the maximum: wait for a reply",
                    JOBS_PER_CONNECTION_MAX);

    r = job_keep(j, rq);
    if (r < 0)
        return r;

    j->server = rq->server;
    j->conn = rq->conn;
    j->session = rq->session;
    j->began_ns = rq->began_ns;
    j->steps = rq->steps;
    j->steps.in_tier = NULL; /* it ends with the job that has it */
    rq->conn->n_jobs++;
    if (rq->session)
        rq->session->n_jobs++;
    return REQUEST_PENDING;
}

void job_cancel(struct job *j)
{
    job_forget(j);
    j->conn->n_jobs--;
    if (j->session)
        j->session->n_jobs--;
}

uint64_t job_deadline_ms(const struct job *j, uint64_t from_ms)
{
    const Kvcobra__Request *m = j->message->message;
    uint32_t timeout_ms = m->timeout_ms ? m->timeout_ms : JOB_TIMEOUT_MS;

    return from_ms + (timeout_ms < JOB_TIMEOUT_MS_MAX ? timeout_ms : JOB_TIMEOUT_MS_MAX);
}

int job_work(struct job *j, struct errmsg *e)
{
    struct account *account = j->conn->account;
    struct work_share *share = j->conn->is_operator ? &j->server->conns->operator_work : &account->work_share;
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
