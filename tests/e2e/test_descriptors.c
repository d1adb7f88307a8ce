/*
 * Clients that send descriptors, above all ones whose close waits for an hour: no other client waits. The
 * kernel refuses them on connections that are made while the daemon listens (SO_PASSRIGHTS, Linux 6.16).
 * Connections that are older than the daemon are served as on older kernels.
 */
#include "tests/lib/test.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/wire.h"
#include "tests/e2e/daemon_fixture.h"
#include "tests/e2e/raw_fixture.h"
#include "tests/lib/lingering.h"
#include "tests/lib/wait.h"

const char test_suite[] = "descriptors";

static struct daemon daemon_;

static int list_tables(int fd)
{
    Kvcobra__ListTables list = KVCOBRA__LIST_TABLES__INIT;
    Kvcobra__Request m = raw_of(KVCOBRA__REQUEST__BODY_LIST_TABLES, &list);

    return raw_errno(fd, &m);
}

static size_t n_descriptors_of_daemon(void)
{
    char path[64];
    size_t n = 0;

    for (int fd = 0; fd < 1024; fd++) {
        struct stat st;

        (void) snprintf(path, sizeof(path), "/proc/%ld/fd/%d", (long) daemon_.pid, fd);
        n += lstat(path, &st) == 0;
    }
    return n;
}

/* The daemon has @n descriptors at most, at last: it may open some for a moment at any time. */
static void expect_descriptors(size_t n)
{
    bool few = n_descriptors_of_daemon() <= n;

    for (struct wait w = wait_begin(); !few && wait_again(&w);)
        few = n_descriptors_of_daemon() <= n;
    CU_ASSERT(few);
}

/* A client never needs to send descriptors: the kernel refuses them, or the daemon closes the connection. */
static void test_clients_send_none(void)
{
    static const unsigned counts[] = {1, WIRE_FDS_MAX, WIRE_FDS_MAX + 1, 253};
    size_t before;

    CU_ASSERT_FATAL(daemon_start(&daemon_, DAEMON_BY_FD, NULL));
    (void) close(raw_open(daemon_.socket));
    before = n_descriptors_of_daemon();
    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
        int fd = raw_open(daemon_.socket), r = lingering_send(fd, 0, counts[i]);

        CU_ASSERT(r == 0 || r == -EPERM);
        CU_ASSERT(r == -EPERM ? list_tables(fd) == 0 : raw_is_closed(fd));
        (void) close(fd);
    }
    expect_descriptors(before);
    CU_ASSERT(daemon_stop(&daemon_));
}

enum { EARLY = 40 };

static int early[EARLY], peers[EARLY];

static void connect_early(const struct daemon *d)
{
    for (int i = 0; i < EARLY; i++) {
        int fd = lingering_socket(&peers[i]);

        early[i] = raw_connect(d->socket);
        CU_ASSERT_EQUAL(lingering_send(early[i], fd, 1 + (unsigned) i % 8), 0);
        (void) close(fd); /* the last reference waits for the daemon now */
    }
}

/*
 * Connections that were made and filled before the daemon runs. A close on the loop would wait for an hour:
 * the request below and the daemon's end would run into the limits of the fixtures.
 */
static void test_lingering_descriptors(void)
{
    int fd;

    daemon_before_start = connect_early;
    CU_ASSERT_FATAL(daemon_start(&daemon_, DAEMON_BY_FD, NULL));
    daemon_before_start = NULL;
    fd = raw_open(daemon_.socket);
    for (int i = 0; i < EARLY; i++) {
        CU_ASSERT(raw_is_closed(early[i]));
        (void) close(early[i]);
        CU_ASSERT_EQUAL(list_tables(fd), 0);
    }
    CU_ASSERT(daemon_logged(&daemon_, "packet-with-descriptors"));
    for (int i = 0; i < EARLY; i++)
        CU_ASSERT(lingering_is_closed(peers[i]));
    (void) close(fd);
    CU_ASSERT(daemon_stop(&daemon_));
    for (int i = 0; i < EARLY; i++)
        (void) close(peers[i]);
}

/*
 * The same connections at the limit of connections: the daemon refuses most of them, and closes them as
 * well.
 */
static void test_refused_connections(void)
{
    const char *const args[] = {"--connections=4", NULL};
    int fd;

    daemon_before_start = connect_early;
    CU_ASSERT_FATAL(daemon_start(&daemon_, DAEMON_BY_FD, args));
    daemon_before_start = NULL;
    for (int i = 0; i < EARLY; i++) {
        char text[512];
        ssize_t n;

        do /* a refused connection gets the reason first */
            n = recv(early[i], text, sizeof(text), 0);
        while (n > 0);
        CU_ASSERT(n == 0 || errno == ECONNRESET);
        (void) close(early[i]);
    }
    fd = raw_open_on(daemon_.socket, NULL); /* again and again, until the others are closed */
    CU_ASSERT_EQUAL(list_tables(fd), 0);
    (void) close(fd);
    CU_ASSERT(daemon_stop(&daemon_));
    for (int i = 0; i < EARLY; i++)
        (void) close(peers[i]);
}

/*
 * Operators may send descriptors, also with messages that need none. When the reply comes, the daemon has
 * none of them: each is a pipe's end that is written to, and reading ends because no other writer is left.
 */
static void test_descriptors_of_operators(void)
{
    Kvcobra__ListTables list = KVCOBRA__LIST_TABLES__INIT;
    Kvcobra__Request m = raw_of(KVCOBRA__REQUEST__BODY_LIST_TABLES, &list);
    int fd;

    CU_ASSERT_FATAL(daemon_start(&daemon_, DAEMON_BY_FD, NULL));
    fd = raw_open(daemon_.operator_socket);
    for (unsigned i = 0; i < 5; i++) {
        Kvcobra__Reply *reply;
        int ends[2];
        char byte;

        CU_ASSERT_EQUAL_FATAL(pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
        reply = raw_request(fd, &m, &ends[1], 1, NULL);
        CU_ASSERT(reply && reply->err == 0);
        wire_reply_free(reply);
        (void) close(ends[1]);
        CU_ASSERT_EQUAL(read(ends[0], &byte, 1), 0); /* not EAGAIN */
        (void) close(ends[0]);
    }
    (void) close(fd);
    CU_ASSERT(daemon_stop(&daemon_));
}

const struct test_case test_cases[] = {
    TEST(test_clients_send_none),
    TEST(test_descriptors_of_operators),
    TEST(test_lingering_descriptors),
    TEST(test_refused_connections),
    TEST_END,
};
