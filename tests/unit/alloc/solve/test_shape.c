/* Kurtosis and quantiles of coordinates against distributions of known moments. */
#include <errno.h>

#include "alloc/solve/shape.h"
#include "alloc/stats/stats_internal.h"
#include "base/cleanup.h"
#include "tests/unit/alloc/shapes.h"

enum { D = 32, N = 4096 };

/* @draw gives independent coordinates, scaled by falling factors, so that the eigenvectors are the axes. */
static struct stats *make_stats(double draw(void), uint32_t n_samples)
{
    struct geometry g = shape(1, 1, 1, D, D);
    float *k = calloc((size_t) N * D, sizeof(*k)), *v = calloc((size_t) N * D, sizeof(*v));
    struct stats_options o;
    struct stats *s = NULL;
    struct errmsg e = {""};

    assert(k && v);
    for (size_t t = 0; t < N; t++)
        for (size_t i = 0; i < D; i++)
            k[t * D + i] = (float) (5 + draw() * pow(0.8, (double) i));
    stats_options_default(&o, &g);
    o.want_attention = false;
    o.n_samples = n_samples;
    CU_ASSERT_EQUAL_FATAL(stats_new(&o, &s, &e), 0);
    CU_ASSERT_EQUAL_FATAL(stats_add_layer(s, 1, 0, 0, N, NULL, k, v, NULL, &e), 0);
    free(k);
    free(v);
    return s;
}

static double draw_sign(void)
{
    return test_rand() & 1 ? 1 : -1;
}

static double mean(const double *x, size_t n)
{
    double sum = 0;

    for (size_t i = 0; i < n; i++)
        sum += x[i];
    return sum / (double) n;
}

/* N(0,1) stays N(0,1) under any rotation. Excess kurtosis of n normals scatters by sqrt(24 / n);
 * a mean over 32 nearly independent ones by 1/sqrt(32) of it: 0.0135. Five of these.
 * Quantiles scatter by sqrt(p(1-p)/n)/density: at most 0.0016 for 131 k numbers at the median,
 * 0.007 at 2.5; a bin is 0.0039 wide. */
static void test_normal(void)
{
    _cleanup_(stats_freep) struct stats *s = make_stats(test_rand_normal, N);
    struct shape_pool *pool = calloc(1, sizeof(*pool));
    struct shape shape;

    CU_ASSERT_EQUAL_FATAL(shape_measure(s, METRIC_MSE, 1, 3, 0, 0, SIDE_K, &shape, pool), 0);
    for (int stage = 0; stage < SHAPE_STAGES; stage++) {
        CU_ASSERT_EQUAL(shape.n[stage], D);
        CU_ASSERT_DOUBLE_EQUAL(mean(shape.kurtosis[stage], D), 0, 5 * 0.0135);
        CU_ASSERT_EQUAL(pool->n[stage], (uint64_t) D * (N - 4)); /* four sinks are left out */
        CU_ASSERT_DOUBLE_EQUAL(shape_quantile(pool, (enum shape_stage) stage, 0.5), 0, 5 * 0.0016 + 0.0039);
        CU_ASSERT_DOUBLE_EQUAL(shape_quantile(pool, (enum shape_stage) stage, 0.5 + 0.5 * erf(2.5 / sqrt(2))),
                               2.5, 5 * 0.007 + 0.0039);
    }
    free(pool);
}

/*
 * Signs have excess kurtosis -2. A rotation over m signs of equal size leaves -2 / m. In a band of eight,
 * sizes a fall by 0.8^7 to a fifth, which leaves -2 sum a^4 / (sum a^2)^2. Under the paper's rotation the
 * sums are over all 32.
 */
static void test_signs(void)
{
    _cleanup_(stats_freep) struct stats *s = make_stats(draw_sign, N);
    struct shape_pool *pool = calloc(1, sizeof(*pool));
    struct shape shape;
    double squares = 0, fourths = 0;

    CU_ASSERT_EQUAL_FATAL(shape_measure(s, METRIC_MSE, 1, 3, 0, 0, SIDE_K, &shape, pool), 0);
    for (int i = 0; i < D; i++) {
        squares += pow(0.8, 2 * i);
        fourths += pow(0.8, 4 * i);
    }
    /* the estimated eigenvectors mix neighbours of nearly equal size, by about 1/sqrt(n) over the gap */
    CU_ASSERT_DOUBLE_EQUAL(mean(shape.kurtosis[SHAPE_EIGEN], D), -2, 0.05);
    CU_ASSERT_DOUBLE_EQUAL(mean(shape.kurtosis[SHAPE_ROTATED], D), -2 * fourths / (squares * squares), 0.03);
    squares = fourths = 0;
    for (int i = 0; i < 8; i++) {
        squares += pow(0.8, 2 * i);
        fourths += pow(0.8, 4 * i);
    }
    CU_ASSERT_DOUBLE_EQUAL(mean(shape.kurtosis[SHAPE_BASIS], D), -2, 0.05);
    CU_ASSERT_DOUBLE_EQUAL(mean(shape.kurtosis[SHAPE_BANDS], D), -2 * fourths / (squares * squares), 0.03);
    CU_ASSERT_DOUBLE_EQUAL(shape_quantile(pool, SHAPE_EIGEN, 0.25), -1, 0.2);
    free(pool);
}

static void test_no_samples_and_constant_head(void)
{
    _cleanup_(stats_freep) struct stats *s = make_stats(test_rand_normal, 64);
    _cleanup_(stats_freep) struct stats *some = make_stats(test_rand_normal, 64);
    struct shape_pool *pool = calloc(1, sizeof(*pool));
    struct shape shape;

    s->n_held = 0; /* moments only */
    CU_ASSERT_EQUAL(shape_measure(s, METRIC_MSE, 1, 3, 0, 0, SIDE_K, &shape, pool), -ENODATA);
    CU_ASSERT(isnan(shape_quantile(pool, SHAPE_BANDS, 0.5)));
    CU_ASSERT_EQUAL(shape_measure(some, METRIC_MSE, 1, 3, 0, 0, SIDE_V, &shape, pool), 0); /* V is constant */
    CU_ASSERT_EQUAL(shape.n[SHAPE_EIGEN] + shape.n[SHAPE_BANDS], 0);
    CU_ASSERT_EQUAL(pool->n[SHAPE_BANDS], 0);
    free(pool);
}

const struct test_case test_cases[] = {
    TEST(test_normal),
    TEST(test_signs),
    TEST(test_no_samples_and_constant_head),
    TEST_END,
};
const char test_suite[] = "shape";
