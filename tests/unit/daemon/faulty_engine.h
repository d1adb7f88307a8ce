/*
 * An engine of the disk tier (daemon/tier/disk_io.h) that reads and writes with pread(2) and pwrite(2), and
 * fails in the way that a test asks for. Its settings are global: one engine runs at a time, on any thread.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "daemon/tier/disk_io.h"

enum faulty_kind {
    FAULTY_NONE = 0,
    FAULTY_ERROR,       /* reports faulty_set()'s errno and moves nothing */
    FAULTY_SHORT,       /* moves and reports a part */
    FAULTY_SHORT_ODD,   /* reports a part that is not a multiple of the alignment */
    FAULTY_NOTHING,     /* reports 0 */
    FAULTY_TOO_MUCH,    /* reports more than was asked for */
    FAULTY_LOST,        /* reports a write that it did not do */
    FAULTY_TORN,        /* reports a write of which it did one half */
    FAULTY_NOT_STARTED, /* cannot be started */
};

extern const struct disk_engine_ops faulty_engine_ops;
extern const struct disk_engine_ops *const faulty_engines[]; /* it alone */

/* No fault, nothing held, order as started. */
void faulty_reset(void);

/* Operations from number @first on (0: the next one) fail so, @n of them. */
void faulty_set(enum faulty_kind kind, int err, unsigned first, unsigned n);

/* Reports come in random order. */
void faulty_shuffle(void);

/*
 * Started operations are not reported until faulty_release(). A cancelled one is reported at once if
 * @cancels.
 */
void faulty_hold(bool cancels);
void faulty_release(void);

/* The engine does not start: the sentence of io_uring's own failure. */
void faulty_refuse(void);

unsigned faulty_n_started(void);   /* since faulty_reset() */
uint64_t faulty_n_moved(void);     /* bytes, the same */
void faulty_wait_held(unsigned n); /* until so many operations are held; asserts */
