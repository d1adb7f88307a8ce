/*
 * Every allocation of libkvcobra-alloc's work fails once: statistics, merging, files, solving by each method,
 * parsing. Each call returns -ENOMEM with a sentence, and leaves no block behind, also where no sanitizer
 * looks.
 */
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "alloc/kvcobra-alloc.h"
#include "alloc/quantiser/trellis_fit.h"
#include "alloc/solve/solve.h"
#include "alloc/stats/stats.h"
#include "alloc/stats/stats_internal.h"
#include "alloc/stats/stats_rotate.h"
#include "alloc/table/table.h"
#include "alloc/table/trellis.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "base/splitmix64.h"
#include "tests/fault/fault.h"
#include "tests/unit/alloc/shapes.h"

enum { NTH_MAX = 5000, PART = 41, WINDOW = 150, SAMPLES = 128 }; /* an endless loop is a failure too */

static struct geometry g;
static struct shape_data x;
static float residual[WINDOW];
static struct stats *stats;          /* that each run reads */
static struct solve_options options; /* of run_solve() */
static void *bytes;                  /* a table, or a file of statistics */
static size_t n_bytes;
static char path[64];

static int run_solve(struct errmsg *e);

/* Calls @run with every @step-th allocation failing, beginning with the first, until none fails. */
static void walk_steps(int (*run)(struct errmsg *e), unsigned step)
{
    unsigned nth;

    for (nth = 1; nth < NTH_MAX; nth += step) {
        long before = fault_live_blocks();
        struct errmsg e = {""};
        int r;

        fault_arm(nth);
        r = run(&e);
        if (!fault_fired()) {
            fault_arm(0);
            CU_ASSERT_EQUAL(r, 0);
            CU_ASSERT_EQUAL(fault_live_blocks(), before);
            break;
        }
        fault_arm(0);
        CU_ASSERT_FATAL(r == -ENOMEM || (r == 0 && run == run_solve));
        CU_ASSERT_EQUAL(r < 0, e.text[0] != '\0');
        CU_ASSERT_EQUAL_FATAL(fault_live_blocks(), before);
    }
    CU_ASSERT(nth > 1 && nth < NTH_MAX);
}

static void walk(int (*run)(struct errmsg *e))
{
    walk_steps(run, 1);
}

static int count(struct stats **ret, struct errmsg *e)
{
    _cleanup_(stats_freep) struct stats *s = NULL;
    struct stats_options o;
    int r;

    stats_options_default(&o, &g);
    o.n_samples = SAMPLES;
    o.want_output = true;
    r = stats_new(&o, &s, e);
    for (uint32_t layer = 0; r == 0 && layer < g.n_layers; layer++)
        r = stats_set_output_projection(s, layer, x.wo, x.n_embd, e);
    for (uint32_t layer = 0; r == 0 && layer < g.n_layers; layer++)
        r = stats_add_layer(s, 0, 0, layer, WINDOW, x.q, x.k, x.v, residual, e);
    for (uint8_t i = 1; r == 0 && i <= 3; i++)
        r = stats_add_source(s, &(struct stats_source){.digest = {i}, .tokens = 1}, e);
    if (r == 0)
        *ret = take_ptr(s);
    return r;
}

static void setup(void)
{
    struct errmsg e = {""};

    json_set_alloc_funcs(malloc,
                         free); /* blocks of the JSON library are counted, and fail, like all others */
    g = shape(1, 2, 1, 32, 32);
    shape_data_init(&x, &g, WINDOW);
    shape_data_draw(&x, &g);
    for (size_t i = 0; i < WINDOW; i++)
        residual[i] = 1;
    CU_ASSERT_EQUAL(count(&stats, &e), 0);
    CU_ASSERT_STRING_EQUAL_FATAL(e.text, "");
}

static void teardown(void)
{
    stats = stats_free(stats);
    shape_data_deinit(&x);
}

static int run_count(struct errmsg *e)
{
    struct stats *s = NULL;
    int r = count(&s, e);

    CU_ASSERT_EQUAL(s != NULL, r == 0);
    (void) stats_free(s);
    return r;
}

static int run_rotate(struct errmsg *e)
{
    struct stats *s = NULL;
    int r = stats_rotated(stats, &s, e);

    CU_ASSERT_EQUAL(s != NULL, r == 0);
    CU_ASSERT(!s || s->n_sources == stats->n_sources);
    (void) stats_free(s);
    return r;
}

static void test_counting(void)
{
    setup();
    walk(run_count);
    walk(run_rotate);
    teardown();
}

/* Solving may repeat what failed once: then the table is the same, or it would have another digest. */
static int run_solve(struct errmsg *e)
{
    struct solve_report report;
    void *table = NULL;
    size_t n = 77;
    int r = solve_table(stats, &options, &table, &n, &report, e);

    CU_ASSERT_EQUAL(table != NULL, r == 0);
    CU_ASSERT(r == 0 ? n == n_bytes && memcmp(table, bytes, n) == 0 : n == 77);
    free(table);
    return r;
}

/* Of the default solve, which fits trellises, a part of the allocations: each run takes long. All are walked
 * with scalar levels; test_trellises() walks those of the fit. */
static void test_solving(void)
{
    static const enum method methods[] = {METHOD_BANDS, METHOD_BANDS, METHOD_DP, METHOD_PAPER_KL,
                                          METHOD_PAPER_MSE};
    struct solve_report report;
    struct errmsg e = {""};

    setup();
    for (size_t i = 0; i < sizeof(methods) / sizeof(*methods); i++) {
        solve_options_for(&options, methods[i], 2);
        options.n_threads = 1; /* a failure of the nth call is the same one in every run */
        if (i > 0)
            options.trellis_states = 0;
        CU_ASSERT_EQUAL_FATAL(solve_table(stats, &options, &bytes, &n_bytes, &report, &e), 0);
        walk_steps(run_solve, i > 0 ? 1 : PART);
        free(bytes);
    }
    teardown();
}

static int run_trellis(struct errmsg *e)
{
    float z[2 * TRELLIS_FIT_MIN];
    struct levels l, scaled;
    uint64_t seed = 1;
    double mse;
    int r = trellis_normal(2, TRELLIS_STATE_BITS_MIN, &l, &mse);

    for (size_t i = 0; i < sizeof(z) / sizeof(*z); i++)
        z[i] = (float) (splitmix64_next(&seed) >> 40) * 0x1p-23f - 1;
    if (r == 0)
        r = trellis_fit(z, sizeof(z) / sizeof(*z), 2, &l);
    if (r == 0)
        r = trellis_scale(&l, 2, 1.25, &scaled);
    return r < 0 ? fail(e, r, "out of memory for a trellis") : 0;
}

static void test_trellises(void)
{
    walk(run_trellis);
}

static int run_parse(struct errmsg *e)
{
    struct table *t = NULL;
    int r = table_parse(bytes, n_bytes, &t, e);

    CU_ASSERT_EQUAL(t != NULL, r == 0);
    (void) table_unref(t);
    return r;
}

static void test_parsing(void)
{
    struct solve_report report;
    struct errmsg e = {""};

    setup();
    solve_options_for(&options, METHOD_BANDS, 2);
    CU_ASSERT_EQUAL_FATAL(solve_table(stats, &options, &bytes, &n_bytes, &report, &e), 0);
    walk(run_parse);
    free(bytes);
    teardown();
}

static int run_save(struct errmsg *e)
{
    return stats_save(stats, path, e);
}

static int run_load(struct errmsg *e)
{
    struct stats *s = NULL;
    int r = stats_load(path, &s, e);

    CU_ASSERT_EQUAL(s != NULL, r == 0);
    (void) stats_free(s);
    return r;
}

/* The same file through the public header. */
static int run_api(struct errmsg *e)
{
    kvc_alloc *a = NULL;
    kvc_stats *s = NULL;
    kvc_stats_info info = {.struct_bytes = sizeof(info)};
    int r = kvc_alloc_new(&a);

    if (r < 0) /* without a handle there is no sentence */
        return fail(e, r, "no allocator");

    r = kvc_stats_load(a, path, NULL, &s);
    CU_ASSERT_EQUAL(s != NULL, r == 0);
    if (r == 0)
        r = kvc_stats_get_info(s, &info);
    if (r < 0)
        (void) fail(e, r, "%s", kvc_alloc_error(a));
    (void) kvc_alloc_free(a);
    return r;
}

static void test_files(void)
{
    struct errmsg e = {""};

    setup();
    (void) snprintf(path, sizeof(path), "/tmp/kvcobra-fault-%ld.stats", (long) getpid());
    CU_ASSERT_EQUAL_FATAL(stats_save(stats, path, &e), 0);
    walk(run_save);
    walk(run_load); /* the file is whole, although writing failed many times */
    walk(run_api);
    (void) unlink(path);
    teardown();
}

const char test_suite[] = "alloc_memory";
const struct test_case test_cases[] = {
    TEST(test_counting), TEST(test_solving), TEST(test_trellises),
    TEST(test_parsing),  TEST(test_files),   TEST_END,
};
