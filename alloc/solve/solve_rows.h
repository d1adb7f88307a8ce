/*
 * The sampled vectors of a head-side in blocks that stay in a core's cache: a step reads a block, and
 * computes all that it needs of it before the next. A block is of one source.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct solver;

#define SOLVE_BLOCK 256 /* rows: with d = 64, a few arrays of binary32 take a few hundred KiB */

struct solve_rows {
    uint32_t source;       /* below the solver's n_sources */
    size_t first, n, step; /* rows first, first + step, ... */
};

/* The next block of every @step-th row. @r: {.n = 0} at first. False: there is none. */
bool solve_rows_next(const struct solver *v, size_t step, struct solve_rows *r);

/* The number of every @step-th row. */
static inline size_t solve_rows_count(size_t n, size_t step)
{
    return (n + step - 1) / step;
}

/* ret_u [r->n, d] := x - mean; @mean: [d]. */
void solve_rows_read(const struct solver *v, uint32_t head_side, const struct solve_rows *r,
                     const double *mean, float *ret_u);
