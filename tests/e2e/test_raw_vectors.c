/* APPEND_RAW and READ_RAW: refused requests, and clients that die meanwhile. */
#include <errno.h>
#include <math.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/requests/job.h"
#include "gpu/page_layout.h"
#include "tests/e2e/raw_service_fixture.h"
#include "tests/e2e/raw_vectors_fixture.h"
#include "tests/lib/test.h"

const char test_suite[] = "raw_vectors";

static void test_append_refusals(void)
{
    static const uint8_t short_key[5], key[16];
    struct raw_model m;
    Kvcobra__AppendRaw a;

    raw_start(DAEMON_BY_PATH, NULL);
    m = raw_model_open();
#define REFUSED(err, change)                                                                                 \
    do {                                                                                                     \
        a = raw_append_of(&m, 0);                                                                            \
        change;                                                                                              \
        CU_ASSERT_EQUAL(raw_append(&m, &a, NULL), err);                                                      \
    } while (0)
    REFUSED(-EINVAL, a.n_tokens = 63);
    REFUSED(-EINVAL, a.first_position = 63);
    REFUSED(-EINVAL, a.first_position = 64);                                       /* without a parent */
    REFUSED(-EINVAL, a.parent_key = ((ProtobufCBinaryData){16, (uint8_t *) key})); /* at position 0 */
    REFUSED(-EINVAL,
            (a.parent_key = ((ProtobufCBinaryData){5, (uint8_t *) short_key}), a.first_position = 64));
    REFUSED(-EINVAL, a.model = 99);
    REFUSED(-ENOENT, a.table_digest = ((ProtobufCBinaryData){32, m.model_digest}));
    REFUSED(-EINVAL, a.type = (Kvcobra__NumberType) 3);
    REFUSED(-EINVAL, a.k_offset = m.arena_bytes - RAW_SIDE_BYTES + 1);
    REFUSED(-EINVAL, a.v_offset = UINT64_MAX - 8);
    REFUSED(-EINVAL, a.k_bytes = 0); /* an absent length */
    REFUSED(-EINVAL, a.v_bytes = 0);
    REFUSED(-EINVAL, a.k_bytes = RAW_SIDE_BYTES - 1);
    REFUSED(-EINVAL, a.v_bytes = 2 * RAW_SIDE_BYTES);
    REFUSED(-EINVAL, a.type = KVCOBRA__NUMBER_TYPE__NUMBER_F16); /* the lengths are those of binary32 */
    REFUSED(-EINVAL, ((float *) m.arena)[7] = NAN);
    REFUSED(-EINVAL, ((float *) m.arena)[0] = 1e30f); /* a sink that binary16 cannot hold */
    REFUSED(-ENODATA, a.only_find = 1);
#undef REFUSED
    CU_ASSERT_EQUAL(raw_held_pages(), 0); /* a refused append holds nothing */
    raw_close_model(&m);
    raw_stop();
}

static void test_read_refusals(void)
{
    struct raw_model m, other;
    Kvcobra__AppendRaw a;
    uint64_t lease = 0;

    raw_start(DAEMON_BY_PATH, NULL);
    m = raw_model_open();
    other = raw_model_open();
    a = raw_append_of(&m, 0);
    a.k_offset = m.arena_bytes - RAW_SIDE_BYTES; /* the last offset that fits */
    memcpy(m.arena + a.k_offset, m.arena, RAW_SIDE_BYTES);
    CU_ASSERT_EQUAL_FATAL(raw_append(&m, &a, &lease), 0);

    CU_ASSERT_EQUAL(raw_read(&m, lease, 0, 0, 0, 0, 0), 0);
    CU_ASSERT_EQUAL(
        raw_read(&m, lease, 0, RAW_LAYERS - 1, 1, 1, m.arena_bytes - RAW_SIDE_BYTES / RAW_LAYERS / 2), 0);
    CU_ASSERT_EQUAL(raw_read(&m, lease, 0, 0, 0, 1, m.arena_bytes - RAW_SIDE_BYTES / RAW_LAYERS / 2 + 1),
                    -EINVAL);
    CU_ASSERT_EQUAL(raw_read(&m, lease, 0, RAW_LAYERS, 0, 0, 0), -EINVAL);
    CU_ASSERT_EQUAL(raw_read(&m, lease, 0, 0, 2, 0, 0), -EINVAL);
    CU_ASSERT_EQUAL(raw_read(&m, lease, 0, 0, 0, 7, 0), -EINVAL);
    CU_ASSERT_EQUAL(raw_read(&m, lease, 0, 0, 0, 0, UINT64_MAX), -EINVAL);
    CU_ASSERT_EQUAL(raw_read(&m, lease, 1, 0, 0, 0, 0), -ESTALE);
    CU_ASSERT_EQUAL(raw_read(&m, lease + 1, 0, 0, 0, 0, 0), -ESTALE);
    CU_ASSERT_EQUAL(raw_read(&other, lease, 0, 0, 0, 0, 0), -ESTALE); /* a lease of another session */
    CU_ASSERT_EQUAL(raw_release(&m, lease), 0);
    CU_ASSERT_EQUAL(raw_read(&m, lease, 0, 0, 0, 0, 0), -ESTALE);
    raw_close_model(&m);
    raw_close_model(&other);
    raw_stop();
}

/* A process dies while threads encode for it. */
static void die_while_encoding(uint32_t i)
{
    pid_t pid = fork();

    assert(pid >= 0);
    if (pid == 0) {
        struct raw_model m = raw_model_open();

        for (uint32_t k = 0; k < JOBS_PER_CONNECTION_MAX; k++)
            raw_send_append(&m, 1000 * i + 100 * k);
        _exit(0);
    }
    assert(waitpid(pid, NULL, 0) == pid);
}

/* No slot stays taken, and no incomplete page is found. */
static void test_clients_die(void)
{
    struct raw_model m;
    Kvcobra__Reply *status;
    uint64_t n_pages;

    raw_start(DAEMON_BY_PATH, NULL);
    for (uint32_t i = 0; i < 20; i++)
        die_while_encoding(i);
    raw_wait_for_no_sessions();
    status = raw_status();
    n_pages = status->status->spaces[0]->pages;
    CU_ASSERT_EQUAL(status->status->spaces[0]->held_pages, 0);
    CU_ASSERT(n_pages <= 20 * JOBS_PER_CONNECTION_MAX);
    wire_reply_free(status);

    /* each chunk is complete or missing: those that are found can be read */
    m = raw_model_open();
    for (uint32_t i = 0; i < 20; i++) {
        Kvcobra__AppendRaw a = raw_append_of(&m, 1000 * i);
        uint64_t lease = 0;
        int r;

        a.only_find = 1;
        r = raw_append(&m, &a, &lease);
        CU_ASSERT(r == 0 || r == -ENODATA);
        if (r == 0)
            CU_ASSERT_EQUAL(raw_read(&m, lease, 0, 0, 0, 0, 0), 0);
    }
    raw_close_model(&m);
    raw_stop();
}

/*
 * More requests at a time than one connection may have: the others get -EAGAIN, and every
 * request gets an answer.
 */
static void test_pipelining(void)
{
    enum {
        /* at most EV_SEND_QUEUE_MAX replies, if all come in one pass of the loop */
        N = JOBS_PER_CONNECTION_MAX + 6
    };
    static uint8_t packet[WIRE_PACKET_BYTES_MAX];
    unsigned n_ok = 0, n_again = 0;
    struct raw_model m;

    raw_start(DAEMON_BY_PATH, NULL);
    m = raw_model_open();
    for (uint32_t i = 0; i < N; i++)
        raw_send_append(&m, 100 * i);
    for (uint32_t i = 0; i < N; i++) {
        Kvcobra__Reply *reply = NULL;
        struct wire_packet p;

        CU_ASSERT_EQUAL_FATAL(wire_receive(m.fd, packet, &p), 0);
        CU_ASSERT_EQUAL_FATAL(wire_reply_unpack(packet, p.bytes, &reply), 0);
        n_ok += reply->err == 0;
        n_again += reply->err == -EAGAIN;
        wire_reply_free(reply);
    }
    CU_ASSERT_EQUAL(n_ok + n_again, N);
    CU_ASSERT(n_ok >= JOBS_PER_CONNECTION_MAX);
    CU_ASSERT_EQUAL(raw_held_pages(), n_ok);
    raw_close_model(&m);
    raw_stop();
}

const struct test_case test_cases[] = {
    TEST(test_append_refusals),
    TEST(test_read_refusals),
    TEST(test_clients_die),
    TEST(test_pipelining),
    TEST_END,
};
