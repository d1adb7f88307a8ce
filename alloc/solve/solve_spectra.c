/* See solve_spectra.h. */
#include "alloc/solve/solve_spectra.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/math/linalg.h"
#include "alloc/math/rotation.h"
#include "alloc/solve/metric.h"
#include "base/cleanup.h"
#include "base/splitmix64.h"

int spectra_init(struct spectra *p, uint32_t n_heads, uint32_t d)
{
    size_t n = (size_t) n_heads * d;

    *p = (struct spectra){.n_heads = n_heads, .d = d};
    p->w = calloc(n * (3 + d), sizeof(double));
    if (!p->w)
        return -ENOMEM;

    p->lambda = p->w + n;
    p->factor = p->lambda + n;
    p->basis = p->factor + n;
    return 0;
}

void spectra_deinit(struct spectra *p)
{
    free(p->w);
}

/* Directions of one head. */
struct directions {
    double *w, *lambda, *factor, *basis;
};

/* Sorts directions by weight, descending; equal weights keep the order of their eigenvalues. Insertion sort:
 * d is small. */
static void solve_spectra_reorder(size_t d, struct directions x)
{
    double row[GEOMETRY_DIM_MAX];

    for (size_t i = 1; i < d; i++) {
        double weight = x.w[i], value = x.lambda[i], factor = x.factor[i];
        size_t to = i;

        while (to > 0 && x.w[to - 1] < weight)
            to--;
        memcpy(row, x.basis + i * d, d * sizeof(*row));
        memmove(x.w + to + 1, x.w + to, (i - to) * sizeof(*x.w));
        memmove(x.lambda + to + 1, x.lambda + to, (i - to) * sizeof(*x.lambda));
        memmove(x.factor + to + 1, x.factor + to, (i - to) * sizeof(*x.factor));
        memmove(x.basis + (to + 1) * d, x.basis + to * d, (i - to) * d * sizeof(*x.basis));
        x.w[to] = weight;
        x.lambda[to] = value;
        x.factor[to] = factor;
        memcpy(x.basis + to * d, row, d * sizeof(*row));
    }
}

int spectra_fill(const struct solver *v, enum side side, struct spectra *p, struct errmsg *e)
{
    size_t d = p->d;

    for (uint32_t i = 0; i < p->n_heads; i++) {
        uint32_t layer = i / v->g->n_kv_heads, head = i % v->g->n_kv_heads;
        struct directions x = {p->w + i * d, p->lambda + i * d, p->factor + i * d, p->basis + i * d * d};
        int r;

        solver_covariance(v, i * 2 + (uint32_t) side, x.basis);
        r = linalg_eigen(d, x.basis, x.lambda);
        if (r < 0)
            return solver_fail(layer, head, side, r, e);
        if (side == SIDE_K && v->o.metric == METRIC_QUERY) /* eq:kl-obj: w_i = sQ_i^2 sK_i^2 */
            metric_query_variance(v->s, layer, head, x.basis, x.factor);
        else
            for (size_t c = 0; c < d; c++)
                x.factor[c] = 1;
        for (size_t c = 0; c < d; c++) {
            x.lambda[c] = fmax(x.lambda[c], 0);
            x.w[c] = x.factor[c] * x.lambda[c];
        }

        solve_spectra_reorder(d, x);
    }

    return 0;
}

int spectra_rotation(const struct solver *v, uint32_t head_side, const double *lambda, const double *basis,
                     uint32_t r, double *ret_enc, double *ret_scale)
{
    _cleanup_(freep) double *H = malloc((size_t) r * r * sizeof(*H));
    double kept = 0, scale;

    if (!H)
        return -ENOMEM;

    for (size_t i = 0; i < r; i++)
        kept += lambda[i];
    rotation_matrix(r, splitmix64_seed(v->o.seed, head_side), H);
    linalg_product(r, v->g->d, r, H, basis, ret_enc);
    scale = sqrt(kept / (double) r);
    for (size_t i = 0; scale > 0 && i < (size_t) r * v->g->d; i++)
        ret_enc[i] /= scale;
    *ret_scale = scale;
    return 0;
}

int spectra_make_head(struct solver *v, uint32_t head_side, const double *lambda, const double *basis,
                      uint32_t r, uint32_t b)
{
    struct head *h = &v->heads[head_side];
    size_t d = v->g->d;
    double kept = 0, scale;
    int err;

    for (size_t i = 0; i < d; i++) {
        h->t.w[i] = lambda[i];
        h->t.trace += lambda[i];
        kept += i < r ? lambda[i] : 0;
    }

    if (!(kept > 0)) /* rank 0, or a constant head */
        return 0;

    err = spectra_rotation(v, head_side, lambda, basis, r, h->t.enc, &scale);
    if (err < 0)
        return err;

    for (size_t i = 0; i < r * d; i++)
        h->t.dec[i] = h->t.enc[i] * scale * scale;
    h->t.n_coords = r;
    h->t.n_bands = (r + BAND_COORDS - 1) / BAND_COORDS;
    for (uint32_t band = 0; band < h->t.n_bands; band++) {
        h->t.scale[band] = scale;
        h->bits[band] = (uint8_t) b;
    }

    return 0;
}
