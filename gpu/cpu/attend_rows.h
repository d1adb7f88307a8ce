/*
 * The common part of packed and dense attention: rows of queries, blocks of 64 keys, one softmax per row
 * over all blocks.
 *
 * A row is one query head of one query token; row = token * group + head, so the rows that see a key are a
 * suffix. Keys of a block are stored transposed, kt [d][64], one key per lane.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "gpu/cpu/ops.h"
#include "gpu/rope.h"

#define ROWS_BATCH 64 /* rows whose scores over a block are in memory at once */

struct attend_rows {
    const struct geometry *geometry;
    size_t n;           /* rows */
    size_t group;       /* rows per token */
    size_t first;       /* position of the token of row 0 */
    size_t window;      /* a row at position p sees n > p - window; 0 = all */
    bool direct_phases; /* the phase of a row is not advanced from the row before */
    bool all_values;    /* rows_needing_values() skips nothing */
    size_t n_skipped;   /* what it skipped: blocks, counted once for each row */
    float *q;           /* [n, d] scaled, rotated by rows_load() */
    float *acc;         /* [n, acc_cols] */
    size_t acc_cols;
    struct softmax_row *state; /* [n] */
};

/* Takes parts of the caller's scratch, each aligned to 64 bytes; with
 * base NULL it only adds up their sizes. */
struct scratch_cursor {
    char *base;
    size_t bytes;
};
void *attend_rows_take(struct scratch_cursor *s, size_t n, size_t elem_bytes);

/* Rounds a dimension or a rank up to whole lanes. */
static inline size_t round_lanes(size_t n)
{
    return (n + OPS_LANES - 1) / OPS_LANES * OPS_LANES;
}

/* Loads q [n_q, group, d] times the attention scale, the token at position p rotated by R(p - origin), and
 * clears the sums. */
void rows_load(struct attend_rows *rows, const float *q, size_t q_stride, double origin);

/* The first row that sees position @n; rows->n if there is none. */
size_t rows_first_seeing(const struct attend_rows *rows, size_t n);

/* The row after the last one that sees a key at @n or later; rows->n without a window. */
size_t rows_end_seeing(const struct attend_rows *rows, size_t n);

/* The first position that any row sees. */
size_t rows_lowest_seen(const struct attend_rows *rows);

/* The number of keys that row @i sees of a block of @n_keys that starts at
 * @block, without regard to the window. */
size_t rows_keys_seen(const struct attend_rows *rows, size_t i, size_t block, size_t n_keys);

/* Sets the scores over a block that row @i does not see to -INFINITY; it must see at least one key. */
void rows_hide(const struct attend_rows *rows, size_t i, size_t block, size_t n_keys,
               float scores[CHUNK_TOKENS]);

/* Computes scores [n, 64] of @n query rows at q over a block. */
void attend_rows_block_scores(const struct ops *ops, const float *q, size_t n, size_t d, const float *kt,
                              float *scores);

/* Softmax of rows i .. i + n - 1 over one block: scores in, weights out, accumulators rescaled. Only the
 * first rows_keys_seen() keys of a row that are inside its window count; there must be at least one.
 * @ret_weights [n]: sum of the weights of each row over the block, as part of its sum; NULL: not needed. */
void rows_softmax(const struct ops *ops, struct attend_rows *rows, size_t i, size_t n, size_t block,
                  size_t n_keys, float *scores, float *ret_weights);

/*
 * Chooses the rows of i .. i + n - 1 to which the values of a block are added: from the first that needs
 * them to the last. Returns their number; @ret_first is counted from @i.
 *
 * A row can do without them if the weights of the block, @weights [n] as rows_softmax() returns them, are
 * less than 2^-24 of its sum so far, while everything that it skipped stays below 2^-20 of that sum. The sum
 * never falls, so the result misses less than 2^-20 of the weights; those of a share less than that part of
 * the sum of the share.
 */
size_t rows_needing_values(struct attend_rows *rows, size_t i, size_t n, const float *weights,
                           size_t *ret_first);
