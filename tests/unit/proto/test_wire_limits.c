/* Packets whose bytes cost the decoder much: limits at limit and limit + 1, before anything is decoded. */
#include "proto/wire_limits.h"

#include <errno.h>
#include <string.h>

#include "proto/mover_wire.h"
#include "proto/wire.h"
#include "tests/lib/test.h"

const char test_suite[] = "wire_limits";

static uint8_t packet[WIRE_PACKET_BYTES_MAX];

/* @n times the @k bytes of @field into the packet. Return: the bytes. */
static size_t repeat(const char *field, size_t k, size_t n)
{
    CU_ASSERT_FATAL(n * k <= sizeof(packet));
    for (size_t i = 0; i < n; i++)
        memcpy(packet + i * k, field, k);
    return n * k;
}

/* The first @bytes of the packet become the body @tag of the schema. Return: the bytes. */
static size_t wrap(unsigned tag, size_t bytes)
{
    uint8_t head[5] = {(uint8_t) (tag << 3 | 2) | 0x80, (uint8_t) (tag << 3 >> 7)};
    size_t n = 2;

    for (size_t v = bytes; n == 2 || v > 0; v >>= 7)
        head[n++] = (uint8_t) (v & 0x7f) | (v > 0x7f ? 0x80 : 0);
    CU_ASSERT_FATAL(bytes + n <= sizeof(packet));
    memmove(packet + n, packet, bytes);
    memcpy(packet, head, n);
    return bytes + n;
}

static int unpack_and_free(size_t bytes)
{
    Kvcobra__Request *m = NULL;
    int r = wire_request_unpack(packet, bytes, &m);

    CU_ASSERT_EQUAL(m != NULL, r == 0);
    wire_request_free(m);
    return r;
}

/* protobuf-c keeps unknown fields, each in a block of its own: a few of a newer version pass, no more. */
static void test_unknown_fields(void)
{
    static const char field[3] = {'\xa0', '\x06', '\x01'}; /* field 100, varint 1 */
    size_t n = WIRE_UNKNOWN_FIELDS_MAX;

    CU_ASSERT_EQUAL(unpack_and_free(repeat(field, 3, n)), 0);
    CU_ASSERT_EQUAL(unpack_and_free(repeat(field, 3, n + 1)), -EOPNOTSUPP);
    CU_ASSERT_EQUAL(unpack_and_free(repeat(field, 3, WIRE_PACKET_BYTES_MAX / 3)), -EOPNOTSUPP);
    CU_ASSERT_EQUAL(unpack_and_free(wrap(10, repeat(field, 3, n))), 0); /* in HELLO */
    CU_ASSERT_EQUAL(unpack_and_free(wrap(10, repeat(field, 3, n + 1))), -EOPNOTSUPP);
    CU_ASSERT_PTR_NOT_NULL(strstr(wire_refusal(-EOPNOTSUPP), "fields that this version does not know"));
    /* also those with the largest number, 2^29 - 1 */
    memcpy(packet, "\xf8\xff\xff\xff\x0f\x01", 6);
    CU_ASSERT_EQUAL(unpack_and_free(6), 0);
}

/* A newer version may add a field to each item of a list, but not two to each of 512 items. */
static void test_unknown_fields_of_items(void)
{
    static const char one[5] = {'\x1a', 3, '\xa0', '\x06', '\x01'};
    static const char two[8] = {'\x1a', 6, '\xa0', '\x06', '\x01', '\xa0', '\x06', '\x02'};
    const size_t n = WIRE_ITEMS_MAX;

    CU_ASSERT_EQUAL(unpack_and_free(wrap(33, repeat(one, sizeof(one), n))), 0); /* LEASE */
    CU_ASSERT_EQUAL(unpack_and_free(wrap(33, repeat(two, sizeof(two), n / 2))), 0);
    CU_ASSERT_EQUAL(unpack_and_free(wrap(33, repeat(two, sizeof(two), n / 2 + 1))), -EOPNOTSUPP);
}

/* The same in replies, which clients, operators and the mover decode. */
static void test_unknown_fields_of_replies(void)
{
    const size_t n = WIRE_UNKNOWN_FIELDS_MAX;
    Kvcobra__MoverReply *mr = NULL;
    Kvcobra__Reply *m = NULL;

    CU_ASSERT_EQUAL_FATAL(wire_reply_unpack(packet, repeat("\xa0\x06\x01", 3, n), &m), 0);
    wire_reply_free(m);
    CU_ASSERT_EQUAL(wire_reply_unpack(packet, repeat("\xa0\x06\x01", 3, n + 1), &m), -EOPNOTSUPP);
    CU_ASSERT_EQUAL(mover_reply_unpack(packet, repeat("\xa0\x06\x01", 3, n + 1), &mr), -EOPNOTSUPP);
}

/* Other shapes in which two bytes of a packet cost the decoder a block, or a step, of its own. */
static void test_costly_shapes(void)
{
    CU_ASSERT_EQUAL(unpack_and_free(repeat("\x08\x01", 2, 2)), -EBADMSG);           /* id twice */
    CU_ASSERT_EQUAL(unpack_and_free(wrap(10, repeat("\x22\x00", 2, 2))), -EBADMSG); /* client_name twice */
    CU_ASSERT_EQUAL(unpack_and_free(wrap(10, repeat("\x2a\x00", 2, 2))), -EBADMSG); /* session_token twice */
    CU_ASSERT_EQUAL(unpack_and_free(wrap(33, repeat("\x1a\x04\x0a\x00\x0a\x00", 6, 1))),
                    -EBADMSG); /* a key twice */
    /* pieces of a packed array that have no items */
    CU_ASSERT_EQUAL(unpack_and_free(wrap(28, repeat("\x0a\x00", 2, WIRE_ITEMS_MAX))), 0); /* KEEP_LEASES */
    CU_ASSERT_EQUAL(unpack_and_free(wrap(28, repeat("\x0a\x00", 2, WIRE_ITEMS_MAX + 1))), -E2BIG);
    /* items and texts without bytes */
    CU_ASSERT_EQUAL(unpack_and_free(wrap(33, repeat("\x1a\x00", 2, WIRE_ITEMS_MAX))), 0);
    CU_ASSERT_EQUAL(unpack_and_free(wrap(33, repeat("\x1a\x00", 2, WIRE_ITEMS_MAX + 1))), -E2BIG);
    CU_ASSERT_EQUAL(unpack_and_free(wrap(53, repeat("\x12\x00", 2, WIRE_LIST_ITEMS_MAX))), 0); /* tenants */
    CU_ASSERT_EQUAL(unpack_and_free(wrap(53, repeat("\x12\x00", 2, WIRE_LIST_ITEMS_MAX + 1))), -E2BIG);
}

const struct test_case test_cases[] = {
    TEST(test_unknown_fields),
    TEST(test_unknown_fields_of_items),
    TEST(test_unknown_fields_of_replies),
    TEST(test_costly_shapes),
    TEST_END,
};
