/*
 * Least-squares decoders: the linear map from codes as stored to vectors that leaves the least
 * squared error on the sampled tokens, instead of the encoder's inverse. The inverse would be
 * optimal if codes were z. But codes are levels: their errors are correlated with them, and K's codes
 * explain part of the quantisation error of V.
 *
 *   e     = x - mean - D c
 *   D'    = D + Cov(e, c) (G + l I)^-1
 *   mean' = mean + E[e] - (D' - D) E[c]
 *
 * with D the inverse (of V: [P | D_V], c = [c_K ; c_V]), G the centred covariance of c and l = 1e-4
 * tr(G) / n. The textbook regresses x: Cov(x, c) (G + l I)^-1. Regressing the error gives the same but for
 * the ridge, which here pulls towards the inverse: where samples are few, D' stays near D. The metric M does
 * not enter: the same D' is the least-squares solution of every direction.
 *
 * What least squares decode varies less than x: a share D of the variance is lost, and it is lost in all
 * tokens alike, so attention does not average it out. The columns of coordinates of b bits are multiplied by
 * solve_contrast(), about the mean of the codes, with which x^ keeps its mean.
 */
#include <cblas.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/solve/solve_internal.h"
#include "alloc/solve/solve_regression.h"
#include "alloc/stats/stats_internal.h"
#include "base/cleanup.h"
#include "base/errmsg.h"

double solve_inverse_factor(const struct solver *v, enum side side, unsigned b)
{
    const struct levels *l = &v->levels[side][b];
    struct gaussian_code code;

    if (b == 0 || v->o.method != METHOD_BANDS ||
        (solve_loading(&v->o, side, b) == 1 && v->o.contrast[side] == 0 && !v->o.levels_from))
        return 1;

    solve_gaussian_code(l, b, 1, &code);
    return code.gain / code.variance * solve_contrast(l, b, v->o.contrast[side]);
}

/* One head-side. */
struct solve_decode_fit {
    struct solver *v;
    uint32_t hs;
    size_t d, m;            /* m = keys.m + coordinates of its own */
    struct solve_keys keys; /* that the head-side is predicted from: none for K */
    struct solve_coder coder;
    float *c;       /* [SOLVE_BLOCK, m] codes that the decoder reads */
    float *e;       /* [SOLVE_BLOCK, d] x - mean - P c, then the error of the inverse */
    float *D;       /* [m, d] columns of the inverse; of V: [P | D_V] */
    uint8_t *block; /* [m + d] of K in blocks: that of each code and of each number of a key; else NULL */
};

static void solve_decode_deinit(struct solve_decode_fit *f)
{
    solve_keys_deinit(&f->keys);
    solve_coder_deinit(&f->coder);
    free(f->c);
    free(f->e);
    free(f->D);
    free(f->block);
}

/* Rows of D: P', then those of the encoder's inverse in stored order. */
static void solve_decode_invert(struct solve_decode_fit *f)
{
    const struct head *h = &f->v->heads[f->hs];
    float *to = f->D + f->keys.m * f->d;

    for (size_t i = 0; i < f->keys.m; i++)
        for (size_t j = 0; j < f->d; j++)
            f->D[i * f->d + j] = (float) h->predict[j * f->keys.m + i];
    for (uint32_t b = 0; b < f->coder.order.n_bands; b++) {
        const double *from = h->t.dec + (size_t) f->coder.order.band[b] * BAND_COORDS * f->d;

        for (size_t i = 0; i < band_coords(&h->t, f->coder.order.band[b]) * f->d; i++)
            *to++ = (float) from[i];
    }
}

/* Codes of bands of the first block, and dimensions of the fast planes, are 1. */
static int solve_decode_set_blocks(struct solve_decode_fit *f)
{
    const struct solver *v = f->v;
    const struct head *h = &v->heads[f->hs];
    size_t at = 0;

    if (v->fast_planes == 0 || f->hs % 2 == SIDE_V)
        return 0;

    f->block = calloc(f->m + f->d, sizeof(*f->block));
    if (!f->block)
        return -ENOMEM;

    for (uint32_t i = 0; i < f->coder.order.n_bands; i++) {
        uint32_t band = f->coder.order.band[i];

        for (uint32_t c = 0; c < band_coords(&h->t, band); c++)
            f->block[at++] = band * BAND_COORDS < v->blocks.n_first;
    }
    for (uint32_t i = 0; i < f->d; i++)
        f->block[at++] = geometry_in_planes(v->g, v->fast_planes, i);
    return 0;
}

static int solve_decode_init(struct solve_decode_fit *f, struct solver *v, uint32_t hs)
{
    int r = solve_coder_init(&f->coder, v, hs);

    f->v = v;
    f->hs = hs;
    f->d = v->g->d;
    if (r == 0 && hs % 2 == SIDE_V)
        r = solve_keys_init(&f->keys, v, hs / 2);
    if (r < 0)
        return r;

    f->m = f->keys.m + f->coder.order.n_coords;
    f->c = malloc((SOLVE_BLOCK * f->m + 1) * sizeof(*f->c));
    f->e = malloc(SOLVE_BLOCK * f->d * sizeof(*f->e));
    f->D = malloc((f->m * f->d + 1) * sizeof(*f->D));
    if (!f->c || !f->e || !f->D)
        return -ENOMEM;

    solve_decode_invert(f);
    return solve_decode_set_blocks(f);
}

/* f->c and f->e of a block: codes as a table's encoder makes them, and what their inverse leaves. */
static int solve_decode_encode(struct solve_decode_fit *f, const struct solve_rows *rows)
{
    size_t d = f->d, m = f->m, n_pred = f->keys.m;
    int r = solve_keys_read(&f->keys, rows, f->c, m);

    if (r < 0)
        return r;

    solve_rows_read(f->v, f->hs, rows, f->v->heads[f->hs].mean, f->e);
    if (n_pred > 0)
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int) rows->n, (int) d, (int) n_pred, -1.0f,
                    f->c, (int) m, f->D, (int) d, 1.0f, f->e, (int) d);
    r = solve_coder_decode(&f->coder, rows, f->e, f->c + n_pred, m);
    if (r == 0 && m > n_pred)
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int) rows->n, (int) d, (int) (m - n_pred),
                    -1.0f, f->c + n_pred, (int) m, f->D + n_pred * d, (int) d, 1.0f, f->e, (int) d);
    return r;
}

/* Moments of the codes and of the errors that the inverse leaves. */
static int solve_decode_add_rows(struct solve_decode_fit *f, struct regression *reg)
{
    const struct solver *v = f->v;
    struct solve_rows rows = {.n = 0};
    int r = regression_begin(reg, f->m, f->d, v->leaves_out ? v->n_sources : 1, SOLVE_BLOCK);

    reg->block = f->block;
    while (r == 0 && solve_rows_next(v, 1, &rows)) {
        r = solve_decode_encode(f, &rows);
        if (r == 0)
            regression_add(reg, v->leaves_out ? rows.source : 0, f->c, f->m, f->e, rows.n);
    }
    if (r == 0)
        regression_end(reg);
    return r;
}

/* Multiplies the decoder's columns by the contrast of their widths, about E[c] = @codes [own]. */
static void solve_decode_contrast(const struct solve_decode_fit *f, const double *codes, struct head *h)
{
    enum side side = (enum side)(f->hs % 2);
    size_t own = f->m - f->keys.m, col = 0;

    for (uint32_t b = 0; b < f->coder.order.n_bands; b++) {
        uint32_t band = f->coder.order.band[b];
        double factor =
            solve_contrast(&f->v->levels[side][h->bits[band]], h->bits[band], f->v->o.contrast[side]);

        for (uint32_t c = 0; c < band_coords(&h->t, band); c++, col++)
            for (size_t i = 0; i < f->d; i++) {
                double *x = &h->decoder.dec[i * own + col];

                h->decoder.mean[i] -= (factor - 1) * *x * codes[col];
                *x *= factor;
            }
    }
}

/* The head's decoder := the inverse and its correction [d, m], from the matrices in binary64. */
static int solve_decode_split(const struct solve_decode_fit *f, const double *change, struct head *h)
{
    size_t d = f->d, m = f->m, n_pred = f->keys.m, own = m - n_pred;
    _cleanup_(freep) double *predict = n_pred > 0 ? malloc(d * n_pred * sizeof(*predict)) : NULL;
    _cleanup_(freep) double *dec = malloc((d * own + 1) * sizeof(*dec));

    if (!dec || (n_pred > 0 && !predict))
        return -ENOMEM;

    for (size_t i = 0; i < d; i++) {
        const double *row = change + i * m + n_pred;
        size_t col = 0;

        for (size_t j = 0; j < n_pred; j++)
            predict[i * n_pred + j] = h->predict[i * n_pred + j] + change[i * m + j];
        for (uint32_t b = 0; b < f->coder.order.n_bands; b++) {
            uint32_t band = f->coder.order.band[b];

            for (uint32_t c = 0; c < band_coords(&h->t, band); c++, col++)
                dec[i * own + col] = h->t.dec[((size_t) band * BAND_COORDS + c) * d + i] + row[col];
        }
    }

    free(h->decoder.predict);
    free(h->decoder.dec);
    h->decoder.predict = take_ptr(predict);
    h->decoder.dec = take_ptr(dec);
    return 0;
}

/* With sources left out, from hardly any ridge to the inverse. */
static const double decode_ridges[] = {SOLVE_DECODE_RIDGE, 1e-2, 1e-1, 1, REGRESSION_NONE};

/* The correction of D and of the mean; the head's decoder is replaced. */
static int solve_decode_correct(struct solve_decode_fit *f, const struct regression *reg)
{
    size_t d = f->d;
    struct head *h = &f->v->heads[f->hs];
    _cleanup_(freep) double *change = malloc(d * f->m * sizeof(*change));
    _cleanup_(freep) double *mean = malloc(d * sizeof(*mean));
    double ridge = SOLVE_DECODE_RIDGE;
    int r;

    if (!change || !mean)
        return -ENOMEM;

    r = solve_predict_choose(f->v, f->hs, reg, decode_ridges, sizeof(decode_ridges) / sizeof(*decode_ridges),
                             &ridge);
    if (r == 0)
        r = regression_fit(reg, REGRESSION_ALL, ridge, change, mean); /* mean: E[e] - change E[c] */
    if (r != 0)
        return r;

    for (size_t i = 0; i < d; i++)
        mean[i] += h->mean[i];
    free(h->decoder.mean);
    h->decoder.mean = take_ptr(mean);
    r = solve_decode_split(f, change, h);
    if (r == 0)
        solve_decode_contrast(f, regression_mean(reg, REGRESSION_ALL) + f->keys.m, h);
    return r;
}

static int solve_decode_fit_head_side(struct solver *v, uint32_t hs, void *ctx)
{
    _cleanup_(solve_decode_deinit) struct solve_decode_fit f = {.m = 0};
    _cleanup_(regression_deinit) struct regression reg = {.m = 0};
    int r = solve_decode_init(&f, v, hs);

    (void) ctx;
    if (r < 0 || f.m == 0) /* the decoder is the mean alone */
        return r;

    r = solve_decode_add_rows(&f, &reg);
    return r == 0 ? solve_decode_correct(&f, &reg) : r;
}

int solve_fit_decoders(struct solver *v, struct errmsg *e)
{
    return solver_each_side(v, "decoders", 1u << SIDE_K | 1u << SIDE_V, solve_decode_fit_head_side, NULL, e);
}
