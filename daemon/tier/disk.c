/* See disk.h. This file is the loop's side; disk_thread.c has the thread. */
#include "daemon/tier/disk.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/worker_thread.h"
#include "daemon/loop/ev.h"
#include "daemon/tier/disk_queue.h"
#include "daemon/tier/disk_state.h"
#include "daemon/tier/disk_thread.h"

enum {
    DEPTH_MAX = 4096,
    SEGMENTS_WANTED = 64,
    FILTER_KEEP_MS = 30000, /* of a tenant whose last session ended: the next one may come soon */
};

/* Return: whether the state changed since the last call. */
static bool disk_take_changed(struct disk *d)
{
    bool has_changed;

    (void) pthread_mutex_lock(&d->lock);
    has_changed = d->has_changed;
    d->has_changed = false;
    (void) pthread_mutex_unlock(&d->lock);
    return has_changed;
}

/* One request per event of the loop, which serves others in between. */
static void disk_on_ended(void *ctx)
{
    struct disk *d = ctx;
    struct tier_request *r = disk_queue_take_ended(d);

    if (d->options.changed && disk_take_changed(d))
        d->options.changed(d->options.ctx);
    if (r)
        r->done(r);
}

/* ---- start and end ---- */

/* Whole segments are discarded, so a small tier has small ones. */
static uint64_t disk_choose_segment_bytes(uint64_t bytes)
{
    uint64_t segment = DISK_SEGMENT_BYTES_MAX;

    while (segment > DISK_SEGMENT_BYTES_CHOSEN_MIN && bytes / segment < SEGMENTS_WANTED)
        segment /= 2;
    return segment;
}

static int disk_check_options(const struct disk_options *o, struct errmsg *e)
{
    uint64_t segment = o->folder.segment_bytes;

    if (o->depth == 0 || o->depth > DEPTH_MAX || o->n_requests_max == 0)
        return fail(e, -EINVAL, "a disk tier has 1 to %d operations at a time, and 1 request or more",
                    DEPTH_MAX);
    if (segment != 0 && (segment < DISK_SEGMENT_BYTES_MIN || segment > DISK_SEGMENT_BYTES_MAX ||
                         (segment & (segment - 1)) != 0))
        return fail(e, -EINVAL, "segments of a disk tier have a power of two of bytes, not %" PRIu64,
                    segment);
    return 0;
}

static void disk_destroy(struct disk *d)
{
    d->watch = ev_source_free(d->watch);
    closep(&d->wake_fd);
    closep(&d->ended_fd);
    fair_deinit(&d->waiting);
    fair_deinit(&d->writes);
    fair_deinit(&d->ended);
    disk_filters_deinit(&d->filters);
    disk_removed_deinit(&d->removed);
    disk_buffers_deinit(&d->buffers);
    (void) pthread_cond_destroy(&d->end);
    (void) pthread_mutex_destroy(&d->lock);
    free(d->transfers);
    free(d->path);
    free(d);
}

static void disk_destroyp(struct disk **d)
{
    if (*d)
        disk_destroy(*d);
}

static int disk_make(const struct disk_options *o, struct disk **ret, struct errmsg *e)
{
    _cleanup_(disk_destroyp) struct disk *d = calloc(1, sizeof(*d));
    pthread_condattr_t attr;
    int r;

    if (!d)
        return fail(e, -ENOMEM, "out of memory for the disk tier");

    d->options = *o;
    d->wake_fd = d->ended_fd = -1;
    (void) pthread_mutex_init(&d->lock, NULL);
    (void) pthread_condattr_init(&attr);
    (void) pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    (void) pthread_cond_init(&d->end, &attr);
    (void) pthread_condattr_destroy(&attr);
    disk_filters_init(&d->filters, o->n_filters_max);
    disk_removed_init(&d->removed);
    r = disk_buffers_init(&d->buffers, o->buffer_bytes, e);
    if (r < 0)
        return r;

    d->path = strdup(o->folder.path);
    d->transfers = calloc(o->depth, sizeof(*d->transfers));
    if (!d->path || !d->transfers)
        return fail(e, -ENOMEM, "out of memory for the disk tier in %s", o->folder.path);

    memcpy(d->fleet, o->folder.fleet, sizeof(d->fleet));
    d->options.folder.path = d->path;
    d->options.folder.fleet = d->fleet;
    if (o->folder.segment_bytes == 0)
        d->options.folder.segment_bytes = disk_choose_segment_bytes(o->folder.bytes);
    d->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    d->ended_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (d->wake_fd < 0 || d->ended_fd < 0)
        return fail(e, -errno, "cannot create an eventfd: %s", strerror(errno));

    *ret = take_ptr(d);
    return 0;
}

/* A thread that disk_free() left behind frees the memory that it used. */
static void *disk_main(void *arg)
{
    struct disk *d = arg;
    bool left_behind;

    disk_thread_run(d);
    (void) pthread_mutex_lock(&d->lock);
    d->has_ended = true;
    (void) pthread_cond_signal(&d->end);
    left_behind = d->is_left_behind;
    (void) pthread_mutex_unlock(&d->lock);
    if (left_behind)
        disk_destroy(d);
    return NULL;
}

int disk_new(struct ev *ev, const struct disk_options *options, struct disk **ret, struct errmsg *e)
{
    _cleanup_(disk_destroyp) struct disk *d = NULL;
    int r = disk_check_options(options, e);

    if (r == 0)
        r = disk_make(options, &d, e);
    if (r < 0)
        return r;

    r = ev_watch(ev, d->ended_fd, disk_on_ended, d, &d->watch);
    if (r == 0)
        r = worker_thread_start(&d->thread, NULL, disk_main, d);
    if (r < 0)
        return fail(e, r, "cannot start the thread of the disk tier in %s: %s", d->path, strerror(-r));

    *ret = take_ptr(d);
    return 0;
}

/* Return: whether the thread has ended. */
static bool disk_join(struct disk *d, uint64_t wait_ms)
{
    struct timespec until;
    bool has_ended;

    (void) clock_gettime(CLOCK_MONOTONIC, &until); /* cannot fail for this clock */
    until.tv_sec += (time_t) (wait_ms / 1000);
    until.tv_nsec += (long) (wait_ms % 1000 * 1000000);
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    (void) pthread_mutex_lock(&d->lock);
    while (!d->has_ended && pthread_cond_timedwait(&d->end, &d->lock, &until) == 0)
        ;
    has_ended = d->has_ended;
    d->is_left_behind = !has_ended;
    (void) pthread_mutex_unlock(&d->lock);
    if (has_ended)
        (void) pthread_join(d->thread, NULL);
    return has_ended;
}

static void disk_end_requests(struct disk *d)
{
    (void) disk_queue_expire(d, UINT64_MAX, -ENODEV);
    for (struct tier_request *r; (r = disk_queue_take_ended(d));)
        r->done(r);
}

struct disk *disk_free(struct disk *d, uint64_t wait_ms)
{
    pthread_t thread;

    if (!d)
        return NULL;

    thread = d->thread; /* one that is left behind frees @d */
    (void) pthread_mutex_lock(&d->lock);
    d->stopping = true;
    (void) pthread_mutex_unlock(&d->lock);
    disk_thread_wake(d);
    disk_end_requests(d); /* the thread keeps their buffers only */
    d->watch = ev_source_free(d->watch);
    if (disk_join(d, wait_ms))
        disk_destroy(d);
    else
        (void) pthread_detach(thread);
    return NULL;
}

void disk_status(struct disk *d, struct disk_status *ret)
{
    (void) pthread_mutex_lock(&d->lock);
    *ret = d->status;
    (void) pthread_mutex_unlock(&d->lock);
}

/* ---- the interface of a tier ---- */

static void disk_tier_free(void *tier, uint64_t wait_ms)
{
    (void) disk_free(tier, wait_ms);
}

static void disk_tier_status(void *tier, struct tier_status *ret)
{
    struct disk *d = tier;

    (void) pthread_mutex_lock(&d->lock);
    *ret = (struct tier_status){.state = d->status.state,
                                .n_openings = d->status.n_openings,
                                .has_room = d->status.n_segments_used < d->status.n_segments_max};
    (void) pthread_mutex_unlock(&d->lock);
}

static int disk_tier_resume(void *tier)
{
    struct disk *d = tier;
    int r = 0;

    (void) pthread_mutex_lock(&d->lock);
    if (d->status.state == TIER_OFF)
        d->resumes = true;
    else
        r = -EALREADY;
    (void) pthread_mutex_unlock(&d->lock);
    if (r == 0)
        disk_thread_wake(d);
    return r;
}

static void disk_tier_expire(void *tier, uint64_t now_ms)
{
    struct disk *d = tier;

    if (disk_queue_expire(d, now_ms, -ETIMEDOUT))
        disk_thread_wake(d); /* to cancel operations, and because a read may wait for a buffer */
    if (now_ms > FILTER_KEEP_MS)
        disk_filters_expire(&d->filters, now_ms - FILTER_KEEP_MS);
}

static int disk_tier_submit(void *tier, struct tier_share *s, struct tier_request *r)
{
    struct disk *d = tier;
    int err = disk_queue_put(d, s, r);

    if (err == 0)
        disk_thread_wake(d);
    return err;
}

static uint8_t *disk_tier_take(void *tier, uint64_t page_bytes)
{
    struct disk *d = tier;
    uint64_t slot_bytes = 0;

    (void) pthread_mutex_lock(&d->lock);
    /* a buffer is as long as the slot at the largest alignment */
    if (d->status.state == TIER_READY)
        slot_bytes = disk_slot_bytes(page_bytes, DISK_BUFFER_UNIT_BYTES, DISK_BUFFERS_BYTES_MAX);
    (void) pthread_mutex_unlock(&d->lock);
    return disk_buffers_take(&d->buffers, slot_bytes, true);
}

static void disk_tier_give_back(void *tier, uint8_t *data)
{
    struct disk *d = tier;

    disk_buffers_give_back(&d->buffers, data);
    disk_thread_wake(d); /* a read may wait for a buffer */
}

static bool disk_tier_fits(void *tier, uint64_t page_bytes)
{
    struct disk *d = tier;
    uint64_t bytes = disk_slot_bytes(page_bytes, DISK_BUFFER_UNIT_BYTES, DISK_BUFFERS_BYTES_MAX);

    return bytes > 0 && bytes <= disk_buffers_bytes(&d->buffers) / 2;
}

static bool disk_tier_has(void *tier, const char *tenant, const struct chunk_key *key)
{
    return disk_filters_has(&((struct disk *) tier)->filters, tenant, key);
}

static struct tier_removed *disk_tier_take_removed(void *tier, bool *ret_is_incomplete)
{
    return disk_removed_take(&((struct disk *) tier)->removed, ret_is_incomplete);
}

static uint64_t disk_tier_filter(void *tier, const char *tenant, bool wants, uint64_t now_ms,
                                 bool *ret_is_unknown)
{
    struct disk *d = tier;

    if (wants && disk_filters_want(&d->filters, tenant, now_ms))
        disk_thread_wake(d);
    *ret_is_unknown = disk_filters_is_unknown(&d->filters, tenant);
    return disk_filters_object(&d->filters, tenant);
}

static int disk_tier_open_filter(void *tier, const char *tenant, int *ret_fd, size_t *ret_bytes,
                                 uint64_t *ret_object)
{
    return disk_filters_open(&((struct disk *) tier)->filters, tenant, ret_fd, ret_bytes, ret_object);
}

const struct tier_ops disk_tier_ops = {
    .name = "disk",
    .free = disk_tier_free,
    .status = disk_tier_status,
    .resume = disk_tier_resume,
    .expire = disk_tier_expire,
    .submit = disk_tier_submit,
    .take = disk_tier_take,
    .give_back = disk_tier_give_back,
    .fits = disk_tier_fits,
    .has = disk_tier_has,
    .take_removed = disk_tier_take_removed,
    .filter = disk_tier_filter,
    .open_filter = disk_tier_open_filter,
};
