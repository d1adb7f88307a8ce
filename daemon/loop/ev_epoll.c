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
    EVENTS_PER_WAIT = 1024, /* all connections, so that no ready one waits for a later pass */
    WAIT_MS_MAX = 1000000,  /* fits an int */
};

struct epoll_backend {
    int fd;
    struct epoll_event events[EVENTS_PER_WAIT];
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

/* Edges for streams and listeners, which are served until nothing is left; watches are reported once. */
static uint32_t ev_epoll_wanted(const struct ev_source *s)
{
    if (s->kind == EV_KIND_WATCH)
        return EPOLLIN | EPOLLONESHOT;
    return s->sending ? EPOLLIN | EPOLLOUT | EPOLLET : EPOLLIN | EPOLLET;
}

static int ev_epoll_control(struct ev_source *s, int op)
{
    struct epoll_backend *b = s->ev->backend;
    struct epoll_event event = {.events = ev_epoll_wanted(s), .data.ptr = s};

    return epoll_ctl(b->fd, op, s->fd, &event) < 0 ? -errno : 0;
}

static int epoll_add(struct ev_source *s)
{
    int r = ev_epoll_control(s, EPOLL_CTL_ADD);

    if (r == 0) {
        s->watching = true;
        ev_source_hold(s); /* while it is in the epoll set */
    }
    return r;
}

static int epoll_again(struct ev_source *s)
{
    return ev_epoll_control(s, EPOLL_CTL_MOD);
}

static void epoll_remove(struct ev_source *s)
{
    if (!s->watching)
        return;

    s->watching = false;
    (void) ev_epoll_control(s, EPOLL_CTL_DEL);
    ev_source_drop(s);
}

/* Sends until the queue is empty or the socket is full. */
static int epoll_send(struct ev_source *s)
{
    bool waiting = s->sending;

    while (s->out) {
        ssize_t n = sendmsg(s->fd, &s->out->msg, MSG_NOSIGNAL | MSG_DONTWAIT);

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
        return ev_epoll_control(s, EPOLL_CTL_MOD);

    return 0;
}

static void ev_epoll_report(struct ev_source *s, uint32_t events)
{
    int r = events & EPOLLOUT && !s->ended ? epoll_send(s) : 0;

    if (r < 0)
        ev_report_failure(s, r);
    else if (events & (EPOLLIN | EPOLLHUP | EPOLLERR))
        ev_report(s);
}

static int epoll_wait_events(struct ev *ev, int64_t timeout_ms)
{
    struct epoll_backend *b = ev->backend;
    int timeout = timeout_ms > WAIT_MS_MAX ? WAIT_MS_MAX : (int) timeout_ms;
    int n = epoll_wait(b->fd, b->events, EVENTS_PER_WAIT, timeout); /* any negative timeout: no limit */

    if (n < 0)
        return errno == EINTR ? 0 : -errno;

    ev_read_clock(ev);
    for (int i = 0; i < n; i++) /* reporting frees nothing */
        ev_epoll_report(b->events[i].data.ptr, b->events[i].events);
    return 0;
}

const struct ev_ops ev_epoll_ops = {
    .name = "epoll",
    .start = epoll_start,
    .stop = epoll_stop,
    .add = epoll_add,
    .again = epoll_again,
    .send = epoll_send,
    .remove = epoll_remove,
    .wait = epoll_wait_events,
};
