/* Levels fitted to samples. */
#include <math.h>
#include <string.h>

#include "alloc/quantiser/levels_fit.h"
#include "alloc/quantiser/levels_normal.h"
#include "tests/lib/test.h"

static double sample_mse(const struct levels *l, unsigned b, const float *x, size_t n)
{
    double sum = 0;

    for (size_t i = 0; i < n; i++) {
        double e = (double) x[i] - level_z(l, levels_quantise(l, b, x[i]));

        sum += e * e;
    }
    return sum / (double) n;
}

/* Laplacian samples: the optimal 2-bit levels are known, +-0.4198 and
 * +-1.8340 at unit variance, error 0.1762. */
static void test_fit_laplace(void)
{
    enum { N = 400000 };
    _Alignas(8) static float x[N];
    struct levels l, normal;

    for (size_t i = 0; i < N; i++) {
        double u = test_rand_uniform() - 0.5;

        x[i] = (float) (-copysign(1 / M_SQRT2, u) * log(1 - 2 * fabs(u)));
    }
    CU_ASSERT_EQUAL_FATAL(levels_fit(x, N, 2, &l), 0);
    /* n = 4e5: sample error of a level about 1/sqrt(n p) < 0.006, int8 rounding 0.0073 */
    CU_ASSERT_DOUBLE_EQUAL(level_z(&l, 2), 0.4198, 0.015);
    CU_ASSERT_DOUBLE_EQUAL(level_z(&l, 3), 1.8340, 0.02);
    CU_ASSERT_DOUBLE_EQUAL(sample_mse(&l, 2, x, N), 0.1762, 0.003);
    for (unsigned b = 1; b <= 8; b++) { /* never worse than the start */
        CU_ASSERT_EQUAL_FATAL(levels_fit(x, N / 10, b, &l), 0);
        CU_ASSERT_EQUAL_FATAL(levels_normal(QUANT_LLOYD_MAX, b, &normal), 0);
        CU_ASSERT(sample_mse(&l, b, x, N / 10) <= sample_mse(&normal, b, x, N / 10) * (1 + 1e-9));
    }
}

static void test_fit_few_and_odd_samples(void)
{
    static float x[LEVELS_FIT_MIN];
    struct levels l, normal;

    CU_ASSERT_EQUAL_FATAL(levels_normal(QUANT_LLOYD_MAX, 4, &normal), 0);
    for (size_t i = 0; i < LEVELS_FIT_MIN; i++)
        x[i] = (float) (test_rand_uniform() + 1); /* nothing below zero */
    CU_ASSERT_EQUAL(levels_fit(x, LEVELS_FIT_MIN - 1, 4, &l), 0);
    CU_ASSERT_EQUAL(memcmp(&l, &normal, sizeof(l)), 0);
    CU_ASSERT_EQUAL(levels_fit(x, LEVELS_FIT_MIN, 4, &l), 0);
    CU_ASSERT(levels_valid(&l, 4));
    CU_ASSERT(sample_mse(&l, 4, x, LEVELS_FIT_MIN) < sample_mse(&normal, 4, x, LEVELS_FIT_MIN) / 2);
    for (size_t i = 0; i < LEVELS_FIT_MIN; i++) /* equal samples: levels must stay valid */
        x[i] = 0.7f;
    CU_ASSERT_EQUAL(levels_fit(x, LEVELS_FIT_MIN, 4, &l), 0);
    CU_ASSERT(levels_valid(&l, 4));
    CU_ASSERT_EQUAL(levels_fit(NULL, 0, 8, &l), 0);
}

const struct test_case test_cases[] = {TEST(test_fit_laplace), TEST(test_fit_few_and_odd_samples), TEST_END};
const char test_suite[] = "levels_fit";
