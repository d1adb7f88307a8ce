/*
 * The event loop on io_uring: multishot polls, one sendmsg in flight per stream. One system call per pass
 * submits what the callbacks queued and waits.
 *
 * Packets are received with recvmsg() and not with a multishot receive into shared buffers. That one
 * receives in the order in which packets arrive, so connections that flood the daemon fill all buffers, and
 * a packet of another client waits for the handling of all theirs.
 */
#include <assert.h>
#include <errno.h>
#include <liburing.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "daemon/loop/ev_internal.h"
#include "daemon/loop/uring.h"

enum {
    RING_ENTRIES = 256,
    CQ_ENTRIES = 4096,
    EVENTS_PER_CALL = 16, /* a call that brings so many may have left some */
};

/* The operation of a source that has completed, in the low bits of user_data. */
enum { OP_POLL = 1, OP_SEND = 2, OP_CANCEL = 3, OP_MASK = 3 };

struct uring_backend {
    struct io_uring ring;
};

/* Tries a multishot poll: kernels before 5.13 accept the ring but not the operation. */
static int ev_uring_probe(struct uring_backend *b)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(&b->ring);
    struct io_uring_cqe *cqe;
    int fd = eventfd(1, EFD_CLOEXEC), r;

    if (fd < 0)
        return -errno;

    io_uring_prep_poll_multishot(sqe, fd, POLLIN);
    io_uring_sqe_set_data64(sqe, OP_POLL);
    r = io_uring_submit_and_wait(&b->ring, 1);
    sqe = io_uring_get_sqe(&b->ring);
    io_uring_prep_cancel64(sqe, OP_POLL, 0);
    io_uring_sqe_set_data64(sqe, OP_CANCEL);
    if (r >= 0)
        r = io_uring_submit(&b->ring);
    for (bool polling = r >= 0, cancelling = r >= 0; polling || cancelling;) {
        int got = io_uring_wait_cqe(&b->ring, &cqe);

        if (got < 0) {
            r = got;
            break;
        }

        if (cqe->user_data == OP_CANCEL) {
            cancelling = false;
        } else {
            if (cqe->res < 0 && cqe->res != -ECANCELED)
                r = cqe->res;
            polling = cqe->flags & IORING_CQE_F_MORE;
        }
        io_uring_cqe_seen(&b->ring, cqe);
    }

    (void) close(fd);
    return r < 0 ? r : 0;
}

static int uring_start(struct ev *ev, struct errmsg *e)
{
    struct uring_backend *b = calloc(1, sizeof(*b));
    int r;

    if (!b)
        return fail(e, -ENOMEM, "out of memory while starting the event loop");

    r = uring_init(&b->ring, RING_ENTRIES, CQ_ENTRIES);
    if (r < 0) {
        free(b);
        return fail(e, r, "io_uring is not available here: %s", uring_explain(r));
    }

    r = ev_uring_probe(b);
    if (r < 0) {
        io_uring_queue_exit(&b->ring);
        free(b);
        return fail(e, r, "this kernel's io_uring lacks multishot polls: %s", strerror(-r));
    }

    ev->backend = b;
    return 0;
}

static void uring_stop(struct ev *ev)
{
    struct uring_backend *b = ev->backend;

    io_uring_queue_exit(&b->ring);
    free(b);
}

/* ---- submitting ---- */

static struct io_uring_sqe *ev_uring_get_sqe(struct ev *ev)
{
    struct uring_backend *b = ev->backend;
    struct io_uring_sqe *sqe = io_uring_get_sqe(&b->ring);

    if (!sqe && io_uring_submit(&b->ring) >= 0) /* the queue was full: submit it */
        sqe = io_uring_get_sqe(&b->ring);
    return sqe;
}

static void ev_uring_tag(struct io_uring_sqe *sqe, struct ev_source *s, unsigned op)
{
    io_uring_sqe_set_data64(sqe, (uint64_t) (uintptr_t) s | op);
    ev_source_hold(s); /* until the last completion of this operation */
}

/* Streams and listeners are polled for good; watches once, since a readable one must be reported again. */
static int ev_uring_poll(struct ev_source *s)
{
    struct io_uring_sqe *sqe;

    if (s->watching)
        return 0; /* a watch that was served because its owner roused it */

    sqe = ev_uring_get_sqe(s->ev);
    if (!sqe)
        return -EBUSY;

    if (s->kind == EV_KIND_WATCH)
        io_uring_prep_poll_add(sqe, s->fd, POLLIN);
    else
        io_uring_prep_poll_multishot(sqe, s->fd, POLLIN);
    ev_uring_tag(sqe, s, OP_POLL);
    s->watching = true;
    return 0;
}

static int uring_send(struct ev_source *s)
{
    struct io_uring_sqe *sqe = ev_uring_get_sqe(s->ev);

    if (!sqe)
        return -EBUSY;

    io_uring_prep_sendmsg(sqe, s->fd, &s->out->msg, MSG_NOSIGNAL);
    ev_uring_tag(sqe, s, OP_SEND);
    s->sending = true;
    return 0;
}

static bool ev_uring_cancel(struct ev_source *s, unsigned op)
{
    struct io_uring_sqe *sqe = ev_uring_get_sqe(s->ev);

    if (!sqe)
        return false;

    io_uring_prep_cancel64(sqe, (uint64_t) (uintptr_t) s | op, 0);
    ev_uring_tag(sqe, s, OP_CANCEL);
    return true;
}

static void uring_remove(struct ev_source *s)
{
    if (s->watching)
        s->cancelled = ev_uring_cancel(s, OP_POLL);
    if (s->sending) /* if it fails: shutdown() of the socket ends the operation */
        (void) ev_uring_cancel(s, OP_SEND);
}

/* ---- completions ---- */

/* The poll continues while F_MORE is set. The kernel may end a multishot poll at any time. */
static void ev_uring_poll_done(struct ev_source *s, int res, bool more)
{
    s->watching = more;
    if (res < 0 && res != -ECANCELED)
        ev_report_failure(s, res);
    else
        ev_report(s);
    if (more) {
        if (s->dead && !s->cancelled)
            s->cancelled = ev_uring_cancel(s, OP_POLL);
        return;
    }

    if (s->kind != EV_KIND_WATCH && !s->dead && !s->ended && res >= 0) {
        int r = ev_uring_poll(s);

        if (r < 0)
            ev_report_failure(s, r);
    }
    ev_source_drop(s);
}

static void ev_uring_send_done(struct ev_source *s, int res)
{
    int r = res < 0 ? res : 0;

    s->sending = false;
    if (r == 0) {
        ev_sent(s);
        if (s->out && !s->dead && !s->ended)
            r = uring_send(s);
    }
    if (r < 0)
        ev_report_failure(s, r);
    ev_source_drop(s);
}

static void ev_uring_dispatch(const struct io_uring_cqe *cqe)
{
    struct ev_source *s = (struct ev_source *) (uintptr_t) (cqe->user_data & ~(uint64_t) OP_MASK);

    switch (cqe->user_data & OP_MASK) {
    case OP_POLL:
        ev_uring_poll_done(s, cqe->res, cqe->flags & IORING_CQE_F_MORE);
        break;
    case OP_SEND:
        ev_uring_send_done(s, cqe->res);
        break;
    default:
        ev_source_drop(s);
    }
}

/*
 * A call runs 20 pending events of the kernel's list at most (6.18), in the order of their arrival. So with
 * many busy connections an event of another one would wait for several passes (p99 of a neighbour's request
 * 47 ms instead of 5): asks until nothing more comes.
 */
static void ev_uring_get_all(struct uring_backend *b)
{
    unsigned n = 0, ready = io_uring_cq_ready(&b->ring);

    while (ready - n >= EVENTS_PER_CALL && ready < CQ_ENTRIES) {
        n = ready;
        if (io_uring_get_events(&b->ring) < 0)
            return;

        ready = io_uring_cq_ready(&b->ring);
    }
}

static int uring_wait(struct ev *ev, int64_t timeout_ms)
{
    struct uring_backend *b = ev->backend;
    struct __kernel_timespec ts = {.tv_sec = timeout_ms / 1000, .tv_nsec = timeout_ms % 1000 * 1000000};
    struct io_uring_cqe *cqe;
    int r;

    if (timeout_ms == 0)
        r = io_uring_submit_and_get_events(&b->ring);
    else
        r = io_uring_submit_and_wait_timeout(&b->ring, &cqe, 1, timeout_ms < 0 ? NULL : &ts, NULL);

    if (r < 0 && r != -ETIME && r != -EINTR && r != -EBUSY && r != -EAGAIN)
        return r;

    ev_uring_get_all(b);
    ev_read_clock(ev);
    /* At most one completion queue per pass, so that the timer runs under a flood. */
    for (unsigned i = 0; i < CQ_ENTRIES && io_uring_peek_cqe(&b->ring, &cqe) == 0; i++) {
        struct io_uring_cqe copy = *cqe;

        io_uring_cqe_seen(&b->ring, cqe);
        ev_uring_dispatch(&copy);
    }

    return 0;
}

const struct ev_ops ev_uring_ops = {
    .name = "io_uring",
    .start = uring_start,
    .stop = uring_stop,
    .add = ev_uring_poll,
    .again = ev_uring_poll,
    .send = uring_send,
    .remove = uring_remove,
    .wait = uring_wait,
};
