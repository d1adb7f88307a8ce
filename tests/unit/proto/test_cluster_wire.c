/* Tests of proto/cluster_wire.c. */
#include "proto/cluster_wire.h"

#include <errno.h>
#include <string.h>

#include "tests/lib/test.h"

const char test_suite[] = "cluster_wire";

static const uint8_t names[CLUSTER_NAMES_MAX + 1][CLUSTER_NAME_BYTES] = {{1, 2}, {3}};
static uint8_t packet[CLUSTER_REQUEST_BYTES_MAX + CLUSTER_NAME_BYTES];

static const struct cluster_request hello = {
    .kind = CLUSTER_HELLO, .version = 1, .bytes = 4096, .fleet = {9}};
static const struct cluster_request exists = {
    .kind = CLUSTER_EXISTS, .id = 7, .timeout_ms = 30, .n_names = 2, .names = names};
static const struct cluster_request get = {.kind = CLUSTER_GET,
                                           .id = 8,
                                           .timeout_ms = 30,
                                           .offset = 4096,
                                           .bytes = 100,
                                           .n_names = 1,
                                           .names = names};
static const struct cluster_request put = {.kind = CLUSTER_PUT,
                                           .id = 9,
                                           .timeout_ms = CLUSTER_TIMEOUT_MS_MAX,
                                           .offset = CLUSTER_MEMORY_BYTES_MAX - 1,
                                           .bytes = 1,
                                           .ttl_ms = CLUSTER_TTL_MS_MAX,
                                           .n_names = 1,
                                           .names = names};
static const struct cluster_request touch = {.kind = CLUSTER_TOUCH,
                                             .id = UINT64_MAX,
                                             .timeout_ms = 1,
                                             .ttl_ms = 1,
                                             .n_names = CLUSTER_NAMES_MAX,
                                             .names = names};
static const struct cluster_request drop = {
    .kind = CLUSTER_REMOVE, .id = 7, .timeout_ms = 1000, .n_names = 2, .names = names};
static const struct cluster_request status = {.kind = CLUSTER_STATUS, .id = 1};

static int decode(const struct cluster_request *q, struct cluster_request *ret)
{
    return cluster_request_decode(packet, cluster_request_encode(q, packet), ret);
}

static void test_requests_return(void)
{
    const struct cluster_request *const all[] = {&hello, &exists, &get, &put, &touch, &drop, &status};

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        struct cluster_request q = {.kind = CLUSTER_HELLO};

        CU_ASSERT_EQUAL_FATAL(decode(all[i], &q), 0);
        CU_ASSERT(q.kind == all[i]->kind && q.id == all[i]->id && q.timeout_ms == all[i]->timeout_ms);
        CU_ASSERT(q.version == all[i]->version && q.ttl_ms == all[i]->ttl_ms);
        CU_ASSERT(q.offset == all[i]->offset && q.bytes == all[i]->bytes && q.n_names == all[i]->n_names);
        CU_ASSERT_EQUAL(memcmp(q.fleet, all[i]->fleet, sizeof(q.fleet)), 0);
        if (q.n_names > 0)
            CU_ASSERT_EQUAL(memcmp(q.names, names, (size_t) q.n_names * CLUSTER_NAME_BYTES), 0);
    }
}

/* The offset of 4096 and the length of 100 in get, byte by byte of the format. */
static void test_known_bytes(void)
{
    static const uint8_t expected[] = {3, 0, 0, 0, 1, 0, 0, 0, 8,  0, 0, 0, 0, 0, 0, 0,  30,
                                       0, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 100};

    CU_ASSERT_EQUAL(cluster_request_encode(&get, packet), CLUSTER_REQUEST_HEAD_BYTES + CLUSTER_NAME_BYTES);
    CU_ASSERT_EQUAL(memcmp(packet, expected, sizeof(expected)), 0);
}

static void test_every_length(void)
{
    size_t n = cluster_request_encode(&exists, packet);
    struct cluster_request q;

    for (size_t i = 0; i < n + CLUSTER_NAME_BYTES; i++)
        CU_ASSERT_EQUAL(cluster_request_decode(packet, i, &q), i == n ? 0 : -EBADMSG);
}

static void refused(struct cluster_request q)
{
    struct cluster_request r = {.id = 42};

    CU_ASSERT_EQUAL(decode(&q, &r), -EBADMSG);
    CU_ASSERT_EQUAL(r.id, 42);
}

#define CHANGED(from, change)                                                                                \
    __extension__({                                                                                          \
        struct cluster_request q = from;                                                                     \
        q.change;                                                                                            \
        q;                                                                                                   \
    })

static void test_limits(void)
{
    refused(CHANGED(exists, kind = 0));
    refused(CHANGED(status, kind = 7));
    refused(CHANGED(exists, id = 0));
    refused(CHANGED(hello, id = 1));
    refused(CHANGED(exists, n_names = 0));
    refused(CHANGED(get, n_names = 2));
    refused(CHANGED(exists, timeout_ms = 0));
    refused(CHANGED(exists, timeout_ms = CLUSTER_TIMEOUT_MS_MAX + 1));
    refused(CHANGED(status, timeout_ms = 1));
    refused(CHANGED(put, ttl_ms = 0));
    refused(CHANGED(put, ttl_ms = CLUSTER_TTL_MS_MAX + 1));
    refused(CHANGED(get, ttl_ms = 1));
    refused(CHANGED(put, bytes = 0));
    refused(CHANGED(put, bytes = 2));
    refused(CHANGED(get, offset = UINT64_MAX));
    refused(CHANGED(exists, offset = 1));
    refused(CHANGED(exists, bytes = 1));
    refused(CHANGED(hello, bytes = 0));
    refused(CHANGED(hello, bytes = CLUSTER_MEMORY_BYTES_MAX + 1));
    refused(CHANGED(drop, n_names = 0));
    refused(CHANGED(drop, ttl_ms = 1));
    refused(CHANGED(drop, kind = CLUSTER_REMOVE + 1));
    refused(CHANGED(get, version = 1));
    refused(CHANGED(get, fleet[15] = 1));
}

/* ---- replies ---- */

static uint8_t bytes[CLUSTER_REPLY_BYTES_MAX + 1];

static void test_replies_return(void)
{
    struct cluster_reply all[] = {
        {.kind = CLUSTER_HELLO, .version = 1},
        {.kind = CLUSTER_EXISTS, .id = 1, .n_bits = 11, .bits = {0xff, 0x05}, .result = -ETIMEDOUT},
        {.kind = CLUSTER_TOUCH, .id = 1, .n_bits = CLUSTER_NAMES_MAX},
        {.kind = CLUSTER_REMOVE, .id = 2, .n_bits = 1, .bits = {1}},
        {.kind = CLUSTER_GET, .id = 3, .bytes = 5},
        {.kind = CLUSTER_PUT, .id = 3, .result = -EEXIST},
        {.kind = CLUSTER_STATUS,
         .id = 4,
         .counters = {2, 3},
         .sentence = "the cluster belongs to another fleet"},
    };

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        size_t n = cluster_reply_encode(&all[i], bytes);
        struct cluster_reply r = {.id = 42};

        for (size_t k = 0; k <= n + 1 && k <= sizeof(bytes); k++)
            CU_ASSERT_EQUAL(cluster_reply_decode(bytes, k, &r), k == n ? 0 : -EBADMSG);
        CU_ASSERT(r.kind == all[i].kind && r.id == all[i].id && r.result == all[i].result);
        CU_ASSERT(r.bytes == all[i].bytes && r.n_bits == all[i].n_bits && r.version == all[i].version);
        CU_ASSERT_EQUAL(memcmp(r.bits, all[i].bits, sizeof(r.bits)), 0);
        CU_ASSERT_EQUAL(memcmp(r.counters, all[i].counters, sizeof(r.counters)), 0);
        CU_ASSERT_STRING_EQUAL(r.sentence, all[i].sentence);
    }
}

static void test_bits(void)
{
    const struct cluster_reply r = {.n_bits = 10, .bits = {0x81, 0x02}};

    CU_ASSERT(cluster_bit(&r, 0) && !cluster_bit(&r, 1) && cluster_bit(&r, 7) && cluster_bit(&r, 9));
    CU_ASSERT(!cluster_bit(&r, 10) && !cluster_bit(&r, UINT32_MAX));
}

static int decode_reply(const struct cluster_reply *r)
{
    struct cluster_reply ret;

    return cluster_reply_decode(bytes, cluster_reply_encode(r, bytes), &ret);
}

/* kvcobrad does not trust the process: whatever it sends is checked. */
static void test_hostile_replies(void)
{
    struct cluster_reply r = {.kind = CLUSTER_EXISTS, .id = 1, .n_bits = 3, .bits = {0x08}};

    CU_ASSERT_EQUAL(decode_reply(&r), -EBADMSG); /* a bit behind the last name */
    r = (struct cluster_reply){.kind = CLUSTER_EXISTS, .id = 1};
    CU_ASSERT_EQUAL(decode_reply(&r), -EBADMSG);
    r = (struct cluster_reply){.kind = CLUSTER_GET, .id = 1, .bytes = CLUSTER_MEMORY_BYTES_MAX + 1};
    CU_ASSERT_EQUAL(decode_reply(&r), -EBADMSG);
    r = (struct cluster_reply){.kind = CLUSTER_GET, .id = 1, .bytes = 1, .result = -ENOENT};
    CU_ASSERT_EQUAL(decode_reply(&r), -EBADMSG);
    r = (struct cluster_reply){.kind = CLUSTER_PUT, .id = 1, .result = 1};
    CU_ASSERT_EQUAL(decode_reply(&r), -EBADMSG);
    r = (struct cluster_reply){.kind = CLUSTER_PUT};
    CU_ASSERT_EQUAL(decode_reply(&r), -EBADMSG);
    r = (struct cluster_reply){.kind = CLUSTER_STATUS, .id = 1, .counters = {CLUSTER_DEGRADED + 1}};
    CU_ASSERT_EQUAL(decode_reply(&r), -EBADMSG);
    r = (struct cluster_reply){.kind = CLUSTER_STATUS, .id = 1};
    CU_ASSERT_EQUAL(decode_reply(&r), 0);
    bytes[CLUSTER_REPLY_BYTES_MAX - 1] = 'x'; /* a sentence without an end */
    CU_ASSERT_EQUAL(cluster_reply_decode(bytes, CLUSTER_REPLY_BYTES_MAX, &r), -EBADMSG);
}

const struct test_case test_cases[] = {
    TEST(test_requests_return), TEST(test_known_bytes), TEST(test_every_length),    TEST(test_limits),
    TEST(test_replies_return),  TEST(test_bits),        TEST(test_hostile_replies), TEST_END,
};
