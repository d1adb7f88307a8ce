/*
 * The fit of a table's codes to live vectors, as clients report it (REPORT). Reports cannot be verified, so a
 * report has no more weight than its tokens: an error is a ratio, limited to TABLE_ERROR_MAX, and enters a
 * mean weighted by tokens, at most FIT_TOKENS_MAX per report. Many clients of one tenant can still shift the
 * mean: who activates tables because of it must control who may connect.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/wire.h"

#define FIT_TOKENS_MAX 65536
/* Per report and side: more than any machine encodes in a second. */
#define FIT_COORDS_MAX (UINT64_C(1) << 40)

struct errmsg;

struct fit_layer {               /* sums of ratio x tokens, by side */
    double live[2];              /* all sampled tokens */
    double active[2], shadow[2]; /* tokens encoded with both tables */
};

struct fit {
    uint32_t n_layers;
    uint64_t reports, tokens, shadow_tokens;
    uint64_t coded[2], saturated[2]; /* by side, all tokens */
    struct fit_layer layers[];
};

/* Return: NULL if memory is short. */
struct fit *fit_new(uint32_t n_layers);
struct fit *fit_free(struct fit *f); /* returns NULL */

/* Return: 0; -EINVAL with a sentence: an impossible number, or another count of layers than the table's. */
int fit_check(const Kvcobra__Report *r, uint32_t n_layers, struct errmsg *e);

/**
 * fit_add() - add a report that fit_check() accepted
 * @shadow: of the table that encoded the same tokens too; NULL: none
 */
void fit_add(struct fit *f, struct fit *shadow, const Kvcobra__Report *r);

/* Clears the sums of the comparison with a shadow. @f may be NULL. */
void fit_forget_shadow(struct fit *f);

/* Fills the means over all layers; zeros if @f is NULL. */
void fit_fill(const struct fit *f, Kvcobra__Fit *ret);
/* Fills the mean ratios of one layer: error sums for a signal of 1. */
void fit_fill_layer(const struct fit *f, uint32_t layer, Kvcobra__LayerSums *ret_live,
                    Kvcobra__LayerSums *ret_shadow);
