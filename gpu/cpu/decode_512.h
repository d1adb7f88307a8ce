/* Decode steps on vectors of 512 bits with AVX-512 BW and VNNI: 64 codes at a time become bytes by one
 * shift, one mask and one lookup, and vpdpbusd multiplies and adds four of them. Included only by
 * decode_avx512.c and decode_avx512vbmi.c. */
#pragma once

#include <immintrin.h>

#include "gpu/cpu/ops_x86.h"

#define inline_always inline __attribute__((always_inline))

typedef __m512 vec;
typedef __m512i ivec;

enum { LANES = 16, KEY_ROWS = 4, FOLD_ROWS = 4, VALUE_ROWS = 4, NARROW_MAX = 127, WEIGHT_MAX = 255 };

#define vec_load(p) _mm512_loadu_ps(p)
#define vec_store(p, x) _mm512_storeu_ps(p, x)
#define vec_set1(x) _mm512_set1_ps(x)
#define vec_fma(a, b, c) _mm512_fmadd_ps(a, b, c)
#define vec_fnma(a, b, c) _mm512_fnmadd_ps(a, b, c)
#define vec_max(a, b) _mm512_max_ps(a, b)
#define vec_round(x) _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)
#define vec_abs(x) _mm512_abs_ps(x)
#define vec_from_int(x) _mm512_cvtepi32_ps(x)
#define vec_largest(x) _mm512_reduce_max_ps(x)
#define vec_sum(x) _mm512_reduce_add_ps(x)
#define ivec_load(p) _mm512_loadu_si512(p)
#define ivec_set1(x) _mm512_set1_epi32(x)
#define ivec_or(a, b) _mm512_or_si512(a, b)
#define ivec_and(a, b) _mm512_and_si512(a, b)
#define ivec_xor(a, b) _mm512_xor_si512(a, b)
#define ivec_add(a, b) _mm512_add_epi32(a, b)
#define ivec_srl16(x, n) _mm512_srli_epi16(x, n)
#define ivec_sll16(x, n) _mm512_slli_epi16(x, n)
#define ivec_look_up(table, index) _mm512_shuffle_epi8(table, index)
#define ivec_wide_bytes(p) _mm512_cvtepu8_epi16(_mm256_loadu_si256((const void *) (p)))
#define ivec_repeat(p) _mm512_broadcast_i32x4(_mm_loadu_si128((const void *) (p)))
#define ivec_nearest(x) _mm512_cvtps_epi32(x)
#define store_low_bytes(p, x) _mm_storeu_si128((void *) (p), _mm512_cvtepi32_epi8(x))
#define store_bytes(x, p) _mm_storeu_si128((void *) (p), _mm512_cvtepi32_epi8(_mm512_cvttps_epi32(x)))
#define store_whole(x, p) _mm256_storeu_si256((void *) (p), _mm512_cvtsepi32_epi16(_mm512_cvtps_epi32(x)))

static inline_always __m128 vec_largest4(const vec x[4])
{
    __m128 y[4];

#pragma GCC unroll 4
    for (unsigned i = 0; i < 4; i++) {
        __m256 half = _mm256_max_ps(_mm512_castps512_ps256(x[i]), _mm512_extractf32x8_ps(x[i], 1));

        y[i] = _mm_max_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    }
    _MM_TRANSPOSE4_PS(y[0], y[1], y[2], y[3]);
    return _mm_max_ps(_mm_max_ps(y[0], y[1]), _mm_max_ps(y[2], y[3]));
}

static inline_always __m128i ivec_sum4(const ivec x[4])
{
    __m128i y[4];

#pragma GCC unroll 4
    for (unsigned i = 0; i < 4; i++) {
        __m256i half = _mm256_add_epi32(_mm512_castsi512_si256(x[i]), _mm512_extracti32x8_epi32(x[i], 1));

        y[i] = _mm_add_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
    }
    return _mm_hadd_epi32(_mm_hadd_epi32(y[0], y[1]), _mm_hadd_epi32(y[2], y[3]));
}

static inline_always vec vec_exp_scale(vec x, vec n, vec argument)
{
    return _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(argument, _mm512_set1_ps(EXP_LOWEST), _CMP_GE_OQ), x, n);
}

static inline_always vec vec_load_some(const float *p, size_t n)
{
    return n >= LANES ? _mm512_loadu_ps(p) : _mm512_maskz_loadu_ps((__mmask16) ((1u << n) - 1), p);
}

static inline_always vec vec_from_doubles(const double *p)
{
    return _mm512_insertf32x8(_mm512_castps256_ps512(_mm512_cvtpd_ps(_mm512_loadu_pd(p))),
                              _mm512_cvtpd_ps(_mm512_loadu_pd(p + 8)), 1);
}

static inline_always ivec ivec_tokens(const uint8_t *p)
{
    const __m512i each = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);

    return _mm512_permutexvar_epi32(each, _mm512_castsi128_si512(_mm_loadu_si128((const void *) p)));
}

static inline_always ivec ivec_token_pairs(const int16_t *p)
{
    const __m512i each = _mm512_setr_epi64(0, 0, 1, 1, 2, 2, 3, 3);

    return _mm512_permutexvar_epi64(each, _mm512_castsi256_si512(_mm256_loadu_si256((const void *) p)));
}

/* Inline assembly instead of intrinsics: around these, gcc 12 copies every sum of a loop twice, three
 * instructions instead of one (2026-11-21). */
static inline_always ivec dot4(ivec sum, ivec u, ivec s)
{
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(u), "v"(s));
    return sum;
}

static inline_always ivec dot2(ivec sum, ivec a, ivec b)
{
    __asm__("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
    return sum;
}

/* ---- look-up of wide levels ---- */

/* Fields of all planes at one place; bits above the field are undefined. */
struct fields {
    ivec p8, p4, p2, p1;
};

/* (high << width) | (low & mask of width), the mask from @mask. */
static inline_always ivec below(ivec high, ivec low, unsigned width)
{
    ivec mask = _mm512_set1_epi16((short) ((1 << width) - 1));

    return _mm512_ternarylogic_epi32(mask, low, _mm512_slli_epi16(high, width), 0xca);
}

static inline_always ivec wide_index(unsigned b, struct fields f)
{
    switch (b) {
    case 5:
        return below(f.p4, f.p1, 1);
    case 6:
        return below(f.p4, f.p2, 2);
    case 7:
        return below(below(f.p4, f.p2, 2), f.p1, 1);
    default:
        return f.p8;
    }
}

/* 64 levels from @t on, by the low six bits of the index. */
static inline_always ivec look_up_64(const int16_t *t, ivec index)
{
    return _mm512_permutex2var_epi16(_mm512_load_si512(t), index, _mm512_load_si512(t + 32));
}

static inline_always ivec look_up_128(const int16_t *t, ivec index)
{
    __mmask32 upper = _mm512_test_epi16_mask(index, _mm512_set1_epi16(64));

    return _mm512_mask_mov_epi16(look_up_64(t, index), upper, look_up_64(t + 64, index));
}

static inline_always ivec look_up_wide(unsigned b, const int16_t *t, ivec index)
{
    if (b == 5)
        return _mm512_permutexvar_epi16(index, _mm512_load_si512(t));
    if (b == 6)
        return look_up_64(t, index);
    if (b == 7)
        return look_up_128(t, index);
    return _mm512_mask_mov_epi16(look_up_128(t, index), _mm512_test_epi16_mask(index, _mm512_set1_epi16(128)),
                                 look_up_128(t + 128, index));
}

/* ---- keys ---- */

/* Words hold [8 tokens][4 32-bit words], and eight more tokens in their higher fields.
 * Returns word @i of each token twice: the lower half for one field, the upper half, @by bits
 * further up, for the next eight tokens. */
static inline_always ivec word_of(ivec a, ivec b, unsigned i)
{
    const ivec first = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28);

    return _mm512_permutex2var_epi32(a, _mm512_add_epi32(first, _mm512_set1_epi32((int) i)), b);
}

static inline_always ivec fields_at(ivec words, unsigned shift, unsigned by)
{
    const ivec down =
        _mm512_inserti64x4(_mm512_set1_epi16((short) shift), _mm256_set1_epi16((short) (shift + by)), 1);

    return _mm512_srlv_epi16(words, down);
}

/* A row of the planes of four and two bits by token: [c 0..3, c 4..7 of lower
 * fields; the same of higher fields]. */
static inline_always ivec load_by_token(const uint8_t *at)
{
    const ivec order =
        _mm512_broadcast_i32x4(_mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15));

    return _mm512_shuffle_epi8(_mm512_loadu_si512(at), order);
}

/* One half-tile of K to x [QUADS][GROUPS]: bytes of level + 128 of [16 tokens][4 coordinates]. */
static inline_always void unpack_narrow(unsigned b, const uint8_t *at, const int8_t *levels, ivec *x)
{
    ivec table = _mm512_xor_si512(ivec_repeat(levels), _mm512_set1_epi8((char) 0x80));
    ivec a[2] = {0}, z[2] = {0}, p1 = {0};

    for (unsigned i = 0; i < (b == 4 ? 2 : b / 2); i++) {
        a[i] = load_by_token(at + i * ROW_BYTES);
        z[i] = load_by_token(at + i * ROW_BYTES + 64);
    }
    if (b & 1) /* [8 tokens][8 bytes], a field per bit */
        p1 = _mm512_loadu_si512(at + (b == 3 ? ROW_BYTES : 0));
#pragma GCC unroll 2
    for (unsigned quad = 0; quad < 2; quad++)
#pragma GCC unroll 4
        for (unsigned s = 0; s < 4; s++) {
            const ivec twos = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 0, 2, 4, 6, 8, 10, 12, 14);
            ivec index = {0};

            if (b == 4)
                index = ivec_and(fields_at(word_of(a[s / 2], z[s / 2], quad + 2 * (s % 2)), 0, 4),
                                 ivec_set1(0x0f0f0f0f));
            if (b & 2)
                index = ivec_and(fields_at(word_of(a[0], z[0], quad + 2 * (s / 2)), 4 * (s % 2), 2),
                                 ivec_set1(0x03030303));
            if (b == 3)
                index = _mm512_add_epi8(index, index);
            if (b & 1) {
                ivec words = _mm512_permutexvar_epi32(_mm512_add_epi32(twos, ivec_set1((int) quad)), p1);

                index = ivec_or(index, ivec_and(fields_at(words, 2 * s, 1), ivec_set1(0x01010101)));
            }
            x[quad * 4 + s] = ivec_look_up(table, index);
        }
}

#define ivec_before(x, y) _mm512_alignr_epi64(y, x, 6)
#define ivec_srl16_by(x, n) _mm512_srl_epi16(x, _mm_cvtsi32_si128((int) (n)))
#define ivec_sll16_by(x, n) _mm512_sll_epi16(x, _mm_cvtsi32_si128((int) (n)))
#define ivec_blend(x, y, index, bit)                                                                         \
    _mm512_mask_mov_epi8(x, _mm512_test_epi8_mask(index, _mm512_set1_epi8((char) (1 << (bit)))), y)

/* Levels of fields j and j + 4, [4 j][2][4 tokens][8 coordinates][2], to x [QUADS][4]: bytes of [16 tokens][4
 * coordinates]. */
static inline_always void arrange_keys(ivec levels[4][2], ivec *x)
{
    const ivec order =
        _mm512_broadcast_i32x4(_mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15));

#pragma GCC unroll 8
    for (unsigned i = 0; i < 8; i++)
        levels[i / 2][i % 2] = _mm512_shuffle_epi8(levels[i / 2][i % 2], order);
#pragma GCC unroll 2
    for (unsigned quad = 0; quad < 2; quad++)
#pragma GCC unroll 4
        for (unsigned s = 0; s < 4; s++) {
            unsigned j = 2 * (s % 2), word = quad + 2 * (s / 2);
            ivec lower = word_of(levels[j][0], levels[j][1], word);
            ivec upper = word_of(levels[j + 1][0], levels[j + 1][1], word);

            x[quad * 4 + s] = _mm512_mask_mov_epi32(lower, 0xff00, upper);
        }
}

/* One half-tile of K to x [PAIRS][GROUPS]: levels of [16 tokens][2 coordinates]. */
static inline_always void unpack_wide(unsigned b, const uint8_t *at, const int16_t *levels, ivec *x)
{
    const uint8_t *at2 = at + 2 * ROW_BYTES, *at1 = at2 + (b == 7 ? ROW_BYTES : 0);

    for (unsigned i = 0; i < 4; i++)
#pragma GCC unroll 4
        for (unsigned s = 0; s < 4; s++) {
            struct fields f = {0};

            if (b == 8)
                f.p8 = fields_at(
                    word_of(ivec_load(at + s * ROW_BYTES), ivec_load(at + s * ROW_BYTES + 64), i), 0, 8);
            if (b != 8)
                f.p4 = fields_at(
                    word_of(ivec_load(at + s / 2 * ROW_BYTES), ivec_load(at + s / 2 * ROW_BYTES + 64), i),
                    8 * (s % 2), 4);
            if (b == 6 || b == 7)
                f.p2 = fields_at(word_of(ivec_load(at2), ivec_load(at2 + 64), i), 4 * s, 2);
            if (b == 5 || b == 7)
                f.p1 = fields_at(word_of(ivec_wide_bytes(at1), ivec_wide_bytes(at1 + 32), i), 2 * s, 1);
            x[4 * i + s] = look_up_wide(b, levels, wide_index(b, f));
        }
}

/* ---- values ---- */

/* One half-tile of V to x [8 fields]: [8 coordinates][8 tokens]. */
static inline_always void value_levels_wide(unsigned b, const uint8_t *at, const int16_t *levels,
                                            ivec x[8][2])
{
    const uint8_t *at2 = at + 2 * ROW_BYTES, *at1 = at2 + (b == 7 ? ROW_BYTES : 0);

#pragma GCC unroll 8
    for (unsigned j = 0; j < 8; j++)
#pragma GCC unroll 2
        for (unsigned v = 0; v < 2; v++) {
            struct fields f = {0};

            if (b == 8)
                f.p8 = _mm512_srli_epi16(ivec_load(at + j / 2 * ROW_BYTES + 64 * v), 8 * (j % 2));
            if (b != 8)
                f.p4 = _mm512_srli_epi16(ivec_load(at + j / 4 * ROW_BYTES + 64 * v), 4 * (j % 4));
            if (b == 6 || b == 7)
                f.p2 = _mm512_srli_epi16(ivec_load(at2 + 64 * v), 2 * j);
            if (b == 5 || b == 7)
                f.p1 = _mm512_srli_epi16(ivec_wide_bytes(at1 + 32 * v), j);
            x[j][v] = look_up_wide(b, levels, wide_index(b, f));
        }
}

#include "gpu/cpu/decode_simd.h"
#include "gpu/cpu/value_simd.h"
