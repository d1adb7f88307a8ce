/* Solving: budgets, prediction, levels, degenerate heads, the paper's methods,
 * on statistics of known structure. */
#include <cblas.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "alloc/solve/depth.h"
#include "alloc/solve/solve.h"
#include "alloc/stats/stats_internal.h"
#include "alloc/table/table.h"
#include "tests/unit/alloc/shapes.h"

/* Distributions of synthetic vectors. */
enum kind {
    KIND_NORMAL, /* K and V independent, falling spectra */
    KIND_LINKED, /* V a linear map of K plus noise of a tenth of its deviation */
    KIND_MIXED, /* half of the tokens seven times as long as the others: far from normal in every direction */
};

static void draw_layer(struct shape_data *x, const struct geometry *g, enum kind kind)
{
    size_t d = g->d, width = g->n_kv_heads * d;

    shape_data_draw(x, g);
    for (size_t t = 0; kind == KIND_LINKED && t < x->n; t++)
        for (size_t i = 0; i < width; i++) /* V_i = K_i - K_{i+1 mod d} + noise */
            x->v[t * width + i] = x->k[t * width + i] - x->k[t * width + i / d * d + (i + 1) % d] +
                                  0.1f * (float) test_rand_normal() * x->k[i];
    for (size_t t = 0; kind == KIND_MIXED && t < x->n; t++) {
        float length = test_rand() >> 63 ? 1.75f : 0.25f;

        for (size_t i = t * width; i < (t + 1) * width; i++) {
            x->k[i] = length * (x->k[i] - 0.3f); /* without the offset */
            x->v[i] = length * (x->v[i] + 0.2f);
        }
    }
}

/* Overwrites columns of one head: constant, or confined to @rank coordinates. */
static void flatten(float *x, size_t n, size_t width, size_t first, size_t d, size_t rank)
{
    for (size_t t = 0; t < n; t++)
        for (size_t i = rank; i < d; i++)
            x[t * width + first + i] = 0.5f;
}

static struct stats *synthetic(const struct geometry *g, size_t n_tokens, enum kind kind, bool flat)
{
    struct stats_options o;
    struct stats *s = NULL;
    struct shape_data x;
    struct errmsg e = {""};
    size_t window = 200, width = (size_t) g->n_kv_heads * g->d;

    stats_options_default(&o, g);
    o.n_samples = (uint32_t) n_tokens;
    o.n_sink = 0;
    (void) snprintf(o.model_name, sizeof(o.model_name), "synthetic");
    CU_ASSERT_EQUAL_FATAL(stats_new(&o, &s, &e), 0);
    shape_data_init(&x, g, window);
    draw_layer(&x, g, kind);
    for (uint32_t l = 0; l < g->n_layers; l++)
        CU_ASSERT_EQUAL(stats_set_output_projection(s, l, x.wo, x.n_embd, &e), 0);
    for (uint64_t doc = 0; doc < n_tokens / window; doc++)
        for (uint32_t l = 0; l < g->n_layers; l++) {
            draw_layer(&x, g, kind);
            if (flat && l == 0) {
                flatten(x.k, window, width, 0, g->d, 0);    /* layer 0 head 0: K constant */
                flatten(x.v, window, width, g->d, g->d, 0); /* layer 0 head 1: V constant */
                flatten(x.k, window, width, g->d, g->d, 5); /* layer 0 head 1: K of rank 5 */
            }
            CU_ASSERT_EQUAL(stats_add_layer(s, doc, 0, l, window, x.q, x.k, x.v, NULL, &e), 0);
        }
    CU_ASSERT_STRING_EQUAL(e.text, "");
    shape_data_deinit(&x);
    return s;
}

struct solved {
    struct table *table;
    void *bytes;
    size_t n_bytes;
    struct solve_report report;
};

static void solved_deinit(struct solved *s)
{
    (void) table_unref(s->table);
    free(s->bytes);
}

static struct solved solve(const struct stats *s, const struct solve_options *o)
{
    struct solved ret = {0};
    struct errmsg e = {""};

    CU_ASSERT_EQUAL(solve_table(s, o, &ret.bytes, &ret.n_bytes, &ret.report, &e), 0);
    CU_ASSERT_STRING_EQUAL(e.text, "");
    assert(ret.bytes);
    CU_ASSERT_EQUAL_FATAL(table_parse(ret.bytes, ret.n_bytes, &ret.table, &e), 0);
    return ret;
}

/* The table stays within the budget; the remainder is below the 8 bits of the cheapest step. */
static void test_budget(void)
{
    struct geometry g = shape(2, 4, 2, 32, 32);
    struct stats *s = synthetic(&g, 1000, KIND_NORMAL, false);
    double numbers = head_side_count(&g) * g.d, bpds[] = {0.4, 1, 2, 2.37, 3, 5}, last = INFINITY;

    for (size_t i = 0; i < 6; i++) {
        struct solve_options o;
        struct solved t;

        solve_options_default(&o, bpds[i]);
        t = solve(s, &o);
        CU_ASSERT(t.report.bpd_code <= bpds[i] + 1e-9);
        CU_ASSERT(t.report.bpd_code > bpds[i] - 8 / numbers - 1e-9);
        CU_ASSERT_DOUBLE_EQUAL(t.report.bpd_code, (t.report.k_bpd + t.report.v_bpd) / 2, 1e-9);
        CU_ASSERT_DOUBLE_EQUAL(t.report.bpd_code, t.table->bpd_code, 1e-12);
        CU_ASSERT(t.report.distortion < last);
        last = t.report.distortion;
        solved_deinit(&t);
    }
    (void) stats_free(s);
}

static void test_budgets_apart(void)
{
    struct geometry g = shape(2, 4, 2, 32, 32);
    struct stats *s = synthetic(&g, 600, KIND_NORMAL, false);
    struct solve_options o;
    struct solved t;

    solve_options_default(&o, 0);
    o.k_bpd = 1.5;
    o.v_bpd = 3;
    t = solve(s, &o);
    CU_ASSERT(t.report.k_bpd <= 1.5 && t.report.k_bpd > 1.5 - 8.0 / 128);
    CU_ASSERT(t.report.v_bpd <= 3 && t.report.v_bpd > 3 - 8.0 / 128);
    solved_deinit(&t);
    (void) stats_free(s);
}

/*
 * With N(0,1) levels, no prediction and the encoder's inverse, curves and report use the same tokens. Their
 * distortions differ by the ridge (part of the estimate only: 0.1 % of the mean eigenvalue of M, below 2 % of
 * the distortion here), binary32 and the roundings of the table.
 */
static void test_estimate(void)
{
    struct geometry g = shape(2, 4, 2, 32, 32);
    struct stats *s = synthetic(&g, 1000, KIND_NORMAL, false);

    for (int metric = METRIC_MSE; metric <= METRIC_ATTENTION; metric++) {
        struct solve_options o;
        struct solved t;

        solve_options_default(&o, 2);
        solve_options_least_squares(&o);
        o.metric = (enum metric) metric;
        o.fit_levels = false;
        o.v_from = PREDICT_NONE;
        o.decoder = DECODER_INVERSE;
        t = solve(s, &o);
        CU_ASSERT(t.report.distortion <= t.report.distortion_estimated * 1.001);
        CU_ASSERT(t.report.distortion >= t.report.distortion_estimated * 0.98);
        solved_deinit(&t);
    }
    (void) stats_free(s);
}

/* If V is a linear map of K, the K codes of the head predict most of V. If V is independent of K,
 * prediction does not raise the distortion. */
static void test_v_from_k(void)
{
    struct geometry g = shape(2, 4, 2, 32, 32);

    for (int linked = 0; linked < 2; linked++) {
        struct stats *s = synthetic(&g, 2000, linked ? KIND_LINKED : KIND_NORMAL, false);
        struct solve_options o;
        struct solved with, without;

        solve_options_default(&o, 0);
        o.k_bpd = 4;
        o.v_bpd = 2;
        with = solve(s, &o);
        o.v_from = PREDICT_NONE;
        without = solve(s, &o);
        CU_ASSERT_EQUAL(with.table->v_from, PREDICT_HEAD);
        CU_ASSERT_EQUAL(without.table->v_from, PREDICT_NONE);
        CU_ASSERT_DOUBLE_EQUAL(with.report.distortion_k, without.report.distortion_k,
                               1e-3 * without.report.distortion_k);
        if (linked) {
            CU_ASSERT(with.report.distortion_v < 0.3 * without.report.distortion_v);
        } else {
            CU_ASSERT_DOUBLE_EQUAL(with.report.distortion_v, without.report.distortion_v,
                                   0.1 * without.report.distortion_v);
        }
        solved_deinit(&with);
        solved_deinit(&without);
        (void) stats_free(s);
    }
}

/* Fitted levels beat those of N(0,1) where the coordinates are far from normal. */
static void test_fitted_levels(void)
{
    struct geometry g = shape(1, 2, 2, 32, 32);
    struct stats *s = synthetic(&g, 4096, KIND_MIXED, false);
    struct solve_options o;
    struct solved fitted, normal;

    solve_options_default(&o, 3);
    solve_options_least_squares(&o);
    o.metric = METRIC_MSE;
    o.v_from = PREDICT_NONE;
    fitted = solve(s, &o);
    o.fit_levels = false;
    normal = solve(s, &o);
    CU_ASSERT(fitted.report.distortion < 0.95 * normal.report.distortion);
    solved_deinit(&fitted);
    solved_deinit(&normal);
    (void) stats_free(s);
}

/* Constant and singular heads get rank 0 or a small rank, finite matrices and no wasted bits. */
static void test_degenerate_heads(void)
{
    struct geometry g = shape(2, 4, 2, 32, 32);
    struct stats *s = synthetic(&g, 600, KIND_NORMAL, true);
    struct solve_options o;
    struct solved t;

    solve_options_default(&o, 3);
    t = solve(s, &o);
    CU_ASSERT_EQUAL(table_codec(t.table, 0, 0, SIDE_K)->r, 0);
    CU_ASSERT_EQUAL(table_codec(t.table, 0, 1, SIDE_V)->r, 0);
    CU_ASSERT_DOUBLE_EQUAL((double) table_codec(t.table, 0, 0, SIDE_K)->mean[7], 0.5, 1e-6);
    /* 5 coordinates: one half-tile and its neighbour */
    CU_ASSERT(table_codec(t.table, 0, 1, SIDE_K)->r <= 16);
    CU_ASSERT(isfinite(t.report.distortion));
    CU_ASSERT(t.report.bpd_code <= 3);
    solved_deinit(&t);
    (void) stats_free(s);
}

static void test_shapes(void)
{
    struct geometry shapes[] = {shape(1, 2, 1, 80, 80), shape(1, 2, 2, 36, 16), shape(1, 3, 1, 128, 0)};

    for (size_t i = 0; i < 3; i++) {
        struct stats *s = synthetic(&shapes[i], 600, KIND_LINKED, false);
        struct solve_options o;
        struct solved t;

        for (int method = METHOD_BANDS; method <= METHOD_PAPER_KL; method++) {
            solve_options_for(&o, (enum method) method, 2);
            t = solve(s, &o);
            CU_ASSERT(t.report.bpd_nominal <= 2 + 1e-9);
            CU_ASSERT(t.report.bpd_nominal <= t.report.bpd_code + 1e-12);
            CU_ASSERT(t.report.distortion > 0);
            solved_deinit(&t);
        }
        (void) stats_free(s);
    }
}

/* The same statistics and options give the same bytes. Another seed gives
 * another table, which is equally good. */
static void test_deterministic(void)
{
    struct geometry g = shape(2, 4, 2, 32, 32);
    struct stats *s = synthetic(&g, 1000, KIND_LINKED, false);
    struct solve_options o;
    struct solved a, b, c;

    solve_options_default(&o, 2);
    a = solve(s, &o);
    b = solve(s, &o);
    o.seed = 1;
    c = solve(s, &o);
    CU_ASSERT_EQUAL_FATAL(a.n_bytes, b.n_bytes);
    CU_ASSERT_EQUAL(memcmp(a.bytes, b.bytes, a.n_bytes), 0);
    CU_ASSERT_NOT_EQUAL(memcmp(a.table->digest, c.table->digest, DIGEST_BYTES), 0);
    CU_ASSERT_DOUBLE_EQUAL(a.report.distortion, c.report.distortion, 0.1 * a.report.distortion);
    CU_ASSERT_PTR_NOT_NULL(strstr(a.table->provenance, "\"method\":\"bands\""));
    CU_ASSERT_PTR_NOT_NULL(strstr(a.table->provenance, "\"model\":\"synthetic\""));
    CU_ASSERT_PTR_NULL(strchr(a.table->provenance, '/'));
    solved_deinit(&a);
    solved_deinit(&b);
    solved_deinit(&c);
    (void) stats_free(s);
}

/* The paper's tables stay within the nominal budget and have one width per head; `bands`
 * at the same cost has less distortion. */
static void test_paper(void)
{
    struct geometry g = shape(2, 4, 2, 64, 64);
    struct stats *s = synthetic(&g, 1000, KIND_NORMAL, false);
    double bpds[] = {1, 2, 3};

    for (size_t i = 0; i < 3; i++) {
        struct solve_options o;
        struct solved paper, bands;

        solve_options_for(&o, METHOD_PAPER_MSE, bpds[i]);
        paper = solve(s, &o);
        CU_ASSERT(paper.report.bpd_nominal <= bpds[i] + 1e-9);
        CU_ASSERT(paper.report.bpd_nominal > 0.9 * bpds[i]);
        for (uint32_t hs = 0; hs < head_side_count(&g); hs++) { /* one width per head */
            const struct codec *c = &paper.table->codecs[hs];

            for (unsigned j = 1; j < c->n_half; j++)
                CU_ASSERT(c->bits[j] == c->bits[0] || c->bits[j] == 0);
        }
        solve_options_default(&o, paper.report.bpd_nominal);
        o.metric = METRIC_MSE;
        bands = solve(s, &o);
        CU_ASSERT(bands.report.distortion < paper.report.distortion);
        solved_deinit(&paper);
        solved_deinit(&bands);
    }
    (void) stats_free(s);
}

static void test_floor_and_ceiling(void)
{
    struct geometry g = shape(2, 4, 2, 32, 32);
    struct stats *s = synthetic(&g, 600, KIND_NORMAL, true);
    struct solve_options o;
    struct solved t;

    solve_options_default(&o, 2);
    o.floor_bpd = 1;
    o.ceil_bpd = 2.5;
    t = solve(s, &o);
    for (uint32_t hs = 0; hs < head_side_count(&g); hs++) {
        const struct codec *c = &t.table->codecs[hs];

        CU_ASSERT(c->code_bits <= 80);
        CU_ASSERT(c->code_bits >= 32 || c->r == 0);
    }
    solved_deinit(&t);
    (void) stats_free(s);
}

static double layer_bits(const struct table *t, uint32_t layer)
{
    double sum = 0;

    for (uint32_t h = 0; h < t->geometry.n_kv_heads; h++)
        sum += table_codec(t, layer, h, SIDE_K)->code_bits + table_codec(t, layer, h, SIDE_V)->code_bits;
    return sum;
}

/* A layer whose distortion weighs sixteen times as much gets about two bits more per coordinate. */
static void test_depth_weights(void)
{
    struct geometry g = shape(2, 2, 2, 32, 32);
    struct stats *s = synthetic(&g, 1000, KIND_NORMAL, false);
    struct solve_options o;
    struct solved even, weighted;

    solve_options_default(&o, 3);
    even = solve(s, &o);
    for (uint32_t l = 0; l < 2; l++)
        for (int side = 0; side < 2; side++)
            CU_ASSERT_EQUAL(stats_set_depth(s, l, (enum side) side, l == 1 ? 1.6 : 0.1, 1), 0);
    weighted = solve(s, &o);
    CU_ASSERT(fabs(layer_bits(even.table, 0) - layer_bits(even.table, 1)) < 0.3 * 32 * 4);
    CU_ASSERT(layer_bits(weighted.table, 1) - layer_bits(weighted.table, 0) > 1.5 * 32 * 4);
    CU_ASSERT(layer_bits(weighted.table, 1) - layer_bits(weighted.table, 0) < 2.5 * 32 * 4);
    o.depth_weights = false;
    solved_deinit(&weighted);
    weighted = solve(s, &o);
    CU_ASSERT_DOUBLE_EQUAL(layer_bits(weighted.table, 1), layer_bits(even.table, 1), 0);
    solved_deinit(&even);
    solved_deinit(&weighted);
    (void) stats_free(s);
}

static void check_refused(const struct stats *s, const struct solve_options *o, int err, const char *words)
{
    struct solve_report report = {.bpd_code = 77};
    void *bytes = (void *) 1;
    size_t n = 99;
    struct errmsg e = {""};

    CU_ASSERT_EQUAL(solve_table(s, o, &bytes, &n, &report, &e), err);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, words));
    if (!strstr(e.text, words))
        printf("    got: %s\n", e.text);
    CU_ASSERT_PTR_EQUAL(bytes, (void *) 1);
    CU_ASSERT_EQUAL(n, 99);
    CU_ASSERT_EQUAL(report.bpd_code, 77);
}

static void test_refuses(void)
{
    struct geometry g = shape(1, 2, 1, 32, 32);
    struct stats *s = synthetic(&g, 200, KIND_NORMAL, false), *empty;
    struct stats_options so = s->o;
    struct solve_options o;
    struct errmsg e;

    solve_options_default(&o, 0);
    check_refused(s, &o, -EINVAL, "a budget of 0 bits");
    o.bpd = 8.5;
    check_refused(s, &o, -EINVAL, "a budget of 8.5 bits");
    o.bpd = NAN;
    check_refused(s, &o, -EINVAL, "a budget of");
    o.k_bpd = 2;
    check_refused(s, &o, -EINVAL, "must both be above 0");
    solve_options_default(&o, 1);
    o.floor_bpd = 2;
    check_refused(s, &o, -ERANGE, "the smallest possible budget is 2.0000");
    o.floor_bpd = 3;
    o.ceil_bpd = 2;
    check_refused(s, &o, -EINVAL, "floor 3 and ceiling 2");
    o.floor_bpd = -1;
    check_refused(s, &o, -EINVAL, "floor -1 and ceiling 2");
    o.floor_bpd = NAN;
    check_refused(s, &o, -EINVAL, "do not fit 0 <= floor");
    o.floor_bpd = 0;
    o.ceil_bpd = 8.5;
    check_refused(s, &o, -EINVAL, "floor 0 and ceiling 8.5");
    solve_options_default(&o, 2);
    o.metric = METRIC_FISHER;
    check_refused(s, &o, -EINVAL, "no gradients");
    o.metric = METRIC_MSE;
    o.temper = 0.5;
    check_refused(s, &o, -EINVAL, "metric mse cannot be raised to a power");
    o.temper = 2.5;
    check_refused(s, &o, -EINVAL, "raised to 2.5");
    o.temper = NAN;
    check_refused(s, &o, -EINVAL, "raised to");
    o.temper = 0;
    o.metric = METRIC_ATTENTION;
    o.quantiser = QUANT_UNIFORM;
    check_refused(s, &o, -EINVAL, "cannot be both fitted and uniform");
    solve_options_for(&o, METHOD_PAPER_KL, 2);
    o.metric = METRIC_MSE;
    check_refused(s, &o, -EINVAL, "paper-kl is defined by metric query");
    solve_options_for(&o, METHOD_PAPER_MSE, 0.05);
    check_refused(s, &o, -ERANGE, "the smallest possible");
    so.n_samples = 100;
    CU_ASSERT_EQUAL_FATAL(stats_new(&so, &empty, &e), 0);
    solve_options_default(&o, 2);
    check_refused(empty, &o, -EINVAL, "empty");
    (void) stats_free(empty);
    (void) stats_free(s);
}

/* A metric that is too large for binary32 matrices gives an error that names the head-side. */
static void test_not_finite_in_binary32(void)
{
    struct geometry g = shape(1, 2, 1, 32, 32);
    struct stats *s = synthetic(&g, 200, KIND_NORMAL, false);
    struct solve_options o;

    for (size_t i = 0; i < 32; i++)
        s->domains[0].scatter[i * 33] *= 1e90;
    solve_options_default(&o, 2);
    o.fit_levels = false;
    o.v_from = PREDICT_NONE;
    o.curve = CURVE_GAUSSIAN; /* uses the covariance; the samples are not that large */
    check_refused(s, &o, -EINVAL, "layer 0, head 0, side K");
    (void) stats_free(s);
}

/* One layer and head, metric I: the distortion is the mean of |e|^2, and the error is
 * that over the spread of the samples. */
static void test_expected_errors(void)
{
    struct geometry g = shape(1, 2, 1, 32, 32);
    struct stats *s = synthetic(&g, 1000, KIND_NORMAL, false);
    struct solve_options o;
    struct solved t;
    char want[64];

    solve_options_default(&o, 2);
    o.metric = METRIC_MSE;
    t = solve(s, &o);
    CU_ASSERT(t.report.measured);
    for (unsigned side = 0; side < 2; side++) {
        float *x = stats_sample_load(s, head_side_index(&g, 0, 0, side));
        const float *mean = table_codec(t.table, 0, 0, side)->mean;
        double spread = 0, distortion = side == SIDE_K ? t.report.distortion_k : t.report.distortion_v;
        double error = side == SIDE_K ? t.report.error_k : t.report.error_v;

        for (size_t i = 0; i < s->n_held * g.d; i++)
            spread += pow((double) x[i] - (double) mean[i % g.d], 2) / (double) s->n_held;
        /* the distortion is summed in binary32 */
        CU_ASSERT_DOUBLE_EQUAL(error, distortion / spread, 1e-4 * error);
        CU_ASSERT(error > 0 && error < 1);
        free(x);
    }
    (void) snprintf(want, sizeof(want), "\"error_k\":%.4g", t.report.error_k);
    want[strlen(want) - 1] = '\0'; /* five digits there, rounded: compare all but the last */
    CU_ASSERT_PTR_NOT_NULL(strstr(t.table->provenance, want));
    solved_deinit(&t);
    (void) stats_free(s);
}

/* The same bytes whatever the number of threads, for several sources too; OpenBLAS keeps its own number. */
static void test_threads(void)
{
    static const enum method methods[] = {METHOD_BANDS, METHOD_DP, METHOD_PAPER_KL};
    struct geometry g = shape(3, 6, 3, 32, 32);
    struct stats *s = synthetic(&g, 2000, KIND_LINKED, true);
    int blas = openblas_get_num_threads();

    openblas_set_num_threads(2);
    for (size_t i = 0; i < sizeof(methods) / sizeof(methods[0]); i++) {
        struct solve_options o;
        struct solved one, many;

        solve_options_for(&o, methods[i], 2.3);
        o.v_from = i == 0 ? PREDICT_LAYER : o.v_from;
        o.n_threads = 1;
        one = solve(s, &o);
        for (o.n_threads = 2; o.n_threads <= 7; o.n_threads += 5) {
            many = solve(s, &o);
            CU_ASSERT_EQUAL_FATAL(one.n_bytes, many.n_bytes);
            CU_ASSERT_EQUAL(memcmp(one.bytes, many.bytes, one.n_bytes), 0);
            CU_ASSERT(memcmp(&one.report, &many.report, sizeof(one.report)) == 0);
            CU_ASSERT_EQUAL(openblas_get_num_threads(), 2);
            solved_deinit(&many);
        }
        solved_deinit(&one);
    }
    openblas_set_num_threads(blas);
    (void) stats_free(s);
}

const struct test_case test_cases[] = {
    TEST(test_budget),
    TEST(test_budgets_apart),
    TEST(test_estimate),
    TEST(test_expected_errors),
    TEST(test_v_from_k),
    TEST(test_fitted_levels),
    TEST(test_degenerate_heads),
    TEST(test_shapes),
    TEST(test_deterministic),
    TEST(test_threads),
    TEST(test_paper),
    TEST(test_floor_and_ceiling),
    TEST(test_depth_weights),
    TEST(test_refuses),
    TEST(test_not_finite_in_binary32),
    TEST_END,
};
const char test_suite[] = "solve";
