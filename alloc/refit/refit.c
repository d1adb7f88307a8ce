/*
 * The algebra of refitting; see refit.h. Keys and values are taken as jointly normal, as in
 * solve_predict_moments.c: with z = E (x - mean) and Z its covariance, a code is c_i = Q(z_i),
 *
 *   Cov(y, c_i) = g_i Cov(y, z_i) for every normal y     G_ij = g_i g_j Z_ij     G_ii = Var c_i
 *
 * where the gain g_i = E c_i z_i / Z_ii. In this order, for the heads that predict one another's values:
 *
 *   K  mean; E and D scaled so that the coordinates of a band have variance 1 again
 *   V  P = Cov(v, c) (G + 1e-3 tr(G)/n I)^-1, mean_V = E[v - P c], residual covariance
 *      S_V - P Cov(c, v) - Cov(v, c) P' + P G P'; E and D scaled for the residual
 *   D' = D + Cov(x - D c, c) (G + l tr(G)/n I)^-1 of both, as solve_decode.c does with vectors
 *
 * The last step recovers what the basis, which stays, loses: coordinates of a basis for other traffic are
 * correlated, and those without bits depend on those with bits.
 *
 * With a share below 1, each of mean, scale (its logarithm), P and D' is the weighted mean of that of the
 * table and the one above, and what follows it is fitted to this mean: few tokens are not the traffic to
 * come.
 */
#include "alloc/refit/refit.h"

#include <cblas.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/math/linalg.h"
#include "alloc/moments/moments.h"
#include "alloc/refit/refit_internal.h"
#include "alloc/solve/solve_internal.h"
#include "base/cleanup.h"
#include "base/errmsg.h"

/* Relative to the mean variance of the codes. */
#define DECODER_RIDGE 1e-3

/* The K codes that predict the values of a run of heads. */
struct refit_codes {
    size_t n;
    size_t first[GEOMETRY_HEADS_MAX + 1]; /* of each head of the run */
    double *G;                            /* [n, n] covariance */
    double *mean;                         /* [n] */
    double *gain;                         /* [n] */
};

static void refit_codes_deinit(struct refit_codes *c)
{
    free(c->G);
    free(c->mean);
    free(c->gain);
}

/* ---- covariances of moments ---- */

/* One head: @ret [d, d] of its keys, of its values, or of its values (rows) with its keys. */
static void refit_covariance(const struct moments *m, uint32_t layer, uint32_t head, enum side row,
                             enum side column, double *ret)
{
    size_t d = moments_get_options(m)->geometry.d;
    const double *scatter = moments_scatter(m, layer, head);
    double n = (double) moments_count(m, layer, head);

    for (size_t i = 0; i < d; i++)
        for (size_t j = 0; j < d; j++) {
            size_t a = row * d + i, b = column * d + j, high = a > b ? a : b, low = a > b ? b : a;

            ret[i * d + j] = scatter[high * (high + 1) / 2 + low] / n;
        }
}

/* Of the keys of @a (rows) and @b. */
static void refit_covariance_of_keys(const struct moments *m, uint32_t layer, uint32_t a, uint32_t b,
                                     double *ret)
{
    size_t d = moments_get_options(m)->geometry.d;
    double n = (double) moments_count(m, layer, a);
    const double *block;

    if (a == b) {
        refit_covariance(m, layer, a, SIDE_K, SIDE_K, ret);
        return;
    }

    block = moments_key_scatter(m, layer, a > b ? a : b, a > b ? b : a);
    for (size_t i = 0; i < d; i++)
        for (size_t j = 0; j < d; j++)
            ret[i * d + j] = (a > b ? block[i * d + j] : block[j * d + i]) / n;
}

/* Of the value of @value (rows) and the key of @key. */
static void refit_covariance_of_value(const struct moments *m, uint32_t layer, uint32_t value, uint32_t key,
                                      double *ret)
{
    size_t d = moments_get_options(m)->geometry.d;
    const double *block;

    if (value == key) {
        refit_covariance(m, layer, value, SIDE_V, SIDE_K, ret);
        return;
    }

    block = moments_value_scatter(m, layer, value, key);
    for (size_t i = 0; i < d * d; i++)
        ret[i] = block[i] / (double) moments_count(m, layer, value);
}

/* ---- one head-side ---- */

/* Moves @x from what the table has towards @fitted. */
static void refit_move(const struct refit *f, size_t n, const double *fitted, double *x)
{
    for (size_t i = 0; i < n; i++)
        x[i] = (1 - f->share) * x[i] + f->share * fitted[i];
}

/* Scales the bands so that their coordinates have variance 1 on average under @S; padding does not count. */
static void refit_rescale(const struct refit *f, struct refit_side *s, const double *S)
{
    size_t d = f->g->d;

    for (uint32_t b = 0; b < s->n_bands; b++) {
        double sum = 0, scale, Sx[GEOMETRY_DIM_MAX];
        size_t n = 0;

        s->scaled[b] = 1;
        for (size_t c = 0; c < 8; c++) {
            double *row = s->enc + (b * 8 + c) * d;

            if (cblas_ddot((int) d, row, 1, row, 1) == 0)
                continue;

            linalg_product(d, 1, d, S, row, Sx);
            sum += cblas_ddot((int) d, row, 1, Sx, 1);
            n++;
        }

        scale = n > 0 ? sqrt(sum / (double) n) : 0;
        if (!isfinite(scale) || scale < 1e-6) /* no variance: nothing to scale */
            continue;
        scale = pow(scale, f->share);
        s->scaled[b] = scale;
        cblas_dscal((int) (8 * d), 1 / scale, s->enc + b * 8 * d, 1);
        cblas_dscal((int) (8 * d), scale, s->dec + b * 8 * d, 1);
    }
}

/* The code parameters of coordinates with covariance @Z [n, n] (row stride @ld), which becomes G but for
 * the gains of other runs. */
static void refit_quantise(const struct refit_side *s, const struct levels *levels, const double *Z,
                           size_t ld, double *ret_mean, double *ret_gain, double *ret_variance)
{
    for (size_t i = 0; i < s->n; i++) {
        struct gaussian_code code;
        unsigned bits = s->bits[i / 8];

        solve_gaussian_code(&levels[bits], bits, Z[i * ld + i], &code);
        ret_mean[i] = code.mean;
        ret_gain[i] = code.gain;
        ret_variance[i] = code.variance;
    }
}

static void refit_apply_gains(size_t n, const double *gain, const double *variance, double *Z)
{
    for (size_t i = 0; i < n; i++) {
        for (size_t j = 0; j < n; j++)
            Z[i * n + j] *= gain[i] * gain[j];
        Z[i * n + i] = variance[i];
    }
}

/* D [n, d]: rows are the columns of the decoder. */
static void refit_get_decoder(const struct refit_side *s, size_t d, double *ret)
{
    for (size_t j = 0; j < s->n; j++)
        for (size_t i = 0; i < d; i++)
            ret[j * d + i] = s->dec[(j / 8 * d + i) * 8 + j % 8];
}

static void refit_set_decoder(struct refit_side *s, size_t d, const double *D)
{
    for (size_t j = 0; j < s->n; j++)
        for (size_t i = 0; i < d; i++)
            s->dec[(j / 8 * d + i) * 8 + j % 8] = D[j * d + i];
}

/* Of keys in two blocks: no code has a part in the decoder of the other block. @H [n, n], @X [n, d] */
static void refit_part_blocks(const struct refit *f, const struct refit_side *s, double *H, double *X)
{
    size_t n = s->n, d = f->g->d;

    for (size_t j = 0; s->fast_planes > 0 && j < n; j++) {
        bool fast = s->fast_halves >> j / 8 & 1;

        for (size_t i = 0; i < n; i++)
            if ((s->fast_halves >> i / 8 & 1) != fast)
                H[j * n + i] = 0;
        for (uint32_t i = 0; i < d; i++)
            if (geometry_in_planes(f->g, s->fast_planes, i) != fast)
                X[j * d + i] = 0;
    }
}

/* E|x - D c|^2 = tr S - 2 tr D'C + tr D'G D with C = Cov(c, x). */
static double refit_error_of(size_t n, size_t d, const double *S, const double *D, const double *C,
                             const double *GD)
{
    double error = linalg_trace(d, S);

    for (size_t i = 0; i < n * d; i++)
        error += D[i] * (GD[i] - 2 * C[i]);
    return error > 0 ? error : 0;
}

/*
 * Scales and decoder of a head-side for a covariance @S of what it encodes. Adds its signal and error to the
 * layer's.
 */
static int refit_side_fit(struct refit *f, uint32_t hs, const double *S)
{
    struct refit_side *s = &f->sides[hs];
    size_t d = f->g->d, n = s->n;
    /* E S, then C = Cov(c, x); G; D; G D, then the change of D; scratch of linalg_solve() */
    _cleanup_(freep) double *C = malloc((3 * n * d + 2 * n * n + 3 * n + 1) * sizeof(*C));
    uint32_t layer = hs / 2 / f->g->n_kv_heads;
    double *D, *GD, *G, *H, *mean;
    int r;

    if (!C)
        return -ENOMEM;
    if (n == 0)
        return 0;

    D = C + n * d;
    GD = D + n * d;
    G = GD + n * d;
    H = G + n * n;
    mean = H + n * n;
    refit_rescale(f, s, S);
    linalg_product(n, d, d, s->enc, S, C);
    cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int) n, (int) n, (int) d, 1.0, C, (int) d, s->enc,
                (int) d, 0.0, G, (int) n);
    refit_quantise(s, f->t->levels[hs % 2], G, n, mean, mean + n, mean + 2 * n);
    refit_apply_gains(n, mean + n, mean + 2 * n, G);
    for (size_t j = 0; j < n; j++)
        cblas_dscal((int) d, mean[n + j], C + j * d, 1);

    refit_get_decoder(s, d, D);
    linalg_product(n, d, n, G, D, GD);
    for (size_t i = 0; i < n * d; i++)
        GD[i] = C[i] - GD[i]; /* Cov(c, x - D c) */
    memcpy(H, G, n * n * sizeof(*H));
    for (size_t i = 0; i < n; i++)
        H[i * n + i] += DECODER_RIDGE * linalg_trace(n, G) / (double) n;
    refit_part_blocks(f, s, H, GD);
    r = linalg_solve(n, d, H, GD);
    if (r < 0)
        return r;

    cblas_daxpy((int) (n * d), 1.0, D, 1, GD, 1);
    for (size_t j = 0; j < n; j++)
        cblas_dscal(
            (int) d,
            solve_contrast(&f->t->levels[hs % 2][s->bits[j / 8]], s->bits[j / 8], f->contrast[hs % 2]),
            GD + j * d, 1);
    refit_move(f, n * d, GD, D);
    refit_set_decoder(s, d, D);
    linalg_product(n, d, n, G, D, GD);
    f->error[hs % 2][layer] += refit_error_of(n, d, S, D, C, GD);
    for (size_t i = 0; i < d; i++) /* what is decoded has no bias */
        s->mean[i] = s->enc_mean[i] - cblas_ddot((int) n, D + i, (int) d, mean, 1);
    return 0;
}

static int refit_key(struct refit *f, uint32_t layer, uint32_t head)
{
    uint32_t hs = head_side_index(f->g, layer, head, SIDE_K);
    size_t d = f->g->d;
    _cleanup_(freep) double *S = malloc(d * d * sizeof(*S));

    if (!S)
        return -ENOMEM;

    refit_covariance(f->m, layer, head, SIDE_K, SIDE_K, S);
    refit_move(f, d, moments_mean(f->m, layer, head), f->sides[hs].enc_mean);
    f->signal[SIDE_K][layer] += linalg_trace(d, S);
    if (f->sides[hs].n == 0) {
        f->error[SIDE_K][layer] += linalg_trace(d, S);
        memcpy(f->sides[hs].mean, f->sides[hs].enc_mean, d * sizeof(double));
    }

    return refit_side_fit(f, hs, S);
}

/* ---- prediction ---- */

/* G, means and gains of the K codes of a run of heads, whose encoders are fitted. */
static int refit_codes_init(struct refit_codes *c, const struct refit *f, uint32_t layer, struct head_run run)
{
    size_t d = f->g->d;
    _cleanup_(freep) double *variance = NULL, *S = malloc(2 * d * d * sizeof(*S));

    for (uint32_t h = 0; h < run.n; h++) {
        c->first[h] = c->n;
        c->n += f->sides[head_side_index(f->g, layer, run.first + h, SIDE_K)].n;
    }
    c->first[run.n] = c->n;
    c->G = malloc((c->n * c->n + 1) * sizeof(*c->G));
    c->mean = malloc((c->n + 1) * sizeof(*c->mean));
    c->gain = malloc((c->n + 1) * sizeof(*c->gain));
    variance = malloc((c->n + 1) * sizeof(*variance));
    if (!S || !variance || !c->G || !c->mean || !c->gain)
        return -ENOMEM;

    for (uint32_t a = 0; a < run.n; a++) {
        const struct refit_side *in_a = &f->sides[head_side_index(f->g, layer, run.first + a, SIDE_K)];

        for (uint32_t b = 0; b < run.n; b++) {
            const struct refit_side *in_b = &f->sides[head_side_index(f->g, layer, run.first + b, SIDE_K)];
            double *product = malloc((in_a->n * d + 1) * sizeof(*product));

            if (!product)
                return -ENOMEM;

            refit_covariance_of_keys(f->m, layer, run.first + a, run.first + b, S);
            linalg_product(in_a->n, d, d, in_a->enc, S, product);
            cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int) in_a->n, (int) in_b->n, (int) d, 1.0,
                        product, (int) d, in_b->enc, (int) d, 0.0, c->G + c->first[a] * c->n + c->first[b],
                        (int) c->n);
            free(product);
        }
        refit_quantise(in_a, f->t->levels[SIDE_K], c->G + c->first[a] * (c->n + 1), c->n,
                       c->mean + c->first[a], c->gain + c->first[a], variance + c->first[a]);
    }

    refit_apply_gains(c->n, c->gain, variance, c->G);
    return 0;
}

/* @ret [n, d]: Cov(c, v) of the values of @head. */
static int refit_codes_with_value(const struct refit_codes *c, const struct refit *f, uint32_t layer,
                                  uint32_t head, struct head_run run, double *ret)
{
    size_t d = f->g->d;
    _cleanup_(freep) double *S = malloc(d * d * sizeof(*S));

    if (!S)
        return -ENOMEM;

    for (uint32_t a = 0; a < run.n; a++) {
        const struct refit_side *k = &f->sides[head_side_index(f->g, layer, run.first + a, SIDE_K)];

        refit_covariance_of_value(f->m, layer, head, run.first + a, S);
        cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int) k->n, (int) d, (int) d, 1.0, k->enc,
                    (int) d, S, (int) d, 0.0, ret + c->first[a] * d, (int) d);
    }
    for (size_t j = 0; j < c->n; j++)
        cblas_dscal((int) d, c->gain[j], ret + j * d, 1);
    return 0;
}

/* S := S - P cov - cov' P' + P G P', with X = P' [n, d]. @GX: [n, d] scratch */
static void refit_residual(const struct refit_codes *c, size_t d, const double *X, const double *cov,
                           double *GX, double *S)
{
    linalg_product(c->n, d, c->n, c->G, X, GX);
    for (size_t i = 0; i < c->n * d; i++)
        GX[i] -= 2 * cov[i];
    /* X'(G X - 2 cov) is symmetric but for rounding and the order of cov */
    for (size_t i = 0; i < d; i++)
        for (size_t j = 0; j <= i; j++) {
            double x = cblas_ddot((int) c->n, X + i, (int) d, GX + j, (int) d),
                   y = cblas_ddot((int) c->n, X + j, (int) d, GX + i, (int) d);

            S[i * d + j] += 0.5 * (x + y);
            S[j * d + i] = S[i * d + j];
        }
}

static int refit_value(struct refit *f, const struct refit_codes *c, uint32_t layer, uint32_t head,
                       struct head_run run)
{
    uint32_t hs = head_side_index(f->g, layer, head, SIDE_V);
    struct refit_side *s = &f->sides[hs];
    size_t d = f->g->d, n = c->n;
    _cleanup_(freep) double *S = malloc((d * d + 3 * n * d + n * n) * sizeof(*S));
    double *cov, *X, *scratch, *H, mean[GEOMETRY_DIM_MAX];
    int r;

    if (!S)
        return -ENOMEM;

    cov = S + d * d;
    X = cov + n * d;
    scratch = X + n * d;
    H = scratch + n * d;
    refit_covariance(f->m, layer, head, SIDE_V, SIDE_V, S);
    f->signal[SIDE_V][layer] += linalg_trace(d, S);
    memcpy(mean, moments_mean(f->m, layer, head) + d, d * sizeof(*mean));
    if (n > 0) {
        r = refit_codes_with_value(c, f, layer, head, run, cov);
        if (r < 0)
            return r;

        memcpy(X, cov, n * d * sizeof(*X));
        memcpy(H, c->G, n * n * sizeof(*H));
        for (size_t i = 0; i < n; i++)
            H[i * n + i] += SOLVE_PREDICT_RIDGE * linalg_trace(n, c->G) / (double) n;
        r = linalg_solve(n, d, H, X);
        if (r < 0)
            return r;

        memcpy(scratch, X, n * d * sizeof(*X));
        refit_get_prediction(f, layer, head, run, X);
        refit_move(f, n * d, scratch, X);
        refit_residual(c, d, X, cov, scratch, S);
        s->predict = malloc(d * n * sizeof(*s->predict));
        if (!s->predict)
            return -ENOMEM;

        for (size_t i = 0; i < d; i++)
            for (size_t j = 0; j < n; j++) {
                s->predict[i * n + j] = X[j * d + i];
                mean[i] -= X[j * d + i] * c->mean[j];
            }
    }

    refit_move(f, d, mean, s->enc_mean);
    memcpy(s->mean, s->enc_mean, d * sizeof(double));
    if (s->n == 0)
        f->error[SIDE_V][layer] += linalg_trace(d, S);
    return refit_side_fit(f, hs, S);
}

/* The keys of a run of heads, and the values that they predict. */
static int refit_run(struct refit *f, uint32_t layer, struct head_run heads, struct errmsg *e)
{
    _cleanup_(refit_codes_deinit) struct refit_codes c = {0};
    struct head_run from = f->t->v_from == PREDICT_NONE ? (struct head_run){heads.first, 0} : heads;
    int r = 0;

    for (uint32_t h = heads.first; h < heads.first + heads.n && r == 0; h++)
        r = refit_key(f, layer, h);
    if (r == 0)
        r = refit_codes_init(&c, f, layer, from);
    for (uint32_t h = heads.first; h < heads.first + heads.n && r == 0; h++)
        r = refit_value(f, &c, layer, h, from);
    if (r == -EDOM)
        return fail(e, r, "layer %u: the covariance of live traffic has no solution", layer);
    return r < 0 ? fail(e, r, "out of memory for refitting a table") : 0;
}

/* ---- the whole table ---- */

static int refit_check(const struct table *t, const struct moments *m, struct errmsg *e)
{
    const struct moments_options *o = moments_get_options(m);
    const struct geometry *g = &t->geometry;
    uint64_t needed = 4 * (uint64_t) g->d * (t->v_from == PREDICT_LAYER ? g->n_kv_heads : 1);
    uint8_t digest[DIGEST_BYTES];

    geometry_digest(&o->geometry, digest);
    if (memcmp(o->model_digest, t->model_digest, DIGEST_BYTES) != 0 ||
        memcmp(digest, t->geometry_digest, DIGEST_BYTES) != 0 || o->n_sink != t->n_sink)
        return fail(e, -EINVAL,
                    "the moments are of another model, geometry or number of sinks than the table");
    if (t->v_from == PREDICT_LAYER && g->n_kv_heads > 1 && !o->joint)
        return fail(
            e, -EOPNOTSUPP,
            "the table predicts values from the keys of all heads of a layer, and no client reported "
            "moments with the covariance between heads: they take %zu MiB, within half of arena-bytes "
            "and moments-bytes of kvcobrad",
            (moments_bytes(g, true) >> 20) + 1);

    for (uint32_t layer = 0; layer < g->n_layers; layer++)
        for (uint32_t head = 0; head < g->n_kv_heads; head++)
            if (moments_count(m, layer, head) < needed)
                return fail(e, -EINVAL,
                            "layer %u, head %u: moments of %llu tokens; refitting this table needs %llu",
                            layer, head, (unsigned long long) moments_count(m, layer, head),
                            (unsigned long long) needed);
    return 0;
}

static void refit_mean_errors(const struct refit *f, struct refit_report *ret)
{
    for (unsigned side = 0; side < 2; side++) {
        ret->error[side] = 0;
        for (uint32_t layer = 0; layer < f->g->n_layers; layer++)
            if (f->signal[side][layer] > 0)
                ret->error[side] += f->error[side][layer] / f->signal[side][layer] / f->g->n_layers;
    }
}

int refit_table(const struct table *t, const struct moments *m, double share, void **ret_bytes,
                size_t *ret_n_bytes, struct refit_report *ret_report, struct errmsg *e)
{
    _cleanup_(refit_deinit) struct refit f = {0};
    struct refit_report report;
    int r = refit_check(t, m, e);

    if (r < 0)
        return r;

    r = refit_init(&f, t, m, share);
    if (r < 0)
        return fail(e, r, "out of memory for refitting a table");

    for (uint32_t layer = 0; layer < f.g->n_layers; layer++) {
        uint32_t step = t->v_from == PREDICT_LAYER ? f.g->n_kv_heads : 1;

        for (uint32_t head = 0; head < f.g->n_kv_heads; head += step) {
            r = refit_run(&f, layer, (struct head_run){head, step}, e);
            if (r < 0)
                return r;
        }
    }

    refit_mean_errors(&f, &report);
    r = refit_build(&f, &report, ret_bytes, ret_n_bytes, e);
    if (r == 0)
        *ret_report = report;
    return r;
}
