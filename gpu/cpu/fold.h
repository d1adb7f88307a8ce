/*
 * Folds slow RoPE planes into rank space. Let q be the query as a key at
 * position x sees it, rotated back by x:
 *
 *     q' k = (dec' q)' c + q' mean = w(x)' c + offset(x)
 *
 * Over planes of frequency f both are sums of cos(f x) A + sin(f x) B, with A and B [rank] fixed for the
 * call. For slow planes w is smooth. So it is computed at nodes (page_constants.h), coarse nodes for the
 * slowest planes, and interpolated: first from level to level in rank space, then from the nodes of the
 * finest level to tokens, in the scores themselves.
 *
 * Nodes are made four at a time, when the first page that needs them is
 * processed, and stored in a ring per level.
 */
#pragma once

#include "gpu/cpu/attend_rows.h"
#include "gpu/codec.h"
#include "gpu/cpu/decode.h"

#define FOLD_ROWS_MAX 8 /* with more rows, folding costs more than computing the keys */

struct fold {
    const struct ops *ops;
    const struct page_constants *constants;
    size_t first[FOLD_LEVELS + 1]; /* planes first[l] .. first[l + 1] - 1 belong to level l */
    unsigned top;                  /* coarsest level that has planes */
    size_t r, cols;                /* [row][r | n_rows] rounded up to lanes: columns of a node */
    float *planes;                 /* [2 planes][cols]: by level, A of its planes, then B */
    float *nodes[FOLD_LEVELS];     /* [FOLD_RING][cols] */
    long next[FOLD_LEVELS];        /* first node that is not made yet */
    float *rotations;              /* [4][2 planes] cosines, sines at the nodes being made */
    struct fold_planes finest;     /* level 0 in whole numbers, without offsets */
    struct rope_phase phase;       /* of each plane at next[] of its level */
    struct fold_codes codes;       /* level 0 */
};

/* The dimensions of plane @i; those without rotation are paired at the end. */
static inline size_t plane_dim(const struct geometry *g, size_t i, unsigned hi)
{
    size_t n_rot = g->n_rot / 2;

    if (i < n_rot)
        return hi ? n_rot + i : i;
    return 2 * i + hi;
}

/* Takes buffers from @s for @n_rows query rows over geometry @g. */
void fold_carve(struct fold *f, struct scratch_cursor *s, const struct geometry *g, size_t n_rows);

/* Folds planes @first .. of all @rows into coordinates @k; @frame rotates queries to the first page. @mean
 * [d]: of the keys. */
void fold_begin(struct fold *f, const struct ops *ops, const struct page_constants *constants,
                const struct attend_rows *rows, const struct key_columns *k, const float *mean,
                const struct rope_phase *frame, size_t first);

/* scores [n, 64] of rows i .. i + n - 1 over page @page, counted from the first, whose codes are @x, += the
 * folded planes. Pages must ascend. */
void fold_page(struct fold *f, size_t page, const struct key_codes *x, size_t i, size_t n, float *scores);
