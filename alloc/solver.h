/*
 * The state of one solve: a struct head per head-side with its transform, its curves and, in the end, its
 * bits. The steps of a method (solve_internal.h) read and change it; nothing here calls a step. Callers of
 * the allocator use alloc/solve.h.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "alloc/curve.h"
#include "alloc/solve.h"
#include "alloc/table.h"
#include "alloc/transform.h"

struct errmsg;
struct stats;

#define ALL_LAYERS UINT32_MAX

struct head {
    struct transform t;
    double *mean;    /* [d]: of x, or of the residual v - P c */
    double *predict; /* V: [d, n_predict] from K's stored coordinates z, or NULL */
    double *dec;     /* [d, n] per band, for struct band_spec; filled by solve_build() */
    uint32_t n_predict;
    struct {             /* fitted by least squares; NULL: the inverse of the encoder */
        double *mean;    /* [d] */
        double *predict; /* [d, n_predict], or NULL */
        double *dec;     /* [d, coordinates of stored bands, in stored order] */
    } decoder;
    double weight;                                          /* omega(layer, side) */
    double curve[TABLE_HALF_TILES_MAX][TABLE_BITS_MAX + 1]; /* weighted distortion of each band by bits */
    uint8_t bits[TABLE_HALF_TILES_MAX];
};

struct solver {
    const struct stats *s;
    const struct geometry *g;
    struct solve_options o;
    struct curve_model model;                    /* levels and errors on N(0,1) */
    struct levels levels[2][TABLE_BITS_MAX + 1]; /* of the table, by side and width */
    struct head *heads;                          /* [n_heads], by head_side_index() */
    uint32_t n_heads;
    uint32_t only_layer; /* ALL_LAYERS, or the only layer to be coded */
    enum side only_side; /* with only_layer */
    double estimated;    /* distortion of the last allocation, by the curves */
    bool measured;       /* expected[] is set */
    double expected[2];  /* by side: the report's error_k and error_v, for the provenance */
};

/* Checks the options. Return: as solve_table(); call solver_deinit() after a failure too. */
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

/* S = scatter / n of a head-side. */
void solver_covariance(const struct solver *v, uint32_t head_side, double *ret_S);

/* Refuses options that exclude each other or that the statistics cannot serve:
 * -EINVAL with a sentence (solve_options.c). */
int solve_options_check(const struct stats *s, const struct solve_options *o, struct errmsg *e);
