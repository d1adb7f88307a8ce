/* Digests in hexadecimal: every digit, both lengths. */
#include <string.h>

#include "base/digest.h"
#include "tests/lib/test.h"

static void test_digits(void)
{
    uint8_t digest[32];
    char hex[DIGEST_HEX_BYTES];

    for (unsigned i = 0; i < 32; i++)
        digest[i] = (uint8_t) (0x10 * (i % 16) + 15 - i % 16);
    CU_ASSERT_STRING_EQUAL(digest_hex(digest, hex),
                           "0f1e2d3c4b5a69788796a5b4c3d2e1f00f1e2d3c4b5a69788796a5b4c3d2e1f0");
    CU_ASSERT_STRING_EQUAL(digest_short(digest, hex), "0f1e2d3c4b5a");
    CU_ASSERT_EQUAL(strlen(hex), DIGEST_SHORT_DIGITS);
}

static void test_leading_zeros(void)
{
    uint8_t digest[32] = {0x00, 0x01, 0xfe, 0xff, 0x10, 0xab};
    char text[DIGEST_HEX_BYTES];

    CU_ASSERT_EQUAL(strlen(digest_hex(digest, text)), 64);
    CU_ASSERT_EQUAL(strncmp(text, "0001feff10ab00", 14), 0);
    CU_ASSERT_STRING_EQUAL(digest_short(digest, text), "0001feff10ab");
}

const struct test_case test_cases[] = {
    TEST(test_digits),
    TEST(test_leading_zeros),
    TEST_END,
};
const char test_suite[] = "digest";
