/* Connecting to a socket that the user may not open, and to a listener that neither accepts nor answers. */
#include "client/connection/connection.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/errmsg.h"
#include "client/connection/clock.h"
#include "tests/lib/test.h"

const char test_suite[] = "connection";

static char folder[32];
static struct sockaddr_un sa;
static int listener;

/* @backlog: connections beyond one that wait for accept(). */
static int setup(int backlog)
{
    listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    (void) strcpy(folder, "/tmp/kvcobra-test-XXXXXX");
    if (listener < 0 || !mkdtemp(folder) || chmod(folder, 0755) < 0)
        return -1;
    sa = (struct sockaddr_un){.sun_family = AF_UNIX};
    (void) snprintf(sa.sun_path, sizeof(sa.sun_path), "%s/k.sock", folder);
    return bind(listener, (const struct sockaddr *) &sa, sizeof(sa)) < 0 || listen(listener, backlog) < 0 ? -1
                                                                                                          : 0;
}

static void teardown(void)
{
    CU_ASSERT_EQUAL(unlink(sa.sun_path), 0);
    CU_ASSERT_EQUAL(rmdir(folder), 0);
    (void) close(listener);
}

/* Connects in a process that has none of root's rights. Return: whether the sentence has @text. */
static bool refused_with(const char *text)
{
    pid_t child = fork();
    int status;

    if (child == 0) {
        struct connection c;
        struct errmsg e = {""};
        int r;

        if (geteuid() == 0 && (setgroups(0, NULL) < 0 || setresgid(65534, 65534, 65534) < 0 ||
                               setresuid(65534, 65534, 65534) < 0))
            _exit(2);
        connection_init(&c);
        r = connection_open(&c, sa.sun_path, &e);
        if (r != -EACCES || !strstr(e.text, text) || !strstr(e.text, sa.sun_path))
            fprintf(stderr, "%d: %s\n", r, e.text);
        _exit(r != -EACCES || !strstr(e.text, text) || !strstr(e.text, sa.sun_path));
    }
    return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static void test_group(void)
{
    const struct group *g = getgrgid(getegid());
    char text[128];

    CU_ASSERT_EQUAL_FATAL(setup(1), 0);
    CU_ASSERT_EQUAL_FATAL(chmod(sa.sun_path, 0020), 0);
    (void) snprintf(text, sizeof(text), g ? "members of the group %s may" : "members of group ",
                    g ? g->gr_name : "");
    CU_ASSERT(refused_with(text));

    CU_ASSERT_EQUAL_FATAL(chmod(sa.sun_path, 0), 0);
    CU_ASSERT(refused_with("only "));
    CU_ASSERT(!refused_with("group"));
    teardown();
}

/* ---- a silent listener ---- */

/* Whether connecting ends after its timeout with a sentence that has @text and the path. */
static bool times_out_with(const char *text)
{
    struct connection c;
    struct errmsg e = {""};
    int64_t start = clock_ms();
    bool right;
    int r;

    connection_init(&c);
    connection_set_timeout(&c, 60);
    r = connection_open(&c, sa.sun_path, &e);
    right = r == -ETIMEDOUT && clock_ms() - start >= 60 && !connection_is_open(&c) && strstr(e.text, text) &&
            strstr(e.text, sa.sun_path);
    if (!right)
        printf("    %d after %" PRId64 " ms: %s\n", r, clock_ms() - start, e.text);
    connection_deinit(&c);
    return right;
}

static void test_silent(void)
{
    CU_ASSERT_EQUAL_FATAL(setup(0), 0);
    CU_ASSERT(times_out_with("did not answer within 0.06 s")); /* it stays in the queue, which is then full */
    CU_ASSERT(times_out_with("did not accept the connection within 0.06 s"));
    teardown();
}

static void on_alarm(int signal)
{
    (void) signal;
}

/* Signals that interrupt connect() do not make it wait longer. */
static void test_signals(void)
{
    const struct itimerval often = {{0, 5000}, {0, 5000}}, never = {{0, 0}, {0, 0}};
    struct sigaction action = {.sa_handler = on_alarm}, before;

    CU_ASSERT_EQUAL_FATAL(setup(0), 0);
    CU_ASSERT(times_out_with("did not answer"));
    CU_ASSERT_EQUAL(sigaction(SIGALRM, &action, &before), 0);
    CU_ASSERT_EQUAL(setitimer(ITIMER_REAL, &often, NULL), 0);
    CU_ASSERT(times_out_with("did not accept"));
    CU_ASSERT_EQUAL(setitimer(ITIMER_REAL, &never, NULL), 0);
    CU_ASSERT_EQUAL(sigaction(SIGALRM, &before, NULL), 0);
    teardown();
}

/* ---- connecting again ---- */

/* Return: the connection that waits at the listener; -1: none. */
static int accept_waiting(void)
{
    int fd = -1;

    CU_ASSERT_EQUAL(fcntl(listener, F_SETFL, O_NONBLOCK), 0);
    fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    CU_ASSERT(fd >= 0 || errno == EAGAIN);
    return fd;
}

/*
 * A daemon that starts answers late. A call waits for RECONNECT_MS at most, and the next one for the answer
 * to the same HELLO, so a daemon that needs longer is reached. A connection that was closed is given up.
 */
static void test_late_answer(void)
{
    struct resumption how;
    struct connection c;
    struct errmsg e = {""};
    char packet[512];
    int peer;

    CU_ASSERT_EQUAL_FATAL(setup(4), 0);
    connection_init(&c);
    c.greeted = true;
    c.path = strdup(sa.sun_path);
    c.packet = malloc(WIRE_PACKET_BYTES_MAX);
    CU_ASSERT_FATAL(c.path && c.packet);

    for (unsigned i = 0; i < 3; i++) {
        CU_ASSERT_EQUAL(connection_reopen(&c, &how, &e), -ENOTCONN);
        CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "did not answer within 0.05 s"));
        CU_ASSERT(!connection_is_open(&c) && c.hello_fd >= 0);
        CU_ASSERT_EQUAL(c.backoff.n_failed, i + 1);
    }
    peer = accept_waiting();
    CU_ASSERT(recv(peer, packet, sizeof(packet), 0) > 0);
    CU_ASSERT(recv(peer, packet, sizeof(packet), 0) < 0 && errno == EAGAIN); /* one HELLO */
    CU_ASSERT_EQUAL(accept_waiting(), -1);

    (void) close(peer);
    CU_ASSERT_EQUAL(connection_reopen(&c, &how, &e), -ENOTCONN);
    CU_ASSERT_EQUAL(c.hello_fd, -1);
    CU_ASSERT_EQUAL(connection_reopen(&c, &how, &e), -ENOTCONN);
    peer = accept_waiting(); /* another one */
    CU_ASSERT(recv(peer, packet, sizeof(packet), 0) > 0);
    connection_deinit(&c);
    CU_ASSERT_EQUAL(recv(peer, packet, sizeof(packet), 0), 0);
    (void) close(peer);
    teardown();
}

const struct test_case test_cases[] = {TEST(test_group), TEST(test_silent), TEST(test_signals),
                                       TEST(test_late_answer), TEST_END};
