/* The HTML writer: hostile text stays text, tables show the values of the JSON. */
#include "tests/lib/test.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "tools/page/html.h"

/* The HTML of @text, of at most @max_bytes of it. */
static char *written(const char *text, size_t max_bytes)
{
    char *out = NULL;
    size_t n;
    FILE *f = open_memstream(&out, &n);

    CU_ASSERT_PTR_NOT_NULL_FATAL(f);
    html_text_cut(f, text, max_bytes);
    CU_ASSERT_EQUAL_FATAL(fclose(f), 0);
    return out;
}

static void becomes(const char *text, const char *want)
{
    _cleanup_(freep) char *got = written(text, SIZE_MAX);

    CU_ASSERT_STRING_EQUAL(got, want);
}

#define BAD "\xef\xbf\xbd" /* U+FFFD */

static void test_escaping(void)
{
    becomes("plain, ünïcode, 漢字", "plain, ünïcode, 漢字");
    becomes("</script><script>alert(1)</script>", "&lt;/script&gt;&lt;script&gt;alert(1)&lt;/script&gt;");
    becomes("\" onload='x' &amp;", "&quot; onload=&#39;x&#39; &amp;amp;");
    becomes("]]>", "]]&gt;");
    becomes("a\nb\tc", "a b c");
    becomes("", "");
}

/* Invalid in XML: control characters, half characters, overlong forms, surrogates, U+FFFE and
 * U+FFFF. */
static void test_not_xml(void)
{
    becomes("a\x01\x1b[31mb\x7f", "a" BAD BAD "[31mb" BAD);
    becomes("\xff\xfe", BAD BAD);
    becomes("half \xe6\xbc", "half " BAD BAD);
    becomes("\xc0\xbc", BAD BAD);         /* an overlong '<' */
    becomes("\xed\xa0\x80", BAD BAD BAD); /* a surrogate */
    becomes("\xef\xbf\xbe|\xef\xbf\xbf", BAD "|" BAD);
}

static void test_cut(void)
{
    _cleanup_(freep) char *whole = written("abcdef", 6), *cut = written("abcdef", 4),
                          *inside = written("aé", 2);

    CU_ASSERT_STRING_EQUAL(whole, "abcdef");
    CU_ASSERT_STRING_EQUAL(cut, "abcd… (2 more bytes)");
    CU_ASSERT_STRING_EQUAL(inside, "a… (2 more bytes)"); /* no part of a character */
}

static char *table_of(json_t *rows, const struct html_column *columns)
{
    char *out = NULL;
    size_t n;
    FILE *f = open_memstream(&out, &n);

    CU_ASSERT_PTR_NOT_NULL_FATAL(f);
    html_table(f, "a.b", "<what>", rows, columns);
    CU_ASSERT_EQUAL_FATAL(fclose(f), 0);
    json_decref(rows);
    return out;
}

static void test_table(void)
{
    static const struct html_column columns[] = {{"x", "X"}, {"y", "Y"}, {NULL, NULL}};
    _cleanup_(freep) char *text = table_of(json_pack("[{s:i, s:s}, {s:f, s:n}, {s:[i,f]}]", "x", 12345678,
                                                     "y", "<i>", "x", 2.0 / 3, "y", "x", 1, 0.5),
                                           columns);

    CU_ASSERT_PTR_NOT_NULL(strstr(text, "data-rows=\"a.b\""));
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "<caption>&lt;what&gt;</caption>"));
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "<th scope=\"col\" data-key=\"x\">X</th>"));
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "<th scope=\"col\" class=\"text\" data-key=\"y\">Y</th>"));
    CU_ASSERT_PTR_NOT_NULL(strstr(
        text,
        "<tr><td data-label=\"X\">12345678</td><td class=\"text\" data-label=\"Y\">&lt;i&gt;</td></tr>"));
    CU_ASSERT_PTR_NOT_NULL(
        strstr(text, "<tr><td data-label=\"X\">0.6667</td><td data-label=\"Y\">–</td></tr>"));
    CU_ASSERT_PTR_NOT_NULL(
        strstr(text, "<tr><td class=\"text\" data-label=\"X\">1 0.5</td><td data-label=\"Y\">–</td></tr>"));
}

/* A table of many rows is no list on a narrow page: its cells have no headings of their own. */
static void test_many_rows(void)
{
    static const struct html_column columns[] = {{"x", "X"}, {NULL, NULL}};
    json_t *rows = json_array(), *few = json_array();
    char *text;

    for (int i = 0; i < 33; i++)
        (void) json_array_append_new(rows, json_pack("{s:i}", "x", i));
    for (int i = 0; i < 32; i++)
        (void) json_array_append_new(few, json_pack("{s:i}", "x", i));
    text = table_of(rows, columns);
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "<div class=\"scroll\""));
    CU_ASSERT_PTR_NULL(strstr(text, "data-label"));
    free(text);
    text = table_of(few, columns);
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "<div class=\"scroll short\""));
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "<td data-label=\"X\">31</td>"));
    free(text);
}

/* Long arrays show their ends; too many rows are replaced by a sentence. */
static void test_long(void)
{
    static const struct html_column columns[] = {{"x", "X"}, {NULL, NULL}};
    json_t *array = json_array(), *rows = json_array();
    char *text;

    for (int i = 0; i < 17; i++)
        (void) json_array_append_new(array, json_integer(i));
    text = table_of(json_pack("[{s:o}]", "x", array), columns);
    CU_ASSERT_PTR_NOT_NULL(strstr(text, ">17 values, 0 to 16<"));
    free(text);
    for (int i = 0; i <= HTML_ROWS_MAX; i++)
        (void) json_array_append_new(rows, json_pack("{s:i}", "x", i));
    text = table_of(rows, columns);
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "4097 rows are too many for a page"));
    CU_ASSERT_PTR_NULL(strstr(text, "<table"));
    free(text);
}

static void test_number(void)
{
    char *out = NULL;
    size_t n;
    FILE *f = open_memstream(&out, &n);

    CU_ASSERT_PTR_NOT_NULL_FATAL(f);
    html_number(f, 1234.56);
    html_number(f, (double) NAN);
    html_number(f, -(double) INFINITY);
    CU_ASSERT_EQUAL_FATAL(fclose(f), 0);
    CU_ASSERT_STRING_EQUAL(out, "1235––");
    free(out);
}

const struct test_case test_cases[] = {
    TEST(test_escaping),  TEST(test_not_xml), TEST(test_cut),    TEST(test_table),
    TEST(test_many_rows), TEST(test_long),    TEST(test_number), TEST_END,
};
const char test_suite[] = "html";
