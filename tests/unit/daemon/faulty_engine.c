/* See faulty_engine.h. */
#include "tests/unit/daemon/faulty_engine.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/errmsg.h"
#include "base/fd_io.h"
#include "tests/lib/test.h"
#include "tests/lib/wait.h"

enum { PENDING_MAX = 256, ODD_BYTES = 1000 };

static struct {
    pthread_mutex_t lock;
    struct disk_engine_options options;
    bool runs, holds, cancels, shuffles, refuses;
    enum faulty_kind kind;
    int err;
    unsigned first, n;
    unsigned n_started;
    uint64_t n_moved;
    struct {
        struct disk_op *op;
        enum faulty_kind kind;
        bool cancelled;
    } pending[PENDING_MAX];
    unsigned n_pending;
} faulty = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- settings ---- */

void faulty_reset(void)
{
    (void) pthread_mutex_lock(&faulty.lock);
    faulty.holds = faulty.cancels = faulty.shuffles = faulty.refuses = false;
    faulty.kind = FAULTY_NONE;
    faulty.n_started = 0;
    faulty.n_moved = 0;
    (void) pthread_mutex_unlock(&faulty.lock);
}

void faulty_set(enum faulty_kind kind, int err, unsigned first, unsigned n)
{
    (void) pthread_mutex_lock(&faulty.lock);
    faulty.kind = kind;
    faulty.err = err;
    faulty.first = faulty.n_started + first;
    faulty.n = n;
    (void) pthread_mutex_unlock(&faulty.lock);
}

void faulty_shuffle(void)
{
    faulty.shuffles = true;
}

void faulty_refuse(void)
{
    faulty.refuses = true;
}

void faulty_hold(bool cancels)
{
    (void) pthread_mutex_lock(&faulty.lock);
    faulty.holds = true;
    faulty.cancels = cancels;
    (void) pthread_mutex_unlock(&faulty.lock);
}

void faulty_release(void)
{
    const uint64_t one = 1;

    (void) pthread_mutex_lock(&faulty.lock);
    faulty.holds = false;
    if (faulty.runs)
        (void) fd_write_all(faulty.options.wake_fd, &one, sizeof(one));
    (void) pthread_mutex_unlock(&faulty.lock);
}

unsigned faulty_n_started(void)
{
    unsigned n;

    (void) pthread_mutex_lock(&faulty.lock);
    n = faulty.n_started;
    (void) pthread_mutex_unlock(&faulty.lock);
    return n;
}

static unsigned faulty_n_held(void)
{
    unsigned n;

    (void) pthread_mutex_lock(&faulty.lock);
    n = faulty.holds ? faulty.n_pending : 0;
    (void) pthread_mutex_unlock(&faulty.lock);
    return n;
}

uint64_t faulty_n_moved(void)
{
    return __atomic_load_n(&faulty.n_moved, __ATOMIC_RELAXED);
}

void faulty_wait_held(unsigned n)
{
    for (struct wait w = wait_begin(); faulty_n_held() < n && wait_again(&w);)
        ;
    CU_ASSERT_EQUAL_FATAL(faulty_n_held(), n);
}

/* ---- the engine ---- */

static int faulty_start(const struct disk_engine_options *o, void **ret_engine, bool *ret_locked,
                        struct errmsg *e)
{
    if (faulty.refuses)
        return fail(e, -EPERM, "the disk tier needs an engine, and a test refuses it");

    (void) pthread_mutex_lock(&faulty.lock);
    assert(!faulty.runs && faulty.n_pending == 0);
    faulty.runs = true;
    faulty.options = *o;
    (void) pthread_mutex_unlock(&faulty.lock);
    *ret_engine = &faulty;
    *ret_locked = false;
    return 0;
}

static void faulty_stop(void *engine)
{
    (void) engine;
    (void) pthread_mutex_lock(&faulty.lock);
    assert(faulty.n_pending == 0);
    faulty.runs = false;
    (void) pthread_mutex_unlock(&faulty.lock);
}

static int faulty_begin(void *engine, struct disk_op *op)
{
    enum faulty_kind kind = FAULTY_NONE;
    unsigned number;

    (void) engine;
    (void) pthread_mutex_lock(&faulty.lock);
    number = faulty.n_started++;
    if (number >= faulty.first && number - faulty.first < faulty.n)
        kind = faulty.kind;
    if (kind != FAULTY_NOT_STARTED) {
        assert(faulty.n_pending < PENDING_MAX && faulty.n_pending < faulty.options.depth);
        faulty.pending[faulty.n_pending].op = op;
        faulty.pending[faulty.n_pending].kind = kind;
        faulty.pending[faulty.n_pending++].cancelled = false;
    }
    (void) pthread_mutex_unlock(&faulty.lock);
    return kind == FAULTY_NOT_STARTED ? -EBUSY : 0;
}

static void faulty_cancel(void *engine, struct disk_op *op)
{
    (void) engine;
    (void) pthread_mutex_lock(&faulty.lock);
    for (unsigned i = 0; i < faulty.n_pending; i++)
        if (faulty.pending[i].op == op && faulty.cancels)
            faulty.pending[i].cancelled = true;
    (void) pthread_mutex_unlock(&faulty.lock);
}

/* The number of an operation to report now; n_pending: none. Called with the lock held. */
static unsigned faulty_choose(void)
{
    for (unsigned i = 0; i < faulty.n_pending; i++)
        if (faulty.pending[i].cancelled)
            return i;
    if (faulty.holds)
        return faulty.n_pending;
    return faulty.shuffles && faulty.n_pending > 0 ? (unsigned) test_rand_below(faulty.n_pending) : 0;
}

static int faulty_wait(void *engine, uint64_t timeout_ms)
{
    struct pollfd p = {.fd = faulty.options.wake_fd, .events = POLLIN};
    uint64_t count;
    bool ready;

    (void) engine;
    (void) pthread_mutex_lock(&faulty.lock);
    ready = faulty_choose() < faulty.n_pending;
    (void) pthread_mutex_unlock(&faulty.lock);
    if (poll(&p, 1, ready ? 0 : (int) timeout_ms) > 0)
        (void) !read(p.fd, &count, sizeof(count));
    return 0;
}

static int64_t faulty_move(const struct disk_op *op, uint64_t bytes)
{
    ssize_t n =
        op->is_write
            ? pwrite(faulty.options.fd, op->data + op->n_done, bytes, (off_t) (op->offset + op->n_done))
            : pread(faulty.options.fd, op->data + op->n_done, bytes, (off_t) (op->offset + op->n_done));

    if (n < 0)
        return -errno;
    (void) __atomic_add_fetch(&faulty.n_moved, (uint64_t) n, __ATOMIC_RELAXED);
    return n;
}

/* What the engine reports for @op, after it moved what the fault lets it move. */
static int64_t faulty_do(const struct disk_op *op, enum faulty_kind kind)
{
    uint64_t left = op->bytes - op->n_done, half = left / 2 & ~UINT64_C(4095);

    switch (kind) {
    case FAULTY_ERROR:
        return -faulty.err;
    case FAULTY_SHORT:
        return half > 0 ? faulty_move(op, half) : faulty_move(op, left);
    case FAULTY_SHORT_ODD:
        (void) faulty_move(op, left);
        return ODD_BYTES;
    case FAULTY_NOTHING:
        return 0;
    case FAULTY_TOO_MUCH:
        return (int64_t) left + 1;
    case FAULTY_LOST:
        return (int64_t) left;
    case FAULTY_TORN:
        (void) faulty_move(op, half);
        return (int64_t) left;
    default:
        return faulty_move(op, left);
    }
}

static bool faulty_next(void *engine, struct disk_op **ret_op, int64_t *ret_moved)
{
    enum faulty_kind kind;
    bool cancelled;
    unsigned i;

    (void) engine;
    (void) pthread_mutex_lock(&faulty.lock);
    i = faulty_choose();
    if (i >= faulty.n_pending) {
        (void) pthread_mutex_unlock(&faulty.lock);
        return false;
    }

    *ret_op = faulty.pending[i].op;
    kind = faulty.pending[i].kind;
    cancelled = faulty.pending[i].cancelled;
    faulty.n_pending--;
    memmove(&faulty.pending[i], &faulty.pending[i + 1], (faulty.n_pending - i) * sizeof(faulty.pending[0]));
    (void) pthread_mutex_unlock(&faulty.lock);
    *ret_moved = cancelled ? -ECANCELED : faulty_do(*ret_op, kind);
    return true;
}

const struct disk_engine_ops faulty_engine_ops = {
    .name = "faulty",
    .start = faulty_start,
    .stop = faulty_stop,
    .begin = faulty_begin,
    .cancel = faulty_cancel,
    .wait = faulty_wait,
    .next = faulty_next,
};

const struct disk_engine_ops *const faulty_engines[] = {&faulty_engine_ops, NULL};
