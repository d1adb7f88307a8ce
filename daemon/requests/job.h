/*
 * A request that is set aside while a thread works for it (work.h) or another process does. A handler fills a
 * job, job_start() takes the request over, the thread works on what the job holds, and finish() answers on
 * the loop as the handler would have.
 *
 * Connection and session may end meanwhile: their memory (the session's arena too, which is being read) stays
 * until the last of their jobs is over, and finish() is told that nobody waits. Requests of one connection
 * may overlap: replies carry the request's id.
 */
#pragma once

#include <stdbool.h>

#include "daemon/requests/request.h"
#include "daemon/loop/work.h"

#define JOBS_PER_CONNECTION_MAX 8
#define JOB_TIMEOUT_MS 10000 /* of a request that names none */
#define JOB_TIMEOUT_MS_MAX 600000

struct job { /* first member of what a handler makes; malloc()ed, freed when finish() returned */
    struct work_item work;
    struct server *server;
    struct conn *conn;
    struct session *session;   /* NULL: an operator's */
    Kvcobra__Request *message; /* the request's, until it is answered */
    uint64_t began_ns;
    /*
     * On the loop, once. @rq: as for a handler, to be answered; NULL: nobody is there any more. work.expired
     * says whether the work was done in time. Return: as a handler.
     */
    int (*finish)(struct job *j, struct request *rq);
    /* On the loop, when the threads are through. True: somebody else goes on and ends the job. NULL: nobody.
     */
    bool (*resume_elsewhere)(struct job *j);
};

/*
 * Without a thread: the caller answers later by job_end(), from the loop, once, also when the server ends.
 * @finish is set. Return: REQUEST_PENDING; -EAGAIN with a sentence: the caller has @j still.
 */
int job_begin(struct job *j, struct request *rq);
void job_end(struct job *j);
void job_cancel(
    struct job *j); /* takes job_begin() back: the caller has @j still, and answers as a handler does */

/* A thread goes on with a job of job_begin(), whose it is from then on. @run is set. Return: 0; -EAGAIN with
 * a sentence. */
int job_work(struct job *j, struct errmsg *e);

/* @run, @finish are set; the rest is filled here. Return: REQUEST_PENDING; -EAGAIN with a sentence: the
 * caller has @j still. */
int job_start(struct job *j, struct request *rq);

/* What finish() returns for work that was not done in time. */
int job_expired(struct request *rq);
