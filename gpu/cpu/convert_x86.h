/*
 * The loops of ops.h that convert vectors, for x86-64 with AVX2 or more. Each ops_<isa>.c includes this file
 * once, after it has defined
 *
 *     quantise_16   16 numbers to codes, as levels_quantise()
 *     outside_16    16 numbers to a mask: below the first or above the second limit
 *     half_16       16 binary16 to binary32
 *     to_half_16    16 numbers to binary16, rounded to nearest even; false: one became NaN or infinity
 *
 * Loops without intrinsics become vectors of the instruction set of the file that includes this one.
 */
#pragma once

#include <immintrin.h>
#include <stdbool.h>
#include <string.h>

#include "base/half.h"
#include "gpu/cpu/ops.h"

/* ---- coding ---- */

static size_t quantise_simd(const struct levels *l, unsigned b, struct quantise_limits limits, const float *z,
                            size_t n, size_t lanes, uint8_t *codes)
{
    unsigned counted = (1u << lanes) - 1;
    size_t outside = 0;

    for (size_t i = 0; i < n; i += OPS_LANES) {
        quantise_16(l, b, z + i, codes + i);
        outside += (size_t) __builtin_popcount(outside_16(z + i, limits.low, limits.high) & counted);
    }
    return outside;
}

/* to [8][8], rows @to_stride apart, := from transposed */
static inline void transpose_8(const float *from, size_t stride, float *to, size_t to_stride)
{
    __m256 a[8], b[8];

    for (unsigned i = 0; i < 8; i++)
        a[i] = _mm256_loadu_ps(from + i * stride);
    for (unsigned i = 0; i < 4; i++) { /* pairs of rows, then quadruples, then halves of registers */
        b[2 * i] = _mm256_unpacklo_ps(a[2 * i], a[2 * i + 1]);
        b[2 * i + 1] = _mm256_unpackhi_ps(a[2 * i], a[2 * i + 1]);
    }
    for (unsigned i = 0; i < 2; i++) {
        a[4 * i] = _mm256_shuffle_ps(b[4 * i], b[4 * i + 2], _MM_SHUFFLE(1, 0, 1, 0));
        a[4 * i + 1] = _mm256_shuffle_ps(b[4 * i], b[4 * i + 2], _MM_SHUFFLE(3, 2, 3, 2));
        a[4 * i + 2] = _mm256_shuffle_ps(b[4 * i + 1], b[4 * i + 3], _MM_SHUFFLE(1, 0, 1, 0));
        a[4 * i + 3] = _mm256_shuffle_ps(b[4 * i + 1], b[4 * i + 3], _MM_SHUFFLE(3, 2, 3, 2));
    }
    for (unsigned i = 0; i < 4; i++) {
        _mm256_storeu_ps(to + i * to_stride, _mm256_permute2f128_ps(a[i], a[i + 4], 0x20));
        _mm256_storeu_ps(to + (i + 4) * to_stride, _mm256_permute2f128_ps(a[i], a[i + 4], 0x31));
    }
}

static void transpose_simd(const float *x, size_t stride, float *ret, size_t ret_stride)
{
    for (unsigned i = 0; i < OPS_LANES; i += 8)
        for (unsigned k = 0; k < OPS_LANES; k += 8)
            transpose_8(x + i * stride + k, stride, ret + k * ret_stride + i, ret_stride);
}

static bool centre_simd(const float *mean, size_t n, float *x)
{
    uint32_t all = 0;

    for (size_t i = 0; i < n; i++)
        for (unsigned t = 0; t < OPS_LANES; t++) {
            float v = x[i * OPS_LANES + t] - mean[i];
            uint32_t bits;

            memcpy(&bits, &v, sizeof(bits));
            all |= (bits & 0x7fffffff) > 0x7f7fffff;
            x[i * OPS_LANES + t] = v;
        }
    return all == 0;
}

/* ---- number types ---- */

static void from_brain_simd(const void *x, size_t n, float *ret)
{
    const char *from = x;

    for (size_t i = 0; i < n; i++) {
        uint16_t h;

        memcpy(&h, from + i * sizeof(h), sizeof(h));
        ret[i] = bf16_to_f32(h);
    }
}

static void to_brain_simd(const float *x, size_t n, void *ret)
{
    char *to = ret;

    for (size_t i = 0; i < n; i++) {
        uint32_t u = half_float_to_bits(x[i]);
        uint32_t rounded = (u + 0x7fff + (u >> 16 & 1)) >> 16, quiet = u >> 16 | 0x40;
        uint16_t h = (uint16_t) ((u & 0x7fffffff) > 0x7f800000 ? quiet : rounded);

        memcpy(to + i * sizeof(h), &h, sizeof(h));
    }
}

static bool to_half_simd(const float *x, size_t n, void *ret)
{
    float last[16] = {0};
    uint16_t halves[16];
    bool finite = true;
    char *to = ret;
    size_t i;

    for (i = 0; i + 16 <= n; i += 16)
        finite &= to_half_16(x + i, to + i * sizeof(uint16_t));
    if (i == n)
        return finite;
    memcpy(last, x + i, (n - i) * sizeof(*x));
    finite &= to_half_16(last, halves);
    memcpy(to + i * sizeof(uint16_t), halves, (n - i) * sizeof(uint16_t));
    return finite;
}

/* -ffp-contract=off keeps products and sums apart. */
static void turn_simd(float *restrict lo, float *restrict hi, const float *restrict cos,
                      const float *restrict sin, float sign, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        float x = lo[i], y = hi[i], s = sign * sin[i];

        lo[i] = x * cos[i] - y * s;
        hi[i] = y * cos[i] + x * s;
    }
}

#define CONVERT_OPS                                                                                          \
    .quantise = quantise_simd, .transpose = transpose_simd, .centre = centre_simd,                           \
    .from_brain = from_brain_simd, .to_brain = to_brain_simd, .to_half = to_half_simd, .turn = turn_simd
