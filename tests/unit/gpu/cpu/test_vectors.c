/*
 * Vectors of callers: every combination of number type, pair order and RoPE against the formula, written out
 * here with numbers that binary16 and bfloat16 hold exactly; distances; and binary16 of x - mean.
 */
#include <math.h>
#include <string.h>

#include "base/half.h"
#include "gpu/dtype.h"
#include "gpu/vectors.h"
#include "tests/lib/test.h"

const char test_suite[] = "vectors";

/* d = 6, of which 4 dimensions are rotated in 2 planes. The angles' sines and cosines are exact. */
enum { D = 6, N = 3, PLANES = 2 };
static const struct geometry geometry = {.d = D, .n_rot = 2 * PLANES};
static const float cosine[N * PLANES] = {1, 0, 0.5f, -1, 0, 1}, sine[N * PLANES] = {0, 1, 0.25f, 0, -1, 0};

/* Half-split rows before RoPE. */
static const float rows[N][D] = {{1, 2, 3, 4, 5, 6}, {-1, 8, 2, -4, 0, 7}, {3, 0.5f, -2, 1, 9, -8}};

/* Number @i of vector @t in the caller's form: rotated, then interleaved. */
static float caller_number(size_t t, size_t i, bool rotated, bool interleaved)
{
    size_t plane, half;
    float a, b;

    if (i >= 2 * PLANES)
        return rows[t][i];
    plane = interleaved ? i / 2 : i % PLANES;
    half = interleaved ? i % 2 : i / PLANES;
    a = rows[t][plane];
    b = rows[t][PLANES + plane];
    if (!rotated)
        return half ? b : a;
    return half ? b * cosine[t * PLANES + plane] + a * sine[t * PLANES + plane]
                : a * cosine[t * PLANES + plane] - b * sine[t * PLANES + plane];
}

static void put(unsigned dtype, void *to, size_t i, float x)
{
    const uint32_t bits = half_float_to_bits(x);
    const uint16_t half = dtype == DTYPE_F16 ? f32_to_f16(x) : (uint16_t) (bits >> 16);

    if (dtype == DTYPE_F32)
        memcpy((char *) to + 4 * i, &x, 4);
    else
        memcpy((char *) to + 2 * i, &half, 2);
}

/* Tokens lie @stride numbers apart and dimensions @step; the numbers between them must stay. */
static void check_store(const struct vector_form *f, size_t stride, size_t step)
{
    unsigned char want[400], got[400];
    float from[N * 8] = {0};

    memset(want, 0xa5, sizeof(want));
    memset(got, 0xa5, sizeof(got));
    for (size_t t = 0; t < N; t++) {
        memcpy(from + t * 8, rows[t], sizeof(rows[t]));
        for (size_t i = 0; i < D; i++)
            put(f->dtype, want, t * stride + i * step, caller_number(t, i, f->cos != NULL, f->interleaved));
    }
    vectors_store(f, from, 8, N, got, stride, step);
    CU_ASSERT_EQUAL(memcmp(want, got, sizeof(want)), 0);
}

/* The angles are no unit vectors: a plane that is rotated and back has their squared length as a factor. */
static void check_load(const struct vector_form *f, size_t stride)
{
    unsigned char from[400];
    float got[N * 8];

    memset(from, 0x7f, sizeof(from));
    for (size_t i = 0; i < N * 8; i++)
        got[i] = -77;
    for (size_t t = 0; t < N; t++)
        for (size_t i = 0; i < D; i++)
            put(f->dtype, from, t * stride + i, caller_number(t, i, f->cos != NULL, f->interleaved));
    vectors_load(f, from, stride, N, got, 8);
    for (size_t t = 0; t < N; t++) {
        for (size_t i = 0; i < D; i++) {
            const float *c = &cosine[t * PLANES + i % PLANES], *s = &sine[t * PLANES + i % PLANES];
            float factor = f->cos && i < 2 * PLANES ? *c * *c + *s * *s : 1;

            CU_ASSERT_DOUBLE_EQUAL(got[t * 8 + i], factor * rows[t][i], 0);
        }
        CU_ASSERT(got[t * 8 + 6] == -77 && got[t * 8 + 7] == -77);
    }
}

static void test_every_form(void)
{
    static const unsigned dtypes[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};

    for (unsigned i = 0; i < 3 * 4; i++) {
        bool rotated = i % 2, interleaved = i / 2 % 2;
        const struct vector_form f = {
            .geometry = &geometry,
            .dtype = dtypes[i / 4],
            .interleaved = interleaved,
            .cos = rotated ? cosine : NULL,
            .sin = rotated ? sine : NULL,
        };

        check_load(&f, D);
        check_load(&f, D + 5);
        check_store(&f, D, 1);
        check_store(&f, D + 5, 1);
        check_store(&f, 1, N); /* [d, n]: dimensions outside */
        check_store(&f, 25, 4);
    }
}

/* Limits of binary16: 65504 + 15 is rounded to 65504, 65520 to infinity. */
static void test_centre(void)
{
    static const float mean[2] = {1, -2}, good[] = {1, -2, 65505, -65521, 1.5f, 0};
    static const float bad[] = {INFINITY, -INFINITY, NAN, 65521, -65519};
    uint16_t ret[8];

    CU_ASSERT_EQUAL(vectors_centre(good, 3, 2, mean, ret), 3);
    CU_ASSERT(f16_to_f32(ret[0]) == 0 && f16_to_f32(ret[1]) == 0);
    CU_ASSERT(f16_to_f32(ret[2]) == 65504 && f16_to_f32(ret[3]) == -65504);
    CU_ASSERT(f16_to_f32(ret[4]) == 0.5f && f16_to_f32(ret[5]) == 2);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        for (size_t at = 0; at < 3; at++) {
            float x[6];

            memcpy(x, good, sizeof(x));
            x[2 * at] = bad[i];
            CU_ASSERT_EQUAL(vectors_centre(x, 3, 2, mean, ret), at);
        }
    CU_ASSERT_EQUAL(vectors_centre(good, 0, 2, mean, ret), 0);
}

static void test_add_mean(void)
{
    static const float mean[2] = {10, -20}, x[] = {1, 2, -3, 0.25f};
    unsigned char odd[1 + 8];
    float ret[6] = {7, 7, 7, 7, 7, 7};

    for (size_t i = 0; i < 4; i++)
        put(DTYPE_F16, odd + 1, i, x[i]);
    vectors_add_mean(odd + 1, 2, 2, mean, ret, 3);
    CU_ASSERT(ret[0] == 11 && ret[1] == -18 && ret[3] == 7 && ret[4] == -19.75f);
    CU_ASSERT(ret[2] == 7 && ret[5] == 7);
}

const struct test_case test_cases[] = {TEST(test_every_form), TEST(test_centre), TEST(test_add_mean),
                                       TEST_END};
