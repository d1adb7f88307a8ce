/*
 * The event loop: epoll, the timer, sources and the order in which they are served. What streams and
 * listeners do is in ev_stream.c.
 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/core_file.h"
#include "base/errmsg.h"
#include "daemon/loop/closer.h"
#include "daemon/loop/ev_internal.h"
#include "daemon/loop/metrics.h"

/*
 * How long sources are served before the kernel is asked again. A connection that becomes ready waits that
 * long at most until it is known.
 */
enum {
    SERVE_NS = 500000,
    WAIT_MS_MAX = 1000000, /* fits an int */
};

/*
 * Called after the kernel's wait and before any callback. Otherwise events after a long sleep, and deadlines
 * counted from them, would have the time at which the sleep began.
 */
static void ev_read_clock(struct ev *ev)
{
    struct timespec t;

    (void) clock_gettime(CLOCK_MONOTONIC, &t); /* cannot fail for this clock */
    ev->now_ms = (uint64_t) t.tv_sec * 1000 + (uint64_t) t.tv_nsec / 1000000;
}

int ev_new(struct ev **ret_ev, struct errmsg *e)
{
    _cleanup_(ev_freep) struct ev *ev = calloc(1, sizeof(*ev));

    if (ev)
        ev->epoll_fd = -1;
    if (!ev || closer_new(&ev->closer) < 0)
        return fail(e, -ENOMEM, "out of memory while starting the event loop");
    core_file_exclude(ev->packet, sizeof(ev->packet)); /* clients send vectors */

    ev->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (ev->epoll_fd < 0)
        return fail(e, -errno, "cannot create an epoll instance: %s", strerror(errno));

    ev_read_clock(ev);
    *ret_ev = take_ptr(ev);
    return 0;
}

struct ev *ev_free(struct ev *ev)
{
    if (!ev)
        return NULL;

    ev_resume_paused(ev); /* drops dead sources */
    assert(ev->n_sources == 0);
    closep(&ev->epoll_fd);
    ev->closer = closer_free(ev->closer);
    fair_deinit(&ev->ready);
    free(ev);
    return NULL;
}

uint64_t ev_now_ms(const struct ev *ev)
{
    return ev->now_ms;
}

void ev_stop(struct ev *ev)
{
    ev->stopping = true;
}

void ev_tick_every(struct ev *ev, uint64_t period_ms, ev_tick_fn on_tick, void *ctx)
{
    if (period_ms > 0 && ev->period_ms == 0)
        ev->next_tick_ms = ev->now_ms + period_ms;
    ev->period_ms = period_ms;
    ev->on_tick = on_tick;
    ev->tick_ctx = ctx;
}

void ev_tick_set_demand(struct ev *ev, uint64_t period_ms)
{
    ev->demand_ms = period_ms;
}

void ev_tick_demand(struct ev *ev)
{
    if (ev->demand_ms > 0 && (ev->period_ms == 0 || ev->period_ms > ev->demand_ms))
        ev_tick_every(ev, ev->demand_ms, ev->on_tick, ev->tick_ctx);
}

static int64_t ev_next_timeout(const struct ev *ev)
{
    int64_t timeout = ev->paused ? EV_PAUSE_MS : -1;

    if (!fair_is_empty(&ev->ready))
        return 0;
    if (ev->period_ms > 0) {
        int64_t tick = ev->next_tick_ms > ev->now_ms ? (int64_t) (ev->next_tick_ms - ev->now_ms) : 0;

        if (timeout < 0 || tick < timeout)
            timeout = tick;
    }
    return timeout;
}

/* ---- serving ---- */

void ev_report(struct ev_source *s)
{
    if (!s->dead && !s->ended && !s->ready.in)
        fair_put(&s->ev->ready, s->share, &s->ready);
}

void ev_watch_rouse(struct ev_source *s)
{
    assert(s->kind == EV_KIND_WATCH);
    if (!s->paused)
        ev_report(s);
}

void ev_watch_pause(struct ev_source *s)
{
    assert(s->kind == EV_KIND_WATCH);
    if (!s->paused)
        ev_pause(s);
}

void ev_end(struct ev_source *s, int err)
{
    s->ended = true;
    if (s->kind == EV_KIND_STREAM)
        s->cb->on_end(s->ctx, err);
    else
        s->ev->failed = err;
}

/* ---- epoll ---- */

/* Edges for streams and listeners, which are served until nothing is left; watches are reported once. */
static uint32_t ev_wanted(const struct ev_source *s)
{
    if (s->kind == EV_KIND_WATCH)
        return EPOLLIN | EPOLLONESHOT;
    return s->sending ? EPOLLIN | EPOLLOUT | EPOLLET : EPOLLIN | EPOLLET;
}

static int ev_control(const struct ev_source *s, int op)
{
    struct epoll_event event = {.events = ev_wanted(s), .data.ptr = (void *) s};

    return epoll_ctl(s->ev->epoll_fd, op, s->fd, &event) < 0 ? -errno : 0;
}

int ev_want(const struct ev_source *s)
{
    return ev_control(s, EPOLL_CTL_MOD);
}

static void ev_report_events(struct ev_source *s, uint32_t events)
{
    int r = events & EPOLLOUT && !s->ended ? ev_send_queued(s) : 0;

    if (r < 0)
        s->failure = r;
    if (r < 0 || events & (EPOLLIN | EPOLLHUP | EPOLLERR))
        ev_report(s);
}

/* Waits for events, reads the clock and reports. @timeout_ms: negative: no limit. */
static int ev_wait(struct ev *ev, int64_t timeout_ms)
{
    int timeout = timeout_ms > WAIT_MS_MAX ? WAIT_MS_MAX : (int) timeout_ms;
    int n = epoll_wait(ev->epoll_fd, ev->events, EV_EVENTS_PER_WAIT, timeout);

    if (n < 0)
        return errno == EINTR ? 0 : -errno;

    ev_read_clock(ev);
    for (int i = 0; i < n; i++) /* reporting frees nothing */
        ev_report_events(ev->events[i].data.ptr, ev->events[i].events);
    return 0;
}

/* ---- serving one event ---- */

static void ev_serve_watch(struct ev_source *s)
{
    int r;

    s->on_readable(s->ctx);
    if (s->dead || s->paused)
        return;

    r = ev_want(s);
    if (r < 0)
        ev_end(s, r);
}

static void ev_serve_source(struct ev_source *s)
{
    ev_source_hold(s);
    if (s->failure < 0)
        ev_end(s, s->failure);
    else if (s->kind == EV_KIND_STREAM)
        ev_serve_stream(s);
    else if (s->kind == EV_KIND_LISTENER)
        ev_serve_listener(s);
    else
        ev_serve_watch(s);
    ev_source_drop(s);
}

/* Serves until nothing is left or SERVE_NS have passed. */
static void ev_serve(struct ev *ev)
{
    uint64_t began = metrics_now_ns(), now = began;

    while (!ev->stopping && ev->failed == 0 && now - began < SERVE_NS) {
        struct ev_source *s = (struct ev_source *) fair_take(&ev->ready);
        uint64_t before = now;

        if (!s)
            break;

        ev->served = s->share;
        ev_serve_source(s);
        now = metrics_now_ns();
        if (ev->served)
            fair_charge(&ev->ready, ev->served, now - before);
        ev->served = NULL;
    }
}

int ev_run(struct ev *ev)
{
    while (!ev->stopping) {
        int r;

        ev_read_clock(ev);
        r = ev_wait(ev, ev_next_timeout(ev));
        if (r == 0) {
            if (ev->paused && ev->now_ms >= ev->resume_ms)
                ev_resume_paused(ev);
            ev_serve(ev);
            r = ev->failed;
        }
        if (r < 0)
            return r;

        ev_read_clock(ev);
        if (ev->period_ms > 0 && ev->now_ms >= ev->next_tick_ms) {
            ev->next_tick_ms = ev->now_ms + ev->period_ms;
            ev->on_tick(ev->tick_ctx);
        }
    }

    ev->stopping = false; /* ev_run() may be called again */
    return 0;
}

/* ---- sources ---- */

void ev_source_hold(struct ev_source *s)
{
    s->busy++;
}

void ev_source_drop(struct ev_source *s)
{
    assert(s->busy > 0);
    if (--s->busy > 0 || !s->dead)
        return;

    ev_drop_unsent(s);
    /* a queue may have descriptors: of a stream, or of a connection that was never accepted */
    if (s->peeks)
        closer_close(s->ev->closer, s->fd);
    else if (s->kind != EV_KIND_WATCH)
        (void) close(s->fd);
    s->ev->n_sources--;
    free(s);
}

/* Streams send and receive by calls that do not wait; wire_peek_descriptors() needs credentials. */
static int ev_set_options(const struct ev_source *s)
{
    const int on = 1;
    int flags = s->kind == EV_KIND_LISTENER ? fcntl(s->fd, F_GETFL) : 0;

    if (flags < 0 || (s->kind == EV_KIND_LISTENER && fcntl(s->fd, F_SETFL, flags | O_NONBLOCK) < 0))
        return -errno;
    if (s->kind == EV_KIND_STREAM && s->peeks &&
        setsockopt(s->fd, SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)) < 0)
        return -errno;
    return 0;
}

static int ev_source_new(struct ev *ev, const struct ev_source *init, struct ev_source **ret)
{
    struct ev_source *s = malloc(sizeof(*s));
    int r;

    if (!s) {
        if (init->kind != EV_KIND_WATCH)
            ev_refuse(ev, init->fd);
        return -ENOMEM;
    }

    *s = *init;
    s->ev = ev;
    s->out_end = &s->out;
    s->share = &s->own;
    ev->n_sources++;
    r = fair_join(&ev->ready, s->share);
    if (r < 0)
        s->share = NULL;
    if (r == 0)
        r = ev_set_options(s);
    if (r == 0)
        r = ev_control(s, EPOLL_CTL_ADD);
    s->watching = r == 0;
    if (r < 0) {
        (void) ev_source_free(s);
        return r;
    }

    *ret = s;
    return 0;
}

int ev_listen(struct ev *ev, int fd, ev_accept_fn on_accept, void *ctx, struct ev_source **ret)
{
    struct ev_source init = {
        .kind = EV_KIND_LISTENER,
        .fd = fd,
        .ctx = ctx,
        .on_accept = on_accept,
        .peeks = !wire_refuses_descriptors(fd),
    };

    return ev_source_new(ev, &init, ret);
}

int ev_stream_new(struct ev *ev, int fd, const struct ev_stream_callbacks *cb, void *ctx,
                  struct ev_source **ret)
{
    struct ev_source init = {
        .kind = EV_KIND_STREAM,
        .fd = fd,
        .ctx = ctx,
        .cb = cb,
        .peeks = !cb->takes_fds && !wire_refuses_descriptors(fd),
    };

    return ev_source_new(ev, &init, ret);
}

int ev_watch(struct ev *ev, int fd, ev_readable_fn on_readable, void *ctx, struct ev_source **ret)
{
    struct ev_source init = {.kind = EV_KIND_WATCH, .fd = fd, .ctx = ctx, .on_readable = on_readable};

    return ev_source_new(ev, &init, ret);
}

static void ev_leave_share(struct ev_source *s)
{
    struct fair_share *share = s->share;

    s->share = NULL;
    if (!share)
        return;
    if (s->ready.in)
        fair_remove(&s->ev->ready, &s->ready);
    if (fair_leave(&s->ev->ready, share) && s->ev->served == share)
        s->ev->served = NULL; /* its owner may free it */
}

int ev_source_set_share(struct ev_source *s, struct fair_share *share)
{
    bool waits = s->ready.in;
    int r = fair_join(&s->ev->ready, share);

    if (r < 0)
        return r;

    ev_leave_share(s);
    s->share = share;
    if (waits)
        ev_report(s);
    return 0;
}

struct ev_source *ev_source_free(struct ev_source *s)
{
    if (!s)
        return NULL;

    assert(!s->dead);
    ev_source_hold(s);
    s->dead = true;
    ev_leave_share(s);
    if (s->kind == EV_KIND_STREAM)
        (void) shutdown(s->fd, SHUT_RDWR); /* the peer sees the end now, not when the last operation ends */
    if (s->watching)
        (void) ev_control(s, EPOLL_CTL_DEL);
    ev_source_drop(s);
    return NULL;
}
