/* The transform: the properties of E, D and the bands in DESIGN 3.2. */
#include <errno.h>

#include "alloc/math/linalg.h"
#include "alloc/solve/transform.h"
#include "tests/unit/alloc/shapes.h"

#define D_MAX 256

/* A random symmetric positive matrix of condition number about 10^4:
 * the transform must keep all d coordinates. */
static void draw_positive(size_t d, double *S)
{
    double *B = calloc(d * d, sizeof(*B));

    for (size_t i = 0; i < d; i++)
        for (size_t j = 0; j < d; j++)
            B[i * d + j] = test_rand_normal() * pow(10, -2.0 * (double) i / (double) d);
    memset(S, 0, d * d * sizeof(*S));
    for (size_t c = 0; c < d; c++)
        for (size_t i = 0; i < d; i++)
            for (size_t j = 0; j < d; j++)
                S[i * d + j] += B[c * d + i] * B[c * d + j];
    for (size_t i = 0; i < d; i++)
        S[i * d + i] += 0.01;
    free(B);
}

/* dec' enc = identity on R^d if all coordinates are kept; e'(M + ridge)e = |scale (z^ - z)|^2. */
static void check_identities(size_t d)
{
    double *S = calloc(3 * d * d, sizeof(*S)), *M = S + d * d, *I = M + d * d, ridge;
    struct transform t;

    draw_positive(d, S);
    draw_positive(d, M);
    CU_ASSERT_EQUAL_FATAL(transform_init(&t, (uint32_t) d), 0);
    CU_ASSERT_EQUAL(transform_fit(&t, S, M, 5), 0);
    CU_ASSERT_EQUAL(t.n_coords, d);
    CU_ASSERT_EQUAL(t.n_bands, (d + 7) / 8);
    for (size_t c = 0; c < d; c++)
        for (size_t i = 0; i < d; i++)
            for (size_t j = 0; j < d; j++)
                I[i * d + j] += t.dec[c * d + i] * t.enc[c * d + j];
    for (size_t i = 0; i < d; i++)
        for (size_t j = 0; j < d; j++)
            CU_ASSERT_DOUBLE_EQUAL(I[i * d + j], i == j, 1e-6);
    ridge = 1e-3 * linalg_trace(d, M) / (double) d;
    for (int trial = 0; trial < 5; trial++) {
        double e[D_MAX] = {0}, dz[D_MAX], distortion = 0, squares = 0;

        for (size_t c = 0; c < d; c++) {
            dz[c] = test_rand_normal();
            squares += pow(dz[c] * t.scale[c / 8], 2);
            for (size_t i = 0; i < d; i++)
                e[i] += t.dec[c * d + i] * dz[c];
        }
        for (size_t i = 0; i < d; i++)
            for (size_t j = 0; j < d; j++)
                distortion += e[i] * (M[i * d + j] + (i == j ? ridge : 0)) * e[j];
        CU_ASSERT_DOUBLE_EQUAL(distortion, squares, 1e-7 * squares);
    }
    transform_deinit(&t);
    free(S);
}

static void test_identities(void)
{
    check_identities(64);
    check_identities(36); /* a short last band: Hartley of order 4 */
    check_identities(80);
    check_identities(128);
}

/* In two blocks: no coordinate has numbers of both; dec and enc are inverses; w of each block descends; the
 * first block is full even where its variance is 0. */
static void test_blocks(void)
{
    enum { DIM = 36, FIRST = 16 };
    double S[DIM * DIM], M[DIM * DIM];
    struct transform_blocks blocks = {.n_first = FIRST};
    struct transform_roots roots;
    struct transform t;

    for (uint16_t i = 0, first = 0, rest = FIRST; i < DIM; i++)
        blocks.dim[i % 9 < 4 ? first++ : rest++] = i;
    draw_positive(DIM, S);
    draw_positive(DIM, M);
    for (size_t i = 0; i < DIM; i++) /* dimension 1 is constant */
        S[i * DIM + 1] = S[DIM + i] = 0;
    CU_ASSERT_EQUAL_FATAL(transform_init(&t, DIM), 0);
    CU_ASSERT_EQUAL_FATAL(transform_roots_init(&roots, DIM, M, &blocks), 0);
    CU_ASSERT_EQUAL(transform_fit_roots(&t, S, &roots, 5), 0);
    CU_ASSERT_EQUAL(t.n_coords, DIM);
    CU_ASSERT_EQUAL(t.n_bands, 5);
    for (size_t c = 0; c < DIM; c++) {
        CU_ASSERT(c == 0 || c == FIRST || t.w[c] <= t.w[c - 1]);
        for (size_t i = 0; i < DIM; i++)
            if ((i % 9 < 4) != (c < FIRST))
                CU_ASSERT(t.enc[c * DIM + i] == 0 && t.dec[c * DIM + i] == 0);
    }
    for (size_t i = 0; i < DIM; i++)
        for (size_t j = 0; j < DIM; j++) {
            double sum = 0;

            for (size_t c = 0; c < DIM; c++)
                sum += t.dec[c * DIM + i] * t.enc[c * DIM + j];
            CU_ASSERT_DOUBLE_EQUAL(sum, i == j, 1e-6);
        }
    transform_roots_deinit(&roots);
    transform_deinit(&t);
}

/* Coordinates have unit variance on average over each band, exactly so
 * with Hadamard, and the bands descend. */
static void test_unit_variance(void)
{
    size_t d = 44;
    double *S = calloc(2 * d * d, sizeof(*S)), *M = S + d * d;
    struct transform t;

    draw_positive(d, S);
    draw_positive(d, M);
    CU_ASSERT_EQUAL_FATAL(transform_init(&t, (uint32_t) d), 0);
    CU_ASSERT_EQUAL(transform_fit(&t, S, M, 1), 0);
    for (uint32_t b = 0; b < t.n_bands; b++) {
        double band = 0;

        for (uint32_t c = b * 8; c < b * 8 + band_coords(&t, b); c++) {
            double variance = 0;

            for (size_t i = 0; i < d; i++)
                for (size_t j = 0; j < d; j++)
                    variance += t.enc[c * d + i] * S[i * d + j] * t.enc[c * d + j];
            if (band_coords(&t, b) == 8)
                CU_ASSERT_DOUBLE_EQUAL(variance, 1, 1e-6);
            band += variance / band_coords(&t, b);
        }
        CU_ASSERT_DOUBLE_EQUAL(band, 1, 1e-6);
        CU_ASSERT(b == 0 || t.scale[b] <= t.scale[b - 1]);
    }
    transform_deinit(&t);
    free(S);
}

/* Keeping the first k coordinates leaves the distortion sum_{i>=k} w_i, and no k-dimensional random
 * projection does better (Eckart-Young in the metric). */
static void test_truncation(void)
{
    size_t d = 32, k = 16;
    double *S = calloc(2 * d * d, sizeof(*S)), *M = S + d * d, left = 0, distortion = 0;
    struct transform t;

    draw_positive(d, S);
    for (size_t i = 0; i < d; i++) /* a metric that reverses the order of the variances */
        M[i * d + i] = pow(10, 3.0 * (double) i / (double) d);
    CU_ASSERT_EQUAL_FATAL(transform_init(&t, (uint32_t) d), 0);
    CU_ASSERT_EQUAL(transform_fit(&t, S, M, 1), 0);
    for (size_t c = k; c < d; c++)
        left += t.w[c];
    /* distortion = tr(M R S R'), R = I - dec_k' enc_k */
    for (int attempt = 0; attempt < 20; attempt++) {
        double R[32][32], RS[32][32] = {{0}}, total = 0;

        for (size_t i = 0; i < d; i++)
            for (size_t j = 0; j < d; j++) {
                R[i][j] = i == j;
                for (size_t c = 0; c < k; c++)
                    R[i][j] -= t.dec[c * d + i] *
                               (t.enc[c * d + j] +
                                (attempt > 0 ? 0.05 * test_rand_normal() * t.enc[(k + c) * d + j] : 0));
            }
        for (size_t i = 0; i < d; i++)
            for (size_t j = 0; j < d; j++)
                for (size_t c = 0; c < d; c++)
                    RS[i][j] += R[i][c] * S[c * d + j];
        for (size_t i = 0; i < d; i++)
            for (size_t c = 0; c < d; c++)
                total += M[i * d + i] * RS[i][c] * R[i][c];
        if (attempt == 0)
            distortion = total;
        CU_ASSERT(total >= distortion * (1 - 1e-9));
    }
    /* w counts the ridge too: 0.1 % of the mean of M, which here is up to a few times the smallest entries */
    CU_ASSERT(distortion <= left * (1 + 1e-9));
    CU_ASSERT(distortion >= 0.5 * left);
    transform_deinit(&t);
    free(S);
}

/* z of a vector is enc (x - mean), in every block. */
static void test_apply(void)
{
    size_t d = 36, n = 300;
    double *S = calloc(2 * d * d, sizeof(*S)), *M = S + d * d, mean[36];
    float *x = calloc(n * d, sizeof(*x)), *z = calloc(n * d, sizeof(*z));
    struct transform t;

    draw_positive(d, S);
    draw_positive(d, M);
    fill_normal(x, n, d, d, 2);
    for (size_t i = 0; i < d; i++)
        mean[i] = 2;
    CU_ASSERT_EQUAL_FATAL(transform_init(&t, (uint32_t) d), 0);
    CU_ASSERT_EQUAL(transform_fit(&t, S, M, 9), 0);
    CU_ASSERT_EQUAL(transform_apply(&t, mean, x, n, z), 0);
    for (size_t row = 0; row < n; row += 37)
        for (size_t c = 0; c < d; c++) {
            double want = 0, size = 0;

            for (size_t i = 0; i < d; i++) {
                double term = t.enc[c * d + i] * ((double) x[row * d + i] - mean[i]);

                want += term;
                size += fabs(term);
            }
            /* 36 products in binary32 */
            CU_ASSERT_DOUBLE_EQUAL((double) z[row * d + c], want, 40 * 0x1p-24 * size);
        }
    transform_deinit(&t);
    free(x);
    free(z);
    free(S);
}

static void test_degenerate(void)
{
    size_t d = 32;
    double *S = calloc(2 * d * d, sizeof(*S)), *M = S + d * d;
    struct transform t;

    CU_ASSERT_EQUAL_FATAL(transform_init(&t, (uint32_t) d), 0);
    for (size_t i = 0; i < d; i++)
        M[i * d + i] = 1;
    CU_ASSERT_EQUAL(transform_fit(&t, S, M, 1), 0); /* constant: S = 0 */
    CU_ASSERT_EQUAL(t.n_coords, 0);
    CU_ASSERT_EQUAL(t.n_bands, 0);
    for (size_t i = 0; i < 13; i++) /* singular: rank 13, a band of 8 and one of 5 */
        S[i * d + i] = 1 + (double) i;
    S[20 * d + 20] = 1e-14; /* below 1e-12 of the largest: 0 */
    CU_ASSERT_EQUAL(transform_fit(&t, S, M, 1), 0);
    CU_ASSERT_EQUAL(t.n_coords, 13);
    CU_ASSERT_EQUAL(t.n_bands, 2);
    CU_ASSERT_EQUAL(band_coords(&t, 1), 5);
    for (size_t i = 0; i < d * d; i++)
        CU_ASSERT(isfinite(t.dec[i]));
    memset(M, 0, d * d * sizeof(*M));
    CU_ASSERT_EQUAL(transform_fit(&t, S, M, 1), 0); /* M = 0: no query reads it */
    CU_ASSERT_EQUAL(t.n_bands, 0);
    M[5] = NAN;
    M[0] = 1;
    CU_ASSERT_EQUAL(transform_fit(&t, S, M, 1), -EDOM);
    transform_deinit(&t);
    free(S);
}

const struct test_case test_cases[] = {
    TEST(test_identities),
    TEST(test_unit_variance),
    TEST(test_truncation),
    TEST(test_apply),
    TEST(test_degenerate),
    TEST(test_blocks),
    TEST_END,
};
const char test_suite[] = "transform";
