/* See disk_io.h. */
#include "daemon/tier/disk_io.h"

#include <assert.h>
#include <errno.h>

#include "base/errmsg.h"

const struct disk_engine_ops *const disk_engines[] = {&disk_uring_ops, &disk_threads_ops, NULL};

int disk_io_init(struct disk_io *io, const struct disk_engine_ops *const *engines,
                 const struct disk_engine_options *o, uint32_t align, struct errmsg *why, struct errmsg *e)
{
    void *engine;
    bool is_locked;
    int r = engines[0]->start(o, &engine, &is_locked, e);

    errmsg_clear(why);
    while (r < 0 && engines[1]) {
        *why = *e;
        errmsg_clear(e);
        engines++;
        r = engines[0]->start(o, &engine, &is_locked, e);
    }
    if (r < 0)
        return r;

    *io = (struct disk_io){
        .ops = engines[0], .engine = engine, .options = *o, .align = align, .is_locked = is_locked};
    return 0;
}

void disk_io_deinit(struct disk_io *io)
{
    if (!io->ops)
        return;
    assert(io->n_in_flight == 0);
    io->ops->stop(io->engine);
    *io = (struct disk_io){.ops = NULL};
}

/* Starts what is left of @op. */
static void disk_io_start(struct disk_io *io, struct disk_op *op)
{
    int r = op->n_tries < DISK_IO_TRIES_MAX ? io->ops->begin(io->engine, op) : -EIO;

    op->n_tries++;
    if (r == 0)
        return;

    op->result = r;
    op->next = io->failed;
    io->failed = op;
}

void disk_io_begin(struct disk_io *io, struct disk_op *op)
{
    assert(io->n_in_flight < io->options.depth && (op->bytes | op->offset) % io->align == 0);
    assert(op->data >= io->options.memory &&
           op->bytes <= io->options.memory_bytes - (uint64_t) (op->data - io->options.memory));
    op->n_done = 0;
    op->n_tries = 0;
    op->result = 0;
    io->n_in_flight++;
    disk_io_start(io, op);
}

void disk_io_cancel(struct disk_io *io, struct disk_op *op)
{
    io->ops->cancel(io->engine, op);
}

int disk_io_wait(struct disk_io *io, uint64_t timeout_ms)
{
    return io->ops->wait(io->engine, io->failed ? 0 : timeout_ms);
}

/*
 * Judges a report. Direct I/O continues at a multiple of the alignment: what was moved beyond it is moved
 * again. Return: whether the operation has ended.
 */
static bool disk_io_judge(struct disk_io *io, struct disk_op *op, int64_t moved)
{
    uint64_t left = op->bytes - op->n_done, whole;

    if (moved == -EINTR || moved == -EAGAIN) {
        disk_io_start(io, op);
        return false;
    }
    if (moved <= 0 || (uint64_t) moved > left) {
        op->result = moved < 0 ? (int) moved : -EIO;
        if (moved == 0 && !op->is_write)
            op->result = -ENODATA;
        return true;
    }
    if ((uint64_t) moved == left) {
        op->n_done = op->bytes;
        return true;
    }

    whole = (uint64_t) moved & ~(uint64_t) (io->align - 1);
    op->n_done += whole;
    if (whole > 0)
        op->n_tries = 0;
    disk_io_start(io, op);
    return false;
}

struct disk_op *disk_io_take(struct disk_io *io)
{
    struct disk_op *op;
    int64_t moved;

    while (!io->failed && io->ops->next(io->engine, &op, &moved)) {
        if (!disk_io_judge(io, op, moved))
            continue;
        io->n_in_flight--;
        return op;
    }

    op = io->failed;
    if (op) {
        io->failed = op->next;
        io->n_in_flight--;
    }
    return op;
}
