/* Sources of the event loop that are sockets: accepting, receiving, sending. */
#include <assert.h>
#include <errno.h>
#include <linux/sockios.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "daemon/loop/closer.h"
#include "daemon/loop/ev_internal.h"

/* ---- accepting ---- */

void ev_refuse(struct ev *ev, int fd)
{
    if (wire_refuses_descriptors(fd))
        (void) close(fd);
    else
        closer_close(ev->closer, fd);
}

uint32_t ev_n_closing(const struct ev *ev, uid_t uid)
{
    return closer_n_of(ev->closer, uid);
}

void ev_pause(struct ev_source *s)
{
    s->ev->resume_ms = s->ev->now_ms + EV_PAUSE_MS;
    s->paused = true;
    s->paused_next = s->ev->paused;
    s->ev->paused = s;
    ev_source_hold(s);
}

void ev_resume_paused(struct ev *ev)
{
    struct ev_source *list = ev->paused;

    ev->paused = NULL;
    while (list) {
        struct ev_source *s = list;

        list = s->paused_next;
        s->paused = false;
        ev_report(s);
        ev_source_drop(s);
    }
}

/* Accepts one connection. */
void ev_serve_listener(struct ev_source *s)
{
    int fd;

    if (s->paused)
        return;
    if (closer_is_full(s->ev->closer)) {
        ev_pause(s);
        return;
    }

    fd = accept4(s->fd, NULL, NULL, SOCK_CLOEXEC);
    if (fd >= 0) {
        ev_report(s);
        s->on_accept(s->ctx, fd);
    } else if (errno == ECONNABORTED || errno == EINTR) {
        ev_report(s);
    } else if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
        ev_pause(s);
    } else if (errno != EAGAIN) {
        ev_end(s, -errno);
    }
}

/* ---- receiving ---- */

/* Receives one packet. A packet that has descriptors and should not stays in the queue: see closer.h. */
void ev_serve_stream(struct ev_source *s)
{
    struct wire_packet p;
    int r;

    s->is_full = s->out_bytes >= EV_SEND_QUEUE_BYTES;
    if (s->is_full)
        return; /* ev_sent() reports the source again */

    r = s->peeks ? wire_peek_descriptors(s->fd) : 0;

    if (r > 0)
        r = -EPERM;
    if (r == 0)
        r = wire_receive_now(s->fd, s->ev->packet, &p);
    if (r == -EAGAIN)
        return; /* epoll reports the next packet */

    if (r == 0) {
        ev_report(s);
        s->cb->on_packet(s->ctx, s->ev->packet, &p);
    } else {
        ev_end(s, r == -EPIPE ? 0 : r);
    }
}

static void ev_out_free(struct ev_out *o)
{
    for (size_t i = 0; i < o->n_fds; i++)
        (void) close(o->fds[i]);
    free(o);
}

void ev_drop_unsent(struct ev_source *s)
{
    while (s->out) {
        struct ev_out *o = s->out;

        s->out = o->next;
        ev_out_free(o);
    }
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

/* The head was sent: removes it from the queue. */
static void ev_sent(struct ev_source *s)
{
    struct ev_out *o = s->out;

    s->out = o->next;
    if (!s->out)
        s->out_end = &s->out;
    s->n_out--;
    s->out_bytes -= o->bytes;
    ev_out_free(o);
    if (s->is_full && s->out_bytes < EV_SEND_QUEUE_BYTES) {
        s->is_full = false;
        ev_report(s);
    }
}

int ev_send_queued(struct ev_source *s)
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
    return s->sending != waiting ? ev_want(s) : 0;
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
    s->out_bytes += bytes;
    if (!s->sending && !s->ended)
        return ev_send_queued(s);

    return 0;
}

bool ev_stream_drained(const struct ev_source *s)
{
    int unread = 0;

    /* SIOCOUTQ on a Unix socket: bytes that wait in the peer's queue */
    return s->n_out == 0 && ioctl(s->fd, SIOCOUTQ, &unread) == 0 && unread == 0;
}
