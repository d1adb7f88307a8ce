/* See solve_codes.h. */
#include "alloc/solve/solve_codes.h"

#include <cblas.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "alloc/solve/curve.h"
#include "alloc/solve/solve_rows.h"

void solve_stored_order(const struct head *h, struct stored_order *ret)
{
    ret->n_bands = ret->n_coords = 0;
    for (unsigned bits = TABLE_BITS_MAX; bits > 0; bits--)
        for (uint32_t b = 0; b < h->t.n_bands; b++)
            if (h->bits[b] == bits) {
                ret->band[ret->n_bands++] = b;
                ret->n_coords += band_coords(&h->t, b);
            }
}

int solve_coder_init(struct solve_coder *c, const struct solver *v, uint32_t hs)
{
    const struct head *h = &v->heads[hs];
    size_t d = v->g->d;
    float *to;

    *c = (struct solve_coder){.v = v, .hs = hs};
    solve_stored_order(h, &c->order);
    c->enc = malloc((c->order.n_coords * d + 1) * sizeof(*c->enc));
    if (!c->enc)
        return -ENOMEM;

    to = c->enc;
    for (uint32_t i = 0; i < c->order.n_bands; i++) {
        const double *from = h->t.enc + (size_t) c->order.band[i] * BAND_COORDS * d;

        for (size_t j = 0; j < band_coords(&h->t, c->order.band[i]) * d; j++)
            *to++ = (float) from[j];
    }
    return 0;
}

void solve_coder_deinit(struct solve_coder *c)
{
    free(c->enc);
    *c = (struct solve_coder){.enc = NULL};
}

int solve_coder_encode(const struct solve_coder *c, const float *u, size_t n, float *ret_c, size_t stride)
{
    const struct head *h = &c->v->heads[c->hs];
    size_t d = c->v->g->d, m = c->order.n_coords, col = 0;
    bool finite = true;

    if (m == 0 || n == 0)
        return 0;

    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int) n, (int) m, (int) d, 1.0f, u, (int) d, c->enc,
                (int) d, 0.0f, ret_c, (int) stride);
    for (size_t t = 0; t < n; t++)
        for (size_t i = 0; i < m; i++)
            finite &= fabsf(ret_c[t * stride + i]) < INFINITY; /* the scale of a band may exceed binary32 */
    if (!finite)
        return -EDOM;

    for (uint32_t i = 0; i < c->order.n_bands; i++) {
        uint32_t band = c->order.band[i], n_coords = band_coords(&h->t, band);
        unsigned bits = h->bits[band];

        curve_quantise_levels(&c->v->levels[c->hs % 2][bits], bits, ret_c + col, n, n_coords, stride);
        col += n_coords;
    }
    return 0;
}

int solve_keys_init(struct solve_keys *k, const struct solver *v, uint32_t head)
{
    struct head_run run = prediction_heads(v->o.v_from, v->g->n_kv_heads, head % v->g->n_kv_heads);
    uint32_t first = head / v->g->n_kv_heads * v->g->n_kv_heads + run.first;

    *k = (struct solve_keys){.n_heads = 0};
    k->coders = calloc((size_t) run.n + 1, sizeof(*k->coders));
    k->u = malloc(SOLVE_BLOCK * v->g->d * sizeof(*k->u));
    if (!k->coders || !k->u)
        return -ENOMEM;

    for (uint32_t i = 0; i < run.n; i++) {
        int r = solve_coder_init(&k->coders[k->n_heads++], v, 2 * (first + i));

        if (r < 0)
            return r;

        k->m += k->coders[i].order.n_coords;
    }

    return 0;
}

void solve_keys_deinit(struct solve_keys *k)
{
    for (uint32_t i = 0; i < k->n_heads; i++)
        solve_coder_deinit(&k->coders[i]);
    free(k->coders);
    free(k->u);
    *k = (struct solve_keys){.n_heads = 0};
}

int solve_keys_read(struct solve_keys *k, const struct solve_rows *r, float *ret_c, size_t stride)
{
    for (uint32_t i = 0; i < k->n_heads; i++) {
        const struct solve_coder *c = &k->coders[i];
        int err;

        if (c->order.n_coords == 0)
            continue;

        solve_rows_read(c->v, c->hs, r, c->v->heads[c->hs].mean, k->u);
        err = solve_coder_encode(c, k->u, r->n, ret_c, stride);
        if (err < 0)
            return err;

        ret_c += c->order.n_coords;
    }

    return 0;
}
