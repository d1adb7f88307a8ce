/* The daemon's link to its mover, with fake_mover.c: answers, deaths, wrong answers, silence. */
#include "daemon/gpu/mover.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/errmsg.h"
#include "tests/lib/test.h"

const char test_suite[] = "mover";

enum { TIMEOUT_MS = 60000, ANSWERS_MAX = 80 };

struct answer {
    int err, fd;
    char message[200];
    Kvcobra__MoverReply__BodyCase kind;
    uint32_t values[8]; /* of PROCESSES, CHECK */
    size_t n_values;
};

static struct {
    struct ev *ev;
    struct mover *mover;
    struct answer answers[ANSWERS_MAX];
    size_t n, stop_at;
    bool take_fds;
    unsigned n_descriptors;
} t;

static unsigned open_descriptors(void)
{
    DIR *d = opendir("/proc/self/fd");
    unsigned n = 0;

    while (readdir(d))
        n++;
    (void) closedir(d);
    return n;
}

static void begin(const char *behaviour, const char *path)
{
    struct errmsg e;

    memset(&t, 0, sizeof(t));
    CU_ASSERT_EQUAL(setenv("FAKE_MOVER", behaviour, 1), 0);
    t.n_descriptors = open_descriptors();
    CU_ASSERT_EQUAL_FATAL(ev_new(&t.ev, &e), 0);
    CU_ASSERT_EQUAL_FATAL(mover_new(t.ev, path, &t.mover, &e), 0);
}

static void end(void)
{
    t.mover = mover_free(t.mover);
    t.ev = ev_free(t.ev);
    CU_ASSERT_EQUAL(open_descriptors(), t.n_descriptors);
}

static void on_answer(void *ctx, struct mover_reply *reply)
{
    struct answer *a = &t.answers[t.n++];

    (void) ctx;
    assert(t.n <= ANSWERS_MAX);
    *a = (struct answer){.err = reply->err, .fd = -1};
    (void) snprintf(a->message, sizeof(a->message), "%s", reply->message);
    CU_ASSERT_EQUAL(reply->body != NULL, reply->err == 0);
    if (reply->body) {
        a->kind = reply->body->body_case;
        if (a->kind == KVCOBRA__MOVER_REPLY__BODY_PROCESSES) {
            a->n_values = reply->body->processes->n_pids;
            for (size_t i = 0; i < a->n_values; i++)
                a->values[i] = reply->body->processes->pids[i];
        } else if (a->kind == KVCOBRA__MOVER_REPLY__BODY_CHECK) {
            a->n_values = reply->body->check->n_crc32c;
            memcpy(a->values, reply->body->check->crc32c, a->n_values * sizeof(uint32_t));
        }
    }
    if (t.take_fds) {
        a->fd = reply->fd;
        reply->fd = -1;
    }
    if (t.n == t.stop_at)
        ev_stop(t.ev);
}

static void wait_for(size_t n)
{
    t.stop_at = n;
    if (t.n < n)
        CU_ASSERT_EQUAL_FATAL(ev_run(t.ev), 0);
}

static int ask(Kvcobra__MoverRequest__BodyCase kind, uint32_t device, int fd, uint64_t timeout_ms)
{
    Kvcobra__MoverRequest m = KVCOBRA__MOVER_REQUEST__INIT;
    Kvcobra__MoverOpen open = KVCOBRA__MOVER_OPEN__INIT;
    Kvcobra__MoverCreate create = KVCOBRA__MOVER_CREATE__INIT;
    Kvcobra__MoverCheck check = KVCOBRA__MOVER_CHECK__INIT;
    Kvcobra__MoverProcesses processes = KVCOBRA__MOVER_PROCESSES__INIT;

    m.body_case = kind;
    switch (kind) {
    case KVCOBRA__MOVER_REQUEST__BODY_OPEN:
        m.open = &open;
        open.device = device;
        open.bytes = device < 100; /* fake_mover.c opens only devices with bytes above 0 */
        break;
    case KVCOBRA__MOVER_REQUEST__BODY_CREATE:
        m.create = &create;
        create.device = device;
        break;
    case KVCOBRA__MOVER_REQUEST__BODY_CHECK:
        m.check = &check;
        check.device = device;
        break;
    default:
        m.processes = &processes;
        processes.device = device;
    }
    return mover_ask(t.mover, &m, &fd, fd >= 0 ? 1 : 0, timeout_ms, on_answer, NULL);
}

static int open_device(uint32_t device)
{
    return ask(KVCOBRA__MOVER_REQUEST__BODY_OPEN, device, -1, TIMEOUT_MS);
}

static int ask_processes(void)
{
    return ask(KVCOBRA__MOVER_REQUEST__BODY_PROCESSES, 0, -1, TIMEOUT_MS);
}

static void on_tick(void *ctx)
{
    (void) ctx;
    ev_stop(t.ev);
}

/* Repeats a request, as a client does, until the mover may be started. */
static void ask_until_started(void)
{
    int r;

    ev_tick_every(t.ev, 10, on_tick, NULL);
    while ((r = ask_processes()) == -EAGAIN)
        CU_ASSERT_EQUAL_FATAL(ev_run(t.ev), 0);
    ev_tick_every(t.ev, 0, NULL, NULL);
    CU_ASSERT_EQUAL_FATAL(r, 0);
}

static pid_t running(uint64_t *ret_restarts)
{
    pid_t pid;

    mover_get_info(t.mover, &pid, ret_restarts);
    return pid;
}

static void test_requests_and_answers(void)
{
    uint64_t restarts = 7;
    int fd = memfd_create("given", MFD_CLOEXEC);
    pid_t pid;

    CU_ASSERT_EQUAL(write(fd, "A", 1), 1);
    begin("", FAKE_MOVER);
    t.n_descriptors--;                      /* @fd is closed below */
    CU_ASSERT_EQUAL(running(&restarts), 0); /* no request was made */
    CU_ASSERT_EQUAL(restarts, 0);
    t.take_fds = true;
    CU_ASSERT_EQUAL_FATAL(open_device(3), 0);
    CU_ASSERT_EQUAL(ask(KVCOBRA__MOVER_REQUEST__BODY_CREATE, 3, -1, TIMEOUT_MS), 0);
    CU_ASSERT_EQUAL(ask(KVCOBRA__MOVER_REQUEST__BODY_CHECK, 3, fd, TIMEOUT_MS), 0);
    CU_ASSERT_EQUAL(open_device(100), 0);
    CU_ASSERT_EQUAL(ask_processes(), 0);
    CU_ASSERT_EQUAL(t.n, 0);       /* never before the event loop runs */
    CU_ASSERT_EQUAL(close(fd), 0); /* borrowed until then */
    pid = running(&restarts);
    CU_ASSERT(pid > 0 && restarts == 0);
    wait_for(5);
    CU_ASSERT(t.answers[0].err == 0 && t.answers[0].kind == KVCOBRA__MOVER_REPLY__BODY_OPEN &&
              t.answers[0].fd == -1);
    CU_ASSERT(t.answers[1].err == 0 && t.answers[1].fd >= 0);
    CU_ASSERT_EQUAL(close(t.answers[1].fd), 0);
    CU_ASSERT_EQUAL(t.answers[2].values[0], 'A');
    /* input, output, log, socket and the given descriptor, but no other descriptor of this process */
    CU_ASSERT_EQUAL(t.answers[2].values[1], 5);
    CU_ASSERT_EQUAL(t.answers[3].err, -ENODEV);
    CU_ASSERT_STRING_EQUAL(t.answers[3].message, "as asked");
    CU_ASSERT(t.answers[4].n_values == 1 && t.answers[4].values[0] == 3);
    CU_ASSERT_EQUAL(running(&restarts), pid);
    end();
    CU_ASSERT(kill(pid, 0) < 0 && errno == ESRCH);
}

static void test_descriptor_that_is_not_taken(void)
{
    begin("", FAKE_MOVER);
    CU_ASSERT_EQUAL_FATAL(ask(KVCOBRA__MOVER_REQUEST__BODY_CREATE, 0, -1, TIMEOUT_MS), 0);
    wait_for(1);
    CU_ASSERT_EQUAL(t.answers[0].err, 0);
    end(); /* compares the number of descriptors */
}

/* Every request is answered once. The next mover gets the OPENs of the open devices, and no other request. */
static void test_death(void)
{
    uint64_t restarts;
    pid_t pid;

    begin("die", FAKE_MOVER);
    CU_ASSERT_EQUAL(open_device(1), 0);
    CU_ASSERT_EQUAL(open_device(2), 0);
    CU_ASSERT_EQUAL(open_device(1), 0); /* again: recorded once */
    CU_ASSERT_EQUAL(open_device(100), 0);
    CU_ASSERT_EQUAL(ask_processes(), 0);
    CU_ASSERT_EQUAL(ask_processes(), 0);
    CU_ASSERT_EQUAL(open_device(4), 0); /* the mover dies before: not recorded */
    pid = running(&restarts);
    wait_for(7);
    CU_ASSERT(t.answers[0].err == 0 && t.answers[1].err == 0 && t.answers[2].err == 0 &&
              t.answers[3].err == -ENODEV);
    for (size_t i = 4; i < 7; i++)
        CU_ASSERT_EQUAL(t.answers[i].err, -ECONNRESET);
    CU_ASSERT_PTR_NOT_NULL(strstr(t.answers[4].message, "mover ended"));
    CU_ASSERT_EQUAL(ask_processes(), -EAGAIN); /* the next mover is started after a wait */
    CU_ASSERT_EQUAL(setenv("FAKE_MOVER", "", 1), 0);
    ask_until_started();
    CU_ASSERT_NOT_EQUAL(running(&restarts), pid);
    CU_ASSERT_EQUAL(restarts, 1);
    wait_for(8);
    CU_ASSERT_EQUAL(t.answers[7].err, 0);
    CU_ASSERT(t.answers[7].n_values == 2 && t.answers[7].values[0] == 1 && t.answers[7].values[1] == 2);
    end();
}

/* Killed between two requests: no answer is lost, the next request starts another mover. */
static void test_death_while_idle(void)
{
    uint64_t restarts = 0;

    begin("", FAKE_MOVER);
    CU_ASSERT_EQUAL(open_device(5), 0);
    wait_for(1);
    CU_ASSERT_EQUAL(kill(running(&restarts), SIGKILL), 0);
    ev_tick_every(t.ev, 10, on_tick, NULL);
    while (running(&restarts) != 0)
        CU_ASSERT_EQUAL_FATAL(ev_run(t.ev), 0);
    ask_until_started();
    wait_for(2);
    CU_ASSERT(t.answers[1].err == 0 && t.answers[1].n_values == 1 && t.answers[1].values[0] == 5);
    CU_ASSERT(running(&restarts) > 0 && restarts == 1);
    end();
}

/* The next mover cannot open a device: the OPEN is sent again before a request for that device. */
static void test_device_that_opens_again(void)
{
    uint64_t restarts, began;

    begin("refuse", FAKE_MOVER);
    CU_ASSERT_EQUAL(open_device(4), 0); /* refused: not recorded */
    CU_ASSERT_EQUAL(open_device(5), 0);
    wait_for(2);
    CU_ASSERT(t.answers[0].err == -ENODEV && t.answers[1].err == 0);
    CU_ASSERT_EQUAL(kill(running(&restarts), SIGKILL), 0);
    ev_tick_every(t.ev, 10, on_tick, NULL);
    while (running(&restarts) != 0)
        CU_ASSERT_EQUAL_FATAL(ev_run(t.ev), 0);
    ask_until_started(); /* the new mover refuses device 5 */
    wait_for(3);
    CU_ASSERT(t.answers[2].err == 0 && t.answers[2].n_values == 0);
    began = ev_now_ms(t.ev);
    ev_tick_every(t.ev, 50, on_tick, NULL);
    while (t.answers[t.n - 1].n_values == 0 && ev_now_ms(t.ev) < began + 60000 && t.n + 2 < ANSWERS_MAX) {
        size_t n = t.n;

        CU_ASSERT_EQUAL_FATAL(ask_processes(), 0); /* of device 0 */
        while (t.n == n)
            CU_ASSERT_EQUAL_FATAL(ev_run(t.ev), 0);
        CU_ASSERT_EQUAL(t.answers[n].n_values, 0);
        if (ev_now_ms(t.ev) < began + 1100)
            continue;
        CU_ASSERT_EQUAL_FATAL(ask(KVCOBRA__MOVER_REQUEST__BODY_PROCESSES, 5, -1, TIMEOUT_MS), 0);
        while (t.n == n + 1)
            CU_ASSERT_EQUAL_FATAL(ev_run(t.ev), 0);
    }
    CU_ASSERT(t.answers[t.n - 1].n_values == 1 && t.answers[t.n - 1].values[0] == 5);
    CU_ASSERT(running(&restarts) > 0 && restarts == 1);
    end();
}

/* Each death doubles the wait before the next start. */
static void test_waits_grow(void)
{
    uint64_t began, waits[3];

    begin("die", FAKE_MOVER);
    CU_ASSERT_EQUAL_FATAL(ask_processes(), 0);
    for (size_t i = 0; i < 3; i++) {
        wait_for(i + 1);
        began = ev_now_ms(t.ev);
        ask_until_started();
        waits[i] = ev_now_ms(t.ev) - began;
    }
    wait_for(4);
    CU_ASSERT(waits[0] >= MOVER_WAIT_FIRST_MS - 20 && waits[1] >= 2 * MOVER_WAIT_FIRST_MS - 20 &&
              waits[2] >= 4 * MOVER_WAIT_FIRST_MS - 20); /* the clock is read once per pass of 10 ms */
    end();
}

static void test_answers_that_do_not_fit(void)
{
    static const char *const wrong_answers[] = {"garbage",    "other-id", "other-kind", "no-body",
                                                "above-zero", "stray-fd", "no-fd"};

    for (size_t i = 0; i < sizeof(wrong_answers) / sizeof(wrong_answers[0]); i++) {
        uint64_t restarts;
        pid_t pid;

        begin(wrong_answers[i], FAKE_MOVER);
        CU_ASSERT_EQUAL_FATAL(strcmp(wrong_answers[i], "no-fd") == 0
                                  ? ask(KVCOBRA__MOVER_REQUEST__BODY_CREATE, 0, -1, TIMEOUT_MS)
                                  : ask_processes(),
                              0);
        pid = running(&restarts);
        wait_for(1);
        if (t.answers[0].err != -ECONNRESET)
            printf("    %s: %d\n", wrong_answers[i], t.answers[0].err);
        CU_ASSERT_EQUAL(t.answers[0].err, -ECONNRESET);
        CU_ASSERT_PTR_NOT_NULL(strstr(t.answers[0].message, "did not fit the request"));
        end();
        CU_ASSERT(kill(pid, 0) < 0 && errno == ESRCH);
    }
}

/* An answer that the mover sent before its end still arrives. */
static void test_answer_before_the_end(void)
{
    begin("last-words", FAKE_MOVER);
    CU_ASSERT_EQUAL_FATAL(ask_processes(), 0);
    CU_ASSERT_EQUAL(ask_processes(), 0);
    wait_for(2);
    CU_ASSERT_EQUAL(t.answers[0].err, -EIO);
    CU_ASSERT_STRING_EQUAL(t.answers[0].message, "an answer before the end");
    CU_ASSERT_EQUAL(t.answers[1].err, -ECONNRESET);
    end();
}

/* The timeout runs only for the request that was sent to the mover. */
static void test_silence(void)
{
    uint64_t restarts;
    pid_t pid;

    begin("slow", FAKE_MOVER);
    CU_ASSERT_EQUAL_FATAL(ask(KVCOBRA__MOVER_REQUEST__BODY_PROCESSES, 0, -1, 50), 0);
    CU_ASSERT_EQUAL(ask(KVCOBRA__MOVER_REQUEST__BODY_PROCESSES, 0, -1, 1), 0);
    pid = running(&restarts);
    wait_for(2);
    CU_ASSERT_EQUAL(t.answers[0].err, -ECONNRESET);
    CU_ASSERT_PTR_NOT_NULL(strstr(t.answers[0].message, "in time"));
    CU_ASSERT_EQUAL(t.answers[1].err, -ECONNRESET);
    end();
    CU_ASSERT(kill(pid, 0) < 0 && errno == ESRCH);
}

static void test_no_program(void)
{
    uint64_t restarts;

    begin("", "/nonexistent/kvcobra-mover");
    CU_ASSERT_EQUAL(ask_processes(), -ENOENT);
    CU_ASSERT_EQUAL(ask_processes(), -EAGAIN);
    CU_ASSERT_EQUAL(running(&restarts), 0);
    end();
    CU_ASSERT_EQUAL(t.n, 0);
}

static void test_limits(void)
{
    begin("slow", FAKE_MOVER);
    for (unsigned i = 0; i < MOVER_REQUESTS_MAX; i++)
        CU_ASSERT_EQUAL_FATAL(ask_processes(), 0);
    CU_ASSERT_EQUAL(ask_processes(), -EAGAIN);
    CU_ASSERT_EQUAL(t.n, 0);
    end();
    CU_ASSERT_EQUAL(t.n, MOVER_REQUESTS_MAX);
    for (unsigned i = 0; i < MOVER_REQUESTS_MAX; i++)
        CU_ASSERT_EQUAL(t.answers[i].err, -ECANCELED);

    begin("", FAKE_MOVER);
    for (uint32_t i = 0; i < 16; i++)
        CU_ASSERT_EQUAL_FATAL(open_device(i), 0);
    wait_for(16);
    CU_ASSERT_EQUAL(open_device(16), -ENOSPC);
    CU_ASSERT_EQUAL(open_device(15), 0);
    wait_for(17);
    end();
}

const struct test_case test_cases[] = {
    TEST(test_requests_and_answers),
    TEST(test_descriptor_that_is_not_taken),
    TEST(test_death),
    TEST(test_death_while_idle),
    TEST(test_device_that_opens_again),
    TEST(test_waits_grow),
    TEST(test_answers_that_do_not_fit),
    TEST(test_answer_before_the_end),
    TEST(test_silence),
    TEST(test_no_program),
    TEST(test_limits),
    TEST_END,
};
