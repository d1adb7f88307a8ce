/* Words written from the parameters of a launch, and checksums of payloads, against those of proto/page.h. */
#include <stdlib.h>
#include <string.h>

#include "proto/page.h"
#include "tests/lib/test.h"
#include "tests/unit/gpu/cuda/gpu_fixture.h"

/* Writes up to more words than one launch takes; the words before and behind are unchanged. */
static void test_write_words(void)
{
    static const size_t words[] = {0, 1, 5, LAUNCH_WRITE_WORDS_MAX, LAUNCH_WRITE_WORDS_MAX + 1, 1000};
    uint32_t from[1000], got[1002], expected[1002];
    struct gpu_fixture d;

    CU_ASSERT_TRUE_FATAL(gpu_fixture_init(&d, 1));
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        cu_ptr at;

        memset(expected, 0xa5, sizeof(expected));
        at = gpu_fixture_put(&d, expected, sizeof(expected));
        for (size_t x = 0; x < words[i]; x++)
            expected[1 + x] = from[x] = (uint32_t) test_rand();
        gpu_fixture_ok(&d, cuda_write_words(d.kernels, at + sizeof(uint32_t), from,
                                            words[i] * sizeof(uint32_t), NULL, &d.e));
        memset(from, 0, sizeof(from)); /* the source may be freed at once */
        gpu_fixture_get(&d, got, at, sizeof(got));
        CU_ASSERT_EQUAL(memcmp(expected, got, sizeof(got)), 0);
    }
    CU_ASSERT_TRUE(gpu_fixture_deinit(&d));
}

/* Payloads of @bytes each: random, zeros and ones; the word behind the last checksum stays. */
static void check_crc(struct gpu_fixture *d, size_t bytes)
{
    enum { N = 3 };
    uint8_t *x = malloc(N * bytes + 1);
    const uint8_t *at[N];
    uint32_t got[N + 1];
    struct launch_crc c = {.bytes = bytes, .n = N};
    cu_ptr data, ret;

    assert(x);
    for (size_t i = 0; i < bytes; i++) {
        x[i] = (uint8_t) test_rand();
        x[bytes + i] = 0;
        x[2 * bytes + i] = 0xff;
    }
    data = gpu_fixture_put(d, x, N * bytes + 1);
    for (size_t i = 0; i < N; i++)
        at[i] = (const uint8_t *) (uintptr_t) (data + i * bytes);
    memset(got, 0xa5, sizeof(got));
    ret = gpu_fixture_put(d, got, sizeof(got));
    c.payloads = (const uint8_t *const *) (uintptr_t) gpu_fixture_put(d, at, sizeof(at));
    c.crc32c = (uint32_t *) (uintptr_t) ret;
    gpu_fixture_ok(d, cuda_crc(d->kernels, &c, NULL, &d->e));
    gpu_fixture_get(d, got, ret, sizeof(got));
    for (size_t i = 0; i < N; i++)
        CU_ASSERT_EQUAL(got[i], crc32c(x + i * bytes, bytes));
    CU_ASSERT_EQUAL(got[N], 0xa5a5a5a5);
    free(x);
}

/* Shares of one word, of a few, one beyond whole passes, several blocks with a short last one. */
static void test_crc(void)
{
    static const size_t words[] = {
        0, 1, 2, 255, 256, 257, 1000, 4096, (128 << 10) / 4 + 3, 3 * (128 << 10) / 4 + 700};
    struct gpu_fixture d;

    CU_ASSERT_TRUE_FATAL(gpu_fixture_init(&d, 1));
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        check_crc(&d, 4 * words[i]);
    CU_ASSERT_TRUE(gpu_fixture_deinit(&d));
}

/* The values for 32 zeros and 32 ones in the standard of iSCSI. */
static void test_known_crc(void)
{
    uint8_t bytes[2][32];
    const uint8_t *at[2];
    struct launch_crc c = {.bytes = 32, .n = 2};
    uint32_t got[2];
    struct gpu_fixture d;
    cu_ptr data, ret;

    CU_ASSERT_TRUE_FATAL(gpu_fixture_init(&d, 1));
    memset(bytes[0], 0, sizeof(bytes[0]));
    memset(bytes[1], 0xff, sizeof(bytes[1]));
    data = gpu_fixture_put(&d, bytes, sizeof(bytes));
    for (size_t i = 0; i < 2; i++)
        at[i] = (const uint8_t *) (uintptr_t) (data + i * 32);
    ret = gpu_fixture_put(&d, NULL, sizeof(got));
    c.payloads = (const uint8_t *const *) (uintptr_t) gpu_fixture_put(&d, at, sizeof(at));
    c.crc32c = (uint32_t *) (uintptr_t) ret;
    gpu_fixture_ok(&d, cuda_crc(d.kernels, &c, NULL, &d.e));
    gpu_fixture_get(&d, got, ret, sizeof(got));
    CU_ASSERT_EQUAL(got[0], 0x8a9136aau);
    CU_ASSERT_EQUAL(got[1], 0x62a8ab43u);
    CU_ASSERT_TRUE(gpu_fixture_deinit(&d));
}

const char test_suite[] = "bytes in GPU memory";
const struct test_case test_cases[] = {TEST(test_write_words), TEST(test_crc), TEST(test_known_crc),
                                       TEST_END};
