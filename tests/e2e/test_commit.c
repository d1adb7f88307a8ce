/*
 * COMMIT while threads copy: several at once over one connection, two clients with the same chunks, a client
 * that dies meanwhile. With every timing, replies, pages and accounts agree.
 */
#include "tests/lib/test.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "gpu/page_layout.h"
#include "tests/e2e/raw_service_fixture.h"
#include "tests/lib/random_table.h"
#include "tests/lib/wait.h"

const char test_suite[] = "commit";

enum { N = 12, ROUNDS = 30, STRIDE = 8192 };

/* Everything passes through one thread, with room for two requests. */
static const char *const narrow[] = {"--work-inline-bytes=0", "--work-threads=1", "--work-queue=2", NULL};

/* COMMIT of @n pages that lie in the arena from @offset on, @STRIDE bytes apart. */
static void send_commits(const struct raw_model *m, uint64_t id, const struct raw_slot *slots,
                         const struct chunk_key *keys, size_t n, size_t offset, uint32_t timeout_ms)
{
    static uint8_t buf[WIRE_PACKET_BYTES_MAX];
    static Kvcobra__CommitItem items[WIRE_ITEMS_MAX], *pointers[WIRE_ITEMS_MAX];
    Kvcobra__Commit commit = KVCOBRA__COMMIT__INIT;
    Kvcobra__Request q = raw_of(KVCOBRA__REQUEST__BODY_COMMIT, &commit);
    ssize_t bytes;

    for (size_t i = 0; i < n; i++) {
        items[i] = (Kvcobra__CommitItem) KVCOBRA__COMMIT_ITEM__INIT;
        items[i].slot = slots[i].slot;
        items[i].generation = slots[i].generation;
        items[i].arena_offset = offset + i * STRIDE;
        items[i].key = (ProtobufCBinaryData){CHUNK_KEY_BYTES, (uint8_t *) keys[i].bytes};
        pointers[i] = &items[i];
    }
    commit.model = m->handle;
    commit.n_items = n;
    commit.items = pointers;
    q.id = id;
    q.timeout_ms = timeout_ms;
    bytes = wire_request_pack(&q, buf);
    assert(bytes > 0 && wire_send(m->fd, buf, (size_t) bytes, NULL, 0) == 0);
}

static void send_commit(const struct raw_model *m, uint64_t id, const struct raw_slot *s,
                        const struct chunk_key *key, size_t offset)
{
    send_commits(m, id, s, key, 1, offset, 0);
}

/* Receives the next reply. Return: its id; *ret_err: the errno of its only item, or of the reply. */
static uint64_t receive_commit(const struct raw_model *m, int *ret_err)
{
    static uint8_t buf[WIRE_PACKET_BYTES_MAX];
    struct wire_packet p;
    Kvcobra__Reply *reply = NULL;
    uint64_t id;

    assert(wire_receive(m->fd, buf, &p) == 0 && wire_reply_unpack(buf, p.bytes, &reply) == 0);
    *ret_err = reply->err;
    if (reply->err == 0 && reply->body_case == KVCOBRA__REPLY__BODY_COMMIT)
        *ret_err = reply->commit->errs[0];
    CU_ASSERT(*ret_err == 0 || reply->message[0] != '\0');
    id = reply->id;
    wire_reply_free(reply);
    return id;
}

/*
 * More requests at once than the daemon accepts: each gets one answer, 0 or -EAGAIN, and a refused request
 * can be repeated.
 */
static void test_several_at_once(void)
{
    struct raw_slot slots[N];
    struct chunk_key keys[N];
    bool published[N] = {false};
    unsigned n_left = N, n_refused = 0;
    size_t bytes = 8192;
    struct raw_model m;
    Kvcobra__Reply *r;

    raw_start(DAEMON_BY_FD, narrow);
    m = raw_model_open();
    for (unsigned i = 0; i < N; i++) {
        keys[i] = raw_key(i + 1);
        slots[i] = raw_reserve(&m, &keys[i], PAGE_REST);
        raw_write_page(&m, raw_table, &keys[i], PAGE_REST, i * bytes, i);
    }
    while (n_left > 0) {
        unsigned n_sent = 0;

        for (unsigned i = 0; i < N; i++) {
            if (published[i])
                continue;
            send_commit(&m, 1000 + i, &slots[i], &keys[i], i * bytes);
            n_sent++;
        }
        for (bool seen[N] = {false}; n_sent > 0; n_sent--) {
            int err;
            uint64_t i = receive_commit(&m, &err) - 1000;

            CU_ASSERT_FATAL(i < N && !published[i] && !seen[i]);
            CU_ASSERT(err == 0 || err == -EAGAIN);
            seen[i] = true;
            published[i] = err == 0;
            n_left -= err == 0;
            n_refused += err == -EAGAIN;
        }
    }
    r = raw_status();
    CU_ASSERT_EQUAL(r->status->tenants[0]->pages, N);
    CU_ASSERT_EQUAL(r->status->held_pages, N);
    CU_ASSERT_EQUAL(r->status->work_threads, 1);
    CU_ASSERT_EQUAL(r->status->work_waiting, 0);
    CU_ASSERT_EQUAL(r->status->work_done, N + 1);    /* a thread parsed the table, too */
    CU_ASSERT(r->status->work_refused <= n_refused); /* the others were too many of one connection */
    CU_ASSERT_EQUAL(r->status->work_expired, 0);
    wire_reply_free(r);
    raw_close_model(&m);
    raw_stop();
}

/* Publishes the same chunks as the other processes, in another order. Exits with the number of failures. */
static void publish_all(unsigned client)
{
    struct raw_model m = raw_model_open();
    unsigned n_failed = 0;

    for (unsigned i = 0; i < 64; i++) {
        unsigned n = 1 + (client % 2 ? i : 63 - i);
        struct raw_slot s;
        uint64_t lease = 0;

        n_failed += raw_publish(&m, n, &s, &lease) != 0 || lease == 0;
    }
    _exit((int) n_failed);
}

static void test_same_chunks_from_two_clients(void)
{
    static const char *const args[] = {"--work-inline-bytes=0", "--arena-bytes=128K", NULL};
    Kvcobra__Reply *r;
    pid_t children[4];

    raw_start(DAEMON_BY_FD, args);
    for (unsigned i = 0; i < 4; i++) {
        children[i] = fork();
        if (children[i] == 0)
            publish_all(i);
    }
    for (unsigned i = 0; i < 4; i++) {
        int status = -1;

        CU_ASSERT_EQUAL(waitpid(children[i], &status, 0), children[i]);
        CU_ASSERT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    raw_wait_for_held(0);
    r = raw_status();
    CU_ASSERT_EQUAL(r->status->tenants[0]->pages, 64);
    CU_ASSERT_EQUAL(r->status->tenants[0]->held_bytes, 0);
    CU_ASSERT_EQUAL(r->status->page_bytes, r->status->tenants[0]->used_bytes);
    wire_reply_free(r);
    raw_stop();
}

/* Dies at any moment between the first COMMIT and its last reply. */
static void test_client_dies_while_copying(void)
{
    static const char *const args[] = {"--work-inline-bytes=0", "--work-threads=1", "--arena-bytes=128K",
                                       NULL};
    Kvcobra__Reply *r;

    raw_start(DAEMON_BY_FD, args);
    for (unsigned round = 0; round < ROUNDS; round++) {
        struct timespec delay = {.tv_nsec = (long) test_rand_below(300000)};
        pid_t child = fork();

        if (child == 0) {
            struct raw_model m = raw_model_open();
            struct raw_slot slots[8];

            for (unsigned i = 0; i < 8; i++) {
                struct chunk_key key = raw_key(100 + 8 * round + i);

                slots[i] = raw_reserve(&m, &key, PAGE_REST);
                raw_write_page(&m, raw_table, &key, PAGE_REST, i * 8192, i);
            }
            for (unsigned i = 0; i < 8; i++) {
                struct chunk_key key = raw_key(100 + 8 * round + i);

                send_commit(&m, i, &slots[i], &key, i * 8192);
            }
            if (round % 3 == 0) /* the socket closes first, the process ends a moment later */
                (void) close(m.fd);
            (void) nanosleep(&delay, NULL); /* waits for nothing: each process dies at another moment */
            _exit(0);
        }
        CU_ASSERT_EQUAL(waitpid(child, NULL, 0), child);
    }
    raw_wait_for_held(0);
    raw_wait_for_busy_bytes(0); /* memory that a thread uses is freed a moment after the session */
    r = raw_status();
    CU_ASSERT_EQUAL(r->status->sessions, 0);
    CU_ASSERT_EQUAL(r->status->tenants[0]->arena_bytes, 0);
    CU_ASSERT_EQUAL(r->status->held_pages, 0);
    CU_ASSERT_EQUAL(r->status->page_bytes, r->status->tenants[0]->used_bytes);
    CU_ASSERT(r->status->tenants[0]->pages <= 8 * ROUNDS);
    wire_reply_free(r);
    raw_stop(); /* checks that no account lost anything */
}

/* ---- a deadline that passes ---- */

enum { MESSAGES = 3, PER_MESSAGE = WIRE_ITEMS_MAX, MANY = MESSAGES * PER_MESSAGE };

/* Reservations whose pages have a wrong byte: each COMMIT copies and checks them, and leaves them as they
 * are. */
struct damaged {
    struct raw_model m;
    struct raw_slot slots[MANY];
    struct chunk_key keys[MANY];
};

static void damaged_init(struct damaged *d)
{
    d->m = raw_model_open();
    for (unsigned i = 0; i < MANY; i++) {
        d->keys[i] = raw_key(1000000 + i);
        d->slots[i] = raw_reserve(&d->m, &d->keys[i], PAGE_REST);
        CU_ASSERT_FATAL(d->slots[i].err == 0 && !d->slots[i].exists);
        raw_write_page(&d->m, raw_table, &d->keys[i], PAGE_REST, i * STRIDE, i);
        d->m.arena[i * STRIDE + PAGE_HEADER_BYTES] ^= 1;
    }
}

/* Occupies the only thread with MANY pages. */
static void damaged_send(const struct damaged *d)
{
    for (unsigned i = 0; i < MESSAGES; i++)
        send_commits(&d->m, i, d->slots + i * PER_MESSAGE, d->keys + i * PER_MESSAGE, PER_MESSAGE,
                     i * (size_t) PER_MESSAGE * STRIDE, 0);
}

static void damaged_receive(const struct damaged *d)
{
    for (unsigned i = 0; i < MESSAGES; i++) {
        int err;

        (void) receive_commit(&d->m, &err);
        CU_ASSERT_EQUAL(err, -EBADMSG);
    }
}

/* A COMMIT whose deadline is a millisecond later, while the thread is busy. Return: the errno of its only
 * item. */
static int commit_late(const struct raw_model *m, const struct damaged *d, const struct raw_slot *s,
                       const struct chunk_key *key)
{
    int err;

    damaged_send(d);
    send_commits(m, 77, s, key, 1, 0, 1);
    CU_ASSERT_EQUAL(receive_commit(m, &err), 77);
    damaged_receive(d);
    return err;
}

/*
 * A page that no thread copied in time is not published: the client gets -ETIMEDOUT, the chunk has no page,
 * and the reservation can be committed later. If the thread was quick enough, the test tries again.
 */
static void test_deadline_passes(void)
{
    static const char *const args[] = {"--work-inline-bytes=0", "--work-threads=1", "--arena-bytes=16M",
                                       "--pool-bytes=64M", NULL};
    static struct damaged d;
    struct raw_model m;
    struct wait w;
    unsigned n = 1;
    int err = 0;

    raw_start(DAEMON_BY_FD, args);
    m = raw_model_open();
    damaged_init(&d);
    for (w = wait_begin(); err == 0 && wait_again(&w); n++) {
        struct chunk_key key = raw_key(n);
        struct raw_slot s = raw_reserve(&m, &key, PAGE_REST), other;
        Kvcobra__Reply *r;

        CU_ASSERT_FATAL(s.err == 0 && !s.exists);
        raw_write_page(&m, raw_table, &key, PAGE_REST, 0, n);
        err = commit_late(&m, &d, &s, &key);
        r = raw_status();
        CU_ASSERT_EQUAL_FATAL(err, r->status->work_expired > 0 ? -ETIMEDOUT : 0);
        wire_reply_free(r);
        other = raw_reserve(&d.m, &key, PAGE_REST);
        CU_ASSERT_EQUAL(other.exists, err == 0);
        if (err == -ETIMEDOUT) {
            CU_ASSERT_EQUAL(raw_commit(&m, &s, &key, 0, NULL), 0);
            CU_ASSERT_EQUAL(raw_abort(&d.m, &other), 0);
        }
    }
    CU_ASSERT_EQUAL(err, -ETIMEDOUT);
    raw_close_model(&m);
    raw_close_model(&d.m);
    raw_stop();
}

/* ---- two reservations of one chunk ---- */

/*
 * The client that comes second gets a lease on the first page, and its own slot is free again: whether its
 * COMMIT came after the first page was published, or both waited for the thread.
 */
static void loser_keeps_no_slot(bool at_once)
{
    static const char *const args[] = {"--work-inline-bytes=0", "--work-threads=1", "--arena-bytes=16M",
                                       "--pool-bytes=64M", NULL};
    static struct damaged d;
    struct raw_model a, b;
    struct raw_slot of_a, of_b;
    struct chunk_key key = raw_key(7);
    uint64_t others;
    int err;

    raw_start(DAEMON_BY_FD, args);
    a = raw_model_open();
    b = raw_model_open();
    damaged_init(&d);
    others = raw_busy_bytes();
    of_a = raw_reserve(&a, &key, PAGE_REST);
    of_b = raw_reserve(&b, &key, PAGE_REST);
    CU_ASSERT_EQUAL(raw_busy_bytes(), others + 2 * of_a.bytes);
    raw_write_page(&a, raw_table, &key, PAGE_REST, 0, 1);
    raw_write_page(&b, raw_table, &key, PAGE_REST, 0, 2);
    if (at_once)
        damaged_send(&d);
    send_commit(&a, 1, &of_a, &key, 0);
    if (!at_once)
        CU_ASSERT_EQUAL(receive_commit(&a, &err), 1);
    send_commit(&b, 2, &of_b, &key, 0);
    CU_ASSERT_EQUAL(receive_commit(&b, &err), 2);
    CU_ASSERT_EQUAL(err, 0);
    if (at_once) {
        CU_ASSERT_EQUAL(receive_commit(&a, &err), 1);
        damaged_receive(&d);
    }
    CU_ASSERT_EQUAL(err, 0);
    CU_ASSERT_EQUAL(raw_busy_bytes(), others + of_a.bytes);
    raw_close_model(&a);
    raw_close_model(&b);
    raw_close_model(&d.m);
    raw_stop();
}

static void test_loser_keeps_no_slot(void)
{
    loser_keeps_no_slot(false);
    loser_keeps_no_slot(true);
}

/* A COMMIT that names a published chunk with the reservation of another chunk is a mistake: it changes
 * nothing. */
static void test_reservation_of_another_key(void)
{
    struct raw_slot published, mine;
    struct chunk_key key = raw_key(1), other = raw_key(2);
    struct raw_model m;

    raw_start(DAEMON_BY_FD, NULL);
    m = raw_model_open();
    CU_ASSERT_EQUAL(raw_publish(&m, 1, &published, NULL), 0);
    mine = raw_reserve(&m, &other, PAGE_REST);
    CU_ASSERT_EQUAL(raw_commit(&m, &mine, &key, 0, NULL), -EINVAL);
    CU_ASSERT_EQUAL(raw_busy_bytes(), 2 * mine.bytes);
    raw_write_page(&m, raw_table, &other, PAGE_REST, 0, 3);
    CU_ASSERT_EQUAL(raw_commit(&m, &mine, &other, 0, NULL), 0);
    CU_ASSERT_EQUAL(raw_held_pages(), 2);
    raw_close_model(&m);
    raw_stop();
}

const struct test_case test_cases[] = {
    TEST(test_several_at_once),
    TEST(test_same_chunks_from_two_clients),
    TEST(test_client_dies_while_copying),
    TEST(test_deadline_passes),
    TEST(test_loser_keeps_no_slot),
    TEST(test_reservation_of_another_key),
    TEST_END,
};
