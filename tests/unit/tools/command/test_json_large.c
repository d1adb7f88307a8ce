/* Integers at the ends of 63 and 64 bits, in texts that look like numbers in other places. */
#include "tools/command/json_large.h"

#include <stdlib.h>
#include <string.h>

#include "tests/lib/test.h"

const char test_suite[] = "json_large";

/* @want: as json_dumps() writes it. */
static void check(const char *text, const char *want)
{
    json_t *json = json_large_load(text, NULL);
    char *got = json_dumps(json, JSON_COMPACT | JSON_ENCODE_ANY);

    CU_ASSERT_STRING_EQUAL(got ? got : "none", want);
    free(got);
    json_decref(json);
}

static void test_integers(void)
{
    check("[9223372036854775807, -9223372036854775808, 0, -0]",
          "[9223372036854775807,-9223372036854775808,0,0]");
    check("[9223372036854775808]", "[\"9223372036854775808\"]");
    check("[18446744073709551615,-9223372036854775809]",
          "[\"18446744073709551615\",\"-9223372036854775809\"]");
    check("{\"a\":99999999999999999999999999999999,\"b\":1.5,\"c\":-2e3}",
          "{\"a\":\"99999999999999999999999999999999\",\"b\":1.5,\"c\":-2000.0}");
    check("{\"a\":{\"b\":[1,99999999999999999999]}}", "{\"a\":{\"b\":[1,\"99999999999999999999\"]}}");
}

static void test_strings(void)
{
    check("[\"99999999999999999999\", \"x\\\" 99999999999999999999 \\\\\", 5]",
          "[\"99999999999999999999\",\"x\\\" 99999999999999999999 \\\\\",5]");
}

static void test_refused(void)
{
    static const char *const texts[] = {
        "", "[1", "[007]", "[--7]", "[\"", "[\"\\", "[0099999999999999999999]", "{1:2}"};
    json_error_t why;

    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
        CU_ASSERT_PTR_NULL(json_large_load(texts[i], &why));
}

const struct test_case test_cases[] = {TEST(test_integers), TEST(test_strings), TEST(test_refused), TEST_END};
