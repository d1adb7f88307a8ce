/*
 * The engine of the disk tier where io_uring is forbidden, as most container runtimes do: a pool of threads
 * with pread() and pwrite(). See disk_io.h.
 *
 * An operation that a thread has begun cannot be cancelled; one that waits is reported with -ECANCELED.
 */
#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "base/fd_io.h"
#include "base/worker_thread.h"
#include "daemon/tier/disk_io.h"

/* Half of the operations that the tier has at a time. The threads sleep in the kernel. */
enum { THREADS_MAX = 16 };

struct disk_threads_job {
    struct disk_op *op;
    int64_t moved; /* reported: bytes, or a negative errno */
};

struct disk_threads {
    struct disk_engine_options options;
    pthread_t threads[THREADS_MAX];
    unsigned n_threads;
    int ended_fd; /* eventfd: a report is there */

    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t work;
    bool is_stopping;
    /* [depth] each; an operation is in one of them, or with a thread */
    struct disk_threads_job *waiting, *ended;
    unsigned first, n_waiting, n_ended;
};

/* ---- the threads ---- */

static int64_t disk_threads_move(const struct disk_threads *t, const struct disk_op *op)
{
    uint8_t *data = op->data + op->n_done;
    size_t n = (size_t) (op->bytes - op->n_done);
    off_t offset = (off_t) (op->offset + op->n_done);
    ssize_t moved =
        op->is_write ? pwrite(t->options.fd, data, n, offset) : pread(t->options.fd, data, n, offset);

    return moved < 0 ? -errno : moved;
}

/* The lock is held. */
static void disk_threads_report(struct disk_threads *t, struct disk_op *op, int64_t moved)
{
    const uint64_t one = 1;

    t->ended[t->n_ended++] = (struct disk_threads_job){op, moved};
    (void) fd_write_all(t->ended_fd, &one, sizeof(one)); /* a full counter is readable, too */
}

static void *disk_threads_run(void *arg)
{
    struct disk_threads *t = arg;

    (void) pthread_mutex_lock(&t->lock);
    while (!t->is_stopping) {
        struct disk_op *op;
        int64_t moved;

        if (t->n_waiting == 0) {
            (void) pthread_cond_wait(&t->work, &t->lock);
            continue;
        }

        op = t->waiting[t->first].op;
        t->first = (t->first + 1) % t->options.depth;
        t->n_waiting--;
        (void) pthread_mutex_unlock(&t->lock);
        moved = disk_threads_move(t, op);
        (void) pthread_mutex_lock(&t->lock);
        disk_threads_report(t, op, moved);
    }
    (void) pthread_mutex_unlock(&t->lock);
    return NULL;
}

/* ---- start and end ---- */

static void disk_threads_stop(void *engine)
{
    struct disk_threads *t = engine;

    (void) pthread_mutex_lock(&t->lock);
    t->is_stopping = true;
    (void) pthread_cond_broadcast(&t->work);
    (void) pthread_mutex_unlock(&t->lock);
    for (unsigned i = 0; i < t->n_threads; i++)
        (void) pthread_join(t->threads[i], NULL);
    closep(&t->ended_fd);
    (void) pthread_cond_destroy(&t->work);
    (void) pthread_mutex_destroy(&t->lock);
    free(t->waiting);
    free(t->ended);
    free(t);
}

static void disk_threads_stopp(struct disk_threads **t)
{
    if (*t)
        disk_threads_stop(*t);
}

/* Return: 0; errno of the first thread. */
static int disk_threads_create(struct disk_threads *t)
{
    unsigned n = t->options.depth < THREADS_MAX ? t->options.depth : THREADS_MAX;
    int r = 0;

    while (r == 0 && t->n_threads < n) {
        r = worker_thread_start(&t->threads[t->n_threads], NULL, disk_threads_run, t);
        t->n_threads += r == 0;
    }
    return t->n_threads > 0 ? 0 : r; /* fewer threads are enough */
}

static int disk_threads_start(const struct disk_engine_options *o, void **ret_engine, bool *ret_locked,
                              struct errmsg *e)
{
    _cleanup_(disk_threads_stopp) struct disk_threads *t = calloc(1, sizeof(*t));
    int r;

    if (!t)
        return fail(e, -ENOMEM, "out of memory for the disk tier");

    t->options = *o;
    (void) pthread_mutex_init(&t->lock, NULL);
    (void) pthread_cond_init(&t->work, NULL);
    t->ended_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    t->waiting = calloc(o->depth, sizeof(*t->waiting));
    t->ended = calloc(o->depth, sizeof(*t->ended));
    if (t->ended_fd < 0)
        return fail(e, -errno, "cannot create an eventfd: %s", strerror(errno));
    if (!t->waiting || !t->ended)
        return fail(e, -ENOMEM, "out of memory for the disk tier");

    r = disk_threads_create(t);
    if (r < 0)
        return fail(e, r, "cannot start a thread for the disk tier: %s", strerror(-r));

    *ret_engine = take_ptr(t);
    *ret_locked = false;
    return 0;
}

/* ---- operations ---- */

static int disk_threads_begin(void *engine, struct disk_op *op)
{
    struct disk_threads *t = engine;

    (void) pthread_mutex_lock(&t->lock);
    assert(t->n_waiting < t->options.depth);
    t->waiting[(t->first + t->n_waiting++) % t->options.depth] = (struct disk_threads_job){.op = op};
    (void) pthread_cond_signal(&t->work);
    (void) pthread_mutex_unlock(&t->lock);
    return 0;
}

static void disk_threads_cancel(void *engine, struct disk_op *op)
{
    struct disk_threads *t = engine;
    unsigned kept = 0, n;

    (void) pthread_mutex_lock(&t->lock);
    n = t->n_waiting;
    for (unsigned i = 0; i < n; i++) {
        struct disk_threads_job job = t->waiting[(t->first + i) % t->options.depth];

        if (job.op == op)
            disk_threads_report(t, op, -ECANCELED);
        else
            t->waiting[(t->first + kept++) % t->options.depth] = job;
    }
    t->n_waiting = kept;
    (void) pthread_mutex_unlock(&t->lock);
}

static int disk_threads_wait(void *engine, uint64_t timeout_ms)
{
    struct disk_threads *t = engine;
    struct pollfd p[] = {{.fd = t->options.wake_fd, .events = POLLIN}, {.fd = t->ended_fd, .events = POLLIN}};
    uint64_t count;

    if (poll(p, 2, (int) timeout_ms) < 0)
        return errno == EINTR ? 0 : -errno;
    for (unsigned i = 0; i < 2; i++)
        if (p[i].revents & POLLIN)
            (void) !read(p[i].fd, &count, sizeof(count)); /* no longer readable */
    return 0;
}

static bool disk_threads_next(void *engine, struct disk_op **ret_op, int64_t *ret_moved)
{
    struct disk_threads *t = engine;
    bool any;

    (void) pthread_mutex_lock(&t->lock);
    any = t->n_ended > 0;
    if (any) {
        const struct disk_threads_job *job = &t->ended[--t->n_ended];

        *ret_op = job->op;
        *ret_moved = job->moved;
    }
    (void) pthread_mutex_unlock(&t->lock);
    return any;
}

const struct disk_engine_ops disk_threads_ops = {
    .name = "threads",
    .start = disk_threads_start,
    .stop = disk_threads_stop,
    .begin = disk_threads_begin,
    .cancel = disk_threads_cancel,
    .wait = disk_threads_wait,
    .next = disk_threads_next,
};
