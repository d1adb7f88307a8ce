/* UTF-8: characters of every length, and the sequences that RFC 3629 forbids. */
#include <string.h>

#include "base/utf8.h"
#include "tests/lib/test.h"

static void test_lengths(void)
{
    CU_ASSERT_EQUAL(utf8_length("a", 1), 1);
    CU_ASSERT_EQUAL(utf8_length("\0", 1), 1);
    CU_ASSERT_EQUAL(utf8_length("\xc3\xa4", 2), 2);
    CU_ASSERT_EQUAL(utf8_length("\xe2\x82\xac", 3), 3);
    CU_ASSERT_EQUAL(utf8_length("\xf0\x9f\x90\x8d", 4), 4);
    CU_ASSERT_EQUAL(utf8_length("", 0), 0);
}

static void test_invalid(void)
{
    static const char *const bad[] = {
        "\x80",             /* a continuation byte alone */
        "\xc3",             /* cut off */
        "\xe2\x82",         /* cut off */
        "\xc0\xaf",         /* overlong */
        "\xe0\x9f\xbf",     /* overlong */
        "\xf0\x8f\xbf\xbf", /* overlong */
        "\xed\xa0\x80",     /* a surrogate */
        "\xf4\x90\x80\x80", /* above U+10FFFF */
        "\xff",
    };

    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++)
        CU_ASSERT_EQUAL(utf8_length(bad[i], strlen(bad[i])), 0);
}

static void test_error_offset(void)
{
    CU_ASSERT_EQUAL(utf8_error("gr\xc3\xbc\xc3\x9f", 6), 6);
    CU_ASSERT_EQUAL(utf8_error("gr\xc3\xbc\xc3", 5), 4);
    CU_ASSERT_EQUAL(utf8_error("a\0b\xff", 4), 3);
    CU_ASSERT_EQUAL(utf8_error("", 0), 0);
}

const struct test_case test_cases[] = {
    TEST(test_lengths),
    TEST(test_invalid),
    TEST(test_error_offset),
    TEST_END,
};
const char test_suite[] = "utf8";
