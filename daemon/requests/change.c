/* See change.h. */
#include "daemon/requests/change.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "daemon/requests/job.h"
#include "daemon/requests/state.h"
#include "daemon/tables/state_writer.h"
#include "daemon/tables/table_entry.h"

struct change {
    struct job job; /* first member */
    struct state_change files;
    int (*run)(struct request *rq);
    struct change *next;
    /* of the last run, for change_finish() */
    Kvcobra__Reply reply;
    struct errmsg error;
    int result;
};

/* One run. Return: that of the handler; REQUEST_PENDING: there is another run when a file is written. */
static int change_run_once(struct change *c, struct request *rq)
{
    struct server *s = rq->server;
    int r;

    s->changes->current = c;
    state_writer_begin(&s->tables->state, &c->files);
    r = c->run(rq);
    state_writer_end(&s->tables->state, r);
    if (r == -EINPROGRESS)
        return REQUEST_PENDING;

    s->changes->current = NULL;
    return r;
}

/* @rq: NULL: the operator is gone; what the files say became true all the same. */
static int change_finish(struct job *job, struct request *rq)
{
    const struct change *c = (const struct change *) job;

    if (rq) {
        rq->reply = c->reply;
        rq->error = c->error;
    }
    return c->result;
}

static void change_continue(struct change *c)
{
    struct request rq = {
        .server = c->job.server,
        .conn = c->job.conn,
        .message = c->job.message->message,
        .began_ns = c->job.began_ns,
    };

    kvcobra__reply__init(&rq.reply);
    c->result = change_run_once(c, &rq);
    if (c->result == REQUEST_PENDING)
        return;

    c->reply = rq.reply;
    c->error = rq.error;
    job_end(&c->job); /* frees @c */
}

/* Begins with the changes that wait, until one of them waits for a file. */
static void change_continue_others(struct server *s)
{
    struct change_queue *q = s->changes;
    struct change *c;

    while (!q->current && (c = q->first)) {
        q->first = c->next;
        if (!q->first)
            q->last = NULL;
        change_continue(c);
    }
}

static void change_on_written(struct state_change *files)
{
    struct change *c = (struct change *) ((char *) files - offsetof(struct change, files));
    struct server *s = c->job.server;

    change_continue(c);
    change_continue_others(s);
}

static void change_append(struct change_queue *q, struct change *c)
{
    if (q->last)
        q->last->next = c;
    else
        q->first = c;
    q->last = c;
}

int change_run(struct request *rq, int (*run)(struct request *rq))
{
    struct change_queue *q = rq->server->changes;
    _cleanup_(freep) struct change *c = calloc(1, sizeof(*c));
    int r;

    if (!c)
        return fail(&rq->error, -ENOMEM, "out of memory for a change");

    c->run = run;
    c->files.done = change_on_written;
    c->job.finish = change_finish;
    r = job_begin(&c->job, rq);
    if (r < 0)
        return r;

    if (q->current) {
        change_append(q, take_ptr(c));
        return REQUEST_PENDING;
    }

    r = change_run_once(c, rq);
    if (r == REQUEST_PENDING)
        (void) take_ptr(c);
    else
        job_cancel(&c->job);
    return r;
}

void change_end_all(struct server *s)
{
    state_writer_end_threads(&s->tables->state);
    change_continue_others(s);
}
