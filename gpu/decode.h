/*
 * Decode steps on packed pages: the loops that attention of a few query rows is made of, in 16-bit integers, for
 * instruction sets that multiply pairs of them (ops.h's `decode`). attend_decode.c is the common part.
 *
 * Numbers. A level is a whole number: as it stands in the table for b <= 4; for b >= 5 value 2^k, k as large as 9 but
 * no level beyond LEVEL_WHOLE_MAX, so it is off by 2^-13 of the largest at most. Rows 2i, 2i + 1 of K's dec (the two
 * dimensions of RoPE plane i) share a step fine enough for the largest entry to be 32767; weights of a page share one
 * that makes the largest 32767. Sums are 32-bit and cannot overflow: see key_rows_prepare() and decode.h's `values`.
 *
 * Order. Keys of a page come in `chunks`: 8 tokens each, in the order that falls out of the words. Values are summed
 * as DECODE_PARTS partial sums per coordinate, because pairs of tokens stand in neighbouring lanes.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gpu/constants.h"
#include "gpu/layout.h"

#define DECODE_ROWS_MAX 16 /* query rows of a call that takes this path */
#define DECODE_PARTS 4

/* K or V half-tiles of one (layer, head) in one page. */
struct coded {
    const uint8_t *at;            /* first half-tile, any alignment */
    const uint8_t *bits;          /* [n_half], descending */
    size_t n_half;
    const struct level_table *levels; /* [TABLE_BITS_MAX + 1] of the side */
};

/* Rows of K's dec in integers, sorted by plane; rows without rotation come last, two by two with angle 0. */
struct key_rows {
    size_t n_planes;      /* d / 2, or how many of the first are not folded */
    size_t n_rot;         /* of them, planes that turn */
    size_t r;             /* a multiple of 16 */
    const int16_t *dec;   /* [n_planes][2][r] in steps */
    const int32_t *mean;  /* [n_planes][2] in steps */
    const float *cos, *sin; /* [n_rot][64] in the order of chunks */
};

struct decode_ops {
    const uint8_t *chunks; /* [8] which eight tokens stand at 8 i */

    /* kt [2][n_planes][64]: keys in steps, turned by their offsets. @x: scratch, 128 r bytes, aligned to 64. */
    void (*keys)(const struct coded *c, const struct key_rows *m, int16_t *x, float *kt);

    /* scores [64] in the order of chunks += sum_j basis[j] (offset[j] + w[j] . levels), for one row; w [FOLD_NODES][r]
     * in dec's unit. @x: what keys() left there. @unit, @largest [r]: of each column's levels. */
    void (*fold)(const int16_t *x, size_t r, const float *w, const float *offset, const float *unit,
                 const float *largest, const float *basis, float *scores);

    /* p [64] >= 0 to whole numbers of 0..32767; returns their step, 0 if all are 0. */
    float (*weights)(const float p[CHUNK_TOKENS], int16_t ret[CHUNK_TOKENS]);

    /* sums [n_rows][n_half * 8 * DECODE_PARTS] (row stride @ld) += step[row] * (weights [n_rows][64] times levels).
     * A lane adds 16 products: 16 * 32767 * LEVEL_WHOLE_MAX < 2^31. @k_order: half-tiles of K. */
    void (*values)(const struct coded *c, bool k_order, size_t n_rows, const int16_t *weights, const float *step,
                   float *sums, size_t ld);
};
