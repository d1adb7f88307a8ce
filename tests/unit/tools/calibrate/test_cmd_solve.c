/* kvcobra solve through commands_main(): methods, the paper's options, sweeps, keys alone, and errors. */
#include "tests/lib/test.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "alloc/solve/solve.h"
#include "alloc/stats/stats.h"
#include "alloc/table/table.h"
#include "base/cleanup.h"
#include "base/digest.h"
#include "base/errmsg.h"
#include "tests/unit/alloc/shapes.h"
#include "tests/unit/tools/capture.h"

static char dir[] = "/tmp/kvc-solve-XXXXXX";
static char statistics[64], output[64], splits[64];

/* Statistics of a random model of 1 layer, 2 KV heads, d = 32, in a temporary directory. */
static void begin(void)
{
    struct geometry g = shape(1, 4, 2, 32, 32);
    struct stats_options o;
    struct stats *s = NULL;
    struct shape_data x;
    struct errmsg e = {""};

    (void) memcpy(dir + sizeof(dir) - 7, "XXXXXX", 6);
    CU_ASSERT_PTR_NOT_NULL_FATAL(mkdtemp(dir));
    (void) snprintf(statistics, sizeof(statistics), "%s/stats", dir);
    (void) snprintf(output, sizeof(output), "%s/table", dir);
    (void) snprintf(splits, sizeof(splits), "%s/splits", dir);
    stats_options_default(&o, &g);
    o.n_samples = 400;
    CU_ASSERT_EQUAL_FATAL(stats_new(&o, &s, &e), 0);
    shape_data_init(&x, &g, 200);
    shape_data_draw(&x, &g);
    CU_ASSERT_EQUAL(stats_set_output_projection(s, 0, x.wo, x.n_embd, &e), 0);
    for (uint64_t document = 0; document < 2; document++) {
        shape_data_draw(&x, &g);
        CU_ASSERT_EQUAL(stats_add_layer(s, document, 0, 0, 200, x.q, x.k, x.v, NULL, &e), 0);
    }

    CU_ASSERT_EQUAL_FATAL(stats_save(s, statistics, &e), 0);
    shape_data_deinit(&x);
    (void) stats_free(s);
}

static void end(void)
{
    static const char *const names[] = {"splits/k1-v3.table",
                                        "splits/k2-v2.table",
                                        "splits/k3-v1.table",
                                        "splits/free.table",
                                        "splits",
                                        "stats",
                                        "table"};
    char path[128];

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        (void) snprintf(path, sizeof(path), "%s/%s", dir, names[i]);
        (void) remove(path);
    }

    CU_ASSERT_EQUAL(rmdir(dir), 0); /* no other file was left */
}

static struct table *load(const char *path)
{
    struct table *t = NULL;
    struct errmsg e = {""};

    CU_ASSERT_EQUAL_FATAL(table_load(path, &t, &e), 0);
    return t;
}

static void test_dp(void)
{
    struct table *t;
    json_t *j;

    begin();
    j = captured_json((const char *const[]){"kvcobra", "solve", statistics, "--method", "dp", "--bpd", "2",
                                            "--rank-step", "8", "--b-range", "3:5", "--b-min-budget", "16",
                                            "-q", "--json", "-o", output, NULL});
    CU_ASSERT_STRING_EQUAL(json_string_value(json_object_get(j, "method")), "dp");
    CU_ASSERT(json_double_at(j, "bpd_nominal") <= 2);
    t = load(output);
    CU_ASSERT_PTR_NOT_NULL(strstr(t->provenance, "\"b_min\":3"));
    CU_ASSERT_PTR_NOT_NULL(strstr(t->provenance, "\"b_min_budget\":16.0"));
    for (uint32_t i = 0; i < head_side_count(&t->geometry); i++)
        CU_ASSERT(t->codecs[i].r == 0 || (t->codecs[i].bits[0] >= 3 && t->codecs[i].bits[0] <= 5));
    (void) table_unref(t);
    json_decref(j);
    end();
}

/* Keys at one bit; values at 8 bits for every direction, the maximum of a table. */
static void test_k_only(void)
{
    json_t *j;

    begin();
    j = captured_json((const char *const[]){"kvcobra", "solve", statistics, "--k-only", "--bpd", "1",
                                            "--no-v-from-k", "-q", "--json", "-o", output, NULL});
    CU_ASSERT(json_double_at(j, "k_bpd") <= 1);
    CU_ASSERT_DOUBLE_EQUAL(json_double_at(j, "v_bpd"), 8, 1e-12);
    json_decref(j);
    end();
}

/* The table does not depend on the threads; the steps take part of the time. */
static void test_threads_and_timing(void)
{
    static const char *const threads[] = {"1", "3"};
    char digest[2][DIGEST_HEX_BYTES] = {""};

    begin();
    for (int i = 0; i < 2; i++) {
        json_t *j =
            captured_json((const char *const[]){"kvcobra", "solve", statistics, "--bpd", "2", "--threads",
                                                threads[i], "--timing", "-q", "--json", "-o", output, NULL});
        json_t *steps = json_object_get(j, "steps"), *step;
        double seconds = 0;
        size_t k;

        (void) snprintf(digest[i], sizeof(digest[i]), "%s", json_string_value(json_object_get(j, "digest")));
        CU_ASSERT(json_array_size(steps) >= 5);
        json_array_foreach(steps, k, step)
        {
            CU_ASSERT_PTR_NOT_NULL(json_string_value(json_object_get(step, "step")));
            seconds += json_double_at(step, "seconds");
        }
        CU_ASSERT(seconds > 0 && seconds <= json_double_at(j, "seconds") * 1.001);
        CU_ASSERT(json_double_at(j, "peak_bytes") > 1 << 20);
        CU_ASSERT(json_double_at(j, "cpu_seconds") > 0);
        json_decref(j);
    }
    CU_ASSERT_STRING_EQUAL(digest[0], digest[1]);
    end();
}

/* Equal budgets cost more than the table, which is the same as without the comparison. */
static void test_equal(void)
{
    struct table *t;
    uint8_t digest[DIGEST_BYTES];
    json_t *j;

    begin();
    j = captured_json((const char *const[]){"kvcobra", "solve", statistics, "--bpd", "2", "-q", "--json",
                                            "-o", output, NULL});
    CU_ASSERT(json_is_null(json_object_get(j, "equal_distortion")));
    json_decref(j);
    t = load(output);
    memcpy(digest, t->digest, sizeof(digest));
    (void) table_unref(t);

    j = captured_json((const char *const[]){"kvcobra", "solve", statistics, "--bpd", "2", "--equal", "-q",
                                            "--json", "-o", output, NULL});
    CU_ASSERT(json_double_at(j, "equal_distortion") > json_double_at(j, "distortion"));
    json_decref(j);
    t = load(output);
    CU_ASSERT_EQUAL(memcmp(digest, t->digest, sizeof(digest)), 0);
    (void) table_unref(t);

    /* separate budgets are compared with their mean for both sides */
    j = captured_json((const char *const[]){"kvcobra", "solve", statistics, "--k-bpd", "1", "--v-bpd", "3",
                                            "--equal", "-q", "--json", "-o", output, NULL});
    CU_ASSERT(json_double_at(j, "equal_distortion") > 0);
    json_decref(j);
    end();
}

/* The options of prediction and decoding are applied, and are in the table. */
static void test_predict_and_decoder(void)
{
    static const char *const predict[] = {"none", "head", "layer"}, *const decoder[] = {"inverse",
                                                                                        "least-squares"};

    begin();
    for (int i = 0; i < 6; i++) {
        json_t *j = captured_json((const char *const[]){"kvcobra", "solve", statistics, "--bpd", "2",
                                                        "--predict", predict[i / 2], "--decoder",
                                                        decoder[i % 2], "-q", "--json", "-o", output, NULL});
        struct table *t = load(output);
        struct solve_options o;
        uint8_t digest[DIGEST_BYTES];
        const struct codec *v = table_codec(t, 0, 0, SIDE_V);
        struct errmsg e = {""};

        CU_ASSERT_EQUAL(t->v_from, (enum prediction)(i / 2));
        CU_ASSERT_EQUAL_FATAL(solve_options_read(t->provenance, &o, digest, &e), 0);
        CU_ASSERT_EQUAL(o.v_from, (enum prediction)(i / 2));
        CU_ASSERT_EQUAL(o.decoder, (enum decoder)(i % 2));
        /* the mean includes the average quantisation error, which is not zero in any of d directions */
        CU_ASSERT_EQUAL(memcmp(v->mean, v->enc_mean, t->geometry.d * sizeof(float)) != 0, i % 2 == 1);
        (void) table_unref(t);
        json_decref(j);
    }

    end();
}

/* T = 4 in steps of 1 for the paper: 1 + 3, 2 + 2, 3 + 1; the distortion of keys falls, that of values rises.
 * Tables are written. */
static void test_sweep(void)
{
    static const char *const names[] = {"k1-v3", "k2-v2", "k3-v1"};
    json_t *j, *all;
    char path[128];

    begin();
    j = captured_json((const char *const[]){"kvcobra", "solve", statistics, "--method", "paper-mse",
                                            "--total-bpd", "4", "--sweep", "-q", "--json", "-o", splits,
                                            NULL});
    all = json_object_get(j, "splits");
    CU_ASSERT_EQUAL_FATAL(json_array_size(all), 3);
    for (size_t i = 0; i < 3; i++) {
        const json_t *x = json_array_get(all, i);
        struct table *t;

        CU_ASSERT_STRING_EQUAL(json_string_value(json_object_get(x, "split")), names[i]);
        CU_ASSERT_PTR_NULL(
            json_object_get(x, "distortion")); /* squared errors of K and V have different scales */
        if (i > 0) {
            CU_ASSERT(json_double_at(x, "distortion_k") <
                      json_double_at(json_array_get(all, i - 1), "distortion_k"));
            CU_ASSERT(json_double_at(x, "distortion_v") >
                      json_double_at(json_array_get(all, i - 1), "distortion_v"));
        }

        (void) snprintf(path, sizeof(path), "%s/%s.table", splits, names[i]);
        t = load(path);
        CU_ASSERT_DOUBLE_EQUAL(t->bpd_code, json_double_at(x, "bpd_code"), 1e-7); /* JSON has 9 digits */
        (void) table_unref(t);
    }

    json_decref(j);
    end();
}

/* Bands also have a free split. Without a directory no files are written. A coarser step; sides of at most 8
 * bits. */
static void test_sweep_of_bands(void)
{
    _cleanup_(freep) char *text = NULL;
    json_t *j, *all;

    begin();
    j = captured_json((const char *const[]){"kvcobra", "solve", statistics, "--total-bpd", "11", "--step",
                                            "2.5", "--sweep", "-q", "--json", NULL});
    all = json_object_get(j, "splits");
    CU_ASSERT_EQUAL_FATAL(json_array_size(all),
                          3); /* free, 5 + 6, 7.5 + 3.5; 2.5 + 8.5 and 10 + 1 exceed 8 bits */
    CU_ASSERT_STRING_EQUAL(json_string_value(json_object_get(json_array_get(all, 0), "split")), "free");
    CU_ASSERT_STRING_EQUAL(json_string_value(json_object_get(json_array_get(all, 2), "split")), "k7.5-v3.5");
    CU_ASSERT(json_double_at(json_array_get(all, 0), "bpd_code") <= 5.5);
    json_decref(j);
    CU_ASSERT_EQUAL(captured(STDOUT_FILENO,
                             (const char *const[]){"kvcobra", "solve", statistics, "--total-bpd", "4",
                                                   "--sweep", "--step", "2", "-q", NULL},
                             &text),
                    COMMAND_OK);
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "k2-v2"));
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "distortion V"));
    end();
}

/* Statistics exchanged with themselves: all rows are printed, in both forms, and no file is written. */
static void test_swap_report(void)
{
    _cleanup_(freep) char *text = NULL;
    json_t *j, *all;

    begin();
    j = captured_json((const char *const[]){"kvcobra", "solve", statistics, "--bpd", "2", "--swap-report",
                                            statistics, "-q", "--json", NULL});
    CU_ASSERT_STRING_EQUAL(json_string_value(json_object_get(j, "other")), statistics);
    all = json_object_get(j, "rows");
    CU_ASSERT_EQUAL_FATAL(json_array_size(all), 13);
    CU_ASSERT_STRING_EQUAL(json_string_value(json_object_get(json_array_get(all, 0), "taken")), "nothing");
    for (size_t i = 0; i < 13; i++) {
        const json_t *row = json_array_get(all, i);

        CU_ASSERT(json_double_at(row, "distortion_k") > 0 && json_double_at(row, "distortion_v") > 0);
        CU_ASSERT_DOUBLE_EQUAL(json_double_at(row, "left"),
                               (json_double_at(row, "distortion_k") + json_double_at(row, "distortion_v")) /
                                   (json_double_at(json_array_get(all, 0), "distortion_k") +
                                    json_double_at(json_array_get(all, 0), "distortion_v")),
                               1e-6);
    }
    json_decref(j);
    CU_ASSERT_EQUAL(captured(STDOUT_FILENO,
                             (const char *const[]){"kvcobra", "solve", statistics, "--bpd", "2",
                                                   "--no-v-from-k", "--swap-report", statistics, "-q", NULL},
                             &text),
                    COMMAND_OK);
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "covariances of keys"));
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "1.000"));
    CU_ASSERT_PTR_NULL(strstr(text, "prediction of values"));
    end();
}

/* Two sources and one token that repeats: it counts less, and a sentence says which source that is. */
static void test_odd_source(void)
{
    static const char *const command[] = {"kvcobra", "solve", statistics, "--bpd", "2", "-o", output, NULL};
    struct geometry g = shape(1, 4, 2, 32, 32);
    _cleanup_(stats_freep) struct stats *s = NULL;
    _cleanup_(freep) char *text = NULL;
    const json_t *reduced;
    struct stats_options o;
    struct shape_data x;
    struct errmsg e = {""};
    json_t *j;

    begin();
    stats_options_default(&o, &g);
    o.n_samples = 1000;
    o.want_attention = o.want_output = false;
    CU_ASSERT_EQUAL_FATAL(stats_new(&o, &s, &e), 0);
    shape_data_init(&x, &g, 200);
    for (uint64_t document = 0; document < 3; document++) {
        const uint8_t digest[DIGEST_BYTES] = {(uint8_t) (1 + document)};

        if (document < 2)
            shape_data_draw(&x, &g);
        for (size_t i = 0; document == 2 && i < 200 * 64; i++)
            x.k[i] = x.v[i] = 0.25f;
        CU_ASSERT_EQUAL(stats_begin_source(s, SOURCE_TEXT, digest, &e), 0);
        CU_ASSERT_EQUAL(stats_add_layer(s, document, 0, 0, 200, NULL, x.k, x.v, NULL, &e), 0);
    }
    shape_data_deinit(&x);
    CU_ASSERT_EQUAL_FATAL(stats_save(s, statistics, &e), 0);
    CU_ASSERT_EQUAL(captured(STDERR_FILENO, command, &text), COMMAND_OK);
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "source 3 varies ten times less"));
    CU_ASSERT_PTR_NULL(strstr(text, "source 2 varies"));
    j = captured_json((const char *const[]){"kvcobra", "solve", statistics, "--bpd", "2", "-q", "--json",
                                            "-o", output, NULL});
    reduced = json_object_get(j, "reduced_sources");
    CU_ASSERT_EQUAL(json_array_size(reduced), 1);
    CU_ASSERT_EQUAL(json_integer_value(json_array_get(reduced, 0)), 3);
    json_decref(j);
    j = captured_json((const char *const[]){"kvcobra", "solve", statistics, "--bpd", "2", "--own-sources",
                                            "-q", "--json", "-o", output, NULL});
    CU_ASSERT_EQUAL(json_array_size(json_object_get(j, "reduced_sources")), 0);
    json_decref(j);
    end();
}

/* --total-bpd T is --bpd T/2. */
static void test_total(void)
{
    uint8_t digest[DIGEST_BYTES];
    struct table *t;
    json_t *j;

    begin();
    j = captured_json((const char *const[]){"kvcobra", "solve", statistics, "--total-bpd", "5", "-q",
                                            "--json", "-o", output, NULL});
    json_decref(j);
    t = load(output);
    memcpy(digest, t->digest, sizeof(digest));
    (void) table_unref(t);
    j = captured_json((const char *const[]){"kvcobra", "solve", statistics, "--bpd", "2.5", "-q", "--json",
                                            "-o", output, NULL});
    json_decref(j);
    t = load(output);
    CU_ASSERT_EQUAL(memcmp(digest, t->digest, sizeof(digest)), 0);
    (void) table_unref(t);
    end();
}

static void check_temper(const char *metric, const char *power, const char *want_metric,
                         const char *want_power)
{
    const char *args[16] = {"kvcobra", "solve", statistics, "--bpd", "2", "-q", "--json", "-o", output};
    size_t n = 9;
    struct table *t;
    json_t *j;

    if (metric) {
        args[n++] = "--metric";
        args[n++] = metric;
    }

    if (power) {
        args[n++] = "--temper";
        args[n++] = power;
    }

    j = captured_json(args);
    CU_ASSERT_STRING_EQUAL(json_string_value(json_object_get(j, "metric")), want_metric);
    t = load(output);
    CU_ASSERT_PTR_NOT_NULL(strstr(t->provenance, want_power));
    (void) table_unref(t);
    json_decref(j);
}

/* Tables use gradients by default if the statistics have them; --temper sets their power. */
static void test_fisher(void)
{
    float *gradient = calloc(200 * 64, sizeof(*gradient));
    struct stats *s = NULL;
    struct errmsg e = {""};

    begin();
    check_temper(NULL, NULL, "attention", "\"temper\":1.0");
    CU_ASSERT_EQUAL_FATAL(stats_load(statistics, &s, &e), 0);
    for (int side = SIDE_K; side <= SIDE_V; side++) {
        for (size_t i = 0; i < 200 * 64; i++)
            gradient[i] = (float) test_rand_normal();
        CU_ASSERT_EQUAL(stats_add_fisher(s, 0, (enum side) side, 200, gradient, &e), 0);
    }

    CU_ASSERT_EQUAL(stats_save(s, statistics, &e), 0);
    check_temper(NULL, NULL, "fisher", "\"temper\":0.75");
    check_temper(NULL, "0.5", "fisher", "\"temper\":0.5");
    check_temper("attention", "0.9", "attention", "\"temper\":0.9");
    (void) stats_free(s);
    free(gradient);
    end();
}

static void test_failures(void)
{
    _cleanup_(freep) char *text = NULL, *split = NULL, *where = NULL, *other = NULL;

    begin();
    CU_ASSERT_EQUAL(captured(STDERR_FILENO,
                             (const char *const[]){"kvcobra", "solve", statistics, "--bpd", "2",
                                                   "--swap-report", output, "-q", NULL},
                             &other),
                    COMMAND_FAILED);
    CU_ASSERT_PTR_NOT_NULL(strstr(other, output)); /* which does not exist */
    CU_ASSERT_EQUAL(captured(STDERR_FILENO,
                             (const char *const[]){"kvcobra", "solve", statistics, "--method", "dp", "--bpd",
                                                   "0.1", "-q", "-o", output, NULL},
                             &text),
                    COMMAND_FAILED);
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "the smallest possible budget is 0.2500"));
    CU_ASSERT_EQUAL(
        captured(STDERR_FILENO,
                 (const char *const[]){"kvcobra", "solve", statistics, "--method", "dp", "--total-bpd", "1",
                                       "--step", "0.1", "--sweep", "-q", NULL},
                 &split),
        COMMAND_FAILED);
    CU_ASSERT_PTR_NOT_NULL(strstr(split, "split k0.1-v0.9: "));
    CU_ASSERT_EQUAL(captured(STDERR_FILENO,
                             (const char *const[]){"kvcobra", "solve", statistics, "--total-bpd", "4",
                                                   "--sweep", "-q", "-o", statistics, NULL},
                             &where),
                    COMMAND_FAILED); /* a file in place of the directory */
    CU_ASSERT_PTR_NOT_NULL(strstr(where, statistics));
    end();
}

const struct test_case test_cases[] = {
    TEST(test_dp),
    TEST(test_k_only),
    TEST(test_threads_and_timing),
    TEST(test_equal),
    TEST(test_predict_and_decoder),
    TEST(test_sweep),
    TEST(test_sweep_of_bands),
    TEST(test_total),
    TEST(test_swap_report),
    TEST(test_odd_source),
    TEST(test_fisher),
    TEST(test_failures),
    TEST_END,
};
const char test_suite[] = "solve_command";
