/*
 * The event loop waits for no large memory object: while one is being created or freed, other clients are
 * served. kvcobrad_gated (gated_daemon.c) stops in such a call until the test lets it go on.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "gpu/page_layout.h"
#include "tests/e2e/gate_fixture.h"
#include "tests/e2e/raw_service_fixture.h"
#include "tests/lib/test.h"
#include "tests/lib/wait.h"

const char test_suite[] = "slow_memory";

static bool is_served(int fd)
{
    Kvcobra__ListTables list = KVCOBRA__LIST_TABLES__INIT;
    Kvcobra__Request q = raw_of(KVCOBRA__REQUEST__BODY_LIST_TABLES, &list);

    return raw_errno(fd, &q) == 0;
}

static void say_bye(int fd)
{
    Kvcobra__Bye bye = KVCOBRA__BYE__INIT;
    Kvcobra__Request q = raw_of(KVCOBRA__REQUEST__BODY_BYE, &bye);

    CU_ASSERT_EQUAL(raw_errno(fd, &q), 0);
}

/* OPEN_MODEL creates an arena without memory: nothing waits for it. */
static void test_open_model(void)
{
    struct raw_model m;

    gate_make("new");
    raw_start(DAEMON_BY_PATH, (const char *const[]){"--arena-bytes=64M", NULL});
    m = raw_model_open();
    CU_ASSERT_EQUAL(m.arena_bytes, 64 << 20);
    gate_remove();
    raw_close_model(&m);
    raw_stop();
}

/* The end of a session, by BYE and by a closed socket, frees a large arena while others are served. */
static void test_end_of_session(void)
{
    const char *const args[] = {"--arena-bytes=64M", "--quota-bytes=65M", NULL};
    int other, gate;

    gate_make("free");
    raw_start(DAEMON_BY_PATH, args);
    other = raw_open(raw_daemon.socket);
    for (unsigned with_bye = 0; with_bye < 2; with_bye++) {
        struct raw_model m =
            raw_model_open(); /* the quota has room for one arena: that of the first is free */

        memset(m.arena, 1, m.arena_bytes);
        if (with_bye)
            say_bye(m.fd);
        raw_close_model(&m);
        gate = gate_wait();
        CU_ASSERT_FATAL(is_served(other));
        if (with_bye == 0) {
            struct raw_model next = raw_model_open();

            raw_close_model(&next);
        }
        (void) close(gate);
    }

    gate_remove();
    (void) close(other);
    raw_stop();
}

struct reserving { /* a RESERVE whose reply another thread awaits */
    pthread_t thread;
    struct raw_model *m;
    size_t n_items; /* chunks 1 to n */
    uint32_t timeout_ms;
    Kvcobra__Reply *reply;
};

struct reserve_message {
    Kvcobra__ReserveItem items[WIRE_ITEMS_MAX], *pointers[WIRE_ITEMS_MAX];
    struct chunk_key keys[WIRE_ITEMS_MAX];
    Kvcobra__Reserve reserve;
};

/* RESERVE of chunks 1 to @n. */
static Kvcobra__Request reserve_of(struct reserve_message *x, struct raw_model *m, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        x->keys[i] = raw_key(i + 1);
        kvcobra__reserve_item__init(&x->items[i]);
        x->items[i].key = (ProtobufCBinaryData){CHUNK_KEY_BYTES, x->keys[i].bytes};
        x->items[i].page_class = PAGE_REST;
        x->pointers[i] = &x->items[i];
    }
    kvcobra__reserve__init(&x->reserve);
    x->reserve.model = m->handle;
    x->reserve.table_digest = (ProtobufCBinaryData){32, m->table_digest};
    x->reserve.n_items = n;
    x->reserve.items = x->pointers;
    return raw_of(KVCOBRA__REQUEST__BODY_RESERVE, &x->reserve);
}

static void *reserve_on_thread(void *arg)
{
    struct reserving *x = arg;
    struct reserve_message message;
    Kvcobra__Request q = reserve_of(&message, x->m, x->n_items);

    q.timeout_ms = x->timeout_ms;
    x->reply = raw_request(x->m->fd, &q, NULL, 0, NULL);
    return NULL;
}

static void begin_reserve(struct reserving *x, struct raw_model *m, size_t n_items, uint32_t timeout_ms)
{
    *x = (struct reserving){.m = m, .n_items = n_items, .timeout_ms = timeout_ms};
    assert(pthread_create(&x->thread, NULL, reserve_on_thread, x) == 0);
}

static const Kvcobra__Reply *end_reserve(struct reserving *x)
{
    (void) pthread_join(x->thread, NULL);
    CU_ASSERT_PTR_NOT_NULL_FATAL(x->reply);
    return x->reply;
}

static void wait_for_sessions(uint32_t n)
{
    for (struct wait w = wait_begin();;) {
        Kvcobra__Reply *r = raw_status();
        bool reached = r->status->n_tenants > 0 && r->status->tenants[0]->sessions == n;

        wire_reply_free(r);
        if (reached || !wait_again(&w))
            return;
    }
}

/*
 * While an extent is being created, the request that needs it waits, and others are served. A client that
 * dies meanwhile, and one whose deadline passes, do not disturb the others.
 */
static void test_reserve(void)
{
    const char *const args[] = {"--extent-bytes=2M", "--pool-bytes=4M", "--span-bytes=64K",
                                "--arena-bytes=1M", NULL};
    struct reserving waiting, late, dead;
    struct raw_model m[3];
    int other, gate;

    gate_make("new");
    raw_start(DAEMON_BY_PATH, args);
    other = raw_open(raw_daemon.socket);
    for (int i = 0; i < 3; i++)
        m[i] = raw_model_open();
    gate = gate_wait(); /* the preallocated extent is being created */
    begin_reserve(&waiting, &m[0], 1, 0);
    begin_reserve(&late, &m[1], 1, 100);
    begin_reserve(&dead, &m[2], 1, 0);
    CU_ASSERT_EQUAL(end_reserve(&late)->err, -ETIMEDOUT);
    CU_ASSERT_FATAL(is_served(other));
    CU_ASSERT_EQUAL(shutdown(m[2].fd, SHUT_RDWR), 0);
    (void) pthread_join(dead.thread, NULL);
    wait_for_sessions(3);
    CU_ASSERT_FATAL(is_served(other));
    gate_remove();
    (void) close(gate);
    CU_ASSERT_EQUAL(end_reserve(&waiting)->err, 0);
    CU_ASSERT_EQUAL(waiting.reply->reserve->n_slots, 1);
    CU_ASSERT_EQUAL(waiting.reply->reserve->end_err, 0);

    wire_reply_free(waiting.reply);
    wire_reply_free(late.reply);
    wire_reply_free(dead.reply);
    (void) close(other);
    for (int i = 0; i < 3; i++)
        raw_close_model(&m[i]);
    raw_stop();
}

/*
 * A message that needs a second extent in its middle: what it reserved before is undone while it waits, and
 * in the end all its items succeed.
 */
static void test_reserve_more_than_an_extent(void)
{
    const char *const args[] = {"--extent-bytes=1M", "--pool-bytes=4M", "--span-bytes=64K",
                                "--arena-bytes=1M", NULL};
    struct reserving x;
    struct raw_model m;
    int gate;

    gate_make("new");
    raw_start(DAEMON_BY_PATH, args);
    m = raw_model_open();
    gate = gate_wait();
    begin_reserve(&x, &m, WIRE_ITEMS_MAX, 0);
    (void) close(gate);
    gate = gate_wait(); /* the message, or the queue of preallocated extents, wants the second one */
    CU_ASSERT_EQUAL(raw_busy_bytes(), 0);
    gate_remove();
    (void) close(gate);
    CU_ASSERT_EQUAL(end_reserve(&x)->err, 0);
    CU_ASSERT_EQUAL(x.reply->reserve->n_slots, WIRE_ITEMS_MAX);
    CU_ASSERT_EQUAL(x.reply->reserve->end_err, 0);
    CU_ASSERT(x.reply->reserve->slots[0]->extent != x.reply->reserve->slots[WIRE_ITEMS_MAX - 1]->extent);
    CU_ASSERT(raw_busy_bytes() > 0);
    wire_reply_free(x.reply);
    raw_close_model(&m);
    raw_wait_for_busy_bytes(0);
    raw_stop();
}

static Kvcobra__Reply *receive_reply(int fd)
{
    static uint8_t buf[WIRE_PACKET_BYTES_MAX];
    struct wire_packet p;
    Kvcobra__Reply *reply = NULL;

    CU_ASSERT_FATAL(wire_receive(fd, buf, &p) == 0 && wire_reply_unpack(buf, p.bytes, &reply) == 0);
    return reply;
}

/*
 * Requests that wait keep memory, which is limited for each tenant: the first has 37 KB, the second would be
 * beyond 64 KiB and is refused at once. When the first is answered, there is room again.
 */
static void test_waiting_bytes(void)
{
    const char *const args[] = {"--extent-bytes=2M",
                                "--pool-bytes=4M",
                                "--span-bytes=64K",
                                "--arena-bytes=1M",
                                "--waiting-bytes-per-tenant=64K",
                                NULL};
    static uint8_t buf[WIRE_PACKET_BYTES_MAX];
    struct reserve_message message;
    struct raw_model m;
    Kvcobra__Request q;
    Kvcobra__Reply *r;
    int gate;

    gate_make("new");
    raw_start(DAEMON_BY_PATH, args);
    m = raw_model_open();
    gate = gate_wait(); /* the preallocated extent is being created */
    q = reserve_of(&message, &m, WIRE_ITEMS_MAX);
    for (q.id = 101; q.id <= 102; q.id++) {
        ssize_t bytes = wire_request_pack(&q, buf);

        CU_ASSERT_FATAL(bytes > 0 && wire_send(m.fd, buf, (size_t) bytes, NULL, 0) == 0);
    }
    r = receive_reply(m.fd);
    CU_ASSERT_EQUAL(r->id, 102);
    CU_ASSERT_EQUAL(r->err ? r->err : r->reserve->end_err, -EDQUOT);
    CU_ASSERT_PTR_NOT_NULL(strstr(r->message, "--waiting-bytes-per-tenant"));
    wire_reply_free(r);
    gate_remove();
    (void) close(gate);
    r = receive_reply(m.fd);
    CU_ASSERT(r->id == 101 && r->err == 0 && r->reserve->n_slots == WIRE_ITEMS_MAX);
    wire_reply_free(r);
    r = raw_request(m.fd, &q, NULL, 0, NULL);
    CU_ASSERT_PTR_NOT_NULL_FATAL(r);
    CU_ASSERT_EQUAL(r->err, 0); /* whatever room the pool has for it */
    wire_reply_free(r);
    raw_close_model(&m);
    raw_stop();
}

const struct test_case test_cases[] = {
    TEST(test_waiting_bytes),
    TEST(test_open_model),
    TEST(test_end_of_session),
    TEST(test_reserve),
    TEST(test_reserve_more_than_an_extent),
    TEST_END,
};
