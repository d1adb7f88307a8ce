/*
 * The engine of the disk tier on io_uring: direct reads and writes, with registered memory where the limit of
 * locked memory allows it. See disk_io.h.
 */
#include <errno.h>
#include <liburing.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/errmsg.h"
#include "daemon/loop/uring.h"
#include "daemon/tier/disk_io.h"

enum { OTHER_ENTRIES = 8 }; /* for the poll and for cancelling */

/* user_data that is no address of an operation */
enum { DATA_WAKE = 1, DATA_CANCEL = 2 };

struct disk_uring {
    struct io_uring ring;
    struct disk_engine_options options;
    bool is_locked, is_polling; /* polling: the kernel watches wake_fd */
};

static void disk_uring_stop(void *engine)
{
    struct disk_uring *u = engine;

    io_uring_queue_exit(&u->ring);
    free(u);
}

static int disk_uring_start(const struct disk_engine_options *o, void **ret_engine, bool *ret_locked,
                            struct errmsg *e)
{
    const struct iovec memory = {.iov_base = o->memory, .iov_len = o->memory_bytes};
    struct disk_uring *u = calloc(1, sizeof(*u));
    int r;

    if (!u)
        return fail(e, -ENOMEM, "out of memory for the disk tier");

    u->options = *o;
    r = uring_init(&u->ring, o->depth + OTHER_ENTRIES, 2 * (o->depth + OTHER_ENTRIES));
    if (r < 0) {
        free(u);
        return fail(e, r, "io_uring is not available here: %s", uring_explain(r));
    }

    /* -ENOMEM: more than RLIMIT_MEMLOCK. The kernel then pins the memory anew for each operation. */
    u->is_locked = io_uring_register_buffers(&u->ring, &memory, 1) == 0;
    *ret_engine = u;
    *ret_locked = u->is_locked;
    return 0;
}

static struct io_uring_sqe *disk_uring_get_sqe(struct disk_uring *u)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(&u->ring);

    if (!sqe && io_uring_submit(&u->ring) >= 0) /* the queue was full: submit it */
        sqe = io_uring_get_sqe(&u->ring);
    return sqe;
}

static int disk_uring_begin(void *engine, struct disk_op *op)
{
    struct disk_uring *u = engine;
    struct io_uring_sqe *sqe = disk_uring_get_sqe(u);
    uint8_t *data = op->data + op->n_done;
    unsigned n = (unsigned) (op->bytes - op->n_done); /* at most DISK_BUFFERS_BYTES_MAX */
    uint64_t offset = op->offset + op->n_done;

    if (!sqe)
        return -EBUSY;

    if (u->is_locked && op->is_write)
        io_uring_prep_write_fixed(sqe, u->options.fd, data, n, offset, 0);
    else if (u->is_locked)
        io_uring_prep_read_fixed(sqe, u->options.fd, data, n, offset, 0);
    else if (op->is_write)
        io_uring_prep_write(sqe, u->options.fd, data, n, offset);
    else
        io_uring_prep_read(sqe, u->options.fd, data, n, offset);
    io_uring_sqe_set_data(sqe, op);
    return 0;
}

static void disk_uring_cancel(void *engine, struct disk_op *op)
{
    struct disk_uring *u = engine;
    struct io_uring_sqe *sqe = disk_uring_get_sqe(u);

    if (!sqe) /* the operation ends by itself */
        return;
    io_uring_prep_cancel(sqe, op, 0);
    io_uring_sqe_set_data64(sqe, DATA_CANCEL);
}

static int disk_uring_wait(void *engine, uint64_t timeout_ms)
{
    struct disk_uring *u = engine;
    struct __kernel_timespec t = {.tv_sec = (int64_t) (timeout_ms / 1000),
                                  .tv_nsec = (long long) (timeout_ms % 1000 * 1000000)};
    struct io_uring_sqe *sqe = u->is_polling ? NULL : disk_uring_get_sqe(u);
    struct io_uring_cqe *cqe;
    int r;

    if (sqe) {
        io_uring_prep_poll_add(sqe, u->options.wake_fd, POLLIN);
        io_uring_sqe_set_data64(sqe, DATA_WAKE);
        u->is_polling = true;
    }

    r = io_uring_submit_and_wait_timeout(&u->ring, &cqe, 1, &t, NULL);
    return r < 0 && r != -ETIME && r != -EINTR && r != -EBUSY && r != -EAGAIN ? r : 0;
}

static void disk_uring_woken(struct disk_uring *u)
{
    uint64_t count;

    (void) !read(u->options.wake_fd, &count, sizeof(count)); /* no longer readable */
    u->is_polling = false;
}

static bool disk_uring_next(void *engine, struct disk_op **ret_op, int64_t *ret_moved)
{
    struct disk_uring *u = engine;
    struct io_uring_cqe *cqe;

    while (io_uring_peek_cqe(&u->ring, &cqe) == 0) {
        uint64_t data = cqe->user_data;
        int res = cqe->res;

        io_uring_cqe_seen(&u->ring, cqe);
        if (data == DATA_WAKE) {
            disk_uring_woken(u);
        } else if (data != DATA_CANCEL) {
            *ret_op = (struct disk_op *) (uintptr_t) data;
            *ret_moved = res;
            return true;
        }
    }

    return false;
}

const struct disk_engine_ops disk_uring_ops = {
    .name = "io_uring",
    .start = disk_uring_start,
    .stop = disk_uring_stop,
    .begin = disk_uring_begin,
    .cancel = disk_uring_cancel,
    .wait = disk_uring_wait,
    .next = disk_uring_next,
};
