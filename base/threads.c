/*
 * Worker threads; see threads.h.
 *
 * A job has a generation. The ticket holds the generation in its upper and the next free item in its lower
 * half, and compare-and-swap on the ticket takes an item: a worker with an older job cannot take an item of a
 * newer one. The caller waits for items, not for workers.
 */
#include "base/threads.h"

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "base/worker_thread.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

enum {
    POLLS = 2000, /* polls of the ticket before sleeping: about 20 microseconds */
    /* room for the frames of kernels and for thread-local data of large programs, which lies on it too; the
     * default is the program's stack limit, which may be unlimited */
    STACK_BYTES = 2 << 20,
};

struct threads_job {
    threads_item run;
    void *ctx;
    uint32_t n_items, generation;
};

struct threads {
    unsigned n; /* with the caller */
    unsigned n_started;
    pthread_t *ids;
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    struct threads_job job;  /* under the lock */
    bool stop;               /* under the lock */
    _Atomic uint64_t ticket; /* generation << 32 | next item */
    _Atomic uint32_t n_done; /* items of the current job */
    _Atomic unsigned next_worker;
};

static void threads_relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Runs items of @job until all are taken. */
static void threads_work_on(struct threads *t, const struct threads_job *job, unsigned worker)
{
    uint64_t ticket = atomic_load_explicit(&t->ticket, memory_order_acquire);

    while (ticket >> 32 == job->generation && (uint32_t) ticket < job->n_items) {
        if (!atomic_compare_exchange_weak_explicit(&t->ticket, &ticket, ticket + 1, memory_order_acq_rel,
                                                   memory_order_acquire))
            continue;

        job->run(job->ctx, (uint32_t) ticket, worker);
        /* release: after its load in threads_run() the caller sees the writes of the item */
        if (atomic_fetch_add_explicit(&t->n_done, 1, memory_order_acq_rel) + 1 == job->n_items) {
            (void) pthread_mutex_lock(&t->lock);
            (void) pthread_cond_signal(&t->done);
            (void) pthread_mutex_unlock(&t->lock);
        }

        ticket = atomic_load_explicit(&t->ticket, memory_order_acquire);
    }
}

static void *threads_worker_main(void *arg)
{
    struct threads *t = arg;
    unsigned worker = 1 + atomic_fetch_add(&t->next_worker, 1);
    uint32_t seen = 0;

    for (;;) {
        struct threads_job job;
        bool stop;

        for (unsigned i = 0;
             i < POLLS && atomic_load_explicit(&t->ticket, memory_order_relaxed) >> 32 == seen; i++)
            threads_relax();
        (void) pthread_mutex_lock(&t->lock);
        while (!t->stop && t->job.generation == seen)
            (void) pthread_cond_wait(&t->work, &t->lock);
        job = t->job;
        stop = t->stop;
        (void) pthread_mutex_unlock(&t->lock);
        if (stop)
            return NULL;

        seen = job.generation;
        threads_work_on(t, &job, worker);
    }
}

static void threads_run_job(struct threads *t, threads_item run, void *ctx, uint32_t n_items)
{
    struct threads_job job;

    (void) pthread_mutex_lock(&t->lock);
    job = t->job =
        (struct threads_job){.run = run, .ctx = ctx, .n_items = n_items, .generation = t->job.generation + 1};
    atomic_store_explicit(&t->n_done, 0, memory_order_relaxed);
    atomic_store_explicit(&t->ticket, (uint64_t) job.generation << 32, memory_order_release);
    (void) pthread_cond_broadcast(&t->work);
    (void) pthread_mutex_unlock(&t->lock);

    threads_work_on(t, &job, 0);
    for (unsigned i = 0; i < POLLS && atomic_load_explicit(&t->n_done, memory_order_acquire) < n_items; i++)
        threads_relax();
    if (atomic_load_explicit(&t->n_done, memory_order_acquire) == n_items)
        return;

    (void) pthread_mutex_lock(&t->lock);
    while (atomic_load_explicit(&t->n_done, memory_order_acquire) < n_items)
        (void) pthread_cond_wait(&t->done, &t->lock);
    (void) pthread_mutex_unlock(&t->lock);
}

void threads_run(struct threads *t, threads_item run, void *ctx, size_t n_items)
{
    if (!t || t->n == 1 || n_items <= 1) {
        for (size_t i = 0; i < n_items; i++)
            run(ctx, i, 0);
        return;
    }

    threads_run_job(t, run, ctx, (uint32_t) n_items);
}

unsigned threads_count(const struct threads *t)
{
    return t ? t->n : 1;
}

/* t->n_started counts the threads that run. */
static int threads_start_workers(struct threads *t, struct errmsg *e)
{
    pthread_attr_t attributes;
    int r = -pthread_attr_init(&attributes);

    if (r == 0) {
        r = -pthread_attr_setstacksize(&attributes, STACK_BYTES);
        while (r == 0 && t->n_started + 1 < t->n) {
            r = worker_thread_start(&t->ids[t->n_started], &attributes, threads_worker_main, t);
            t->n_started += r == 0;
        }
        (void) pthread_attr_destroy(&attributes);
    }
    if (r < 0)
        return fail(e, r, "cannot start worker thread %u of %u: %s", t->n_started + 1, t->n - 1,
                    strerror(-r));

    return 0;
}

unsigned threads_available(void)
{
    cpu_set_t set;
    long n;

    /* fails on machines with more processors than cpu_set_t has bits */
    n = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : sysconf(_SC_NPROCESSORS_ONLN);
    if (n < 1)
        return 1;

    return n > THREADS_MAX ? THREADS_MAX : (unsigned) n;
}

int threads_new(unsigned n, struct threads **ret_threads, struct errmsg *e)
{
    _cleanup_(threads_freep) struct threads *t = NULL;
    int r;

    if (n == 0)
        n = threads_available();
    if (n > THREADS_MAX)
        return fail(e, -EINVAL, "%u threads were requested; the maximum is %d", n, THREADS_MAX);

    t = calloc(1, sizeof(*t));
    if (!t)
        return fail(e, -ENOMEM, "no memory for worker threads");

    t->n = n;
    (void) pthread_mutex_init(&t->lock, NULL);
    (void) pthread_cond_init(&t->work, NULL);
    (void) pthread_cond_init(&t->done, NULL);
    t->ids = calloc(n, sizeof(*t->ids));
    if (!t->ids)
        return fail(e, -ENOMEM, "no memory for worker threads");

    r = threads_start_workers(t, e);
    if (r < 0)
        return r;

    *ret_threads = take_ptr(t);
    return 0;
}

struct threads *threads_free(struct threads *t)
{
    if (!t)
        return NULL;

    (void) pthread_mutex_lock(&t->lock);
    t->stop = true;
    (void) pthread_cond_broadcast(&t->work);
    (void) pthread_mutex_unlock(&t->lock);
    for (unsigned i = 0; i < t->n_started; i++)
        (void) pthread_join(t->ids[i], NULL);
    (void) pthread_cond_destroy(&t->done);
    (void) pthread_cond_destroy(&t->work);
    (void) pthread_mutex_destroy(&t->lock);
    free(t->ids);
    free(t);
    return NULL;
}
