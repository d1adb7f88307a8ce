/*
 * Attention of a few query rows over packed pages in whole numbers (decode.h): what attend_packed.c does page
 * by page when the call has at most DECODE_ROWS_MAX rows and the instruction set has the loops. Rank-space
 * sums are kept apart from the rows' accumulators, in parts; decode_finish() adds them.
 */
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
    struct coded k, v; /* all but where they stand */
    struct key_rows keys;
    struct key_codes codes, other; /* of the page; of another head that V is predicted from */
    struct head_run predictors;
    bool wide; /* weights of 16 bits are needed too */
    struct fold fold;
    struct rope_phase frame; /* turns fast planes of queries to the page's first position */
    size_t first_page;
    double
        fold_bound; /* what folding may add to a score, over the scores' size about their mean; of any row */
    size_t n_fast;  /* planes whose keys are formed; the rest is folded into rank space */
    float *kt;      /* [2][n_fast][64] */
    float *q;       /* [n_rows, 2, n_fast rounded up] in the frame of the page */
    float *rotated; /* [d] one query row in the frame of the page */
    float *scores;  /* [n_rows, 64] */
    struct row_weights *weights; /* [n_rows] */
    float *sums;                 /* [n_rows, sums_cols]: [K of each predictor | V] in parts */
    size_t sums_cols, v_sums;    /* first column of V's */
};

/* Buffers for up to @n_rows rows over pages of @l out of @s. */
void decode_carve(struct decode *d, struct scratch_cursor *s, const struct page_layout *l, size_t n_rows);

/* After decode_carve() and with args, head, rows and ops set: K's matrix in whole numbers, sums cleared.
 * @frame turns queries to page @first_page, the first to be read. */
void decode_begin(struct decode *d, size_t first_page, const struct rope_phase *frame);

/* All rows that see anything of page @page; pages come in order. The first @n_exact keys, which only page 0
 * may have, are those in @exact_k, @exact_v [n_exact, d]: whole vectors, and values less their mean with row
 * stride @exact_ld. */
void decode_page(struct decode *d, size_t page, size_t n_exact, const float *exact_k, const float *exact_v,
                 size_t exact_ld);

/* Adds the parts to the packed columns, from @first_col on, of the rows' accumulators. */
void decode_finish(struct decode *d, size_t first_col);
