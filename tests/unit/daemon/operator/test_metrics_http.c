/* Sockets that a supervisor passes for metrics. tests/e2e/cli/metrics.sh requests pages. */
#include "daemon/operator/metrics_http.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/errmsg.h"
#include "tests/lib/test.h"

const char test_suite[] = "metrics_http";

/* Passed sockets must be listening stream sockets that other machines cannot reach. */
static void test_passed_sockets(void)
{
    struct sockaddr_in any = {.sin_family = AF_INET}, loop = {.sin_family = AF_INET};
    struct errmsg e = {""};
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    loop.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    CU_ASSERT_FATAL(fd >= 0 && bind(fd, (struct sockaddr *) &any, sizeof(any)) == 0);
    CU_ASSERT_EQUAL(metrics_socket_check(fd, &e), -EINVAL); /* does not listen */
    CU_ASSERT_FATAL(listen(fd, 1) == 0);
    CU_ASSERT_EQUAL(metrics_socket_check(fd, &e), -EINVAL);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "other machines"));
    (void) close(fd);
    CU_ASSERT_EQUAL(metrics_socket_check(fd, &e), -EINVAL);
    fd = socket(AF_INET, SOCK_STREAM, 0);
    CU_ASSERT_FATAL(fd >= 0 && bind(fd, (struct sockaddr *) &loop, sizeof(loop)) == 0 && listen(fd, 1) == 0);
    CU_ASSERT_EQUAL(metrics_socket_check(fd, &e), 0);
    (void) close(fd);
    fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    CU_ASSERT_FATAL(fd >= 0 &&
                    bind(fd, (const struct sockaddr *) &(struct sockaddr_un){.sun_family = AF_UNIX},
                         sizeof(sa_family_t)) == 0 &&
                    listen(fd, 1) == 0);
    CU_ASSERT_EQUAL(metrics_socket_check(fd, &e), -EINVAL);
    (void) close(fd);
}

const struct test_case test_cases[] = {TEST(test_passed_sockets), TEST_END};
