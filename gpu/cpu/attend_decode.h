/* Attention of a few query rows over packed pages in whole numbers (decode.h). attend_packed.c uses it page
 * by page if the call has at most DECODE_ROWS_MAX rows and the instruction set has the loops. Sums in rank
 * space are stored apart from the accumulators of the rows, in parts; decode_finish() adds them. */
#pragma once

#include "gpu/attend.h"
#include "gpu/cpu/attend_rows.h"
#include "gpu/codec.h"
#include "gpu/cpu/decode.h"
#include "gpu/cpu/fold.h"

struct decode {
    const struct ops *ops;
    const struct attend_args *args;
    struct head_view head;
    struct attend_rows *rows;
    struct coded k, v; /* everything except their place */
    /* of K with bases in two blocks: half-tiles of the fast planes, which key_codes has first among the wide
     * and the narrow ones, and the place of each half-tile there; else 0 */
    size_t fast_wide, fast_narrow;
    uint8_t place[TABLE_HALF_TILES_MAX];
    struct key_rows fast_keys, keys; /* from the coordinates of the fast planes, and from the others */
    float *columns;                  /* [d][d rounded up] dec of K, columns of the block of the row's plane */
    struct key_codes codes, other;   /* codes: of the page; other: of another head that V is predicted from */
    struct head_run predictors;
    bool wide; /* weights of 16 bits are needed too */
    struct fold fold;
    struct rope_phase frame; /* rotates the fast planes of queries to the first position of the page */
    size_t first_page;
    /* largest error that folding may add to a score of any row, relative to the size of the scores about
     * their mean */
    double fold_bound;
    size_t n_fast;               /* planes whose keys are computed; the others are folded into rank space */
    float *kt;                   /* [2][n_fast][64] */
    float *q;                    /* [n_rows, 2, n_fast rounded up] in the frame of the page */
    float *rotated;              /* [d] one query row in the frame of the page */
    float *scores;               /* [n_rows, 64] */
    struct row_weights *weights; /* [n_rows] */
    float *sums;                 /* [n_rows, sums_cols]: [K of each predictor | V] in parts */
    size_t sums_cols, v_sums;    /* v_sums: first column of V */
};

/* Takes buffers from @s for up to @n_rows rows over pages of @l. */
void decode_carve(struct decode *d, struct scratch_cursor *s, const struct page_layout *l, size_t n_rows);

/* Prepares K's matrix in whole numbers and clears the sums. Call it after decode_carve(), with args, head,
 * rows and ops set. @frame rotates queries to page @first_page, the first one to be read. */
void decode_begin(struct decode *d, size_t first_page, const struct rope_phase *frame);

/* Processes page @page for all rows that see any of it; pages must come in order. The first @n_exact keys,
 * which only page 0 may have, are those in @exact_k, @exact_v [n_exact, d]: keys with their mean, and
 * values minus their mean with row stride @exact_ld. */
void decode_page(struct decode *d, size_t page, size_t n_exact, const float *exact_k, const float *exact_v,
                 size_t exact_ld);

/* Adds the parts to the packed columns, from @first_col on, of the accumulators of the rows. */
void decode_finish(struct decode *d, size_t first_col);
