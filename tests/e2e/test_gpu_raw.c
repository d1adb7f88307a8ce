/*
 * APPEND_RAW and READ_RAW of sessions on a GPU: the daemon's threads encode, the mover copies. The values are
 * compared with those of a session in host memory that appended the same vectors.
 */
#include <errno.h>
#include <linux/sockios.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/requests/job.h"
#include "daemon/requests/raw_gpu.h"
#include "gpu/page_layout.h"
#include "tests/e2e/gpu_service_fixture.h"
#include "tests/e2e/raw_vectors_fixture.h"
#include "tests/lib/random_table.h"
#include "tests/lib/test.h"
#include "tests/lib/wait.h"

const char test_suite[] = "gpu_raw";

/* Opens a session on the GPU; this process never opens the driver. */
static struct raw_model open_on_gpu(void)
{
    struct raw_model m;
    int fd = raw_open_on(raw_daemon.socket, GPU_UUID);

    assert(raw_open_model(fd, &raw_geometry, random_table_model_digest, &m) == 0);
    return m;
}

/* Appends chunk @n of a new sequence, repeated while an extent is being created or a mover starts. */
static int append_soon(struct raw_model *m, uint32_t n, uint64_t *ret_lease)
{
    int r = -EAGAIN;

    for (struct wait w = wait_begin(); r == -EAGAIN && wait_again(&w);) {
        Kvcobra__AppendRaw a = raw_append_of(m, 1000 * n);

        r = raw_append(m, &a, ret_lease);
    }
    return r;
}

static int read_soon(struct raw_model *m, uint64_t lease, uint32_t layer, uint32_t side)
{
    int r = raw_read(m, lease, 0, layer, side, 0, 0);

    for (struct wait w = wait_begin(); r == -EAGAIN && wait_again(&w);)
        r = raw_read(m, lease, 0, layer, side, 0, 0);
    return r;
}

/* True if every side of every layer of two leases, one of each session, is the same. */
static bool read_the_same(struct raw_model *a, uint64_t lease_a, struct raw_model *b, uint64_t lease_b)
{
    for (uint32_t layer = 0; layer < RAW_LAYERS; layer++)
        for (uint32_t side = 0; side < 2; side++) {
            memset(a->arena, 0x11, RAW_LAYER_BYTES);
            memset(b->arena, 0x22, RAW_LAYER_BYTES);
            if (read_soon(a, lease_a, layer, side) != 0 || read_soon(b, lease_b, layer, side) != 0 ||
                memcmp(a->arena, b->arena, RAW_LAYER_BYTES) != 0)
                return false;
        }
    return true;
}

/* More pages than a span has: each must stay in its slot. */
static void test_pages_are_those_of_the_host(void)
{
    enum { N = 40 };
    uint64_t on_gpu[N], on_host[N], again;
    struct raw_model gpu, host;

    gpu_start(NULL);
    gpu = open_on_gpu();
    host = raw_model_open();
    for (uint32_t i = 0; i < N; i++) {
        CU_ASSERT_EQUAL_FATAL(append_soon(&gpu, i, &on_gpu[i]), 0);
        CU_ASSERT_EQUAL_FATAL(append_soon(&host, i, &on_host[i]), 0);
    }
    for (uint32_t i = 0; i < N; i++)
        CU_ASSERT_TRUE_FATAL(read_the_same(&gpu, on_gpu[i], &host, on_host[i]));
    CU_ASSERT_FALSE(read_the_same(&gpu, on_gpu[0], &host, on_host[1])); /* the comparison finds differences */
    CU_ASSERT_EQUAL(append_soon(&gpu, 7, &again), 0);                   /* finds the page */
    CU_ASSERT_TRUE(read_the_same(&gpu, again, &host, on_host[7]));
    CU_ASSERT_EQUAL(gpu_status().pages, N);
    raw_close_model(&gpu);
    raw_close_model(&host);
    raw_stop();
}

/* The second chunk of a sequence, in another number type, with its position. */
static void test_position_and_type(void)
{
    struct raw_model m;
    uint8_t key[CHUNK_KEY_BYTES];
    Kvcobra__AppendRaw a;
    Kvcobra__ReadRaw read = KVCOBRA__READ_RAW__INIT;
    Kvcobra__Request q = raw_of(KVCOBRA__REQUEST__BODY_APPEND_RAW, &a);
    Kvcobra__Reply *reply;

    gpu_start(NULL);
    m = open_on_gpu();
    CU_ASSERT_EQUAL_FATAL(append_soon(&m, 0, NULL), 0);
    a = raw_append_of(&m, 0);
    reply = raw_request(m.fd, &q, NULL, 0, NULL);
    CU_ASSERT_FATAL(reply && reply->err == 0 && reply->append_raw->existed);
    memcpy(key, reply->append_raw->key.data, sizeof(key));
    wire_reply_free(reply);

    a = raw_append_of(&m, 64);
    a.parent_key = (ProtobufCBinaryData){sizeof(key), key};
    a.first_position = 64;
    CU_ASSERT_EQUAL_FATAL(raw_append(&m, &a, &read.lease), 0);
    read.side = 1;
    read.type = (Kvcobra__NumberType) 1; /* half the bytes, at the end of the arena */
    read.arena_offset = m.arena_bytes - RAW_LAYER_BYTES / 2;
    q = raw_of(KVCOBRA__REQUEST__BODY_READ_RAW, &read);
    reply = raw_request(m.fd, &q, NULL, 0, NULL);
    CU_ASSERT_FATAL(reply && reply->err == 0);
    CU_ASSERT_EQUAL(reply->read_raw->bytes, RAW_LAYER_BYTES / 2);
    CU_ASSERT_EQUAL(reply->read_raw->first_position, 64);
    wire_reply_free(reply);
    CU_ASSERT_EQUAL(raw_read(&m, read.lease, 0, RAW_LAYERS, 0, 0, 0), -EINVAL);
    CU_ASSERT_EQUAL(raw_read(&m, read.lease, 0, 0, 0, 0, m.arena_bytes - 1), -EINVAL);
    raw_close_model(&m);
    raw_stop();
}

/* Pages that the client wrote itself are read too, and an overwritten page is refused. */
static void test_pages_of_others(void)
{
    struct gpu_client a;
    struct raw_slot s;
    uint64_t lease;

    gpu_start(NULL);
    a = gpu_client_new();
    CU_ASSERT_EQUAL_FATAL(gpu_open(&a, GPU_UUID), 0);
    s = gpu_publish(&a, 3, &lease);
    CU_ASSERT_EQUAL(gpu_read_raw(&a, lease), 0);
    gpu_damage(&a, &s);
    for (int i = 0; i < 20; i++)
        CU_ASSERT_EQUAL(gpu_read_raw(&a, lease), -EBADMSG);
    CU_ASSERT_EQUAL(gpu_release(&a, lease), 0);
    CU_ASSERT_TRUE(gpu_client_end(&a));
    gpu_stop();
}

/*
 * The device is lost while a page is copied to it: the page's extent takes no new page, and everything else
 * works with another mover.
 */
static void test_device_lost_during_copy(void)
{
    struct raw_model gpu, host;
    uint64_t lease[2], on_host;

    CU_ASSERT_EQUAL(setenv("STANDIN_FAIL", "cuMemcpyHtoD_v2:2:719", 1), 0); /* in every mover */
    gpu_start(NULL);
    gpu = open_on_gpu();
    host = raw_model_open();
    CU_ASSERT_EQUAL_FATAL(append_soon(&gpu, 1, &lease[0]), 0);
    CU_ASSERT_EQUAL(append_soon(&gpu, 2, NULL), -EIO);
    CU_ASSERT_EQUAL(gpu_status().retired_extents, 1);
    CU_ASSERT_EQUAL_FATAL(append_soon(&gpu, 2, &lease[1]), 0);
    CU_ASSERT_EQUAL(gpu_status().extent_bytes, 2 * GPU_EXTENT_BYTES);
    CU_ASSERT_EQUAL_FATAL(append_soon(&host, 1, &on_host), 0);
    CU_ASSERT_TRUE(read_the_same(&gpu, lease[0], &host, on_host)); /* the page is held, so it stays */
    CU_ASSERT_TRUE(gpu_status().mover_restarts >= 1);
    CU_ASSERT_EQUAL(raw_release(&gpu, lease[0]), 0);
    gpu_wait_for_extents(1);
    raw_close_model(&gpu);
    raw_close_model(&host);
    raw_stop();
    CU_ASSERT_EQUAL(unsetenv("STANDIN_FAIL"), 0);
}

static int receive_err(struct raw_model *m)
{
    static uint8_t packet[WIRE_PACKET_BYTES_MAX];
    Kvcobra__Reply *reply = NULL;
    struct wire_packet p;
    int err;

    CU_ASSERT_EQUAL_FATAL(wire_receive(m->fd, packet, &p), 0);
    CU_ASSERT_EQUAL_FATAL(wire_reply_unpack(packet, p.bytes, &reply), 0);
    err = reply->err;
    wire_reply_free(reply);
    return err;
}

/*
 * The mover is killed repeatedly while pages are written and read: a client that repeats its request
 * gets the right pages.
 */
static void test_the_mover_is_killed(void)
{
    enum { N = 4 }; /* each death doubles the wait for the next mover */
    struct raw_model gpu, host;

    gpu_start(NULL);
    gpu = open_on_gpu();
    host = raw_model_open();
    for (uint32_t i = 0; i < N; i++) {
        uint64_t on_gpu, on_host;
        pid_t mover = (pid_t) gpu_status().mover_pid;

        raw_send_append(&gpu, 1000 * i); /* the mover may die before or after it gets the copy */
        if (mover > 0)
            CU_ASSERT_TRUE(kill(mover, SIGKILL) == 0 || errno == ESRCH);
        (void) receive_err(&gpu); /* the answer may be an error */
        CU_ASSERT_EQUAL_FATAL(append_soon(&gpu, i, &on_gpu), 0);
        CU_ASSERT_EQUAL_FATAL(append_soon(&host, i, &on_host), 0);
        CU_ASSERT_TRUE(read_the_same(&gpu, on_gpu, &host, on_host));
        CU_ASSERT_EQUAL(raw_release(&gpu, on_gpu), 0); /* a retired extent is freed then */
        CU_ASSERT_EQUAL(raw_release(&host, on_host), 0);
    }
    CU_ASSERT_TRUE(gpu_status().mover_restarts >= N - 1);
    raw_close_model(&gpu);
    raw_close_model(&host);
    raw_stop();
}

/*
 * Waits until the daemon has read all requests, so that it reads later requests of
 * other connections after them.
 */
static void wait_until_read(const struct raw_model *m)
{
    int unread = 1;

    for (struct wait w = wait_begin(); unread > 0 && wait_again(&w);)
        CU_ASSERT_EQUAL_FATAL(ioctl(m->fd, SIOCOUTQ, &unread), 0);
    CU_ASSERT_EQUAL_FATAL(unread, 0);
}

/*
 * The mover is stopped: RAW_STAGES_MAX pages, less an eighth for other tenants, wait for it. More get
 * -EAGAIN.
 */
static void test_limit_of_copies(void)
{
    enum {
        CONNECTIONS = RAW_STAGES_MAX / JOBS_PER_CONNECTION_MAX,
        COPIES = RAW_STAGES_MAX - RAW_STAGES_MAX / 8
    };
    struct raw_model m[CONNECTIONS + 1];
    Kvcobra__AppendRaw a;
    unsigned n_copied = 0;
    pid_t mover;

    gpu_start(NULL);
    for (unsigned c = 0; c <= CONNECTIONS; c++)
        m[c] = open_on_gpu();
    CU_ASSERT_EQUAL_FATAL(append_soon(&m[0], 0, NULL), 0); /* an extent exists, and a preallocated one */
    for (struct wait w = wait_begin(); gpu_status().spare_extents == 0 && wait_again(&w);)
        ;
    mover = (pid_t) gpu_status().mover_pid;
    CU_ASSERT_EQUAL_FATAL(kill(mover, SIGSTOP), 0);
    for (unsigned c = 0; c < CONNECTIONS; c++)
        for (uint32_t k = 0; k < JOBS_PER_CONNECTION_MAX; k++)
            raw_send_append(&m[c], 10000 * (c + 1) + 100 * k);
    for (unsigned c = 0; c < CONNECTIONS; c++)
        wait_until_read(&m[c]);
    a = raw_append_of(&m[CONNECTIONS], 1);
    CU_ASSERT_EQUAL(raw_append(&m[CONNECTIONS], &a, NULL), -EAGAIN);
    CU_ASSERT_EQUAL(kill(mover, SIGCONT), 0);
    for (unsigned c = 0; c < CONNECTIONS; c++)
        for (uint32_t k = 0; k < JOBS_PER_CONNECTION_MAX; k++) {
            int r = receive_err(&m[c]);

            CU_ASSERT(r == 0 || r == -EAGAIN);
            n_copied += r == 0;
        }
    CU_ASSERT_EQUAL(n_copied, COPIES);
    CU_ASSERT_EQUAL(append_soon(&m[CONNECTIONS], 77, NULL), 0);
    CU_ASSERT_EQUAL(gpu_status().pages, 1 + COPIES + 1);
    for (unsigned c = 0; c <= CONNECTIONS; c++)
        raw_close_model(&m[c]);
    raw_stop();
}

/* Processes that die with requests in progress leave no slot taken and no copy pending. */
static void test_clients_die(void)
{
    struct raw_model m;
    uint64_t lease;

    gpu_start(NULL);
    m = open_on_gpu();
    CU_ASSERT_EQUAL_FATAL(append_soon(&m, 99, &lease), 0);
    CU_ASSERT_EQUAL(raw_release(&m, lease), 0);
    raw_close_model(&m);
    for (uint32_t i = 0; i < 10; i++) {
        pid_t pid = fork();

        assert(pid >= 0);
        if (pid == 0) {
            m = open_on_gpu();
            for (uint32_t k = 0; k < JOBS_PER_CONNECTION_MAX; k++)
                raw_send_append(&m, 1000 * i + 100 * k);
            _exit(0);
        }
        CU_ASSERT_EQUAL(waitpid(pid, NULL, 0), pid);
    }
    raw_wait_for_no_sessions();
    gpu_wait_for_held(0);
    m = open_on_gpu();
    for (uint32_t i = 0; i < 20; i++) { /* more than the daemon copies at one time */
        CU_ASSERT_EQUAL_FATAL(append_soon(&m, 50 + i, &lease), 0);
        CU_ASSERT_EQUAL(raw_release(&m, lease), 0);
    }
    raw_close_model(&m);
    gpu_stop();
}

const struct test_case test_cases[] = {
    TEST(test_pages_are_those_of_the_host),
    TEST(test_position_and_type),
    TEST(test_pages_of_others),
    TEST(test_device_lost_during_copy),
    TEST(test_the_mover_is_killed),
    TEST(test_limit_of_copies),
    TEST(test_clients_die),
    TEST_END,
};
