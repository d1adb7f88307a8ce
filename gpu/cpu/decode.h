/*
 * Decode steps on packed pages: the loops for attention of a few query rows, in whole numbers, for
 * instruction sets that multiply and add two or four of them in a lane (`decode` of ops.h). attend_decode.c
 * and fold.c are the common part, decode_simd.h is what the instruction sets share.
 *
 * There are two kinds of half-tiles. Narrow ones, b <= 4, have levels of 8 bits as in the table; their
 * factors (dec of K, nodes, weights) have 8 bits too. Wide ones, b >= 5, are multiplied in 16 bits: a level
 * is a whole number times 2^-k, with k up to 9 and no level beyond LEVEL_WHOLE_MAX. Half-tiles descend in
 * b, so wide ones come first.
 *
 * Sums have 32 bits and cannot overflow:
 *     narrow, K and nodes   256 columns * 255 * 127                             < 2^23
 *     wide, K and nodes     256 columns * LEVEL_WHOLE_MAX * WIDE_MAX            < 2^31
 *     narrow, values        a lane adds 16 products of 255 * 127                < 2^19
 *     wide, values          a lane adds 16 of WEIGHT_WIDE_MAX * LEVEL_WHOLE_MAX < 2^31
 *
 * Where one of two factors must be unsigned, 128 is added to the levels of K, and sums start at -128 times
 * the other factors.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gpu/page_constants.h"
#include "gpu/page_layout.h"

struct softmax_row;

#define DECODE_ROWS_MAX 16 /* most query rows of a call that uses these loops */
#define DECODE_PARTS 4     /* partial sums of a coordinate of V */
#define WIDE_MAX 2047
#define WEIGHT_WIDE_MAX 32767
#define PAIRS_MAX 65000 /* times 32767 it is below 2^31, with a margin for rounding */
#define FOLD_RING 16    /* nodes of a level that are stored; see fold.h */

enum {
    ROW_BYTES = 128, /* of a row of the words of a plane */
    QUADS = 2,       /* groups of four coordinates in a half-tile */
    PAIRS = 4,       /* pairs of coordinates in a half-tile */
};

/* Half-tiles of K or V of one (layer, head) in one page, without those with b = 0. */
struct coded {
    const uint8_t *at;   /* first half-tile, any alignment */
    ptrdiff_t next_page; /* bytes from there to the half-tiles of the next page, to prefetch; 0: none */
    const uint8_t *bits; /* [n_wide + n_narrow], descending */
    size_t n_wide, n_narrow;
    const struct level_table *levels; /* [TABLE_BITS_MAX + 1] of the side */
    /* of K: where unpack_keys() stores each half-tile, counted among the wide or the narrow ones; NULL: in
     * their order */
    const uint8_t *place;
};

/* Levels of the keys of a page by token, aligned to 64. */
struct key_codes {
    size_t n_wide, n_narrow; /* half-tiles */
    int16_t *wide;           /* [4 n_wide][64][2]: pairs of coordinates */
    uint8_t *narrow;         /* [2 n_narrow][64][4]: level + 128 of four coordinates */
};

/* Columns of dec of K: all, or those of one block of coordinates (table_types.h), wide ones first. */
struct key_columns {
    const float *dec;        /* [d][ld] by dimension */
    size_t ld, r;            /* r: columns that have numbers; those beyond the half-tiles are 0 */
    size_t n_wide, n_narrow; /* half-tiles */
    const float *unit;       /* [r] value of one level step of each column */
};

/* Without columns dec may be NULL, from which C forms no address. */
static inline const float *key_columns_row(const struct key_columns *k, size_t dim)
{
    return k->r > 0 ? k->dec + dim * k->ld : k->dec;
}

/* Rows of dec of K in whole numbers, sorted by plane. Rows without
 * rotation come last, in pairs with angle 0. */
struct key_rows {
    size_t n_planes;                /* planes whose keys are computed from these columns */
    size_t n_rot;                   /* of these, planes that are rotated */
    size_t kt_planes;               /* planes whose keys are computed at all */
    int16_t *wide;                  /* [2 n_planes][8 n_wide], up to WIDE_MAX */
    int8_t *narrow;                 /* [2 n_planes][8 n_narrow], up to narrow_max */
    int32_t *start;                 /* [2 n_planes] -128 times the sum of a narrow row */
    float *wide_step, *narrow_step; /* [2 n_planes] */
    float *mean;                    /* [2 n_planes] */
    const float *cos, *sin;         /* [n_rot][64] */
};

/* Nodes of folded planes in whole numbers; node k is stored at k % FOLD_RING. */
struct fold_codes {
    size_t n_rows, n_wide, n_narrow; /* columns of a row */
    int16_t *wide;                   /* [FOLD_RING][n_rows][TABLE_RANK_MAX], up to WIDE_MAX */
    int8_t *narrow;                  /* [FOLD_RING][n_rows][TABLE_RANK_MAX], up to narrow_max */
    int32_t *start;                  /* [FOLD_RING][n_rows] -128 times the sum of a narrow row */
    float *wide_step, *narrow_step;  /* [FOLD_RING][n_rows] */
    float *offset;                   /* [FOLD_RING][n_rows] part of the key mean */
};

/* Four nodes of the finest level: sums over planes of cos A + sin B, plus the interpolated level above. */
struct fold_planes {
    size_t n, cols;      /* planes; columns of all rows */
    int16_t *pairs;      /* [n][cols][2] A and B in steps; sums over planes of |A| + |B| below PAIRS_MAX */
    float *step;         /* [cols] */
    uint32_t *rotations; /* [FOLD_RATIO][n] cosines (lower half) and sines times 32767, by node */
    const float *above[FOLD_NODES];     /* [cols] nodes of the level above; NULL: none */
    const float (*weights)[FOLD_NODES]; /* [FOLD_RATIO] weights of the nodes above for each node */
};

/* The weights of one row in the orders in which words have tokens. */
struct row_weights {
    /* for planes of 4 bits: tokens j, j + 2 of the fields of a word, even and odd */
    _Alignas(64) uint8_t by_four[4][16];
    uint8_t by_two[4][16]; /* for planes of 2 bits and of 1 bit: j, j + 4 */
    uint8_t bytes[CHUNK_TOKENS];
    int16_t whole[CHUNK_TOKENS]; /* for wide half-tiles */
    float step, whole_step;
    float sum; /* of the weights of all keys of the page, as part of the sum of the row */
};

struct decode_ops {
    int narrow_max, weight_max;
    size_t lanes; /* 32-bit numbers of a vector */

    void (*unpack_keys)(const struct coded *c, struct key_codes *ret);

    /* kt [2][kt_planes][64], planes 0 .. n_planes - 1: keys of the fast planes, rotated by their offsets. */
    void (*keys)(const struct key_codes *x, const struct key_rows *m, float *kt);

    /* Rotates planes 0 .. n - 1 of a query, q [2][half], by phases [n rounded up to lanes]: ret [2][ld], of
     * the same rounded length. */
    void (*rotate)(const float *q, size_t half, const double *cos, const double *sin, size_t n, float *ret,
                   size_t ld);

    /* Phases of @n planes, as pairs of whole numbers (times 32767) and rounded;
     * then the phases are rotated by @step. */
    void (*rotations)(size_t n, double *cos, double *sin, const double *step_cos, const double *step_sin,
                      uint32_t *ret_pairs, float *ret_cos, float *ret_sin);

    /* Makes FOLD_RATIO nodes, except their offsets, in slots @slot .. of @c. */
    void (*nodes)(const struct fold_planes *p, const struct fold_codes *c, size_t slot);

    /* scores [n_rows][64] of rows @row .. += nodes @first .. around each 16 tokens, times @basis. */
    void (*fold)(const struct key_codes *x, const struct fold_codes *c, size_t first, size_t row,
                 size_t n_rows, const float basis[FOLD_NODES][FOLD_SPACING], float *scores);

    /*
     * One step of softmax: scores [n_rows][64], -INFINITY where a key is not seen, to weights; each row
     * sees at least one key. Weights of the first @n_exact keys stay in scores and are 0 in @ret. The whole
     * numbers for wide half-tiles are computed only if there are any. @ret_factor: factor that rescales the
     * earlier sums of each row.
     */
    void (*softmax)(size_t n_rows, float *scores, struct softmax_row *state, size_t n_exact, bool wide,
                    float ret_factor[DECODE_ROWS_MAX], struct row_weights *ret);

    /* sums [n_rows][n_half * 8 * DECODE_PARTS] (row stride @ld) += weights [n_rows] times levels of V. */
    void (*values)(const struct coded *c, size_t n_rows, const struct row_weights *w, float *sums, size_t ld);

    /* The same for the levels of K: [4 n_wide][lanes] where lane l adds to coordinate l % 4 / 2 of a pair,
     * then [2 n_narrow][lanes] where it adds to coordinate l % 4 of four. */
    void (*key_values)(const struct key_codes *x, size_t n_rows, const struct row_weights *w, float *sums,
                       size_t ld);
};
