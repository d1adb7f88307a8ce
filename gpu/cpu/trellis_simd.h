/*
 * Half-tiles whose codes are strings of a trellis (alloc/table/trellis.h): levels of 64 tokens and 8
 * coordinates, by the same operations on vectors as decode_simd.h, which includes this file. gpu/README.md
 * shows the bits of a state.
 */
#pragma once

#include "gpu/cpu/decode.h"
#include "gpu/cpu/each_width.h"

/* Words of a narrow half-tile in memory order, and beside each the word that its string was in before: of
 * field 0 the one before is field 7 of the token below, of which the first follows the last. */
struct trellis_words {
    ivec p[2][WORDS], before[2][WORDS]; /* planes of four bits or of two */
    ivec p1[WORDS];                     /* the plane of one: 8 fields above the 8 before them */
};

/* The words of token n - 1 (mod 8) in the place of those of token n. */
static inline_always ivec word_before(bool of_key, const ivec x[WORDS], unsigned v)
{
    static const uint8_t half_word_before[16] = {14, 15, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13};

    if (of_key) /* rows of 128 bits are tokens; of V they are coordinates */
        return ivec_before(x[(v + WORDS - 1) % WORDS], x[v]);
    return ivec_look_up(x[v], ivec_repeat(half_word_before));
}

static inline_always void load_trellis_words(unsigned b, bool of_key, const uint8_t *at,
                                             struct trellis_words *ret)
{
    ivec x[WORDS];

#pragma GCC unroll 4
    for (unsigned v = 0; v < WORDS; v++) {
        if (b >= 2)
            ret->p[0][v] = ivec_load(at + v * sizeof(ivec));
        if (b == 4)
            ret->p[1][v] = ivec_load(at + ROW_BYTES + v * sizeof(ivec));
        if (b & 1)
            x[v] = ivec_wide_bytes(at + (b == 3 ? ROW_BYTES : 0) + v * sizeof(ivec) / 2);
    }
#pragma GCC unroll 4
    for (unsigned v = 0; v < WORDS; v++) {
        if (b >= 2)
            ret->before[0][v] = word_before(of_key, ret->p[b == 4], v);
        if (b == 4)
            ret->before[1][v] = ret->p[0][v];
        if (b & 1)
            ret->p1[v] = ivec_or(ivec_sll16(x[v], 8), word_before(of_key, x, v));
    }
}

/* Bits from @first on of 32 bits, a word above the one before it. */
static inline_always ivec bits_from(ivec word, ivec before, unsigned first)
{
    if (first >= 16)
        return ivec_srl16_by(word, first - 16);
    return ivec_or(ivec_sll16_by(word, 16 - first), ivec_srl16_by(before, first));
}

/* Bits @bit .. of half-words to bit 8 and above. */
static inline_always ivec bits_to_8(ivec x, int bit)
{
    return bit >= 8 ? ivec_srl16_by(x, (unsigned) (bit - 8)) : ivec_sll16_by(x, (unsigned) (8 - bit));
}

/*
 * Indices of level_table.book: states of L bits, with b bits per token, of field @j in the lower byte of
 * every half-word and of field j + 4 in the upper one. @b is a constant where this is inlined.
 */
static inline_always ivec trellis_index(unsigned b, unsigned L, const struct trellis_words *w, unsigned j,
                                        unsigned v)
{
    const ivec low = ivec_set1((int32_t) (((1u << L) - 1) * 0x00010001)), high = ivec_sll16_by(low, 8);

    if (b == 4) {
        unsigned first = 20 + 4 * j - L;
        ivec x = bits_from(w->p[0][v], w->before[0][v], first),
             y = bits_from(w->p[1][v], w->before[1][v], first);

        return ivec_or(ivec_and(x, low), ivec_sll16_by(ivec_and(y, low), 8));
    }
    if (b == 2)
        return ivec_and(bits_from(w->p[0][v], w->before[0][v], 18 + 2 * j - L), ivec_or(low, high));
    if (b == 1)
        return ivec_or(ivec_and(ivec_srl16_by(w->p1[v], 9 + j - L), low),
                       ivec_and(bits_to_8(w->p1[v], (int) (13 + j) - (int) L), high));
    {
        const ivec twos = ivec_set1((int32_t) (((1u << (L - 2)) - 1) * 0x01010101));
        ivec ones = ivec_or(ivec_and(ivec_srl16_by(w->p1[v], 7 + j), ivec_set1(0x00030003)),
                            ivec_and(bits_to_8(w->p1[v], (int) (11 + j)), ivec_set1(0x03000300)));

        return ivec_or(ivec_and(bits_from(w->p[0][v], w->before[0][v], 20 + 2 * j - L), twos),
                       ivec_sll16_by(ones, L - 2));
    }
}

#ifndef look_up_book
/* Levels of 2^L: sixteen at a time, then halves by each further bit of the index. */
static inline_always ivec look_up_book(unsigned L, const int8_t *book, ivec index)
{
    ivec x[1 << (TRELLIS_STATE_BITS_MAX - 4)], low = ivec_and(index, ivec_set1(0x0f0f0f0f));

#pragma GCC unroll 16
    for (unsigned i = 0; i < 1u << (L - 4); i++)
        x[i] = ivec_look_up(ivec_repeat(book + 16 * i), low);
#pragma GCC unroll 4
    for (unsigned bit = 4; bit < L; bit++)
#pragma GCC unroll 8
        for (unsigned i = 0; i < 1u << (L - bit - 1); i++)
            x[i] = ivec_blend(x[2 * i], x[2 * i + 1], index, bit);
    return x[0];
}
#endif

static inline_always void trellis_indices(unsigned b, unsigned L, const struct trellis_words *w,
                                          ivec ret[4][WORDS])
{
    for (unsigned j = 0; j < 4; j++)
        for (unsigned v = 0; v < WORDS; v++)
            ret[j][v] = trellis_index(b, L, w, j, v);
}

static inline_always void look_up_all(unsigned L, const int8_t *book, ivec x[4][WORDS])
{
    for (unsigned j = 0; j < 4; j++)
#pragma GCC unroll 4
        for (unsigned v = 0; v < WORDS; v++)
            x[j][v] = look_up_book(L, book, x[j][v]);
}

/* Levels of a narrow half-tile with a trellis, by fields j and j + 4: [4 j][64 half-words] in memory order.
 * Indices of each width, then levels of each number of states: one body for each of them, not for each pair.
 * */
static void trellis_levels(unsigned b, const struct level_table *t, bool of_key, const uint8_t *at,
                           ivec ret[4][WORDS])
{
    struct trellis_words words;

    switch (b) {
        EACH_NARROW(load_trellis_words(B, of_key, at, &words); trellis_indices(B, t->state_bits, &words, ret))
    }
    if (t->state_bits == 6)
        look_up_all(6, t->book, ret);
    else if (t->state_bits == 7)
        look_up_all(7, t->book, ret);
    else
        look_up_all(8, t->book, ret);
}

static inline_always void unpack_trellis(unsigned b, const struct level_table *t, const uint8_t *at, ivec *x)
{
    ivec levels[4][WORDS];

    trellis_levels(b, t, true, at, levels);
    for (unsigned j = 0; j < 4; j++)
#pragma GCC unroll 4
        for (unsigned v = 0; v < WORDS; v++)
            levels[j][v] = ivec_xor(levels[j][v], ivec_set1((int32_t) 0x80808080));
    arrange_keys(levels, x);
}
