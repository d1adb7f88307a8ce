/* JSON strings of bytes that are not valid UTF-8. */
#include "tools/command/utf8_json.h"

#include "tests/lib/test.h"

static void expect_utf8(const char *bytes, size_t n, const char *want)
{
    json_t *json = utf8_json(bytes, n);

    CU_ASSERT_PTR_NOT_NULL_FATAL(json);
    CU_ASSERT_STRING_EQUAL(json_string_value(json), want);
    json_decref(json);
}

static void test_broken_utf8(void)
{
    expect_utf8("", 0, "");
    expect_utf8("plain", 5, "plain");
    expect_utf8("caf\xc3\xa9", 5, "caf\xc3\xa9");
    expect_utf8("caf\xc3", 4, "caf\xef\xbf\xbd"); /* cut in the middle of a character */
    expect_utf8("\xff\xfe"
                "a",
                3,
                "\xef\xbf\xbd\xef\xbf\xbd"
                "a");
    expect_utf8("\xf0\x9f\x98\x80\x80", 5, "\xf0\x9f\x98\x80\xef\xbf\xbd"); /* four bytes and a stray one */
    expect_utf8("\xed\xa0\x80", 3, "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"); /* a surrogate is no character */
}

const char test_suite[] = "utf8_json";
const struct test_case test_cases[] = {
    TEST(test_broken_utf8),
    TEST_END,
};
