/*
 * The loops of decode.h for any vector width. Each decode_<isa>.c includes
 * this file once, after it has defined
 *
 *     vec, ivec, LANES              vectors of binary32 and of bits; number of 32-bit lanes
 *     KEY_ROWS, FOLD_ROWS, VALUE_ROWS
 *                                   sums that fit in registers: rows of dec (2 or 4) x 4 vectors of tokens,
 *                                   rows x FOLD_NODES, rows x 32 / LANES vectors of a half-tile
 *     vec_load, vec_store, vec_set1, vec_fma, vec_fnma, vec_max, vec_from_int, vec_abs
 *     vec_round, vec_exp_scale, vec_sum, vec_largest
 *                                   as in ops_simd.h
 *     vec_load_some                 the first n of a vector, zeros for the others
 *     vec_from_doubles              LANES binary64, rounded
 *     ivec_load, ivec_store, ivec_set1, ivec_or, ivec_and, ivec_xor, ivec_srl16, ivec_sll16
 *     ivec_look_up                  bytes of a 16-byte table in each 128 bits; indices below 16
 *     ivec_wide_bytes               LANES * 2 bytes to half-words
 *     ivec_repeat                   128 bits from memory to all of them
 *     ivec_tokens, ivec_token_pairs LANES bytes or half-words to [4 tokens' bytes x 4] or
 *                                   [2 x 2 tokens' x 2] by 128 bits
 *     ivec_add                      of 32-bit lanes
 *     vec_largest4, ivec_sum4       of the lanes of each of four vectors
 *     ivec_nearest, store_low_bytes to whole numbers; the low byte of each lane
 *     dot4, dot2                    sum + products of four unsigned by signed bytes, of two half-words,
 *                                   in each lane
 *     store_bytes, store_whole      rounded towards zero, to nearest
 *     unpack_narrow, unpack_wide    a half-tile of K; b is a constant
 *     value_levels_wide             a half-tile of V, b >= 5, to [8 fields][32 / LANES]
 *     ivec_before(x, y)             128 bits: the last of x, then all of y but its last
 *     ivec_srl16_by, ivec_sll16_by  by a number that is no constant
 *     ivec_blend(x, y, index, bit)  bytes of y where this bit of the byte of index is set
 *     arrange_keys                  levels of a half-tile of K from memory order to that of unpack_narrow
 *     NARROW_MAX, WEIGHT_MAX
 */
#pragma once

#include <string.h>

#include "gpu/cpu/decode.h"
#include "gpu/cpu/each_width.h"
#include "gpu/cpu/exp_simd.h"
#include "gpu/cpu/ops.h"

enum { GROUPS = CHUNK_TOKENS / LANES, WORDS = 32 / LANES, KEY_GROUPS = 4 };

/* Four bytes, or two half-words, in every lane. */
static inline_always ivec ivec_four(const void *p)
{
    int32_t x;

    memcpy(&x, p, sizeof(x));
    return ivec_set1(x);
}

#include "gpu/cpu/fold_simd.h"

/* ---- keys ---- */

/* Prefetches a half-tile of the next page. Prefetching all of them at the start of a page would exceed the
 * outstanding loads of the processor, which would then stall (2026-11-21). */
static inline_always void prefetch_next(const struct coded *c, const uint8_t *at, unsigned b)
{
    for (unsigned i = 0; c->next_page != 0 && i < b; i++)
        __builtin_prefetch((const void *) ((uintptr_t) at + (uintptr_t) c->next_page + i * CHUNK_TOKENS));
}

#include "gpu/cpu/trellis_simd.h"

static void unpack_keys(const struct coded *c, struct key_codes *ret)
{
    const uint8_t *at = c->at;

    ret->n_wide = c->n_wide;
    ret->n_narrow = c->n_narrow;
    for (size_t half = 0; half < c->n_wide; half++) {
        const int16_t *levels = c->levels[c->bits[half]].value;
        ivec *wide = (ivec *) (void *) ret->wide + (c->place ? c->place[half] : half) * PAIRS * GROUPS;

        switch (c->bits[half]) {
            EACH_WIDE(unpack_wide(B, at, levels, wide))
        }
        prefetch_next(c, at, c->bits[half]);
        at += (size_t) c->bits[half] * CHUNK_TOKENS;
    }
    for (size_t half = c->n_wide; half < c->n_wide + c->n_narrow; half++) {
        const struct level_table *t = &c->levels[c->bits[half]];
        size_t place = c->place ? c->place[half] : half - c->n_wide;
        ivec *narrow = (ivec *) (void *) ret->narrow + place * QUADS * GROUPS;
        const int8_t *levels = t->narrow;

        if (t->state_bits > 0)
            unpack_trellis(c->bits[half], t, at, narrow);
        else
            switch (c->bits[half]) {
                EACH_NARROW(unpack_narrow(B, at, levels, narrow))
            }
        prefetch_next(c, at, c->bits[half]);
        at += (size_t) c->bits[half] * CHUNK_TOKENS;
    }
}

/* Narrow parts and means of @rows rows from @row on, for KEY_GROUPS vectors of tokens from @group on. */
static inline_always void narrow_keys(unsigned rows, const struct key_codes *x, const struct key_rows *m,
                                      size_t row, size_t group, vec ret[][KEY_GROUPS])
{
    const ivec *levels = (const void *) x->narrow;
    size_t n = 8 * x->n_narrow;
    const int8_t *dec = m->narrow + row * n;
    ivec sum[KEY_ROWS][KEY_GROUPS];

#pragma GCC unroll 4
    for (unsigned i = 0; i < rows; i++)
#pragma GCC unroll 4
        for (unsigned s = 0; s < KEY_GROUPS; s++)
            sum[i][s] = ivec_set1(m->start[row + i]);
    for (size_t c = 0; c < n; c += 4) {
        const ivec *at = levels + c / 4 * GROUPS + group;

#pragma GCC unroll 4
        for (unsigned i = 0; i < rows; i++) {
            ivec factor = ivec_four(dec + i * n + c);

#pragma GCC unroll 4
            for (unsigned s = 0; s < KEY_GROUPS; s++)
                sum[i][s] = dot4(sum[i][s], at[s], factor);
        }
    }
#pragma GCC unroll 4
    for (unsigned i = 0; i < rows; i++)
#pragma GCC unroll 4
        for (unsigned s = 0; s < KEY_GROUPS; s++)
            ret[i][s] = vec_fma(vec_from_int(sum[i][s]), vec_set1(m->narrow_step[row + i]),
                                vec_set1(m->mean[row + i]));
}

static inline_always void add_wide_keys(unsigned rows, const struct key_codes *x, const struct key_rows *m,
                                        size_t row, size_t group, vec ret[][KEY_GROUPS])
{
    const ivec *levels = (const void *) x->wide;
    size_t n = 8 * x->n_wide;
    const int16_t *dec = m->wide + row * n;
    ivec sum[KEY_ROWS][KEY_GROUPS];

#pragma GCC unroll 4
    for (unsigned i = 0; i < rows; i++)
#pragma GCC unroll 4
        for (unsigned s = 0; s < KEY_GROUPS; s++)
            sum[i][s] = ivec_set1(0);
    for (size_t c = 0; c < n; c += 2) {
        const ivec *at = levels + c / 2 * GROUPS + group;

#pragma GCC unroll 4
        for (unsigned i = 0; i < rows; i++) {
            ivec factor = ivec_four(dec + i * n + c);

#pragma GCC unroll 4
            for (unsigned s = 0; s < KEY_GROUPS; s++)
                sum[i][s] = dot2(sum[i][s], at[s], factor);
        }
    }
#pragma GCC unroll 4
    for (unsigned i = 0; i < rows; i++)
#pragma GCC unroll 4
        for (unsigned s = 0; s < KEY_GROUPS; s++)
            ret[i][s] = vec_fma(vec_from_int(sum[i][s]), vec_set1(m->wide_step[row + i]), ret[i][s]);
}

/* Rotates the keys of @rows / 2 planes from @plane on by their offsets and stores them. */
static inline_always void store_keys(unsigned rows, const struct key_rows *m, size_t plane, size_t group,
                                     vec key[][KEY_GROUPS], float *kt)
{
#pragma GCC unroll 2
    for (unsigned i = 0; i < rows; i += 2, plane++)
#pragma GCC unroll 4
        for (unsigned s = 0; s < KEY_GROUPS; s++) {
            size_t at = plane * CHUNK_TOKENS + (group + s) * LANES;
            vec lo = key[i][s], hi = key[i + 1][s], rotated = lo;

            if (plane < m->n_rot) {
                vec cosine = vec_load(m->cos + at), sine = vec_load(m->sin + at);

                rotated = vec_fnma(hi, sine, lo * cosine);
                hi = vec_fma(lo, sine, hi * cosine);
            }
            vec_store(kt + at, rotated);
            vec_store(kt + m->kt_planes * CHUNK_TOKENS + at, hi);
        }
}

static inline_always void key_planes(unsigned rows, const struct key_codes *x, const struct key_rows *m,
                                     size_t plane, float *kt)
{
    for (size_t group = 0; group < GROUPS; group += KEY_GROUPS) {
        vec key[KEY_ROWS][KEY_GROUPS];

        narrow_keys(rows, x, m, 2 * plane, group, key);
        if (x->n_wide > 0)
            add_wide_keys(rows, x, m, 2 * plane, group, key);
        store_keys(rows, m, plane, group, key, kt);
    }
}

static void keys(const struct key_codes *x, const struct key_rows *m, float *kt)
{
    const struct key_codes codes = *x; /* copies, which stores to kt cannot change */
    const struct key_rows rows = *m;
    size_t i = 0;

    for (; i + KEY_ROWS / 2 <= rows.n_planes; i += KEY_ROWS / 2)
        key_planes(KEY_ROWS, &codes, &rows, i, kt);
    if (i < rows.n_planes)
        key_planes(2, &codes, &rows, i, kt);
}

/* Cosines and sines in binary64 are rounded here; columns beyond @n are undefined. */
static void rotate(const float *q, size_t half, const double *cos, const double *sin, size_t n, float *ret,
                   size_t ld)
{
    for (size_t i = 0; i < n; i += LANES) {
        vec c = vec_from_doubles(cos + i), s = vec_from_doubles(sin + i);
        vec lo = vec_load_some(q + i, half - i), hi = vec_load_some(q + half + i, half - i);

        vec_store(ret + i, vec_fnma(hi, s, lo * c));
        vec_store(ret + ld + i, vec_fma(lo, s, hi * c));
    }
}

/* ---- weights ---- */

/* Weights are rounded down after (k + 1/2) / 64 has been added, k = 0 .. 63 in the order of reversed bits.
 * So each errs by less than one step, and many small weights, each below half a step, do not vanish
 * together as they would if all were rounded to nearest. */
static const float dither[CHUNK_TOKENS] = {
#define D(k) (k + 0.5f) / 64
#define D4(k) D(k), D(k + 32), D(k + 16), D(k + 48)
#define D16(k) D4(k), D4(k + 8), D4(k + 4), D4(k + 12)
    D16(0), D16(2), D16(1), D16(3)
#undef D16
#undef D4
#undef D
};

/* Orders bytes [64] as by_four and by_two: from rows of eight tokens, two
 * fields of a plane are interleaved. */
static inline_always void order_bytes(struct row_weights *w)
{
    __m128i x[4];

    memcpy(x, w->bytes, sizeof(x));
    for (unsigned i = 0; i < 2; i++) {
        __m128i *four = (void *) w->by_four[2 * i], *two = (void *) w->by_two[2 * i];

        _mm_store_si128(four, _mm_unpacklo_epi8(x[2 * i], x[2 * i + 1]));
        _mm_store_si128(four + 1, _mm_unpackhi_epi8(x[2 * i], x[2 * i + 1]));
        _mm_store_si128(two, _mm_unpacklo_epi8(x[i], x[i + 2]));
        _mm_store_si128(two + 1, _mm_unpackhi_epi8(x[i], x[i + 2]));
    }
}

/* exp(x - largest) of one row as whole numbers; also the largest and the sum of all. */
static inline_always void weigh_row(float scores[CHUNK_TOKENS], size_t n_exact, bool wide, float *ret_max,
                                    float *ret_sum, struct row_weights *ret)
{
    vec x[GROUPS], top = vec_load(scores), sum = vec_set1(0);
    float max;

#pragma GCC unroll 8
    for (unsigned i = 0; i < GROUPS; i++) {
        x[i] = vec_load(scores + i * LANES);
        top = vec_max(top, x[i]);
    }
    max = vec_largest(top);
#pragma GCC unroll 8
    for (unsigned i = 0; i < GROUPS; i++) {
        x[i] = exp_vec(x[i] - vec_set1(max));
        sum += x[i];
        store_bytes(vec_fma(x[i], vec_set1(WEIGHT_MAX), vec_load(dither + i * LANES)),
                    ret->bytes + i * LANES);
        if (wide)
            store_whole(x[i] * vec_set1(WEIGHT_WIDE_MAX), ret->whole + i * LANES);
        if (n_exact > 0)
            vec_store(scores + i * LANES, x[i]);
    }
    *ret_max = max;
    *ret_sum = vec_sum(sum);
    if (n_exact > 0) {
        memset(ret->bytes, 0, n_exact);
        memset(ret->whole, 0, n_exact * sizeof(*ret->whole));
    }
    order_bytes(ret);
}

static void softmax(size_t n_rows, float *scores, struct softmax_row *state, size_t n_exact, bool wide,
                    float ret_factor[DECODE_ROWS_MAX], struct row_weights *ret)
{
    float max[DECODE_ROWS_MAX], sum[DECODE_ROWS_MAX], page[DECODE_ROWS_MAX] = {0}, old[DECODE_ROWS_MAX] = {0};

    for (size_t i = 0; i < n_rows; i++)
        weigh_row(scores + i * CHUNK_TOKENS, n_exact, wide, &max[i], &sum[i], &ret[i]);
    for (size_t i = 0; i < n_rows; i++) {
        float top = max[i] > state[i].max ? max[i] : state[i].max;

        page[i] = max[i] - top;
        old[i] = state[i].max - top;
        state[i].max = top;
    }
    for (size_t i = 0; i < n_rows; i += LANES) {
        vec_store(page + i, exp_vec(vec_load(page + i)));
        vec_store(old + i, exp_vec(vec_load(old + i)));
    }
    for (size_t i = 0; i < n_rows; i++) {
        ret[i].sum = sum[i] * page[i];
        state[i].sum = state[i].sum * old[i] + ret[i].sum;
        ret_factor[i] = old[i];
        ret[i].step = page[i] / WEIGHT_MAX;
        ret[i].whole_step = page[i] / WEIGHT_WIDE_MAX;
        for (size_t t = 0; t < n_exact; t++)
            scores[i * CHUNK_TOKENS + t] *= page[i];
    }
}

#define DECODE_OPS                                                                                           \
    {                                                                                                        \
        .narrow_max = NARROW_MAX, .weight_max = WEIGHT_MAX, .lanes = LANES, .unpack_keys = unpack_keys,      \
        .keys = keys, .rotate = rotate, .rotations = rotations, .nodes = nodes, .fold = fold,                \
        .softmax = softmax, .values = values, .key_values = key_values,                                      \
    }
