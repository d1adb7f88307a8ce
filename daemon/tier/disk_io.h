/*
 * Reads and writes of one file, many at a time. An engine starts them and reports what the kernel moved: the
 * daemon has one on io_uring and one of threads, tests have one that fails in every way. What an engine
 * reports is judged here: a short read or write continues where it stopped, an interrupted one begins anew.
 *
 * The memory of an operation belongs to the kernel until disk_io_take() returns the operation, also after
 * disk_io_cancel(). One thread calls.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct errmsg;

#define DISK_IO_TRIES_MAX 16 /* of one operation without progress */

struct disk_op { /* embedded */
    struct disk_op *next;
    bool is_write;
    uint8_t *data; /* in the memory of the engine's options, aligned */
    uint64_t bytes, offset;
    uint64_t n_done;
    unsigned n_tries;
    int result; /* 0; -ENODATA: the file ends inside the range; -ECANCELED; errno */
};

struct disk_engine_options {
    int fd;          /* the file, borrowed */
    int wake_fd;     /* borrowed eventfd: a wait ends when it is readable, and resets it */
    uint8_t *memory; /* that operations use */
    uint64_t memory_bytes;
    uint32_t depth; /* operations at a time at most */
};

struct disk_engine_ops {
    const char *name;
    /*
     * @ret_locked: the memory is registered with the kernel. Return: 0; errno with a sentence: this engine
     * cannot run here.
     */
    int (*start)(const struct disk_engine_options *o, void **ret_engine, bool *ret_locked, struct errmsg *e);
    void (*stop)(void *engine); /* no operation is in flight */
    /* Starts to move the bytes from op->n_done on. Return: 0; errno. */
    int (*begin)(void *engine, struct disk_op *op);
    void (*cancel)(void *engine, struct disk_op *op); /* a request: the operation is reported in any case */
    /* Waits for a report, for wake_fd, or for @timeout_ms. Return: 0; errno of the engine. */
    int (*wait)(void *engine, uint64_t timeout_ms);
    /* The next report: bytes moved, or a negative errno. False: there is none. */
    bool (*next)(void *engine, struct disk_op **ret_op, int64_t *ret_moved);
};

extern const struct disk_engine_ops disk_uring_ops, disk_threads_ops;

/* Those of the daemon, the fastest first, ended by NULL. */
extern const struct disk_engine_ops *const disk_engines[];

struct disk_io {
    const struct disk_engine_ops *ops;
    void *engine;
    struct disk_engine_options options;
    uint32_t align;
    bool is_locked;
    uint32_t n_in_flight;
    struct disk_op *failed; /* could not be started */
};

/*
 * Starts the first of @engines (ended by NULL) that runs here. @why: why those before it do not, or empty.
 * Return: 0; errno of the last one, with its sentence.
 */
int disk_io_init(struct disk_io *io, const struct disk_engine_ops *const *engines,
                 const struct disk_engine_options *o, uint32_t align, struct errmsg *why, struct errmsg *e);
void disk_io_deinit(struct disk_io *io); /* no operation is in flight */

/* Starts @op, whose data, bytes, offset and is_write are set and aligned. disk_io_take() returns it. */
void disk_io_begin(struct disk_io *io, struct disk_op *op);
void disk_io_cancel(struct disk_io *io, struct disk_op *op);
int disk_io_wait(struct disk_io *io, uint64_t timeout_ms);

/* An operation that has ended, with its result. NULL: none has. */
struct disk_op *disk_io_take(struct disk_io *io);
