/* Aligned tables: columns, missing cells, wide characters. */
#include "tools/command/report.h"

#include <errno.h>
#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "tests/lib/test.h"

static void expect_table(struct report *r, const char *want)
{
    _cleanup_(freep) char *text = NULL;
    size_t bytes;
    FILE *f = open_memstream(&text, &bytes);

    report_print(r, f);
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

/* Columns that do not fit follow below, after the first column again. Text that never fits is cut. */
static void test_width(void)
{
    _cleanup_(report_freep) struct report *r = report_new("<name\t>one\t>two\t<three");
    static const struct {
        unsigned width;
        const char *want;
    } cases[] = {
        {29, "name    one   two  three\nalpha   100  2000  abcdefghij\n"},
        {28, "name    one   two\nalpha   100  2000\n\nname   three\nalpha  abcdefghij\n"},
        {16, "name    one\nalpha   100\n\nname    two\nalpha  2000\n\nname   three\nalpha  abcdef...\n"},
    };

    report_row(r, "alpha\t 100\t2000\tabcdefghij");
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        _cleanup_(freep) char *text = NULL;
        size_t bytes;
        FILE *f = open_memstream(&text, &bytes);

        report_print_width(r, f, cases[i].width);
        CU_ASSERT_EQUAL(fclose(f), 0);
        CU_ASSERT_STRING_EQUAL(text, cases[i].want);
    }
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
    report_print(r, f);
    CU_ASSERT_EQUAL(fclose(f), 0);
    for (const char *p = text; (p = strchr(p, '\n')); p++)
        lines++;
    CU_ASSERT_EQUAL(lines, 1001);
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "\n999\n"));
}

/* Two columns on the screen, four bytes: the next cell must not move. */
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

static void test_json_real(void)
{
    json_t *none = report_json_real(NAN), *x = report_json_real(1.5);

    CU_ASSERT(json_is_null(none));
    CU_ASSERT_EQUAL(json_real_value(x), 1.5);
    json_decref(none);
    json_decref(x);
}

const char test_suite[] = "report";
const struct test_case test_cases[] = {
    TEST(test_columns_align),
    TEST(test_width),
    TEST(test_rows_have_all_columns),
    TEST(test_no_rows),
    TEST(test_many_rows),
    TEST(test_width_in_characters),
    TEST(test_json_real),
    TEST_END,
};
