/* Digests typed as their first digits. */
#include "tools/command/operator.h"

#include "tests/lib/test.h"

static void test_lengths_and_digits(void)
{
    static const char whole[] = "0123456789abcdefABCDEF0123456789abcdefABCDEF0123456789abcdefABCD";

    CU_ASSERT_EQUAL(sizeof(whole), 65);
    CU_ASSERT_TRUE(operator_is_digest("012345"));
    CU_ASSERT_TRUE(operator_is_digest(whole));
    CU_ASSERT_FALSE(operator_is_digest("01234")); /* five digits */
    CU_ASSERT_FALSE(operator_is_digest(""));
    CU_ASSERT_FALSE(operator_is_digest("01234g"));
    CU_ASSERT_FALSE(operator_is_digest("model-3.table"));
    /* 65 digits */
    CU_ASSERT_FALSE(operator_is_digest("0123456789abcdefABCDEF0123456789abcdefABCDEF0123456789abcdefABCDE"));
}

static void test_beginnings_match(void)
{
    const uint8_t digest[KVC_DIGEST_BYTES] = {0x12, 0x34, 0xab, 0xcd, 0xef};

    CU_ASSERT_TRUE(operator_digest_matches(digest, "1234ab"));
    CU_ASSERT_TRUE(operator_digest_matches(digest, "1234ABCDEF00"));
    CU_ASSERT_FALSE(operator_digest_matches(digest, "1234ac"));
    CU_ASSERT_FALSE(operator_digest_matches(digest, "234abc")); /* not the beginning */
}

const char test_suite[] = "operator";
const struct test_case test_cases[] = {
    TEST(test_lengths_and_digits),
    TEST(test_beginnings_match),
    TEST_END,
};
