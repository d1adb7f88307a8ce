/* Weights of query rows times levels of V, and of the keys that V is predicted from: loops of decode.h beside
 * decode_simd.h, which lists what they need. Levels of a half-tile are converted once for all rows. */
#pragma once

#include "gpu/cpu/decode_simd.h"

/* ---- values ---- */

/* sums [WORDS vectors] += step * sum */
static inline_always void add_sums(const ivec sum[WORDS], float step, float *sums)
{
#pragma GCC unroll 4
    for (unsigned v = 0; v < WORDS; v++)
        vec_store(sums + v * LANES,
                  vec_fma(vec_from_int(sum[v]), vec_set1(step), vec_load(sums + v * LANES)));
}

/* Words of a narrow half-tile of V in memory order. */
struct value_words {
    ivec p4[2][WORDS], p2[WORDS], p1[WORDS];
};

static inline_always void load_value_words(unsigned b, const uint8_t *at, struct value_words *ret)
{
#pragma GCC unroll 4
    for (unsigned v = 0; v < WORDS; v++) {
        if (b == 4) {
            ret->p4[0][v] = ivec_load(at + v * sizeof(ivec));
            ret->p4[1][v] = ivec_load(at + ROW_BYTES + v * sizeof(ivec));
        }
        if (b & 2)
            ret->p2[v] = ivec_load(at + v * sizeof(ivec));
        if (b & 1) { /* half-words of 8 bits: fields 4 .. 7 move to an upper byte, as in the wider planes */
            ivec x = ivec_wide_bytes(at + (b == 3 ? ROW_BYTES : 0) + v * sizeof(ivec) / 2);

            ret->p1[v] = ivec_or(x, ivec_sll16(x, 4));
        }
    }
}

/* Codes of four tokens of one coordinate in each lane: fields j, j + 2 (four bits) or j, j + 4. */
static inline_always ivec value_codes(unsigned b, const struct value_words *w, unsigned pattern, unsigned v)
{
    if (b == 4)
        return ivec_and(ivec_srl16(w->p4[pattern / 2][v], 4 * (pattern % 2)), ivec_set1(0x0f0f0f0f));
    if (b == 1)
        return ivec_and(ivec_srl16(w->p1[v], pattern), ivec_set1(0x01010101));
    if (b == 2)
        return ivec_and(ivec_srl16(w->p2[v], 2 * pattern), ivec_set1(0x03030303));
    return ivec_or(ivec_and(pattern == 0 ? ivec_sll16(w->p2[v], 1) : ivec_srl16(w->p2[v], 2 * pattern - 1),
                            ivec_set1(0x06060606)),
                   ivec_and(ivec_srl16(w->p1[v], pattern), ivec_set1(0x01010101)));
}

/* Levels are converted, multiplied and forgotten: few rows need them once. */
static inline_always void narrow_values(unsigned b, unsigned rows, const uint8_t *at, const int8_t *levels,
                                        const struct row_weights *w, float *sums, size_t ld)
{
    ivec table = ivec_repeat(levels), sum[VALUE_ROWS][WORDS];
    struct value_words words;

    load_value_words(b, at, &words);
#pragma GCC unroll 4
    for (unsigned i = 0; i < rows; i++)
#pragma GCC unroll 4
        for (unsigned v = 0; v < WORDS; v++)
            sum[i][v] = ivec_set1(0);
#pragma GCC unroll 4
    for (unsigned pattern = 0; pattern < 4; pattern++) {
        ivec x[WORDS];

#pragma GCC unroll 4
        for (unsigned v = 0; v < WORDS; v++)
            x[v] = ivec_look_up(table, value_codes(b, &words, pattern, v));
#pragma GCC unroll 4
        for (unsigned i = 0; i < rows; i++) {
            ivec factor = ivec_repeat(b == 4 ? w[i].by_four[pattern] : w[i].by_two[pattern]);

#pragma GCC unroll 4
            for (unsigned v = 0; v < WORDS; v++)
                sum[i][v] = dot4(sum[i][v], factor, x[v]);
        }
    }
    for (unsigned i = 0; i < rows; i++)
        add_sums(sum[i], w[i].step, sums + i * ld);
}

static inline_always void few_rows(unsigned b, size_t n_rows, const uint8_t *at, const int8_t *levels,
                                   const struct row_weights *w, float *sums, size_t ld)
{
    if (n_rows == VALUE_ROWS)
        narrow_values(b, VALUE_ROWS, at, levels, w, sums, ld);
    else if (VALUE_ROWS > 3 && n_rows == 3)
        narrow_values(b, 3, at, levels, w, sums, ld);
    else if (VALUE_ROWS > 2 && n_rows == 2)
        narrow_values(b, 2, at, levels, w, sums, ld);
    else if (n_rows == 1)
        narrow_values(b, 1, at, levels, w, sums, ld);
}

/* Levels of a narrow half-tile in memory order, for weights in the order of by_four (4 bits) or by_two. */
static inline_always void narrow_levels(unsigned b, const uint8_t *at, const int8_t *levels,
                                        ivec ret[4][WORDS])
{
    ivec table = ivec_repeat(levels);
    struct value_words words;

    load_value_words(b, at, &words);
#pragma GCC unroll 4
    for (unsigned pattern = 0; pattern < 4; pattern++)
#pragma GCC unroll 4
        for (unsigned v = 0; v < WORDS; v++)
            ret[pattern][v] = ivec_look_up(table, value_codes(b, &words, pattern, v));
}

static inline_always void add_narrow(unsigned rows, bool by_four, ivec levels[4][WORDS],
                                     const struct row_weights *w, float *sums, size_t ld)
{
    ivec sum[VALUE_ROWS][WORDS];

#pragma GCC unroll 4
    for (unsigned i = 0; i < rows; i++)
#pragma GCC unroll 4
        for (unsigned v = 0; v < WORDS; v++)
            sum[i][v] = ivec_set1(0);
#pragma GCC unroll 4
    for (unsigned j = 0; j < 4; j++)
#pragma GCC unroll 4
        for (unsigned i = 0; i < rows; i++) {
            ivec factor = ivec_repeat(by_four ? w[i].by_four[j] : w[i].by_two[j]);

#pragma GCC unroll 4
            for (unsigned v = 0; v < WORDS; v++)
                sum[i][v] = dot4(sum[i][v], factor, levels[j][v]);
        }
    for (unsigned i = 0; i < rows; i++)
        add_sums(sum[i], w[i].step, sums + i * ld);
}

/* Weights of all rows times levels that were converted once. */
static void add_narrow_rows(size_t n_rows, bool by_four, ivec levels[4][WORDS], const struct row_weights *w,
                            float *sums, size_t ld)
{
    for (; n_rows >= VALUE_ROWS; n_rows -= VALUE_ROWS, w += VALUE_ROWS, sums += VALUE_ROWS * ld)
        add_narrow(VALUE_ROWS, by_four, levels, w, sums, ld);
    if (VALUE_ROWS > 3 && n_rows == 3)
        add_narrow(3, by_four, levels, w, sums, ld);
    else if (VALUE_ROWS > 2 && n_rows == 2)
        add_narrow(2, by_four, levels, w, sums, ld);
    else if (n_rows == 1)
        add_narrow(1, by_four, levels, w, sums, ld);
}

static void add_wide_rows(size_t n_rows, ivec levels[8][WORDS], const struct row_weights *w, float *sums,
                          size_t ld)
{
    for (; n_rows > 0; n_rows--, w++, sums += ld) {
        ivec sum[WORDS];

#pragma GCC unroll 4
        for (unsigned v = 0; v < WORDS; v++)
            sum[v] = ivec_set1(0);
#pragma GCC unroll 8
        for (unsigned j = 0; j < 8; j++) {
            ivec factor = ivec_repeat(w->whole + 8 * j);

#pragma GCC unroll 4
            for (unsigned v = 0; v < WORDS; v++)
                sum[v] = dot2(sum[v], levels[j][v], factor);
        }
        add_sums(sum, w->whole_step, sums);
    }
}

static void values(const struct coded *c, size_t n_rows, const struct row_weights *w, float *sums, size_t ld)
{
    const uint8_t *at = c->at;
    ivec levels[8][WORDS]; /* narrow half-tiles have four of these */

    for (size_t half = 0; half < c->n_wide + c->n_narrow; half++, sums += 8 * DECODE_PARTS) {
        const struct level_table *t = &c->levels[c->bits[half]];

        if (half < c->n_wide) {
            switch (c->bits[half]) {
                EACH_WIDE(value_levels_wide(B, at, t->value, levels))
            }
            add_wide_rows(n_rows, levels, w, sums, ld);
        } else if (t->state_bits > 0) {
            trellis_levels(c->bits[half], t, false, at, levels);
            add_narrow_rows(n_rows, false, levels, w, sums, ld);
        } else if (n_rows <= VALUE_ROWS) {
            switch (c->bits[half]) {
                EACH_NARROW(few_rows(B, n_rows, at, t->narrow, w, sums, ld))
            }
        } else {
            switch (c->bits[half]) {
                EACH_NARROW(narrow_levels(B, at, t->narrow, levels))
            }
            add_narrow_rows(n_rows, c->bits[half] == 4, levels, w, sums, ld);
        }
        prefetch_next(c, at, c->bits[half]);
        at += (size_t) c->bits[half] * CHUNK_TOKENS;
    }
}

/* ---- values from keys ---- */

enum { KEY_VALUE_ROWS = 4 };

/* Reorders [4 tokens][4 bytes] or [4 tokens][2 half-words] by coordinate, in each 128 bits. */
static inline_always ivec by_coordinate(const uint8_t order[16], ivec x)
{
    return ivec_look_up(x, ivec_repeat(order));
}

static inline_always void rows_key_values(unsigned rows, const struct key_codes *x,
                                          const struct row_weights *w, float *sums, size_t ld)
{
    static const uint8_t fours[16] = {0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15};
    static const uint8_t twos[16] = {0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15};
    const ivec *wide = (const void *) x->wide, *narrow = (const void *) x->narrow;
    ivec factor[KEY_VALUE_ROWS][GROUPS];

    for (unsigned i = 0; x->n_wide > 0 && i < rows; i++)
        for (unsigned s = 0; s < GROUPS; s++)
            factor[i][s] = ivec_token_pairs(w[i].whole + s * LANES);
    for (size_t pair = 0; pair < PAIRS * x->n_wide; pair++, sums += LANES) {
        ivec sum[KEY_VALUE_ROWS];

        for (unsigned i = 0; i < rows; i++)
            sum[i] = ivec_set1(0);
        for (unsigned s = 0; s < GROUPS; s++) {
            ivec levels = by_coordinate(twos, *wide++);

#pragma GCC unroll 4
            for (unsigned i = 0; i < rows; i++)
                sum[i] = dot2(sum[i], levels, factor[i][s]);
        }
        for (unsigned i = 0; i < rows; i++)
            vec_store(sums + i * ld,
                      vec_fma(vec_from_int(sum[i]), vec_set1(w[i].whole_step), vec_load(sums + i * ld)));
    }
    for (unsigned i = 0; i < rows; i++)
        for (unsigned s = 0; s < GROUPS; s++)
            factor[i][s] = ivec_tokens(w[i].bytes + s * LANES);
    for (size_t quad = 0; quad < QUADS * x->n_narrow; quad++, sums += LANES) {
        ivec sum[KEY_VALUE_ROWS];

#pragma GCC unroll 4
        for (unsigned i = 0; i < rows; i++)
            sum[i] = ivec_set1(0);
#pragma GCC unroll 4
        for (unsigned s = 0; s < GROUPS; s++) {
            ivec levels = by_coordinate(fours, ivec_xor(*narrow++, ivec_set1((int32_t) 0x80808080)));

#pragma GCC unroll 4
            for (unsigned i = 0; i < rows; i++)
                sum[i] = dot4(sum[i], factor[i][s], levels);
        }
#pragma GCC unroll 4
        for (unsigned i = 0; i < rows; i++)
            vec_store(sums + i * ld,
                      vec_fma(vec_from_int(sum[i]), vec_set1(w[i].step), vec_load(sums + i * ld)));
    }
}

static void key_values(const struct key_codes *x, size_t n_rows, const struct row_weights *w, float *sums,
                       size_t ld)
{
    for (; n_rows >= KEY_VALUE_ROWS;
         n_rows -= KEY_VALUE_ROWS, w += KEY_VALUE_ROWS, sums += KEY_VALUE_ROWS * ld)
        rows_key_values(KEY_VALUE_ROWS, x, w, sums, ld);
    if (n_rows == 3)
        rows_key_values(3, x, w, sums, ld);
    else if (n_rows == 2)
        rows_key_values(2, x, w, sums, ld);
    else if (n_rows == 1)
        rows_key_values(1, x, w, sums, ld);
}
