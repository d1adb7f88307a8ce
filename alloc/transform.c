/* See transform.h. */
#include "alloc/transform.h"

#include <cblas.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/linalg.h"
#include "alloc/rotation.h"
#include "base/cleanup.h"
#include "base/splitmix64.h"

/* Relative to the mean eigenvalue of M: keeps a small distortion in directions that no query reads. */
#define RIDGE 1e-3
#define RANK_FLOOR 1e-12 /* relative to the largest eigenvalue: smaller ones are rounding */
#define BLOCK_ROWS 256

int transform_init(struct transform *t, uint32_t d)
{
    size_t dd = (size_t) d * d;

    *t = (struct transform){.d = d};
    t->w = calloc(d + 2 * dd, sizeof(double));
    if (!t->w)
        return -ENOMEM;

    t->enc = t->w + d;
    t->dec = t->enc + dd;
    return 0;
}

void transform_deinit(struct transform *t)
{
    free(t->w);
    *t = (struct transform){.d = 0};
}

/* Rows [first, first + n) of @rows [d, d] := H times them, times @factor:
 * the band's deviation or its inverse. */
static void transform_rotate_band(double *rows, size_t d, size_t first, size_t n, const double *H,
                                  double factor)
{
    double in[BAND_COORDS];

    for (size_t c = 0; c < d; c++) {
        for (size_t i = 0; i < n; i++)
            in[i] = rows[(first + i) * d + c];
        for (size_t i = 0; i < n; i++) {
            double sum = 0;

            for (size_t j = 0; j < n; j++)
                sum += H[i * n + j] * in[j];
            rows[(first + i) * d + c] = factor * sum;
        }
    }
}

/* The coordinates of a band share one scale, the square root of their mean variance,
 * which a rotation does not change. */
static void transform_make_bands(struct transform *t, uint64_t seed)
{
    for (uint32_t b = 0; b < t->n_bands; b++) {
        uint32_t n = band_coords(t, b), first = b * BAND_COORDS;
        double H[BAND_COORDS * BAND_COORDS], sum = 0;

        for (uint32_t i = 0; i < n; i++)
            sum += t->w[first + i];
        t->scale[b] = sqrt(sum / n);
        rotation_matrix(n, splitmix64_seed(seed, b), H);
        transform_rotate_band(t->enc, t->d, first, n, H, 1.0 / t->scale[b]);
        transform_rotate_band(t->dec, t->d, first, n, H, t->scale[b]);
    }
}

/* scratch [3 d d]: the roots A, A^-1 and a product. */
static int transform_fit_basis(struct transform *t, const double *S, const double *M, double ridge,
                               double *scratch)
{
    size_t d = t->d, dd = d * d;
    double *A = scratch, *inverse = A + dd, *product = inverse + dd;
    int r;

    memcpy(product, M, dd * sizeof(*product));
    for (size_t i = 0; i < d; i++)
        product[i * d + i] += ridge;
    r = linalg_roots(d, product, A, inverse);
    if (r < 0)
        return r;

    linalg_product(d, d, d, A, S, product);
    linalg_product(d, d, d, product, A, t->enc);
    linalg_mirror(d, t->enc);
    memcpy(product, t->enc, dd * sizeof(*product));
    r = linalg_eigen(d, product, t->w); /* rows of product: U' */
    if (r < 0)
        return r;

    linalg_product(d, d, d, product, A, t->enc);       /* U'A */
    linalg_product(d, d, d, product, inverse, t->dec); /* (A^-1 U)', A symmetric */
    return 0;
}

int transform_fit(struct transform *t, const double *S, const double *M, uint64_t seed)
{
    size_t d = t->d;
    double trace_M = linalg_trace(d, M), trace_S = linalg_trace(d, S), ridge = RIDGE * trace_M / (double) d;
    _cleanup_(freep) double *scratch = NULL;
    int r;

    t->n_coords = t->n_bands = 0;
    t->trace = 0;
    if (!isfinite(trace_M) || !isfinite(trace_S))
        return -EDOM;

    /* no query reads this head-side, or it is constant */
    if (!(trace_M > 0) || !(trace_S > 0) || !(ridge > 0))
        return 0;

    scratch = malloc(3 * d * d * sizeof(*scratch));
    if (!scratch)
        return -ENOMEM;

    r = transform_fit_basis(t, S, M, ridge, scratch);
    if (r < 0)
        return r;

    while (t->n_coords < d && t->w[t->n_coords] > RANK_FLOOR * t->w[0])
        t->trace += t->w[t->n_coords++];
    memset(t->w + t->n_coords, 0, (d - t->n_coords) * sizeof(double));
    t->n_bands = (t->n_coords + BAND_COORDS - 1) / BAND_COORDS;
    transform_make_bands(t, seed);
    return 0;
}

void transform_rescale(struct transform *t, const double *scale)
{
    for (uint32_t b = 0; b < t->n_bands; b++) {
        double factor = scale[b] / t->scale[b];
        size_t first = (size_t) b * BAND_COORDS * t->d;

        if (!(factor > 0) || !isfinite(factor))
            continue;
        for (size_t i = 0; i < band_coords(t, b) * (size_t) t->d; i++) {
            t->enc[first + i] /= factor;
            t->dec[first + i] *= factor;
        }
        t->scale[b] = scale[b];
    }
}

int transform_apply(const struct transform *t, const double *mean, const float *x, size_t n, float *ret_z)
{
    size_t d = t->d, r = t->n_coords;
    _cleanup_(freep) float *enc = malloc((r + BLOCK_ROWS) * d * sizeof(*enc));
    float *centred;

    if (!enc)
        return -ENOMEM;
    if (r == 0)
        return 0;

    centred = enc + r * d;
    for (size_t i = 0; i < r * d; i++)
        enc[i] = (float) t->enc[i];
    for (size_t row = 0; row < n; row += BLOCK_ROWS) {
        size_t rows = n - row < BLOCK_ROWS ? n - row : BLOCK_ROWS;

        for (size_t i = 0; i < rows; i++)
            for (size_t c = 0; c < d; c++)
                centred[i * d + c] = (float) ((double) x[(row + i) * d + c] - mean[c]);
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int) rows, (int) r, (int) d, 1.0f, centred,
                    (int) d, enc, (int) d, 0.0f, ret_z + row * r, (int) r);
    }

    for (size_t i = 0; i < n * r; i++)
        if (!isfinite(ret_z[i])) /* the scale of a band exceeds binary32 */
            return -EDOM;
    return 0;
}
