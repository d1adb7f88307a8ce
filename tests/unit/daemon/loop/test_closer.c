/* Closing sockets whose queue has descriptors that linger. */
#include "tests/lib/test.h"

#include <sys/socket.h>
#include <unistd.h>

#include "daemon/loop/closer.h"
#include "tests/lib/lingering.h"
#include "tests/lib/wait.h"

const char test_suite[] = "closer";

enum { SOCKETS = 20 };

/* All sockets are closed, although each close would wait for an hour, and their descriptors with them. */
static void test_lingering_sockets(void)
{
    struct closer *c = NULL;
    int peers[SOCKETS];

    CU_ASSERT_EQUAL_FATAL(closer_new(&c), 0);
    for (int i = 0; i < SOCKETS; i++)
        closer_close(c, lingering_socket(&peers[i]));
    for (struct wait w = wait_begin(); closer_n_of(c, getuid()) > 0 && wait_again(&w);)
        ;
    CU_ASSERT_EQUAL(closer_n_of(c, getuid()), 0);
    CU_ASSERT(!closer_is_full(c));
    for (int i = 0; i < SOCKETS; i++) {
        CU_ASSERT(lingering_is_closed(peers[i]));
        (void) close(peers[i]);
    }
    CU_ASSERT_PTR_NULL(closer_free(c));
}

/* The end does not wait for what is left. */
static void test_end(void)
{
    struct closer *c = NULL;
    int peers[SOCKETS];

    CU_ASSERT_PTR_NULL(closer_free(NULL));
    CU_ASSERT_EQUAL_FATAL(closer_new(&c), 0);
    for (int i = 0; i < SOCKETS; i++)
        closer_close(c, lingering_socket(&peers[i]));
    CU_ASSERT_PTR_NULL(closer_free(c));
    for (int i = 0; i < SOCKETS; i++)
        (void) close(peers[i]);
}

static void test_limit(void)
{
    struct closer *c = NULL;
    int peer, pair[2];

    CU_ASSERT_EQUAL_FATAL(closer_new(&c), 0);
    closer_close(c, lingering_socket(&peer)); /* the others wait behind it for 2 ms */
    for (int i = 0; i < CLOSER_SOCKETS_MAX - 1; i++) {
        CU_ASSERT_EQUAL_FATAL(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
        (void) close(pair[1]);
        closer_close(c, pair[0]);
        CU_ASSERT(closer_n_of(c, getuid()) <= CLOSER_SOCKETS_MAX);
    }
    for (struct wait w = wait_begin(); closer_n_of(c, getuid()) > 0 && wait_again(&w);)
        ;
    CU_ASSERT(!closer_is_full(c));
    CU_ASSERT_PTR_NULL(closer_free(c));
    (void) close(peer);
}

const struct test_case test_cases[] = {
    TEST(test_lingering_sockets),
    TEST(test_end),
    TEST(test_limit),
    TEST_END,
};
