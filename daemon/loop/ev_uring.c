/*
 * The event loop on io_uring: polled accept, multishot recvmsg into a ring of provided buffers, one sendmsg
 * in flight per stream, poll for everything else. One system call per pass submits what the callbacks
 * queued and waits.
 *
 * Tried on 6.18 with liburing 2.3: the end of a stream arrives as a completion whose result is the size of
 * the recvmsg header, not 0; sockets must be blocking, since a non-blocking one completes with -EAGAIN
 * instead of waiting; without a free buffer the multishot ends with -ENOBUFS.
 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <poll.h>
#include <string.h>
#include <sys/mman.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "daemon/loop/ev_internal.h"

enum {
    RING_ENTRIES = 256,
    CQ_ENTRIES = 4096,
    BUFFERS = 32, /* a power of two */
    BUFFER_GROUP = 0,
    ACCEPTS_PER_EVENT = 64,
    CONTROL_BYTES = CMSG_SPACE(sizeof(struct ucred)) + CMSG_SPACE(WIRE_FDS_MAX * sizeof(int)),
    BUFFER_BYTES = (int) sizeof(struct io_uring_recvmsg_out) + CONTROL_BYTES + WIRE_PACKET_BYTES_MAX,
};

/* The operation of a source that has completed, in the low bits of user_data. */
enum { OP_RECEIVE = 1, OP_SEND = 2, OP_CANCEL = 3, OP_MASK = 3 };

struct uring_backend {
    struct io_uring ring;
    struct io_uring_buf_ring *buf_ring; /* [BUFFERS] page-aligned */
    uint8_t *buffers;                   /* [BUFFERS, BUFFER_BYTES] */
    struct msghdr receive_msg;          /* has the size of the control data of a receive */
};

static void ev_uring_give_buffer(struct uring_backend *b, unsigned id)
{
    io_uring_buf_ring_add(b->buf_ring, b->buffers + (size_t) id * BUFFER_BYTES, BUFFER_BYTES,
                          (unsigned short) id, io_uring_buf_ring_mask(BUFFERS), 0);
    io_uring_buf_ring_advance(b->buf_ring, 1);
}

static int ev_uring_make_buffers(struct uring_backend *b)
{
    struct io_uring_buf_reg reg;
    size_t ring_bytes = BUFFERS * sizeof(struct io_uring_buf);
    int r;

    b->buffers = mmap(NULL, (size_t) BUFFERS * BUFFER_BYTES, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (b->buffers == MAP_FAILED) {
        b->buffers = NULL;
        return -errno;
    }

    b->buf_ring = mmap(NULL, ring_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (b->buf_ring == MAP_FAILED) {
        b->buf_ring = NULL;
        return -errno;
    }

    reg = (struct io_uring_buf_reg){
        .ring_addr = (uint64_t) (uintptr_t) b->buf_ring,
        .ring_entries = BUFFERS,
        .bgid = BUFFER_GROUP,
    };
    r = io_uring_register_buf_ring(&b->ring, &reg, 0);
    if (r < 0)
        return r;

    io_uring_buf_ring_init(b->buf_ring);
    for (unsigned i = 0; i < BUFFERS; i++)
        ev_uring_give_buffer(b, i);
    return 0;
}

static void ev_uring_drop_buffers(struct uring_backend *b)
{
    if (b->buf_ring)
        (void) munmap(b->buf_ring, BUFFERS * sizeof(struct io_uring_buf));
    if (b->buffers)
        (void) munmap(b->buffers, (size_t) BUFFERS * BUFFER_BYTES);
}

/* Tries the flags of newer kernels first, then fewer flags. */
static int ev_uring_init_ring(struct io_uring *ring)
{
    static const unsigned flags[] = {
        IORING_SETUP_CQSIZE | IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN,
        IORING_SETUP_CQSIZE | IORING_SETUP_COOP_TASKRUN,
        IORING_SETUP_CQSIZE,
    };
    int r = -EINVAL;

    for (size_t i = 0; i < sizeof(flags) / sizeof(flags[0]) && r == -EINVAL; i++) {
        struct io_uring_params p = {.flags = flags[i], .cq_entries = CQ_ENTRIES};

        r = io_uring_queue_init_params(RING_ENTRIES, ring, &p);
    }

    return r;
}

/* Tries multishot recvmsg: older kernels accept the ring but not the operation. */
static int ev_uring_probe(struct uring_backend *b)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(&b->ring);
    struct io_uring_cqe *cqe;
    int pair[2], r;

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return -errno;
    if (send(pair[1], "?", 1, MSG_NOSIGNAL) != 1) {
        r = -errno;
    } else {
        io_uring_prep_recvmsg_multishot(sqe, pair[0], &b->receive_msg, 0);
        sqe->flags |= IOSQE_BUFFER_SELECT;
        sqe->buf_group = BUFFER_GROUP;
        r = io_uring_submit_and_wait(&b->ring, 1);
    }

    (void) close(pair[1]); /* ends the multishot */
    for (bool more = r >= 0; more;) {
        int got = io_uring_wait_cqe(&b->ring, &cqe);

        if (got < 0) {
            r = got;
            break;
        }

        if (cqe->res < 0)
            r = cqe->res;
        if (cqe->flags & IORING_CQE_F_BUFFER)
            ev_uring_give_buffer(b, cqe->flags >> IORING_CQE_BUFFER_SHIFT);
        more = cqe->flags & IORING_CQE_F_MORE;
        io_uring_cqe_seen(&b->ring, cqe);
    }

    (void) close(pair[0]);
    return r < 0 ? r : 0;
}

static int uring_start(struct ev *ev, struct errmsg *e)
{
    struct uring_backend *b = calloc(1, sizeof(*b));
    int r;

    if (!b)
        return fail(e, -ENOMEM, "out of memory while starting the event loop");

    b->receive_msg.msg_controllen = CONTROL_BYTES;
    r = ev_uring_init_ring(&b->ring);
    if (r < 0) {
        free(b);
        return fail(e, r, "io_uring is not available here: %s", strerror(-r));
    }

    r = ev_uring_make_buffers(b);
    if (r == 0)
        r = ev_uring_probe(b);
    if (r < 0) {
        io_uring_queue_exit(&b->ring);
        ev_uring_drop_buffers(b);
        free(b);
        return fail(e, r, "this kernel's io_uring lacks multishot receive: %s", strerror(-r));
    }

    ev->backend = b;
    return 0;
}

static void uring_stop(struct ev *ev)
{
    struct uring_backend *b = ev->backend;

    io_uring_queue_exit(&b->ring);
    ev_uring_drop_buffers(b);
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

static int ev_uring_arm(struct ev_source *s)
{
    struct uring_backend *b = s->ev->backend;
    struct io_uring_sqe *sqe = ev_uring_get_sqe(s->ev);

    if (!sqe)
        return -EBUSY;

    switch (s->kind) {
    case EV_KIND_LISTENER: /* see ev_uring_accept_waiting() */
        io_uring_prep_poll_add(sqe, s->fd, POLLIN);
        break;
    case EV_KIND_STREAM:
        io_uring_prep_recvmsg_multishot(sqe, s->fd, &b->receive_msg, MSG_CMSG_CLOEXEC);
        sqe->flags |= IOSQE_BUFFER_SELECT;
        sqe->buf_group = BUFFER_GROUP;
        break;
    case EV_KIND_WATCH:
        /* one shot, armed again after the callback: a descriptor that stays readable is reported again */
        io_uring_prep_poll_add(sqe, s->fd, POLLIN);
        break;
    }

    ev_uring_tag(sqe, s, OP_RECEIVE);
    s->receiving = true;
    return 0;
}

static int uring_add(struct ev_source *s)
{
    if (s->kind != EV_KIND_WATCH) {
        int flags = fcntl(s->fd, F_GETFL);
        int wanted = s->kind == EV_KIND_LISTENER ? flags | O_NONBLOCK : flags & ~O_NONBLOCK;

        if (flags < 0 || fcntl(s->fd, F_SETFL, wanted) < 0)
            return -errno;
    }
    return ev_uring_arm(s);
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

static void ev_uring_cancel(struct ev_source *s, unsigned op)
{
    struct io_uring_sqe *sqe = ev_uring_get_sqe(s->ev);

    if (!sqe) /* then shutdown() of the socket ends the operation */
        return;
    io_uring_prep_cancel64(sqe, (uint64_t) (uintptr_t) s | op, 0);
    ev_uring_tag(sqe, s, OP_CANCEL);
}

static void uring_remove(struct ev_source *s)
{
    if (s->receiving)
        ev_uring_cancel(s, OP_RECEIVE);
    if (s->sending)
        ev_uring_cancel(s, OP_SEND);
}

/* ---- completions ---- */

static void ev_uring_received_packet(struct ev_source *s, const struct io_uring_cqe *cqe)
{
    struct uring_backend *b = s->ev->backend;
    unsigned id = cqe->flags >> IORING_CQE_BUFFER_SHIFT;
    struct io_uring_recvmsg_out *out =
        io_uring_recvmsg_validate(b->buffers + (size_t) id * BUFFER_BYTES, cqe->res, &b->receive_msg);
    struct wire_packet p = {0};
    bool whole = false;

    if (out) {
        struct msghdr m = {.msg_control = io_uring_recvmsg_name(out), .msg_controllen = out->controllen};

        whole = wire_packet_take_control(&m, &p) && !(out->flags & (MSG_TRUNC | MSG_CTRUNC));
        p.bytes = io_uring_recvmsg_payload_length(out, cqe->res, &b->receive_msg);
    }

    if (whole && p.bytes > 0) {
        ev_deliver_packet(s, io_uring_recvmsg_payload(out, &b->receive_msg), &p);
    } else {
        wire_packet_close_fds(&p);
        ev_deliver_end(s, whole ? 0 : -EBADMSG);
    }

    ev_uring_give_buffer(b, id);
}

/* Arms a source again after its operation ended with @res. */
static int ev_uring_arm_again(struct ev_source *s, int res)
{
    bool exhausted = res == -EMFILE || res == -ENFILE || res == -ENOMEM || res == -ENOBUFS;

    if (s->kind == EV_KIND_LISTENER && exhausted) {
        ev_pause_accept(s);
        return 0;
    }
    if (s->kind != EV_KIND_STREAM && res < 0 && res != -ECONNABORTED && res != -EINTR && res != -EAGAIN)
        return res;
    return ev_uring_arm(s);
}

/*
 * A poll and accept4() replace multishot accept. The kernel's accept waits exclusively, and the ring of a
 * daemon that was just killed still waits on the socket that both processes share. That ring then takes the
 * wake-up, and a client stays in the queue until the next one connects (seen on 6.18, 2026-11). A poll is not
 * exclusive. Return: 0; errno of accept4().
 */
static int ev_uring_accept_waiting(struct ev_source *s)
{
    for (int i = 0; i < ACCEPTS_PER_EVENT; i++) {
        int fd = accept4(s->fd, NULL, NULL, SOCK_CLOEXEC);

        if (fd < 0)
            return -errno;

        ev_deliver_accept(s, fd);
    }
    return 0;
}

/* Handles a completion of OP_RECEIVE. The operation continues while F_MORE is set, else it is armed again. */
static void ev_uring_receive_done(struct ev_source *s, const struct io_uring_cqe *cqe)
{
    bool more = cqe->flags & IORING_CQE_F_MORE;
    int res = cqe->res, r;

    s->receiving = more;
    if (s->kind == EV_KIND_LISTENER && res >= 0)
        res = ev_uring_accept_waiting(s);
    else if (s->kind == EV_KIND_WATCH && res >= 0)
        ev_deliver_readable(s);
    else if (cqe->flags & IORING_CQE_F_BUFFER)
        ev_uring_received_packet(s, cqe);
    else if (s->kind == EV_KIND_STREAM && res != -ENOBUFS)
        ev_deliver_end(s, res); /* a completion without a buffer has 0 or an errno of the socket */
    if (!more && !s->dead && !s->ended) {
        r = ev_uring_arm_again(s, res);
        if (r < 0)
            ev_deliver_end(s, r);
    }

    if (!more)
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
        ev_deliver_end(s, r);
    ev_source_drop(s);
}

static void ev_uring_dispatch(const struct io_uring_cqe *cqe)
{
    struct ev_source *s = (struct ev_source *) (uintptr_t) (cqe->user_data & ~(uint64_t) OP_MASK);

    switch (cqe->user_data & OP_MASK) {
    case OP_RECEIVE:
        ev_uring_receive_done(s, cqe);
        break;
    case OP_SEND:
        ev_uring_send_done(s, cqe->res);
        break;
    default:
        ev_source_drop(s);
    }
}

static int uring_wait(struct ev *ev, int64_t timeout_ms)
{
    struct uring_backend *b = ev->backend;
    struct __kernel_timespec ts = {.tv_sec = timeout_ms / 1000, .tv_nsec = timeout_ms % 1000 * 1000000};
    struct io_uring_cqe *cqe;
    int r = io_uring_submit_and_wait_timeout(&b->ring, &cqe, 1, timeout_ms < 0 ? NULL : &ts, NULL);

    if (r < 0 && r != -ETIME && r != -EINTR && r != -EBUSY && r != -EAGAIN)
        return r;

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
    .add = uring_add,
    .send = uring_send,
    .resume = ev_uring_arm,
    .remove = uring_remove,
    .wait = uring_wait,
};
