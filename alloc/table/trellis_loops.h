/*
 * The encoder of trellis.h for vectors of one instruction set, one string per lane. Each trellis_<isa>.c
 * includes this file once, after it has defined TRELLIS_ENCODE, the name of its function, and
 *
 *     vec, LANES                     a vector of LANES signed 16-bit numbers
 *     vec_load, vec_store, vec_set1, vec_add, vec_sub, vec_min, vec_abs
 *     vec_square                     the lower 16 bits of the square
 *     vec_down(x, n)                 x >> n, unsigned
 *     vec_choose(best, which, x, h)  where x < best: best = x, which = h
 *     vec_store_bytes(p, x)          LANES numbers below 256 as bytes
 *
 * A token costs |x - level|^2 >> s with s = 5, 4, 2, 1 for b = 1 .. 4, since wide codes have small errors.
 * The distance is clipped first, to 255, 255, 127, 90, so that no cost exceeds 4064. Costs of paths are
 * signed 16-bit sums from which the least is subtracted after every four tokens: at most 16383 + 4 * 4064 <
 * 2^15. A search that is tied to a state starts all others at 16383: within L / b tokens every state is
 * reached from the right one for less than that (8 * 2032, 4 * 4064, 3 * 4032, 2 * 4050).
 *
 * The predecessors of a state are 2^b neighbours, (state mod 2^(L - b)) 2^b + h, so states that differ in
 * their code alone share them: one search for the least of them serves 2^b states. Ties take the lower one.
 */
#include <string.h>

#include "alloc/table/trellis.h"

#define inline_always inline __attribute__((always_inline))

enum { COST_FAR = 16383, RENORMALISE = 4 };

struct trellis_work {
    vec *cost;     /* [2^L] of paths that end in a state */
    vec *least;    /* [2^(L - b)] of each group of predecessors */
    uint8_t *from; /* [64][2^(L - b)][LANES] which of the group it is */
    int16_t level[1 << TRELLIS_STATE_BITS_MAX];
    unsigned state_bits;
};

/* The least of each group of predecessors. */
static inline_always void trellis_choose(unsigned b, const struct trellis_work *w, uint8_t *from)
{
    for (unsigned g = 0; g < 1u << (w->state_bits - b); g++) {
        const vec *cost = w->cost + ((size_t) g << b);
        vec best = cost[0], which = vec_set1(0);

#pragma GCC unroll 16
        for (int h = 1, n = 1 << b; h < n; h++)
            vec_choose(best, which, cost[h], h);
        w->least[g] = best;
        vec_store_bytes(from + (size_t) g * LANES, which);
    }
}

/* cost := least of the predecessors + cost of the token in each state. */
static inline_always void trellis_pay(unsigned b, const struct trellis_work *w, vec x)
{
    static const int shifts[] = {0, 5, 4, 2, 1}, clips[] = {0, 255, 255, 127, 90};
    const int shift = shifts[b], clip = clips[b]; /* constants, as b is one */
    unsigned groups = 1u << (w->state_bits - b), s = 0;

    for (unsigned code = 0; code < 1u << b; code++)
        for (unsigned g = 0; g < groups; g++, s++) {
            vec e = vec_min(vec_abs(vec_sub(x, vec_set1(w->level[s]))), vec_set1((int16_t) clip));

            w->cost[s] = vec_add(w->least[g], vec_down(vec_square(e), shift));
        }
}

static inline_always void trellis_renormalise(const struct trellis_work *w)
{
    unsigned n = 1u << w->state_bits;
    vec least = w->cost[0];

    for (unsigned s = 1; s < n; s++)
        least = vec_min(least, w->cost[s]);
    for (unsigned s = 0; s < n; s++)
        w->cost[s] = vec_min(vec_sub(w->cost[s], least), vec_set1(COST_FAR));
}

/* @n tokens, beginning at place @first. */
static inline_always void trellis_search(unsigned b, const struct trellis_work *w, const int16_t *x,
                                         size_t stride, unsigned first, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        unsigned token = trellis_token((first + i) % TRELLIS_TOKENS);

        trellis_choose(b, w, w->from + ((size_t) i * LANES << (w->state_bits - b)));
        trellis_pay(b, w, vec_load(x + token * stride));
        if (i % RENORMALISE == RENORMALISE - 1)
            trellis_renormalise(w);
    }
}

/* The state before the one that the @i-th token of a search is in. */
static inline_always unsigned trellis_before(unsigned b, const struct trellis_work *w, unsigned i,
                                             unsigned state, unsigned lane)
{
    size_t group = state & ((1u << (w->state_bits - b)) - 1);

    return (unsigned) group << b | w->from[(((size_t) i << (w->state_bits - b)) + group) * LANES + lane];
}

/*
 * Tokens before and after the seam that the search for its state reads. The longer a code stays in the
 * state, the more it takes: with fewer, N(0,1) loses 1.5 to 2 % at one bit, 0.5 to 1.4 % at two (16 instead
 * of 32), nothing that shows at three and four.
 */
static inline_always unsigned trellis_around(unsigned b)
{
    if (b == 1)
        return 32;
    return b == 2 ? 24 : 16;
}

/* The state at the seam: after the last place, found by a free search around it. */
static inline_always void trellis_find_seam(unsigned b, const struct trellis_work *w, const int16_t *x,
                                            size_t stride, unsigned ret_seam[LANES])
{
    unsigned around = trellis_around(b);
    vec best, which = vec_set1(0);
    int16_t state[LANES];

    memset(w->cost, 0, sizeof(*w->cost) << w->state_bits);
    trellis_search(b, w, x, stride, TRELLIS_TOKENS - around, 2 * around);
    best = w->cost[0];
    for (int s = 1; s < 1 << w->state_bits; s++)
        vec_choose(best, which, w->cost[s], s);
    vec_store(state, which);
    for (unsigned lane = 0; lane < LANES; lane++)
        ret_seam[lane] = (unsigned) state[lane];
    for (unsigned i = 2 * around - 1; i >= around; i--)
        for (unsigned lane = 0; lane < LANES; lane++)
            ret_seam[lane] = trellis_before(b, w, i, ret_seam[lane], lane);
}

static inline_always void trellis_encode_lanes(unsigned b, const struct trellis_work *w, const int16_t *x,
                                               size_t stride, uint8_t *states)
{
    unsigned state[LANES];

    trellis_find_seam(b, w, x, stride, state);
    for (unsigned s = 0; s < 1u << w->state_bits; s++)
        w->cost[s] = vec_set1(COST_FAR);
    for (unsigned lane = 0; lane < LANES; lane++)
        ((int16_t *) w->cost)[state[lane] * LANES + lane] = 0;
    trellis_search(b, w, x, stride, 0, TRELLIS_TOKENS);
    for (unsigned i = TRELLIS_TOKENS; i-- > 0;)
        for (unsigned lane = 0; lane < LANES; lane++) {
            states[trellis_token(i) * stride + lane] = (uint8_t) state[lane];
            state[lane] = trellis_before(b, w, i, state[lane], lane);
        }
}

/* All strings but a rest of less than LANES; returns how many. */
static inline_always size_t trellis_encode_width(unsigned b, const struct trellis_work *w, const int16_t *x,
                                                 size_t n, size_t stride, uint8_t *states)
{
    size_t i = 0;

    for (; i + LANES <= n; i += LANES)
        trellis_encode_lanes(b, w, x + i, stride, states + i);
    return i;
}

/* Returns the number of strings that were encoded: all but a rest of less than LANES. */
static size_t trellis_encode_all(const struct levels *l, unsigned b, const int16_t *x, size_t n,
                                 size_t stride, uint8_t *states, void *scratch)
{
    struct trellis_work w = {.state_bits = l->state_bits};

    w.cost = scratch;
    w.least = w.cost + (1 << TRELLIS_STATE_BITS_MAX);
    w.from = (uint8_t *) (w.least + (1 << (TRELLIS_STATE_BITS_MAX - 1)));
    for (unsigned s = 0; s < 1u << w.state_bits; s++)
        w.level[s] = (int16_t) l->value[s];
    switch (b) {
    case 1:
        return trellis_encode_width(1, &w, x, n, stride, states);
    case 2:
        return trellis_encode_width(2, &w, x, n, stride, states);
    case 3:
        return trellis_encode_width(3, &w, x, n, stride, states);
    default:
        return trellis_encode_width(4, &w, x, n, stride, states);
    }
}
