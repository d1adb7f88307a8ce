/*
 * What attention needs of a table besides the table itself, computed once per page_layout: levels as whole numbers, for
 * kernels that look them up by index and multiply integers, and the cosines and sines of in-page offsets.
 */
#pragma once

#include <stdint.h>

#include "alloc/table.h"
#include "gpu/rope.h"

/* Largest whole number of a level with b >= 5. */
#define LEVEL_WHOLE_MAX 4095

struct level_table {
    _Alignas(64) int16_t value[1 << TABLE_BITS_MAX]; /* levels / unit, repeated: index bits above b do not matter */
    float unit;                                      /* what 1 stands for, as dec expects levels */
};

/* @b in 1..8. Levels with b <= 4 are whole already; others are rounded to a power of two, 2^-9 at best. */
void level_table_init(struct level_table *t, const struct levels *l, unsigned b);

/*
 * Slow RoPE planes turn so little over a page that a polynomial through FOLD_NODES offsets does (attend_decode.c). The
 * nodes are Chebyshev's on 0..63, which leave the least error: 2 (31.5 freq / 2)^FOLD_NODES / FOLD_NODES! of the size.
 */
enum { FOLD_NODES = 4 };

struct page_constants {
    float fold_basis[FOLD_NODES][64];                               /* by node, then offset: Lagrange's polynomials */
    float fold_cos[FOLD_NODES][GEOMETRY_PLANES_MAX], fold_back_sin[FOLD_NODES][GEOMETRY_PLANES_MAX]; /* R(-node) */
    float fold_error[GEOMETRY_PLANES_MAX];                          /* by plane, of the size of its part of a score */
    struct level_table levels[2][TABLE_BITS_MAX + 1]; /* by side and b */
    struct rope_phase page_back, token_back;          /* R(-64), R(-1) */
    float *cos, *sin;                                 /* [n_rot/2][64] */
    float angles[];
};

/* One allocation; free() it. NULL: out of memory. */
struct page_constants *page_constants_new(const struct table *table);
