/* See moments_draw.h. */
#include "tools/calibrate/moments_draw.h"

#include <cblas.h>
#include <errno.h>
#include <stdlib.h>

#include "alloc/math/linalg.h"
#include "alloc/moments/moments.h"
#include "base/cleanup.h"

/* One layer: keys k = mean + R z with R R = Cov(k), values v = mean + B z + L y with B = Cov(v, k) R^-1 and
 * L L = Cov(v) - B B'; y, z from N(0, I). */
struct moments_draw {
    const struct moments *m;
    uint32_t layer;
    size_t heads, d, width; /* width = heads d */
    double count;
    double *S, *root, *inverse; /* [width, width] */
    double *B, *cross;          /* [d, width] */
    double *L, *rest, *ignored; /* [d, d] */
    double *z, *x;              /* [n, width] */
    double *y, *own;            /* [n, d] */
};

static void moments_draw_deinit(struct moments_draw *w)
{
    free(w->S);
}

static int moments_draw_init(struct moments_draw *w, size_t n)
{
    size_t ww = w->width * w->width, dw = w->d * w->width, dd = w->d * w->d;

    w->S = malloc((3 * ww + 2 * dw + 3 * dd + 2 * n * w->width + 2 * n * w->d) * sizeof(double));
    if (!w->S)
        return -ENOMEM;

    w->root = w->S + ww;
    w->inverse = w->root + ww;
    w->B = w->inverse + ww;
    w->cross = w->B + dw;
    w->L = w->cross + dw;
    w->rest = w->L + dd;
    w->ignored = w->rest + dd;
    w->z = w->ignored + dd;
    w->x = w->z + n * w->width;
    w->y = w->x + n * w->width;
    w->own = w->y + n * w->d;
    return 0;
}

/* Entry (i, j) of the lower triangle of a head's scatter; see moments_scatter(). */
static double moments_draw_entry(const double *triangle, size_t i, size_t j)
{
    return i >= j ? triangle[i * (i + 1) / 2 + j] : triangle[j * (j + 1) / 2 + i];
}

static void moments_draw_keys_covariance(struct moments_draw *w)
{
    for (uint32_t a = 0; a < w->heads; a++)
        for (uint32_t b = 0; b <= a; b++) {
            const double *block =
                a == b ? moments_scatter(w->m, w->layer, a) : moments_key_scatter(w->m, w->layer, a, b);

            for (size_t i = 0; i < w->d; i++)
                for (size_t j = 0; j < w->d; j++)
                    w->S[(a * w->d + i) * w->width + b * w->d + j] =
                        (a == b ? moments_draw_entry(block, i, j) : block[i * w->d + j]) / w->count;
        }
    linalg_mirror(w->width, w->S);
}

/* Roots need a positive definite matrix; 10^-9 of the mean variance changes nothing visible. */
static void moments_draw_add_ridge(double *S, size_t n)
{
    double ridge = 1e-9 * linalg_trace(n, S) / (double) n + 1e-30;

    for (size_t i = 0; i < n; i++)
        S[i * n + i] += ridge;
}

/* B and L of one head. */
static int moments_draw_prepare_value(struct moments_draw *w, uint32_t head)
{
    const double *own = moments_scatter(w->m, w->layer, head);
    size_t d = w->d;

    for (uint32_t k = 0; k < w->heads; k++) {
        const double *block = k == head ? NULL : moments_value_scatter(w->m, w->layer, head, k);

        for (size_t i = 0; i < d; i++)
            for (size_t j = 0; j < d; j++)
                w->cross[i * w->width + k * d + j] =
                    (block ? block[i * d + j] : moments_draw_entry(own, d + i, j)) / w->count;
    }

    linalg_product(d, w->width, w->width, w->cross, w->inverse, w->B);
    for (size_t i = 0; i < d; i++)
        for (size_t j = 0; j < d; j++)
            w->rest[i * d + j] = moments_draw_entry(own, d + i, d + j) / w->count -
                                 cblas_ddot((int) w->width, w->B + i * w->width, 1, w->B + j * w->width, 1);
    moments_draw_add_ridge(w->rest, d);
    return linalg_roots(d, w->rest, w->L, w->ignored);
}

static int moments_draw_values(struct moments_draw *w, uint32_t head, size_t n, uint64_t *state, float *ret)
{
    const double *mean = moments_mean(w->m, w->layer, head) + w->d;
    int r = moments_draw_prepare_value(w, head);

    if (r < 0)
        return r;

    for (size_t i = 0; i < n * w->d; i++)
        w->y[i] = moments_draw_normal(state);
    linalg_product(n, w->d, w->d, w->y, w->L, w->own);
    cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int) n, (int) w->d, (int) w->width, 1.0, w->z,
                (int) w->width, w->B, (int) w->width, 1.0, w->own, (int) w->d);
    for (size_t t = 0; t < n; t++)
        for (size_t i = 0; i < w->d; i++)
            ret[t * w->width + head * w->d + i] = (float) (mean[i] + w->own[t * w->d + i]);
    return 0;
}

int moments_draw_joint(const struct moments *m, uint32_t layer, size_t n, float *const ret_vectors[2])
{
    const struct geometry *g = &moments_get_options(m)->geometry;
    _cleanup_(moments_draw_deinit) struct moments_draw w = {.m = m,
                                                            .layer = layer,
                                                            .heads = g->n_kv_heads,
                                                            .d = g->d,
                                                            .width = (size_t) g->n_kv_heads * g->d,
                                                            .count = (double) moments_count(m, layer, 0)};
    uint64_t state = (uint64_t) layer << 32;
    int r = moments_draw_init(&w, n);

    if (r < 0)
        return r;

    moments_draw_keys_covariance(&w);
    moments_draw_add_ridge(w.S, w.width);
    r = linalg_roots(w.width, w.S, w.root, w.inverse);
    if (r < 0)
        return r;

    for (size_t i = 0; i < n * w.width; i++)
        w.z[i] = moments_draw_normal(&state);
    linalg_product(n, w.width, w.width, w.z, w.root, w.x);
    for (size_t t = 0; t < n; t++)
        for (size_t i = 0; i < w.width; i++)
            ret_vectors[0][t * w.width + i] =
                (float) (moments_mean(m, layer, (uint32_t) (i / w.d))[i % w.d] + w.x[t * w.width + i]);
    for (uint32_t head = 0; head < w.heads && r == 0; head++)
        r = moments_draw_values(&w, head, n, &state, ret_vectors[1]);
    return r;
}
