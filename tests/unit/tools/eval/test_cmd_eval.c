/* kvcobra eval on a small random model: one side, some layers, quartiles, and charged bits. */
#include "tests/lib/test.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/unit/tools/eval/eval_fixture.h"

/* kvcobra eval with one more option and its value (or NULL). */
static json_t *eval(const char *option, const char *value)
{
    return captured_json((const char *const[]){EVAL, "--tokens", "128", "--window", "64", "--recent", "0",
                                               "-q", "--json", option, value, NULL});
}

static double kl(const char *option, const char *value)
{
    json_t *j = eval(option, value);
    double x = json_double_at(j, "kl");

    json_decref(j);
    return x;
}

/*
 * Compressing less gives a lower KL: one side or half of the layers give some KL, both or all give more. The
 * reported bits do not change, since they are those of the whole cache.
 */
static void test_parts_of_the_cache(void)
{
    double all, k, v, low, high;

    begin();
    all = kl(NULL, NULL);
    k = kl("--side", "k"), v = kl("--side", "v");
    low = kl("--layers", "0:1"), high = kl("--layers", "2:3");
    CU_ASSERT(k > 0 && v > 0 && low > 0 && high > 0);
    CU_ASSERT(k < all && v < all && low < all && high < all);
    CU_ASSERT_EQUAL(kl("--side", "kv"), all);
    CU_ASSERT_EQUAL(kl("--layers", "0:3"), all);
    end();
}

/* The quarters are the single layers, equal to --layers. */
static void test_quartiles(void)
{
    static const char *const layers[] = {"0:0", "1:1", "2:2", "3:3"};
    json_t *j, *parts;

    begin();
    j = eval("--quartiles", NULL);
    parts = json_object_get(j, "quartiles");
    CU_ASSERT_EQUAL_FATAL(json_array_size(parts), 4);
    for (size_t i = 0; i < 4; i++) {
        CU_ASSERT_EQUAL(json_integer_value(json_object_get(json_array_get(parts, i), "layers")), 1);
        CU_ASSERT_EQUAL(json_double_at(json_array_get(parts, i), "kl"), kl("--layers", layers[i]));
    }

    CU_ASSERT_EQUAL(json_double_at(j, "kl"), kl(NULL, NULL));
    CU_ASSERT_PTR_NULL(json_object_get(json_array_get(parts, 0), "distortion_share"));
    json_decref(j);
    end();
}

/* With the statistics: each quarter's share of the distortion, of the compressed sides. */
static void test_shares_of_distortion(void)
{
    char option[128];
    json_t *j;

    begin();
    (void) snprintf(option, sizeof(option), "--quartiles=%s", statistics);
    for (int side = 0; side < 2; side++) {
        double sum = 0;

        j = eval(option, side ? "--side=k" : "--side=kv");
        for (size_t i = 0; i < 4; i++) {
            double share =
                json_double_at(json_array_get(json_object_get(j, "quartiles"), i), "distortion_share");

            CU_ASSERT(share > 0 && share < 1);
            sum += share;
        }

        CU_ASSERT_DOUBLE_EQUAL(sum, 1, 1e-7); /* JSON has 9 digits */
        json_decref(j);
    }

    end();
}

/* The charged bits are those that solve reported, and the codes that eval counts. */
static void test_what_is_charged(void)
{
    json_t *j, *solved;

    begin();
    j = eval(NULL, NULL);
    solved = captured_json((const char *const[]){"kvcobra", "solve", statistics, "--bpd", "1.5", "-q",
                                                 "--json", "-o", table, NULL});
    CU_ASSERT_DOUBLE_EQUAL(json_double_at(j, "bpd_nominal"), json_double_at(solved, "bpd_nominal"), 1e-7);
    CU_ASSERT_DOUBLE_EQUAL(json_double_at(j, "k_bpd_nominal") + json_double_at(j, "v_bpd_nominal"),
                           2 * json_double_at(j, "bpd_nominal"), 1e-7);
    CU_ASSERT(json_double_at(j, "bpd_nominal") <= json_double_at(j, "bpd_code") + 1e-7);
    CU_ASSERT(json_double_at(j, "fixed_bytes") > 0);
    json_decref(j);
    json_decref(solved);
    end();
}

static void test_text_and_failures(void)
{
    _cleanup_(freep) char *out = NULL, *failed = NULL;

    begin();
    CU_ASSERT_EQUAL(captured(STDOUT_FILENO,
                             (const char *const[]){EVAL, "--tokens", "100", "--window", "100", "--side", "k",
                                                   "--quartiles", "-q", NULL},
                             &out),
                    COMMAND_OK);
    CU_ASSERT_PTR_NOT_NULL(strstr(out, "only keys are read from codes"));
    CU_ASSERT_PTR_NOT_NULL(strstr(out, "sum of these"));
    CU_ASSERT_PTR_NOT_NULL(strstr(out, "charged"));
    CU_ASSERT_EQUAL(captured(STDERR_FILENO,
                             (const char *const[]){EVAL, "--window", "100", "--layers", "2:4", "-q", NULL},
                             &failed),
                    COMMAND_FAILED);
    CU_ASSERT_PTR_NOT_NULL(strstr(failed, "has layers 0 to 3"));
    end();
}

const struct test_case test_cases[] = {
    TEST(test_parts_of_the_cache), TEST(test_quartiles),         TEST(test_shares_of_distortion),
    TEST(test_what_is_charged),    TEST(test_text_and_failures), TEST_END,
};
const char test_suite[] = "eval_command";
