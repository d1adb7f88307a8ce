/* Solving from moments: the normal model of codes against sampling;
 * P and tables against those from vectors. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/moments/moments.h"
#include "alloc/solve/solve.h"
#include "alloc/solve/solve_internal.h"
#include "alloc/stats/stats_internal.h"
#include "alloc/stats/stats_moments.h"
#include "base/cleanup.h"
#include "tests/unit/alloc/shapes.h"

enum { LAYERS = 2, HEADS = 2, D = 32, WIDTH = HEADS * D, TOKENS = 4000, WINDOW = 200 };

/* E c, E cz and E c^2 by a fine trapezoid sum over z. */
static void check_code(enum quantiser q, unsigned b, double variance)
{
    double mean = 0, product = 0, square = 0, step = 1e-4, s = sqrt(variance);
    struct gaussian_code code;
    struct levels l;

    CU_ASSERT_EQUAL_FATAL(levels_normal(q, b, &l), 0);
    l.threshold[0] -= 0.125f; /* asymmetric, like fitted levels */
    solve_gaussian_code(&l, b, variance, &code);
    for (double x = -10; x <= 10; x += step) {
        double c = level_z(&l, levels_quantise(&l, b, (float) (s * x)));
        double weight = step * exp(-0.5 * x * x) / sqrt(2 * M_PI);

        mean += weight * c;
        product += weight * c * s * x;
        square += weight * c * c;
    }
    /* the sum is off by half a step at each of the 2^b - 1 thresholds;
     * jumps of c shrink as their number grows */
    CU_ASSERT_DOUBLE_EQUAL(code.mean, mean, 1e-3);
    CU_ASSERT_DOUBLE_EQUAL(code.gain, product / variance, 1e-3);
    CU_ASSERT_DOUBLE_EQUAL(code.variance, square - mean * mean, 1e-3);
}

static void test_gaussian_code(void)
{
    struct gaussian_code code;
    struct levels l;

    for (unsigned b = 1; b <= TABLE_BITS_MAX; b += b < 4 ? 1 : 2)
        for (int i = 0; i < 3; i++)
            check_code(QUANT_LLOYD_MAX, b, (double[]){0.3, 1, 2.5}[i]);
    /* one bit of N(0,1): the levels are +-sqrt(2/pi), gain and variance are both 2/pi */
    CU_ASSERT_EQUAL_FATAL(levels_normal(QUANT_LLOYD_MAX, 1, &l), 0);
    solve_gaussian_code(&l, 1, 1, &code);
    CU_ASSERT_DOUBLE_EQUAL(code.mean, 0, 1e-12);
    CU_ASSERT_DOUBLE_EQUAL(code.gain, 2 / M_PI, 1e-6); /* levels are stored in binary32 */
    CU_ASSERT_DOUBLE_EQUAL(code.variance, 2 / M_PI, 1e-6);
    solve_gaussian_code(&l, 1, 0, &code);
    CU_ASSERT_EQUAL(code.gain, 0);
    CU_ASSERT_EQUAL(code.variance, 0);
}

/* Normal keys with falling spectra, rotated; values are a linear map of them plus noise. Statistics and
 * moments hold the same tokens. */
static void draw(const struct geometry *g, struct stats **ret_stats, struct moments **ret_moments)
{
    struct moments_options mo = {.geometry = *g, .n_sink = 0, .model_name = "synthetic"};
    struct stats_options o;
    struct shape_data x;
    struct errmsg e = {""};

    stats_options_default(&o, g);
    o.n_samples = TOKENS;
    o.n_sink = 0;
    (void) snprintf(o.model_name, sizeof(o.model_name), "synthetic");
    CU_ASSERT_EQUAL_FATAL(stats_new(&o, ret_stats, &e), 0);
    CU_ASSERT_EQUAL_FATAL(moments_new(&mo, ret_moments, &e), 0);
    shape_data_init(&x, g, WINDOW);
    shape_data_draw(&x, g);
    for (uint32_t l = 0; l < g->n_layers; l++)
        CU_ASSERT_EQUAL(stats_set_output_projection(*ret_stats, l, x.wo, x.n_embd, &e), 0);
    for (uint64_t doc = 0; doc < TOKENS / WINDOW; doc++)
        for (uint32_t l = 0; l < g->n_layers; l++) {
            shape_data_draw(&x, g);
            for (size_t t = 0; t < WINDOW * g->n_kv_heads; t++)
                for (size_t i = 0; i < g->d; i++) {
                    float *k = x.k + t * g->d, *v = x.v + t * g->d;

                    v[i] = k[i] - k[(i + 1) % g->d] + 0.3f * v[i];
                }
            CU_ASSERT_EQUAL(stats_add_layer(*ret_stats, doc, 0, l, WINDOW, x.q, x.k, x.v, NULL, &e), 0);
            CU_ASSERT_EQUAL(moments_add(*ret_moments, l, 0, g->n_kv_heads, WINDOW, x.k, x.v, &e), 0);
        }
    shape_data_deinit(&x);
}

static double solve(const struct stats *s, const struct stats *judge, const struct solve_options *o)
{
    _cleanup_(table_unrefp) struct table *table = NULL;
    _cleanup_(freep) void *bytes = NULL;
    struct solve_options judged = *o;
    struct solve_report report;
    struct errmsg e = {""};
    double distortion[LAYERS * 2] = {0}, sum = 0;
    size_t n;

    CU_ASSERT_EQUAL(solve_table(s, o, &bytes, &n, &report, &e), 0);
    CU_ASSERT_STRING_EQUAL(e.text, "");
    assert(bytes);
    CU_ASSERT_EQUAL_FATAL(table_parse(bytes, n, &table, &e), 0);
    CU_ASSERT(report.bpd_code <= o->bpd + 1e-9);
    judged.levels_from = NULL;
    judged.curve = CURVE_GAUSSIAN;
    judged.fit_levels = false;
    judged.decoder = DECODER_INVERSE;
    CU_ASSERT_EQUAL(solve_distortion(judge, table, &judged, distortion, &e), 0);
    for (size_t i = 0; i < LAYERS * 2; i++)
        sum += distortion[i];
    return sum;
}

/*
 * The same options on moments and on vectors: the distortions of both tables on the vectors agree. P from
 * 4000 samples has a relative noise of sqrt(32 / 4000) = 9 %, whose share of the distortion is small: 3 % is
 * allowed. Prediction lowers the distortion by more than a fifth here.
 */
static void test_against_vectors(void)
{
    struct geometry g = shape(LAYERS, HEADS, HEADS, D, D);
    _cleanup_(stats_freep) struct stats *full = NULL, *s = NULL;
    _cleanup_(moments_freep) struct moments *m = NULL;
    struct solve_options o;
    struct errmsg e = {""};

    draw(&g, &full, &m);
    CU_ASSERT_EQUAL_FATAL(stats_from_moments(m, full, &s, &e), 0);
    CU_ASSERT_EQUAL(stats_tokens(s), TOKENS);
    for (int i = 0; i < 2; i++) {
        double with, from_vectors, without;

        solve_options_default(&o, (double[]){1.5, 3}[i]);
        o.trellis_states = 0;
        o.curve = CURVE_GAUSSIAN;
        o.fit_levels = o.depth_weights = false;
        o.decoder = DECODER_INVERSE;
        with = solve(s, full, &o);
        from_vectors = solve(full, full, &o);
        o.v_from = PREDICT_NONE;
        without = solve(s, full, &o);
        CU_ASSERT_DOUBLE_EQUAL(with, from_vectors, 0.03 * from_vectors);
        CU_ASSERT(with < 0.8 * without);
    }
}

/* Heads that counted more tokens than others: statistics have as many tokens as the least of them. */
static void test_least_count(void)
{
    struct geometry g = shape(LAYERS, HEADS, HEADS, D, D);
    _cleanup_(stats_freep) struct stats *full = NULL, *s = NULL;
    _cleanup_(moments_freep) struct moments *m = NULL;
    static float k[5 * D], v[5 * D];
    struct errmsg e = {""};

    draw(&g, &full, &m);
    fill_normal(k, 5, D, D, 0);
    fill_normal(v, 5, D, D, 0);
    CU_ASSERT_EQUAL(moments_add(m, LAYERS - 1, HEADS - 1, 1, 5, k, v, &e), 0);
    CU_ASSERT_EQUAL(moments_add(m, 0, 0, 1, 3, k, v, &e), 0);
    CU_ASSERT_EQUAL_FATAL(stats_from_moments(m, full, &s, &e), 0);
    CU_ASSERT_EQUAL(stats_tokens(s), TOKENS);
}

/* Metrics come from the other statistics, those of gradients too, whose count is their own. */
static void test_metrics_are_taken(void)
{
    struct geometry g = shape(LAYERS, HEADS, HEADS, D, D);
    size_t n = head_side_count(&g) * D * D;
    _cleanup_(stats_freep) struct stats *full = NULL, *s = NULL;
    _cleanup_(moments_freep) struct moments *m = NULL;
    struct errmsg e = {""};

    draw(&g, &full, &m);
    CU_ASSERT_EQUAL_FATAL(stats_want_fisher(full), 0);
    for (size_t i = 0; i < n; i++)
        full->fisher[i] = (double) i;
    full->n_fisher = 9;
    CU_ASSERT_EQUAL_FATAL(stats_from_moments(m, full, &s, &e), 0);
    CU_ASSERT(s->n_fisher == 9 && s->fisher && memcmp(s->fisher, full->fisher, n * sizeof(*s->fisher)) == 0);
    CU_ASSERT(memcmp(s->metric, full->metric, n * sizeof(*s->metric)) == 0);
    CU_ASSERT(memcmp(s->query, full->query, n / 2 * sizeof(*s->query)) == 0);
}

/* P itself and the residual's covariance, under the same bits, against regression on 4000 decoded codes. */
static void test_prediction(void)
{
    struct geometry g = shape(LAYERS, HEADS, HEADS, D, D);
    _cleanup_(stats_freep) struct stats *full = NULL, *s = NULL;
    _cleanup_(moments_freep) struct moments *m = NULL;
    _cleanup_(solver_deinit) struct solver a = {0}, b = {0};
    _cleanup_(solve_view_deinit) struct solve_view view_a = {0}, view_b = {0};
    const double *S_a, *S_b;
    double trace = 0, worst = 0;
    struct solve_options o;
    struct errmsg e = {""};
    uint32_t hs_v = head_side_index(&g, 1, 1, SIDE_V);

    draw(&g, &full, &m);
    CU_ASSERT_EQUAL_FATAL(stats_from_moments(m, full, &s, &e), 0);
    solve_options_default(&o, 2);
    o.trellis_states = 0;
    o.curve = CURVE_GAUSSIAN;
    o.fit_levels = o.depth_weights = false;
    o.decoder = DECODER_INVERSE;
    CU_ASSERT_EQUAL_FATAL(solver_init(&a, full, &o, &e), 0);
    CU_ASSERT_EQUAL_FATAL(solver_init(&b, s, &o, &e), 0);
    CU_ASSERT_EQUAL(solve_fit_sides(&a, 1u << SIDE_K | 1u << SIDE_V, &e) | solve_allocate(&a, &e), 0);
    CU_ASSERT_EQUAL(solve_fit_sides(&b, 1u << SIDE_K | 1u << SIDE_V, &e) | solve_allocate(&b, &e), 0);
    /* the bits agree up to rounding of the covariances; make them exactly equal */
    for (uint32_t hs = 0; hs < a.n_heads; hs++)
        memcpy(b.heads[hs].bits, a.heads[hs].bits, sizeof(a.heads[hs].bits));
    CU_ASSERT_EQUAL_FATAL(solve_view_init(&a, hs_v, &view_a) | solve_view_init(&b, hs_v, &view_b), 0);
    CU_ASSERT_EQUAL(solve_predict_view(&view_a, PREDICT_FINAL), 0);
    CU_ASSERT_EQUAL(solve_predict_view(&view_b, PREDICT_FINAL), 0);
    S_a = view_a.S;
    S_b = view_b.S;
    CU_ASSERT_EQUAL_FATAL(a.heads[hs_v].n_predict, b.heads[hs_v].n_predict);
    CU_ASSERT(a.heads[hs_v].n_predict >= 16);
    for (size_t i = 0; i < D; i++)
        trace += S_a[i * D + i];
    for (size_t i = 0; i < D * D; i++)
        worst = fmax(worst, fabs(S_a[i] - S_b[i]));
    /* a covariance of 4000 tokens has an error of sqrt(2 / 4000) = 2 % of the largest variance, here up to
     * five times the mean variance; without prediction the trace would be several times this one */
    CU_ASSERT(worst <= 0.15 * trace / D);
    for (size_t i = 0; i < D; i++) {
        size_t n = a.heads[hs_v].n_predict;

        CU_ASSERT_DOUBLE_EQUAL(a.heads[hs_v].mean[i], b.heads[hs_v].mean[i], 0.05);
        for (size_t k = 0; k < n; k++) /* coefficients are up to about 1 */
            CU_ASSERT_DOUBLE_EQUAL(a.heads[hs_v].predict[i * n + k], b.heads[hs_v].predict[i * n + k], 0.06);
    }
}

static void test_levels_from_a_table(void)
{
    struct geometry g = shape(LAYERS, HEADS, HEADS, D, D);
    _cleanup_(stats_freep) struct stats *full = NULL, *s = NULL;
    _cleanup_(moments_freep) struct moments *m = NULL;
    _cleanup_(table_unrefp) struct table *first = NULL, *second = NULL;
    _cleanup_(freep) void *bytes = NULL, *again = NULL;
    uint8_t digest[DIGEST_BYTES];
    struct solve_report report;
    struct solve_options o;
    struct errmsg e = {""};
    size_t n;

    draw(&g, &full, &m);
    CU_ASSERT_EQUAL_FATAL(stats_from_moments(m, full, &s, &e), 0);
    solve_options_default(&o, 2);
    o.trellis_states = 0;
    CU_ASSERT_EQUAL_FATAL(solve_table(full, &o, &bytes, &n, &report, &e), 0);
    CU_ASSERT_EQUAL_FATAL(table_parse(bytes, n, &first, &e), 0);
    CU_ASSERT_EQUAL(solve_table(s, &o, &again, &n, &report, &e), -EINVAL); /* measured curves */
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "without vectors"));
    o.curve = CURVE_GAUSSIAN;
    o.levels_from = first;
    /* levels from a table and fitted levels */
    CU_ASSERT_EQUAL(solve_table(s, &o, &again, &n, &report, &e), -EINVAL);
    o.fit_levels = false;
    o.decoder = DECODER_INVERSE;
    CU_ASSERT_EQUAL_FATAL(solve_table(s, &o, &again, &n, &report, &e), 0);
    CU_ASSERT_EQUAL_FATAL(table_parse(again, n, &second, &e), 0);
    CU_ASSERT_EQUAL(memcmp(first->levels, second->levels, sizeof(first->levels)), 0);
    CU_ASSERT_PTR_NOT_NULL(strstr(second->provenance, "\"levels_from\":\""));
    CU_ASSERT_PTR_NOT_NULL(strstr(second->provenance, "\"metric_from\":\""));
    CU_ASSERT_EQUAL(solve_options_read(second->provenance, &o, digest, &e), -ENODATA);
}

static void test_refusals(void)
{
    struct geometry g = shape(LAYERS, HEADS, HEADS, D, D);
    _cleanup_(stats_freep) struct stats *full = NULL, *s = NULL;
    _cleanup_(moments_freep) struct moments *m = NULL, *none = NULL;
    struct moments_options mo;
    struct errmsg e = {""};

    draw(&g, &full, &m);
    mo = *moments_get_options(m);
    CU_ASSERT_EQUAL_FATAL(moments_new(&mo, &none, &e), 0);
    CU_ASSERT_EQUAL(stats_from_moments(none, full, &s, &e), -EINVAL);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "hold no token"));
    full->o.model_digest[0] ^= 1;
    CU_ASSERT_EQUAL(stats_from_moments(m, full, &s, &e), -EINVAL);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "different models: synthetic and synthetic"));
    full->o.model_digest[0] ^= 1;
    full->o.n_sink = 4;
    CU_ASSERT_EQUAL(stats_from_moments(m, full, &s, &e), -EINVAL);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "leave out 0 sinks"));
    full->o.n_sink = 0;
    CU_ASSERT_EQUAL_FATAL(stats_from_moments(m, NULL, &s, &e), 0); /* squared error needs no metric */
    CU_ASSERT(stats_is_moments(s) && !stats_has_queries(s));
    CU_ASSERT_EQUAL(stats_save(s, "never-written", &e), -EINVAL);
    CU_ASSERT_EQUAL(stats_merge(full, s, &e), -EINVAL);
}

const struct test_case test_cases[] = {
    TEST(test_gaussian_code),     TEST(test_least_count),
    TEST(test_metrics_are_taken), TEST(test_against_vectors),
    TEST(test_prediction),        TEST(test_levels_from_a_table),
    TEST(test_refusals),          TEST_END,
};
const char test_suite[] = "solve_predict_moments";
