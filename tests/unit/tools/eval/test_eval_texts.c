/* kvcobra eval on several texts, with several recent windows, and --budgets. */
#include "tests/lib/test.h"

#include <jansson.h>
#include <math.h>

#include "tests/unit/tools/eval/eval_fixture.h"

static char other[64], more_bits[64];

/* A second text, too short for two windows, and a table of 3 bits. */
static void begin_texts(void)
{
    struct errmsg e = {""};
    char words[50], *out = NULL;

    begin();
    (void) snprintf(other, sizeof(other), "%s/other", dir);
    (void) snprintf(more_bits, sizeof(more_bits), "%s/more", dir);
    for (size_t i = 0; i < sizeof(words); i++)
        words[i] = (char) ('0' + test_rand_below(10));
    CU_ASSERT_EQUAL_FATAL(atomic_file_write(other, words, sizeof(words), &e), 0);
    CU_ASSERT_EQUAL(captured(STDOUT_FILENO,
                             (const char *const[]){"kvcobra", "solve", statistics, "--bpd", "3", "-q", "-o",
                                                   more_bits, NULL},
                             &out),
                    COMMAND_OK);
    free(out);
}

static void end_texts(void)
{
    (void) unlink(other);
    (void) unlink(more_bits);
    end();
}

/* KL of one text alone. */
static double kl_alone(const char *path, const char *recent)
{
    json_t *j = captured_json((const char *const[]){"kvcobra", "eval", model, "--table", table, "--text",
                                                    path, "--tokens", "192", "--window", "64", "-q", "--json",
                                                    "--recent", recent, NULL});
    double x = json_double_at(j, "kl");

    json_decref(j);
    return x;
}

/* Row i, recent window k of a report. */
static const json_t *part_of(const json_t *j, size_t i, size_t k)
{
    return json_array_get(json_object_get(json_array_get(json_object_get(j, "rows"), i), "recents"), k);
}

/* Both texts have the KL that they have alone, with both recent windows; mean, worst and intervals fit. */
static void test_two_texts(void)
{
    static const char *const recents[] = {"0", "16"};
    json_t *j;

    begin_texts();
    j = captured_json((const char *const[]){EVAL, "--text", other, "--tokens", "192", "--window", "64",
                                            "--recent", "0,16", "-q", "--json", NULL});
    CU_ASSERT_EQUAL(json_array_size(json_object_get(j, "rows")), 1);
    for (size_t k = 0; k < 2; k++) {
        const json_t *part = part_of(j, 0, k), *texts = json_object_get(part, "texts"),
                     *first = json_array_get(texts, 0), *second = json_array_get(texts, 1);
        double a = kl_alone(text, recents[k]), b = kl_alone(other, recents[k]);

        CU_ASSERT_EQUAL(json_integer_value(json_object_get(part, "recent")), k == 0 ? 0 : 16);
        CU_ASSERT_EQUAL(json_double_at(first, "kl"), a);
        CU_ASSERT_EQUAL(json_double_at(second, "kl"), b);
        CU_ASSERT_DOUBLE_EQUAL(json_double_at(part, "kl"), (a + b) / 2, 1e-8);
        CU_ASSERT_EQUAL(json_double_at(part, "worst_kl"), a > b ? a : b);
        CU_ASSERT_STRING_EQUAL(json_string_value(json_object_get(part, "worst_text")), a > b ? text : other);
        CU_ASSERT_EQUAL(json_integer_value(json_object_get(first, "windows")), 3);
        CU_ASSERT(json_double_at(first, "kl_low") < a && a < json_double_at(first, "kl_high"));
        CU_ASSERT(json_is_null(json_object_get(second, "kl_low"))); /* a single window */
        CU_ASSERT(json_is_null(json_object_get(part, "kl_low")));
    }
    CU_ASSERT(json_double_at(part_of(j, 0, 1), "kl") < json_double_at(part_of(j, 0, 0), "kl"));
    CU_ASSERT(json_double_at(part_of(j, 0, 1), "bpd_true") > json_double_at(part_of(j, 0, 0), "bpd_true"));
    json_decref(j);
    end_texts();
}

/* One text twice: the mean is its KL, and the mean of two independent draws varies less than one. */
static void test_interval_of_the_mean(void)
{
    const json_t *part, *one;
    json_t *j;

    begin_texts();
    j = captured_json((const char *const[]){EVAL, "--text", text, "--tokens", "640", "--window", "64",
                                            "--recent", "0", "-q", "--json", NULL});
    part = part_of(j, 0, 0);
    one = json_array_get(json_object_get(part, "texts"), 0);
    CU_ASSERT_DOUBLE_EQUAL(json_double_at(part, "kl"), json_double_at(one, "kl"), 1e-9);
    CU_ASSERT(json_double_at(part, "kl_low") > json_double_at(one, "kl_low"));
    CU_ASSERT(json_double_at(part, "kl_high") < json_double_at(one, "kl_high"));
    json_decref(j);
    end_texts();
}

/* Differences to the first table, by window: zero to itself, and certain to one of more bits, though its KL
 * varies more from window to window. */
static void test_differences(void)
{
    const json_t *same, *more;
    json_t *j;

    begin_texts();
    j = captured_json((const char *const[]){EVAL, "--table", table, "--table", more_bits, "--text", text,
                                            "--tokens", "640", "--window", "64", "--recent", "0,16", "-q",
                                            "--json", NULL});
    for (size_t k = 0; k < 2; k++) {
        double first = json_double_at(part_of(j, 0, k), "kl");

        same = part_of(j, 1, k);
        more = part_of(j, 2, k);
        CU_ASSERT_EQUAL(json_double_at(same, "kl_difference"), 0);
        CU_ASSERT_EQUAL(json_double_at(same, "kl_difference_low"), 0);
        CU_ASSERT_EQUAL(json_double_at(same, "kl_difference_high"), 0);
        CU_ASSERT_DOUBLE_EQUAL(json_double_at(more, "kl_difference"), json_double_at(more, "kl") - first,
                               1e-8);
        CU_ASSERT(json_double_at(more, "kl_difference_high") < 0);
        CU_ASSERT(json_double_at(more, "kl_difference_low") < json_double_at(more, "kl_difference"));
    }
    json_decref(j);
    end_texts();
}

/* A table compared with itself and with one of twice the bits. */
static void test_budgets(void)
{
    json_t *j, *same, *more;

    begin_texts();
    j = captured_json((const char *const[]){EVAL, "--table", table, "--table", more_bits, "--tokens", "128",
                                            "--window", "64", "--recent", "0", "--budgets", "-q", "--json",
                                            NULL});
    same = json_array_get(json_object_get(j, "budgets"), 1);
    more = json_array_get(json_object_get(j, "budgets"), 2);
    CU_ASSERT_EQUAL(json_array_size(json_object_get(j, "budgets")), 3);
    CU_ASSERT_DOUBLE_EQUAL(json_double_at(same, "kl_ratio"), 1, 1e-9);
    CU_ASSERT_EQUAL(json_double_at(same, "k_same_width"), 1);
    CU_ASSERT_EQUAL(json_double_at(same, "v_rank_difference"), 0);
    CU_ASSERT(json_is_null(json_object_get(same, "k_correlation")) ||
              fabs(json_double_at(same, "k_correlation") - 1) < 1e-9);
    CU_ASSERT(json_double_at(more, "kl_ratio") > 0 && json_double_at(more, "kl_ratio") < 0.9);
    json_decref(j);
    end_texts();
}

static void test_in_text(void)
{
    _cleanup_(freep) char *out = NULL;

    begin_texts();
    CU_ASSERT_EQUAL(
        captured(STDOUT_FILENO,
                 (const char *const[]){EVAL, "--table", more_bits, "--text", other, "--tokens", "128",
                                       "--window", "64", "--recent", "0,16", "--budgets", "-q", NULL},
                 &out),
        COMMAND_OK);
    CU_ASSERT_PTR_NOT_NULL(strstr(out, "the newest 0 or 16\n"));
    CU_ASSERT_PTR_NOT_NULL(strstr(out, "KL, 16 recent"));
    CU_ASSERT_PTR_NOT_NULL(strstr(out, "mean, 16 recent"));
    CU_ASSERT_PTR_NOT_NULL(strstr(out, "to first"));
    end_texts();
}

/* A second text of @bytes: the sentence about it, or NULL if it was evaluated. */
static char *sentence_about(const char *bytes, size_t n)
{
    char *out = NULL;
    struct errmsg e = {""};

    CU_ASSERT_EQUAL_FATAL(atomic_file_write(other, bytes, n, &e), 0);
    if (captured(STDERR_FILENO, (const char *const[]){EVAL, "--text", other, "--window", "64", "-q", NULL},
                 &out) == COMMAND_OK) {
        free(out);
        return NULL;
    }
    CU_ASSERT_PTR_NOT_NULL(strstr(out, other));
    return out;
}

/* Sentences name the text and what is wrong with it; one token that repeats is a text like others. */
static void test_bad_texts(void)
{
    _cleanup_(freep) char *one = NULL, *latin = NULL, *empty = NULL;
    char same[600];

    begin_texts();
    memset(same, 'a', sizeof(same));
    one = sentence_about("a", 1);
    latin = sentence_about("caf\xe9 au lait", 12);
    empty = sentence_about("", 0);
    CU_ASSERT(one && strstr(one, "a single token"));
    CU_ASSERT(latin && strstr(latin, "not UTF-8"));
    CU_ASSERT(empty && strstr(empty, "is empty"));
    CU_ASSERT_PTR_NULL(sentence_about(same, sizeof(same)));
    end_texts();
}

const struct test_case test_cases[] = {
    TEST(test_two_texts),
    TEST(test_interval_of_the_mean),
    TEST(test_differences),
    TEST(test_budgets),
    TEST(test_in_text),
    TEST(test_bad_texts),
    TEST_END,
};
const char test_suite[] = "eval_texts";
