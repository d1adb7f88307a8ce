/*
 * Requests that need a new extent of the host's pool while none is ready (host_extents.h). They wait in one
 * queue, are tried again in their order when an extent was made or could not be made, and get ETIMEDOUT at
 * their deadline. The queue has the same maximum as that of the threads, setting work-queue, and leaves room
 * for tenants with few requests in it. A request that waits is a job (job.h), so a connection has at most
 * JOBS_PER_CONNECTION_MAX of them.
 */
#pragma once

#include <stdint.h>

struct extent_wait_job;
struct request;
struct server;

struct extent_wait_queue {
    struct extent_wait_job *first, *last;
    uint32_t n;
};

/*
 * The step that needs the extent is tried again later (request_steps.h). It has undone what it did, and is
 * not in rq->steps.done. Return: REQUEST_PENDING; -EAGAIN with a sentence: the connection has too many jobs,
 * or the queue is full; -ENOMEM.
 */
int extent_wait_begin(struct request *rq);

/* host_extents_owner.changed; @ctx: the server. */
void extent_wait_retry(void *ctx);

/* At each tick: answers the requests whose deadline passed. At the end, with UINT64_MAX: all. */
void extent_wait_expire(struct server *s, uint64_t now_ms);
