/*
 * Attention of the query heads of one KV head over packed pages and exact rows,
 * with one softmax over all of them.
 *
 * DESIGN 3.2. Scores are binary32. V is accumulated in rank space over [c_K ; c_V] and multiplied by dec
 * once, at the end:
 *     o = (dec_V * sum_packed p [c ; c_V] + mean_V * sum p + sum_exact p (v - mean_V)) / sum p
 * RoPE is applied on read: in-page offsets are constant, the query is rotated to the first position of the
 * page.
 *
 * Query m sees positions 0 .. m. Two kinds of them are exact: the sinks (n < n_sink, from page 0 of class
 * first) and the rows of exact_k and exact_v (positions exact_first ..). All others come from pages.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gpu/page_layout.h"

struct ops;

struct attend_args {
    const struct page_layout *layout;
    uint32_t layer, head;           /* head is counted from the first head of the shard */
    const uint8_t *const *payloads; /* [n_pages] payload of chunk i, positions 64 i ..; borrowed, immutable */
    size_t n_pages;                 /* packed positions are 0 .. 64 n_pages - 1 */
    uint32_t n_sink; /* sinks in page 0 (n_sink of the table); if n_pages == 0 they are exact rows */
    const uint16_t *exact_k, *exact_v; /* [n_exact, d] binary16 of x - mean, position exact_first + i */
    size_t exact_stride;               /* elements between rows */
    size_t exact_first;                /* == 64 n_pages */
    size_t n_exact;
    const float *q; /* [n_q, g, d] pre-RoPE, row stride q_stride floats between tokens */
    size_t q_stride;
    size_t q_first; /* position of query 0; q_first + n_q <= exact_first + n_exact */
    size_t n_q;
    float *out; /* like q */
    size_t out_stride;
    void *scratch;   /* attend_scratch_bytes(), aligned to 64 */
    size_t window;   /* query m sees only n > m - window, sinks included; 0 = all */
    bool exact_rope; /* rotate every key in every plane: slow planes are not folded (attend_decode.c) */
    bool all_values; /* also add the values of pages whose weights do not count (cpu/attend_rows.h) */
    /* The bits of a query's result depend on the query and the keys that it sees alone, not on the other
     * queries of the call: the phase of each row is computed from its position, and few rows take the loops
     * for many, not those in whole numbers (gpu/cpu/decode.h). Includes all_values. */
    bool repeatable;
};

/* Scratch for calls with up to @n_q queries over pages of layout @l. */
size_t attend_scratch_bytes(const struct page_layout *l, size_t n_q);

/* Runs on the best instruction set of this machine; takes all shapes. The caller must pass valid arguments
 * (asserted). No allocation, no system call. */
void attend(const struct attend_args *a);

/* attend() with any variant of gpu/cpu/ops.h; the plain C one is the oracle of the others. */
void attend_with(const struct attend_args *a, const struct ops *ops);

/* attend_with() that returns how many pages' values it skipped, counted once for each query row. */
size_t attend_skips_with(const struct attend_args *a, const struct ops *ops);

/**
 * attend_share() - attention over a share of the keys, for threads that divide a long sequence
 * @first_page, @end_page: the pages of this share
 * @exact:       whether the exact rows belong to this share
 * @ret_partial: attend_partial_floats(): per row its maximum, its sum of weights, its accumulators
 *
 * Does not touch a->out, and does not read what earlier shares left in the scratch.
 */
void attend_share(const struct attend_args *a, size_t first_page, size_t end_page, bool exact,
                  float *ret_partial);
void attend_share_with(const struct attend_args *a, const struct ops *ops, size_t first_page, size_t end_page,
                       bool exact, float *ret_partial);

/* Floats of the result of one share, for any head of @l. */
size_t attend_partial_floats(const struct page_layout *l, size_t n_q);

/**
 * attend_merge() - one softmax over @n_shares partial results
 * @partials: [n_shares][attend_partial_floats()]; every row must have a key in at least one of them
 *
 * Writes a->out. The sum runs in the order of shares, so the bits depend on the shares alone.
 */
void attend_merge(const struct attend_args *a, const float *partials, size_t n_shares);
void attend_merge_with(const struct attend_args *a, const struct ops *ops, const float *partials,
                       size_t n_shares);

/* The effect of folding on one call. planes: d / 2; formed: how many of these have keys that are formed and
 * rotated; bound: a bound of the error that the folded planes may add to a score, divided by the size of
 * the row's scores about their mean. Without folding, formed is all planes and bound is 0. */
struct attend_folding {
    size_t planes, formed;
    double bound;
};
void attend_folding_with(const struct attend_args *a, const struct ops *ops, struct attend_folding *ret);

/* The kernels that encode and attend: "reference", "avx2", "avx2-vnni", "avx512", "avx512-vnni",
 * "avx512-vbmi". */
const char *attend_kernel_name(void);

/**
 * attend_dense() - the same attention over vectors in memory, for exact and evaluation modes
 *
 * Query m reads position n from the exact rows if exactness_rule says so, else from the decoded rows.
 */
enum { EXACT_BY_STEP = -1 };

struct attend_dense_args {
    const struct geometry *geometry;
    /* [n, d] binary32 vectors of positions 0 .. (not centred), stride floats between rows */
    const float *exact_k, *exact_v;
    const float *decoded_k, *decoded_v; /* the same vectors, decoded from codes */
    size_t row_stride;
    uint32_t n_sink; /* exact for every query */
    /* n > m - n_recent is exact. EXACT_BY_STEP: exact while a decode step of the product would keep it,
     * chunk end + 64 > m + 1 */
    int32_t n_recent;
    size_t window; /* query m sees only n > m - window, sinks included; 0 = all */
    const float *q;
    size_t q_stride, q_first, n_q;
    float *out;
    size_t out_stride;
    void *scratch; /* attend_dense_scratch_bytes() */
};

/* @n_positions: q_first + n_q at most. */
size_t attend_dense_scratch_bytes(const struct geometry *g, size_t n_positions, size_t n_q);
void attend_dense(const struct attend_dense_args *a);
void attend_dense_with(const struct attend_dense_args *a, const struct ops *ops);
