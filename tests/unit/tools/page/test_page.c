/* Pages: the numbers cannot end their element, and the page allows its own scripts only. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "tests/lib/test.h"
#include "tools/page/page.h"
#include "tools/page/page_assets.h"

/* The page of @numbers, which it takes; the caller's to free. */
static char *page_of(enum page_kind kind, json_t *numbers)
{
    char *text = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&text, &n);

    CU_ASSERT_PTR_NOT_NULL_FATAL(f);
    CU_ASSERT_EQUAL(page_write(f, kind, numbers), 0);
    CU_ASSERT_FALSE(ferror(f));
    CU_ASSERT_EQUAL(fclose(f), 0);
    json_decref(numbers);
    return text;
}

static size_t count(const char *text, const char *what)
{
    size_t n = 0;

    for (const char *p = text; (p = strstr(p, what)); p += strlen(what))
        n++;
    return n;
}

static void test_numbers_stay_inside(void)
{
    const char *attack = "</script><script>alert(1)</script><!-- <SCRIPT";
    _cleanup_(freep) char *text = page_of(PAGE_CAPACITY, json_pack("{s:s}", attack, attack));
    const char *begin = strstr(text, "id=\"numbers\">");
    const char *end = begin ? strstr(begin, "</script>") : NULL;
    _cleanup_(json_decrefp) json_t *back = NULL;

    CU_ASSERT_PTR_NOT_NULL_FATAL(end);
    begin += strlen("id=\"numbers\">");
    CU_ASSERT_PTR_NULL(memchr(begin, '<', (size_t) (end - begin)));
    back = json_loadb(begin, (size_t) (end - begin), 0, NULL);
    CU_ASSERT_STRING_EQUAL(json_string_value(json_object_get(back, attack)), attack);
}

static void test_reals_keep_five_digits(void)
{
    _cleanup_(freep) char *text =
        page_of(PAGE_CAPACITY, json_pack("{s:f, s:I}", "x", 1 / 3.0, "n", (json_int_t) 1234567890123));

    CU_ASSERT_PTR_NOT_NULL(strstr(text, "{\"x\":0.33333,\"n\":1234567890123}"));
}

/* One hash for each script that runs, and no source but these. */
static void test_policy(void)
{
    for (enum page_kind kind = 0; kind < PAGE_KINDS; kind++) {
        _cleanup_(freep) char *text = page_of(kind, json_object());
        const char *policy = strstr(text, "Content-Security-Policy"),
                   *end = policy ? strchr(policy, '>') : NULL;
        size_t scripts = page_d3.n > 0 ? 3 : 2;

        CU_ASSERT_PTR_NOT_NULL_FATAL(end);
        CU_ASSERT_EQUAL(count(page_script_hashes[kind], "'sha256-"), scripts);
        CU_ASSERT_PTR_NOT_NULL(strstr(policy, page_script_hashes[kind]));
        CU_ASSERT_PTR_NOT_NULL(strstr(policy, "default-src 'none'"));
        CU_ASSERT_EQUAL(count(text, "<script>"), scripts);
        CU_ASSERT_EQUAL(count(text, "</script>"), scripts + 1);
        CU_ASSERT_PTR_NULL(strstr(text, " src="));
    }
}

static void test_library_has_its_licence(void)
{
    _cleanup_(freep) char *text = page_of(PAGE_CAPACITY, json_object());

    if (page_d3.n == 0)
        return;
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "License: BSD-3-Clause"));
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "Copyright: 2010-2017, Mike Bostock"));
}

const char test_suite[] = "page";
const struct test_case test_cases[] = {
    TEST(test_numbers_stay_inside),
    TEST(test_reals_keep_five_digits),
    TEST(test_policy),
    TEST(test_library_has_its_licence),
    TEST_END,
};
