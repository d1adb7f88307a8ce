/* Tests of daemon/tier/disk_io.c, disk_uring.c and disk_threads.c. */
#include "daemon/tier/disk_io.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/errmsg.h"
#include "base/fd_io.h"
#include "tests/lib/test.h"
#include "tests/unit/daemon/faulty_engine.h"

const char test_suite[] = "disk_io";

enum { BLOCK = 16384, N_BLOCKS = 16, DEPTH = 8, ALIGN = 4096 };

static struct disk_io io;
static int fd, wake_fd;
static uint8_t *memory; /* [DEPTH] blocks */
static struct disk_op ops[DEPTH];

/* Block i of the file is full of i + 1. */
static void begin(const struct disk_engine_ops *engine)
{
    const struct disk_engine_ops *const engines[] = {engine, NULL};
    char path[] = "/tmp/kvcobra-io-XXXXXX";
    struct disk_engine_options o;
    uint8_t block[BLOCK];
    struct errmsg why, e = {""};

    fd = mkstemp(path);
    assert(fd >= 0);
    for (unsigned i = 0; i < N_BLOCKS; i++) {
        memset(block, (int) i + 1, BLOCK);
        assert(fd_write_all(fd, block, BLOCK) == 0);
    }
    (void) close(fd);
    fd = open(path, O_RDWR | O_DIRECT | O_CLOEXEC);
    if (fd < 0) /* a file system without direct I/O */
        fd = open(path, O_RDWR | O_CLOEXEC);
    assert(fd >= 0 && unlink(path) == 0);
    wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    memory = aligned_alloc(ALIGN, DEPTH * BLOCK);
    assert(wake_fd >= 0 && memory);
    memset(memory, 0, DEPTH * BLOCK);
    o = (struct disk_engine_options){
        .fd = fd, .wake_fd = wake_fd, .memory = memory, .memory_bytes = DEPTH * BLOCK, .depth = DEPTH};
    faulty_reset();
    if (disk_io_init(&io, engines, &o, ALIGN, &why, &e) < 0) {
        CU_ASSERT(engine == &disk_uring_ops && strstr(e.text, "io_uring") != NULL);
        test_skip(e.text);
        io.ops = NULL;
    }
}

static void end(void)
{
    disk_io_deinit(&io);
    free(memory);
    (void) close(fd);
    (void) close(wake_fd);
}

/* Starts operation @i on block @block. */
static void start(unsigned i, bool is_write, unsigned block)
{
    ops[i] = (struct disk_op){
        .is_write = is_write, .data = memory + i * BLOCK, .bytes = BLOCK, .offset = (uint64_t) block * BLOCK};
    disk_io_begin(&io, &ops[i]);
}

static struct disk_op *take(void)
{
    struct disk_op *op;

    while (!(op = disk_io_take(&io)))
        CU_ASSERT_EQUAL_FATAL(disk_io_wait(&io, 60000), 0);
    return op;
}

static bool is_full_of(const uint8_t *p, unsigned value)
{
    for (unsigned i = 0; i < BLOCK; i++)
        if (p[i] != value)
            return false;
    return true;
}

/* Reads many, writes many and reads them again, at full depth. */
static void exchange(void)
{
    for (unsigned i = 0; i < DEPTH; i++)
        start(i, false, i);
    for (unsigned i = 0; i < DEPTH; i++)
        CU_ASSERT_EQUAL(take()->result, 0);
    for (unsigned i = 0; i < DEPTH; i++)
        CU_ASSERT_TRUE(is_full_of(memory + i * BLOCK, i + 1));
    for (unsigned i = 0; i < DEPTH; i++)
        start(i, true, N_BLOCKS - 1 - i);
    for (unsigned i = 0; i < DEPTH; i++)
        CU_ASSERT_EQUAL(take()->result, 0);
    memset(memory, 0, DEPTH * BLOCK);
    for (unsigned i = 0; i < DEPTH; i++)
        start(i, false, N_BLOCKS - 1 - i);
    for (unsigned i = 0; i < DEPTH; i++)
        CU_ASSERT_EQUAL(take()->result, 0);
    for (unsigned i = 0; i < DEPTH; i++)
        CU_ASSERT_TRUE(is_full_of(memory + i * BLOCK, i + 1));
    CU_ASSERT_EQUAL(io.n_in_flight, 0);
}

/* The engines of the daemon, one after the other. */
static void on_engines(void (*body)(const struct disk_engine_ops *engine))
{
    for (unsigned i = 0; disk_engines[i]; i++)
        body(disk_engines[i]);
}

static void exchange_on(const struct disk_engine_ops *engine)
{
    begin(engine);
    if (io.ops) {
        exchange();
        start(0, false, N_BLOCKS); /* behind the end */
        CU_ASSERT_EQUAL(take()->result, -ENODATA);
    }
    end();
}

static void test_engines(void)
{
    on_engines(exchange_on);
}

static void wake_on(const struct disk_engine_ops *engine)
{
    const uint64_t one = 1;
    uint64_t count;

    begin(engine);
    for (unsigned i = 0; i < 3 && io.ops; i++) {
        CU_ASSERT_EQUAL(fd_write_all(wake_fd, &one, sizeof(one)), 0);
        while (read(wake_fd, &count, sizeof(count)) == (ssize_t) sizeof(count)) {
            CU_ASSERT_EQUAL(fd_write_all(wake_fd, &one, sizeof(one)), 0);
            CU_ASSERT_EQUAL_FATAL(disk_io_wait(&io, 60000), 0);
            CU_ASSERT_PTR_NULL(disk_io_take(&io));
        }
        start(0, false, i);
        CU_ASSERT_EQUAL(take()->result, 0);
    }
    end();
}

/* A wait ends when wake_fd is readable, more than once, and operations go on. */
static void test_engines_wake(void)
{
    on_engines(wake_on);
}

static void cancel_on(const struct disk_engine_ops *engine)
{
    struct disk_op *op;

    begin(engine);
    if (io.ops) {
        start(0, false, 0);
        disk_io_cancel(&io, &ops[0]);
        op = take(); /* a file's read ends in either way, and exactly once */
        CU_ASSERT(op == &ops[0] && (op->result == 0 || op->result == -ECANCELED));
        CU_ASSERT_EQUAL(disk_io_wait(&io, 0), 0);
        CU_ASSERT_PTR_NULL(disk_io_take(&io));
    }
    end();
}

static void test_engines_cancel(void)
{
    on_engines(cancel_on);
}

static void test_shuffled(void)
{
    begin(&faulty_engine_ops);
    faulty_shuffle();
    exchange();
    end();
}

/* One write and one read under a fault of the first operation of each. */
static void expect(enum faulty_kind kind, int err, unsigned n, int write_result, int read_result)
{
    begin(&faulty_engine_ops);
    faulty_set(kind, err, 0, n);
    memset(memory, 0x5a, BLOCK);
    start(0, true, 3);
    CU_ASSERT_EQUAL(take()->result, write_result);
    if (write_result == 0) {
        faulty_reset();
        memset(memory + BLOCK, 0, BLOCK);
        start(1, false, 3);
        CU_ASSERT_EQUAL(take()->result, 0);
        CU_ASSERT_TRUE(is_full_of(memory + BLOCK, 0x5a));
    }
    faulty_reset();
    faulty_set(kind, err, 0, n);
    start(1, false, 5);
    CU_ASSERT_EQUAL(take()->result, read_result);
    if (read_result == 0)
        CU_ASSERT_TRUE(is_full_of(memory + BLOCK, 6));
    CU_ASSERT_EQUAL(io.n_in_flight, 0);
    end();
}

static void test_short(void)
{
    expect(FAULTY_SHORT, 0, 1, 0, 0);
    expect(FAULTY_SHORT, 0, 2, 0, 0);
    CU_ASSERT_EQUAL(faulty_n_started(), 3);   /* half, a quarter, the rest */
    CU_ASSERT_EQUAL(faulty_n_moved(), BLOCK); /* each byte once */
    expect(FAULTY_SHORT_ODD, 0, 1, 0, 0);
    CU_ASSERT_EQUAL(faulty_n_started(), 2);
}

static void test_interrupted(void)
{
    expect(FAULTY_ERROR, EINTR, 3, 0, 0);
    expect(FAULTY_ERROR, EAGAIN, DISK_IO_TRIES_MAX - 1, 0, 0);
    expect(FAULTY_ERROR, EAGAIN, DISK_IO_TRIES_MAX, -EIO, -EIO); /* and not for ever */
    CU_ASSERT_EQUAL(faulty_n_started(), DISK_IO_TRIES_MAX);
    expect(FAULTY_SHORT_ODD, 0, 1000, -EIO, -EIO); /* without progress */
}

static void test_failed(void)
{
    expect(FAULTY_ERROR, EIO, 1, -EIO, -EIO);
    expect(FAULTY_ERROR, ENOSPC, 1, -ENOSPC, -ENOSPC);
    expect(FAULTY_NOTHING, 0, 1, -EIO, -ENODATA);
    expect(FAULTY_TOO_MUCH, 0, 1, -EIO, -EIO);
    expect(FAULTY_NOT_STARTED, 0, 1, -EBUSY, -EBUSY);
}

/* An operation that cannot be started, beside others that can. */
static void test_not_started_beside_others(void)
{
    unsigned n_failed = 0;

    begin(&faulty_engine_ops);
    faulty_set(FAULTY_NOT_STARTED, 0, 1, 2);
    for (unsigned i = 0; i < 4; i++)
        start(i, false, i);
    for (unsigned i = 0; i < 4; i++) {
        struct disk_op *op = take();

        CU_ASSERT_EQUAL(op->result, op == &ops[1] || op == &ops[2] ? -EBUSY : 0);
        n_failed += op->result < 0;
    }
    CU_ASSERT(n_failed == 2 && io.n_in_flight == 0);
    end();
}

static void test_cancel(void)
{
    begin(&faulty_engine_ops);
    faulty_hold(true);
    start(0, false, 0);
    start(1, false, 1);
    disk_io_cancel(&io, &ops[1]);
    CU_ASSERT_PTR_EQUAL(take(), &ops[1]);
    CU_ASSERT_EQUAL(ops[1].result, -ECANCELED);
    CU_ASSERT_PTR_NULL(disk_io_take(&io));
    faulty_release();
    CU_ASSERT_PTR_EQUAL(take(), &ops[0]);
    CU_ASSERT_EQUAL(ops[0].result, 0);
    end();
}

const struct test_case test_cases[] = {
    TEST(test_engines),
    TEST(test_engines_wake),
    TEST(test_engines_cancel),
    TEST(test_shuffled),
    TEST(test_short),
    TEST(test_interrupted),
    TEST(test_failed),
    TEST(test_cancel),
    TEST(test_not_started_beside_others),
    TEST_END,
};
