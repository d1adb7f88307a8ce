/*
 * The bits that a table charges, counted as in the paper, and a comparison of two tables. Works on any table,
 * also one that another program built.
 *
 * Effective bits per number (paper, appendix "Effective bpd"): nominal r b / d plus metadata
 * per token, of which there is none here. Means, bases and levels are stored once: their share
 * shrinks with the length of the context.
 */
#pragma once

#include <stdint.h>

#include "alloc/table/table.h"

/* Coordinates of a codec that are not padding: the paper's r. */
uint32_t table_codec_rank(const struct codec *c, uint32_t d);

/* Code bits per token of these coordinates: the paper's r b. */
uint32_t table_codec_nominal_bits(const struct codec *c, uint32_t d);

struct table_account {
    double nominal_bpd[2], code_bpd[2]; /* by side: without and with padding */
    double nominal, code;               /* of both sides together */
    uint64_t fixed_bytes;               /* means, bases, levels: once per process */
};
void table_account(const struct table *t, struct table_account *ret);

/* fixed_bytes as bits per number of a cache of @n_tokens. The paper's contexts have 32768. */
double table_account_fixed_bpd(const struct table *t, const struct table_account *a, uint64_t n_tokens);

#define COMPARE_PARTS 4 /* quartiles of the layers: layer l of n is in part 4 l / n */

/* One side of two tables for the same geometry (paper, "Calibration robustness"). */
struct table_comparison {
    uint32_t n_heads;          /* head-sides compared */
    double budget_correlation; /* of r b over heads, Pearson; NaN if either table has no spread */
    /* share of heads whose stored coordinates have the same mean width, to whole bits */
    double same_width;
    /* share of half-tiles with equal widths in both tables, among those that either table has */
    double same_half_tiles;
    double rank_difference;       /* mean |delta r| */
    double bpd[2][COMPARE_PARTS]; /* nominal, by table and quartile */
};

/* @ret: by side. Both tables have the same layers, KV heads and dimension. */
void table_compare(const struct table *a, const struct table *b, struct table_comparison ret[2]);
