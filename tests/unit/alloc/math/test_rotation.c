#include "tests/lib/test.h"

#include <math.h>
#include <string.h>

#include "alloc/math/rotation.h"

enum { N_MAX = 256 };

static double m[N_MAX * N_MAX], m2[N_MAX * N_MAX];

/* R'R = RR' = I. Entries are sums of n products of magnitude <= 2/n, each with
 * a few ulps: 8 n eps (2/n) = 16 eps. */
static void test_orthogonal(void)
{
    static const size_t orders[] = {1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 20, 31, 64, 80, 96, 100, 128, 256};

    for (size_t k = 0; k < sizeof(orders) / sizeof(orders[0]); k++) {
        size_t n = orders[k];
        double worst = 0;

        rotation_matrix(n, k * 7919, m);
        for (size_t i = 0; i < n; i++)
            for (size_t j = 0; j < n; j++) {
                double rows = 0, cols = 0;

                for (size_t l = 0; l < n; l++) {
                    rows += m[i * n + l] * m[j * n + l];
                    cols += m[l * n + i] * m[l * n + j];
                }
                worst = fmax(worst, fmax(fabs(rows - (i == j)), fabs(cols - (i == j))));
            }
        CU_ASSERT(worst < 32 * 2.3e-16 * (double) n);
    }
}

/* Sylvester entries have one magnitude: a diagonal covariance comes out with
 * equal variances (paper, app. A.1). */
static void test_power_of_two_flattens(void)
{
    double want = 0;

    rotation_matrix(16, 42, m);
    for (size_t i = 0; i < 256; i++)
        CU_ASSERT(fabs(m[i]) == 0.25);
    for (size_t j = 0; j < 16; j++)
        want += exp(-(double) j) / 16;
    for (size_t i = 0; i < 16; i++) {
        double var = 0;

        for (size_t j = 0; j < 16; j++)
            var += m[i * 16 + j] * m[i * 16 + j] * exp(-(double) j);
        CU_ASSERT_DOUBLE_EQUAL(var, want, 1e-15);
    }
}

/* By hand, signs divided out: the first row of both kinds is constant; Hartley of
 * order 3 has cas(2 pi/3), cas(4 pi/3). */
static void test_known(void)
{
    double a = (-0.5 + sqrt(3) / 2) / sqrt(3), b = (-0.5 - sqrt(3) / 2) / sqrt(3);
    double s[4];

    rotation_matrix(3, 1, m);
    for (size_t j = 0; j < 3; j++) {
        CU_ASSERT_DOUBLE_EQUAL(fabs(m[j]), 1 / sqrt(3), 1e-15);
        s[j] = m[j] > 0 ? 1 : -1;
    }
    CU_ASSERT_DOUBLE_EQUAL(m[3 + 1] * s[1], a, 1e-15);
    CU_ASSERT_DOUBLE_EQUAL(m[3 + 2] * s[2], b, 1e-15);
    CU_ASSERT_DOUBLE_EQUAL(m[6 + 1] * s[1], b, 1e-15);
    CU_ASSERT_DOUBLE_EQUAL(m[6 + 2] * s[2], a, 1e-15);

    static const double sylvester[16] = {1, 1, 1, 1, 1, -1, 1, -1, 1, 1, -1, -1, 1, -1, -1, 1};

    rotation_matrix(4, 1, m);
    for (size_t j = 0; j < 4; j++)
        s[j] = m[j] > 0 ? 1 : -1;
    for (size_t i = 0; i < 16; i++)
        CU_ASSERT(m[i] * s[i % 4] == sylvester[i] * 0.5);
}

static void test_seeded_signs(void)
{
    unsigned negative = 0;

    rotation_matrix(128, 5, m);
    rotation_matrix(128, 5, m2);
    CU_ASSERT_EQUAL(memcmp(m, m2, 128 * 128 * sizeof(m[0])), 0);
    rotation_matrix(128, 6, m2);
    CU_ASSERT_NOT_EQUAL(memcmp(m, m2, 128 * 128 * sizeof(m[0])), 0);
    for (size_t j = 0; j < 128; j++)
        negative += m[j] < 0;
    CU_ASSERT(negative > 32 && negative < 96); /* 64 +- 5.7 sigma */
}

const struct test_case test_cases[] = {
    TEST(test_orthogonal),
    TEST(test_power_of_two_flattens),
    TEST(test_known),
    TEST(test_seeded_signs),
    TEST_END,
};
const char test_suite[] = "rotation";
