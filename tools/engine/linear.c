/*
 * Products with quantised weights; see linear.h.
 *
 * Few vectors: memory bandwidth is what costs, so the quantised blocks are read once and multiplied as they are
 * (matvec.h). Many vectors: a block of rows is decoded into scratch that fits the second-level cache and
 * multiplied by OpenBLAS. Either way blocks of rows are the items that worker threads take.
 */
#include "tools/engine/linear.h"

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tools/engine/blas_threads.h"
#include "tools/engine/matvec.h"
#include "tools/engine/threads.h"

#include <assert.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>

enum {
    VECTORS_MAX = 14, /* more are faster through decoding and OpenBLAS (2026-11-21: at 16 alike, Q4_1, Zen 5) */
    SCRATCH_FLOATS = 128 * 1024, /* decoded weights per worker: 512 KiB */
    ROWS_MAX = 256,
    ROWS_MIN = 16,
};

int linear_init(struct linear *l, struct threads *t, size_t max_cols, struct errmsg *e)
{
    size_t bytes;

    l->t = t;
    l->scratch_floats = SCRATCH_FLOATS < max_cols ? max_cols : SCRATCH_FLOATS;
    l->n_sums = VECTORS_MAX * (max_cols / MATVEC_SUM_RUN);
    if (!checked_mul3(threads_count(t), l->scratch_floats, sizeof(float), &bytes))
        return fail(e, -EOVERFLOW, "a weight matrix has rows of %zu numbers, too many", max_cols);
    l->scratch = malloc(bytes);
    l->sums = malloc((l->n_sums + 1) * sizeof(float));
    if (!l->scratch || !l->sums)
        return fail(e, -ENOMEM, "no memory for %zu bytes of scratch", bytes);
    return 0;
}

void linear_deinit(struct linear *l)
{
    free(l->scratch);
    free(l->sums);
    *l = (struct linear) { 0 };
}

void matrix_rows(const struct matrix *w, size_t first, size_t n, float *dst)
{
    for (size_t i = 0; i < n; i++)
        w->type->decode(w->data + (first + i) * w->row_bytes, w->n_cols / w->type->block_weights,
                        dst + i * w->n_cols);
}

struct run {
    struct linear *l;
    const struct linear_job *jobs;
    size_t first_item[LINEAR_JOBS_MAX + 1]; /* job j has items first_item[j] .. first_item[j + 1] - 1 */
    size_t n_jobs;
    const float *x;
    size_t n, rows;                         /* vectors; rows of an item */
    bool direct;                            /* on the quantised blocks */
};

static void run_item(void *ctx, size_t item, unsigned worker)
{
    const struct run *r = ctx;
    float *scratch = r->l->scratch + worker * r->l->scratch_floats;
    const struct matrix *w;
    size_t j = 0, first, n_rows;
    float *y;

    while (item >= r->first_item[j + 1])
        j++;
    w = r->jobs[j].w;
    first = (item - r->first_item[j]) * r->rows;
    n_rows = w->n_rows - first < r->rows ? w->n_rows - first : r->rows;
    y = r->jobs[j].y + first;
    if (r->direct) {
        const struct matvec_ops *ops = matvec_ops();

        for (size_t i = 0; i < r->n; i++)
            ops->rows(w, first, n_rows, r->x + i * w->n_cols, r->l->sums + i * (w->n_cols / MATVEC_SUM_RUN),
                      y + i * w->n_rows);
        return;
    }
    matrix_rows(w, first, n_rows, scratch);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int) r->n, (int) n_rows, (int) w->n_cols, 1.0f, r->x,
                (int) w->n_cols, scratch, (int) w->n_cols, 0.0f, y, (int) w->n_rows);
}

/* Enough items for every thread to be busy until the end, not so many that taking them costs. */
static size_t rows_per_item(const struct linear *l, size_t n_rows, size_t n_cols, bool direct)
{
    size_t rows = n_rows / (threads_count(l->t) * 4) + 1;

    rows = (rows + ROWS_MIN - 1) / ROWS_MIN * ROWS_MIN;
    if (!direct && rows > ROWS_MAX)
        rows = ROWS_MAX;
    if (!direct && rows > l->scratch_floats / n_cols)
        rows = l->scratch_floats / n_cols;
    return rows;
}

void linear_run(struct linear *l, const struct linear_job *jobs, size_t n_jobs, const float *x, size_t n)
{
    _cleanup_(blas_threads_restore) int blas_threads = blas_threads_single();
    struct run r = { .l = l, .jobs = jobs, .n_jobs = n_jobs, .x = x, .n = n, .direct = n <= VECTORS_MAX };
    size_t n_cols = jobs[0].w->n_cols, n_rows = 0;

    assert(n_jobs > 0 && n_jobs <= LINEAR_JOBS_MAX);
    if (n == 0)
        return;
    for (size_t j = 0; j < n_jobs; j++)
        n_rows += jobs[j].w->n_rows;
    r.rows = rows_per_item(l, n_rows, n_cols, r.direct);
    for (size_t j = 0; j < n_jobs; j++)
        r.first_item[j + 1] = r.first_item[j] + (jobs[j].w->n_rows + r.rows - 1) / r.rows;
    if (r.direct)
        for (size_t i = 0; i < n; i++)
            matvec_sums(x + i * n_cols, n_cols, l->sums + i * (n_cols / MATVEC_SUM_RUN));
    threads_run(l->t, run_item, &r, r.first_item[n_jobs]);
}
