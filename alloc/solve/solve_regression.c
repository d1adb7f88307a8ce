/* See solve_regression.h. */
#include "alloc/solve/solve_regression.h"

#include <cblas.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/math/linalg.h"
#include "alloc/stats/stats_internal.h"
#include "base/cleanup.h"

/* The set of all sources but @without. */
static size_t regression_set(const struct regression *r, uint32_t without)
{
    return without == REGRESSION_ALL ? 2 * (size_t) r->n_sources : r->n_sources + without;
}

const double *regression_mean(const struct regression *r, uint32_t without)
{
    return r->mean + regression_set(r, without) * (r->m + r->d);
}

static uint64_t regression_count(const struct regression *r, uint32_t without)
{
    uint64_t n = 0;

    for (uint32_t i = 0; i < r->n_sources; i++)
        n += i == without ? 0 : r->n[i];
    return n;
}

/* Adds the first @n rows of r->rows. */
static void regression_add_rows(struct regression *r, uint32_t source, size_t n)
{
    size_t wide = r->m + r->d;
    double *mean = r->mean + source * wide;

    for (size_t t = 0; t < n; t++)
        for (size_t i = 0; i < wide; i++)
            mean[i] += r->rows[t * wide + i];
    cblas_dsyrk(CblasRowMajor, CblasLower, CblasTrans, (int) wide, (int) n, 1.0, r->rows, (int) wide, 1.0,
                r->scatter + source * wide * wide, (int) wide);
    r->n[source] += n;
}

int regression_begin(struct regression *r, size_t m, size_t d, uint32_t n_sources, size_t most)
{
    size_t wide = m + d, n_sets = 2 * (size_t) n_sources + 1;

    *r = (struct regression){.m = m, .d = d, .n_sources = n_sources};
    r->mean = calloc(n_sets * wide, sizeof(*r->mean));
    r->scatter = calloc(n_sets * wide * wide, sizeof(*r->scatter));
    r->rows = calloc(most * wide + 1, sizeof(*r->rows));
    return r->mean && r->scatter && r->rows ? 0 : -ENOMEM;
}

void regression_add(struct regression *r, uint32_t source, const float *c, size_t stride, const float *x,
                    size_t n)
{
    size_t m = r->m, d = r->d, wide = m + d;

    for (size_t t = 0; t < n; t++) {
        for (size_t i = 0; i < m; i++)
            r->rows[t * wide + i] = (double) c[t * stride + i];
        for (size_t i = 0; i < d; i++)
            r->rows[t * wide + m + i] = (double) x[t * d + i];
    }
    regression_add_rows(r, source, n);
}

/* The moments of all sources but one, or of all. */
static void regression_sum(struct regression *r, uint32_t without)
{
    size_t wide = r->m + r->d, set = regression_set(r, without);
    uint64_t n = 0;

    for (uint32_t i = 0; i < r->n_sources; i++) {
        if (i == without || r->n[i] == 0)
            continue;

        stats_merge_moments(wide, n, r->mean + set * wide, r->scatter + set * wide * wide, r->n[i],
                            r->mean + i * wide, r->scatter + i * wide * wide);
        n += r->n[i];
    }
}

/* sum of (y - mean)(y - mean)' = sum of y y' - n mean mean'. */
static void regression_centre(struct regression *r, uint32_t source)
{
    size_t wide = r->m + r->d;
    double *mean = r->mean + source * wide, *scatter = r->scatter + source * wide * wide;

    if (r->n[source] == 0)
        return;

    for (size_t i = 0; i < wide; i++)
        mean[i] /= (double) r->n[source];
    for (size_t i = 0; i < wide; i++)
        for (size_t j = 0; j <= i; j++)
            scatter[i * wide + j] -= (double) r->n[source] * mean[i] * mean[j];
    linalg_mirror(wide, scatter);
}

void regression_end(struct regression *r)
{
    for (uint32_t i = 0; i < r->n_sources; i++)
        regression_centre(r, i);
    for (uint32_t i = 0; i < r->n_sources; i++)
        regression_sum(r, i);
    regression_sum(r, REGRESSION_ALL);
}

/* ret := the mean of all rows [c | x]. */
static void regression_shift(size_t m, size_t d, const double *c, const double *x, size_t n, double *ret)
{
    for (size_t t = 0; t < n; t++)
        for (size_t i = 0; i < m + d; i++)
            ret[i] += (i < m ? c[t * m + i] : x[t * d + i - m]) / (double) n;
}

int regression_init(struct regression *r, const double *c, size_t m, const double *x, size_t d, size_t n,
                    const uint8_t *source_of, uint32_t n_sources)
{
    size_t wide = m + d;
    _cleanup_(freep) double *shift = calloc(wide, sizeof(*shift));
    int err = regression_begin(r, m, d, n_sources, n);

    if (err < 0 || !shift)
        return -ENOMEM;

    regression_shift(m, d, c, x, n, shift);
    for (uint32_t source = 0; source < n_sources; source++) {
        size_t n_rows = 0;

        for (size_t t = 0; t < n; t++)
            if (!source_of || source_of[t] == source) {
                double *row = r->rows + n_rows++ * wide;

                for (size_t i = 0; i < wide; i++)
                    row[i] = (i < m ? c[t * m + i] : x[t * d + i - m]) - shift[i];
            }
        if (n_rows > 0)
            regression_add_rows(r, source, n_rows);
    }
    regression_end(r);
    for (size_t set = 0; set < 2 * (size_t) n_sources + 1; set++) {
        uint64_t count = set < n_sources ? r->n[set] : regression_count(r, (uint32_t) set - n_sources);

        for (size_t i = 0; count > 0 && i < wide; i++) /* the mean of no rows is 0 */
            r->mean[set * wide + i] += shift[i];
    }
    return 0;
}

void regression_deinit(struct regression *r)
{
    free(r->mean);
    free(r->scatter);
    free(r->rows);
    *r = (struct regression){.m = 0};
}

int regression_fit(const struct regression *r, uint32_t without, double ridge, double *ret_P,
                   double *ret_mean)
{
    size_t m = r->m, d = r->d, wide = m + d, set = regression_set(r, without);
    const double *mean = r->mean + set * wide, *scatter = r->scatter + set * wide * wide;
    _cleanup_(freep) double *G = malloc((m * m + m * d + 1) * sizeof(*G));
    double *X, added;
    int err = 0;

    if (!G)
        return -ENOMEM;

    X = G + m * m; /* [m, d], then P' */
    for (size_t i = 0; i < m; i++) {
        memcpy(G + i * m, scatter + i * wide, m * sizeof(*G));
        memcpy(X + i * d, scatter + i * wide + m, d * sizeof(*X));
        for (size_t j = 0; r->block && j < wide; j++)
            if (r->block[j] != r->block[i])
                *(j < m ? &G[i * m + j] : &X[i * d + j - m]) = 0;
    }

    memset(ret_P, 0, d * m * sizeof(*ret_P));
    if (isfinite(ridge) && m > 0 && linalg_trace(m, G) > 0) {
        added = ridge * linalg_trace(m, G) / (double) m;
        for (size_t i = 0; i < m; i++)
            G[i * m + i] += added;
        err = linalg_solve(m, d, G, X);
        for (size_t i = 0; err == 0 && i < d; i++)
            for (size_t j = 0; j < m; j++)
                ret_P[i * m + j] = X[j * d + i];
    }

    for (size_t i = 0; i < d; i++) {
        ret_mean[i] = mean[m + i];
        for (size_t j = 0; j < m; j++)
            ret_mean[i] -= ret_P[i * m + j] * mean[j];
    }

    return err;
}

/* [-P | I] A [-P | I]' / n for a set's scatter A: A_xx - P A_cx - A_xc P' + P A_cc P'. */
static int regression_residual(const struct regression *r, const double *scatter, uint64_t n, const double *P,
                               double *ret)
{
    size_t m = r->m, d = r->d, wide = m + d;
    _cleanup_(freep) double *work = malloc(d * (m + d + 1) * sizeof(*work));
    double *B = work, *C;

    if (!work)
        return -ENOMEM;

    C = work + d * m; /* [d, d] P A_cx */
    for (size_t i = 0; i < d; i++)
        for (size_t j = 0; j < d; j++)
            ret[i * d + j] = scatter[(m + i) * wide + m + j];
    if (m > 0) {
        cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int) d, (int) m, (int) m, 1.0, P, (int) m,
                    scatter, (int) wide, 0.0, B, (int) m); /* P A_cc */
        cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int) d, (int) d, (int) m, 1.0, P, (int) m,
                    scatter + m, (int) wide, 0.0, C, (int) d);
        cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int) d, (int) d, (int) m, 1.0, B, (int) m, P,
                    (int) m, 1.0, ret, (int) d);
        for (size_t i = 0; i < d; i++)
            for (size_t j = 0; j < d; j++)
                ret[i * d + j] -= C[i * d + j] + C[j * d + i];
    }

    for (size_t i = 0; i < d; i++)
        for (size_t j = 0; j <= i; j++)
            ret[i * d + j] = ret[j * d + i] = n > 0 ? ret[i * d + j] / (double) n : 0;
    return 0;
}

int regression_covariance(const struct regression *r, uint32_t without, const double *P, double *ret_S)
{
    size_t wide = r->m + r->d;

    return regression_residual(r, r->scatter + regression_set(r, without) * wide * wide,
                               regression_count(r, without), P, ret_S);
}

int regression_second_moment(const struct regression *r, uint32_t source, const double *P, const double *mean,
                             double *ret_E)
{
    size_t m = r->m, d = r->d, wide = m + d;
    const double *own = r->mean + source * wide;
    double off[GEOMETRY_DIM_MAX];
    int err = regression_residual(r, r->scatter + source * wide * wide, r->n[source], P, ret_E);

    if (err < 0 || r->n[source] == 0)
        return err;

    for (size_t i = 0; i < d; i++) {
        off[i] = own[m + i] - mean[i];
        for (size_t j = 0; j < m; j++)
            off[i] -= P[i * m + j] * own[j];
    }
    for (size_t i = 0; i < d; i++)
        for (size_t j = 0; j < d; j++)
            ret_E[i * d + j] += off[i] * off[j];
    return 0;
}

/* tr(M E) averaged over sources, each with the prediction fitted without it. */
static int regression_unseen_error(const struct regression *r, double ridge, const double *M,
                                   const double *share, double *scratch, double *ret)
{
    size_t m = r->m, d = r->d;
    double *P = scratch, *E = P + d * m, mean[GEOMETRY_DIM_MAX];

    *ret = 0;
    for (uint32_t i = 0; i < r->n_sources; i++) {
        int err;

        if (r->n[i] == 0)
            continue;

        err = regression_fit(r, i, ridge, P, mean);
        if (err == 0)
            err = regression_second_moment(r, i, P, mean, E);
        if (err < 0)
            return err;

        *ret += share[i] * cblas_ddot((int) (d * d), M, 1, E, 1);
    }
    return 0;
}

int regression_choose_ridge(const struct regression *r, const double *ridges, size_t n_ridges,
                            const double *M, const double *share, double *ret_ridge)
{
    _cleanup_(freep) double *scratch = malloc((r->d * r->m + r->d * r->d) * sizeof(*scratch));
    double least = INFINITY;

    if (!scratch)
        return -ENOMEM;

    *ret_ridge = ridges[0];
    for (size_t i = 0; i < n_ridges; i++) {
        double error;
        int err = regression_unseen_error(r, ridges[i], M, share, scratch, &error);

        if (err < 0)
            return err;
        if (error < least) {
            least = error;
            *ret_ridge = ridges[i];
        }
    }

    return 0;
}
