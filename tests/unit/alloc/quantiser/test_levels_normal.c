/* Levels computed for N(0,1), against published tables and quadrature. */
#include "tests/lib/test.h"

#include <errno.h>
#include <math.h>

#include "alloc/quantiser/levels_normal.h"

/* Positive Lloyd-Max levels of N(0,1): Max 1960 and later tables. */
static const double lloyd_max[5][8] = {
    {0},
    {0.797885},
    {0.452780, 1.510418},
    {0.245094, 0.756005, 1.343909, 2.151946},
    {0.128395, 0.388048, 0.656759, 0.942340, 1.256231, 1.618046, 2.069017, 2.732590},
};

/* Rounding to int8 moves a level by at most half a step. */
static void test_lloyd_max_levels(void)
{
    for (unsigned b = 1; b <= 4; b++) {
        struct levels l;
        unsigned m = 1u << b >> 1;
        double half_step;

        CU_ASSERT_EQUAL_FATAL(levels_normal(QUANT_LLOYD_MAX, b, &l), 0);
        half_step = 0.5 * (double) l.step;
        CU_ASSERT_EQUAL(l.value_i8[2 * m - 1], 127);
        CU_ASSERT_EQUAL(l.value_i8[0], -127);
        /* the largest is not rounded */
        CU_ASSERT_DOUBLE_EQUAL(level_z(&l, 2 * m - 1), lloyd_max[b][m - 1], 1e-6);
        for (unsigned i = 0; i < m; i++) {
            CU_ASSERT_DOUBLE_EQUAL(level_z(&l, m + i), lloyd_max[b][i], half_step + 1e-6);
            CU_ASSERT_EQUAL(l.value[m + i], -l.value[m - 1 - i]);
        }
    }
}

/*
 * Errors of the unrounded quantiser: Max 1960 to 4 bits; 5 and 6 by plain Lloyd iteration elsewhere; 7 and 8
 * bracketed by Panter and Dite, pi sqrt(3)/2 2^-2b, which the optimum approaches from below. Moving a level
 * by at most s/2 from an optimum adds at most about s^2/4: s = largest/127 for int8, 2^-9 at most for
 * binary16 below 4.
 */
static void test_lloyd_max_error(void)
{
    static const double want[9] = {0,          0.36338,    0.117482,  0.0345476, 0.00949706,
                                   0.00250466, 0.00064423, 0.0001661, 0.00004151};

    for (unsigned b = 1; b <= 8; b++) {
        struct levels l;
        double mse, s;

        CU_ASSERT_EQUAL_FATAL(levels_normal(QUANT_LLOYD_MAX, b, &l), 0);
        mse = levels_normal_mse(&l, b);
        s = b <= 4 ? (double) l.step : 0x1p-9;
        CU_ASSERT(mse > want[b] * (b <= 6 ? 1 - 1e-5 : 0.98));
        CU_ASSERT(mse < want[b] * (1 + 1e-5) + (b <= 6 ? s * s / 4 : 0));
    }
}

/* Optimality, independent of any table: every level is the mean of its cell.
 * Checked on 8 bits by quadrature. */
static void test_lloyd_max_is_centroid(void)
{
    struct levels l;

    CU_ASSERT_EQUAL_FATAL(levels_normal(QUANT_LLOYD_MAX, 8, &l), 0);
    for (unsigned q = 128; q < 256; q++) {
        double a = q > 128 ? (double) l.threshold[q - 1] : 0, b = q < 255 ? (double) l.threshold[q] : a + 4;
        double mass = 0, first = 0;

        for (unsigned i = 0; i < 4000; i++) {
            double x = a + (i + 0.5) * (b - a) / 4000, p = exp(-0.5 * x * x);

            mass += p;
            first += p * x;
        }
        /* binary16 between 2^k and 2^(k+1) has spacing 2^(k-10); thresholds move with both neighbours */
        CU_ASSERT_DOUBLE_EQUAL(level_z(&l, q), first / mass, fmax(0x1p-10, 0x1p-10 * (double) l.value[q]));
    }
}

/* DESIGN 3.3 gives about 1.22, 2.10, 2.40, 2.70, 3.02, 3.34, 3.64, 3.94;
 * these are its values to two decimals. */
static void test_midtread_loading(void)
{
    static const double want[9] = {0, 1.22, 2.10, 2.41, 2.71, 3.02, 3.33, 3.64, 3.94};

    for (unsigned b = 1; b <= 8; b++) {
        double loading = levels_normal_midtread_loading(b), delta = 2 * loading / (double) (1u << b);
        struct levels l;

        CU_ASSERT_DOUBLE_EQUAL(loading, want[b], 0.0051);
        CU_ASSERT_EQUAL_FATAL(levels_normal(QUANT_UNIFORM_MIDTREAD, b, &l), 0);
        for (int i = 0; i < 1 << b; i++) /* codes -2^(b-1) .. 2^(b-1)-1 */
            CU_ASSERT_DOUBLE_EQUAL(level_z(&l, (unsigned) i), (i - (1 << b >> 1)) * delta,
                                   b <= 4 ? 0.5001 * (double) l.step : 0x1p-10);
        CU_ASSERT_EQUAL(l.value[1u << b >> 1], 0.0f); /* mid-tread: zero is a level */
    }
}

/*
 * Optimal uniform steps of N(0,1), Max 1960: 1.596 (1 bit), 0.9957, 0.5860, 0.3352, 0.1881; errors with them.
 * int8 rounding moves the levels off the grid and the error by up to 0.6 %, either way.
 */
static void test_uniform_midrise(void)
{
    static const double step[6] = {0, 1.5958, 0.9957, 0.5860, 0.3352, 0.1881};
    static const double mse[6] = {0, 0.3634, 0.1188, 0.03744, 0.01154, 0.003495};

    for (unsigned b = 1; b <= 5; b++) {
        struct levels l;
        unsigned n = 1u << b;

        CU_ASSERT_EQUAL_FATAL(levels_normal(QUANT_UNIFORM, b, &l), 0);
        CU_ASSERT_DOUBLE_EQUAL(level_z(&l, n - 1) - level_z(&l, 0), step[b] * (n - 1), 1e-3 * n);
        CU_ASSERT_DOUBLE_EQUAL(levels_normal_mse(&l, b), mse[b], 7e-3 * mse[b]);
    }
}

/* The closed form against a sum over a fine grid: a midpoint rule of step h
 * errs by h^2/24 times a curvature of 1. */
static void test_mse_against_quadrature(void)
{
    for (int q = QUANT_LLOYD_MAX; q <= QUANT_UNIFORM_MIDTREAD; q++)
        for (unsigned b = 1; b <= 8; b++) {
            struct levels l;
            double sum = 0, h = 1e-3;

            CU_ASSERT_EQUAL_FATAL(levels_normal((enum quantiser) q, b, &l), 0);
            for (double x = -9 + h / 2; x < 9; x += h) {
                double e = x - level_z(&l, levels_quantise(&l, b, (float) x));

                sum += e * e * exp(-0.5 * x * x) * h / sqrt(2 * M_PI);
            }
            CU_ASSERT_DOUBLE_EQUAL(sum, levels_normal_mse(&l, b), 2e-6 + 1e-3 * sum);
        }
}

static void test_unknown_widths(void)
{
    struct levels l;

    CU_ASSERT_EQUAL(levels_normal(QUANT_UNIFORM, 0, &l), -EINVAL);
    CU_ASSERT_EQUAL(levels_normal(QUANT_UNIFORM, 9, &l), -EINVAL);
}

const struct test_case test_cases[] = {
    TEST(test_lloyd_max_levels),      TEST(test_lloyd_max_error),
    TEST(test_lloyd_max_is_centroid), TEST(test_midtread_loading),
    TEST(test_uniform_midrise),       TEST(test_mse_against_quadrature),
    TEST(test_unknown_widths),        TEST_END,
};
const char test_suite[] = "levels_normal";
