/*
 * Products with quantised weights; see linear.h.
 *
 * Few vectors: memory bandwidth is the limit, so the quantised blocks are read once and multiplied without
 * decoding (matvec.h). Many vectors: a block of rows is decoded into scratch that fits the second-level cache
 * and multiplied by OpenBLAS. In both cases blocks of rows are the items of worker threads.
 */
#include "tools/engine/linear.h"

#include "alloc/math/blas_threads.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tools/engine/matvec.h"
#include "base/threads.h"

#include <assert.h>
#include <cblas.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>

enum {
    VECTORS_MAX = 14,            /* with more, OpenBLAS is faster (2026-11-21: equal at 16, Q4_1, Zen 5) */
    SCRATCH_FLOATS = 128 * 1024, /* decoded weights per worker: 512 KiB */
    ROWS_MAX = 256,
    ROWS_MIN = 16,
    TOKENS_STEP = 16, /* of the transposed product */
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
    *l = (struct linear){0};
}

void linear_rows(const struct matrix *w, size_t first, size_t n, float *dst)
{
    for (size_t i = 0; i < n; i++)
        w->type->decode(w->data + (first + i) * w->row_bytes, w->n_cols / w->type->block_weights,
                        dst + i * w->n_cols);
}

struct linear_run {
    struct linear *l;
    const struct linear_job *jobs;
    size_t first_item[LINEAR_JOBS_MAX + 1]; /* job j has items first_item[j] .. first_item[j + 1] - 1 */
    size_t n_jobs;
    const float *x;
    size_t n, rows; /* vectors; rows of an item */
    bool direct;    /* on the quantised blocks */
};

static void linear_run_item(void *ctx, size_t item, unsigned worker)
{
    const struct linear_run *r = ctx;
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

    linear_rows(w, first, n_rows, scratch);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int) r->n, (int) n_rows, (int) w->n_cols, 1.0f,
                r->x, (int) w->n_cols, scratch, (int) w->n_cols, 0.0f, y, (int) w->n_rows);
}

/* Enough items to keep all threads busy until the end, few enough that taking them is cheap. */
static size_t linear_rows_per_item(const struct linear *l, size_t n_rows, size_t n_cols, bool direct)
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
    struct linear_run r = {
        .l = l, .jobs = jobs, .n_jobs = n_jobs, .x = x, .n = n, .direct = n <= VECTORS_MAX};
    size_t n_cols = jobs[0].w->n_cols, n_rows = 0;

    assert(n_jobs > 0 && n_jobs <= LINEAR_JOBS_MAX);
    if (n == 0)
        return;

    for (size_t j = 0; j < n_jobs; j++)
        n_rows += jobs[j].w->n_rows;
    r.rows = linear_rows_per_item(l, n_rows, n_cols, r.direct);
    for (size_t j = 0; j < n_jobs; j++)
        r.first_item[j + 1] = r.first_item[j] + (jobs[j].w->n_rows + r.rows - 1) / r.rows;
    if (r.direct)
        for (size_t i = 0; i < n; i++)
            matvec_sums(x + i * n_cols, n_cols, l->sums + i * (n_cols / MATVEC_SUM_RUN));
    threads_run(l->t, linear_run_item, &r, r.first_item[n_jobs]);
}

/* ---- the transposed product ---- */

/*
 * dx = dy W is a sum over the rows of W. Dividing it by rows would need a dx per worker, and the sum would
 * depend on which worker took which rows. Instead all workers decode a slab of rows into their joint scratch,
 * and each adds the slab's part to its own tokens: every number is summed in the same order on any worker.
 */
struct transposed_run {
    struct linear *l;
    const struct matrix *w;
    size_t first, n_rows; /* of the slab */
    size_t n, tokens;     /* vectors; vectors of an item */
    const float *dy;
    float *dx, beta;
};

static void linear_decode_slab_item(void *ctx, size_t item, unsigned worker)
{
    const struct transposed_run *r = ctx;
    size_t at = item * ROWS_MIN, n = r->n_rows - at < ROWS_MIN ? r->n_rows - at : ROWS_MIN;

    (void) worker;
    linear_rows(r->w, r->first + at, n, r->l->scratch + at * r->w->n_cols);
}

static void linear_add_slab_item(void *ctx, size_t item, unsigned worker)
{
    const struct transposed_run *r = ctx;
    size_t at = item * r->tokens, n = r->n - at < r->tokens ? r->n - at : r->tokens, n_cols = r->w->n_cols;

    (void) worker;
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int) n, (int) n_cols, (int) r->n_rows, 1.0f,
                r->dy + at * r->w->n_rows + r->first, (int) r->w->n_rows, r->l->scratch, (int) n_cols,
                r->beta, r->dx + at * n_cols, (int) n_cols);
}

void linear_run_transposed(struct linear *l, const struct matrix *w, const float *dy, size_t n, bool add,
                           float *dx)
{
    _cleanup_(blas_threads_restore) int blas_threads = blas_threads_single();
    struct transposed_run r = {.l = l, .w = w, .n = n, .dy = dy, .dx = dx};
    size_t slab = threads_count(l->t) * l->scratch_floats / w->n_cols;

    if (n == 0)
        return;

    r.tokens = (n / (threads_count(l->t) * 2) + TOKENS_STEP) / TOKENS_STEP * TOKENS_STEP;
    for (; r.first < w->n_rows; r.first += r.n_rows) {
        r.n_rows = w->n_rows - r.first < slab ? w->n_rows - r.first : slab;
        r.beta = add || r.first > 0 ? 1.0f : 0.0f;
        threads_run(l->t, linear_decode_slab_item, &r, (r.n_rows + ROWS_MIN - 1) / ROWS_MIN);
        threads_run(l->t, linear_add_slab_item, &r, (n + r.tokens - 1) / r.tokens);
    }
}
