/*
 * Attention of a few query rows over packed pages in 16-bit integers (decode.h): what attend_packed.c does page by page
 * when the call has at most DECODE_ROWS_MAX rows and the instruction set has the loops. Rank-space sums are kept apart
 * from the rows' accumulators, in parts; decode_finish() adds them.
 */
#pragma once

#include "gpu/attend.h"
#include "gpu/attend_rows.h"
#include "gpu/codec.h"
#include "gpu/decode.h"

#define FOLD_ROWS_MAX 8 /* with more rows, folding costs more than keys do */

struct decode {
    const struct ops *ops;
    const struct attend_args *args;
    struct head_view head;
    struct attend_rows *rows;
    struct key_rows keys;
    size_t n_fast;            /* planes whose keys are formed; the rest is folded into rank space */
    float unit[TABLE_RANK_MAX], largest[TABLE_RANK_MAX]; /* of K's levels, by column */
    float basis[FOLD_NODES * CHUNK_TOKENS];              /* in the order of chunks */
    float *nodes;             /* [FOLD_ROWS_MAX * FOLD_NODES, d] queries at the nodes */
    float *folded;            /* [FOLD_ROWS_MAX * FOLD_NODES, r] the same in rank space */
    float *step;              /* [n_planes] of K's dec, one per plane */
    int16_t *dec;             /* keys.dec */
    int32_t *mean;            /* keys.mean */
    float *cos, *sin;         /* keys.cos, keys.sin */
    int16_t *levels;          /* scratch of keys() */
    float *kt;                /* [2][n_planes][64], in the order of chunks */
    float *q;                 /* [DECODE_ROWS_MAX, 2, n_planes] in the frame of the page, times step */
    float *turned;            /* [d] one query row in the frame of the page */
    float *scores, *ordered;  /* [DECODE_ROWS_MAX, 64] by chunk; by token */
    int16_t *weights;         /* [DECODE_ROWS_MAX, 64] */
    float *sums;              /* [DECODE_ROWS_MAX, sums_cols]: [K, if V is predicted from it | V] in parts */
    size_t sums_cols;
};

/* Whether these loops can take a table; attend_packed.c's in binary32 take every one. */
bool decode_takes(const struct table *t);

/* Buffers for @g out of @s. */
void decode_carve(struct decode *d, struct scratch_cursor *s, const struct geometry *g);

/* After decode_carve() and with args, head, rows and ops set: K's matrix in integers, sums cleared. */
void decode_begin(struct decode *d);

/* All rows that see anything of page @page; @frame turns queries to it. The first @n_exact keys are those in
 * @exact_k, @exact_v [n_exact, d]: whole vectors, and values less their mean with row stride @exact_ld. */
void decode_page(struct decode *d, size_t page, const struct rope_phase *frame, size_t n_exact, const float *exact_k,
                 const float *exact_v, size_t exact_ld);

/* Adds the parts to the packed columns, from @first_col on, of the rows' accumulators. */
void decode_finish(struct decode *d, size_t first_col);
