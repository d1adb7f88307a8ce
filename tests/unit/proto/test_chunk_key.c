/* Chunk keys: the encoding of proto/README.md, hashed in one call, must give the same bytes; every field
 * changes the key. */
#include <sodium.h>
#include <stdbool.h>
#include <string.h>

#include "proto/page.h"
#include "tests/lib/test.h"

static const uint8_t index_key[32] = {1, 2, 3};
static const uint8_t table[32] = {0x11}, model[32] = {0x22};

static struct chunk_key derive(const struct chunk_identity *id, const struct chunk_key *parent,
                               uint32_t first_token)
{
    struct chunk_key key;
    uint32_t tokens[64];

    for (uint32_t i = 0; i < 64; i++)
        tokens[i] = first_token + i * 1000;
    chunk_key_derive(index_key, id, parent, tokens, &key);
    return key;
}

static size_t put(uint8_t *p, uint32_t v)
{
    for (unsigned i = 0; i < 4; i++)
        p[i] = (uint8_t) (v >> 8 * i);
    return 4;
}

static void test_encoding(void)
{
    struct chunk_identity id = {table, model, 2, 5, "salt", 4, false};
    struct chunk_key parent = {{9, 8, 7}}, want, got = derive(&id, &parent, 42);
    uint8_t b[512];
    size_t n = 0;

    n += put(b + n, 2);
    n += put(b + n, 32), memcpy(b + n, table, 32), n += 32;
    n += put(b + n, 32), memcpy(b + n, model, 32), n += 32;
    n += put(b + n, 2);
    n += put(b + n, 5);
    n += put(b + n, 4), memcpy(b + n, "salt", 4), n += 4;
    n += put(b + n, 16), memcpy(b + n, parent.bytes, 16), n += 16;
    n += put(b + n, 256);
    for (uint32_t i = 0; i < 64; i++)
        n += put(b + n, 42 + i * 1000);
    CU_ASSERT_EQUAL_FATAL(crypto_generichash(want.bytes, 16, b, n, index_key, 32), 0);
    memcpy(want.bytes + 8, parent.bytes, 4);
    CU_ASSERT_EQUAL(memcmp(&want, &got, 16), 0);
    n += put(b + n, 1);
    id.repeatable = true;
    got = derive(&id, &parent, 42);
    CU_ASSERT_EQUAL_FATAL(crypto_generichash(want.bytes, 16, b, n, index_key, 32), 0);
    memcpy(want.bytes + 8, parent.bytes, 4);
    CU_ASSERT_EQUAL(memcmp(&want, &got, 16), 0);
}

/* A chunk has the mark of the chunk before it, and the key may be derived in the parent's place. */
static void test_mark(void)
{
    static const uint8_t zeros[4];
    const struct chunk_identity id = {table, model, 2, 5, NULL, 0, false};
    struct chunk_key first = derive(&id, NULL, 1), second = derive(&id, &first, 2), in_place = first;
    uint32_t tokens[64];

    CU_ASSERT_EQUAL(memcmp(first.bytes + 8, zeros, 4), 0);
    CU_ASSERT_EQUAL(memcmp(second.bytes + 8, first.bytes, 4), 0);
    for (uint32_t i = 0; i < 64; i++)
        tokens[i] = 2 + i * 1000;
    chunk_key_derive(index_key, &id, &in_place, tokens, &in_place);
    CU_ASSERT_EQUAL(memcmp(&in_place, &second, sizeof(second)), 0);
}

static bool same(struct chunk_key a, struct chunk_key b)
{
    return memcmp(&a, &b, sizeof(a)) == 0;
}

static void test_every_field_matters(void)
{
    const struct chunk_identity id = {table, model, 0, 3, NULL, 0, false};
    struct chunk_identity other = id;
    struct chunk_key base = derive(&id, NULL, 1), zero = {{0}};
    uint8_t other_key[32] = {1, 2, 4};
    uint32_t tokens[64] = {0};
    struct chunk_key a, b;

    CU_ASSERT(same(base, derive(&id, NULL, 1)));
    CU_ASSERT(same(base, derive(&id, &zero, 1))); /* no parent is the zero key */
    CU_ASSERT(!same(base, derive(&id, &base, 1)));
    CU_ASSERT(!same(base, derive(&id, NULL, 2)));
    other.table_digest = model;
    CU_ASSERT(!same(base, derive(&other, NULL, 1)));
    other = id, other.model_digest = table;
    CU_ASSERT(!same(base, derive(&other, NULL, 1)));
    other = id, other.first_head = 3, other.n_heads = 0;
    CU_ASSERT(!same(base, derive(&other, NULL, 1)));
    other = id, other.salt = "", other.salt_bytes = 1;
    CU_ASSERT(!same(base, derive(&other, NULL, 1)));
    other = id, other.repeatable = true;
    CU_ASSERT(!same(base, derive(&other, NULL, 1)));
    chunk_key_derive(index_key, &id, NULL, tokens, &a);
    chunk_key_derive(other_key, &id, NULL, tokens, &b);
    CU_ASSERT(!same(a, b));
    tokens[63] = 1;
    chunk_key_derive(index_key, &id, NULL, tokens, &b);
    CU_ASSERT(!same(a, b));
}

const struct test_case test_cases[] = {TEST(test_encoding), TEST(test_mark), TEST(test_every_field_matters),
                                       TEST_END};
const char test_suite[] = "key";
