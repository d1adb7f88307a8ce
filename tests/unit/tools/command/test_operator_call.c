/* Requests of commands: what is sent, replies that come in parts, and replies that are not valid. */
#include "tools/command/operator_call.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tests/lib/test.h"
#include "tools/command/operator_pages.h"
#include "tools/command/operator_prefix.h"
#include "tools/command/operator_tables.h"

const char test_suite[] = "operator_call";

/* ---- a daemon: it gives the prepared replies in order, and keeps the last request ---- */

enum { REPLIES_MAX = 4, REQUEST_BYTES = 4096 };

static struct {
    const ProtobufCMessage *replies[REPLIES_MAX]; /* NULL: none is left */
    uint8_t request[REQUEST_BYTES];
    size_t n_request, n_calls;
    uint32_t kind;
    int fd;  /* of the reply */
    int err; /* a refusal */
    bool is_damaged;
} peer;

static kvc_client *const client = (kvc_client *) &peer; /* not looked at */

static void peer_reset(void)
{
    memset(&peer, 0, sizeof(peer));
    peer.fd = -1;
}

int __wrap_kvc_call(kvc_client *c, uint32_t kind, const void *request, size_t n_bytes, int fd,
                    kvc_reply *ret_reply);
int __wrap_kvc_call(kvc_client *c, uint32_t kind, const void *request, size_t n_bytes, int fd,
                    kvc_reply *ret_reply)
{
    const ProtobufCMessage *reply = peer.replies[peer.n_calls];

    CU_ASSERT_PTR_EQUAL(c, client);
    CU_ASSERT_FATAL(n_bytes <= sizeof(peer.request) && ret_reply->struct_bytes == sizeof(*ret_reply));
    (void) fd;
    peer.kind = kind;
    memcpy(peer.request, request, n_bytes);
    peer.n_request = n_bytes;
    peer.n_calls++;
    if (peer.err < 0)
        return peer.err;

    CU_ASSERT_PTR_NOT_NULL_FATAL(reply);
    ret_reply->n_bytes = protobuf_c_message_get_packed_size(reply);
    ret_reply->bytes = calloc(1, ret_reply->n_bytes + 1);
    CU_ASSERT_PTR_NOT_NULL_FATAL(ret_reply->bytes);
    (void) protobuf_c_message_pack(reply, ret_reply->bytes);
    if (peer.is_damaged)
        memset(ret_reply->bytes, 0xff, ret_reply->n_bytes);
    ret_reply->fd = take_fd(&peer.fd);
    return 0;
}

const char *__wrap_kvc_last_error(const kvc_client *c);
const char *__wrap_kvc_last_error(const kvc_client *c)
{
    (void) c;
    return "the daemon's sentence";
}

/* ---- one request ---- */

static void test_request_and_reply(void)
{
    _cleanup_(operator_message_freep) Kvcobra__DrainReply *got = NULL;
    Kvcobra__DrainReply reply = KVCOBRA__DRAIN_REPLY__INIT;
    Kvcobra__Drain drain = KVCOBRA__DRAIN__INIT;
    Kvcobra__Drain *sent;

    peer_reset();
    reply.held_pages = 7;
    peer.replies[0] = &reply.base;
    drain.ask = true;
    CU_ASSERT_EQUAL(operator_call(client, KVCOBRA__REQUEST__BODY_DRAIN, &drain.base, &got, NULL), 0);
    CU_ASSERT_EQUAL(got->held_pages, 7);
    CU_ASSERT_EQUAL(peer.kind, KVCOBRA__REQUEST__BODY_DRAIN);
    sent = kvcobra__drain__unpack(NULL, peer.n_request, peer.request);
    CU_ASSERT_TRUE_FATAL(sent && sent->ask && !sent->off);
    kvcobra__drain__free_unpacked(sent, NULL);
}

static void test_failures_leave_the_result(void)
{
    Kvcobra__DrainReply reply = KVCOBRA__DRAIN_REPLY__INIT, *got = &reply;
    Kvcobra__Drain drain = KVCOBRA__DRAIN__INIT;
    struct errmsg e = {""};

    peer_reset();
    peer.err = -EPERM;
    CU_ASSERT_EQUAL(operator_call(client, KVCOBRA__REQUEST__BODY_DRAIN, &drain.base, &got, &e), -EPERM);
    CU_ASSERT_STRING_EQUAL(e.text, "the daemon's sentence");
    CU_ASSERT_PTR_EQUAL(got, &reply);

    peer_reset();
    reply.held_pages = 7;
    peer.replies[0] = &reply.base;
    peer.is_damaged = true;
    CU_ASSERT_EQUAL(operator_call(client, KVCOBRA__REQUEST__BODY_DRAIN, &drain.base, &got, &e), -EPROTO);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "are no DrainReply"));
    CU_ASSERT_PTR_EQUAL(got, &reply);
}

/* A descriptor that the caller does not want is closed; else it is the caller's. */
static void test_descriptor_of_a_reply(void)
{
    Kvcobra__FetchTableReply reply = KVCOBRA__FETCH_TABLE_REPLY__INIT;
    Kvcobra__FetchTable fetch = KVCOBRA__FETCH_TABLE__INIT;
    int given, fd = -1;

    for (int wanted = 0; wanted < 2; wanted++) {
        _cleanup_(operator_message_freep) Kvcobra__FetchTableReply *got = NULL;

        peer_reset();
        peer.replies[0] = &reply.base;
        given = peer.fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
        CU_ASSERT_EQUAL(operator_call_fd(client, KVCOBRA__REQUEST__BODY_FETCH_TABLE, &fetch.base, -1, &got,
                                         wanted ? &fd : NULL, NULL),
                        0);
        CU_ASSERT_EQUAL(fd, wanted ? given : -1);
        CU_ASSERT_EQUAL(fcntl(given, F_GETFD) >= 0, wanted == 1);
    }
    (void) close(fd);
}

static void test_outcomes(void)
{
    struct errmsg e = {""};

    CU_ASSERT_EQUAL(operator_outcome(KVCOBRA__OUTCOME__OUTCOME_APPLIED, &e), 0);
    CU_ASSERT_EQUAL(operator_outcome(KVCOBRA__OUTCOME__OUTCOME_ALREADY, &e), 1);
    CU_ASSERT_EQUAL(operator_outcome(KVCOBRA__OUTCOME__OUTCOME_STALE, &e), -EPROTO);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "outcome 3"));
}

static void test_bytes_of_a_descriptor(void)
{
    int pipe_fds[2], fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    void *image = NULL;

    CU_ASSERT_EQUAL(operator_read_fd(-1, 4, 10, &image, NULL), -EPROTO);
    CU_ASSERT_EQUAL(operator_read_fd(fd, 0, 10, &image, NULL), -EPROTO);
    CU_ASSERT_EQUAL(operator_read_fd(fd, 11, 10, &image, NULL), -EPROTO);
    CU_ASSERT_PTR_NULL(image);
    CU_ASSERT_EQUAL_FATAL(operator_read_fd(fd, 4, 4, &image, NULL), 0);
    CU_ASSERT_EQUAL(memcmp(image, "\177ELF", 4), 0);
    free(image);
    image = NULL;
    (void) close(fd);

    fd = open("/dev/null", O_RDONLY | O_CLOEXEC); /* ends before the bytes that the reply promises */
    CU_ASSERT_EQUAL(operator_read_fd(fd, 4, 4, &image, NULL), -EPROTO);
    (void) close(fd);
    CU_ASSERT_EQUAL_FATAL(pipe2(pipe_fds, O_CLOEXEC), 0);
    CU_ASSERT_EQUAL(operator_read_fd(pipe_fds[0], 4, 4, &image, NULL), -ESPIPE);
    CU_ASSERT_PTR_NULL(image);
    (void) close(pipe_fds[0]);
    (void) close(pipe_fds[1]);
}

/* ---- lists in parts ---- */

static uint8_t digest[KVC_DIGEST_BYTES] = {1};

static Kvcobra__TableInfo table_of(uint64_t pages)
{
    Kvcobra__TableInfo t = KVCOBRA__TABLE_INFO__INIT;

    t.digest = t.model_digest = operator_digest(digest);
    t.pages = pages;
    return t;
}

static void test_tables_in_parts(void)
{
    _cleanup_(operator_message_freep) Kvcobra__ListTablesReply *got = NULL;
    Kvcobra__TableInfo tables[] = {table_of(1), table_of(2), table_of(3)};
    Kvcobra__TableInfo *first[] = {&tables[0], &tables[1]}, *second[] = {&tables[2]};
    Kvcobra__ListTablesReply a = KVCOBRA__LIST_TABLES_REPLY__INIT, b = a;
    Kvcobra__ListTables *sent;

    peer_reset();
    a.tables = first;
    a.n_tables = 2;
    a.next_cursor = 9;
    b.tables = second;
    b.n_tables = 1;
    peer.replies[0] = &a.base;
    peer.replies[1] = &b.base;
    CU_ASSERT_EQUAL_FATAL(operator_list_tables(client, &got, NULL), 0);
    CU_ASSERT_EQUAL(peer.n_calls, 2);
    CU_ASSERT_EQUAL_FATAL(got->n_tables, 3);
    for (size_t i = 0; i < 3; i++) {
        CU_ASSERT_EQUAL(got->tables[i]->pages, i + 1);
        CU_ASSERT_PTR_NOT_NULL(got->tables[i]->fit); /* empty, as nothing was reported */
    }
    sent = kvcobra__list_tables__unpack(NULL, peer.n_request, peer.request);
    CU_ASSERT_TRUE_FATAL(sent != NULL);
    CU_ASSERT_EQUAL(sent->cursor, 9);
    kvcobra__list_tables__free_unpacked(sent, NULL);
}

static void refuse_tables(const Kvcobra__ListTablesReply *reply, const char *why)
{
    Kvcobra__ListTablesReply *got = NULL;
    struct errmsg e = {""};

    peer_reset();
    peer.replies[0] = peer.replies[1] = &reply->base;
    CU_ASSERT_EQUAL(operator_list_tables(client, &got, &e), -EPROTO);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, why));
    CU_ASSERT_PTR_NULL(got);
}

static void test_tables_that_are_not_valid(void)
{
    Kvcobra__ListTablesReply reply = KVCOBRA__LIST_TABLES_REPLY__INIT;
    Kvcobra__TableInfo table = table_of(1), *tables[] = {&table};
    Kvcobra__Fit fit = KVCOBRA__FIT__INIT;

    reply.next_cursor = 9;
    refuse_tables(&reply, "does not end"); /* without a table */
    reply.tables = tables;
    reply.n_tables = 1;
    refuse_tables(&reply, "does not end"); /* the same cursor again */
    reply.next_cursor = 0;
    table.model_digest.len--;
    refuse_tables(&reply, "the model of a table without a digest");
    table.digest.len--;
    refuse_tables(&reply, "a table without a digest");
    table = table_of(1);
    table.fit = &fit;
    fit.shadow_error_v = 0.0 / 0.0;
    refuse_tables(&reply, "no number");
}

static void test_status_in_parts(void)
{
    _cleanup_(operator_message_freep) Kvcobra__StatusReply *got = NULL;
    Kvcobra__TenantStatus tenant = KVCOBRA__TENANT_STATUS__INIT, *tenants[] = {&tenant, &tenant};
    Kvcobra__SpaceStatus space = KVCOBRA__SPACE_STATUS__INIT, *spaces[] = {&space};
    Kvcobra__StatusReply a = KVCOBRA__STATUS_REPLY__INIT, b = a;
    struct errmsg e = {""};

    space.table_digest = operator_digest(digest);
    a.pid = 5;
    a.tenants = tenants;
    a.n_tenants = 2;
    a.next_cursor = 1;
    b.tenants = tenants;
    b.n_tenants = 1;
    b.spaces = spaces;
    b.n_spaces = 1;
    peer_reset();
    peer.replies[0] = &a.base;
    peer.replies[1] = &b.base;
    CU_ASSERT_EQUAL_FATAL(operator_get_status(client, &got, NULL), 0);
    CU_ASSERT_TRUE(got->pid == 5 && got->n_tenants == 3 && got->n_spaces == 1);
    operator_message_freep(&got);
    got = NULL;

    peer_reset();
    peer.replies[0] = &b.base;
    space.table_digest.len--;
    CU_ASSERT_EQUAL(operator_get_status(client, &got, &e), -EPROTO);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "a status without a digest"));
    peer_reset();
    a.n_tenants = 0;
    peer.replies[0] = &a.base;
    CU_ASSERT_EQUAL(operator_get_status(client, &got, &e), -EPROTO);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "does not end"));
    CU_ASSERT_PTR_NULL(got);
    peer_reset();
    a.n_tenants = 2;
    peer.replies[0] = peer.replies[1] = &a.base; /* the same cursor again */
    CU_ASSERT_EQUAL(operator_get_status(client, &got, &e), -EPROTO);
    CU_ASSERT_PTR_NULL(got);
}

/* ---- requests that are repeated ---- */

static void test_evicts_until_nothing_is_left(void)
{
    Kvcobra__EvictReply some = KVCOBRA__EVICT_REPLY__INIT, last = some, sum;
    struct errmsg e = {""};

    peer_reset();
    some.pages = 2;
    some.bytes = 100;
    some.more = true;
    last.pages = 1;
    last.bytes = 50;
    peer.replies[0] = &some.base;
    peer.replies[1] = &last.base;
    CU_ASSERT_EQUAL(operator_evict(client, "uid-1", digest, &sum, NULL), 0);
    CU_ASSERT_TRUE(peer.n_calls == 2 && sum.pages == 3 && sum.bytes == 150);

    peer_reset();
    some.pages = 0;
    peer.replies[0] = &some.base;
    CU_ASSERT_EQUAL(operator_evict(client, NULL, NULL, NULL, &e), -EPROTO);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "no page evicted"));
}

/* The question names the tenant and changes nothing. */
static void test_one_tenant(void)
{
    Kvcobra__TenantStatus tenant = KVCOBRA__TENANT_STATUS__INIT, *tenants[] = {&tenant, &tenant};
    Kvcobra__DeviceStatus device = KVCOBRA__DEVICE_STATUS__INIT, *devices[] = {&device, &device};
    _cleanup_(operator_message_freep) Kvcobra__StatusReply *got = NULL;
    Kvcobra__StatusReply reply = KVCOBRA__STATUS_REPLY__INIT;
    Kvcobra__GetStatus *sent;
    struct errmsg e = {""};

    tenant.client_arena_bytes = 3;
    device.pool_bytes = 1000;
    reply.tenants = tenants;
    reply.devices = devices;
    reply.n_tenants = reply.n_devices = 1;
    peer_reset();
    peer.replies[0] = &reply.base;
    CU_ASSERT_EQUAL_FATAL(operator_get_tenant(client, "uid-1", &got, NULL), 0);
    CU_ASSERT_TRUE(got->tenants[0]->client_arena_bytes == 3 && got->devices[0]->pool_bytes == 1000);
    sent = kvcobra__get_status__unpack(NULL, peer.n_request, peer.request);
    CU_ASSERT_TRUE_FATAL(sent != NULL);
    CU_ASSERT_TRUE(sent->cursor == 0 && strcmp(sent->tenant, "uid-1") == 0);
    kvcobra__get_status__free_unpacked(sent, NULL);

    peer_reset();
    peer.replies[0] = &reply.base;
    operator_message_freep(&got);
    got = NULL;
    CU_ASSERT_EQUAL(operator_get_tenant(client, "", &got, &e), -ENOENT); /* GetStatus: all tenants */
    CU_ASSERT_PTR_NULL(got);

    for (unsigned i = 0; i < 4; i++) { /* a list of none, or of two */
        reply.n_tenants = (size_t[]){0, 2, 1, 1}[i];
        reply.n_devices = (size_t[]){1, 1, 0, 2}[i];
        peer_reset();
        peer.replies[0] = &reply.base;
        operator_message_freep(&got);
        got = NULL;
        CU_ASSERT_EQUAL(operator_get_tenant(client, "uid-1", &got, &e), -EPROTO);
        CU_ASSERT_PTR_NULL(got);
        CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "one tenant"));
    }
}

/* What is to be kept is not sent. */
static void test_limits_of_a_tenant(void)
{
    Kvcobra__SetQuotaReply reply = KVCOBRA__SET_QUOTA_REPLY__INIT, got;
    Kvcobra__SetQuota *sent;

    reply.quota_bytes = 64;
    reply.used_bytes = 1000;
    peer_reset();
    peer.replies[0] = &reply.base;
    CU_ASSERT_EQUAL(operator_set_quota(client, "uid-1", 64, OPERATOR_QUOTA_KEEP, &got, NULL), 0);
    CU_ASSERT_TRUE(got.quota_bytes == 64 && got.used_bytes == 1000 && !got.base.unknown_fields);
    sent = kvcobra__set_quota__unpack(NULL, peer.n_request, peer.request);
    CU_ASSERT_TRUE_FATAL(sent != NULL);
    CU_ASSERT_TRUE(sent->quota_bytes == 64 && !sent->set_guarantee && strcmp(sent->tenant, "uid-1") == 0);
    kvcobra__set_quota__free_unpacked(sent, NULL);

    peer_reset();
    peer.replies[0] = &reply.base;
    CU_ASSERT_EQUAL(operator_set_quota(client, "uid-1", OPERATOR_QUOTA_KEEP, 0, &got, NULL), 0);
    sent = kvcobra__set_quota__unpack(NULL, peer.n_request, peer.request);
    CU_ASSERT_TRUE_FATAL(sent != NULL);
    CU_ASSERT_TRUE(sent->quota_bytes == 0 && sent->set_guarantee && sent->guarantee_bytes == 0);
    kvcobra__set_quota__free_unpacked(sent, NULL);
}

/* A prompt of 512 tokens and one chunk: two requests, of which only the second one flushes. */
static void test_flushes_the_end_of_a_long_prefix(void)
{
    static const uint32_t tokens[512 + 64 + 1];
    static uint8_t keys[32] = {3};
    Kvcobra__FlushReply reply = KVCOBRA__FLUSH_REPLY__INIT, sum;
    Kvcobra__Prefix prefix = KVCOBRA__PREFIX__INIT;
    Kvcobra__Flush *sent;
    struct errmsg e = {""};

    reply.keys = (ProtobufCBinaryData){sizeof(keys), keys};
    reply.pages = 2;
    prefix.tenant = (char *) "uid-1";
    prefix.table_digest = operator_digest(digest);
    peer_reset();
    peer.replies[0] = peer.replies[1] = &reply.base;
    CU_ASSERT_EQUAL(operator_flush(client, &prefix, tokens, 512 + 64 + 1, 64, &sum, NULL), 0);
    CU_ASSERT_TRUE(peer.n_calls == 2 && sum.pages == 4);
    sent = kvcobra__flush__unpack(NULL, peer.n_request, peer.request);
    CU_ASSERT_TRUE_FATAL(sent != NULL);
    CU_ASSERT_TRUE(!sent->goes_on && sent->chunks == 1 && sent->prefix->n_tokens == 64);
    CU_ASSERT_TRUE(sent->prefix->parent_keys.len == 32 && sent->prefix->parent_keys.data[0] == 3);
    kvcobra__flush__free_unpacked(sent, NULL);

    CU_ASSERT_EQUAL(operator_flush(client, &prefix, tokens, 64, 65, NULL, NULL), -EINVAL);
    CU_ASSERT_EQUAL(operator_flush(client, &prefix, tokens, 64, 128, NULL, NULL), -EINVAL);
    CU_ASSERT_EQUAL(operator_flush(client, &prefix, tokens, 63, 64, NULL, &e), -EINVAL);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "has no page"));
    peer_reset();
    peer.replies[0] = &reply.base;
    reply.keys.len = 16;
    CU_ASSERT_EQUAL(operator_flush(client, &prefix, tokens, 64, 64, NULL, &e), -EPROTO);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "keys of 16 bytes"));
}

static void test_places_that_are_not_valid(void)
{
    static const uint32_t tokens[64];
    static uint8_t keys[32];
    Kvcobra__ChunkPlace place = KVCOBRA__CHUNK_PLACE__INIT, *places[] = {&place, &place};
    Kvcobra__LookupReply reply = KVCOBRA__LOOKUP_REPLY__INIT, *got = NULL;
    Kvcobra__Prefix prefix = KVCOBRA__PREFIX__INIT;
    struct errmsg e = {""};

    reply.keys = (ProtobufCBinaryData){sizeof(keys), keys};
    reply.places = places;
    reply.n_places = 1;
    peer_reset();
    peer.replies[0] = &reply.base;
    CU_ASSERT_EQUAL(operator_lookup(client, &prefix, tokens, 64, false, &got, &e), -EPROTO);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "1 places of 64 tokens"));
    peer_reset();
    peer.replies[0] = &reply.base;
    reply.n_places = 2;
    reply.tier_err = -ETIMEDOUT;
    CU_ASSERT_EQUAL(operator_lookup(client, &prefix, tokens, 64, false, &got, &e), -ETIMEDOUT);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "tier does not answer"));
    CU_ASSERT_PTR_NULL(got);
}

const struct test_case test_cases[] = {
    TEST(test_request_and_reply),
    TEST(test_failures_leave_the_result),
    TEST(test_descriptor_of_a_reply),
    TEST(test_outcomes),
    TEST(test_bytes_of_a_descriptor),
    TEST(test_tables_in_parts),
    TEST(test_tables_that_are_not_valid),
    TEST(test_status_in_parts),
    TEST(test_evicts_until_nothing_is_left),
    TEST(test_one_tenant),
    TEST(test_limits_of_a_tenant),
    TEST(test_flushes_the_end_of_a_long_prefix),
    TEST(test_places_that_are_not_valid),
    TEST_END,
};
