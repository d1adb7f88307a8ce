/* The inner loops: each variant against the reference, the reference against literals or binary64. Sizes
 * around every vector width, unaligned pointers, buffers that end exactly where the operation may stop. */
#include "gpu/cpu/ops.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/quantiser/levels_normal.h"
#include "base/half.h"
#include "gpu/cpu.h"
#include "tests/lib/test.h"

static const unsigned masks[] = {0, CPU_AVX2, CPU_AVX2 | CPU_AVX512};
enum { N_MASKS = sizeof(masks) / sizeof(masks[0]) };

/* NULL if this machine cannot run it. */
static const struct ops *variant(size_t i)
{
    return (masks[i] & ~cpu_capabilities()) == 0 ? ops_select(masks[i]) : NULL;
}

static float *random_floats(size_t n)
{
    float *p = malloc((n + 1) * sizeof(*p)); /* odd starts need one more */

    assert(p);
    for (size_t i = 0; i <= n; i++)
        p[i] = (float) test_rand_normal();
    return p;
}

/* [1 2; 3 4] [5 ..; 7 ..] + 100 = [119 ..; 143 ..], the columns repeated with factors 1 .. 16. */
static void test_matmul_known(void)
{
    static const float a[4] = {1, 2, 3, 4};

    for (size_t i = 0; i < N_MASKS; i++) {
        float b[2][OPS_LANES], c[2][OPS_LANES];

        if (!variant(i))
            continue;
        for (int j = 0; j < OPS_LANES; j++) {
            b[0][j] = (float) (5 * (j + 1));
            b[1][j] = (float) (7 * (j + 1));
            c[0][j] = c[1][j] = 100;
        }
        variant(i)->matmul(2, OPS_LANES, 2, (struct matrix_in){a, 2}, (struct matrix_in){b[0], OPS_LANES},
                           (struct matrix_out){c[0], OPS_LANES});
        for (int j = 0; j < OPS_LANES; j++) {
            CU_ASSERT_EQUAL(c[0][j], (float) (100 + 19 * (j + 1)));
            CU_ASSERT_EQUAL(c[1][j], (float) (100 + 43 * (j + 1)));
        }
    }
}

/* k products of N(0, 1) make partial sums below 5 sqrt(k), each of k + 1 sums rounded by 2^-24 of that; C
 * adds 5. The ordered product must have exactly the stated bits. */
static void check_matmul(const struct ops *ops, size_t m, size_t n, size_t k)
{
    size_t lda = k + 3, ldb = n + 1, ldc = n + 5;
    float *a = random_floats(m * lda), *b = random_floats((k + 1) * ldb), *c = random_floats(m * ldc);
    float *fast = random_floats(m * ldc), *ordered = random_floats(m * ldc);
    double tolerance = ((double) k + 1) * 0x1p-24 * (5 * sqrt((double) k) + 5);

    memcpy(fast, c, m * ldc * sizeof(*c));
    memcpy(ordered, c, m * ldc * sizeof(*c));
    ops->matmul(m, n, k, (struct matrix_in){a, lda}, (struct matrix_in){b + 1, ldb},
                (struct matrix_out){fast, ldc});
    ops->matmul_ordered(m, n, k, (struct matrix_in){a, lda}, (struct matrix_in){b + 1, ldb},
                        (struct matrix_out){ordered, ldc});
    for (size_t i = 0; i < m; i++)
        for (size_t j = 0; j < ldc; j++) {
            /* volatile: each step is rounded to binary32, whatever the compiler prefers */
            volatile float sum = 0;
            double exact = 0;

            if (j >= n) { /* beyond the columns nothing changes */
                CU_ASSERT_EQUAL(fast[i * ldc + j], c[i * ldc + j]);
                CU_ASSERT_EQUAL(ordered[i * ldc + j], c[i * ldc + j]);
                continue;
            }
            for (size_t x = 0; x < k; x++) {
                volatile float product = a[i * lda + x] * b[1 + x * ldb + j];

                sum = sum + product;
                exact += (double) a[i * lda + x] * (double) b[1 + x * ldb + j];
            }
            sum = c[i * ldc + j] + sum;
            CU_ASSERT_EQUAL(ordered[i * ldc + j], sum);
            CU_ASSERT_DOUBLE_EQUAL((double) fast[i * ldc + j], (double) c[i * ldc + j] + exact, tolerance);
        }
    free(a);
    free(b);
    free(c);
    free(fast);
    free(ordered);
}

static void test_matmul(void)
{
    static const size_t cols[] = {16, 32, 48, 64, 80, 144}, depths[] = {0, 1, 2, 63, 64, 130};

    for (size_t i = 0; i < N_MASKS; i++)
        for (size_t m = 0; variant(i) && m <= 13; m++)
            check_matmul(variant(i), m, cols[m % 6], depths[(m / 2 + m) % 6]);
    for (size_t i = 0; i < N_MASKS; i++)
        for (size_t x = 0; variant(i) && x < 36; x++)
            check_matmul(variant(i), 7, cols[x % 6], depths[x / 6]);
}

static void test_lookup(void)
{
    struct levels l;
    uint8_t codes[64 + 1];
    float ret[64 + 1];

    for (size_t i = 0; i < N_MASKS; i++)
        for (unsigned b = 1; b <= 8 && variant(i); b++) {
            CU_ASSERT_EQUAL_FATAL(levels_normal(QUANT_LLOYD_MAX, b, &l), 0);
            for (unsigned round = 0; round < 16; round++) {
                for (size_t x = 0; x < sizeof(codes); x++)
                    codes[x] = (uint8_t) (round == 0 ? x & ((1u << b) - 1) : test_rand_below(1u << b));
                ret[64] = 77;
                variant(i)->lookup(&l, b, codes + 1, 64, ret);
                for (size_t x = 0; x < 64; x++)
                    CU_ASSERT_EQUAL(ret[x], l.value[codes[1 + x]]);
                CU_ASSERT_EQUAL(ret[64], 77);
            }
        }
}

static void test_rotate(void)
{
    for (size_t i = 0; i < N_MASKS; i++)
        for (size_t n = 0; n <= 64 && variant(i); n += 16) {
            float *x = random_floats(n), *y = random_floats(n), *c = random_floats(n), *s = random_floats(n);
            float *lo = random_floats(n), *hi = random_floats(n);

            memcpy(lo, x, n * sizeof(*x));
            memcpy(hi, y, n * sizeof(*y));
            variant(i)->rotate(lo, hi, c, s, n);
            for (size_t j = 0; j < n; j++) { /* two products below 25 and a sum: 3 roundings of 2^-24 of 50 */
                double a = (double) x[j], b = (double) y[j], cos = (double) c[j], sin = (double) s[j];

                CU_ASSERT_DOUBLE_EQUAL((double) lo[j], a * cos - b * sin, 1e-5);
                CU_ASSERT_DOUBLE_EQUAL((double) hi[j], b * cos + a * sin, 1e-5);
            }
            free(x);
            free(y);
            free(c);
            free(s);
            free(lo);
            free(hi);
        }
}

/* All 65536 values, subnormals included, at an odd address; NaN must only stay NaN. */
static void test_from_half(void)
{
    enum { N = 65536 };
    char *bytes = malloc(2 * N + 1);
    float *ret = malloc(N * sizeof(*ret));

    assert(bytes && ret);
    for (size_t x = 0; x < N; x++) {
        uint16_t h = (uint16_t) x;

        memcpy(bytes + 1 + 2 * x, &h, sizeof(h));
    }
    for (size_t i = 0; i < N_MASKS && variant(i); i++) {
        variant(i)->from_half(bytes + 1, N, ret);
        for (size_t x = 0; x < N; x++) {
            float expected = f16_to_f32((uint16_t) x);

            CU_ASSERT_TRUE(isnan(expected) ? isnan(ret[x]) : ret[x] == expected);
        }
        for (size_t n = 0; n < 40; n++) { /* writes no more than n */
            ret[n] = 77;
            variant(i)->from_half(bytes + 1 + 2 * (N / 4), n, ret);
            CU_ASSERT_EQUAL(ret[n], 77);
            for (size_t x = 0; x < n; x++)
                CU_ASSERT_EQUAL(ret[x], f16_to_f32((uint16_t) (N / 4 + x)));
        }
    }
    free(bytes);
    free(ret);
}

/* Two blocks against binary64. Each weight is within 4 roundings (argument,
 * exp, its scale), sums within 64 more. */
static void check_softmax(const struct ops *ops, double size, size_t hidden)
{
    struct softmax_row row = {.max = -INFINITY};
    float scores[2][CHUNK_TOKENS], weights[CHUNK_TOKENS], factor = 0;
    double max[2] = {-INFINITY, -INFINITY}, sum = 0;

    for (size_t i = 0; i < 2; i++) {
        for (size_t t = 0; t < CHUNK_TOKENS; t++) {
            scores[i][t] = t >= CHUNK_TOKENS - hidden ? -INFINITY : (float) (size * test_rand_normal());
            max[i] = fmax(max[i], (double) scores[i][t]);
        }
        max[1] = fmax(max[0], max[1]);
        memcpy(weights, scores[i], sizeof(weights));
        factor = ops->softmax(&row, weights);
        if (i == 0)
            CU_ASSERT_EQUAL(factor, 0);
    }
    CU_ASSERT_EQUAL((double) row.max, max[1]);
    CU_ASSERT_DOUBLE_EQUAL((double) factor, exp(max[0] - max[1]), 4 * 0x1p-24);
    for (size_t t = 0; t < CHUNK_TOKENS; t++) {
        double expected = exp((double) scores[1][t] - max[1]), x = max[1] - (double) scores[1][t];

        /* the difference to the maximum is rounded once: x 2^-24 of the
         * weight; below e^-87 a variant may give 0 */
        CU_ASSERT_DOUBLE_EQUAL((double) weights[t], expected,
                               expected * (4 + fmin(x, 100)) * 0x1p-24 + 1e-37);
        if (t >= CHUNK_TOKENS - hidden)
            CU_ASSERT_EQUAL(weights[t], 0);
        sum += expected + exp((double) scores[0][t] - max[1]);
    }
    CU_ASSERT_DOUBLE_EQUAL((double) row.sum, sum, sum * 128 * 0x1p-24);
}

static void test_softmax(void)
{
    static const double sizes[] = {0, 0.01, 1, 10, 100, 1e4};
    static const size_t hidden[] = {0, 1, 33, 63};

    for (size_t i = 0; i < N_MASKS; i++)
        for (size_t s = 0; s < 24 && variant(i); s++)
            check_softmax(variant(i), sizes[s / 4], hidden[s % 4]);
}

const char test_suite[] = "ops";
const struct test_case test_cases[] = {
    TEST(test_matmul_known), TEST(test_matmul),  TEST(test_lookup), TEST(test_rotate),
    TEST(test_from_half),    TEST(test_softmax), TEST_END,
};
