/* Runs of numbers of each type: sizes, literals, which part of a run is read and written. */
#include "gpu/dtype.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "tests/lib/test.h"

const char test_suite[] = "dtype";

static void test_sizes(void)
{
    CU_ASSERT_EQUAL(dtype_bytes(DTYPE_F32), 4);
    CU_ASSERT_EQUAL(dtype_bytes(DTYPE_F16), 2);
    CU_ASSERT_EQUAL(dtype_bytes(DTYPE_BF16), 2);
    CU_ASSERT_EQUAL(dtype_bytes(3), 0);
    CU_ASSERT_EQUAL(dtype_bytes((unsigned) -1), 0);
}

/* 1.5 = 0x3fc00000; binary16 0x3e00; bfloat16 0x3fc0. -2 = 0xc0000000; 0xc000; 0xc000. */
static void test_literals(void)
{
    const float f32[] = {7, 1.5f, -2};
    const uint16_t f16[] = {0x4700, 0x3e00, 0xc000}, bf16[] = {0x40e0, 0x3fc0, 0xc000};
    const void *from[] = {[DTYPE_F32] = f32, [DTYPE_F16] = f16, [DTYPE_BF16] = bf16};

    for (unsigned t = DTYPE_F32; t <= DTYPE_BF16; t++) {
        float got[3] = {99, 99, 99};
        uint8_t back[16];

        dtype_load(t, from[t], 1, 2, got);
        CU_ASSERT_EQUAL(got[0], 1.5f);
        CU_ASSERT_EQUAL(got[1], -2);
        CU_ASSERT_EQUAL(got[2], 99);
        memset(back, 0xaa, sizeof(back));
        dtype_store(t, f32, 3, back);
        CU_ASSERT_EQUAL(memcmp(back, from[t], 3 * dtype_bytes(t)), 0);
        CU_ASSERT_EQUAL(back[3 * dtype_bytes(t)], 0xaa);
    }
}

/* A tie between 1 and the next number goes to the even one: 1 + 2^-11 and 1 + 2^-8 round down, three times
 * as much rounds up. */
static void test_rounding(void)
{
    const float x[] = {1 + 0x1p-11f, 1 + 3 * 0x1p-11f, 1 + 0x1p-8f, 1 + 3 * 0x1p-8f, 1e6f, NAN};
    uint16_t got[6];

    dtype_store(DTYPE_F16, x, 6, got);
    CU_ASSERT_EQUAL(got[0], 0x3c00);
    CU_ASSERT_EQUAL(got[1], 0x3c02);
    CU_ASSERT_EQUAL(got[4], 0x7c00);
    CU_ASSERT(got[5] > 0x7c00);
    dtype_store(DTYPE_BF16, x, 6, got);
    CU_ASSERT_EQUAL(got[2], 0x3f80);
    CU_ASSERT_EQUAL(got[3], 0x3f82);
}

/* The largest numbers of each type, and infinities and NaN at each place of runs of several lengths. */
static void test_finite(void)
{
    static const uint16_t
        largest[] = {[DTYPE_F16] = 0xfbff, [DTYPE_BF16] = 0xff7f},
        bad[][3] = {[DTYPE_F16] = {0x7c00, 0xfc00, 0x7c01}, [DTYPE_BF16] = {0x7f80, 0xff80, 0xff81}};
    static const float bad_f32[] = {INFINITY, -INFINITY, NAN};
    float f32[40];
    uint16_t half[40];

    for (size_t n = 0; n <= 40; n += 13)
        for (unsigned t = DTYPE_F32; t <= DTYPE_BF16; t++) {
            void *x = t == DTYPE_F32 ? (void *) f32 : (void *) half;

            for (size_t i = 0; i < 40; i++) {
                f32[i] = -3.4028234663852886e38f;
                half[i] = largest[t];
            }
            CU_ASSERT(dtype_all_finite(t, x, n));
            for (size_t i = 0; i < 3 * n; i++) {
                f32[i / 3] = bad_f32[i % 3];
                half[i / 3] = bad[t][i % 3];
                CU_ASSERT(!dtype_all_finite(t, x, n));
                CU_ASSERT(dtype_all_finite(t, x, i / 3));
                f32[i / 3] = 0;
                half[i / 3] = 0;
            }
        }
}

const struct test_case test_cases[] = {TEST(test_sizes), TEST(test_literals), TEST(test_rounding),
                                       TEST(test_finite), TEST_END};
