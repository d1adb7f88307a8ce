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

const char test_suite[] = "commit";

enum { N = 12, ROUNDS = 30 };

/* Everything passes through one thread, with room for two requests. */
static const char *const narrow[] = {"--work-inline-bytes=0", "--work-threads=1", "--work-queue=2", NULL};

static void send_commit(const struct raw_model *m, uint64_t id, const struct raw_slot *s,
                        const struct chunk_key *key, size_t offset)
{
    static uint8_t buf[WIRE_PACKET_BYTES_MAX];
    Kvcobra__CommitItem item = KVCOBRA__COMMIT_ITEM__INIT, *items[] = {&item};
    Kvcobra__Commit commit = KVCOBRA__COMMIT__INIT;
    Kvcobra__Request q = raw_of(KVCOBRA__REQUEST__BODY_COMMIT, &commit);
    ssize_t n;

    item.slot = s->slot;
    item.generation = s->generation;
    item.arena_offset = offset;
    item.key = (ProtobufCBinaryData){CHUNK_KEY_BYTES, (uint8_t *) key->bytes};
    commit.model = m->handle;
    commit.n_items = 1;
    commit.items = items;
    q.id = id;
    n = wire_request_pack(&q, buf);
    assert(n > 0 && wire_send(m->fd, buf, (size_t) n, NULL, 0) == 0);
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

const struct test_case test_cases[] = {
    TEST(test_several_at_once),
    TEST(test_same_chunks_from_two_clients),
    TEST(test_client_dies_while_copying),
    TEST_END,
};
