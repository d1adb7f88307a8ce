/* See transform.h. */
#include "alloc/solve/transform.h"

#include <cblas.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/math/linalg.h"
#include "alloc/math/rotation.h"
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

/* One of the blocks: dimensions dim[0] .. dim[n - 1], or 0 .. n - 1 if dim is NULL. */
struct transform_block {
    const uint16_t *dim;
    size_t first, n; /* coordinates that it may have */
    size_t at;       /* in struct transform_roots */
};

/* Returns the number of blocks. */
static unsigned transform_list_blocks(const struct transform_blocks *b, size_t d,
                                      struct transform_block ret[2])
{
    size_t n = b->n_first;

    ret[0] = (struct transform_block){n > 0 ? b->dim : NULL, 0, n > 0 ? n : d, 0};
    ret[1] = (struct transform_block){b->dim + n, n, d - n, n * n};
    return n > 0 ? 2 : 1;
}

/* ret [n, n] := the part of @M [d, d] that belongs to a block. */
static void transform_gather(const struct transform_block *b, size_t d, const double *M, double *ret)
{
    for (size_t i = 0; i < b->n; i++)
        for (size_t j = 0; j < b->n; j++)
            ret[i * b->n + j] = b->dim ? M[b->dim[i] * d + b->dim[j]] : M[i * d + j];
}

/* Rows of a block [n, n] to rows and columns of @ret [d, d]; the other columns become 0. */
static void transform_scatter(const struct transform_block *b, size_t d, const double *rows, double *ret)
{
    memset(ret + b->first * d, 0, b->n * d * sizeof(*ret));
    for (size_t i = 0; i < b->n; i++)
        for (size_t j = 0; j < b->n; j++)
            ret[(b->first + i) * d + (b->dim ? b->dim[j] : j)] = rows[i * b->n + j];
}

int transform_roots_init(struct transform_roots *r, uint32_t d, const double *M,
                         const struct transform_blocks *blocks)
{
    size_t dd = (size_t) d * d;
    double trace = linalg_trace(d, M), ridge = RIDGE * trace / (double) d;
    _cleanup_(freep) double *A = NULL;
    _cleanup_(freep) double *ridged = NULL;
    struct transform_block list[2];

    *r = (struct transform_roots){.A = NULL};
    if (blocks)
        r->blocks = *blocks;
    if (!isfinite(trace))
        return -EDOM;
    if (!(trace > 0) || !(ridge > 0))
        return 0;

    A = malloc(2 * dd * sizeof(*A));
    ridged = malloc(dd * sizeof(*ridged));
    if (!A || !ridged)
        return -ENOMEM;

    for (unsigned k = 0, n = transform_list_blocks(&r->blocks, d, list); k < n; k++) {
        const struct transform_block *b = &list[k];
        int err;

        transform_gather(b, d, M, ridged);
        for (size_t i = 0; i < b->n; i++)
            ridged[i * b->n + i] += ridge;
        err = linalg_roots(b->n, ridged, A + b->at, A + dd + b->at);
        if (err < 0)
            return err;
    }

    r->A = take_ptr(A);
    r->inverse = r->A + dd;
    return 0;
}

void transform_roots_deinit(struct transform_roots *r)
{
    free(r->A);
    *r = (struct transform_roots){.A = NULL};
}

/* w [n] and the rows of enc and dec of one block. @work: [2, n, n] */
static int transform_fit_block(struct transform *t, const struct transform_block *b, const double *S,
                               const struct transform_roots *roots, double *work)
{
    size_t n = b->n, d = t->d;
    const double *A = roots->A + b->at;
    double *product = work, *rows = work + n * n;
    int r;

    transform_gather(b, d, S, rows);
    linalg_product(n, n, n, A, rows, product);
    linalg_product(n, n, n, product, A, rows);
    linalg_mirror(n, rows);
    memcpy(product, rows, n * n * sizeof(*product));
    r = linalg_eigen(n, product, t->w + b->first); /* rows of product: U' */
    if (r < 0)
        return r;

    linalg_product(n, n, n, product, A, rows); /* U'A */
    transform_scatter(b, d, rows, t->enc);
    linalg_product(n, n, n, product, roots->inverse + b->at, rows); /* (A^-1 U)', A symmetric */
    transform_scatter(b, d, rows, t->dec);
    return 0;
}

static int transform_fit_basis(struct transform *t, const double *S, const struct transform_roots *roots)
{
    size_t d = t->d;
    _cleanup_(freep) double *work = malloc(2 * d * d * sizeof(*work));
    struct transform_block list[2];
    int r = 0;

    if (!work)
        return -ENOMEM;

    for (unsigned k = 0, n = transform_list_blocks(&roots->blocks, d, list); r == 0 && k < n; k++)
        r = transform_fit_block(t, &list[k], S, roots, work);
    return r;
}

/* Leaves out coordinates whose w is only rounding. A first block keeps them, with a w of this size, since its
 * bands must be full. */
static void transform_count_coords(struct transform *t, size_t n_first)
{
    double floor = RANK_FLOOR * (n_first > 0 && t->w[n_first] > t->w[0] ? t->w[n_first] : t->w[0]);

    while (t->n_coords < n_first) {
        t->w[t->n_coords] = fmax(t->w[t->n_coords], floor);
        t->trace += t->w[t->n_coords++];
    }
    while (t->n_coords < t->d && t->w[t->n_coords] > floor)
        t->trace += t->w[t->n_coords++];
    memset(t->w + t->n_coords, 0, (t->d - t->n_coords) * sizeof(double));
}

int transform_fit_roots(struct transform *t, const double *S, const struct transform_roots *roots,
                        uint64_t seed)
{
    size_t d = t->d;
    double trace = linalg_trace(d, S);
    int r;

    t->n_coords = t->n_bands = 0;
    t->trace = 0;
    if (!isfinite(trace))
        return -EDOM;
    if (!roots->A || !(trace > 0)) /* no query reads this head-side, or it is constant */
        return 0;

    r = transform_fit_basis(t, S, roots);
    if (r < 0)
        return r;

    transform_count_coords(t, roots->blocks.n_first);
    t->n_bands = (t->n_coords + BAND_COORDS - 1) / BAND_COORDS;
    transform_make_bands(t, seed);
    return 0;
}

int transform_fit(struct transform *t, const double *S, const double *M, uint64_t seed)
{
    _cleanup_(transform_roots_deinit) struct transform_roots roots = {.A = NULL};
    int r;

    t->n_coords = t->n_bands = 0;
    t->trace = 0;
    r = transform_roots_init(&roots, t->d, M, NULL);
    return r < 0 ? r : transform_fit_roots(t, S, &roots, seed);
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
