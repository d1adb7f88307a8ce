/*
 * A request that a thread (work.h) or another process works on. A handler fills a job, job_start() takes the
 * request over, the thread works on what the job holds, and finish() answers on the loop as a handler does.
 *
 * The job keeps an exact copy of the message. The bytes of job and copy are charged to the account, settings
 * waiting-bytes and waiting-bytes-per-tenant. Operators are not charged: their connections are few.
 *
 * Connection and session may end meanwhile: their memory (also the session's arena, which is being read)
 * stays until the last of their jobs is done, and finish() gets no request. Requests of one connection may
 * overlap: replies carry the request's id.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/loop/work.h"
#include "daemon/requests/request.h"

#define JOBS_PER_CONNECTION_MAX 8
#define JOB_TIMEOUT_MS 10000 /* of a request that names none */
#define JOB_TIMEOUT_MS_MAX 600000

/* What a request said, while jobs keep it. A job that takes a request over from another shares it. */
struct job_message {
    uint32_t n_refs;
    uint64_t bytes;                  /* of this block */
    const Kvcobra__Request *message; /* in this block */
    _Alignas(max_align_t) uint8_t block[];
};

struct job { /* first member of a handler's job; malloc()ed, freed after finish() returned */
    struct work_item work;
    struct server *server;
    struct conn *conn;
    struct session *session;     /* NULL: an operator's */
    struct job_message *message; /* the request's, until it is answered */
    uint64_t began_ns;
    struct request_steps steps; /* the request's */
    /* Set by handlers: what the job keeps apart from itself, in bytes. */
    size_t extra_bytes;
    uint64_t bytes; /* what its tenant is charged */
    /*
     * Called on the loop, once. @rq: the request to answer; NULL: its client is gone. work.expired: the work
     * was not done in time. Return: as a handler.
     */
    int (*finish)(struct job *j, struct request *rq);
    /*
     * Called on the loop when the threads are done. True: the job continues elsewhere, and job_end() is
     * called later. NULL: the job has no such step.
     */
    bool (*resume_elsewhere)(struct job *j);
};

/*
 * Begins a job without a thread. The caller answers later by job_end(), on the loop, once, also when the
 * server ends. @finish is set. Return: REQUEST_PENDING; -EAGAIN: the connection has too many jobs, or the
 * requests that wait keep too much memory; -EDQUOT: those of the tenant do; -ENOMEM. Errors have a sentence,
 * and the caller still owns @j.
 */
int job_begin(struct job *j, struct request *rq);
void job_end(struct job *j);
/* The end of the request's timeout_ms, counted from @from_ms. CLOCK_MONOTONIC. */
uint64_t job_deadline_ms(const struct job *j, uint64_t from_ms);
/* Undoes job_begin(): the caller owns @j again, and answers as a handler does. */
void job_cancel(struct job *j);

/*
 * Gives a job of job_begin() to a thread, which owns the job from then on. @run is set. Return: 0; -EAGAIN
 * with a sentence.
 */
int job_work(struct job *j, struct errmsg *e);

/*
 * job_begin() and job_work(). @run and @finish are set. Return: REQUEST_PENDING; errors of both, with a
 * sentence: the caller still owns @j.
 */
int job_start(struct job *j, struct request *rq);

/* What finish() returns for work that was not done in time: -ETIMEDOUT. */
int job_expired(struct request *rq);
