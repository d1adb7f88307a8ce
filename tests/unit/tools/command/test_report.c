/* Tables, amounts, JSON strings: literals worked by hand. */
#include "base/digest.h"
#include "tools/command/human.h"
#include "tools/command/report.h"

#include <errno.h>
#include <locale.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "tests/lib/test.h"
#include "tools/command/utf8_json.h"

static void expect_table(struct report *r, const char *want)
{
    _cleanup_(freep) char *text = NULL;
    size_t bytes;
    FILE *f = open_memstream(&text, &bytes);

    CU_ASSERT_EQUAL(report_print(r, f), 0);
    CU_ASSERT_EQUAL(fclose(f), 0);
    CU_ASSERT_STRING_EQUAL(text, want);
}

static void test_columns_align(void)
{
    _cleanup_(report_freep) struct report *r = report_new("<name\t>n");

    report_row(r, "a\t%d", 1000);
    report_row(r, "long name\t%d", 7);
    expect_table(r, "name          n\n"
                    "a          1000\n"
                    "long name     7\n");
}

static void test_rows_have_all_columns(void)
{
    _cleanup_(report_freep) struct report *r = report_new("<a\t>b\t<c");

    report_row(r, "x");          /* missing cells are empty */
    report_row(r, "1\t2\t3\t4"); /* the last takes the rest, tab included */
    report_row(r, "%s", "");
    expect_table(r, "a  b  c\n"
                    "x     \n"
                    "1  2  3\t4\n"
                    "      \n");
}

static void test_no_rows(void)
{
    _cleanup_(report_freep) struct report *r = report_new("<only");

    expect_table(r, "only\n");
}

static void test_many_rows(void)
{
    _cleanup_(report_freep) struct report *r = report_new(">n");
    _cleanup_(freep) char *text = NULL;
    size_t bytes, lines = 0;
    FILE *f = open_memstream(&text, &bytes);

    for (int i = 0; i < 1000; i++)
        report_row(r, "%d", i);
    CU_ASSERT_EQUAL(report_print(r, f), 0);
    CU_ASSERT_EQUAL(fclose(f), 0);
    for (const char *p = text; (p = strchr(p, '\n')); p++)
        lines++;
    CU_ASSERT_EQUAL(lines, 1001);
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "\n999\n"));
}

/* Two columns on the screen, four bytes: the cell beside it must not move. */
static void test_width_in_characters(void)
{
    _cleanup_(report_freep) struct report *r = NULL;

    if (!setlocale(LC_CTYPE, "C.UTF-8")) {
        test_skip("this machine has no C.UTF-8");
        return;
    }

    r = report_new("<a\t<b");
    report_row(r, "\xc3\xa9\xc3\xa8\tx");
    report_row(r, "ab\ty");
    expect_table(r, "a   b\n\xc3\xa9\xc3\xa8  x\nab  y\n");
    (void) setlocale(LC_CTYPE, "C");
}

static void test_null_report(void)
{
    report_row(NULL, "%d", 1);
    CU_ASSERT_EQUAL(report_print(NULL, stdout), -ENOMEM);
    CU_ASSERT_PTR_NULL(report_free(NULL));
}

static void test_bytes(void)
{
    static const struct {
        uint64_t bytes;
        const char *want;
    } cases[] = {
        {0, "0 B"},
        {1, "1 B"},
        {1023, "1023 B"},
        {1024, "1.0 KiB"},
        {1536, "1.5 KiB"},
        {1048575, "1.0 MiB"}, /* 1023.999 KiB: never "1024.0 KiB" */
        {1048576, "1.0 MiB"},
        {UINT64_C(1) << 40, "1.0 TiB"},
        {UINT64_MAX, "16.0 EiB"},
    };
    char text[HUMAN_BYTES];

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        CU_ASSERT_STRING_EQUAL(human_bytes(cases[i].bytes, text), cases[i].want);
}

static void test_seconds(void)
{
    static const struct {
        double seconds;
        const char *want;
    } cases[] = {
        {0, "0.00 s"},        {-1, "0.00 s"},       {9.994, "9.99 s"},   {9.996, "10 s"},
        {59.4, "59 s"},       {59.6, "1 min 00 s"}, {185, "3 min 05 s"}, {3599.4, "59 min 59 s"},
        {3600, "1 h 00 min"}, {7800, "2 h 10 min"},
    };
    char text[HUMAN_BYTES];

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        CU_ASSERT_STRING_EQUAL(human_seconds(cases[i].seconds, text), cases[i].want);
}

static void test_digest(void)
{
    uint8_t digest[32] = {0x00, 0x01, 0xfe, 0xff, 0x10, 0xab};
    char text[DIGEST_HEX_BYTES];

    CU_ASSERT_EQUAL(strlen(digest_hex(digest, text)), 64);
    CU_ASSERT_EQUAL(strncmp(text, "0001feff10ab00", 14), 0);
    CU_ASSERT_STRING_EQUAL(digest_short(digest, text), "0001feff10ab");
}

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

const char test_suite[] = "report";
const struct test_case test_cases[] = {
    TEST(test_columns_align),
    TEST(test_rows_have_all_columns),
    TEST(test_no_rows),
    TEST(test_many_rows),
    TEST(test_width_in_characters),
    TEST(test_null_report),
    TEST(test_bytes),
    TEST(test_seconds),
    TEST(test_digest),
    TEST(test_broken_utf8),
    TEST_END,
};
