/* Tests of cluster/out.c. */
#include "cluster/out.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cluster/node.h"
#include "tests/lib/test.h"

const char test_suite[] = "out";

static struct command command(enum command_kind kind)
{
    return (struct command){.kind = kind,
                            .key = "k:1",
                            .key_bytes = 3,
                            .value = (const uint8_t *) "a\r\nb",
                            .value_bytes = 4,
                            .ttl_ms = 60000};
}

static void check(const struct command *c, const char *expected)
{
    struct out o = {.bytes_max = 1000};

    CU_ASSERT_EQUAL_FATAL(out_add_command(&o, c), 0);
    CU_ASSERT_EQUAL(out_waiting(&o), strlen(expected));
    CU_ASSERT_EQUAL(memcmp(o.bytes, expected, strlen(expected)), 0);
    out_clear(&o);
}

static void test_commands(void)
{
    struct command c = command(COMMAND_EXISTS);

    check(&c, "*2\r\n$6\r\nEXISTS\r\n$3\r\nk:1\r\n");
    c = command(COMMAND_GET);
    check(&c, "*4\r\n$8\r\nGETRANGE\r\n$3\r\nk:1\r\n$1\r\n0\r\n$1\r\n4\r\n");
    c = command(COMMAND_SET);
    check(&c, "*6\r\n$3\r\nSET\r\n$3\r\nk:1\r\n$4\r\na\r\nb\r\n$2\r\nPX\r\n$5\r\n60000\r\n$2\r\nNX\r\n");
    c.ttl_ms = 0;
    check(&c, "*4\r\n$3\r\nSET\r\n$3\r\nk:1\r\n$4\r\na\r\nb\r\n$2\r\nNX\r\n");
    c = command(COMMAND_EXPIRE);
    check(&c, "*3\r\n$7\r\nPEXPIRE\r\n$3\r\nk:1\r\n$5\r\n60000\r\n");
    c = command(COMMAND_UNLINK);
    check(&c, "*2\r\n$6\r\nUNLINK\r\n$3\r\nk:1\r\n");
    c = command(COMMAND_SLOTS);
    check(&c, "*2\r\n$7\r\nCLUSTER\r\n$5\r\nSLOTS\r\n");
}

static void test_limit(void)
{
    enum { VALUE = 100000, MAX = 3 * VALUE };
    struct out o = {.bytes_max = MAX};
    struct command c = command(COMMAND_SET);
    uint8_t *value = calloc(1, VALUE);
    size_t waiting;
    int r = 0, n = 0;

    c.value = value;
    c.value_bytes = VALUE;
    for (; r == 0; n++) {
        waiting = out_waiting(&o);
        r = out_add_command(&o, &c);
    }
    CU_ASSERT_EQUAL(r, -ENOBUFS);
    CU_ASSERT_EQUAL(n, 3);
    CU_ASSERT_EQUAL(out_waiting(&o), waiting);
    CU_ASSERT(o.room <= 2 * (size_t) MAX);
    out_clear(&o);
    CU_ASSERT_EQUAL(out_waiting(&o), 0);
    c.value_bytes = MAX;
    free(value);
    CU_ASSERT_EQUAL(out_add_command(&o, &c), -ENOBUFS); /* reads nothing of the value */
}

/*
 * A socket that takes a little at a time: all bytes arrive, in order, and the buffer is used again. They are
 * 140 000, more than twice the first buffer, so that its rest moves to the front.
 */
static void test_send(void)
{
    enum { N = 10000 };
    static const char ping[] = "*1\r\n$4\r\nPING\r\n";
    static const char *const word[] = {"PING"};
    const int small = 4096;
    struct out o = {.bytes_max = 16384};
    size_t received = 0;
    int pair[2], n_full = 0;

    assert(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
    assert(setsockopt(pair[0], SOL_SOCKET, SO_SNDBUF, &small, sizeof(small)) == 0);
    for (unsigned i = 0; i < N || out_waiting(&o) > 0;) {
        char bytes[512];
        ssize_t got;
        int r;

        while (i < N && out_add_words(&o, word, 1) == 0)
            i++;
        CU_ASSERT_FATAL(o.sent <= o.n && o.n <= o.room);
        r = out_send(&o, pair[0], NULL);
        CU_ASSERT_FATAL(r >= 0);
        n_full += r == 0;
        got = recv(pair[1], bytes, sizeof(bytes), MSG_DONTWAIT);
        for (ssize_t k = 0; k < got; k++, received++)
            CU_ASSERT_EQUAL(bytes[k], ping[received % (sizeof(ping) - 1)]);
    }
    CU_ASSERT(n_full > 0);
    for (char b; recv(pair[1], &b, 1, MSG_DONTWAIT) == 1; received++)
        CU_ASSERT_EQUAL(b, ping[received % (sizeof(ping) - 1)]);
    CU_ASSERT_EQUAL(received, N * (sizeof(ping) - 1));
    (void) close(pair[1]);
    CU_ASSERT_EQUAL(out_add_words(&o, word, 1), 0);
    CU_ASSERT_EQUAL(out_send(&o, pair[0], NULL), -EPIPE);
    (void) close(pair[0]);
    out_clear(&o);
}

/* A large value gets a large buffer, which is given back when all is sent; a small one is kept. */
static void test_large_buffers(void)
{
    static const struct {
        size_t value;
        bool is_kept;
    } cases[] = {{1, true}, {100000, true}, {300000, false}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct out o = {.bytes_max = 1 << 20};
        struct command c = command(COMMAND_SET);
        uint8_t *value = calloc(1, cases[i].value), bytes[4096];
        size_t n_sent, n_received = 0;
        int pair[2], r;

        assert(value && socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
        c.value = value;
        c.value_bytes = cases[i].value;
        CU_ASSERT_EQUAL_FATAL(out_add_command(&o, &c), 0);
        n_sent = out_waiting(&o);
        CU_ASSERT(n_sent > cases[i].value);
        do {
            ssize_t got;

            r = out_send(&o, pair[0], NULL);
            while ((got = recv(pair[1], bytes, sizeof(bytes), MSG_DONTWAIT)) > 0)
                n_received += (size_t) got;
        } while (r == 0);
        CU_ASSERT_EQUAL(r, 1);
        CU_ASSERT_EQUAL(n_received, n_sent);
        CU_ASSERT_EQUAL(out_waiting(&o), 0);
        CU_ASSERT_EQUAL(o.bytes != NULL, cases[i].is_kept);
        CU_ASSERT_EQUAL(o.room > 0, cases[i].is_kept);
        CU_ASSERT_EQUAL(out_add_command(&o, &c), 0); /* either way it takes the next command */
        CU_ASSERT_EQUAL(out_waiting(&o), n_sent);
        out_clear(&o);
        (void) close(pair[0]);
        (void) close(pair[1]);
        free(value);
    }
}

const struct test_case test_cases[] = {TEST(test_commands), TEST(test_limit), TEST(test_send),
                                       TEST(test_large_buffers), TEST_END};
