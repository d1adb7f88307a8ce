/* Spectra of covariances with known eigenvalues. */
#include <errno.h>

#include "alloc/solve/spectrum.h"
#include "alloc/stats/stats_internal.h"
#include "base/cleanup.h"
#include "tests/unit/alloc/shapes.h"

enum { D = 32 };

/* One layer, one head. The scatter is set by hand, since spectrum_fill() reads nothing else. */
static struct stats *plain_stats(uint64_t n_tokens)
{
    struct geometry g = shape(1, 1, 1, D, D);
    struct stats_options o;
    struct stats *s = NULL;
    struct errmsg e = {""};

    stats_options_default(&o, &g);
    o.want_attention = false;
    CU_ASSERT_EQUAL_FATAL(stats_new(&o, &s, &e), 0);
    s->n_tokens = n_tokens;
    return s;
}

/* S = Q diag(lambda) Q' / 10 tokens with a reflection Q = I - 2 v v' / |v|^2:
 * known eigenvalues, no diagonal matrix. */
static void set_scatter(struct stats *s, const double *lambda)
{
    double v[D], norm = 0, Q[D][D];

    for (int i = 0; i < D; i++) {
        v[i] = test_rand_normal();
        norm += v[i] * v[i];
    }
    for (int i = 0; i < D; i++)
        for (int j = 0; j < D; j++)
            Q[i][j] = (i == j) - 2 * v[i] * v[j] / norm;
    for (int i = 0; i < D; i++)
        for (int j = 0; j < D; j++) {
            double sum = 0;

            for (int c = 0; c < D; c++)
                sum += Q[i][c] * lambda[c] * Q[j][c];
            s->scatter[i * D + j] = sum * (double) s->n_tokens;
        }
}

static void test_eigenvalues(void)
{
    _cleanup_(stats_freep) struct stats *s = plain_stats(10);
    double lambda[D], got[D], weighted[D];

    for (int i = 0; i < D; i++)
        lambda[i] = pow(i + 1, -1.5);
    set_scatter(s, lambda);
    CU_ASSERT_EQUAL(spectrum_fill(s, METRIC_MSE, 1, 0, 0, SIDE_K, got, weighted), 0);
    for (int i = 0; i < D; i++) {
        /* 32 operations of 2^-53 each, some tens of times */
        CU_ASSERT_DOUBLE_EQUAL(got[i], lambda[i], 1e-12);
        CU_ASSERT_DOUBLE_EQUAL(weighted[i], 1.001 * lambda[i], 1e-12); /* identity with its ridge of 1e-3 */
    }
    CU_ASSERT_DOUBLE_EQUAL(spectrum_power_law(got, D), 1.5, 1e-9);
}

static void test_no_tokens_and_constant_head(void)
{
    _cleanup_(stats_freep) struct stats *s = plain_stats(0);
    double got[D] = {7}, weighted[D], zeros[4] = {0};

    CU_ASSERT_EQUAL(spectrum_fill(s, METRIC_MSE, 1, 0, 0, SIDE_V, got, weighted), -ENODATA);
    CU_ASSERT_EQUAL(got[0], 7);
    s->n_tokens = 5; /* a constant head */
    CU_ASSERT_EQUAL(spectrum_fill(s, METRIC_MSE, 1, 0, 0, SIDE_V, got, weighted), 0);
    for (int i = 0; i < D; i++)
        CU_ASSERT(got[i] == 0 && weighted[i] == 0);
    CU_ASSERT(isnan(spectrum_power_law(zeros, 4)));
    CU_ASSERT_EQUAL(spectrum_effective_rank(zeros, 4), 0);
}

/* Numbers worked out by hand. */
static void test_numbers(void)
{
    const double equal[] = {3, 3, 3, 0}, steps[] = {4, 2, 1}, huge[] = {1e300, 1e300};

    CU_ASSERT_DOUBLE_EQUAL(spectrum_effective_rank(equal, 4), 3, 1e-15);
    CU_ASSERT_DOUBLE_EQUAL(spectrum_effective_rank(steps, 3), 49.0 / 21, 1e-15);
    CU_ASSERT_DOUBLE_EQUAL(spectrum_effective_rank(huge, 2), 2, 1e-15);
    CU_ASSERT_DOUBLE_EQUAL(spectrum_power_law(steps, 2), 1, 1e-15); /* half the weight at twice the index */
    CU_ASSERT_DOUBLE_EQUAL(spectrum_power_law(equal, 4), 0, 1e-15); /* the zero is left out */
}

const struct test_case test_cases[] = {
    TEST(test_eigenvalues),
    TEST(test_no_tokens_and_constant_head),
    TEST(test_numbers),
    TEST_END,
};
const char test_suite[] = "spectrum";
