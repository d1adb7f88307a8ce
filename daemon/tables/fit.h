/*
 * How a table's codes fit live vectors, as clients report it (REPORT). Nothing in a report can be verified,
 * so nothing in it has more weight than its tokens: an error is a ratio, cut off at FIT_ERROR_MAX, and enters
 * a mean weighted by tokens, of which a report has FIT_TOKENS_MAX at most. Many clients of one tenant can
 * still shift the mean; whoever activates tables by it should know who may connect.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/wire.h"

#define FIT_TOKENS_MAX 65536
#define FIT_ERROR_MAX 16.0 /* a decoder that answers the mean has 1 */
#define FIT_COORDS_MAX                                                                                       \
    (UINT64_C(1) << 40) /* per report and side; a second of encoding on every core there is */

struct errmsg;

struct fit_layer {               /* sums of ratio x tokens, by side */
    double live[2];              /* all sampled tokens */
    double active[2], shadow[2]; /* those encoded with both */
};

struct fit {
    uint32_t n_layers;
    uint64_t reports, tokens, shadow_tokens;
    uint64_t coded[2], saturated[2]; /* by side, all tokens */
    struct fit_layer layers[];
};

/* Return: NULL without memory. */
struct fit *fit_new(uint32_t n_layers);
struct fit *fit_free(struct fit *f); /* returns NULL */

/* Return: 0; -EINVAL with a sentence: a number that no honest client sends, or layers that the table does not
 * have. */
int fit_check(const Kvcobra__Report *r, uint32_t n_layers, struct errmsg *e);

/**
 * fit_add() - count a report that fit_check() found right
 * @shadow: of the table that encoded the same tokens too; NULL: none
 */
void fit_add(struct fit *f, struct fit *shadow, const Kvcobra__Report *r);

/*
 * What a table's provenance says that its errors were on the vectors it was solved from, by side; computed as
 * fit_fill()'s error_k and error_v. Return: 0; -ENODATA: it does not say, or says what cannot be.
 */
int fit_expected(const char *provenance, double ret[static 2]);

/* A new comparison begins. @f may be NULL. */
void fit_forget_shadow(struct fit *f);

/* Means over layers. @f may be NULL: zeros. */
void fit_fill(const struct fit *f, Kvcobra__Fit *ret);
/* Mean ratios of one layer as sums over a signal of 1. */
void fit_fill_layer(const struct fit *f, uint32_t layer, Kvcobra__LayerSums *ret_live,
                    Kvcobra__LayerSums *ret_shadow);
