/* daemon/gpu/mover.c with the real kvcobra-mover: a lost GPU, a killed mover and a missing driver, with
 * requests that are retried. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/errmsg.h"
#include "daemon/gpu/mover.h"
#include "tests/lib/test.h"

enum { TIMEOUT_MS = 60000, MIB = 1 << 20 };

static struct {
    struct ev *ev;
    struct mover *mover;
    int err, fd;
    char message[400];
} t;

static void begin(void)
{
    struct errmsg e;

    memset(&t, 0, sizeof(t));
    CU_ASSERT_EQUAL_FATAL(ev_new(&t.ev, &e), 0);
    CU_ASSERT_EQUAL_FATAL(mover_new(t.ev, MOVER, &t.mover, &e), 0);
}

static void end(void)
{
    t.mover = mover_free(t.mover);
    t.ev = ev_free(t.ev);
}

static void on_reply(void *ctx, struct mover_reply *reply)
{
    (void) ctx;
    t.err = reply->err;
    t.fd = reply->fd;
    reply->fd = -1;
    (void) snprintf(t.message, sizeof(t.message), "%s", reply->message);
    ev_stop(t.ev);
}

static void on_tick(void *ctx)
{
    (void) ctx;
    ev_stop(t.ev);
}

/* Retries a request until it is accepted, as callers do while a mover restarts.
 * Returns the errno of the reply. */
static int ask(Kvcobra__MoverRequest *m)
{
    int r;

    ev_tick_every(t.ev, 10, on_tick, NULL);
    while ((r = mover_ask(t.mover, m, NULL, 0, TIMEOUT_MS, on_reply, NULL)) == -EAGAIN)
        CU_ASSERT_EQUAL_FATAL(ev_run(t.ev), 0);
    ev_tick_every(t.ev, 0, NULL, NULL);
    CU_ASSERT_EQUAL_FATAL(r, 0);
    CU_ASSERT_EQUAL_FATAL(ev_run(t.ev), 0);
    return t.err;
}

static int ask_open(void)
{
    Kvcobra__MoverOpen open = KVCOBRA__MOVER_OPEN__INIT;
    Kvcobra__MoverRequest m = KVCOBRA__MOVER_REQUEST__INIT;

    open.bytes = 4 * MIB;
    m.body_case = KVCOBRA__MOVER_REQUEST__BODY_OPEN;
    m.open = &open;
    return ask(&m);
}

static int ask_create(void)
{
    Kvcobra__MoverCreate create = KVCOBRA__MOVER_CREATE__INIT;
    Kvcobra__MoverRequest m = KVCOBRA__MOVER_REQUEST__INIT;
    int err;

    create.bytes = MIB;
    m.body_case = KVCOBRA__MOVER_REQUEST__BODY_CREATE;
    m.create = &create;
    err = ask(&m);
    CU_ASSERT_EQUAL(t.fd >= 0, err == 0);
    if (t.fd >= 0)
        (void) close(t.fd);
    return err;
}

static uint64_t restarts(pid_t *ret_pid)
{
    uint64_t n;

    mover_get_info(t.mover, ret_pid, &n);
    return n;
}

/* A request that loses the context gets a reply; a new process, with the
 * same devices open, serves the next. */
static void test_lost_gpu(void)
{
    pid_t pid;

    begin();
    CU_ASSERT_EQUAL(setenv("STANDIN_FAIL", "cuMemsetD8_v2:2:-719", 1), 0);
    CU_ASSERT_EQUAL(ask_open(), 0);
    CU_ASSERT_EQUAL(ask_create(), 0);
    CU_ASSERT_EQUAL(ask_create(), -EIO);
    CU_ASSERT_PTR_NOT_NULL(strstr(t.message, "cannot clear GPU memory"));
    CU_ASSERT_EQUAL(unsetenv("STANDIN_FAIL"), 0);
    while (ask_create() == -ECONNRESET) /* from the process that is exiting */
        ;
    CU_ASSERT_EQUAL(t.err, 0);
    CU_ASSERT_EQUAL(restarts(&pid), 1);
    end();
}

/* After the mover is killed between two replies or during work, a retried request is served. */
static void test_killed(void)
{
    begin();
    CU_ASSERT_EQUAL(ask_open(), 0);
    for (unsigned i = 1; i <= 3; i++) {
        pid_t pid;
        int err;

        (void) restarts(&pid);
        CU_ASSERT_EQUAL(kill(pid, SIGKILL), 0);
        while ((err = ask_create()) == -ECONNRESET)
            ;
        CU_ASSERT_EQUAL(err, 0);
        CU_ASSERT_EQUAL(restarts(&pid), i);
    }
    end();
}

static void test_driver_installed_later(void)
{
    char before[400];

    (void) snprintf(before, sizeof(before), "%s", getenv("LD_LIBRARY_PATH"));
    begin();
    CU_ASSERT_EQUAL(setenv("LD_LIBRARY_PATH", STANDIN_CUDA_OLD, 1), 0);
    CU_ASSERT_EQUAL(ask_open(), -EOPNOTSUPP);
    CU_ASSERT_PTR_NOT_NULL(strstr(t.message, "too old"));
    CU_ASSERT_EQUAL(ask_create(), -ENODEV);
    CU_ASSERT_EQUAL(setenv("LD_LIBRARY_PATH", before, 1), 0);
    {
        pid_t pid;

        (void) restarts(&pid);
        CU_ASSERT_EQUAL(kill(pid, SIGKILL), 0); /* as before a restart of the driver */
    }
    while (ask_create() == -ECONNRESET)
        ;
    CU_ASSERT_EQUAL(t.err, -ENODEV); /* a device whose opening failed is not opened again automatically */
    CU_ASSERT_EQUAL(ask_open(), 0);
    CU_ASSERT_EQUAL(ask_create(), 0);
    end();
}

const char test_suite[] = "mover and daemon";
const struct test_case test_cases[] = {TEST(test_lost_gpu), TEST(test_killed),
                                       TEST(test_driver_installed_later), TEST_END};
