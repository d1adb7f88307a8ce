/* The event loop on epoll: for kernels and sandboxes without io_uring. Same behaviour as ev_uring.c. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/epoll.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "daemon/loop/ev_internal.h"

enum {
    EVENTS_PER_WAIT = 64,
    PACKETS_PER_EVENT = 8, /* so that one busy client does not block the others */
    ACCEPTS_PER_EVENT = 16,
    WAIT_MS_MAX = 1000000, /* fits an int */
};

struct epoll_backend {
    int fd;
    uint8_t buf[WIRE_PACKET_BYTES_MAX];
};

static int epoll_start(struct ev *ev, struct errmsg *e)
{
    struct epoll_backend *b = malloc(sizeof(*b));

    if (!b)
        return fail(e, -ENOMEM, "out of memory while starting the event loop");

    b->fd = epoll_create1(EPOLL_CLOEXEC);
    if (b->fd < 0) {
        int r = -errno;

        free(b);
        return fail(e, r, "cannot create an epoll instance: %s", strerror(-r));
    }

    ev->backend = b;
    return 0;
}

static void epoll_stop(struct ev *ev)
{
    struct epoll_backend *b = ev->backend;

    (void) close(b->fd);
    free(b);
}

static int ev_epoll_set_nonblocking(int fd)
{
    int flags = fcntl(fd, F_GETFL);

    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0)
        return -errno;
    return 0;
}

static int ev_epoll_control(struct ev_source *s, int op, uint32_t events)
{
    struct epoll_backend *b = s->ev->backend;
    struct epoll_event event = {.events = events, .data.ptr = s};

    return epoll_ctl(b->fd, op, s->fd, &event) < 0 ? -errno : 0;
}

static int epoll_add(struct ev_source *s)
{
    int r = s->kind == EV_KIND_WATCH ? 0 : ev_epoll_set_nonblocking(s->fd);

    if (r == 0)
        r = ev_epoll_control(s, EPOLL_CTL_ADD, EPOLLIN);
    if (r == 0) {
        s->receiving = true;
        ev_source_hold(s); /* while it is in the epoll set */
    }
    return r;
}

static void epoll_remove(struct ev_source *s)
{
    if (!s->receiving)
        return;

    s->receiving = false;
    (void) ev_epoll_control(s, EPOLL_CTL_DEL, 0);
    ev_source_drop(s);
}

/* Sends until the queue is empty or the socket is full. */
static int epoll_send(struct ev_source *s)
{
    bool waiting = s->sending;

    while (s->out) {
        ssize_t n = sendmsg(s->fd, &s->out->msg, MSG_NOSIGNAL);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            break;
        if (n < 0)
            return -errno;

        ev_sent(s);
    }

    s->sending = s->out != NULL;
    if (s->sending != waiting)
        return ev_epoll_control(s, EPOLL_CTL_MOD, s->sending ? EPOLLIN | EPOLLOUT : EPOLLIN);

    return 0;
}

static void ev_epoll_accept_some(struct ev_source *s)
{
    for (int i = 0; i < ACCEPTS_PER_EVENT && !s->dead; i++) {
        int fd = accept4(s->fd, NULL, NULL, SOCK_CLOEXEC);

        if (fd >= 0) {
            ev_deliver_accept(s, fd);
            continue;
        }

        if (errno != EAGAIN && errno != ECONNABORTED && errno != EINTR &&
            ev_epoll_control(s, EPOLL_CTL_MOD, 0) == 0)
            ev_pause_accept(s);
        return;
    }
}

static int epoll_resume(struct ev_source *s)
{
    return ev_epoll_control(s, EPOLL_CTL_MOD, EPOLLIN);
}

static void ev_epoll_receive_some(struct ev_source *s)
{
    struct epoll_backend *b = s->ev->backend;

    for (int i = 0; i < PACKETS_PER_EVENT && !s->dead && !s->ended; i++) {
        struct wire_packet p;
        int r = wire_receive(s->fd, b->buf, &p);

        if (r == -EAGAIN)
            return;
        if (r == 0)
            ev_deliver_packet(s, b->buf, &p);
        else
            ev_deliver_end(s, r == -EPIPE ? 0 : r);
    }
}

static void ev_epoll_dispatch(struct ev_source *s, uint32_t events)
{
    if (s->kind == EV_KIND_WATCH) {
        ev_deliver_readable(s);
        return;
    }

    if (s->kind == EV_KIND_LISTENER) {
        ev_epoll_accept_some(s);
        return;
    }

    if (events & EPOLLOUT) {
        int r = epoll_send(s);

        if (r < 0)
            ev_deliver_end(s, r);
    }

    if (events & (EPOLLIN | EPOLLHUP | EPOLLERR))
        ev_epoll_receive_some(s);
}

static int epoll_wait_events(struct ev *ev, int64_t timeout_ms)
{
    struct epoll_backend *b = ev->backend;
    struct epoll_event events[EVENTS_PER_WAIT];
    int timeout = timeout_ms > WAIT_MS_MAX ? WAIT_MS_MAX : (int) timeout_ms;
    int n = epoll_wait(b->fd, events, EVENTS_PER_WAIT, timeout); /* any negative timeout: no limit */

    if (n < 0)
        return errno == EINTR ? 0 : -errno;

    ev_read_clock(ev);
    /* A callback may free any source of this batch, so all of them are held until the batch is done. */
    for (int i = 0; i < n; i++)
        ev_source_hold(events[i].data.ptr);
    for (int i = 0; i < n; i++) {
        struct ev_source *s = events[i].data.ptr;

        if (!s->dead)
            ev_epoll_dispatch(s, events[i].events);
        ev_source_drop(s);
    }

    return 0;
}

const struct ev_ops ev_epoll_ops = {
    .name = "epoll",
    .start = epoll_start,
    .stop = epoll_stop,
    .add = epoll_add,
    .send = epoll_send,
    .resume = epoll_resume,
    .remove = epoll_remove,
    .wait = epoll_wait_events,
};
