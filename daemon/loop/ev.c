/*
 * The part of the event loop that both backends share: choice of the backend, the timer, sources and the
 * order in which they are served. What streams and listeners do is in ev_stream.c.
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
 * How long sources are served before the kernel is asked again, once all replies so far are submitted. A
 * connection that becomes ready waits that long at most until it is known, and its reply as long again.
 */
enum { SERVE_NS = 500000 };

const char *const ev_backend_names[] = {
    [EV_AUTO] = "auto", [EV_URING] = "io_uring", [EV_EPOLL] = "epoll", NULL};

int ev_backend_from_name(const char *name, enum ev_backend *ret)
{
    for (size_t i = 0; ev_backend_names[i]; i++) {
        if (strcmp(name, ev_backend_names[i]) == 0) {
            *ret = (enum ev_backend) i;
            return 0;
        }
    }
    return -EINVAL;
}

void ev_read_clock(struct ev *ev)
{
    struct timespec t;

    (void) clock_gettime(CLOCK_MONOTONIC, &t); /* cannot fail for this clock */
    ev->now_ms = (uint64_t) t.tv_sec * 1000 + (uint64_t) t.tv_nsec / 1000000;
}

static int ev_start(struct ev *ev, const struct ev_ops *ops, struct errmsg *e)
{
    ev->ops = ops;
    return ops->start(ev, e);
}

/* Frees a loop that has no backend. */
static void ev_abandonp(struct ev **ev)
{
    if (!*ev)
        return;
    (*ev)->closer = closer_free((*ev)->closer);
    fair_deinit(&(*ev)->ready);
    free(*ev);
}

int ev_new(enum ev_backend backend, struct ev **ret_ev, struct errmsg *ret_why, struct errmsg *e)
{
    _cleanup_(ev_abandonp) struct ev *ev = calloc(1, sizeof(*ev));
    int r;

    errmsg_clear(ret_why);
    if (!ev || closer_new(&ev->closer) < 0)
        return fail(e, -ENOMEM, "out of memory while starting the event loop");
    core_file_exclude(ev->packet, sizeof(ev->packet)); /* clients send vectors */

    switch (backend) {
    case EV_URING:
        r = ev_start(ev, &ev_uring_ops, e);
        break;
    case EV_AUTO:
        r = ev_start(ev, &ev_uring_ops, ret_why);
        if (r < 0)
            r = ev_start(ev, &ev_epoll_ops, e);
        break;
    default:
        r = ev_start(ev, &ev_epoll_ops, e);
    }
    if (r < 0)
        return r;

    ev_read_clock(ev);
    *ret_ev = take_ptr(ev);
    return 0;
}

struct ev *ev_free(struct ev *ev)
{
    if (!ev)
        return NULL;

    ev_resume_paused(ev);     /* drops dead sources */
    while (ev->n_sources > 0) /* dead sources that the kernel still uses */
        if (ev->ops->wait(ev, -1) < 0)
            break;
    ev->ops->stop(ev);
    ev_abandonp(&ev);
    return NULL;
}

const char *ev_backend_name(const struct ev *ev)
{
    return ev->ops->name;
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

void ev_report_failure(struct ev_source *s, int err)
{
    s->failure = err;
    ev_report(s);
}

void ev_end(struct ev_source *s, int err)
{
    s->ended = true;
    if (s->kind == EV_KIND_STREAM)
        s->cb->on_end(s->ctx, err);
    else
        s->ev->failed = err;
}

static void ev_serve_watch(struct ev_source *s)
{
    int r;

    s->on_readable(s->ctx);
    if (s->dead || s->paused)
        return;

    r = s->ev->ops->again(s);
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
        r = ev->ops->wait(ev, ev_next_timeout(ev));
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

/*
 * Sends on io_uring wait for a full peer only if the socket blocks; wire_peek_descriptors() needs
 * credentials.
 */
static int ev_set_options(const struct ev_source *s)
{
    const int on = 1;
    int flags = s->kind == EV_KIND_WATCH ? 0 : fcntl(s->fd, F_GETFL);
    int wanted = s->kind == EV_KIND_LISTENER ? flags | O_NONBLOCK : flags & ~O_NONBLOCK;

    if (flags < 0 || (flags != wanted && s->kind != EV_KIND_WATCH && fcntl(s->fd, F_SETFL, wanted) < 0))
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
        r = ev->ops->add(s);
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
    s->ev->ops->remove(s);
    ev_source_drop(s);
    return NULL;
}
