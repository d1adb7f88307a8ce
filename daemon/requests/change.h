/*
 * Operators' requests that change the files of the state folder. A thread writes the files (state_writer.h),
 * so the handler runs once for each file, and once more; in between it has undone what it did. The reply
 * waits for the last run. One change runs at a time; others wait in the order of their arrival.
 */
#pragma once

struct change;
struct request;
struct server;

struct change_queue {
    struct change *current;      /* whose file a thread writes */
    struct change *first, *last; /* that wait for it */
};

/*
 * Runs the handler @run, which uses only what a job (job.h) has of a request.
 *
 * Return: that of @run; REQUEST_PENDING; -EAGAIN: too many requests of the connection wait; -ENOMEM; both
 * with a sentence.
 */
int change_run(struct request *rq, int (*run)(struct request *rq));

/* At the end, after work_free(): writes what waits, and answers. */
void change_end_all(struct server *s);
