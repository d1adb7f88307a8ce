/* Whether the store has what was sent to it: a full store closes it and does not tell the sender. */
#include "daemon/loop/supervisor.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/errmsg.h"
#include "tests/lib/test.h"
#include "tests/lib/wait.h"

const char test_suite[] = "supervisor";

static char folder[32];
static struct sockaddr_un notify;
static int server;

/* Makes the socket of a supervisor, which this test then reads itself. */
static void begin(struct supervisor *s)
{
    struct errmsg e = {""};

    notify = (struct sockaddr_un){.sun_family = AF_UNIX};
    (void) strcpy(folder, "/tmp/kvcobra-test-XXXXXX");
    CU_ASSERT_FATAL(mkdtemp(folder) != NULL);
    (void) snprintf(notify.sun_path, sizeof(notify.sun_path), "%s/notify", folder);
    server = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    CU_ASSERT_FATAL(server >= 0 && bind(server, (struct sockaddr *) &notify, sizeof(notify)) == 0);
    CU_ASSERT_EQUAL(setenv("NOTIFY_SOCKET", notify.sun_path, 1), 0);
    CU_ASSERT_FATAL(supervisor_init(s, KEEP_YES, &e) == 0 && s->keeps);
}

static void finish(struct supervisor *s)
{
    supervisor_deinit(s);
    (void) close(server);
    CU_ASSERT_EQUAL(unsetenv("NOTIFY_SOCKET"), 0);
    CU_ASSERT_EQUAL(unlink(notify.sun_path), 0);
    CU_ASSERT_EQUAL(rmdir(folder), 0);
}

/* The descriptor of the next message. */
static int receive(void)
{
    char text[256], control[CMSG_SPACE(sizeof(int))];
    struct iovec iov = {text, sizeof(text)};
    struct msghdr m = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)};
    struct pollfd p = {.fd = server, .events = POLLIN};
    int fd = -1;

    CU_ASSERT_FATAL(poll(&p, 1, 60000) == 1);
    CU_ASSERT_FATAL(recvmsg(server, &m, MSG_CMSG_CLOEXEC) > 0 && CMSG_FIRSTHDR(&m));
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof(fd));
    return fd;
}

static void test_store(void)
{
    int fd = memfd_create("kvcobra-test", MFD_CLOEXEC), stored;
    struct supervisor s;

    begin(&s);
    CU_ASSERT_FATAL(fd >= 0 && ftruncate(fd, 4096) == 0);
    supervisor_store_provably(&s, "kvc-slots-1", fd);
    stored = receive();
    CU_ASSERT(supervisor_has(&s, fd));
    CU_ASSERT(supervisor_has(&s, fd)); /* the answer changes nothing */

    /* the next process gets the store's own descriptor, and writes through it */
    CU_ASSERT_EQUAL(pwrite(stored, "x", 1, 0), 1);

    (void) close(stored); /* as a full store does */
    for (struct wait w = wait_begin(); supervisor_has(&s, fd) && wait_again(&w);) {
    }
    CU_ASSERT(!supervisor_has(&s, fd));
    supervisor_store_provably(&s, "kvc-slots-1", fd);
    stored = receive();
    CU_ASSERT(supervisor_has(&s, fd));
    CU_ASSERT(!supervisor_has_failed(&s));
    (void) close(stored);
    (void) close(fd);
    finish(&s);
}

/* An entry point of a container may leave this in the environment: no descriptors, or another process's. */
static void test_nothing_is_passed(void)
{
    static const char *const numbers[] = {"0", "00", "0", "3"};
    char pid[16];
    struct supervisor s;
    struct errmsg e = {""};

    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        (void) snprintf(pid, sizeof(pid), "%ld", i < 2 ? (long) getpid() : 1L);
        CU_ASSERT(setenv("LISTEN_PID", pid, 1) == 0 && setenv("LISTEN_FDS", numbers[i], 1) == 0);
        CU_ASSERT_EQUAL(supervisor_init(&s, KEEP_NO, &e), 0);
        CU_ASSERT_EQUAL(s.n_fds, 0);
        supervisor_deinit(&s);
    }
    (void) snprintf(pid, sizeof(pid), "%ld", (long) getpid());
    CU_ASSERT(setenv("LISTEN_PID", pid, 1) == 0 && setenv("LISTEN_FDS", "x", 1) == 0);
    CU_ASSERT(supervisor_init(&s, KEEP_NO, &e) < 0); /* a descriptor may be lost */
    CU_ASSERT(unsetenv("LISTEN_PID") == 0 && unsetenv("LISTEN_FDS") == 0);
}

/* From systemd 254 on the environment has the limit of the store. */
static void test_limit(void)
{
    struct supervisor s;

    CU_ASSERT_EQUAL(setenv("FDSTORE", "512", 1), 0);
    begin(&s);
    CU_ASSERT_EQUAL(s.store_max, 512);
    finish(&s);
    CU_ASSERT_EQUAL(unsetenv("FDSTORE"), 0);
    begin(&s);
    CU_ASSERT_EQUAL(s.store_max, 0);
    finish(&s);
}

/* The pool is kept for the next process if a supervisor can; KEEP_AUTO needs to know that. */
static void test_when_the_pool_is_kept(void)
{
    static const struct {
        enum supervisor_keep keep;
        const char *limit;
        bool supervised, keeps;
    } cases[] = {
        {KEEP_AUTO, "512", true, true}, {KEEP_AUTO, "1", true, true},     {KEEP_AUTO, "0", true, false},
        {KEEP_AUTO, NULL, true, false}, {KEEP_AUTO, "512", false, false}, {KEEP_YES, "0", true, true},
        {KEEP_YES, NULL, true, true},   {KEEP_YES, "512", false, false},  {KEEP_NO, "512", true, false},
        {KEEP_NO, NULL, false, false},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct errmsg e = {""};
        struct supervisor s;

        CU_ASSERT_EQUAL(cases[i].supervised ? setenv("NOTIFY_SOCKET", "@kvcobra-test-nothing", 1) : 0, 0);
        CU_ASSERT_EQUAL(cases[i].limit ? setenv("FDSTORE", cases[i].limit, 1) : 0, 0);
        CU_ASSERT_EQUAL(supervisor_init(&s, cases[i].keep, &e), 0);
        CU_ASSERT_EQUAL(s.keeps, cases[i].keeps);
        supervisor_deinit(&s);
        CU_ASSERT(unsetenv("NOTIFY_SOCKET") == 0 && unsetenv("FDSTORE") == 0);
    }
}

const struct test_case test_cases[] = {TEST(test_store), TEST(test_nothing_is_passed), TEST(test_limit),
                                       TEST(test_when_the_pool_is_kept), TEST_END};
