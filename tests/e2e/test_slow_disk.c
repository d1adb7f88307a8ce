/*
 * The event loop does not wait for the disk: while a file of the state folder is being replaced, or the
 * configuration is read again, clients and operators are served. kvcobrad_gated (gated_daemon.c) stops there
 * until the test lets it go on.
 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/e2e/gate_fixture.h"
#include "tests/e2e/raw_service_fixture.h"
#include "tests/lib/test.h"
#include "tests/lib/wait.h"

const char test_suite[] = "slow_disk";

enum { QUOTA_BYTES = 8 << 20 };

/* A request of an operator on a thread of its own, since the reply is late. */
struct asking {
    pthread_t thread;
    Kvcobra__Request q;
    int fd, err; /* 1: the connection was closed */
};

static void *ask_on_thread(void *arg)
{
    struct asking *x = arg;

    x->err = raw_errno(x->fd, &x->q);
    return NULL;
}

static void begin_asking(struct asking *x, Kvcobra__Request__BodyCase body, void *message)
{
    x->q = raw_of(body, message);
    x->fd = raw_open(raw_daemon.operator_socket);
    assert(pthread_create(&x->thread, NULL, ask_on_thread, x) == 0);
}

static int end_asking(struct asking *x)
{
    (void) pthread_join(x->thread, NULL);
    (void) close(x->fd);
    return x->err;
}

static size_t count_aliases(int fd)
{
    Kvcobra__ListAliases list = KVCOBRA__LIST_ALIASES__INIT;
    Kvcobra__Request q = raw_of(KVCOBRA__REQUEST__BODY_LIST_ALIASES, &list);
    Kvcobra__Reply *r = raw_request(fd, &q, NULL, 0, NULL);
    size_t n;

    CU_ASSERT_PTR_NOT_NULL_FATAL(r);
    n = r->list_aliases->n_aliases;
    wire_reply_free(r);
    return n;
}

static uint64_t read_quota(int fd)
{
    Kvcobra__GetStatus get = KVCOBRA__GET_STATUS__INIT;
    Kvcobra__Request q = raw_of(KVCOBRA__REQUEST__BODY_GET_STATUS, &get);
    Kvcobra__Reply *r;
    uint64_t bytes;

    get.tenant = (char *) "uid-12345";
    r = raw_request(fd, &q, NULL, 0, NULL);
    CU_ASSERT_PTR_NOT_NULL_FATAL(r);
    CU_ASSERT_EQUAL_FATAL(r->status->n_tenants, 1);
    bytes = r->status->tenants[0]->quota_bytes;
    wire_reply_free(r);
    return bytes;
}

static Kvcobra__AliasModel alias_of(uint8_t digests[static 64], uint8_t n)
{
    Kvcobra__AliasModel m = KVCOBRA__ALIAS_MODEL__INIT;

    memset(digests, n, 32);
    memset(digests + 32, 0x99, 32);
    m.alias = (ProtobufCBinaryData){32, digests};
    m.model = (ProtobufCBinaryData){32, digests + 32};
    return m;
}

/* Until the file is written nothing has changed; another operator's change waits for its turn. */
static void test_changes_wait(void)
{
    Kvcobra__SetQuota set = KVCOBRA__SET_QUOTA__INIT;
    uint8_t digests[64];
    Kvcobra__AliasModel add = alias_of(digests, 1);
    struct asking alias, quota;
    int client, watcher, gate;

    gate_make("aliases");
    raw_start(DAEMON_WITH_STATE, NULL);
    client = raw_open(raw_daemon.socket);
    watcher = raw_open(raw_daemon.operator_socket);
    begin_asking(&alias, KVCOBRA__REQUEST__BODY_ALIAS_MODEL, &add);
    gate = gate_wait();

    set.tenant = (char *) "uid-12345";
    set.quota_bytes = QUOTA_BYTES;
    begin_asking(&quota, KVCOBRA__REQUEST__BODY_SET_QUOTA, &set);
    wire_reply_free(raw_status());
    CU_ASSERT_EQUAL(count_aliases(client), 0);
    CU_ASSERT_NOT_EQUAL(read_quota(watcher), QUOTA_BYTES);
    gate_remove();
    (void) close(gate);
    CU_ASSERT_EQUAL(end_asking(&alias), 0);
    CU_ASSERT_EQUAL(end_asking(&quota), 0);
    CU_ASSERT_EQUAL(count_aliases(client), 1);
    CU_ASSERT_EQUAL(read_quota(watcher), QUOTA_BYTES);
    (void) close(client);
    (void) close(watcher);
    raw_stop();
}

/* The operator is gone when the file is written: the change happens, as the file says. */
static void test_operator_is_gone(void)
{
    uint8_t digests[64];
    Kvcobra__AliasModel add = alias_of(digests, 1);
    struct asking alias;
    struct wait w;
    int client, gate;

    gate_make("aliases");
    raw_start(DAEMON_WITH_STATE, NULL);
    client = raw_open(raw_daemon.socket);
    begin_asking(&alias, KVCOBRA__REQUEST__BODY_ALIAS_MODEL, &add);
    gate = gate_wait();
    CU_ASSERT_EQUAL(shutdown(alias.fd, SHUT_RDWR), 0);
    CU_ASSERT_EQUAL(end_asking(&alias), 1);
    gate_remove();
    (void) close(gate);
    w = wait_begin();
    while (count_aliases(client) == 0 && wait_again(&w))
        ;
    CU_ASSERT_EQUAL(count_aliases(client), 1);
    (void) close(client);
    raw_stop();
}

static void write_config(const char *path, const char *text)
{
    FILE *f = fopen(path, "we");

    assert(f && fputs(text, f) >= 0 && fclose(f) == 0);
}

/* A configuration that takes long to read, as one with names of users may: the daemon serves, and ends. */
static void test_reload_blocks(void)
{
    char path[] = "/tmp/kvcobra-test-XXXXXX", option[64];
    const char *const args[] = {option, NULL};
    int watcher, gate;

    assert(close(mkstemp(path)) == 0);
    write_config(path, "tenants = 16\n");
    (void) snprintf(option, sizeof(option), "--config=%s", path);
    gate_make("reload");
    raw_start(DAEMON_WITH_STATE, args);
    write_config(path, "tenants = 16\nlease-ms = 20000\n");
    assert(kill(raw_daemon.pid, SIGHUP) == 0);
    gate = gate_wait();
    assert(kill(raw_daemon.pid, SIGHUP) == 0);
    watcher = raw_open(raw_daemon.operator_socket);
    CU_ASSERT_NOT_EQUAL(read_quota(watcher), 0);
    (void) close(gate);
    for (struct wait w = wait_begin(); !daemon_logged(&raw_daemon, "event=reloaded") && wait_again(&w);)
        ;
    CU_ASSERT(daemon_logged(&raw_daemon, "event=setting-changed key=lease-ms"));

    gate = gate_wait(); /* the second signal makes it read once more, and the daemon ends meanwhile */
    CU_ASSERT_NOT_EQUAL(read_quota(watcher), 0);
    (void) close(watcher);
    raw_stop();
    gate_remove();
    (void) close(gate);
    (void) unlink(path);
}

const struct test_case test_cases[] = {TEST(test_changes_wait), TEST(test_operator_is_gone),
                                       TEST(test_reload_blocks), TEST_END};
