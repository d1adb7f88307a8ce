/*
 * The part of the event loop that both backends share: sources, queues of packets, the timer, choice of the
 * backend.
 */
#include "daemon/loop/ev_internal.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/errmsg.h"

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

int ev_new(enum ev_backend backend, struct ev **ret_ev, struct errmsg *ret_why, struct errmsg *e)
{
    _cleanup_(freep) struct ev *ev = calloc(1, sizeof(*ev));
    int r;

    errmsg_clear(ret_why);
    if (!ev)
        return fail(e, -ENOMEM, "out of memory while starting the event loop");

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

static int ev_resume_paused(struct ev *ev)
{
    struct ev_source *list = ev->paused;
    int r = 0;

    ev->paused = NULL;
    while (list) {
        struct ev_source *s = list;

        list = s->paused_next;
        s->paused = false;
        if (!s->dead && r == 0)
            r = ev->ops->resume(s);
        ev_source_drop(s);
    }

    return r;
}

struct ev *ev_free(struct ev *ev)
{
    if (!ev)
        return NULL;

    (void) ev_resume_paused(ev); /* drops dead sources */
    while (ev->n_sources > 0)    /* dead sources that the kernel still uses */
        if (ev->ops->wait(ev, -1) < 0)
            break;
    ev->ops->stop(ev);
    free(ev);
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

    if (ev->period_ms > 0) {
        int64_t tick = ev->next_tick_ms > ev->now_ms ? (int64_t) (ev->next_tick_ms - ev->now_ms) : 0;

        if (timeout < 0 || tick < timeout)
            timeout = tick;
    }
    return timeout;
}

void ev_pause_accept(struct ev_source *s)
{
    s->paused = true;
    s->paused_next = s->ev->paused;
    s->ev->paused = s;
    ev_source_hold(s);
}

int ev_run(struct ev *ev)
{
    while (!ev->stopping) {
        int r;

        ev_read_clock(ev);
        r = ev->ops->wait(ev, ev_next_timeout(ev));
        if (r == 0)
            r = ev_resume_paused(ev);
        if (r == 0)
            r = ev->failed;
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

static void ev_out_free(struct ev_out *o)
{
    for (size_t i = 0; i < o->n_fds; i++)
        (void) close(o->fds[i]);
    free(o);
}

void ev_source_hold(struct ev_source *s)
{
    s->busy++;
}

void ev_source_drop(struct ev_source *s)
{
    assert(s->busy > 0);
    if (--s->busy > 0 || !s->dead)
        return;

    while (s->out) {
        struct ev_out *o = s->out;

        s->out = o->next;
        ev_out_free(o);
    }

    if (s->kind != EV_KIND_WATCH)
        (void) close(s->fd);
    s->ev->n_sources--;
    free(s);
}

static int ev_source_new(struct ev *ev, const struct ev_source *init, struct ev_source **ret)
{
    struct ev_source *s = malloc(sizeof(*s));
    int r;

    if (!s) {
        if (init->kind != EV_KIND_WATCH)
            (void) close(init->fd);
        return -ENOMEM;
    }

    *s = *init;
    s->ev = ev;
    s->out_end = &s->out;
    ev->n_sources++;
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
    struct ev_source init = {.kind = EV_KIND_LISTENER, .fd = fd, .ctx = ctx, .on_accept = on_accept};

    return ev_source_new(ev, &init, ret);
}

int ev_stream_new(struct ev *ev, int fd, const struct ev_stream_callbacks *cb, void *ctx,
                  struct ev_source **ret)
{
    struct ev_source init = {.kind = EV_KIND_STREAM, .fd = fd, .ctx = ctx, .cb = cb};

    return ev_source_new(ev, &init, ret);
}

int ev_watch(struct ev *ev, int fd, ev_readable_fn on_readable, void *ctx, struct ev_source **ret)
{
    struct ev_source init = {.kind = EV_KIND_WATCH, .fd = fd, .ctx = ctx, .on_readable = on_readable};

    return ev_source_new(ev, &init, ret);
}

struct ev_source *ev_source_free(struct ev_source *s)
{
    if (!s)
        return NULL;

    assert(!s->dead);
    ev_source_hold(s);
    s->dead = true;
    if (s->kind == EV_KIND_STREAM)
        (void) shutdown(s->fd, SHUT_RDWR); /* the peer sees the end now, not when the last operation ends */
    s->ev->ops->remove(s);
    ev_source_drop(s);
    return NULL;
}

void ev_deliver_accept(struct ev_source *s, int fd)
{
    if (s->dead) {
        (void) close(fd);
        return;
    }
    ev_source_hold(s);
    s->on_accept(s->ctx, fd);
    ev_source_drop(s);
}

void ev_deliver_packet(struct ev_source *s, const void *data, struct wire_packet *p)
{
    if (s->dead || s->ended) {
        wire_packet_close_fds(p);
        return;
    }
    ev_source_hold(s);
    s->cb->on_packet(s->ctx, data, p);
    ev_source_drop(s);
}

void ev_deliver_end(struct ev_source *s, int err)
{
    if (s->dead || s->ended)
        return;

    s->ended = true;
    /* a daemon that cannot accept connections or receive signals must stop */
    if (s->kind != EV_KIND_STREAM) {
        s->ev->failed = err;
        return;
    }

    ev_source_hold(s);
    s->cb->on_end(s->ctx, err);
    ev_source_drop(s);
}

void ev_deliver_readable(struct ev_source *s)
{
    if (s->dead)
        return;

    ev_source_hold(s);
    s->on_readable(s->ctx);
    ev_source_drop(s);
}

/* ---- sending ---- */

static void ev_fill_message(struct ev_out *o)
{
    o->iov = (struct iovec){o->data, o->bytes};
    o->msg = (struct msghdr){.msg_iov = &o->iov, .msg_iovlen = 1};
    if (o->n_fds > 0) {
        struct cmsghdr *c;

        memset(o->control, 0, sizeof(o->control));
        o->msg.msg_control = o->control;
        o->msg.msg_controllen = CMSG_SPACE(o->n_fds * sizeof(int));
        c = CMSG_FIRSTHDR(&o->msg);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(o->n_fds * sizeof(int));
        memcpy(CMSG_DATA(c), o->fds, o->n_fds * sizeof(int));
    }
}

int ev_stream_send(struct ev_source *s, const void *data, size_t bytes, const int *fds, size_t n_fds)
{
    struct ev_out *o = NULL;

    assert(s->kind == EV_KIND_STREAM && !s->dead && n_fds <= WIRE_FDS_MAX && bytes <= WIRE_PACKET_BYTES_MAX);
    if (s->n_out < EV_SEND_QUEUE_MAX)
        o = malloc(sizeof(*o) + bytes);
    if (!o) {
        for (size_t i = 0; i < n_fds; i++)
            (void) close(fds[i]);
        return s->n_out < EV_SEND_QUEUE_MAX ? -ENOMEM : -ENOBUFS;
    }

    o->next = NULL;
    o->bytes = bytes;
    o->n_fds = n_fds;
    memcpy(o->data, data, bytes);
    if (n_fds > 0)
        memcpy(o->fds, fds, n_fds * sizeof(int));
    ev_fill_message(o);
    *s->out_end = o;
    s->out_end = &o->next;
    s->n_out++;
    if (!s->sending && !s->ended) /* packets keep their order: only one is in the kernel */
        return s->ev->ops->send(s);

    return 0;
}

void ev_sent(struct ev_source *s)
{
    struct ev_out *o = s->out;

    s->out = o->next;
    if (!s->out)
        s->out_end = &s->out;
    s->n_out--;
    ev_out_free(o);
}

bool ev_stream_drained(const struct ev_source *s)
{
    int unread = 0;

    /* SIOCOUTQ on a Unix socket: bytes that wait in the peer's queue */
    return s->n_out == 0 && ioctl(s->fd, SIOCOUTQ, &unread) == 0 && unread == 0;
}
