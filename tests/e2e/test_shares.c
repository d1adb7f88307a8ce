/* A tenant that takes all that it can get leaves room for other tenants and for operators. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/config/limits.h"
#include "tests/e2e/daemon_fixture.h"
#include "tests/e2e/other_user_fixture.h"
#include "tests/e2e/raw_fixture.h"
#include "tests/lib/test.h"

const char test_suite[] = "shares";

enum { CONNECTIONS_MAX = 64 };

static struct daemon daemon_;

static void start(const char *const *args)
{
    CU_ASSERT_FATAL(daemon_start(&daemon_, DAEMON_BY_PATH, args));
    assert(chmod(daemon_.folder, 0711) == 0); /* other users reach the socket */
}

/* A connection of @uid, which is not greeted; SO_PEERCRED has the effective user of connect(). */
static int connect_as(uid_t uid)
{
    int fd;

    assert(seteuid(uid) == 0);
    fd = raw_connect(daemon_.socket);
    assert(seteuid(0) == 0);
    return fd;
}

/*
 * Connects as @uid until the daemon refuses. Return: the number of connections; @ret_fds:
 * [CONNECTIONS_MAX + 1].
 */
static int take_all(uid_t uid, int *ret_fds, char *ret_text, size_t bytes)
{
    int n = 0;

    for (; n <= CONNECTIONS_MAX; n++) {
        ret_fds[n] = connect_as(uid);
        if (raw_hello(ret_fds[n]) != 0)
            break;
    }

    (void) close(ret_fds[n]);
    ret_fds[n] = connect_as(uid);
    CU_ASSERT_EQUAL(raw_refusal(ret_fds[n], ret_text, bytes), -EDQUOT);
    (void) close(ret_fds[n]);
    return n;
}

static void close_all(const int *fds, int n)
{
    for (int i = 0; i < n; i++)
        (void) close(fds[i]);
}

static bool operator_is_served(void)
{
    int fd = raw_open(daemon_.operator_socket);
    Kvcobra__GetStatus status = KVCOBRA__GET_STATUS__INIT;
    Kvcobra__Request q = raw_of(KVCOBRA__REQUEST__BODY_GET_STATUS, &status);
    int r = raw_errno(fd, &q);

    (void) close(fd);
    return r == 0;
}

static void test_connections_of_one_tenant(void)
{
    static const char *const args[] = {"--connections=64", "--connections-per-tenant=5", "--socket-mode=666",
                                       NULL};
    char text[WIRE_TEXT_BYTES_MAX + 1] = "";
    int fds[CONNECTIONS_MAX + 1], other, n;

    if (!other_user_is_possible())
        return;

    start(args);
    n = take_all(OTHER_USER_UID, fds, text, sizeof(text));
    CU_ASSERT_EQUAL(n, 5);
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "--connections-per-tenant"));
    other = connect_as(OTHER_USER_UID - 1);
    CU_ASSERT_EQUAL(raw_hello(other), 0);
    (void) close(other);
    close_all(fds, n);
    CU_ASSERT(daemon_stop(&daemon_));
}

/* The last eighth is for tenants that have few, also if the share of one tenant is everything. */
static void test_connections_of_greedy_tenants(void)
{
    static const char *const args[] = {"--connections=64", "--connections-per-tenant=64", "--socket-mode=666",
                                       NULL};
    char text[WIRE_TEXT_BYTES_MAX + 1] = "";
    int fds[CONNECTIONS_MAX + 1], more[CONNECTIONS_MAX + 1], third, n, n_more;

    if (!other_user_is_possible())
        return;

    start(args);
    n = take_all(OTHER_USER_UID, fds, text, sizeof(text));
    CU_ASSERT_EQUAL(n, 56);
    n_more = take_all(OTHER_USER_UID - 1, more, text, sizeof(text));
    CU_ASSERT_EQUAL(n_more, 2);
    third = connect_as(OTHER_USER_UID - 2);
    CU_ASSERT_EQUAL(raw_hello(third), 0);
    CU_ASSERT(operator_is_served());
    (void) close(third);
    close_all(more, n_more);
    close_all(fds, n);
    CU_ASSERT(daemon_stop(&daemon_));
}

static void test_operators_when_clients_took_all(void)
{
    static const char *const args[] = {"--connections=4", NULL};
    char text[WIRE_TEXT_BYTES_MAX + 1] = "";
    int fds[OPERATOR_CONNECTIONS_MAX], refused;

    CU_ASSERT_FATAL(daemon_start(&daemon_, DAEMON_BY_PATH, args));
    for (int i = 0; i < 4; i++)
        fds[i] = raw_open(daemon_.socket);
    CU_ASSERT(operator_is_served());
    close_all(fds, 4);

    for (int i = 0; i < OPERATOR_CONNECTIONS_MAX; i++)
        fds[i] = raw_open_on(daemon_.operator_socket, NULL); /* until the one above is closed */
    refused = raw_connect(daemon_.operator_socket);
    CU_ASSERT_EQUAL(raw_refusal(refused, text, sizeof(text)), -EDQUOT);
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "operators have"));
    (void) close(refused);
    close_all(fds, OPERATOR_CONNECTIONS_MAX);
    CU_ASSERT(daemon_stop(&daemon_));
}

const struct test_case test_cases[] = {
    TEST(test_connections_of_one_tenant),
    TEST(test_connections_of_greedy_tenants),
    TEST(test_operators_when_clients_took_all),
    TEST_END,
};
