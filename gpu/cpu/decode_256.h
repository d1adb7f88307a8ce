/* Decode steps in vectors of 256 bits, included once each by decode_avx2.c and decode_avxvnni.c, which
 * define dot4, dot2, NARROW_MAX and WEIGHT_MAX first. */
#pragma once

#include "gpu/cpu/ops_x86.h"

typedef __m256 vec;

enum { LANES = 8, KEY_ROWS = 2, FOLD_ROWS = 2, VALUE_ROWS = 2 };

#define vec_load(p) _mm256_loadu_ps(p)
#define vec_load_some(p, n) _mm256_loadu_ps(p) /* numbers of columns are multiples of 8 */
#define vec_store(p, x) _mm256_storeu_ps(p, x)
#define vec_set1(x) _mm256_set1_ps(x)
#define vec_fma(a, b, c) _mm256_fmadd_ps(a, b, c)
#define vec_fnma(a, b, c) _mm256_fnmadd_ps(a, b, c)
#define vec_max(a, b) _mm256_max_ps(a, b)
#define vec_abs(x) _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x)
#define vec_round(x) _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)
#define vec_from_int(x) _mm256_cvtepi32_ps(x)
#define vec_from_doubles(p)                                                                                  \
    _mm256_set_m128(_mm256_cvtpd_ps(_mm256_loadu_pd((p) + 4)), _mm256_cvtpd_ps(_mm256_loadu_pd(p)))
#define ivec_load(p) _mm256_loadu_si256((const void *) (p))
#define ivec_set1(x) _mm256_set1_epi32(x)
#define ivec_or(a, b) _mm256_or_si256(a, b)
#define ivec_and(a, b) _mm256_and_si256(a, b)
#define ivec_xor(a, b) _mm256_xor_si256(a, b)
#define ivec_add(a, b) _mm256_add_epi32(a, b)
#define ivec_srl16(x, n) _mm256_srli_epi16(x, (int) (n))
#define ivec_sll16(x, n) _mm256_slli_epi16(x, (int) (n))
#define ivec_look_up(table, index) _mm256_shuffle_epi8(table, index)
#define ivec_wide_bytes(p) _mm256_cvtepu8_epi16(_mm_loadu_si128((const void *) (p)))
#define ivec_repeat(p) _mm256_broadcastsi128_si256(_mm_loadu_si128((const void *) (p)))
#define ivec_nearest(x) _mm256_cvtps_epi32(x)

static inline_always float vec_largest(vec x)
{
    __m128 y = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));

    y = _mm_max_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_max_ss(y, _mm_movehdup_ps(y)));
}

static inline_always float vec_sum(vec x)
{
    __m128 y = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));

    y = _mm_add_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_add_ss(y, _mm_movehdup_ps(y)));
}

static inline_always __m128 vec_largest4(const vec x[4])
{
    __m128 y[4];

    for (unsigned i = 0; i < 4; i++)
        y[i] = _mm_max_ps(_mm256_castps256_ps128(x[i]), _mm256_extractf128_ps(x[i], 1));
    _MM_TRANSPOSE4_PS(y[0], y[1], y[2], y[3]);
    return _mm_max_ps(_mm_max_ps(y[0], y[1]), _mm_max_ps(y[2], y[3]));
}

static inline_always __m128i ivec_sum4(const ivec x[4])
{
    __m256i y = _mm256_hadd_epi32(_mm256_hadd_epi32(x[0], x[1]), _mm256_hadd_epi32(x[2], x[3]));

    return _mm_add_epi32(_mm256_castsi256_si128(y), _mm256_extracti128_si256(y, 1));
}

/* 2^n by its exponent field. */
static inline_always vec vec_exp_scale(vec x, vec n, vec argument)
{
    ivec bits = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
    vec keep = _mm256_cmp_ps(argument, _mm256_set1_ps(EXP_LOWEST), _CMP_GE_OQ);

    return _mm256_and_ps(x * _mm256_castsi256_ps(bits), keep);
}

/* Packs eight whole numbers to half-words. */
static inline_always __m128i half_words(ivec x)
{
    return _mm_packs_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
}

static inline_always void store_low_bytes(void *p, ivec x)
{
    __m128i words = half_words(x);

    _mm_storel_epi64(p, _mm_packs_epi16(words, words));
}

static inline_always void store_bytes(vec x, uint8_t *p)
{
    __m128i words = half_words(_mm256_cvttps_epi32(x));

    _mm_storel_epi64((void *) p, _mm_packus_epi16(words, words));
}

static inline_always void store_whole(vec x, int16_t *p)
{
    _mm_storeu_si128((void *) p, half_words(_mm256_cvtps_epi32(x)));
}

static inline_always ivec ivec_tokens(const uint8_t *p)
{
    const ivec each = _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1);

    return _mm256_permutevar8x32_epi32(_mm256_castsi128_si256(_mm_loadl_epi64((const void *) p)), each);
}

static inline_always ivec ivec_token_pairs(const int16_t *p)
{
    return _mm256_permute4x64_epi64(_mm256_castsi128_si256(_mm_loadu_si128((const void *) p)), 0x50);
}

/* ---- look-up of wide levels ---- */

/* Bits @shift .. @shift + @width - 1 of each half-word, moved up by @up. */
static inline_always ivec field(ivec words, unsigned shift, unsigned width, unsigned up)
{
    return ivec_sll16(ivec_and(ivec_srl16(words, shift), _mm256_set1_epi16((short) ((1 << width) - 1))), up);
}

/* A gather reads two levels at a time: at the end of the table, one of them belongs to the
 * next member of struct level_table. */
static inline_always ivec look_up_wide(const int16_t *levels, ivec codes)
{
    const ivec low = _mm256_set1_epi32(0xffff);
    ivec even = _mm256_i32gather_epi32((const int *) (const void *) levels, ivec_and(codes, low), 2);
    ivec odd = _mm256_i32gather_epi32((const int *) (const void *) levels, _mm256_srli_epi32(codes, 16), 2);

    return ivec_or(ivec_and(even, low), _mm256_slli_epi32(odd, 16));
}

/* Codes of field @j, b >= 5, from one vector of words of each plane. */
static inline_always ivec wide_codes(unsigned b, unsigned j, ivec p8, ivec p4, ivec p2, ivec p1)
{
    ivec x;

    if (b == 8)
        return field(p8, 8 * (j % 2), 8, 0);
    x = field(p4, 4 * (j % 4), 4, b & 3);
    if (b & 2)
        x = ivec_or(x, field(p2, 2 * j, 2, b & 1));
    if (b & 1)
        x = ivec_or(x, field(p1, j, 1, 0));
    return x;
}

/* ---- keys ---- */

/* Eight tokens of four 32-bit words each, two tokens per vector, to words 0 .. 3 of all tokens. */
static inline_always void by_word(const ivec x[4], ivec ret[4])
{
    const ivec in_order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);

    for (unsigned i = 0; i < 2; i++) {
        ivec ab = i == 0 ? _mm256_unpacklo_epi32(x[0], x[1]) : _mm256_unpackhi_epi32(x[0], x[1]);
        ivec cd = i == 0 ? _mm256_unpacklo_epi32(x[2], x[3]) : _mm256_unpackhi_epi32(x[2], x[3]);

        ret[2 * i] = _mm256_permutevar8x32_epi32(_mm256_unpacklo_epi64(ab, cd), in_order);
        ret[2 * i + 1] = _mm256_permutevar8x32_epi32(_mm256_unpackhi_epi64(ab, cd), in_order);
    }
}

/* A row of the planes of four and two bits: [c 0..3, c 4..7 of lower fields; the same of higher fields]. */
static inline_always void load_by_token(const uint8_t *at, ivec ret[4])
{
    static const uint8_t order[16] = {0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15};
    ivec x[4];

    for (unsigned i = 0; i < 4; i++)
        x[i] = ivec_look_up(ivec_load(at + 32 * i), ivec_repeat(order));
    by_word(x, ret);
}

/* The plane of one bit, [8 tokens][8 bytes], to [8 tokens][4 bytes] of coordinates 4 @quad .. */
static inline_always ivec load_bits(const uint8_t *at, unsigned quad)
{
    vec a = _mm256_castsi256_ps(ivec_load(at)), z = _mm256_castsi256_ps(ivec_load(at + 32));
    vec x = quad == 0 ? _mm256_shuffle_ps(a, z, 0x88) : _mm256_shuffle_ps(a, z, 0xdd);

    return _mm256_permute4x64_epi64(_mm256_castps_si256(x), 0xd8);
}

/* One half-tile of K to x [QUADS][8]: bytes of level + 128 of [8 tokens][4 coordinates]. */
static inline_always void unpack_narrow(unsigned b, const uint8_t *at, const int8_t *levels, ivec *x)
{
    ivec table = ivec_xor(ivec_repeat(levels), _mm256_set1_epi8((char) 0x80)), rows[2][4] = {0};

    for (unsigned i = 0; i < (b == 4 ? 2 : b / 2); i++)
        load_by_token(at + i * ROW_BYTES, rows[i]);
#pragma GCC unroll 2
    for (unsigned quad = 0; quad < 2; quad++) {
        const uint8_t *bits_at = b == 3 ? at + ROW_BYTES : at;
        ivec bits = b & 1 ? load_bits(bits_at, quad) : _mm256_setzero_si256();

#pragma GCC unroll 8
        for (unsigned j = 0; j < 8; j++) {
            ivec index = _mm256_setzero_si256();

            if (b == 4)
                index = ivec_and(ivec_srl16(rows[j / 4][quad + j / 2 % 2 * 2], 4 * (j % 2)),
                                 ivec_set1(0x0f0f0f0f));
            if (b & 2)
                index = ivec_and(ivec_srl16(rows[0][quad + j / 4 * 2], 2 * (j % 4)), ivec_set1(0x03030303));
            if (b == 3)
                index = _mm256_add_epi8(index, index);
            if (b & 1)
                index = ivec_or(index, ivec_and(ivec_srl16(bits, j), ivec_set1(0x01010101)));
            x[8 * quad + j] = ivec_look_up(table, index);
        }
    }
}

#define ivec_before(x, y) _mm256_permute2x128_si256(x, y, 0x21)
#define ivec_srl16_by(x, n) _mm256_srl_epi16(x, _mm_cvtsi32_si128((int) (n)))
#define ivec_sll16_by(x, n) _mm256_sll_epi16(x, _mm_cvtsi32_si128((int) (n)))
#define ivec_blend(x, y, index, bit) _mm256_blendv_epi8(x, y, _mm256_slli_epi16(index, 7 - (int) (bit)))

/* Levels of fields j and j + 4, [4 j][4][2 tokens][8 coordinates][2], to x [QUADS][8]: bytes of [8 tokens][4
 * coordinates]. */
static inline_always void arrange_keys(ivec levels[4][4], ivec *x)
{
    static const uint8_t order[16] = {0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15};

#pragma GCC unroll 4
    for (unsigned j = 0; j < 4; j++) {
        ivec rows[4];

        for (unsigned i = 0; i < 4; i++)
            levels[j][i] = ivec_look_up(levels[j][i], ivec_repeat(order));
        by_word(levels[j], rows);
        for (unsigned i = 0; i < 4; i++)
            x[8 * (i % 2) + j + 4 * (i / 2)] = rows[i];
    }
}

/* One row of words of any plane; the plane of one bit has half-words of 8 bits. */
static inline_always void load_words(bool one_bit, const uint8_t *at, ivec ret[4])
{
    for (unsigned i = 0; i < 4; i++)
        ret[i] = one_bit ? ivec_wide_bytes(at + 16 * i) : ivec_load(at + 32 * i);
}

/* All planes of a wide half-tile, in memory order or by word of the tokens. */
struct wide_words {
    ivec p8[4][4], p4[2][4], p2[4], p1[4];
};

static inline_always void load_wide(unsigned b, bool words, const uint8_t *at, struct wide_words *ret)
{
    ivec(*rows[])[4] = {ret->p8, ret->p4, &ret->p2, &ret->p1};
    const unsigned n[] = {b == 8 ? 4 : 0, b == 8 ? 0 : 2, b == 6 || b == 7, b == 5 || b == 7};

#pragma GCC unroll 4
    for (unsigned plane = 0; plane < 4; plane++)
#pragma GCC unroll 4
        for (unsigned i = 0; i < n[plane]; i++, at += ROW_BYTES) {
            ivec x[4];

            load_words(plane == 3, at, x);
            if (words)
                by_word(x, rows[plane][i]);
            else
                memcpy(rows[plane][i], x, sizeof(x));
        }
}

/* One half-tile of K to x [PAIRS][8]: levels of [8 tokens][2 coordinates]. */
static inline_always void unpack_wide(unsigned b, const uint8_t *at, const int16_t *levels, ivec *x)
{
    struct wide_words w;

    memset(&w, 0, sizeof(w));
    load_wide(b, true, at, &w);
    for (unsigned i = 0; i < 4; i++)
#pragma GCC unroll 8
        for (unsigned j = 0; j < 8; j++)
            x[8 * i + j] =
                look_up_wide(levels, wide_codes(b, j, w.p8[j / 2][i], w.p4[j / 4][i], w.p2[i], w.p1[i]));
}

/* ---- values ---- */

/* One half-tile of V to x [8 fields]: [8 coordinates][8 tokens]. */
static inline_always void value_levels_wide(unsigned b, const uint8_t *at, const int16_t *levels,
                                            ivec x[8][4])
{
    struct wide_words w;

    memset(&w, 0, sizeof(w));
    load_wide(b, false, at, &w);
#pragma GCC unroll 8
    for (unsigned j = 0; j < 8; j++)
        for (unsigned i = 0; i < 4; i++)
            x[j][i] =
                look_up_wide(levels, wide_codes(b, j, w.p8[j / 2][i], w.p4[j / 4][i], w.p2[i], w.p1[i]));
}

#include "gpu/cpu/decode_simd.h"
#include "gpu/cpu/value_simd.h"
