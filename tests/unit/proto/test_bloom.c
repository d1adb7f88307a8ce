/* Tests of proto/bloom.c. */
#include "proto/bloom.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/errmsg.h"
#include "tests/lib/test.h"

const char test_suite[] = "bloom";

static struct chunk_key random_key(void)
{
    struct chunk_key k;
    uint64_t words[2] = {test_rand(), test_rand()};

    memcpy(k.bytes, words, sizeof(words));
    return k;
}

/* A full filter: no key is missing, and few others are probable. */
static void test_full(void)
{
    enum { N = 20000 };
    size_t bytes = bloom_object_bytes(N);
    struct chunk_key *keys = calloc(N, sizeof(*keys));
    void *object = calloc(1, bytes);
    struct bloom_writer w;
    struct bloom_reader r;
    unsigned n_wrong = 0;

    assert(object && keys);
    bloom_writer_init(&w, object, bytes);
    CU_ASSERT_EQUAL_FATAL(bloom_reader_init(&r, object, bytes, NULL), 0);
    CU_ASSERT(bloom_capacity(&w) >= N && bloom_capacity(&w) < N + 4096);
    for (unsigned i = 0; i < N; i++) {
        keys[i] = random_key();
        bloom_add(&w, &keys[i]);
    }
    CU_ASSERT_EQUAL(w.n_added, N);
    for (unsigned i = 0; i < N; i++) {
        struct chunk_key other = random_key();

        CU_ASSERT_FATAL(bloom_lookup(&r, &keys[i]) == BLOOM_PROBABLY);
        n_wrong += bloom_lookup(&r, &other) == BLOOM_PROBABLY;
    }
    CU_ASSERT(n_wrong < N / 250); /* 0.1 % are expected; 0.4 % or more has a chance of 1e-20 */
    free(keys);
    free(object);
}

/* The bits of a known key stand where bloom.h says. */
static void test_layout(void)
{
    const struct chunk_key key = {{0x41, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x80}};
    size_t bytes = bloom_object_bytes(1000);
    uint64_t *object = calloc(1, bytes), n_blocks = (bytes - 128) / 64;
    const uint64_t *block = object + (128 + n_blocks / 2 * 64) / 8; /* upper half of word 1: 0.5 */
    struct bloom_writer w;

    bloom_writer_init(&w, object, bytes);
    bloom_add(&w, &key);
    CU_ASSERT_EQUAL(block[0], UINT64_C(1)
                                  << 1); /* bits 0 to 5 of word 0: 0x1041 = 1 + (1 << 6) + (1 << 12) */
    CU_ASSERT_EQUAL(block[1], UINT64_C(1) << 1);
    CU_ASSERT_EQUAL(block[2], UINT64_C(1) << 1);
    CU_ASSERT_EQUAL(block[3], 1);
    CU_ASSERT_EQUAL(block[7], 1);
    free(object);
}

static void test_moved(void)
{
    size_t bytes = bloom_object_bytes(1);
    uint8_t *object = calloc(1, bytes);
    struct chunk_key key = random_key(), other = random_key();
    struct bloom_writer w;
    struct bloom_reader r;

    bloom_writer_init(&w, object, bytes);
    CU_ASSERT_EQUAL_FATAL(bloom_reader_init(&r, object, bytes, NULL), 0);
    bloom_add(&w, &key);
    CU_ASSERT_EQUAL(bloom_lookup(&r, &other), BLOOM_NO);
    bloom_mark_moved(&w);
    CU_ASSERT_EQUAL(bloom_lookup(&r, &key), BLOOM_MOVED);
    CU_ASSERT_EQUAL(bloom_lookup(&r, &other), BLOOM_MOVED);
    memset(object, 0, bytes); /* the memory was given back */
    CU_ASSERT_EQUAL(bloom_lookup(&r, &key), BLOOM_MOVED);
    free(object);
}

static void test_refused_objects(void)
{
    size_t bytes = bloom_object_bytes(100);
    uint8_t *object = calloc(1, bytes);
    uint64_t n_blocks = UINT64_MAX / 64;
    struct bloom_writer w;
    struct bloom_reader r;
    struct errmsg e = {""};

    CU_ASSERT_EQUAL(bloom_reader_init(&r, object, bytes, &e), -EBADMSG); /* zeros */
    bloom_writer_init(&w, object, bytes);
    CU_ASSERT_EQUAL(bloom_reader_init(&r, object, bytes, &e), 0);
    CU_ASSERT_EQUAL(bloom_reader_init(&r, object, bytes - 64, &e), -EBADMSG);
    CU_ASSERT_EQUAL(bloom_reader_init(&r, object, 128, &e), -EBADMSG);
    memcpy(object + 8, &n_blocks, sizeof(n_blocks));
    CU_ASSERT_EQUAL(bloom_reader_init(&r, object, bytes, &e), -EBADMSG);
    memset(object + 8, 0, 8);
    CU_ASSERT_EQUAL(bloom_reader_init(&r, object, bytes, &e), -EBADMSG);
    CU_ASSERT(e.text[0] != '\0');
    free(object);
}

const struct test_case test_cases[] = {
    TEST(test_full), TEST(test_layout), TEST(test_moved), TEST(test_refused_objects), TEST_END,
};
