/* See solve_codes.h. */
#include "alloc/solve/solve_codes.h"

#include <cblas.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "alloc/solve/curve.h"
#include "alloc/solve/solve_rows.h"
#include "alloc/table/levels.h"
#include "base/cleanup.h"

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

/* What the codes of each band decode to. */
static int solve_coder_init_levels(struct solve_coder *c, const struct head *h)
{
    c->level = calloc((size_t) c->order.n_bands + 1, sizeof(*c->level));
    if (!c->level)
        return -ENOMEM;

    for (uint32_t i = 0; i < c->order.n_bands; i++) {
        unsigned bits = h->bits[c->order.band[i]];
        const struct levels *l = &c->v->levels[c->hs % 2][bits];

        for (unsigned q = 0; q < levels_count(l, bits); q++)
            c->level[i][q] = (float) level_z(l, q);
    }
    return 0;
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
    return h->codes ? solve_coder_init_levels(c, h) : 0;
}

void solve_coder_deinit(struct solve_coder *c)
{
    free(c->enc);
    free(c->level);
    *c = (struct solve_coder){.enc = NULL};
}

/* ret_z [n, order.n_coords], row stride @stride, := coordinates of u [n, d]. Return: 0; -EDOM. */
static int solve_coder_project(const struct solve_coder *c, const float *u, size_t n, float *ret_z,
                               size_t stride)
{
    size_t d = c->v->g->d, m = c->order.n_coords;
    bool finite = true;

    if (m == 0 || n == 0)
        return 0;

    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int) n, (int) m, (int) d, 1.0f, u, (int) d, c->enc,
                (int) d, 0.0f, ret_z, (int) stride);
    for (size_t t = 0; t < n; t++)
        for (size_t i = 0; i < m; i++)
            finite &= fabsf(ret_z[t * stride + i]) < INFINITY; /* the scale of a band may exceed binary32 */
    return finite ? 0 : -EDOM;
}

int solve_coder_encode(const struct solve_coder *c, const float *u, size_t n, float *ret_c, size_t stride)
{
    const struct head *h = &c->v->heads[c->hs];
    int r = solve_coder_project(c, u, n, ret_c, stride);
    size_t col = 0;

    if (r < 0)
        return r;

    for (uint32_t i = 0; i < c->order.n_bands; i++) {
        uint32_t band = c->order.band[i], n_coords = band_coords(&h->t, band);
        unsigned bits = h->bits[band];

        curve_quantise_levels(&c->v->levels[c->hs % 2][bits], bits, ret_c + col, n, n_coords, stride);
        col += n_coords;
    }
    return 0;
}

/* The kept codes of these rows. */
static void solve_coder_look_up(const struct solve_coder *c, const struct solve_rows *r, float *ret_c,
                                size_t stride)
{
    const struct head *h = &c->v->heads[c->hs];
    size_t m = c->order.n_coords, col = 0;

    for (uint32_t i = 0; i < c->order.n_bands; i++) {
        uint32_t n_coords = band_coords(&h->t, c->order.band[i]);

        for (size_t t = 0; t < r->n; t++) {
            const uint8_t *codes = h->codes + (r->first + t * r->step) * m + col;

            for (uint32_t k = 0; k < n_coords; k++)
                ret_c[t * stride + col + k] = c->level[i][codes[k]];
        }
        col += n_coords;
    }
}

/* With a trellis some rows have other codes than among all rows: those of their own strings. */
static bool solve_coder_keeps(const struct solve_coder *c, const struct solve_rows *r)
{
    return c->level && r->step == 1;
}

int solve_coder_decode(const struct solve_coder *c, const struct solve_rows *r, const float *u, float *ret_c,
                       size_t stride)
{
    if (!solve_coder_keeps(c, r))
        return solve_coder_encode(c, u, r->n, ret_c, stride);

    solve_coder_look_up(c, r, ret_c, stride);
    return 0;
}

/* All codes of one K; @ctx is not used. */
static int solve_store_head(struct solver *v, uint32_t hs, void *ctx)
{
    struct head *h = &v->heads[hs];
    size_t d = v->g->d, m, most = SOLVE_BLOCK;
    _cleanup_(solve_coder_deinit) struct solve_coder c = {.enc = NULL};
    _cleanup_(freep) float *u = NULL;
    struct solve_rows rows = {.n = 0};
    int r = solve_coder_init(&c, v, hs);
    uint8_t *to;

    (void) ctx;
    if (r < 0)
        return r;

    m = c.order.n_coords;
    u = malloc(most * (d + m) * sizeof(*u));
    to = h->codes = malloc(v->n * m + 1);
    if (!u || !to)
        return -ENOMEM;

    while (r == 0 && solve_rows_next(v, 1, &rows)) {
        float *z = u + most * d;
        size_t col = 0;

        solve_rows_read(v, hs, &rows, h->mean, u);
        r = solve_coder_project(&c, u, rows.n, z, m);
        for (uint32_t i = 0; r == 0 && i < c.order.n_bands; i++) {
            uint32_t band = c.order.band[i], n_coords = band_coords(&h->t, band);

            curve_quantise_codes(&v->levels[hs % 2][h->bits[band]], h->bits[band], z + col, rows.n, n_coords,
                                 m, to + col, m);
            col += n_coords;
        }
        to += rows.n * m;
    }
    return r;
}

int solve_store_keys(struct solver *v, struct errmsg *e)
{
    return v->n > 0 ? solver_each_side(v, "codes of keys", 1u << SIDE_K, solve_store_head, NULL, e) : 0;
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

        if (!solve_coder_keeps(c, r))
            solve_rows_read(c->v, c->hs, r, c->v->heads[c->hs].mean, k->u);
        err = solve_coder_decode(c, r, k->u, ret_c, stride);
        if (err < 0)
            return err;

        ret_c += c->order.n_coords;
    }

    return 0;
}
