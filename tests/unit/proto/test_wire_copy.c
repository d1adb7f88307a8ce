/* Copies of messages in one block: the same fields, the bytes that were counted, no unknown fields. */
#include "proto/wire_copy.h"

#include <stdlib.h>
#include <string.h>

#include "proto/wire.h"
#include "tests/lib/test.h"

const char test_suite[] = "wire_copy";

static uint8_t packet[WIRE_PACKET_BYTES_MAX], again[WIRE_PACKET_BYTES_MAX];

/* The copy of @m, behind which a byte of a known value ends its block. */
static Kvcobra__Request *copy_of(const Kvcobra__Request *m, size_t *ret_bytes)
{
    size_t bytes = wire_copy_bytes(&m->base);
    uint8_t *block = malloc(bytes + 1);
    ProtobufCMessage *copy;

    CU_ASSERT_PTR_NOT_NULL_FATAL(block);
    block[bytes] = 0x5a;
    copy = wire_copy(&m->base, block);
    CU_ASSERT_PTR_EQUAL(copy, block);
    CU_ASSERT_EQUAL(block[bytes], 0x5a);
    *ret_bytes = bytes;
    return (Kvcobra__Request *) copy;
}

/* Unpacks @bytes, copies, frees the original, and compares what the copy packs to. */
static void check_copy(size_t bytes, size_t want_bytes, size_t max_bytes)
{
    Kvcobra__Request *m = NULL, *copy;
    size_t copied;

    CU_ASSERT_EQUAL_FATAL(wire_request_unpack(packet, bytes, &m), 0);
    copy = copy_of(m, &copied);
    CU_ASSERT(copied <= max_bytes);
    wire_request_free(m);
    CU_ASSERT_EQUAL(wire_request_pack(copy, again), (ssize_t) want_bytes);
    CU_ASSERT_EQUAL(memcmp(again, packet, want_bytes), 0);
    free(copy);
}

static size_t pack(Kvcobra__Request *m)
{
    ssize_t n = wire_request_pack(m, packet);

    CU_ASSERT_FATAL(n > 0);
    return (size_t) n;
}

/* 512 items with keys: 64 bytes of fields, a pointer and 16 bytes of key each. */
static void test_lease(void)
{
    static Kvcobra__LeaseItem items[WIRE_ITEMS_MAX], *pointers[WIRE_ITEMS_MAX];
    static uint8_t keys[WIRE_ITEMS_MAX][16];
    Kvcobra__Lease lease = KVCOBRA__LEASE__INIT;
    Kvcobra__Request m = KVCOBRA__REQUEST__INIT;

    for (size_t i = 0; i < WIRE_ITEMS_MAX; i++) {
        kvcobra__lease_item__init(&items[i]);
        memset(keys[i], (int) i, sizeof(keys[i]));
        items[i].key = (ProtobufCBinaryData){sizeof(keys[i]), keys[i]};
        items[i].slot = (uint32_t) i;
        items[i].generation = i << 33;
        pointers[i] = &items[i];
    }
    lease.items = pointers;
    lease.n_items = WIRE_ITEMS_MAX;
    m.id = 7;
    m.body_case = KVCOBRA__REQUEST__BODY_LEASE;
    m.lease = &lease;
    check_copy(pack(&m), pack(&m), WIRE_ITEMS_MAX * (64 + 8 + 16) + 512);
}

/* Every kind of field: numbers, texts, bytes, lists of numbers, texts and messages, nested messages. */
static void test_kinds_of_fields(void)
{
    char names[3][6] = {"alice", "", "bob"}, *tenants[] = {names[0], names[1], names[2]};
    double freq[] = {1, 0.5};
    uint32_t tokens[] = {1, 2, 300};
    Kvcobra__Geometry geometry = KVCOBRA__GEOMETRY__INIT;
    Kvcobra__OpenModel open = KVCOBRA__OPEN_MODEL__INIT;
    Kvcobra__CanaryTable canary = KVCOBRA__CANARY_TABLE__INIT;
    Kvcobra__Prefix prefix = KVCOBRA__PREFIX__INIT;
    Kvcobra__Lookup lookup = KVCOBRA__LOOKUP__INIT;
    Kvcobra__Request m = KVCOBRA__REQUEST__INIT;

    geometry.attn_scale = 0.125;
    geometry.freq = freq;
    geometry.n_freq = 2;
    open.geometry = &geometry;
    m.body_case = KVCOBRA__REQUEST__BODY_OPEN_MODEL;
    m.open_model = &open;
    check_copy(pack(&m), pack(&m), 512);

    canary.tenants = tenants;
    canary.n_tenants = 3;
    m.body_case = KVCOBRA__REQUEST__BODY_CANARY_TABLE;
    m.canary_table = &canary;
    check_copy(pack(&m), pack(&m), 512);

    prefix.tenant = names[0];
    prefix.salt = (ProtobufCBinaryData){3, (uint8_t *) names[2]};
    prefix.tokens = tokens;
    prefix.n_tokens = 3;
    lookup.prefix = &prefix;
    m.body_case = KVCOBRA__REQUEST__BODY_LOOKUP;
    m.lookup = &lookup;
    check_copy(pack(&m), pack(&m), 512);
}

/* A copy has the fields of the schema only, however many bytes others have. */
static void test_unknown_fields_are_left_out(void)
{
    Kvcobra__ListTables list = KVCOBRA__LIST_TABLES__INIT;
    Kvcobra__Request m = KVCOBRA__REQUEST__INIT;
    size_t n;

    m.body_case = KVCOBRA__REQUEST__BODY_LIST_TABLES;
    m.list_tables = &list;
    n = pack(&m);
    memcpy(packet + n, "\x1a\xe8\x07", 3); /* field 3: 1000 bytes */
    memset(packet + n + 3, 0, 1000);
    check_copy(n + 3 + 1000, n, 256);
}

const struct test_case test_cases[] = {
    TEST(test_lease),
    TEST(test_kinds_of_fields),
    TEST(test_unknown_fields_are_left_out),
    TEST_END,
};
