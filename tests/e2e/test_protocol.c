/*
 * The daemon's socket with hostile or broken clients: each violation gets its documented errno or a closed
 * connection, and the next client is served as before.
 */
#include "tests/lib/test.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <sysexits.h>
#include <unistd.h>

#include "tests/e2e/daemon_fixture.h"
#include "tests/e2e/raw_fixture.h"
#include "tests/lib/wait.h"

const char test_suite[] = "protocol";

static struct daemon daemon_;

static void start(const char *const *args)
{
    CU_ASSERT_FATAL(daemon_start(&daemon_, DAEMON_BY_FD, args));
}

/* Checks that the daemon serves a new client and ends cleanly. */
static void still_serves_then_stop(void)
{
    int fd = raw_open(daemon_.socket);

    (void) close(fd);
    CU_ASSERT(daemon_stop(&daemon_));
}

static int list_tables(int fd)
{
    Kvcobra__ListTables list = KVCOBRA__LIST_TABLES__INIT;
    Kvcobra__Request m = raw_of(KVCOBRA__REQUEST__BODY_LIST_TABLES, &list);

    return raw_errno(fd, &m);
}

static void test_nothing_before_confirm(void)
{
    int fd;

    start(NULL);
    fd = raw_connect(daemon_.socket);
    CU_ASSERT_EQUAL(list_tables(fd), -EPROTO);
    CU_ASSERT_EQUAL(raw_confirm(fd), -EPROTO);
    CU_ASSERT_EQUAL(raw_hello(fd), 0);
    CU_ASSERT_EQUAL(list_tables(fd), -EPROTO);
    CU_ASSERT_EQUAL(raw_hello(fd), -EPROTO);
    CU_ASSERT_EQUAL(raw_confirm(fd), 0);
    CU_ASSERT_EQUAL(list_tables(fd), 0);
    CU_ASSERT_EQUAL(raw_confirm(fd), -EPROTO);
    (void) close(fd);
    still_serves_then_stop();
}

static void test_versions(void)
{
    static const struct {
        uint32_t min, max;
        int err;
    } cases[] = {{1, 1, 0}, {1, 9, 0}, {0, 1, 0}, {2, 3, -EPROTO}, {0, 0, -EPROTO}, {3, 1, -EPROTO}};

    start(NULL);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        Kvcobra__Hello hello = KVCOBRA__HELLO__INIT;
        Kvcobra__Request m = raw_of(KVCOBRA__REQUEST__BODY_HELLO, &hello);
        int fd = raw_connect(daemon_.socket);

        hello.version_min = cases[i].min;
        hello.version_max = cases[i].max;
        CU_ASSERT_EQUAL(raw_errno(fd, &m), cases[i].err);
        (void) close(fd);
    }
    still_serves_then_stop();
}

static void test_hello_lengths(void)
{
    char name[WIRE_CLIENT_NAME_BYTES_MAX + 2];
    uint8_t token[SESSION_TOKEN_BYTES + 1] = {0};

    start(NULL);
    for (size_t n = WIRE_CLIENT_NAME_BYTES_MAX - 1; n <= WIRE_CLIENT_NAME_BYTES_MAX + 1; n++) {
        Kvcobra__Hello hello = KVCOBRA__HELLO__INIT;
        Kvcobra__Request m = raw_of(KVCOBRA__REQUEST__BODY_HELLO, &hello);
        int fd = raw_connect(daemon_.socket);

        memset(name, 'x', n);
        name[n] = '\0';
        hello.version_min = hello.version_max = PROTO_VERSION;
        hello.client_name = name;
        CU_ASSERT_EQUAL(raw_errno(fd, &m), n > WIRE_CLIENT_NAME_BYTES_MAX ? -EINVAL : 0);
        (void) close(fd);
    }
    for (size_t n = SESSION_TOKEN_BYTES - 1; n <= SESSION_TOKEN_BYTES + 1; n++) {
        Kvcobra__Hello hello = KVCOBRA__HELLO__INIT;
        Kvcobra__Request m = raw_of(KVCOBRA__REQUEST__BODY_HELLO, &hello);
        int fd = raw_connect(daemon_.socket);

        hello.version_min = hello.version_max = PROTO_VERSION;
        hello.session_token = (ProtobufCBinaryData){n, token};
        CU_ASSERT_EQUAL(raw_errno(fd, &m), n == SESSION_TOKEN_BYTES ? 0 : -EINVAL);
        (void) close(fd);
    }
    still_serves_then_stop();
}

/* The log has names in quotes: a name cannot add fields to a line, or write to the terminal. */
static void test_hello_names(void)
{
    static const char *const wrong[] = {
        "x\" uid=0 tenant=\"y", "a\\", "a\nb", "\x1b[2J", "\x7f", "caf\xc3\xa9", "\xe2\x80\xaetxt", NULL};

    start(NULL);
    for (size_t i = 0; wrong[i]; i++) {
        Kvcobra__Hello hello = KVCOBRA__HELLO__INIT;
        Kvcobra__Request m = raw_of(KVCOBRA__REQUEST__BODY_HELLO, &hello);
        int fd = raw_connect(daemon_.socket);

        hello.version_min = hello.version_max = PROTO_VERSION;
        hello.client_name = (char *) wrong[i];
        CU_ASSERT_EQUAL(raw_errno(fd, &m), -EINVAL);
        hello.client_name = (char *) "libkvcobra 1.0 (example)";
        CU_ASSERT_EQUAL(raw_errno(fd, &m), 0); /* the same connection may try again */
        (void) close(fd);
    }
    still_serves_then_stop();
}

static void test_garbage_closes(void)
{
    uint8_t bytes[4096];

    start(NULL);
    for (int i = 0; i < 50; i++) {
        int fd = i % 2 ? raw_open(daemon_.socket) : raw_connect(daemon_.socket);
        size_t n = 1 + test_rand_below(sizeof(bytes));

        for (size_t k = 0; k < n; k++)
            bytes[k] = (uint8_t) test_rand();
        bytes[0] = 0x07; /* wire type 7 does not exist, so this is never a message */
        CU_ASSERT_EQUAL(send(fd, bytes, n, MSG_NOSIGNAL), (ssize_t) n);
        CU_ASSERT(raw_is_closed(fd));
        (void) close(fd);
    }
    CU_ASSERT(daemon_logged(&daemon_, "packet-refused"));
    still_serves_then_stop();
}

/* Many fields that the schema does not have: the packet is refused before it is decoded, with a sentence. */
static void test_unknown_fields(void)
{
    uint8_t bytes[2 * (WIRE_UNKNOWN_FIELDS_MAX + 1)];
    char text[WIRE_TEXT_BYTES_MAX + 1];
    int fd;

    for (size_t i = 0; i < sizeof(bytes); i += 2)
        memcpy(bytes + i, "\x18\x01", 2);
    start(NULL);
    fd = raw_open(daemon_.socket);
    CU_ASSERT_EQUAL(send(fd, bytes, sizeof(bytes), MSG_NOSIGNAL), (ssize_t) sizeof(bytes));
    CU_ASSERT_EQUAL(raw_refusal(fd, text, sizeof(text)), -EOPNOTSUPP);
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "more fields that this version does not know"));
    (void) close(fd);
    CU_ASSERT(daemon_logged(&daemon_, "more fields that this version does not know"));
    still_serves_then_stop();
}

static void test_empty_and_oversized_close(void)
{
    static uint8_t big[WIRE_PACKET_BYTES_MAX + 1];
    int fd;

    start(NULL);
    fd = raw_open(daemon_.socket);
    CU_ASSERT_EQUAL(send(fd, big, 0, MSG_NOSIGNAL), 0);
    CU_ASSERT(raw_is_closed(fd));
    (void) close(fd);
    fd = raw_open(daemon_.socket);
    CU_ASSERT_EQUAL(send(fd, big, sizeof(big), MSG_NOSIGNAL), (ssize_t) sizeof(big));
    CU_ASSERT(raw_is_closed(fd));
    (void) close(fd);
    CU_ASSERT(daemon_logged(&daemon_, "packet-truncated"));
    still_serves_then_stop();
}

/* The largest packet that is allowed, as a message with one unknown field: answered, not closed. */
static void test_unknown_request(void)
{
    static uint8_t packet[WIRE_PACKET_BYTES_MAX];
    /* id = 42; field 1023, length-delimited */
    static const uint8_t id_and_field[] = {0x08, 0x2a, 0xfa, 0x3f};
    size_t payload = sizeof(packet) - sizeof(id_and_field) - 3, n = sizeof(id_and_field);
    Kvcobra__Reply *reply = NULL;
    struct wire_packet p;
    int fd;

    start(NULL);
    fd = raw_open(daemon_.socket);
    memcpy(packet, id_and_field, n);
    packet[n++] = (uint8_t) (0x80 | (payload & 0x7f));
    packet[n++] = (uint8_t) (0x80 | (payload >> 7 & 0x7f));
    packet[n++] = (uint8_t) (payload >> 14);
    CU_ASSERT_EQUAL(wire_send(fd, packet, n + payload, NULL, 0), 0);
    CU_ASSERT_EQUAL_FATAL(wire_receive(fd, packet, &p), 0);
    CU_ASSERT_EQUAL_FATAL(wire_reply_unpack(packet, p.bytes, &reply), 0);
    CU_ASSERT_EQUAL(reply->id, 42);
    CU_ASSERT_EQUAL(reply->err, -EOPNOTSUPP);
    wire_reply_free(reply);
    CU_ASSERT_EQUAL(list_tables(fd), 0); /* the connection stays */
    (void) close(fd);
    still_serves_then_stop();
}

static void test_operator_messages_are_refused_to_clients(void)
{
    Kvcobra__GetStatus status = KVCOBRA__GET_STATUS__INIT;
    Kvcobra__Evict evict = KVCOBRA__EVICT__INIT;
    Kvcobra__StageTable stage = KVCOBRA__STAGE_TABLE__INIT;
    Kvcobra__ActivateTable activate = KVCOBRA__ACTIVATE_TABLE__INIT;
    Kvcobra__Release release = KVCOBRA__RELEASE__INIT;
    Kvcobra__Request m;
    int fd;

    start(NULL);
    fd = raw_open(daemon_.socket);
    m = raw_of(KVCOBRA__REQUEST__BODY_EVICT, &evict);
    CU_ASSERT_EQUAL(raw_errno(fd, &m), -EPERM);
    m = raw_of(KVCOBRA__REQUEST__BODY_STAGE_TABLE, &stage);
    CU_ASSERT_EQUAL(raw_errno(fd, &m), -EPERM);
    m = raw_of(KVCOBRA__REQUEST__BODY_ACTIVATE_TABLE, &activate);
    CU_ASSERT_EQUAL(raw_errno(fd, &m), -EPERM);
    (void) close(fd);
    fd = raw_open(daemon_.operator_socket);
    m = raw_of(KVCOBRA__REQUEST__BODY_GET_STATUS, &status);
    CU_ASSERT_EQUAL(raw_errno(fd, &m), 0);
    m = raw_of(KVCOBRA__REQUEST__BODY_RELEASE, &release); /* operators have no pages */
    CU_ASSERT_EQUAL(raw_errno(fd, &m), -EPERM);
    (void) close(fd);
    still_serves_then_stop();
}

/* A child that inherited the socket is not the process that connected. */
static void test_forked_child_is_refused(void)
{
    int fd, status;
    pid_t child;

    start(NULL);
    fd = raw_open(daemon_.socket);
    child = fork();
    if (child == 0) {
        uint8_t bye[] = {0x08, 0x01, 0x72, 0x00}; /* id = 1, bye = {} */

        (void) send(fd, bye, sizeof(bye), MSG_NOSIGNAL);
        _exit(0);
    }
    (void) waitpid(child, &status, 0);
    CU_ASSERT(raw_is_closed(fd));
    (void) close(fd);
    CU_ASSERT(daemon_logged(&daemon_, "foreign-packet"));
    still_serves_then_stop();
}

static void test_slow_handshake_is_closed(void)
{
    const char *const args[] = {"--handshake-ms=150", NULL};
    int silent, half, r;

    start(args);
    silent = raw_connect(daemon_.socket);
    half = raw_connect(daemon_.socket);
    r = raw_hello(half);
    for (struct wait w = wait_begin(); r == 1 && wait_again(&w);
         r = raw_hello(half)) { /* this process was too slow for --handshake-ms */
        (void) close(half);
        half = raw_connect(daemon_.socket);
    }
    CU_ASSERT_EQUAL(r, 0);
    CU_ASSERT(raw_is_closed(silent)); /* waits for the daemon, at most the socket's timeout */
    CU_ASSERT(raw_is_closed(half));
    (void) close(silent);
    (void) close(half);
    (void) close(raw_open_on(daemon_.socket, NULL)); /* a quick client is served */
    CU_ASSERT(daemon_stop(&daemon_));
}

/* A client learns in which pool its pages are, and the sizes of its extents. */
static void test_confirm_names_the_device(void)
{
    const char *const args[] = {"--pool-bytes=32M", "--extent-bytes=2M", NULL};
    Kvcobra__Confirm confirm = KVCOBRA__CONFIRM__INIT;
    Kvcobra__Request m = raw_of(KVCOBRA__REQUEST__BODY_CONFIRM, &confirm);
    Kvcobra__Reply *reply;
    int fd;

    start(args);
    fd = raw_connect(daemon_.socket);
    CU_ASSERT_EQUAL_FATAL(raw_hello(fd), 0);
    reply = raw_request(fd, &m, NULL, 0, NULL);
    CU_ASSERT_FATAL(reply && reply->err == 0 && reply->confirm->device);
    CU_ASSERT_STRING_EQUAL(reply->confirm->device->name, "cpu");
    CU_ASSERT_STRING_EQUAL(reply->confirm->device->uuid, "");
    CU_ASSERT_EQUAL(reply->confirm->device->pool_bytes, 32 << 20);
    CU_ASSERT_EQUAL(reply->confirm->device->extent_bytes, 2 << 20);
    CU_ASSERT_EQUAL(reply->confirm->pool.len, 16);
    CU_ASSERT_FALSE(reply->confirm->resumed);
    wire_reply_free(reply);
    (void) close(fd);
    CU_ASSERT(daemon_stop(&daemon_));
}

/* limit - 1, limit, limit + 1 */
static void test_connection_limit(void)
{
    const char *const args[] = {"--connections=3", NULL};
    char text[WIRE_TEXT_BYTES_MAX + 1] = "";
    int fds[4];

    start(args);
    for (int i = 0; i < 3; i++)
        fds[i] = raw_open(daemon_.socket);
    fds[3] = raw_connect(daemon_.socket);
    CU_ASSERT_EQUAL(raw_refusal(fds[3], text, sizeof(text)), -EDQUOT);
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "(--connections)"));
    (void) close(fds[3]);
    CU_ASSERT_EQUAL(list_tables(fds[2]), 0); /* the others are not disturbed */
    for (int i = 0; i < 3; i++)
        (void) close(fds[i]);
    /*
     * The daemon handles the closed connections at a later event, so raw_open_on() repeats
     * until there is room.
     */
    (void) close(raw_open_on(daemon_.socket, NULL));
    CU_ASSERT(daemon_stop(&daemon_));
}

static void test_session_limit(void)
{
    const char *const args[] = {"--sessions-per-tenant=2", NULL};
    int fds[3];

    start(args);
    for (int i = 0; i < 2; i++)
        fds[i] = raw_open(daemon_.socket);
    fds[2] = raw_connect(daemon_.socket);
    CU_ASSERT_EQUAL(raw_hello(fds[2]), 0);
    CU_ASSERT_EQUAL(raw_confirm(fds[2]), -EDQUOT);
    for (int i = 0; i < 3; i++)
        (void) close(fds[i]);
    CU_ASSERT(daemon_stop(&daemon_));
}

/*
 * Sends requests and never reads: the queue of replies is limited, the connection is closed,
 * others are served meanwhile.
 */
static void test_client_that_never_reads(void)
{
    Kvcobra__ListTables list = KVCOBRA__LIST_TABLES__INIT;
    Kvcobra__Request m = raw_of(KVCOBRA__REQUEST__BODY_LIST_TABLES, &list);
    uint8_t buf[64];
    ssize_t n;
    int fd, other, sent = 0;

    start(NULL);
    fd = raw_open(daemon_.socket);
    other = raw_open(daemon_.socket);
    n = wire_request_pack(&m, buf);
    while (sent < 1000000 && wire_send(fd, buf, (size_t) n, NULL, 0) == 0) {
        sent++;
        if (sent % 1000 == 0)
            CU_ASSERT_EQUAL(list_tables(other), 0);
    }
    CU_ASSERT(sent < 1000000);
    CU_ASSERT(daemon_logged(&daemon_, "client-does-not-read"));
    (void) close(fd);
    (void) close(other);
    still_serves_then_stop();
}

static void test_by_path(void)
{
    CU_ASSERT_FATAL(daemon_start(&daemon_, DAEMON_BY_PATH, NULL));
    still_serves_then_stop();
}

static void test_second_daemon_is_refused_and_stale_socket_replaced(void)
{
    char socket_arg[128], log[128];

    CU_ASSERT_FATAL(daemon_start(&daemon_, DAEMON_BY_PATH, NULL));
    (void) snprintf(socket_arg, sizeof(socket_arg), "--socket=%s", daemon_.socket);
    (void) snprintf(log, sizeof(log), "%s/second-log", daemon_.folder);
    CU_ASSERT_EQUAL(daemon_run((const char *const[]){socket_arg, "--no-operator-socket", NULL}, log), 1);
    (void) close(raw_open(daemon_.socket)); /* the first one works */
    daemon_kill(&daemon_);                  /* leaves socket and lock file behind */
    CU_ASSERT_EQUAL(access(daemon_.socket, F_OK), 0);
    CU_ASSERT_FATAL(daemon_start_again(&daemon_, NULL));
    still_serves_then_stop();
}

/* Two daemons would replace each other's files, whatever their sockets are. */
static void test_one_state_folder(void)
{
    char state[128], other[128], log[128];

    CU_ASSERT_FATAL(daemon_start(&daemon_, DAEMON_BY_PATH | DAEMON_WITH_STATE, NULL));
    (void) snprintf(state, sizeof(state), "--state-dir=%s", daemon_.state);
    (void) snprintf(other, sizeof(other), "--socket=%s/other.sock", daemon_.folder);
    (void) snprintf(log, sizeof(log), "%s/second-log", daemon_.folder);
    CU_ASSERT_EQUAL(daemon_run((const char *const[]){other, "--no-operator-socket", state, NULL}, log), 1);
    daemon_kill(&daemon_); /* the kernel releases the lock of a killed daemon */
    CU_ASSERT_FATAL(daemon_start_again(&daemon_, NULL));
    still_serves_then_stop();
}

static void test_wrong_options(void)
{
    static const struct {
        const char *options[2];
        int status; /* EX_CONFIG: the unit does not start kvcobrad again */
    } wrong[] = {
        {{"--pool-bytes=1000", NULL}, EX_CONFIG}, {{"--arena-bytes=8G", "--quota-bytes=1G"}, EX_CONFIG},
        {{"--extent-bytes=3M", NULL}, EX_CONFIG}, {{"--socket=/nonexistent-folder/s", NULL}, 1},
        {{"--listen-fd=999", NULL}, EX_CONFIG},   {{"--pool-bytes=many", NULL}, 2},
        {{"--no-such-option", NULL}, 2},
    };
    char folder[] = "/tmp/kvcobra-test-XXXXXX", log[64];

    CU_ASSERT_PTR_NOT_NULL_FATAL(mkdtemp(folder));
    (void) snprintf(log, sizeof(log), "%s/log", folder);
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        const char *const args[] = {"--no-operator-socket", wrong[i].options[0], wrong[i].options[1], NULL};

        CU_ASSERT_EQUAL(daemon_run(args, log), wrong[i].status);
    }
    (void) unlink(log);
    (void) rmdir(folder);
}

/* A daemon of which one socket cannot be made does not start with the others, and leaves none of them. */
static void test_sockets_that_cannot_be_made(void)
{
    static const char *const names[] = {"socket", "operator-socket", "metrics-socket"};
    char folder[] = "/tmp/kvcobra-test-XXXXXX", log[64], options[3][96], text[4096];

    CU_ASSERT_PTR_NOT_NULL_FATAL(mkdtemp(folder));
    (void) snprintf(log, sizeof(log), "%s/log", folder);
    for (unsigned i = 0; i < 3; i++) {
        const char *const args[] = {options[0], options[1], options[2], NULL};
        ssize_t n;
        int fd;

        for (unsigned j = 0; j < 3; j++)
            (void) snprintf(options[j], sizeof(options[j]), "--%s=%s/%s%u", names[j], folder,
                            j == i ? "missing/" : "", j);
        CU_ASSERT_EQUAL(daemon_run(args, log), 1);
        fd = open(log, O_RDONLY | O_CLOEXEC);
        n = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);
        text[n < 0 ? 0 : n] = '\0';
        CU_ASSERT_PTR_NOT_NULL(strstr(text, strchr(options[i], '=') + 1)); /* the path */
        (void) close(fd);
        (void) unlink(log);
    }
    CU_ASSERT_EQUAL(rmdir(folder), 0);
}

const struct test_case test_cases[] = {
    TEST(test_sockets_that_cannot_be_made),
    TEST(test_confirm_names_the_device),
    TEST(test_nothing_before_confirm),
    TEST(test_versions),
    TEST(test_hello_lengths),
    TEST(test_hello_names),
    TEST(test_one_state_folder),
    TEST(test_garbage_closes),
    TEST(test_unknown_fields),
    TEST(test_empty_and_oversized_close),
    TEST(test_unknown_request),
    TEST(test_operator_messages_are_refused_to_clients),
    TEST(test_forked_child_is_refused),
    TEST(test_slow_handshake_is_closed),
    TEST(test_connection_limit),
    TEST(test_session_limit),
    TEST(test_client_that_never_reads),
    TEST(test_by_path),
    TEST(test_second_daemon_is_refused_and_stale_socket_replaced),
    TEST(test_wrong_options),
    TEST_END,
};
