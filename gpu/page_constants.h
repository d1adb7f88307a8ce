/* Constants that attention needs besides the table, computed once per page_layout: levels as
 * whole numbers, for kernels that look them up by index and multiply integers, and the
 * cosines and sines of in-page offsets. */
#pragma once

#include <stdint.h>

#include "alloc/table/table.h"
#include "alloc/table/trellis.h"
#include "gpu/rope.h"

/* Largest whole number of a level with b >= 5. */
#define LEVEL_WHOLE_MAX 4095

struct level_table {
    /* levels / unit, repeated: index bits above b do not matter; narrow: the same for b <= 4 */
    _Alignas(64) int16_t value[1 << TABLE_BITS_MAX];
    _Alignas(16) int8_t narrow[16];
    /* of a trellis with b <= 4, by the index that trellis_index() of cpu/decode_simd.h forms; bits above
     * state_bits do not matter */
    _Alignas(64) int8_t book[1 << TRELLIS_STATE_BITS_MAX];
    unsigned state_bits; /* 0: scalar levels */
    float unit;          /* value of 1 in units of the levels that dec expects */
};

/* @b in 1..8. Levels with b <= 4 are whole numbers already; others are rounded to multiples of a power of
 * two, 2^-9 or larger. */
void page_level_table_init(struct level_table *t, const struct levels *l, unsigned b);

/*
 * Slow RoPE planes rotate so little that their part of a score is interpolated (fold.h). Level l has a node
 * every 16 4^l tokens, node k at 16 4^l k - 1/2. Between two nodes the value is Lagrange's cubic through
 * the four nodes around them. A plane belongs to the coarsest level over whose spacing it rotates by
 * FOLD_ANGLE at most; if there is none, to level 0.
 */
enum { FOLD_LEVELS = 4, FOLD_NODES = 4, FOLD_SPACING = 16, FOLD_RATIO = 4 };
#define FOLD_ANGLE 0.25

struct page_constants {
    /* weight of each node for the tokens between the two middle nodes */
    float fold_tokens[FOLD_NODES][FOLD_SPACING];
    float fold_nodes[FOLD_RATIO][FOLD_NODES]; /* the same for node k of the level below, by k % FOLD_RATIO */
    float fold_error[GEOMETRY_PLANES_MAX];    /* by plane, relative to the size of its part of a score */
    uint8_t fold_level[GEOMETRY_PLANES_MAX];  /* by plane, ascending; planes without rotation come last */
    struct rope_phase fold_start, fold_step;  /* R(1/2 + 4 spacing), R(-spacing) of a plane's level */
    struct level_table levels[2][TABLE_BITS_MAX + 1]; /* by side and b */
    struct rope_phase page_back, token_back;          /* R(-64), R(-1) */
    float *cos, *sin;                                 /* [n_rot/2][64] */
    float angles[];
};

/* One allocation; free() it. NULL: out of memory. */
struct page_constants *page_constants_new(const struct table *table);
