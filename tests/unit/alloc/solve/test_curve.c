/* Distortion curves: measured ones against a plain loop, all three kinds against their values on N(0,1). */
#include "alloc/solve/curve.h"
#include "tests/unit/alloc/shapes.h"

/* The level nearest to z, by linear search. */
static double nearest(const struct levels *l, unsigned b, double z)
{
    double best = level_z(l, 0);

    for (unsigned q = 1; q < 1u << b; q++)
        if (fabs(level_z(l, q) - z) <= fabs(best - z))
            best = level_z(l, q);
    return best;
}

static void test_measured(void)
{
    enum { N = 200, STRIDE = 11, COORDS = 5 };
    struct curve_model m;
    float z[N * STRIDE];
    double got[9];

    CU_ASSERT_EQUAL_FATAL(curve_model_init(&m, CURVE_MEASURED, QUANT_LLOYD_MAX, 0), 0);
    for (size_t i = 0; i < N * STRIDE; i++)
        z[i] = (float) (1.3 * test_rand_normal());
    curve_band(&m, z, N, COORDS, STRIDE, got);
    for (unsigned b = 0; b <= 8; b++) {
        double want = 0;

        for (size_t t = 0; t < N; t++)
            for (size_t c = 0; c < COORDS; c++) {
                double v = (double) z[t * STRIDE + c];

                want += pow(v - (b > 0 ? nearest(&m.levels[b], b, v) : 0), 2) / N;
            }
        /* errors at 8 bits are near those of binary32: 1e-4 of z^2 ~ 2^-16 would
         * fail; 1e-3 relative passes */
        CU_ASSERT_DOUBLE_EQUAL(got[b], want, 1e-3 * want);
        CU_ASSERT(b == 0 || got[b] < got[b - 1]);
    }
}

static void test_quantise_fast(void)
{
    struct curve_model m;

    CU_ASSERT_EQUAL_FATAL(curve_model_init(&m, CURVE_GAUSSIAN, QUANT_UNIFORM_MIDTREAD, 0), 0);
    for (unsigned b = 1; b <= 8; b++) {
        for (unsigned i = 0; i + 1 < 1u << b; i++) { /* a tie takes the upper code */
            float at = m.levels[b].threshold[i];

            CU_ASSERT_EQUAL(quantise_fast(&m.levels[b], b, at), i + 1);
            CU_ASSERT_EQUAL(quantise_fast(&m.levels[b], b, nextafterf(at, -INFINITY)), i);
        }
        CU_ASSERT_EQUAL(quantise_fast(&m.levels[b], b, 1e30f), (1u << b) - 1);
        CU_ASSERT_EQUAL(quantise_fast(&m.levels[b], b, -1e30f), 0);
    }
}

/* Known: one bit on N(0,1) leaves 1 - 2/pi; two bits of Lloyd-Max 0.1175; Bennett is 2^-2b / 12. */
static void test_known(void)
{
    struct curve_model m;
    double got[9];

    CU_ASSERT_EQUAL_FATAL(curve_model_init(&m, CURVE_GAUSSIAN, QUANT_LLOYD_MAX, 0), 0);
    curve_band(&m, NULL, 0, 8, 8, got);
    CU_ASSERT_DOUBLE_EQUAL(got[0], 8, 0);
    CU_ASSERT_DOUBLE_EQUAL(got[1], 8 * (1 - 2 / M_PI), 1e-6);
    CU_ASSERT_DOUBLE_EQUAL(got[2], 8 * 0.1175, 8 * 1e-4); /* the int8 ratio of the levels costs a few 1e-5 */
    CU_ASSERT_EQUAL_FATAL(curve_model_init(&m, CURVE_BENNETT, QUANT_UNIFORM_MIDTREAD, 0), 0);
    curve_band(&m, NULL, 0, 4, 8, got);
    CU_ASSERT_DOUBLE_EQUAL(got[0], 4, 0);
    CU_ASSERT_DOUBLE_EQUAL(got[3], 4.0 / 64 / 12, 1e-15);
}

/* Many normal samples: the measured curve is the gaussian one within sampling error
 * (relative 1/sqrt(n coords) times about 3). */
static void test_measured_is_gaussian(void)
{
    enum { N = 8192, COORDS = 8 };
    static float z[N * COORDS];
    struct curve_model measured, gaussian;
    double a[9], b[9];

    CU_ASSERT_EQUAL_FATAL(curve_model_init(&measured, CURVE_MEASURED, QUANT_LLOYD_MAX, 0), 0);
    CU_ASSERT_EQUAL_FATAL(curve_model_init(&gaussian, CURVE_GAUSSIAN, QUANT_LLOYD_MAX, 0), 0);
    for (size_t i = 0; i < N * COORDS; i++)
        z[i] = (float) test_rand_normal();
    curve_band(&measured, z, N, COORDS, COORDS, a);
    curve_band(&gaussian, NULL, 0, COORDS, COORDS, b);
    for (unsigned bits = 0; bits <= 8; bits++) /* heavy tail of squared overload errors at 8 bits: 15 % */
        CU_ASSERT_DOUBLE_EQUAL(a[bits], b[bits], (bits <= 5 ? 0.03 : 0.15) * b[bits]);
}

/* Blocks of any width and stride against one number at a time, at thresholds and beyond the outermost
 * levels. */
static void test_blocks(void)
{
    enum { N = 40, STRIDE = 13 };
    struct curve_model m;

    CU_ASSERT_EQUAL_FATAL(curve_model_init(&m, CURVE_MEASURED, QUANT_LLOYD_MAX, 0), 0);
    for (unsigned b = 1; b <= 8; b++)
        for (size_t n_coords = 0; n_coords <= 8; n_coords++) {
            const struct levels *l = &m.levels[b];
            float z[N * STRIDE], by_level[N * STRIDE], by_value[N * STRIDE];

            for (size_t i = 0; i < N * STRIDE; i++)
                z[i] = i % 3 ? (float) (2 * test_rand_normal()) : l->threshold[i % ((1u << b) - 1)];
            memcpy(by_level, z, sizeof(z));
            memcpy(by_value, z, sizeof(z));
            curve_quantise_levels(l, b, by_level, N, n_coords, STRIDE);
            curve_quantise_values(l, b, by_value, N, n_coords, STRIDE);
            for (size_t i = 0; i < N * STRIDE; i++) {
                unsigned q = quantise_fast(l, b, z[i]);
                bool inside = i % STRIDE < n_coords;

                CU_ASSERT_EQUAL(by_level[i], inside ? (float) level_z(l, q) : z[i]);
                CU_ASSERT_EQUAL(by_value[i], inside ? l->value[q] : z[i]);
            }
        }
}

/* Kept codes decode to what the same rows are quantised to: scalar levels, and strings with a rest. */
static void test_codes(void)
{
    enum { N = 300, COORDS = 7, STRIDE = 9, CODES_STRIDE = 8 };
    struct curve_model m = {.books = {{.state_bits = 0}}};

    CU_ASSERT_EQUAL_FATAL(curve_model_init(&m, CURVE_MEASURED, QUANT_LLOYD_MAX, 6), 0);
    for (unsigned b = 1; b <= 8; b++) {
        const struct levels *l = m.books[b].state_bits > 0 ? &m.books[b] : &m.levels[b];
        float z[N * STRIDE], levels[N * STRIDE];
        uint8_t codes[N * CODES_STRIDE];
        size_t n_wrong = 0;

        for (size_t i = 0; i < N * STRIDE; i++)
            levels[i] = z[i] = (float) test_rand_normal();
        memset(codes, 0xee, sizeof(codes));
        curve_quantise_levels(l, b, levels, N, COORDS, STRIDE);
        curve_quantise_codes(l, b, z, N, COORDS, STRIDE, codes, CODES_STRIDE);
        for (size_t t = 0; t < N; t++)
            for (size_t i = 0; i < CODES_STRIDE; i++)
                n_wrong += i < COORDS
                               ? (float) level_z(l, codes[t * CODES_STRIDE + i]) != levels[t * STRIDE + i]
                               : codes[t * CODES_STRIDE + i] != 0xee;
        CU_ASSERT_EQUAL(n_wrong, 0);
    }
}

const struct test_case test_cases[] = {
    TEST(test_measured), TEST(test_quantise_fast),        TEST(test_known), TEST(test_blocks),
    TEST(test_codes),    TEST(test_measured_is_gaussian), TEST_END,
};
const char test_suite[] = "curve";
