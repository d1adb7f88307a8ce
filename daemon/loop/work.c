/* See work.h. */
#include "daemon/loop/work.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "base/fd_io.h"
#include "base/worker_thread.h"
#include "daemon/loop/ev.h"
#include "daemon/loop/metrics.h"

struct work {
    pthread_mutex_t lock;
    pthread_cond_t wanted;            /* an item waits, or stopping */
    struct fair_queue waiting, ended; /* ended: for the loop to take */
    uint32_t n_items, n_items_max, n_waiting;
    uint64_t n_done, n_refused, n_expired;
    bool stopping;
    int event_fd; /* readable: an item ended */
    struct ev_source *watch;
    uint32_t n_threads;
    pthread_t threads[];
};

uint64_t work_clock_ms(void)
{
    struct timespec t;

    (void) clock_gettime(CLOCK_MONOTONIC, &t); /* cannot fail for this clock */
    return (uint64_t) t.tv_sec * 1000 + (uint64_t) t.tv_nsec / 1000000;
}

/* ---- threads ---- */

/* Called with the lock held; it is released while the slice runs. */
static void work_do_slice(struct work *w, struct work_item *i)
{
    const uint64_t one = 1;
    uint64_t began;
    bool more = true;

    (void) pthread_mutex_unlock(&w->lock);
    began = metrics_now_ns();
    if (work_clock_ms() >= i->deadline_ms)
        i->expired = true;
    else
        more = i->run(i);
    (void) pthread_mutex_lock(&w->lock);
    fair_charge(&w->waiting, &i->share->waiting, metrics_now_ns() - began);
    if (more && !i->expired) {
        fair_put(&w->waiting, &i->share->waiting, &i->place);
        w->n_waiting++;
        return;
    }

    if (fair_is_empty(&w->ended))
        (void) fd_write_all(w->event_fd, &one, sizeof(one)); /* a full counter is readable, too */
    fair_put(&w->ended, &i->share->ended, &i->place);
}

static void *work_thread_main(void *arg)
{
    struct work *w = arg;

    (void) pthread_mutex_lock(&w->lock);
    while (!w->stopping) {
        struct work_item *i = (struct work_item *) fair_take(&w->waiting);

        if (!i) {
            (void) pthread_cond_wait(&w->wanted, &w->lock);
            continue;
        }

        w->n_waiting--;
        work_do_slice(w, i);
    }

    (void) pthread_mutex_unlock(&w->lock);
    return NULL;
}

static int work_start_threads(struct work *w, uint32_t n)
{
    int r = 0;

    while (r == 0 && w->n_threads < n) {
        r = worker_thread_start(&w->threads[w->n_threads], NULL, work_thread_main, w);
        w->n_threads += r == 0;
    }
    return r;
}

/* ---- event loop ---- */

/* Called with the lock held. */
static void work_leave(struct work *w, struct work_share *s)
{
    w->n_items--;
    s->n_items--;
    (void) fair_leave(&w->waiting, &s->waiting);
    (void) fair_leave(&w->ended, &s->ended);
}

static void work_finish(struct work *w, struct work_item *i)
{
    (void) pthread_mutex_lock(&w->lock);
    work_leave(w, i->share);
    w->n_done += !i->expired;
    w->n_expired += i->expired;
    (void) pthread_mutex_unlock(&w->lock);
    i->done(i);
}

/* Shares take turns by number of items: done() may free the share, so its time cannot be added. */
static struct work_item *work_take_ended(struct work *w)
{
    struct work_item *i;
    uint64_t count;

    (void) pthread_mutex_lock(&w->lock);
    i = (struct work_item *) fair_take(&w->ended);
    if (i)
        fair_charge(&w->ended, &i->share->ended, 1);
    if (fair_is_empty(&w->ended))
        (void) !read(w->event_fd, &count, sizeof(count)); /* no longer readable */
    (void) pthread_mutex_unlock(&w->lock);
    return i;
}

/* One item per event of the loop, which serves others in between. */
static void work_on_ended(void *ctx)
{
    struct work *w = ctx;
    struct work_item *i = work_take_ended(w);

    if (i)
        work_finish(w, i);
}

/* Called with the lock held. */
static int work_enter(struct work *w, struct work_share *s)
{
    int r;

    if (s->n_items >= w->n_items_max - w->n_items)
        return -EAGAIN;

    r = fair_join(&w->waiting, &s->waiting);
    if (r < 0)
        return r;

    r = fair_join(&w->ended, &s->ended);
    if (r < 0) {
        (void) fair_leave(&w->waiting, &s->waiting);
        return r;
    }

    s->n_items++;
    w->n_items++;
    return 0;
}

int work_submit(struct work *w, struct work_share *s, struct work_item *i)
{
    int r;

    i->expired = false;
    i->share = s;
    i->place.in = NULL;
    (void) pthread_mutex_lock(&w->lock);
    r = work_enter(w, s);
    if (r < 0) {
        w->n_refused++;
    } else {
        w->n_waiting++;
        fair_put(&w->waiting, &s->waiting, &i->place);
        (void) pthread_cond_signal(&w->wanted);
    }

    (void) pthread_mutex_unlock(&w->lock);
    return r;
}

/* Removes the waiting items with a deadline up to @now_ms from the queue, and links them. */
static struct work_item *work_take_late(struct work *w, uint64_t now_ms)
{
    struct work_item *late = NULL, **end = &late;

    (void) pthread_mutex_lock(&w->lock);
    for (uint32_t k = 0; k < w->waiting.n; k++) {
        for (struct fair_item *p = w->waiting.heap[k]->first; p; p = p->next) {
            struct work_item *i = (struct work_item *) p;

            if (i->deadline_ms > now_ms)
                continue;
            i->next_late = NULL;
            *end = i;
            end = &i->next_late;
        }
    }

    for (struct work_item *i = late; i; i = i->next_late) {
        fair_remove(&w->waiting, &i->place);
        w->n_waiting--;
    }
    (void) pthread_mutex_unlock(&w->lock);
    return late;
}

void work_expire(struct work *w, uint64_t now_ms)
{
    for (struct work_item *i = work_take_late(w, now_ms), *next; i; i = next) {
        next = i->next_late;
        i->expired = true;
        work_finish(w, i);
    }
}

void work_metrics(struct work *w, struct work_metrics *ret)
{
    (void) pthread_mutex_lock(&w->lock);
    *ret = (struct work_metrics){
        .n_threads = w->n_threads,
        .n_waiting = w->n_waiting,
        .n_done = w->n_done,
        .n_refused = w->n_refused,
        .n_expired = w->n_expired,
    };
    (void) pthread_mutex_unlock(&w->lock);
}

/* ---- start and end ---- */

static void work_freep(struct work **w)
{
    *w = work_free(*w);
}

int work_new(struct ev *ev, uint32_t n_threads, uint32_t n_items_max, struct work **ret, struct errmsg *e)
{
    _cleanup_(work_freep) struct work *w = calloc(1, sizeof(*w) + n_threads * sizeof(pthread_t));
    int r;

    if (!w)
        return fail(e, -ENOMEM, "out of memory for %u threads", n_threads);

    (void) pthread_mutex_init(&w->lock, NULL);
    (void) pthread_cond_init(&w->wanted, NULL);
    w->n_items_max = n_items_max;
    w->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (w->event_fd < 0)
        return fail(e, -errno, "cannot create an eventfd: %s", strerror(errno));

    r = ev_watch(ev, w->event_fd, work_on_ended, w, &w->watch);
    if (r == 0)
        r = work_start_threads(w, n_threads);
    if (r < 0)
        return fail(e, r, "cannot start %u threads: %s", n_threads, strerror(-r));

    *ret = take_ptr(w);
    return 0;
}

struct work *work_free(struct work *w)
{
    if (!w)
        return NULL;

    (void) pthread_mutex_lock(&w->lock);
    w->stopping = true;
    (void) pthread_cond_broadcast(&w->wanted);
    (void) pthread_mutex_unlock(&w->lock);
    for (uint32_t i = 0; i < w->n_threads; i++)
        (void) pthread_join(w->threads[i], NULL);
    for (struct work_item *i; (i = work_take_ended(w));)
        work_finish(w, i);
    work_expire(w, UINT64_MAX);
    fair_deinit(&w->waiting);
    fair_deinit(&w->ended);
    w->watch = ev_source_free(w->watch);
    closep(&w->event_fd);
    (void) pthread_cond_destroy(&w->wanted);
    (void) pthread_mutex_destroy(&w->lock);
    free(w);
    return NULL;
}
