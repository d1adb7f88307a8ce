/*
 * See disk_thread.h. The thread takes requests, starts operations, concludes them, and opens and closes the
 * folder.
 */
#include "daemon/tier/disk_thread.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/errmsg.h"
#include "base/fd_io.h"
#include "daemon/loop/work.h"
#include "daemon/tier/disk_open.h"
#include "daemon/tier/disk_queue.h"
#include "daemon/tier/disk_state.h"

enum {
    WAIT_MS = 1000,       /* of one wait at most */
    RETRY_MS_MAX = 60000, /* longest pause before a tier that is off is opened again */
};

void disk_thread_wake(struct disk *d)
{
    const uint64_t one = 1;

    (void) fd_write_all(d->wake_fd, &one, sizeof(one)); /* a full counter is readable, too */
}

/* ---- states ---- */

/* Copies what the thread alone counts. Called with the lock held. */
static void disk_thread_copy_counts(struct disk *d)
{
    struct disk_status *s = &d->status;

    s->n_in_flight = d->n_running;
    s->n_pages = d->map.n_pages;
    s->n_segments = d->map.n_segments;
    s->n_segments_used = d->map.n_used;
    s->n_segments_max = d->map.n_segments_max;
}

/* The loop learns of it by the descriptor of ended requests. */
static void disk_thread_set_state(struct disk *d, enum tier_state state, const char *sentence)
{
    const uint64_t one = 1;

    (void) pthread_mutex_lock(&d->lock);
    disk_thread_copy_counts(d);
    d->status.state = state;
    (void) snprintf(d->status.sentence, sizeof(d->status.sentence), "%s", sentence);
    d->has_changed = true;
    (void) fd_write_all(d->ended_fd, &one, sizeof(one)); /* a full counter is readable, too */
    (void) pthread_mutex_unlock(&d->lock);
}

/* The tier goes off. Its folder is closed when the last operation has come back. */
static void disk_thread_fail(struct disk *d, const struct errmsg *why)
{
    if (d->status.state == TIER_OFF) /* the first reason stays */
        return;

    disk_thread_set_state(d, TIER_OFF, why->text);
    disk_filters_end(&d->filters);
    (void) disk_queue_expire(d, UINT64_MAX, -ENODEV);
    d->retry_at_ms = d->options.retry_ms > 0 ? work_clock_ms() + d->pause_ms : UINT64_MAX;
    d->pause_ms = d->pause_ms < RETRY_MS_MAX / 2 ? 2 * d->pause_ms : RETRY_MS_MAX;
}

static void disk_thread_open(struct disk *d)
{
    struct errmsg e = {""};

    (void) pthread_mutex_lock(&d->lock);
    d->status.state = TIER_OPENING; /* why the tier was off stays until it is ready */
    (void) pthread_mutex_unlock(&d->lock);
    if (disk_open(d, &e) < 0) {
        disk_thread_fail(d, &e);
        return;
    }

    d->options.folder.has_device = true;
    d->options.folder.device = d->folder.identity.device;
    d->checked_ms = work_clock_ms();
    disk_thread_set_state(d, TIER_READY, d->folder.note.text);
}

/* Closes a tier that is off, and opens it again if that was demanded or its time has come. */
static void disk_thread_recover(struct disk *d)
{
    bool opens;

    if (d->status.state != TIER_OFF || d->n_transfers > 0)
        return;

    disk_close(d);
    (void) pthread_mutex_lock(&d->lock);
    opens = !d->stopping && (d->resumes || work_clock_ms() >= d->retry_at_ms);
    if (d->resumes) /* an operator knows which file system is there */
        d->options.folder.has_device = false;
    d->resumes = false;
    (void) pthread_mutex_unlock(&d->lock);
    if (opens)
        disk_thread_open(d);
}

/* ---- transfers ---- */

/* Return: whether the next request can be served. */
static bool disk_thread_begin(struct disk *d, struct disk_transfer *t)
{
    struct errmsg e = {""};
    int r = disk_serve_begin(d, t, &e);

    d->blocked = r == -EAGAIN ? t : NULL;
    if (r < 0 && r != -EAGAIN)
        disk_thread_fail(d, &e);
    return r == 0;
}

static void disk_thread_serve(struct disk *d)
{
    uint32_t n_writes_max = d->options.depth > 1 ? d->options.depth / 2 : 1;
    struct disk_transfer *t;

    if (d->status.state == TIER_READY)
        disk_open_make_filters(d);
    if (d->status.state != TIER_READY || (d->blocked && !disk_thread_begin(d, d->blocked)))
        return;

    while (d->n_transfers < d->options.depth && (t = disk_queue_take(d, false)))
        if (!disk_thread_begin(d, t))
            break;
    while (d->status.state == TIER_READY && d->n_transfers < d->options.depth &&
           d->n_writing < n_writes_max && (t = disk_queue_take(d, true)))
        (void) disk_thread_begin(d, t);
}

static void disk_thread_conclude(struct disk *d)
{
    struct disk_op *op;

    while (d->io.ops && (op = disk_io_take(&d->io))) {
        struct errmsg e = {""};

        if (disk_serve_conclude(d, (struct disk_transfer *) op, &e) < 0)
            disk_thread_fail(d, &e);
    }
}

static bool disk_thread_has_request(struct disk *d, const struct disk_transfer *t)
{
    bool has;

    (void) pthread_mutex_lock(&d->lock);
    has = t->request != NULL;
    (void) pthread_mutex_unlock(&d->lock);
    return has;
}

/* Operations whose request has ended are not worth their time. */
static void disk_thread_cancel_ended(struct disk *d)
{
    for (uint32_t i = 0; i < d->options.depth && d->n_running > 0; i++) {
        struct disk_transfer *t = &d->transfers[i];

        if (!t->is_running || t->is_cancelled || disk_thread_has_request(d, t))
            continue;
        t->is_cancelled = true;
        disk_io_cancel(&d->io, &t->op);
    }
}

/* A read that waited for a buffer is dropped with its request. */
static void disk_thread_end_blocked(struct disk *d)
{
    struct disk_transfer *t = d->blocked;

    if (!t || disk_thread_has_request(d, t))
        return;
    d->blocked = NULL;
    disk_queue_end(d, t, -ETIMEDOUT);
}

/* ---- time ---- */

/* Return: 0; -EIO with a sentence: an operation takes too long. */
static int disk_thread_check_stall(struct disk *d, uint64_t now_ms, struct errmsg *e)
{
    for (uint32_t i = 0; i < d->options.depth && d->n_running > 0; i++) {
        const struct disk_transfer *t = &d->transfers[i];

        if (t->is_running && now_ms - t->started_ms >= d->options.stall_ms)
            return fail(e, -EIO, "the disk below %s did not answer for %" PRIu64 " ms", d->path,
                        now_ms - t->started_ms);
    }
    return 0;
}

static void disk_thread_check(struct disk *d)
{
    uint64_t now_ms = work_clock_ms();
    struct errmsg e = {""};
    int r;

    if (d->status.state != TIER_READY)
        return;

    r = disk_thread_check_stall(d, now_ms, &e);
    if (r == 0 && now_ms - d->checked_ms >= d->options.check_ms) {
        d->checked_ms = now_ms;
        r = disk_folder_check(&d->folder, &e);
        if (r == 0) /* it works: after the next failure it is tried again soon */
            d->pause_ms = d->options.retry_ms;
    }
    if (r < 0)
        disk_thread_fail(d, &e);
}

static uint64_t disk_thread_wait_ms(const struct disk *d)
{
    uint64_t now_ms = work_clock_ms(), wait_ms = WAIT_MS;

    if (d->status.state == TIER_READY && d->options.check_ms < wait_ms)
        wait_ms = d->options.check_ms;
    if (d->status.state == TIER_OFF && d->n_transfers == 0 && d->retry_at_ms < now_ms + wait_ms)
        wait_ms = d->retry_at_ms > now_ms ? d->retry_at_ms - now_ms : 0;
    return wait_ms;
}

static void disk_thread_wait(struct disk *d)
{
    struct pollfd p = {.fd = d->wake_fd, .events = POLLIN};
    uint64_t count, wait_ms = disk_thread_wait_ms(d);
    struct errmsg e = {""};
    int r = d->io.ops ? disk_io_wait(&d->io, wait_ms) : 0;

    if (r < 0) {
        (void) fail(&e, r, "reads and writes of the disk tier in %s failed: %s", d->path, strerror(-r));
        disk_thread_fail(d, &e);
    }
    /* without an engine; or with one that does not wait, though operations may still be in flight */
    if ((!d->io.ops || r < 0) && poll(&p, 1, (int) wait_ms) > 0)
        (void) !read(d->wake_fd, &count, sizeof(count)); /* no longer readable */
}

/* ---- the thread ---- */

/* Return: whether the thread continues. */
static bool disk_thread_report(struct disk *d)
{
    bool continues;

    (void) pthread_mutex_lock(&d->lock);
    disk_thread_copy_counts(d);
    continues = !d->stopping;
    (void) pthread_mutex_unlock(&d->lock);
    return continues;
}

static void disk_thread_pass(struct disk *d)
{
    disk_thread_wait(d);
    disk_thread_conclude(d);
    disk_thread_end_blocked(d);
    disk_thread_cancel_ended(d);
}

void disk_thread_run(struct disk *d)
{
    const struct errmsg end = {"the daemon ends"};

    d->pause_ms = d->options.retry_ms;
    disk_thread_open(d);
    while (disk_thread_report(d)) {
        disk_thread_pass(d);
        disk_thread_check(d);
        disk_thread_recover(d);
        disk_thread_serve(d);
    }

    disk_thread_fail(d, &end);
    disk_thread_end_blocked(d);
    disk_thread_cancel_ended(d);
    while (d->n_transfers > 0)
        disk_thread_pass(d);
    disk_close(d);
}
