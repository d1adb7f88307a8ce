/* CRC32C: published check values, and a bit-by-bit computation at many lengths and alignments. */
#include "proto/crc32c.h"

#include <string.h>

#include "tests/lib/test.h"

static void test_crc32c_published(void)
{
    uint8_t zeros[32] = {0}, ones[32], up[32];

    memset(ones, 0xff, sizeof(ones));
    for (unsigned i = 0; i < 32; i++)
        up[i] = (uint8_t) i;
    CU_ASSERT_EQUAL(crc32c("123456789", 9), 0xe3069283u);
    /* RFC 3720, B.4 */
    CU_ASSERT_EQUAL(crc32c(zeros, 32), 0x8a9136aau);
    CU_ASSERT_EQUAL(crc32c(ones, 32), 0x62a8ab43u);
    CU_ASSERT_EQUAL(crc32c(up, 32), 0x46dd794eu);
    CU_ASSERT_EQUAL(crc32c("", 0), 0u);
}

/* Bit by bit, reflected polynomial 0x1EDC6F41. */
static uint32_t crc32c_by_bits(const uint8_t *p, size_t n)
{
    uint32_t crc = UINT32_MAX;

    for (size_t i = 0; i < n; i++) {
        crc ^= p[i];
        for (unsigned k = 0; k < 8; k++)
            crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
    }
    return ~crc;
}

static void test_crc32c_lengths(void)
{
    uint8_t data[600];

    for (size_t i = 0; i < sizeof(data); i++)
        data[i] = (uint8_t) test_rand();
    for (size_t n = 0; n < 520; n += 1 + n / 8)
        for (size_t off = 0; off < 9; off++)
            CU_ASSERT_EQUAL(crc32c(data + off, n), crc32c_by_bits(data + off, n));
}

const struct test_case test_cases[] = {TEST(test_crc32c_published), TEST(test_crc32c_lengths), TEST_END};
const char test_suite[] = "crc32c";
