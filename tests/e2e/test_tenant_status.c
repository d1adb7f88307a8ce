/* STATUS of one tenant that an operator names: a question, which changes and creates nothing. */
#include "tests/lib/test.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

#include "tests/e2e/raw_service_fixture.h"

const char test_suite[] = "tenant_status";

static const char *const args[] = {"--arena-bytes=64K", "--pool-bytes=8M", "--quota-bytes=4M", NULL};

static size_t count_tenants(void)
{
    Kvcobra__Reply *r = raw_status();
    size_t n = r->status->n_tenants;

    wire_reply_free(r);
    return n;
}

/* The reply to the question about @tenant on @socket. */
static Kvcobra__Reply *ask(const char *socket, const char *tenant)
{
    Kvcobra__GetStatus get = KVCOBRA__GET_STATUS__INIT;
    Kvcobra__Request q = raw_of(KVCOBRA__REQUEST__BODY_GET_STATUS, &get);
    int fd = raw_open(socket);
    Kvcobra__Reply *reply;

    get.tenant = (char *) tenant;
    reply = raw_request(fd, &q, NULL, 0, NULL);
    (void) close(fd);
    return reply;
}

static void expect_tenant(const char *name, uint64_t used)
{
    Kvcobra__Reply *r = ask(raw_daemon.operator_socket, name);
    const Kvcobra__StatusReply *s = r->status;

    CU_ASSERT_EQUAL_FATAL(r->err, 0);
    CU_ASSERT_EQUAL_FATAL(s->n_tenants, 1);
    CU_ASSERT_STRING_EQUAL(s->tenants[0]->name, name);
    CU_ASSERT_EQUAL(s->tenants[0]->quota_bytes, 4 << 20);
    CU_ASSERT_EQUAL(s->tenants[0]->used_bytes, used);
    CU_ASSERT_EQUAL(s->tenants[0]->client_arena_bytes, 65536);
    CU_ASSERT_EQUAL_FATAL(s->n_devices, 1);
    CU_ASSERT_STRING_EQUAL(s->devices[0]->name, "cpu");
    CU_ASSERT_EQUAL(s->devices[0]->pool_bytes, 8 << 20);
    CU_ASSERT_TRUE(s->n_spaces == 0 && s->next_cursor == 0);
    wire_reply_free(r);
}

static void expect_refusal(const char *socket, const char *name, int error)
{
    Kvcobra__Reply *r = ask(socket, name);

    CU_ASSERT_EQUAL(r->err, error);
    wire_reply_free(r);
}

static void test_one_tenant(void)
{
    struct raw_slot page;
    struct raw_model m;
    uint64_t lease;
    char own[32];
    Kvcobra__Reply *r;

    raw_start(DAEMON_BY_FD, args);
    m = raw_model_open();
    CU_ASSERT_EQUAL(raw_publish(&m, 1, &page, &lease), 0);
    (void) snprintf(own, sizeof(own), "uid-%ju", (uintmax_t) getuid());
    r = raw_status();
    CU_ASSERT_EQUAL_FATAL(r->status->n_tenants, 1);
    expect_tenant(own, r->status->tenants[0]->used_bytes);
    expect_tenant("uid-4711", 0); /* never connected: the limits that it would get */
    CU_ASSERT_EQUAL(count_tenants(), 1);
    wire_reply_free(r);

    expect_refusal(raw_daemon.operator_socket, "uid-x", -ENOENT);
    expect_refusal(raw_daemon.operator_socket, "uid-4711@gpu7", -ENOENT);
    expect_refusal(raw_daemon.socket, own, -EPERM); /* a client's status has its own tenant, unnamed */
    raw_close_model(&m);
    raw_stop();
}

const struct test_case test_cases[] = {TEST(test_one_tenant), TEST_END};
