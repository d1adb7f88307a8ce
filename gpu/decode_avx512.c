/*
 * Decode steps with AVX-512 BW and VNNI: 32 codes at a time become levels by one shift and one look-up
 * (vpermw), and vpdpwssd multiplies and adds pairs of them.
 *
 * K: words hold [token & 7][coordinate], so as 32-bit lanes [4 tokens][4 pairs of coordinates]. A transposition of the
 * words, once per half-tile, gives [16 tokens] of one pair: eight tokens of field s of the first words and eight of
 * field s + 4, the same bits of a word in every lane.
 * V: words hold [coordinate][token & 7]: [4 coordinates][4 pairs of tokens], multiplied as they come.
 */
#include <immintrin.h>
#include <string.h>

#include "gpu/decode.h"
#include "gpu/ops_x86.h"

#define inline_always static inline __attribute__((always_inline))

enum { PAIRS = 4, GROUPS = 4, ROW_BYTES = 128 }; /* pairs of a half-tile; 16 tokens each; a row of half-words */

/*
 * sum + a.even b.even + a.odd b.odd in each 32-bit lane. Not the intrinsic: around it gcc 12 copies every sum of a
 * loop twice, three instructions for one (2026-11-21).
 */
inline_always __m512i add_pairs(__m512i sum, __m512i a, __m512i b)
{
    __asm__("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
    return sum;
}

/* 32 half-words of coordinates (or tokens) 0..3 and 4..7. */
struct row {
    __m512i a, b;
};

inline_always struct row load_row(const uint8_t *at)
{
    return (struct row) { _mm512_loadu_si512(at), _mm512_loadu_si512(at + 64) };
}

/* The plane of width 1 has half-words of 8 bits. */
inline_always struct row load_row1(const uint8_t *at)
{
    return (struct row) {
        _mm512_cvtepu8_epi16(_mm256_loadu_si256((const void *) at)),
        _mm512_cvtepu8_epi16(_mm256_loadu_si256((const void *) (at + 32))),
    };
}

/* ---- codes to levels ------------------------------------------------------------------------------------------- */

/* Fields of all planes of one place, to indices: bits above b are garbage. Shifts may differ by plane. */
struct fields {
    __m512i p8, p4, p2, p1;
};

/* (high << width) | (low & mask of width), the mask from @mask. */
inline_always __m512i below(__m512i high, __m512i low, int width)
{
    __m512i mask = _mm512_set1_epi16((short) ((1 << width) - 1));

    return _mm512_ternarylogic_epi32(mask, low, _mm512_slli_epi16(high, (unsigned) width), 0xca);
}

inline_always __m512i index_of(unsigned b, struct fields f)
{
    switch (b) {
    case 1:
        return f.p1;
    case 2:
        return f.p2;
    case 3:
        return below(f.p2, f.p1, 1);
    case 4:
        return f.p4;
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

/* 64 levels from @t on; the index's low six bits. */
inline_always __m512i look_up_64(const int16_t *t, __m512i index)
{
    return _mm512_permutex2var_epi16(_mm512_load_si512(t), index, _mm512_load_si512(t + 32));
}

inline_always __m512i look_up_128(const int16_t *t, __m512i index)
{
    __mmask32 upper = _mm512_test_epi16_mask(index, _mm512_set1_epi16(64));

    return _mm512_mask_mov_epi16(look_up_64(t, index), upper, look_up_64(t + 64, index));
}

inline_always __m512i look_up(unsigned b, const int16_t *t, __m512i index)
{
    if (b <= 5)
        return _mm512_permutexvar_epi16(index, _mm512_load_si512(t));
    if (b == 6)
        return look_up_64(t, index);
    if (b == 7)
        return look_up_128(t, index);
    return _mm512_mask_mov_epi16(look_up_128(t, index), _mm512_test_epi16_mask(index, _mm512_set1_epi16(128)),
                                 look_up_128(t + 128, index));
}

/* ---- keys ------------------------------------------------------------------------------------------------------ */

/* Words of [16 tokens] per pair. @low, @high: rows of the tokens' first and last eight. */
inline_always void by_pair(struct row low, struct row high, __m512i ret[PAIRS])
{
    const __m512i first = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 1, 5, 9, 13, 17, 21, 25, 29);
    const __m512i last = _mm512_add_epi32(first, _mm512_set1_epi32(2));
    __m512i l01 = _mm512_permutex2var_epi32(low.a, first, low.b), l23 = _mm512_permutex2var_epi32(low.a, last, low.b);
    __m512i h01 = _mm512_permutex2var_epi32(high.a, first, high.b);
    __m512i h23 = _mm512_permutex2var_epi32(high.a, last, high.b);

    ret[0] = _mm512_shuffle_i64x2(l01, h01, 0x44);
    ret[1] = _mm512_shuffle_i64x2(l01, h01, 0xee);
    ret[2] = _mm512_shuffle_i64x2(l23, h23, 0x44);
    ret[3] = _mm512_shuffle_i64x2(l23, h23, 0xee);
}

/* Tokens' last eight stand @shift bits above the first eight in the same words: brings them down. */
inline_always void by_pair_of_one(struct row words, unsigned shift, __m512i ret[PAIRS])
{
    const __m512i down = _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_set1_epi16((short) shift), 1);

    by_pair(words, words, ret);
    for (unsigned i = 0; i < PAIRS; i++)
        ret[i] = _mm512_srlv_epi16(ret[i], down);
}

/* One half-tile to x [GROUPS][ld][16 tokens] pairs of levels; b is a constant where this is inlined. */
inline_always void key_half(unsigned b, const uint8_t *at, const int16_t *levels, size_t ld, __m512i *x)
{
    __m512i w8[2][PAIRS] = { 0 }, w4[PAIRS] = { 0 }, w2[PAIRS] = { 0 }, w1[PAIRS] = { 0 };

    if (b & 8) {
        by_pair(load_row(at), load_row(at + 2 * ROW_BYTES), w8[0]);
        by_pair(load_row(at + ROW_BYTES), load_row(at + 3 * ROW_BYTES), w8[1]);
    }
    if (b & 4) {
        by_pair(load_row(at), load_row(at + ROW_BYTES), w4);
        at += 2 * ROW_BYTES;
    }
    if (b & 2) {
        by_pair_of_one(load_row(at), 8, w2);
        at += ROW_BYTES;
    }
    if (b & 1)
        by_pair_of_one(load_row1(at), 4, w1);
#pragma GCC unroll 4
    for (unsigned s = 0; s < GROUPS; s++)
#pragma GCC unroll 4
        for (unsigned i = 0; i < PAIRS; i++) {
            struct fields f = {
                _mm512_srli_epi16(w8[s / 2][i], 8 * (s % 2)), _mm512_srli_epi16(w4[i], 4 * s),
                _mm512_srli_epi16(w2[i], 2 * s), _mm512_srli_epi16(w1[i], s),
            };

            x[s * ld + i] = look_up(b, levels, index_of(b, f));
        }
}

static void key_levels(const struct coded *c, size_t ld, __m512i *x)
{
    const uint8_t *at = c->at;

    for (size_t half = 0; half < c->n_half; half++, x += PAIRS) {
        unsigned b = c->bits[half];
        const int16_t *levels = c->levels[b].value;

        switch (b) {
        case 0:
            for (unsigned i = 0; i < GROUPS * PAIRS; i++)
                x[i / PAIRS * ld + i % PAIRS] = _mm512_setzero_si512();
            break;
        case 1:
            key_half(1, at, levels, ld, x);
            break;
        case 2:
            key_half(2, at, levels, ld, x);
            break;
        case 3:
            key_half(3, at, levels, ld, x);
            break;
        case 4:
            key_half(4, at, levels, ld, x);
            break;
        case 5:
            key_half(5, at, levels, ld, x);
            break;
        case 6:
            key_half(6, at, levels, ld, x);
            break;
        case 7:
            key_half(7, at, levels, ld, x);
            break;
        default:
            key_half(8, at, levels, ld, x);
            break;
        }
        at += (size_t) b * CHUNK_TOKENS;
    }
}

inline_always __m512i pair_at(const int16_t *p)
{
    int32_t pair;

    memcpy(&pair, p, sizeof(pair));
    return _mm512_set1_epi32(pair);
}

/* Rows of @planes planes from plane @i, for all 64 tokens: 8 sums per plane, 16 in all. */
inline_always void key_planes(const struct key_rows *m, size_t i, unsigned planes, const __m512i *x, float *kt)
{
    size_t n_pairs = m->r / 2;
    __m512i sum[4][GROUPS];

#pragma GCC unroll 4
    for (unsigned row = 0; row < 2 * planes; row++)
#pragma GCC unroll 4
        for (unsigned s = 0; s < GROUPS; s++)
            sum[row][s] = _mm512_set1_epi32(m->mean[2 * i + row]);
    for (size_t pair = 0; pair < n_pairs; pair++)
#pragma GCC unroll 4
        for (unsigned row = 0; row < 2 * planes; row++) {
            __m512i dec = pair_at(m->dec + (2 * i + row) * m->r + 2 * pair);

#pragma GCC unroll 4
            for (unsigned s = 0; s < GROUPS; s++)
                sum[row][s] = add_pairs(sum[row][s], x[s * n_pairs + pair], dec);
        }
#pragma GCC unroll 2
    for (unsigned plane = 0; plane < planes; plane++)
#pragma GCC unroll 4
        for (unsigned s = 0; s < GROUPS; s++) {
            float *at = kt + (i + plane) * CHUNK_TOKENS + 16 * s;
            __m512 lo = _mm512_cvtepi32_ps(sum[2 * plane][s]), hi = _mm512_cvtepi32_ps(sum[2 * plane + 1][s]);

            if (i + plane < m->n_rot) {
                __m512 cosine = _mm512_load_ps(m->cos + (i + plane) * CHUNK_TOKENS + 16 * s);
                __m512 sine = _mm512_load_ps(m->sin + (i + plane) * CHUNK_TOKENS + 16 * s);
                __m512 turned = _mm512_fnmadd_ps(hi, sine, _mm512_mul_ps(lo, cosine));

                hi = _mm512_fmadd_ps(lo, sine, _mm512_mul_ps(hi, cosine));
                lo = turned;
            }
            _mm512_store_ps(at, lo);
            _mm512_store_ps(at + m->n_planes * CHUNK_TOKENS, hi);
        }
}

static void keys(const struct coded *c, const struct key_rows *m, int16_t *x, float *kt)
{
    size_t i = 0;

    key_levels(c, m->r / 2, (void *) x);
    for (; i + 2 <= m->n_planes; i += 2)
        key_planes(m, i, 2, (const void *) x, kt);
    if (i < m->n_planes)
        key_planes(m, i, 1, (const void *) x, kt);
}

/* One node's vector to whole numbers; returns their step. Bounds as in attend_decode.c's row_limits(). */
inline_always float fold_weights(const float *w, size_t r, const float *unit, const float *largest, int16_t *ret)
{
    __m512 top = _mm512_set1_ps(0x1p-100f), total = _mm512_setzero_ps(), per;
    float step;

    for (size_t c = 0; c < r; c += 16) {
        __m512 x = _mm512_abs_ps(_mm512_mul_ps(_mm512_loadu_ps(w + c), _mm512_loadu_ps(unit + c)));

        top = _mm512_max_ps(top, x);
        total = _mm512_fmadd_ps(x, _mm512_loadu_ps(largest + c), total);
    }
    step = _mm512_reduce_max_ps(top) / 32767;
    total = _mm512_set1_ps(_mm512_reduce_add_ps(total) * 0x1p-30f);
    step = _mm512_cvtss_f32(_mm512_max_ps(_mm512_set1_ps(step), total));
    per = _mm512_set1_ps(1 / step);
    for (size_t c = 0; c < r; c += 16) {
        __m512 x = _mm512_mul_ps(_mm512_mul_ps(_mm512_loadu_ps(w + c), _mm512_loadu_ps(unit + c)), per);

        _mm256_storeu_si256((void *) (ret + c), _mm512_cvtsepi32_epi16(_mm512_cvtps_epi32(x)));
    }
    return step;
}

static void fold(const int16_t *x, size_t r, const float *w, const float *offset, const float *unit,
                 const float *largest, const float *basis, float *scores)
{
    const __m512i *pairs = (const void *) x;
    int16_t whole[FOLD_NODES][TABLE_RANK_MAX];
    __m512i sum[FOLD_NODES][GROUPS] = { 0 };
    float step[FOLD_NODES];

    for (unsigned j = 0; j < FOLD_NODES; j++)
        step[j] = fold_weights(w + j * r, r, unit, largest, whole[j]);
    for (size_t pair = 0; pair < r / 2; pair++)
#pragma GCC unroll 8
        for (unsigned j = 0; j < FOLD_NODES; j++) {
            __m512i factor = pair_at(whole[j] + 2 * pair);

#pragma GCC unroll 4
            for (unsigned s = 0; s < GROUPS; s++)
                sum[j][s] = add_pairs(sum[j][s], pairs[s * (r / 2) + pair], factor);
        }
#pragma GCC unroll 4
    for (unsigned s = 0; s < GROUPS; s++) {
        __m512 score = _mm512_loadu_ps(scores + 16 * s);

#pragma GCC unroll 8
        for (unsigned j = 0; j < FOLD_NODES; j++) {
            __m512 part = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[j][s]), _mm512_set1_ps(step[j]),
                                          _mm512_set1_ps(offset[j]));

            score = _mm512_fmadd_ps(part, _mm512_loadu_ps(basis + j * CHUNK_TOKENS + 16 * s), score);
        }
        _mm512_storeu_ps(scores + 16 * s, score);
    }
}

/* ---- values ---------------------------------------------------------------------------------------------------- */

static float weights(const float p[CHUNK_TOKENS], int16_t ret[CHUNK_TOKENS])
{
    __m512 x[4], top;
    float largest;

    for (unsigned i = 0; i < 4; i++)
        x[i] = _mm512_loadu_ps(p + 16 * i);
    top = _mm512_max_ps(_mm512_max_ps(x[0], x[1]), _mm512_max_ps(x[2], x[3]));
    largest = _mm512_reduce_max_ps(top);
    if (largest < 0x1p-100f) { /* so that the quotient is finite; less than any rounding of a sum with 1 in it */
        memset(ret, 0, CHUNK_TOKENS * sizeof(*ret));
        return 0;
    }
    for (unsigned i = 0; i < 4; i++) {
        __m512i whole = _mm512_cvtps_epi32(_mm512_mul_ps(x[i], _mm512_set1_ps(32767 / largest)));

        _mm256_storeu_si256((void *) (ret + 16 * i), _mm512_cvtsepi32_epi16(whole));
    }
    return largest / 32767;
}

/* [4 tokens][8 coordinates] twice to [4 coordinates][8 tokens] twice. */
inline_always struct row transpose(struct row w)
{
    const __m512i column = _mm512_setr_epi32( /* pairs of half-words 8 t + c, of all t for one c */
        0x00080000, 0x00180010, 0x00280020, 0x00380030, 0x00090001, 0x00190011, 0x00290021, 0x00390031,
        0x000a0002, 0x001a0012, 0x002a0022, 0x003a0032, 0x000b0003, 0x001b0013, 0x002b0023, 0x003b0033);

    return (struct row) {
        _mm512_permutex2var_epi16(w.a, column, w.b),
        _mm512_permutex2var_epi16(w.a, _mm512_add_epi16(column, _mm512_set1_epi16(4)), w.b),
    };
}

inline_always struct row in_order(bool k_order, struct row w)
{
    return k_order ? transpose(w) : w;
}

/* One half-tile to x [8 tokens' groups][2]: [4 coordinates][8 tokens] each. */
inline_always void value_half(unsigned b, bool k_order, const uint8_t *at, const int16_t *levels, __m512i x[16])
{
    struct row w8[4] = { 0 }, w4[2] = { 0 }, w2 = { 0 }, w1 = { 0 };

    for (unsigned i = 0; b == 8 && i < 4; i++)
        w8[i] = in_order(k_order, load_row(at + i * ROW_BYTES));
    for (unsigned i = 0; (b & 4) && i < 2; i++, at += ROW_BYTES)
        w4[i] = in_order(k_order, load_row(at));
    if (b & 2) {
        w2 = in_order(k_order, load_row(at));
        at += ROW_BYTES;
    }
    if (b & 1)
        w1 = in_order(k_order, load_row1(at));
#pragma GCC unroll 8
    for (unsigned j = 0; j < 8; j++) {
        struct fields a = {
            _mm512_srli_epi16(w8[j / 2].a, 8 * (j % 2)), _mm512_srli_epi16(w4[j / 4].a, 4 * (j % 4)),
            _mm512_srli_epi16(w2.a, 2 * j), _mm512_srli_epi16(w1.a, j),
        };
        struct fields z = {
            _mm512_srli_epi16(w8[j / 2].b, 8 * (j % 2)), _mm512_srli_epi16(w4[j / 4].b, 4 * (j % 4)),
            _mm512_srli_epi16(w2.b, 2 * j), _mm512_srli_epi16(w1.b, j),
        };

        x[2 * j] = look_up(b, levels, index_of(b, a));
        x[2 * j + 1] = look_up(b, levels, index_of(b, z));
    }
}

static void value_levels(unsigned b, bool k_order, const uint8_t *at, const int16_t *levels, __m512i x[16])
{
    switch (b) {
    case 1:
        value_half(1, k_order, at, levels, x);
        break;
    case 2:
        value_half(2, k_order, at, levels, x);
        break;
    case 3:
        value_half(3, k_order, at, levels, x);
        break;
    case 4:
        value_half(4, k_order, at, levels, x);
        break;
    case 5:
        value_half(5, k_order, at, levels, x);
        break;
    case 6:
        value_half(6, k_order, at, levels, x);
        break;
    case 7:
        value_half(7, k_order, at, levels, x);
        break;
    default:
        value_half(8, k_order, at, levels, x);
        break;
    }
}

/* @rows rows of weights times one half-tile; a constant where this is inlined. */
inline_always void add_rows(unsigned rows, const __m512i x[16], const int16_t *w, const float *step, float *sums,
                            size_t ld)
{
    __m512i sum[4][2];

#pragma GCC unroll 4
    for (unsigned i = 0; i < rows; i++)
        sum[i][0] = sum[i][1] = _mm512_setzero_si512();
#pragma GCC unroll 8
    for (unsigned j = 0; j < 8; j++)
#pragma GCC unroll 4
        for (unsigned i = 0; i < rows; i++) {
            __m512i eight = _mm512_broadcast_i32x4(_mm_loadu_si128((const void *) (w + i * CHUNK_TOKENS + 8 * j)));

            sum[i][0] = add_pairs(sum[i][0], x[2 * j], eight);
            sum[i][1] = add_pairs(sum[i][1], x[2 * j + 1], eight);
        }
#pragma GCC unroll 4
    for (unsigned i = 0; i < rows; i++)
#pragma GCC unroll 2
        for (unsigned h = 0; h < 2; h++) {
            float *at = sums + i * ld + 16 * h;

            _mm512_storeu_ps(at, _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[i][h]), _mm512_set1_ps(step[i]),
                                                 _mm512_loadu_ps(at)));
        }
}

static void values(const struct coded *c, bool k_order, size_t n_rows, const int16_t *w, const float *step,
                   float *sums, size_t ld)
{
    const uint8_t *at = c->at;

    for (size_t half = 0; half < c->n_half && c->bits[half] > 0; half++, sums += 8 * DECODE_PARTS) {
        unsigned b = c->bits[half];
        __m512i x[16];
        size_t i = 0;

        value_levels(b, k_order, at, c->levels[b].value, x);
        at += (size_t) b * CHUNK_TOKENS;
        for (; i + 4 <= n_rows; i += 4)
            add_rows(4, x, w + i * CHUNK_TOKENS, step + i, sums + i * ld, ld);
        switch (n_rows - i) {
        case 3:
            add_rows(3, x, w + i * CHUNK_TOKENS, step + i, sums + i * ld, ld);
            break;
        case 2:
            add_rows(2, x, w + i * CHUNK_TOKENS, step + i, sums + i * ld, ld);
            break;
        case 1:
            add_rows(1, x, w + i * CHUNK_TOKENS, step + i, sums + i * ld, ld);
            break;
        default:
            break;
        }
    }
}

const struct decode_ops decode_avx512 = {
    .chunks = (const uint8_t[]) { 0, 4, 1, 5, 2, 6, 3, 7 },
    .keys = keys,
    .fold = fold,
    .weights = weights,
    .values = values,
};
