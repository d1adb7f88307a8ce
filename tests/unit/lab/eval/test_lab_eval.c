/* kvcobra-lab eval on a small random model: other formats beside tables, and tables of keys after RoPE. */
#include "tests/lib/test.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lab/lab.h"
#include "tools/command/command.h"

/* kvcobra has all other commands. */
static int main_of_either(int argc, char **argv)
{
    return strcmp(argv[1], "eval") == 0 ? lab_main(argc, argv) : commands_main(argc, argv);
}

#define CAPTURE_MAIN main_of_either
#include "tests/unit/tools/eval/eval_fixture.h"

/* kvcobra-lab eval with one more option and its value (or NULL). */
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
    free(out);
    CU_ASSERT_EQUAL(captured(STDOUT_FILENO,
                             (const char *const[]){EVAL, "--tokens", "64", "--window", "64", "--recent",
                                                   "0,16", "-q", "--comparator", "kivi-4", NULL},
                             &out),
                    COMMAND_OK);
    CU_ASSERT_PTR_NOT_NULL(strstr(out, "with 0 recent tokens"));
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

const struct test_case test_cases[] = {TEST(test_post_rope), TEST(test_comparators),
                                       TEST(test_comparators_in_text), TEST_END};
const char test_suite[] = "lab_eval";
