/*
 * Products of quantised rows with one binary32 vector, as in a decode step.
 *
 * Activations stay binary32, without rounding to 8 bits: the tokens must be those of the exact model. With w
 * = s q + m over a run of weights, sum w x = s sum q x + m sum x, so the kernels multiply small integers; the
 * caller computes the sums of x, which are equal for all rows.
 */
#pragma once

#include <stddef.h>

#include "tools/engine/network.h"

/* x is summed over runs of this length; rows of block types are multiples of 32. */
#define MATVEC_SUM_RUN 16

struct matvec_ops {
    const char *name; /* of the instruction set, for messages and benches */
    /* y[i] = row (first + i) of @w times x, i < n_rows; @sums from matvec_sums(). */
    void (*rows)(const struct matrix *w, size_t first, size_t n_rows, const float *x, const float *sums,
                 float *y);
};

extern const struct matvec_ops matvec_ref;                 /* decodes, then adds in binary64 */
extern const struct matvec_ops matvec_avx2, matvec_avx512; /* x86-64 only */

/* The fastest kernel that this processor supports. */
const struct matvec_ops *matvec_ops(void);

/* All kernels that this processor supports, the reference first; for tests. Return: their number, at most
 * 3. */
size_t matvec_runnable(const struct matvec_ops *ret_ops[static 3]);

/* n / MATVEC_SUM_RUN sums. */
void matvec_sums(const float *x, size_t n, float *ret_sums);
