/* Streams of the event loop: shares take turns, and descriptors of untrusted peers never block the loop. */
#include "tests/lib/test.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/errmsg.h"
#include "daemon/loop/ev.h"
#include "daemon/loop/fair.h"
#include "tests/lib/lingering.h"
#include "tests/lib/wait.h"

const char test_suite[] = "ev_stream";

enum { STREAMS = 32, PACKETS = 8 };

struct stream {
    struct ev_source *source;
    int peer;
    unsigned n, end_at; /* packets, and the position of the last one among all */
    int end;
};

static struct ev *ev;
static struct stream busy[STREAMS], other;
static struct fair_share busy_share, other_share;
static unsigned n_events, n_wanted;

static void count(void)
{
    if (++n_events == n_wanted)
        ev_stop(ev);
}

static void on_packet(void *ctx, const void *data, struct wire_packet *p)
{
    struct stream *x = ctx;

    (void) data;
    CU_ASSERT_EQUAL(p->n_fds, 0);
    x->n++;
    x->end_at = n_events;
    count();
}

static void on_end(void *ctx, int err)
{
    struct stream *x = ctx;

    x->end = err;
    x->source = ev_source_free(x->source);
    count();
}

static const struct ev_stream_callbacks callbacks = {.on_packet = on_packet, .on_end = on_end};

static void open_stream(struct stream *x, struct fair_share *share)
{
    int pair[2];

    CU_ASSERT_EQUAL_FATAL(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    *x = (struct stream){.peer = pair[1]};
    CU_ASSERT_EQUAL_FATAL(ev_stream_new(ev, pair[0], &callbacks, x, &x->source), 0);
    CU_ASSERT_EQUAL(ev_source_set_share(x->source, share), 0);
}

static void send_packets(struct stream *x, unsigned n)
{
    while (n-- > 0)
        CU_ASSERT_EQUAL(wire_send(x->peer, "p", 1, NULL, 0), 0);
}

static void close_stream(struct stream *x)
{
    x->source = ev_source_free(x->source);
    (void) close(x->peer);
}

static void run(unsigned n)
{
    n_events = 0;
    n_wanted = n;
    CU_ASSERT_EQUAL(ev_run(ev), 0);
}

static void in_loop(void (*body)(void))
{
    memset(&busy_share, 0, sizeof(busy_share));
    memset(&other_share, 0, sizeof(other_share));
    CU_ASSERT_EQUAL_FATAL(ev_new(&ev, NULL), 0);
    body();
    ev = ev_free(ev);
    CU_ASSERT(busy_share.n_users == 0 && other_share.n_users == 0);
}

/*
 * Many connections of one account have sent many packets before another account's single packet. That one is
 * the first or second to be served. Among the busy ones, each gets a packet before one gets two.
 */
static void body_turns(void)
{
    for (int i = 0; i < STREAMS; i++) {
        open_stream(&busy[i], &busy_share);
        send_packets(&busy[i], PACKETS);
    }
    open_stream(&other, &other_share);
    send_packets(&other, 1);
    run(STREAMS + 1);
    CU_ASSERT_EQUAL(other.n, 1);
    CU_ASSERT(other.end_at <= 1);
    for (int i = 0; i < STREAMS; i++)
        CU_ASSERT_EQUAL(busy[i].n, 1);
    send_packets(&other, 1); /* woken among busy ones: next after a look at the kernel */
    run(STREAMS * (PACKETS - 1) + 1);
    CU_ASSERT_EQUAL(other.n, 2);
    for (int i = 0; i < STREAMS; i++) {
        CU_ASSERT_EQUAL(busy[i].n, PACKETS);
        close_stream(&busy[i]);
    }
    close_stream(&other);
}

static void test_turns(void)
{
    in_loop(body_turns);
}

/* A stream moves to another share while it waits, and streams that wait are freed. */
static void body_moves(void)
{
    open_stream(&busy[0], &busy_share);
    open_stream(&busy[1], &busy_share);
    send_packets(&busy[0], 3);
    send_packets(&busy[1], 3);
    run(2); /* both have more and wait */
    CU_ASSERT_EQUAL(ev_source_set_share(busy[0].source, &other_share), 0);
    CU_ASSERT(busy_share.n_users == 1 && other_share.n_users == 1);
    run(1);
    close_stream(&busy[1]);
    CU_ASSERT_EQUAL(busy_share.n_users, 0);
    send_packets(&busy[0], 2);
    run(5 - busy[0].n);
    CU_ASSERT_EQUAL(busy[0].n, 5);
    close_stream(&busy[0]);
}

static void test_share_changes(void)
{
    in_loop(body_moves);
}

/*
 * Untrusted peers send descriptors whose close waits for an hour: the streams end, the loop serves others,
 * and the descriptors are closed. Before the end, such connections are refused as well.
 */
static void body_descriptors(void)
{
    int peers[STREAMS], pair[2], fd;

    open_stream(&other, &other_share);
    for (int i = 0; i < STREAMS; i++) {
        fd = lingering_socket(&peers[i]);
        open_stream(&busy[i], &busy_share);
        CU_ASSERT_EQUAL(lingering_send(busy[i].peer, fd, 1 + (unsigned) i), 0);
        (void) close(fd);
    }
    run(STREAMS);
    for (int i = 0; i < STREAMS; i++) {
        CU_ASSERT_EQUAL(busy[i].end, -EPERM);
        (void) close(busy[i].peer);
    }
    send_packets(&other, 1);
    run(1);
    CU_ASSERT_EQUAL(other.n, 1);
    for (int i = 0; i < STREAMS; i++) {
        CU_ASSERT(lingering_is_closed(peers[i]));
        (void) close(peers[i]);
    }

    CU_ASSERT_EQUAL_FATAL(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    fd = lingering_socket(&peers[0]);
    CU_ASSERT_EQUAL(lingering_send(pair[1], fd, 1), 0);
    (void) close(fd);
    ev_refuse(ev, pair[0]);
    for (struct wait w = wait_begin(); ev_n_closing(ev, getuid()) > 0 && wait_again(&w);)
        ;
    CU_ASSERT_EQUAL(ev_n_closing(ev, getuid()), 0);
    CU_ASSERT(lingering_is_closed(peers[0]));
    (void) close(peers[0]);
    (void) close(pair[1]);
    close_stream(&other);
}

static void test_lingering_descriptors(void)
{
    in_loop(body_descriptors);
}

const struct test_case test_cases[] = {
    TEST(test_turns),
    TEST(test_share_changes),
    TEST(test_lingering_descriptors),
    TEST_END,
};
