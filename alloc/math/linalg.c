/* Wrappers of LAPACK; see linalg.h. */
#include "alloc/math/linalg.h"

#include <cblas.h>
#include <errno.h>
#include <lapacke.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"

/* Relative to the largest eigenvalue: smaller ones are raised to this, so that
 * the inverse of the root stays finite. */
#define ROOT_FLOOR 1e-12

static int linalg_errno_from_lapack(lapack_int info)
{
    if (info == 0)
        return 0;
    if (info == LAPACK_WORK_MEMORY_ERROR || info == LAPACK_TRANSPOSE_MEMORY_ERROR)
        return -ENOMEM;

    return -EDOM;
}

static bool linalg_all_finite(size_t n, const double *a)
{
    for (size_t i = 0; i < n; i++)
        if (!isfinite(a[i]))
            return false;
    return true;
}

static void linalg_swap_rows(double *a, double *b, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        double t = a[i];

        a[i] = b[i];
        b[i] = t;
    }
}

static void linalg_fix_sign(double *v, size_t n)
{
    size_t largest = 0;

    for (size_t i = 1; i < n; i++)
        if (fabs(v[i]) > fabs(v[largest]))
            largest = i;
    if (v[largest] < 0)
        for (size_t i = 0; i < n; i++)
            v[i] = -v[i];
}

int linalg_eigen(size_t n, double *a, double *ret_w)
{
    int r;

    if (!linalg_all_finite(n * n, a))
        return -EDOM;

    /* A symmetric matrix is its own transpose: column-major LAPACK reads it without a copy, and its columns
     * of eigenvectors are our rows. LAPACK's order is ascending, ours descending. */
    r = linalg_errno_from_lapack(
        LAPACKE_dsyevd(LAPACK_COL_MAJOR, 'V', 'L', (lapack_int) n, a, (lapack_int) n, ret_w));
    if (r < 0)
        return r;

    for (size_t i = 0; i < n / 2; i++) {
        double t = ret_w[i];

        ret_w[i] = ret_w[n - 1 - i];
        ret_w[n - 1 - i] = t;
        linalg_swap_rows(a + i * n, a + (n - 1 - i) * n, n);
    }

    for (size_t i = 0; i < n; i++)
        linalg_fix_sign(a + i * n, n);
    return 0;
}

/* ret := U diag(f) U' with the rows of @u as eigenvectors; @scaled is scratch [n, n]. */
static void linalg_compose(size_t n, const double *u, const double *f, double *scaled, double *ret)
{
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < n; j++)
            scaled[i * n + j] = f[i] * u[i * n + j];
    cblas_dgemm(CblasRowMajor, CblasTrans, CblasNoTrans, (int) n, (int) n, (int) n, 1.0, u, (int) n, scaled,
                (int) n, 0.0, ret, (int) n);
    linalg_mirror(n, ret);
}

int linalg_roots(size_t n, const double *a, double *ret_root, double *ret_inverse)
{
    _cleanup_(freep) double *u = calloc(2 * n * n + 3 * n, sizeof(*u));
    double *scaled, *w, *root, *inverse;
    int r;

    if (!u)
        return -ENOMEM;

    scaled = u + n * n;
    w = scaled + n * n;
    root = w + n;
    inverse = root + n;
    memcpy(u, a, n * n * sizeof(*u));
    r = linalg_eigen(n, u, w);
    if (r < 0)
        return r;
    if (!(w[0] > 0))
        return -EDOM;

    for (size_t i = 0; i < n; i++) {
        double clamped = fmax(w[i], ROOT_FLOOR * w[0]);

        root[i] = sqrt(clamped);
        inverse[i] = 1.0 / root[i];
    }

    linalg_compose(n, u, root, scaled, ret_root);
    linalg_compose(n, u, inverse, scaled, ret_inverse);
    return 0;
}

int linalg_solve(size_t n, size_t n_rhs, double *a, double *b)
{
    if (!linalg_all_finite(n * n, a) || !linalg_all_finite(n * n_rhs, b))
        return -EDOM;

    return linalg_errno_from_lapack(LAPACKE_dposv(LAPACK_ROW_MAJOR, 'L', (lapack_int) n, (lapack_int) n_rhs,
                                                  a, (lapack_int) n, b, (lapack_int) n_rhs));
}

void linalg_product(size_t m, size_t n, size_t k, const double *a, const double *b, double *ret_c)
{
    cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int) m, (int) n, (int) k, 1.0, a, (int) k, b,
                (int) n, 0.0, ret_c, (int) n);
}

void linalg_mirror(size_t n, double *a)
{
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < i; j++)
            a[j * n + i] = a[i * n + j];
}

double linalg_trace(size_t n, const double *a)
{
    double sum = 0;

    for (size_t i = 0; i < n; i++)
        sum += a[i * n + i];
    return sum;
}
