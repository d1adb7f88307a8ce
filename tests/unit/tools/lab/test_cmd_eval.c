/* kvcobra eval on a small random model: one side, some layers, quartiles, and charged bits. */
#include "tests/lib/test.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/unit/tools/lab/eval_fixture.h"

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

/* A table of the same options from rotated keys is measured too, without changing the other results. */
static void test_post_rope(void)
{
    _cleanup_(freep) char *out = NULL, *failed = NULL;
    char other[64];
    json_t *j;
    double x;

    begin();
    j = eval("--post-rope", statistics);
    CU_ASSERT_EQUAL(json_double_at(j, "kl"), kl(NULL, NULL));
    x = json_double_at(json_object_get(j, "post_rope"), "kl");
    CU_ASSERT(x > 0 && x != json_double_at(j, "kl"));
    json_decref(j);
    CU_ASSERT_EQUAL(captured(STDOUT_FILENO,
                             (const char *const[]){EVAL, "--tokens", "100", "--window", "100", "--post-rope",
                                                   statistics, "-q", NULL},
                             &out),
                    COMMAND_OK);
    CU_ASSERT_PTR_NOT_NULL(strstr(out, "after RoPE"));
    free(out);
    (void) snprintf(other, sizeof(other), "%s/other", dir);
    CU_ASSERT_EQUAL(captured(STDOUT_FILENO,
                             (const char *const[]){"kvcobra", "calibrate", model, "--text", text, "--tokens",
                                                   "256", "--window", "128", "-q", "-o", other, NULL},
                             &out),
                    COMMAND_OK);
    CU_ASSERT_EQUAL(captured(STDERR_FILENO,
                             (const char *const[]){EVAL, "--window", "100", "--post-rope", other, "-q", NULL},
                             &failed),
                    COMMAND_FAILED);
    CU_ASSERT_PTR_NOT_NULL(strstr(failed, "was solved from other statistics"));
    (void) unlink(other);
    end();
}

/* Row of this name, or a failed check. */
static json_t *row_of(const json_t *j, const char *name)
{
    json_t *rows = json_object_get(j, "rows");

    for (size_t i = 0; i < json_array_size(rows); i++)
        if (strcmp(json_string_value(json_object_get(json_array_get(rows, i), "name")), name) == 0)
            return json_array_get(rows, i);
    CU_FAIL("no such row");
    return NULL;
}

/* Rows equal those of separate runs, sorted by bits; bits are those of the formats; no row beats a best
 * one. */
static void test_comparators(void)
{
    json_t *j, *rows, *alone;
    double lowest = 1e9, last = 0;

    begin();
    alone = eval(NULL, NULL);
    j = captured_json((const char *const[]){EVAL, "--tokens", "128", "--window", "64", "--recent", "0", "-q",
                                            "--json", "--comparator", "q8_0,turboquant-2,q4_0,kivi-2,svdq-2",
                                            "--stats", statistics, NULL});
    rows = json_object_get(j, "rows");
    CU_ASSERT_EQUAL(json_array_size(rows), 6);
    CU_ASSERT_EQUAL(json_double_at(row_of(j, "table"), "kl"), json_double_at(alone, "kl"));
    CU_ASSERT_DOUBLE_EQUAL(json_double_at(row_of(j, "table"), "bpd_charged"),
                           json_double_at(alone, "bpd_nominal"), 1e-7);
    CU_ASSERT_DOUBLE_EQUAL(json_double_at(row_of(j, "table"), "bpd_true"), json_double_at(alone, "bpd_true"),
                           1e-7);
    json_decref(alone);
    for (size_t i = 0; i < json_array_size(rows); i++) {
        json_t *row = json_array_get(rows, i);

        CU_ASSERT(json_double_at(row, "bpd_charged") >= last);
        last = json_double_at(row, "bpd_charged");
        CU_ASSERT_EQUAL(json_is_true(json_object_get(row, "best")), json_double_at(row, "kl") < lowest);
        if (json_double_at(row, "kl") < lowest)
            lowest = json_double_at(row, "kl");
        CU_ASSERT(json_double_at(row, "bpd_true") > 0);
    }

    CU_ASSERT_DOUBLE_EQUAL(json_double_at(row_of(j, "q8_0"), "bpd_charged"), 8.5, 1e-7);
    CU_ASSERT_DOUBLE_EQUAL(json_double_at(row_of(j, "q4_0"), "bpd_charged"), 4.5, 1e-7);
    /* 4 of 64 tokens are exact */
    CU_ASSERT_DOUBLE_EQUAL(json_double_at(row_of(j, "q4_0"), "bpd_true"), (60 * 4.5 + 4 * 16) / 64, 1e-7);
    CU_ASSERT_DOUBLE_EQUAL(json_double_at(row_of(j, "turboquant-2"), "bpd_charged"), 2 + 16 / 32.0, 1e-7);
    /* values: 2 + 32 / 32; keys: 2, and 32 for groups of 28 and 32 tokens */
    CU_ASSERT_DOUBLE_EQUAL(json_double_at(row_of(j, "kivi-2"), "bpd_charged"), (3 + 2 + 2 * 32 / 60.0) / 2,
                           1e-7);
    CU_ASSERT_DOUBLE_EQUAL(json_double_at(row_of(j, "svdq-2"), "bpd_charged"), (2 + 16) / 2.0, 1e-7);
    CU_ASSERT(json_double_at(row_of(j, "q8_0"), "kl") < json_double_at(row_of(j, "q4_0"), "kl"));
    json_decref(j);
    j = captured_json((const char *const[]){EVAL, "--tokens", "64", "--window", "64", "--recent", "0", "-q",
                                            "--json", "--side", "k", "--table", table, "--comparator",
                                            "svdq-2", "--stats", statistics, NULL});
    CU_ASSERT_DOUBLE_EQUAL(json_double_at(row_of(j, "svdq-2"), "bpd_charged"), 2, 1e-7);
    CU_ASSERT_EQUAL(json_array_size(json_object_get(j, "rows")),
                    3); /* the table twice, as on the command line */
    json_decref(j);
    end();
}

/* The lines of the report about exact tokens, and formats that cannot be prepared. */
static void test_comparators_in_text(void)
{
    _cleanup_(freep) char *out = NULL, *failed = NULL, *refused = NULL;
    char bare[64];

    begin();
    CU_ASSERT_EQUAL(captured(STDOUT_FILENO,
                             (const char *const[]){EVAL, "--tokens", "64", "--window", "64", "--recent", "0",
                                                   "-q", "--comparator", "kivi-4", NULL},
                             &out),
                    COMMAND_OK);
    CU_ASSERT_PTR_NOT_NULL(strstr(out, "ranges of the complete group"));
    CU_ASSERT_PTR_NOT_NULL(strstr(out, "kivi-4"));
    free(out);
    CU_ASSERT_EQUAL(captured(STDOUT_FILENO,
                             (const char *const[]){EVAL, "--tokens", "64", "--window", "64", "--recent", "8",
                                                   "-q", "--comparator", "kivi-4", NULL},
                             &out),
                    COMMAND_OK);
    CU_ASSERT_PTR_NOT_NULL(strstr(out, "exact until they are complete"));
    CU_ASSERT_EQUAL(captured(STDERR_FILENO,
                             (const char *const[]){EVAL, "--window", "64", "-q", "--comparator", "kvquant-2",
                                                   "--stats", table, NULL},
                             &failed),
                    COMMAND_FAILED);
    CU_ASSERT_PTR_NOT_NULL(strstr(failed, table));
    (void) snprintf(bare, sizeof(bare), "%s/bare", dir);
    CU_ASSERT_EQUAL(
        captured(STDOUT_FILENO,
                 (const char *const[]){"kvcobra", "calibrate", model, "--text", text, "--tokens", "256",
                                       "--window", "128", "--metric", "mse", "-q", "-o", bare, NULL},
                 &refused),
        COMMAND_OK);
    free(refused);
    CU_ASSERT_EQUAL(captured(STDERR_FILENO,
                             (const char *const[]){EVAL, "--window", "64", "-q", "--comparator", "kqsvd-2",
                                                   "--stats", bare, NULL},
                             &refused),
                    COMMAND_FAILED);
    CU_ASSERT_PTR_NOT_NULL(strstr(refused, "needs statistics with queries"));
    (void) unlink(bare);
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
    TEST(test_parts_of_the_cache),  TEST(test_quartiles),         TEST(test_shares_of_distortion),
    TEST(test_what_is_charged),     TEST(test_post_rope),         TEST(test_comparators),
    TEST(test_comparators_in_text), TEST(test_text_and_failures), TEST_END,
};
const char test_suite[] = "eval_command";
