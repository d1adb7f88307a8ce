/* Products with the weights of the file: y[n, rows] = x[n, cols] W', for several matrices with the same x.
 * For forward.c and backward*.c.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "tools/engine/network.h"

struct errmsg;
struct threads;

#define LINEAR_JOBS_MAX 3

/* Scratch, one part per worker; @t is borrowed. */
struct linear {
    struct threads *t;
    float *scratch; /* [n_workers][scratch_floats] */
    size_t scratch_floats;
    float *sums; /* of runs of 16 numbers of the current vectors */
    size_t n_sums;
};

struct linear_job {
    const struct matrix *w;
    float *y; /* [n, w->n_rows] */
};

/* @max_cols: the longest row of any matrix. */
int linear_init(struct linear *l, struct threads *t, size_t max_cols, struct errmsg *e);
void linear_deinit(struct linear *l);

/* @x: [n, n_cols]; all jobs have that n_cols. */
void linear_run(struct linear *l, const struct linear_job *jobs, size_t n_jobs, const float *x, size_t n);

/* The transposed product: dx [n, n_cols] = dy W, added to @dx if @add. @dy: [n, n_rows]. */
void linear_run_transposed(struct linear *l, const struct matrix *w, const float *dy, size_t n, bool add,
                           float *dx);

/* Rows @first .. @first + @n - 1 of a matrix as binary32. */
void linear_rows(const struct matrix *w, size_t first, size_t n, float *dst);
