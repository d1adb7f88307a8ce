/* The event loop. */
#include "tests/lib/test.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/errmsg.h"
#include "daemon/loop/ev.h"
#include "tests/lib/wait.h"

const char test_suite[] = "ev";

static struct {
    struct ev *ev;
    struct ev_source *stream, *listener, *watch;
    unsigned n_packets, n_ends, n_accepts, n_ticks, n_readable;
    size_t last_bytes, last_fds;
    pid_t last_pid;
    uint8_t last_byte;
    int end;
    bool echo, free_in_callback;
    unsigned stop_after;
} t;

static void count(void)
{
    if (--t.stop_after == 0)
        ev_stop(t.ev);
}

static void on_packet(void *ctx, const void *data, struct wire_packet *p)
{
    (void) ctx;
    t.n_packets++;
    t.last_bytes = p->bytes;
    t.last_fds = p->n_fds;
    t.last_pid = p->pid;
    t.last_byte = ((const uint8_t *) data)[p->bytes - 1];
    wire_packet_close_fds(p);
    if (t.echo)
        CU_ASSERT_EQUAL(ev_stream_send(t.stream, data, p->bytes, NULL, 0), 0);
    if (t.free_in_callback)
        t.stream = ev_source_free(t.stream);
    count();
}

static void on_end(void *ctx, int err)
{
    (void) ctx;
    t.n_ends++;
    t.end = err;
    t.stream = ev_source_free(t.stream);
    count();
}

static const struct ev_stream_callbacks callbacks = {
    .on_packet = on_packet,
    .on_end = on_end,
    .takes_fds = true,
};

static void on_tick(void *ctx)
{
    (void) ctx;
    t.n_ticks++;
    count();
}

static void in_loop(void (*body)(void))
{
    memset(&t, 0, sizeof(t));
    CU_ASSERT_EQUAL_FATAL(ev_new(&t.ev, NULL), 0);
    body();
    t.stream = ev_source_free(t.stream);
    t.listener = ev_source_free(t.listener);
    t.watch = ev_source_free(t.watch);
    t.ev = ev_free(t.ev);
}

static void run(unsigned n_events)
{
    t.stop_after = n_events;
    CU_ASSERT_EQUAL(ev_run(t.ev), 0);
}

/* A stream at one end of a pair; returns the other end. */
static int make_stream(void)
{
    int pair[2], on = 1;

    CU_ASSERT_EQUAL_FATAL(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    CU_ASSERT_EQUAL(setsockopt(pair[0], SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)), 0);
    CU_ASSERT_EQUAL_FATAL(ev_stream_new(t.ev, pair[0], &callbacks, NULL, &t.stream), 0);
    return pair[1];
}

static void body_packets_and_end(void)
{
    static uint8_t big[WIRE_PACKET_BYTES_MAX];
    int peer = make_stream(), fds[2] = {0, 1};

    big[sizeof(big) - 1] = 0xab;
    t.echo = true;
    CU_ASSERT_EQUAL(wire_send(peer, "x", 1, fds, 2), 0);
    run(1);
    CU_ASSERT(t.last_bytes == 1 && t.last_fds == 2 && t.last_pid == getpid() && t.last_byte == 'x');
    CU_ASSERT_EQUAL(wire_send(peer, big, sizeof(big), NULL, 0), 0);
    run(1);
    CU_ASSERT(t.last_bytes == sizeof(big) && t.last_byte == 0xab);
    CU_ASSERT_EQUAL(close(peer), 0);
    run(1);
    CU_ASSERT_EQUAL(t.n_ends, 1);
    CU_ASSERT(t.end == 0 || t.end == -EPIPE || t.end == -ECONNRESET); /* the echo may still be under way */
}

static void test_packets_and_end(void)
{
    in_loop(body_packets_and_end);
}

static void body_plain_end(void)
{
    int peer = make_stream();

    (void) close(peer);
    run(1);
    CU_ASSERT(t.n_ends == 1 && t.end == 0);
}

static void test_plain_end(void)
{
    in_loop(body_plain_end);
}

static void body_truncated(void)
{
    static uint8_t big[WIRE_PACKET_BYTES_MAX + 1];
    int peer = make_stream();

    CU_ASSERT_EQUAL(send(peer, big, sizeof(big), MSG_NOSIGNAL), (ssize_t) sizeof(big));
    run(1);
    CU_ASSERT_EQUAL(t.n_packets, 0);
    CU_ASSERT(t.n_ends == 1 && t.end == -EBADMSG);
    (void) close(peer);
}

static void test_truncated_packet_ends(void)
{
    in_loop(body_truncated);
}

/* More packets than provided buffers before the loop runs: all arrive, in order. */
static void body_burst(void)
{
    enum { BURST = 100 };
    int peer = make_stream();

    for (uint8_t i = 0; i < BURST; i++)
        CU_ASSERT_EQUAL(wire_send(peer, &i, 1, NULL, 0), 0);
    run(BURST);
    CU_ASSERT_EQUAL(t.n_packets, BURST);
    CU_ASSERT_EQUAL(t.last_byte, BURST - 1);
    (void) close(peer);
}

static void test_burst(void)
{
    in_loop(body_burst);
}

static void body_free_in_callback(void)
{
    int peer = make_stream();
    char byte;

    t.free_in_callback = true;
    CU_ASSERT_EQUAL(wire_send(peer, "ab", 2, NULL, 0), 0);
    CU_ASSERT_EQUAL(wire_send(peer, "cd", 2, NULL, 0), 0);
    run(1);
    CU_ASSERT_EQUAL(t.n_packets, 1); /* none after the free */
    CU_ASSERT_EQUAL(t.n_ends, 0);
    /* the peer gets the end at once: end of stream, or reset because of unread bytes */
    CU_ASSERT(recv(peer, &byte, 1, 0) <= 0);
    (void) close(peer);
}

static void test_free_in_callback(void)
{
    in_loop(body_free_in_callback);
}

/* A peer does not read: packets fill the socket, then the queue; then -ENOBUFS. All arrive in order. */
static void body_bounded_queue(void)
{
    static uint8_t packet[WIRE_PACKET_BYTES_MAX];
    int peer = make_stream(), r = 0, n_sent = 0;

    while (n_sent < 10000 && r == 0) {
        packet[0] = (uint8_t) n_sent;
        r = ev_stream_send(t.stream, packet, sizeof(packet), NULL, 0);
        n_sent += r == 0;
        if (r == 0 && n_sent % 4 == 0) { /* let the loop send what the socket accepts */
            ev_tick_every(t.ev, 1, on_tick, NULL);
            run(1);
        }
    }
    CU_ASSERT_EQUAL(r, -ENOBUFS);
    CU_ASSERT(n_sent >= EV_SEND_QUEUE_MAX);
    CU_ASSERT(!ev_stream_drained(t.stream));
    for (int i = 0; i < n_sent; i++) { /* the loop continues when the peer reads */
        struct wire_packet p;
        static uint8_t got[WIRE_PACKET_BYTES_MAX];

        CU_ASSERT_EQUAL_FATAL(wire_receive(peer, got, &p), 0);
        CU_ASSERT_EQUAL(got[0], (uint8_t) i);
        run(1);
    }
    CU_ASSERT(ev_stream_drained(t.stream));
    (void) close(peer);
}

static void test_bounded_queue(void)
{
    in_loop(body_bounded_queue);
}

/*
 * A peer that sends and does not read: what it sends stays in its socket while long replies wait, and all of
 * it is served when the peer reads.
 */
static void body_full_queue(void)
{
    enum { N = 1000, BYTES = EV_SEND_QUEUE_BYTES };
    static uint8_t packet[WIRE_PACKET_BYTES_MAX];
    unsigned n_sent = 0, n_received = 0, n_served;
    int peer = make_stream();

    t.echo = true;
    ev_tick_every(t.ev, 1, on_tick, NULL); /* so that every run ends */
    while (n_sent < N && send(peer, packet, BYTES, MSG_DONTWAIT) == BYTES) {
        n_sent++;
        run(2);
    }
    n_served = t.n_packets;
    CU_ASSERT(n_served > 0 && n_served < n_sent); /* the echoes filled the socket, then the queue */
    run(4);
    CU_ASSERT_EQUAL(t.n_packets, n_served);
    CU_ASSERT_EQUAL(t.n_ends, 0);
    for (struct wait w = wait_begin(); n_received < n_sent && wait_again(&w);) {
        while (recv(peer, packet, sizeof(packet), MSG_DONTWAIT) == BYTES)
            n_received++;
        run(1);
    }
    CU_ASSERT(n_received == n_sent && t.n_packets == n_sent);
    CU_ASSERT(ev_stream_drained(t.stream));
    (void) close(peer);
}

static void test_full_queue(void)
{
    in_loop(body_full_queue);
}

/* Sent descriptors arrive at the peer and are closed here. */
static void body_send_descriptors(void)
{
    static uint8_t buf[WIRE_PACKET_BYTES_MAX];
    int peer = make_stream(), fd = eventfd(0, EFD_CLOEXEC);
    struct wire_packet p;

    CU_ASSERT_EQUAL(ev_stream_send(t.stream, "f", 1, &fd, 1), 0);
    ev_tick_every(t.ev, 1, on_tick, NULL);
    run(2);
    CU_ASSERT_EQUAL_FATAL(wire_receive(peer, buf, &p), 0);
    CU_ASSERT_EQUAL(p.n_fds, 1);
    wire_packet_close_fds(&p);
    CU_ASSERT_EQUAL(fcntl(fd, F_GETFD), -1);
    (void) close(peer);
}

static void test_send_descriptors(void)
{
    in_loop(body_send_descriptors);
}

static void on_accept(void *ctx, int fd)
{
    (void) ctx;
    t.n_accepts++;
    CU_ASSERT_EQUAL(fcntl(fd, F_GETFD), FD_CLOEXEC);
    (void) close(fd);
    count();
}

static void body_accept(void)
{
    enum { PEERS = 40 };
    struct sockaddr_un sa = {.sun_family = AF_UNIX}; /* autobind: an abstract name of the kernel's choice */
    socklen_t bytes = sizeof(sa);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), peers[PEERS];

    CU_ASSERT_EQUAL_FATAL(bind(fd, (struct sockaddr *) &sa, sizeof(sa.sun_family)), 0);
    CU_ASSERT_EQUAL_FATAL(listen(fd, PEERS), 0);
    CU_ASSERT_EQUAL_FATAL(getsockname(fd, (struct sockaddr *) &sa, &bytes), 0);
    CU_ASSERT_EQUAL_FATAL(ev_listen(t.ev, fd, on_accept, NULL, &t.listener), 0);
    for (int i = 0; i < PEERS; i++) {
        peers[i] = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        CU_ASSERT_EQUAL_FATAL(connect(peers[i], (struct sockaddr *) &sa, bytes), 0);
    }
    run(PEERS);
    CU_ASSERT_EQUAL(t.n_accepts, PEERS);
    for (int i = 0; i < PEERS; i++)
        (void) close(peers[i]);
}

static void test_accept(void)
{
    in_loop(body_accept);
}

static int event_fd;

static void on_readable(void *ctx)
{
    uint64_t v;

    (void) ctx;
    t.n_readable++;
    if (t.n_readable == 3) /* until then it stays readable, and the callback runs again */
        CU_ASSERT_EQUAL(read(event_fd, &v, sizeof(v)), (ssize_t) sizeof(v));
    count();
}

static void body_watch(void)
{
    uint64_t one = 1;

    event_fd = eventfd(0, EFD_CLOEXEC);
    CU_ASSERT_EQUAL_FATAL(ev_watch(t.ev, event_fd, on_readable, NULL, &t.watch), 0);
    CU_ASSERT_EQUAL(write(event_fd, &one, sizeof(one)), (ssize_t) sizeof(one));
    run(3);
    ev_tick_every(t.ev, 5, on_tick, NULL);
    run(2);
    CU_ASSERT_EQUAL(t.n_readable, 3);
    CU_ASSERT_EQUAL(t.n_ticks, 2);
    t.watch = ev_source_free(t.watch);
    (void) close(event_fd);
}

static void test_watch_and_tick(void)
{
    in_loop(body_watch);
}

/* The owner of a watched descriptor keeps it open and readable: the freed source reports nothing. */
static void body_watch_ends(void)
{
    uint64_t one = 1;

    event_fd = eventfd(0, EFD_CLOEXEC);
    CU_ASSERT_EQUAL_FATAL(ev_watch(t.ev, event_fd, on_readable, NULL, &t.watch), 0);
    t.watch = ev_source_free(t.watch);
    CU_ASSERT_EQUAL(write(event_fd, &one, sizeof(one)), (ssize_t) sizeof(one));
    ev_tick_every(t.ev, 5, on_tick, NULL);
    run(2);
    CU_ASSERT(t.n_readable == 0 && t.n_ticks == 2);
    /* it can be watched again, as if it never was */
    CU_ASSERT_EQUAL_FATAL(ev_watch(t.ev, event_fd, on_readable, NULL, &t.watch), 0);
    while (t.n_readable == 0)
        run(1);
    t.watch = ev_source_free(t.watch);
    (void) close(event_fd);
}

static void test_watch_ends(void)
{
    in_loop(body_watch_ends);
}

static void on_roused(void *ctx)
{
    (void) ctx;
    if (++t.n_readable == 2)
        ev_watch_pause(t.watch);
    count();
}

/*
 * A watch whose descriptor is never readable is served once for each time that it is roused, and not while it
 * pauses; then once, and as before when its descriptor becomes readable.
 */
static void body_watch_rouse(void)
{
    uint64_t one = 1;

    event_fd = eventfd(0, EFD_CLOEXEC);
    CU_ASSERT_EQUAL_FATAL(ev_watch(t.ev, event_fd, on_roused, NULL, &t.watch), 0);
    ev_watch_rouse(t.watch);
    ev_watch_rouse(t.watch); /* it waits already */
    run(1);
    ev_tick_every(t.ev, 5, on_tick, NULL);
    run(2);
    CU_ASSERT(t.n_readable == 1 && t.n_ticks == 2);
    ev_watch_rouse(t.watch);
    run(1); /* pauses */
    ev_watch_rouse(t.watch);
    run(2);
    CU_ASSERT(t.n_readable == 2 && t.n_ticks == 4);
    ev_tick_every(t.ev, 0, on_tick, NULL);
    run(1);
    CU_ASSERT(t.n_readable == 3 && t.n_ticks == 4);
    CU_ASSERT_EQUAL(write(event_fd, &one, sizeof(one)), (ssize_t) sizeof(one));
    run(2);
    CU_ASSERT_EQUAL(t.n_readable, 5);
    t.watch = ev_source_free(t.watch);
    (void) close(event_fd);
}

static void test_watch_rouse(void)
{
    in_loop(body_watch_rouse);
}

/* Without a descriptor no loop starts, and nothing is left behind. */
static void test_no_descriptor_left(void)
{
    int lowest = dup(STDERR_FILENO);
    struct rlimit before, none;
    struct ev *ev = NULL;
    struct errmsg e = {""};
    int r;

    CU_ASSERT_FATAL(lowest >= 0 && getrlimit(RLIMIT_NOFILE, &before) == 0);
    (void) close(lowest);
    none = before;
    none.rlim_cur = (rlim_t) lowest;
    CU_ASSERT_EQUAL_FATAL(setrlimit(RLIMIT_NOFILE, &none), 0);
    r = ev_new(&ev, &e);
    CU_ASSERT_EQUAL_FATAL(setrlimit(RLIMIT_NOFILE, &before), 0);
    CU_ASSERT(r < 0 && !ev && e.text[0] != '\0');
}

static uint64_t seen_ms;

static void on_alarm(void *ctx)
{
    (void) ctx;
    seen_ms = ev_now_ms(t.ev);
    count();
}

/* In the callback of an event that ends a sleep, ev_now_ms() is not the time at which the sleep began. */
static void late_alarm(void)
{
    int fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    struct itimerspec when = {.it_value = {0}};
    uint64_t due_ms;

    CU_ASSERT_FATAL(fd >= 0 && clock_gettime(CLOCK_MONOTONIC, &when.it_value) == 0);
    due_ms = (uint64_t) when.it_value.tv_sec * 1000 + (uint64_t) when.it_value.tv_nsec / 1000000 + 60;
    when.it_value = (struct timespec){(time_t) (due_ms / 1000), (long) (due_ms % 1000) * 1000000};
    CU_ASSERT_EQUAL_FATAL(timerfd_settime(fd, TFD_TIMER_ABSTIME, &when, NULL), 0);
    CU_ASSERT_EQUAL_FATAL(ev_watch(t.ev, fd, on_alarm, NULL, &t.watch), 0);
    t.stop_after = 1;
    CU_ASSERT_EQUAL(ev_run(t.ev), 0);
    CU_ASSERT(seen_ms >= due_ms);
    t.watch = ev_source_free(t.watch);
    (void) close(fd);
}

static void test_clock_after_sleep(void)
{
    in_loop(late_alarm);
}

const struct test_case test_cases[] = {
    TEST(test_packets_and_end), TEST(test_plain_end),         TEST(test_truncated_packet_ends),
    TEST(test_burst),           TEST(test_free_in_callback),  TEST(test_bounded_queue),
    TEST(test_full_queue),      TEST(test_send_descriptors),  TEST(test_accept),
    TEST(test_watch_and_tick),  TEST(test_clock_after_sleep), TEST(test_no_descriptor_left),
    TEST(test_watch_ends),      TEST(test_watch_rouse),       TEST_END,
};
