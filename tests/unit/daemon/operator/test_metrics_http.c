/* Sockets that a supervisor passes for metrics. tests/e2e/cli/metrics.sh requests pages. */
#include "daemon/operator/metrics_http.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/errmsg.h"
#include "daemon/config/config.h"
#include "daemon/loop/ev.h"
#include "daemon/requests/state.h"
#include "tests/lib/test.h"

const char test_suite[] = "metrics_http";

/* Passed sockets must be listening stream sockets that other machines cannot reach. */
static void test_passed_sockets(void)
{
    const struct config none = {.metrics_address = NULL};
    struct sockaddr_in any = {.sin_family = AF_INET}, loop = {.sin_family = AF_INET};
    struct errmsg e = {""};
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    loop.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    CU_ASSERT_FATAL(fd >= 0 && bind(fd, (struct sockaddr *) &any, sizeof(any)) == 0);
    CU_ASSERT_EQUAL(metrics_socket_check(fd, &none, &e), -EINVAL); /* does not listen */
    CU_ASSERT_FATAL(listen(fd, 1) == 0);
    CU_ASSERT_EQUAL(metrics_socket_check(fd, &none, &e), -EINVAL);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "other machines"));
    (void) close(fd);
    CU_ASSERT_EQUAL(metrics_socket_check(fd, &none, &e), -EINVAL);
    fd = socket(AF_INET, SOCK_STREAM, 0);
    CU_ASSERT_FATAL(fd >= 0 && bind(fd, (struct sockaddr *) &loop, sizeof(loop)) == 0 && listen(fd, 1) == 0);
    CU_ASSERT_EQUAL(metrics_socket_check(fd, &none, &e), 0);
    (void) close(fd);
    fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    CU_ASSERT_FATAL(fd >= 0 &&
                    bind(fd, (const struct sockaddr *) &(struct sockaddr_un){.sun_family = AF_UNIX},
                         sizeof(sa_family_t)) == 0 &&
                    listen(fd, 1) == 0);
    CU_ASSERT_EQUAL(metrics_socket_check(fd, &none, &e), -EINVAL);
    (void) close(fd);
}

/* A socket from the supervisor and a setting would be two places for one page: neither is chosen silently. */
static void test_passed_and_configured(void)
{
    const struct config address = {.metrics_address = "127.0.0.1:9110"};
    const struct config path = {.metrics_socket_path = "/run/metrics.sock"};
    struct sockaddr_in loop = {.sin_family = AF_INET};
    struct errmsg e = {""};
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    loop.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    CU_ASSERT_FATAL(fd >= 0 && bind(fd, (struct sockaddr *) &loop, sizeof(loop)) == 0 && listen(fd, 1) == 0);
    CU_ASSERT_EQUAL(metrics_socket_check(fd, &address, &e), -EINVAL);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "metrics-address cannot apply"));
    CU_ASSERT_EQUAL(metrics_socket_check(fd, &path, &e), -EINVAL);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "metrics-socket cannot apply"));
    (void) close(fd);
}

/* In a network of its own, as PrivateNetwork= makes it, no client would reach an address. */
static void test_private_network(void)
{
    int clients = socket(AF_UNIX, SOCK_SEQPACKET, 0), status;
    pid_t child;

    CU_ASSERT_FATAL(clients >= 0);
    child = fork();
    if (child == 0) {
        struct errmsg e = {""};
        int fd = -1, r;

        if (unshare(CLONE_NEWUSER | CLONE_NEWNET) < 0)
            _exit(77);
        r = metrics_listen("127.0.0.1:9110", clients, &fd, &e);
        _exit(r == -EINVAL && fd == -1 && strstr(e.text, "PrivateNetwork") ? 0 : 1);
    }

    CU_ASSERT_FATAL(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status));
    if (WEXITSTATUS(status) == 77)
        printf("no network namespace can be made here: not tested\n");
    else
        CU_ASSERT_EQUAL(WEXITSTATUS(status), 0);
    (void) close(clients);
}

/* When the service ends, its socket ends too: later connections are refused. */
static void test_end_closes_the_socket(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), peer;
    socklen_t bytes = sizeof(address);
    struct metrics_http *h = NULL;
    struct server s = {0};
    struct errmsg e = {""};

    CU_ASSERT_EQUAL_FATAL(ev_new(&s.ev, &e), 0);
    /* with a name that the kernel chooses */
    CU_ASSERT_FATAL(bind(fd, (struct sockaddr *) &address, sizeof(sa_family_t)) == 0 && listen(fd, 4) == 0 &&
                    getsockname(fd, (struct sockaddr *) &address, &bytes) == 0);
    CU_ASSERT_EQUAL_FATAL(metrics_http_new(&s, fd, &h, &e), 0);
    CU_ASSERT_FALSE(metrics_http_is_busy(h));
    peer = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CU_ASSERT_EQUAL(connect(peer, (const struct sockaddr *) &address, bytes), 0);
    (void) close(peer);
    CU_ASSERT_PTR_NULL(metrics_http_free(h));
    peer = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CU_ASSERT(connect(peer, (const struct sockaddr *) &address, bytes) < 0 && errno == ECONNREFUSED);
    (void) close(peer);
    s.ev = ev_free(s.ev);
}

const struct test_case test_cases[] = {TEST(test_passed_sockets), TEST(test_passed_and_configured),
                                       TEST(test_private_network), TEST(test_end_closes_the_socket),
                                       TEST_END};
