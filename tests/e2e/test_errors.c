/* Each errno of the table in daemon/README.md that a client can cause is counted once, under its name. */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "gpu/page_layout.h"
#include "tests/e2e/raw_service_fixture.h"
#include "tests/lib/random_table.h"
#include "tests/lib/test.h"
#include "tests/lib/wait.h"

const char test_suite[] = "errors";

static char metrics_path[128];
static struct raw_model m;
static int operator_fd;

static int connect_metrics(void)
{
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    struct timeval limit = {.tv_sec = 20};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    memcpy(sa.sun_path, metrics_path, strlen(metrics_path) + 1);
    assert(fd >= 0 && connect(fd, (const struct sockaddr *) &sa, sizeof(sa)) == 0);
    assert(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)) == 0);
    return fd;
}

/* kvcobra_errors_total of @name in the page of the moment, which may be a second old; 0: it is missing. */
static uint64_t counted_now(const char *name)
{
    static const char get[] = "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    static char text[1 << 18];
    int fd = connect_metrics();
    size_t have = 0;
    char series[64];
    const char *at;
    ssize_t n;

    assert(write(fd, get, sizeof(get) - 1) == sizeof(get) - 1);
    while ((n = read(fd, text + have, sizeof(text) - 1 - have)) > 0)
        have += (size_t) n;
    text[have] = '\0';
    (void) close(fd);
    CU_ASSERT_PTR_NOT_NULL_FATAL(strstr(text, "kvcobra_errors_total counter"));
    (void) snprintf(series, sizeof(series), "\nkvcobra_errors_total{errno=\"%s\"} ", name);
    at = strstr(text, series);
    return at ? strtoull(at + strlen(series), NULL, 10) : 0;
}

/* The names of errors that requests got, once each. */
static const char *expected[32];
static size_t n_expected;

#define COUNTS(name, err, expression)                                                                        \
    do {                                                                                                     \
        expected[n_expected++] = name;                                                                       \
        CU_ASSERT_EQUAL(expression, err);                                                                    \
    } while (0)

/* Waits for a page that has all of them. */
static void check_counts(void)
{
    struct wait w = wait_begin();

    for (size_t i = 0; i < n_expected; i++) {
        while (counted_now(expected[i]) == 0 && wait_again(&w))
            ;
        CU_ASSERT_EQUAL(counted_now(expected[i]), 1);
    }
}

static int reserve(uint64_t n)
{
    struct chunk_key key = raw_key(n);

    return raw_reserve(&m, &key, PAGE_REST).err;
}

static int set_quota(uint64_t bytes)
{
    Kvcobra__SetQuota b = KVCOBRA__SET_QUOTA__INIT;
    Kvcobra__Request q = raw_of(KVCOBRA__REQUEST__BODY_SET_QUOTA, &b);
    char name[32];

    (void) snprintf(name, sizeof(name), "uid-%ld", (long) getuid());
    b.tenant = name;
    b.quota_bytes = bytes;
    return raw_errno(operator_fd, &q);
}

static int activate(const uint8_t *digest, uint64_t revision)
{
    Kvcobra__ActivateTable b = KVCOBRA__ACTIVATE_TABLE__INIT;
    Kvcobra__Request q = raw_of(KVCOBRA__REQUEST__BODY_ACTIVATE_TABLE, &b);

    b.digest = (ProtobufCBinaryData){32, (uint8_t *) digest};
    b.revision = revision;
    return raw_errno(operator_fd, &q);
}

static int retire(const uint8_t *digest)
{
    Kvcobra__RetireTable b = KVCOBRA__RETIRE_TABLE__INIT;
    Kvcobra__Request q = raw_of(KVCOBRA__REQUEST__BODY_RETIRE_TABLE, &b);

    b.digest = (ProtobufCBinaryData){32, (uint8_t *) digest};
    return raw_errno(operator_fd, &q);
}

static int drain(bool off)
{
    Kvcobra__Drain b = KVCOBRA__DRAIN__INIT;
    Kvcobra__Request q = raw_of(KVCOBRA__REQUEST__BODY_DRAIN, &b);

    b.off = off;
    return raw_errno(operator_fd, &q);
}

/* Two requests for descriptors; the first answer is unread when the second request is sent. */
static int ask_twice(void)
{
    Kvcobra__FetchTable fetch = KVCOBRA__FETCH_TABLE__INIT;
    Kvcobra__Request q = raw_of(KVCOBRA__REQUEST__BODY_FETCH_TABLE, &fetch);
    static uint8_t buf[WIRE_PACKET_BYTES_MAX];
    struct wire_packet p;
    struct pollfd answered = {.fd = m.fd, .events = POLLIN};
    Kvcobra__Reply *reply = NULL;
    uint64_t before;
    ssize_t n;
    int err = 1;

    fetch.digest = (ProtobufCBinaryData){32, raw_table->digest};
    n = wire_request_pack(&q, buf);
    assert(n > 0 && wire_send(m.fd, buf, (size_t) n, NULL, 0) == 0);
    assert(poll(&answered, 1, WAIT_LIMIT_S * 1000) == 1); /* the first answer has come and stays unread */
    before = counted_now("EAGAIN");
    assert(wire_send(m.fd, buf, (size_t) n, NULL, 0) == 0);
    for (struct wait w = wait_begin(); counted_now("EAGAIN") == before && wait_again(&w);)
        ;
    for (int i = 0; i < 2; i++) {
        assert(wire_receive(m.fd, buf, &p) == 0 && wire_reply_unpack(buf, p.bytes, &reply) == 0);
        err = reply->err;
        wire_packet_close_fds(&p);
        wire_reply_free(reply);
    }
    return err;
}

static int commit_damaged(void)
{
    struct chunk_key key = raw_key(77);
    struct raw_slot s = raw_reserve(&m, &key, PAGE_REST);
    int r;

    CU_ASSERT_EQUAL_FATAL(s.err, 0);
    raw_write_page(&m, raw_table, &key, PAGE_REST, 0, 1);
    m.arena[200] ^= 1;
    r = raw_commit(&m, &s, &key, 0, NULL);
    CU_ASSERT_EQUAL(raw_abort(&m, &s), 0);
    return r;
}

static int append_raw_only_finds(void)
{
    Kvcobra__AppendRaw b = KVCOBRA__APPEND_RAW__INIT;
    Kvcobra__Request q = raw_of(KVCOBRA__REQUEST__BODY_APPEND_RAW, &b);
    uint32_t tokens[CHUNK_TOKENS] = {0};

    b.model = m.handle;
    b.table_digest = (ProtobufCBinaryData){32, m.table_digest};
    b.tokens = tokens;
    b.n_tokens = CHUNK_TOKENS;
    b.only_find = 1;
    return raw_errno(m.fd, &q);
}

/* Fills the pool with held pages. Return: errno of the first page without room. */
static int fill_pool(void)
{
    for (uint64_t n = 1000;; n++) {
        struct raw_slot s;
        int r = raw_publish(&m, n, &s, NULL);

        if (r < 0)
            return r;
    }
}

static void test_counted(void)
{
    static const uint8_t unknown_digest[32];
    char option[192];
    const char *const args[] = {"--pool-bytes=256K",
                                "--extent-bytes=128K",
                                "--span-bytes=64K",
                                "--arena-bytes=64K",
                                "--quota-bytes=8M",
                                option,
                                NULL};
    struct table *next = raw_make_table(2);
    Kvcobra__Drain body = KVCOBRA__DRAIN__INIT;
    Kvcobra__Request foreign = raw_of(KVCOBRA__REQUEST__BODY_DRAIN, &body), empty = KVCOBRA__REQUEST__INIT;
    char folder[] = "/tmp/kvcobra-errors-XXXXXX";

    assert(mkdtemp(folder));
    (void) snprintf(metrics_path, sizeof(metrics_path), "%s/m", folder);
    (void) snprintf(option, sizeof(option), "--metrics-socket=%s", metrics_path);
    raw_start(DAEMON_BY_PATH, args);
    m = raw_model_open();
    operator_fd = raw_open(raw_daemon.operator_socket);

    COUNTS("EPROTO", -EPROTO, raw_hello(m.fd));
    COUNTS("EPERM", -EPERM, raw_errno(m.fd, &foreign));
    COUNTS("EOPNOTSUPP", -EOPNOTSUPP, raw_errno(m.fd, &empty));
    COUNTS("EBADMSG", -EBADMSG, commit_damaged());
    COUNTS("ENODATA", -ENODATA, append_raw_only_finds());
    COUNTS("ENOENT", -ENOENT, activate(unknown_digest, 0));
    COUNTS("ESTALE", -ESTALE, raw_release(&m, 12345));
    COUNTS("EBUSY", -EBUSY, retire(raw_table->digest));
    COUNTS("EAGAIN", -EAGAIN, ask_twice());
    raw_activate_table(next);
    COUNTS("EEXIST", -EEXIST, activate(raw_table->digest, 2));
    COUNTS("ERANGE", -ERANGE, activate(raw_table->digest, UINT64_C(1) << 40));
    CU_ASSERT_EQUAL(drain(false), 0);
    COUNTS("ESHUTDOWN", -ESHUTDOWN, reserve(1));
    CU_ASSERT_EQUAL(drain(true), 0);
    CU_ASSERT_EQUAL(set_quota(65536), 0);
    COUNTS("EDQUOT", -EDQUOT, reserve(1));
    CU_ASSERT_EQUAL(set_quota(8 << 20), 0);
    COUNTS("ENOSPC", -ENOSPC, fill_pool());
    m.handle += 7;
    COUNTS("EINVAL", -EINVAL, reserve(2));
    check_counts();
    (void) close(operator_fd);
    raw_close_model(&m);
    (void) table_unref(next);
    raw_stop();
    (void) rmdir(folder);
}

/* ---- damaged requests for metrics ---- */

/* Sends a damaged request, or an empty one, in pieces, and reads the answer or not. */
static void bad_request(void)
{
    static const char *const whole[] = {
        "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n",
        "POST /metrics HTTP/1.1\r\nContent-Length: 5\r\n\r\nabcde",
        "GET /metrics HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n",
        "HEAD / HTTP/1.0\r\n\r\n",
        "PUT /%00%ff?a=b&&&= HTTP/9.9\r\nContent-Length: -1\r\n\r\n",
        "GET /metrics HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n",
    };
    char text[256];
    size_t n =
        (size_t) snprintf(text, sizeof(text), "%s", whole[test_rand_below(sizeof(whole) / sizeof(whole[0]))]);
    int fd = connect_metrics();

    for (uint64_t k = test_rand_below(6); k > 0; k--)
        text[test_rand_below(n)] = (char) test_rand_below(256);
    n -= test_rand_below(4) ? 0 : test_rand_below(n);
    for (size_t at = 0; at < n;) {
        size_t piece = 1 + test_rand_below(n - at);

        if (send(fd, text + at, piece, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
            break;
        at += piece;
    }
    if (test_rand_below(2)) {
        struct pollfd p = {.fd = fd, .events = POLLIN};

        (void) shutdown(fd, SHUT_WR);
        (void) poll(&p, 1, 2); /* an answer, or the daemon waits for the rest of the request */
        (void) recv(fd, text, sizeof(text), MSG_DONTWAIT);
    }
    (void) close(fd);
}

static void test_bad_http(void)
{
    char folder[] = "/tmp/kvcobra-errors-XXXXXX", option[192];
    const char *const args[] = {option, NULL};

    assert(mkdtemp(folder));
    (void) snprintf(metrics_path, sizeof(metrics_path), "%s/m", folder);
    (void) snprintf(option, sizeof(option), "--metrics-socket=%s", metrics_path);
    raw_start(DAEMON_BY_PATH, args);
    m = raw_model_open();
    for (int i = 0; i < 600; i++) {
        bad_request();
        if (i % 100 == 99) { /* clients and monitors are served meanwhile */
            CU_ASSERT_EQUAL(raw_publish(&m, (uint64_t) i, &(struct raw_slot){0}, NULL), 0);
            CU_ASSERT_EQUAL(counted_now("EPROTO"), 0);
        }
    }
    raw_close_model(&m);
    raw_stop();
    (void) rmdir(folder);
}

const struct test_case test_cases[] = {TEST(test_counted), TEST(test_bad_http), TEST_END};
