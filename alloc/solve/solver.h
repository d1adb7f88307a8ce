/*
 * The state of one solve: a struct head per head-side with its transform, its curves and, in the end, its
 * bits. The steps of a method (solve_internal.h) read and change it; nothing here calls a step. Callers of
 * the allocator use alloc/solve/solve.h.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "alloc/solve/curve.h"
#include "alloc/solve/solve.h"
#include "alloc/solve/transform.h"
#include "alloc/stats/stats.h"
#include "alloc/table/table.h"

struct errmsg;
struct threads;

#define ALL_LAYERS UINT32_MAX

/* A source with a larger share of the tokens is not left out, since the others are too few to fit anything
 * to: then none is. A few hundred tokens beside a million would ruin the table else. */
#define SOLVER_SHARE_MAX 0.75

/*
 * A source whose variance is a tenth of that of most of the text is odd: a token that repeats. So is a small
 * one whose variance is ten times as large: broken vectors. Scales and levels, which are fitted to all
 * sources, would be wrong for every other text. Of the first kind few tokens count, of the second none: then
 * others are at most 2 % worse than without the source (test_solve_unseen.c).
 */
#define SOLVER_ODD 10.0
#define SOLVER_NARROW_SHARE 0.01
#define SOLVER_WIDE_SHARE 0.1 /* with more tokens, the sources that vary less may be the odd ones */

#define SOLVER_CUT 0.1 /* radians per token, between fast and slow planes of RoPE */

struct head {
    struct transform t;
    double *mean;    /* [d]: of x, or of the residual v - P c */
    double *predict; /* V: [d, n_predict] from K's stored coordinates z, or NULL */
    double *dec;     /* [d, n] per band, for struct band_spec; filled by solve_build() */
    uint32_t n_predict;
    uint8_t *codes;      /* K: of all sampled tokens, made by solve_store_keys(), or NULL */
    struct {             /* fitted by least squares; NULL: the inverse of the encoder */
        double *mean;    /* [d] */
        double *predict; /* [d, n_predict], or NULL */
        double *dec;     /* [d, coordinates of stored bands, in stored order] */
    } decoder;
    double weight;                                          /* omega(layer, side) */
    double curve[TABLE_HALF_TILES_MAX][TABLE_BITS_MAX + 1]; /* weighted distortion of each band by bits */
    uint8_t bits[TABLE_HALF_TILES_MAX];
};

/* The metric M of a head-side and the roots of M with its ridge: they do not change during a solve. */
struct head_metric {
    double *M; /* [d, d], or NULL: not made yet */
    struct transform_roots roots;
};

struct solver {
    const struct stats *s;
    const struct geometry *g;
    struct solve_options o;
    uint32_t mask;                        /* bit i: the solve uses source i of the statistics */
    uint32_t n_sources;                   /* in mask; 0: statistics of moments */
    uint32_t sources[STATS_DOMAINS_MAX];  /* their numbers in the statistics */
    uint64_t n_tokens[STATS_DOMAINS_MAX]; /* that count, by number in the statistics */
    uint32_t reduced;                     /* bit i: source i of the statistics counts less */
    double share[STATS_DOMAINS_MAX];      /* of the tokens that count */
    double largest_share;                 /* of a source */
    bool half;                            /* the table will have matrices of binary16 */
    uint32_t fast_planes;                 /* that are a block of their own in the bases of K; 0: none */
    struct transform_blocks blocks;       /* of K */
    bool leaves_out;                      /* fits to sources that were left out (solve_view.h) */
    size_t n;                             /* sampled tokens of these sources */
    uint32_t *rows;                       /* [n] their rows in the statistics, by source */
    size_t first[STATS_DOMAINS_MAX + 1];  /* source i has the rows first[i] .. first[i + 1] - 1 */
    struct curve_model model;             /* levels and errors on N(0,1) */
    struct levels levels[2][TABLE_BITS_MAX + 1]; /* of the table, by side and width */
    struct head *heads;                          /* [n_heads], by head_side_index() */
    uint32_t n_heads;
    struct head_metric *metrics;  /* [n_heads] */
    struct threads *threads;      /* that share the head-sides */
    bool single_blas;             /* OpenBLAS has one thread until solver_deinit() */
    uint8_t digest[DIGEST_BYTES]; /* of the statistics, if has_digest */
    bool has_digest;
    uint32_t only_layer; /* ALL_LAYERS, or the only layer to be coded */
    enum side only_side; /* with only_layer */
    double estimated;    /* distortion of the last allocation, by the curves */
    /* the same at other budgets, and with that budget for every head-side; zeros if not known */
    struct solve_point points[SOLVE_POINTS];
    bool measured;                     /* expected[] is set */
    const struct solve_report *report; /* with measured */
    double expected[2];                /* by side: the report's error_k and error_v, for the provenance */
};

/* Checks the options. @mask: sources of the statistics that are used. Return: as solve_table(); call
 * solver_deinit() after a failure too. */
int solver_init_with(struct solver *v, const struct stats *s, const struct solve_options *o, uint32_t mask,
                     struct errmsg *e);
/* With all sources. */
int solver_init(struct solver *v, const struct stats *s, const struct solve_options *o, struct errmsg *e);
void solver_deinit(struct solver *v);

static inline bool solver_codes(const struct solver *v, uint32_t layer, enum side side)
{
    return v->only_layer == ALL_LAYERS || (v->only_layer == layer && v->only_side == side);
}

static inline void solver_progress(const struct solver *v, const char *what, double fraction)
{
    if (v->o.progress)
        v->o.progress(v->o.progress_ctx, what, fraction);
}

/* Sets the sentence for an error @err (-EDOM, -ENOMEM) of one head-side. Return: -EINVAL or -ENOMEM. */
int solver_fail(uint32_t layer, uint32_t head, enum side side, int err, struct errmsg *e);

/* The sampled vectors [n, d] of one head-side; the caller frees them. NULL: out of memory. */
float *solver_samples(const struct solver *v, uint32_t head_side);

/* Mean [d] and covariance [d, d] of a head-side over the sources in @mask. */
void solver_moments(const struct solver *v, uint32_t head_side, uint32_t mask, double *ret_mean,
                    double *ret_S);

/* M of a head-side under the options of the solve; @S: its covariance. Return: as metric_matrix(). */
int solver_metric(const struct solver *v, uint32_t head_side, const double *S, double *ret_M);

/* The same for the solver's own covariance, made by the first call. One thread at a time for each head-side.
 * Return: 0; -EDOM; -ENOMEM. */
int solver_head_metric(const struct solver *v, uint32_t head_side, const struct head_metric **ret);

/* A step of the solve for one item: a head-side, or a (layer, head). Return: 0; -EDOM; -ENOMEM. */
typedef int (*solver_step)(struct solver *v, uint32_t item, void *ctx);

/**
 * solver_each() - runs a step for many items, on the solver's threads
 * @what:   for solver_progress(), which the calling thread alone calls
 * @items:  [n_items] numbers of head-sides: a failure names the first of them
 *
 * Results must not depend on the order of items: a step writes what belongs to its item only.
 *
 * Return: 0; -EINVAL, -ENOMEM with a sentence.
 */
int solver_each(struct solver *v, const char *what, solver_step step, void *ctx, const uint32_t *items,
                size_t n_items, struct errmsg *e);

/* The same for all coded head-sides whose side is in @sides (bit 0: K, bit 1: V). */
int solver_each_side(struct solver *v, const char *what, unsigned sides, solver_step step, void *ctx,
                     struct errmsg *e);

/* The covariance over all sources of the solve. */
void solver_covariance(const struct solver *v, uint32_t head_side, double *ret_S);

/* Refuses options that exclude each other or that the statistics cannot serve:
 * -EINVAL with a sentence (solve_options.c). */
int solve_options_check(const struct stats *s, const struct solve_options *o, struct errmsg *e);
