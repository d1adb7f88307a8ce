/*
 * Decode steps with AVX2 and FMA: as decode_avx512.c, sixteen codes at a time, with vpshufb as the look-up for up to
 * four bits and gathers beyond, and vpmaddwd and vpaddd to multiply and add pairs. Keys come in order of tokens.
 */
#include <immintrin.h>
#include <string.h>

#include "gpu/decode.h"
#include "gpu/ops_x86.h"

#define inline_always static inline __attribute__((always_inline))

enum { PAIRS = 4, CHUNKS = 8, QUARTERS = 4, ROW_BYTES = 128 }; /* of a half-tile; [2 coordinates][8 tokens] each */

inline_always __m256i add_pairs(__m256i sum, __m256i a, __m256i b)
{
    return _mm256_add_epi32(sum, _mm256_madd_epi16(a, b));
}

/* ---- codes to levels ------------------------------------------------------------------------------------------- */

/* The 64 half-words of a row as eight vectors of eight; the plane of width 1 has half-words of 8 bits. */
inline_always void load_row(unsigned width, const uint8_t *at, __m128i ret[8])
{
    for (unsigned i = 0; i < 8; i++)
        if (width == 1)
            ret[i] = _mm_cvtepu8_epi16(_mm_loadl_epi64((const void *) (at + 8 * i)));
        else
            ret[i] = _mm_loadu_si128((const void *) (at + 16 * i));
}

/* [8][8] half-words transposed. */
inline_always void transpose(__m128i x[8])
{
    for (unsigned round = 0; round < 3; round++) { /* rotates the six bits of an index by one each, as half_tile.c */
        __m128i y[8];

        for (unsigned i = 0; i < 4; i++) {
            y[2 * i] = _mm_unpacklo_epi16(x[i], x[i + 4]);
            y[2 * i + 1] = _mm_unpackhi_epi16(x[i], x[i + 4]);
        }
        memcpy(x, y, sizeof(y));
    }
}

/* The words of a half-tile's planes, widest first, in four vectors per row: by pair of coordinates [8 tokens] for
 * keys, by two coordinates [8 tokens] each for values. */
struct words {
    __m256i p8[4][4], p4[2][4], p2[4], p1[4];
};

enum order { KEYS_BY_PAIR, VALUES_AS_STORED, VALUES_TRANSPOSED };

inline_always void arrange(enum order order, unsigned width, const uint8_t *at, __m256i ret[4])
{
    __m128i x[8];

    load_row(width, at, x);
    if (order == KEYS_BY_PAIR) {
        const __m256i by_token = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);

        for (unsigned i = 0; i < 2; i++) {
            __m256i a = _mm256_set_m128i(x[1], x[0]), b = _mm256_set_m128i(x[3], x[2]);
            __m256i c = _mm256_set_m128i(x[5], x[4]), d = _mm256_set_m128i(x[7], x[6]);
            __m256i ab = i == 0 ? _mm256_unpacklo_epi32(a, b) : _mm256_unpackhi_epi32(a, b);
            __m256i cd = i == 0 ? _mm256_unpacklo_epi32(c, d) : _mm256_unpackhi_epi32(c, d);

            ret[2 * i] = _mm256_permutevar8x32_epi32(_mm256_unpacklo_epi64(ab, cd), by_token);
            ret[2 * i + 1] = _mm256_permutevar8x32_epi32(_mm256_unpackhi_epi64(ab, cd), by_token);
        }
        return;
    }
    if (order == VALUES_TRANSPOSED)
        transpose(x);
    for (unsigned i = 0; i < 4; i++)
        ret[i] = _mm256_set_m128i(x[2 * i + 1], x[2 * i]);
}

inline_always void load_words(enum order order, unsigned b, const uint8_t *at, struct words *ret)
{
    for (unsigned i = 0; b == 8 && i < 4; i++)
        arrange(order, 8, at + i * ROW_BYTES, ret->p8[i]);
    for (unsigned i = 0; (b & 4) && i < 2; i++, at += ROW_BYTES)
        arrange(order, 4, at, ret->p4[i]);
    if (b & 2) {
        arrange(order, 2, at, ret->p2);
        at += ROW_BYTES;
    }
    if (b & 1)
        arrange(order, 1, at, ret->p1);
}

/* Bits @shift .. @shift + @width - 1 of each half-word, moved up by @up. */
inline_always __m256i field(__m256i words, unsigned shift, unsigned width, unsigned up)
{
    __m256i x = _mm256_and_si256(_mm256_srl_epi16(words, _mm_cvtsi32_si128((int) shift)),
                                 _mm256_set1_epi16((short) ((1 << width) - 1)));

    return _mm256_slli_epi16(x, (int) up);
}

/* Codes of chunk @j in vector @i. */
inline_always __m256i codes_of(unsigned b, const struct words *w, unsigned j, unsigned i)
{
    __m256i x = _mm256_setzero_si256();

    if (b == 8)
        return field(w->p8[j / 2][i], 8 * (j % 2), 8, 0);
    if (b & 4)
        x = field(w->p4[j / 4][i], 4 * (j % 4), 4, b & 3);
    if (b & 2)
        x = _mm256_or_si256(x, field(w->p2[i], 2 * j, 2, b & 1));
    if (b & 1)
        x = _mm256_or_si256(x, field(w->p1[i], j, 1, 0));
    return x;
}

/* Up to four bits: sixteen levels of eight bits, plus 128, in both halves. */
inline_always __m256i level_bytes(const int16_t *levels)
{
    __m128i bytes = _mm_packs_epi16(_mm_load_si128((const void *) levels), _mm_load_si128((const void *) (levels + 8)));

    return _mm256_broadcastsi128_si256(_mm_xor_si128(bytes, _mm_set1_epi8((char) 0x80)));
}

/* A gather reads two levels for one, at the end of the table one of what follows it in struct level_table. */
inline_always __m256i gather(const int16_t *levels, __m256i codes)
{
    const __m256i low = _mm256_set1_epi32(0xffff);
    __m256i even = _mm256_i32gather_epi32((const int *) (const void *) levels, _mm256_and_si256(codes, low), 2);
    __m256i odd = _mm256_i32gather_epi32((const int *) (const void *) levels, _mm256_srli_epi32(codes, 16), 2);

    return _mm256_or_si256(_mm256_and_si256(even, low), _mm256_slli_epi32(odd, 16));
}

inline_always __m256i look_up(unsigned b, const int16_t *levels, __m256i bytes, __m256i codes)
{
    if (b > 4)
        return gather(levels, codes);
    codes = _mm256_or_si256(codes, _mm256_set1_epi16((short) 0x8000)); /* makes the upper byte 0 */
    return _mm256_sub_epi16(_mm256_shuffle_epi8(bytes, codes), _mm256_set1_epi16(128));
}

/* All chunks of a half-tile to x [CHUNKS][ld], four vectors each. */
inline_always void half_levels(enum order order, unsigned b, const uint8_t *at, const int16_t *levels, size_t ld,
                               __m256i *x)
{
    __m256i bytes = level_bytes(levels);
    struct words w;

    load_words(order, b, at, &w);
    for (unsigned j = 0; j < CHUNKS; j++)
#pragma GCC unroll 4
        for (unsigned i = 0; i < 4; i++)
            x[j * ld + i] = look_up(b, levels, bytes, codes_of(b, &w, j, i));
}

inline_always void levels_of(enum order order, unsigned b, const uint8_t *at, const int16_t *levels, size_t ld,
                             __m256i *x)
{
    switch (b) {
    case 1:
        half_levels(order, 1, at, levels, ld, x);
        break;
    case 2:
        half_levels(order, 2, at, levels, ld, x);
        break;
    case 3:
        half_levels(order, 3, at, levels, ld, x);
        break;
    case 4:
        half_levels(order, 4, at, levels, ld, x);
        break;
    case 5:
        half_levels(order, 5, at, levels, ld, x);
        break;
    case 6:
        half_levels(order, 6, at, levels, ld, x);
        break;
    case 7:
        half_levels(order, 7, at, levels, ld, x);
        break;
    default:
        half_levels(order, 8, at, levels, ld, x);
        break;
    }
}

/* ---- keys ------------------------------------------------------------------------------------------------------ */

static void key_levels(const struct coded *c, size_t ld, __m256i *x)
{
    const uint8_t *at = c->at;

    for (size_t half = 0; half < c->n_half; half++, x += PAIRS) {
        unsigned b = c->bits[half];

        if (b > 0)
            levels_of(KEYS_BY_PAIR, b, at, c->levels[b].value, ld, x);
        for (unsigned i = 0; b == 0 && i < CHUNKS * PAIRS; i++)
            x[i / PAIRS * ld + i % PAIRS] = _mm256_setzero_si256();
        at += (size_t) b * CHUNK_TOKENS;
    }
}

inline_always __m256i pair_at(const int16_t *p)
{
    int32_t pair;

    memcpy(&pair, p, sizeof(pair));
    return _mm256_set1_epi32(pair);
}

/* Both rows of plane @i for chunks @j .. @j + 3: 8 sums. */
inline_always void key_plane(const struct key_rows *m, size_t i, size_t j, const __m256i *x, float *kt)
{
    size_t n_pairs = m->r / 2;
    const int16_t *dec = m->dec + 2 * i * m->r;
    __m256i lo[4], hi[4];

#pragma GCC unroll 4
    for (unsigned s = 0; s < 4; s++) {
        lo[s] = _mm256_set1_epi32(m->mean[2 * i]);
        hi[s] = _mm256_set1_epi32(m->mean[2 * i + 1]);
    }
    for (size_t pair = 0; pair < n_pairs; pair++) {
        __m256i dec_lo = pair_at(dec + 2 * pair), dec_hi = pair_at(dec + m->r + 2 * pair);

#pragma GCC unroll 4
        for (unsigned s = 0; s < 4; s++) {
            __m256i levels = x[(j + s) * n_pairs + pair];

            lo[s] = add_pairs(lo[s], levels, dec_lo);
            hi[s] = add_pairs(hi[s], levels, dec_hi);
        }
    }
#pragma GCC unroll 4
    for (unsigned s = 0; s < 4; s++) {
        size_t at = i * CHUNK_TOKENS + 8 * (j + s);
        __m256 a = _mm256_cvtepi32_ps(lo[s]), b = _mm256_cvtepi32_ps(hi[s]), turned = a;

        if (i < m->n_rot) {
            __m256 cosine = _mm256_load_ps(m->cos + at), sine = _mm256_load_ps(m->sin + at);

            turned = _mm256_fnmadd_ps(b, sine, _mm256_mul_ps(a, cosine));
            b = _mm256_fmadd_ps(a, sine, _mm256_mul_ps(b, cosine));
        }
        _mm256_store_ps(kt + at, turned);
        _mm256_store_ps(kt + m->n_planes * CHUNK_TOKENS + at, b);
    }
}

static void keys(const struct coded *c, const struct key_rows *m, int16_t *x, float *kt)
{
    key_levels(c, m->r / 2, (void *) x);
    for (size_t i = 0; i < m->n_planes; i++)
        for (size_t j = 0; j < CHUNKS; j += 4)
            key_plane(m, i, j, (const void *) x, kt);
}

inline_always float largest_of(__m256 x)
{
    __m128 y = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));

    y = _mm_max_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_max_ss(y, _mm_movehdup_ps(y)));
}

inline_always float sum_of(__m256 x)
{
    __m128 y = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));

    y = _mm_add_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_add_ss(y, _mm_movehdup_ps(y)));
}

/* Sixteen numbers to the nearest whole ones, in order. */
inline_always void store_whole(__m256 low, __m256 high, int16_t *ret)
{
    __m256i x = _mm256_packs_epi32(_mm256_cvtps_epi32(low), _mm256_cvtps_epi32(high));

    _mm256_storeu_si256((void *) ret, _mm256_permute4x64_epi64(x, 0xd8));
}

/* One node's vector to whole numbers; returns their step. Bounds as in attend_decode.c's row_limits(). */
inline_always float fold_weights(const float *w, size_t r, const float *unit, const float *largest, int16_t *ret)
{
    const __m256 sign = _mm256_set1_ps(-0.0f);
    __m256 top = _mm256_set1_ps(0x1p-100f), total = _mm256_setzero_ps(), per;
    float step, bound;

    for (size_t c = 0; c < r; c += 8) {
        __m256 x = _mm256_andnot_ps(sign, _mm256_mul_ps(_mm256_loadu_ps(w + c), _mm256_loadu_ps(unit + c)));

        top = _mm256_max_ps(top, x);
        total = _mm256_fmadd_ps(x, _mm256_loadu_ps(largest + c), total);
    }
    step = largest_of(top) / 32767;
    bound = sum_of(total) * 0x1p-30f;
    step = bound > step ? bound : step;
    per = _mm256_set1_ps(1 / step);
    for (size_t c = 0; c < r; c += 16)
        store_whole(_mm256_mul_ps(_mm256_mul_ps(_mm256_loadu_ps(w + c), _mm256_loadu_ps(unit + c)), per),
                    _mm256_mul_ps(_mm256_mul_ps(_mm256_loadu_ps(w + c + 8), _mm256_loadu_ps(unit + c + 8)), per),
                    ret + c);
    return step;
}

static void fold(const int16_t *x, size_t r, const float *w, const float *offset, const float *unit,
                 const float *largest, const float *basis, float *scores)
{
    const __m256i *pairs = (const void *) x;
    int16_t whole[FOLD_NODES][TABLE_RANK_MAX];
    float step[FOLD_NODES];

    for (unsigned j = 0; j < FOLD_NODES; j++)
        step[j] = fold_weights(w + j * r, r, unit, largest, whole[j]);
    for (size_t chunk = 0; chunk < CHUNKS; chunk += 2) {
        __m256i sum[FOLD_NODES][2] = { 0 };

        for (size_t pair = 0; pair < r / 2; pair++)
#pragma GCC unroll 8
            for (unsigned j = 0; j < FOLD_NODES; j++) {
                __m256i factor = pair_at(whole[j] + 2 * pair);

                sum[j][0] = add_pairs(sum[j][0], pairs[chunk * (r / 2) + pair], factor);
                sum[j][1] = add_pairs(sum[j][1], pairs[(chunk + 1) * (r / 2) + pair], factor);
            }
#pragma GCC unroll 2
        for (unsigned s = 0; s < 2; s++) {
            float *at = scores + 8 * (chunk + s);
            __m256 score = _mm256_loadu_ps(at);

#pragma GCC unroll 8
            for (unsigned j = 0; j < FOLD_NODES; j++) {
                __m256 part = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum[j][s]), _mm256_set1_ps(step[j]),
                                              _mm256_set1_ps(offset[j]));

                score = _mm256_fmadd_ps(part, _mm256_loadu_ps(basis + j * CHUNK_TOKENS + 8 * (chunk + s)), score);
            }
            _mm256_storeu_ps(at, score);
        }
    }
}

/* ---- values ---------------------------------------------------------------------------------------------------- */

static float weights(const float p[CHUNK_TOKENS], int16_t ret[CHUNK_TOKENS])
{
    __m256 top = _mm256_loadu_ps(p), per;
    float largest;

    for (unsigned i = 8; i < CHUNK_TOKENS; i += 8)
        top = _mm256_max_ps(top, _mm256_loadu_ps(p + i));
    largest = largest_of(top);
    if (largest < 0x1p-100f) { /* so that the quotient is finite; less than any rounding of a sum with 1 in it */
        memset(ret, 0, CHUNK_TOKENS * sizeof(*ret));
        return 0;
    }
    per = _mm256_set1_ps(32767 / largest);
    for (unsigned i = 0; i < CHUNK_TOKENS; i += 16)
        store_whole(_mm256_mul_ps(_mm256_loadu_ps(p + i), per), _mm256_mul_ps(_mm256_loadu_ps(p + i + 8), per),
                    ret + i);
    return largest / 32767;
}

/* @rows rows of weights times one half-tile; a constant where this is inlined. */
inline_always void add_rows(unsigned rows, const __m256i *x, const int16_t *w, const float *step, float *sums, size_t ld)
{
    __m256i sum[2][QUARTERS] = { 0 };

    for (unsigned j = 0; j < CHUNKS; j++)
#pragma GCC unroll 2
        for (unsigned i = 0; i < rows; i++) {
            __m256i eight =
                _mm256_broadcastsi128_si256(_mm_loadu_si128((const void *) (w + i * CHUNK_TOKENS + 8 * j)));

#pragma GCC unroll 4
            for (unsigned quarter = 0; quarter < QUARTERS; quarter++)
                sum[i][quarter] = add_pairs(sum[i][quarter], x[QUARTERS * j + quarter], eight);
        }
#pragma GCC unroll 2
    for (unsigned i = 0; i < rows; i++)
#pragma GCC unroll 4
        for (unsigned quarter = 0; quarter < QUARTERS; quarter++) {
            float *at = sums + i * ld + 8 * quarter;

            _mm256_storeu_ps(at, _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum[i][quarter]), _mm256_set1_ps(step[i]),
                                                 _mm256_loadu_ps(at)));
        }
}

static void values(const struct coded *c, bool k_order, size_t n_rows, const int16_t *w, const float *step,
                   float *sums, size_t ld)
{
    const uint8_t *at = c->at;

    for (size_t half = 0; half < c->n_half && c->bits[half] > 0; half++, sums += 8 * DECODE_PARTS) {
        unsigned b = c->bits[half];
        __m256i x[CHUNKS * QUARTERS];
        size_t i = 0;

        if (k_order)
            levels_of(VALUES_TRANSPOSED, b, at, c->levels[b].value, QUARTERS, x);
        else
            levels_of(VALUES_AS_STORED, b, at, c->levels[b].value, QUARTERS, x);
        at += (size_t) b * CHUNK_TOKENS;
        for (; i + 2 <= n_rows; i += 2)
            add_rows(2, x, w + i * CHUNK_TOKENS, step + i, sums + i * ld, ld);
        if (i < n_rows)
            add_rows(1, x, w + i * CHUNK_TOKENS, step + i, sums + i * ld, ld);
    }
}

const struct decode_ops decode_avx2 = {
    .chunks = (const uint8_t[]) { 0, 1, 2, 3, 4, 5, 6, 7 },
    .keys = keys,
    .fold = fold,
    .weights = weights,
    .values = values,
};
