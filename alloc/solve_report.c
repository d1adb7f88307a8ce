/*
 * Measures a finished table on the samples it was solved from: bits, and distortion e'Me (squared error in
 * the metric). Encodes and decodes with the table's own matrices and levels instead of the solver's, so that
 * an error in building the table shows in the report.
 */
#include <cblas.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/metric.h"
#include "alloc/solve_internal.h"
#include "alloc/stats_internal.h"
#include "base/cleanup.h"
#include "base/errmsg.h"

/* Scratch memory of one (layer, head); [n, ...] arrays have a row per sample. */
struct solve_report_scratch {
    size_t n, d;
    float *keys;                  /* [n, sum of r_K] decoded levels of all heads of the layer */
    float *codes;                 /* [n, r] of the current side */
    float *error;                 /* [n, d] */
    float *weighted;              /* [n, d] */
    float *M32;                   /* [d, d] */
    double *S, *M;                /* [d, d] */
    double error2[2], signal2[2]; /* sums of squares by side, over samples and the heads of a layer */
};

static void solve_report_scratch_deinit(struct solve_report_scratch *t)
{
    free(t->keys);
    free(t->codes);
    free(t->S);
}

static int solve_report_scratch_init(struct solve_report_scratch *t, size_t n, const struct geometry *g)
{
    size_t d = g->d;

    *t = (struct solve_report_scratch){.n = n, .d = d};
    t->keys = malloc(n * g->n_kv_heads * TABLE_RANK_MAX * sizeof(float));
    t->codes = malloc((n * (TABLE_RANK_MAX + 2 * d) + d * d) * sizeof(float));
    t->S = malloc(2 * d * d * sizeof(double));
    if (!t->keys || !t->codes || !t->S)
        return -ENOMEM;

    t->error = t->codes + n * TABLE_RANK_MAX;
    t->weighted = t->error + n * d;
    t->M32 = t->weighted + n * d;
    t->M = t->S + d * d;
    return 0;
}

/* z [n, r] := levels of their codes. */
static void solve_report_quantise_rows(const struct table *table, const struct codec *c, enum side side,
                                       float *z, size_t n)
{
    for (size_t i = 0; i < n * c->r; i++) {
        unsigned b = c->bits[i % c->r / 8];

        z[i] = b > 0 ? table->levels[side][b].value[quantise_fast(&table->levels[side][b], b, z[i])] : 0;
    }
}

/* t->codes := levels of one side's codes. @pred [n, n_pred]: levels that V
 * is predicted from, rows of @stride. */
static void solve_report_encode_rows(struct solve_report_scratch *t, const struct table *table,
                                     const struct codec *c, enum side side, const float *x, const float *pred,
                                     size_t stride)
{
    size_t n = t->n, d = t->d;

    if (c->r == 0)
        return;

    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < d; j++)
            t->error[i * d + j] = x[i * d + j] - c->enc_mean[j];
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int) n, c->r, (int) d, 1.0f, t->error, (int) d,
                c->enc, (int) d, 0.0f, t->codes, c->r);
    if (c->n_pred > 0)
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int) n, c->r, (int) c->n_pred, -1.0f, pred,
                    (int) stride, c->enc_k, (int) c->n_pred, 1.0f, t->codes, c->r);
    solve_report_quantise_rows(table, c, side, t->codes, n);
}

/* t->error := x - x^, from the codes in t->codes. */
static void solve_report_decode_rows(struct solve_report_scratch *t, const struct codec *c, const float *x,
                                     const float *pred, size_t stride)
{
    size_t n = t->n, d = t->d;

    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < d; j++)
            t->error[i * d + j] = x[i * d + j] - c->mean[j];
    if (c->n_pred > 0)
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int) n, (int) d, (int) c->n_pred, -1.0f, pred,
                    (int) stride, c->dec, (int) c->r_in, 1.0f, t->error, (int) d);
    if (c->r > 0)
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int) n, (int) d, c->r, -1.0f, t->codes, c->r,
                    c->dec + c->n_pred, (int) c->r_in, 1.0f, t->error, (int) d);
}

/* Mean of e'Me over the rows e of t->error. */
static double solve_report_mean_distortion(struct solve_report_scratch *t)
{
    double sum = 0;

    for (size_t i = 0; i < t->d * t->d; i++)
        t->M32[i] = (float) t->M[i];
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int) t->n, (int) t->d, (int) t->d, 1.0f, t->error,
                (int) t->d, t->M32, (int) t->d, 0.0f, t->weighted, (int) t->d);
    for (size_t i = 0; i < t->n * t->d; i++)
        sum += (double) t->error[i] * (double) t->weighted[i];
    return sum / (double) t->n;
}

/* Sums of plain squares, which clients can also compute from live vectors. */
static void solve_report_add_squares(struct solve_report_scratch *t, const struct codec *c, enum side side,
                                     const float *x)
{
    for (size_t i = 0; i < t->n; i++)
        for (size_t j = 0; j < t->d; j++) {
            double away = (double) x[i * t->d + j] - (double) c->mean[j], e = (double) t->error[i * t->d + j];

            t->signal2[side] += away * away;
            t->error2[side] += e * e;
        }
}

/* Distortion of t->error under the metric of one head-side. */
static int solve_report_measure(const struct solver *v, struct solve_report_scratch *t, uint32_t layer,
                                uint32_t head, enum side side, double *ret_distortion, struct errmsg *e)
{
    uint32_t hs = head_side_index(v->g, layer, head, side);
    int r;

    solver_covariance(v, hs, t->S);
    r = solver_metric(v, hs, t->S, t->M);
    if (r < 0)
        return solver_fail(layer, head, side, r, e);

    *ret_distortion = v->heads[hs].weight * solve_report_mean_distortion(t);
    return 0;
}

/* Keys of all heads first, since values may be predicted from their codes; then values.
 * @ret_distortion: [n_kv_heads, 2] */
static int solve_report_measure_layer(const struct solver *v, const struct table *table,
                                      struct solve_report_scratch *t, uint32_t layer, double *ret_distortion,
                                      struct errmsg *e)
{
    size_t first[GEOMETRY_HEADS_MAX], stride = 0;
    uint32_t n_heads = v->g->n_kv_heads;

    for (uint32_t head = 0; head < n_heads; head++) {
        first[head] = stride;
        stride += table_codec(table, layer, head, SIDE_K)->r;
    }

    for (uint32_t i = 0; i < 2 * n_heads; i++) {
        uint32_t head = i < n_heads ? i : i - n_heads;
        enum side side = i < n_heads ? SIDE_K : SIDE_V;
        const struct codec *c = table_codec(table, layer, head, side);
        _cleanup_(freep) float *x = solver_samples(v, head_side_index(v->g, layer, head, side));
        struct head_run run = table_predictors(table, head);
        const float *pred = side == SIDE_V && run.n > 0 ? t->keys + first[run.first] : NULL;
        int r;

        if (!x)
            return solver_fail(layer, head, side, -ENOMEM, e);

        solve_report_encode_rows(t, table, c, side, x, pred, stride);
        for (size_t row = 0; side == SIDE_K && row < t->n; row++)
            memcpy(t->keys + row * stride + first[head], t->codes + row * c->r, c->r * sizeof(float));
        solve_report_decode_rows(t, c, x, pred, stride);
        solve_report_add_squares(t, c, side, x);
        r = solve_report_measure(v, t, layer, head, side, &ret_distortion[2 * head + side], e);
        if (r < 0)
            return r;
    }

    return 0;
}

int solve_distortion_heads(const struct stats *s, const struct table *table, const struct solve_options *o,
                           double *ret_distortion, struct errmsg *e)
{
    const struct geometry *g = &s->o.geometry;
    _cleanup_(solver_deinit) struct solver v = {0};
    _cleanup_(solve_report_scratch_deinit) struct solve_report_scratch t = {0};
    int r;

    if (table->geometry.n_layers != g->n_layers || table->geometry.n_kv_heads != g->n_kv_heads ||
        table->geometry.d != g->d)
        return fail(e, -EINVAL, "the table is for another geometry than the statistics");

    r = solver_init(&v, s, o, e);
    if (r < 0)
        return r;
    if (v.n == 0)
        return fail(e, -EINVAL, "the statistics hold no sampled tokens, which measuring a table needs");
    if (solve_report_scratch_init(&t, v.n, g) < 0)
        return fail(e, -ENOMEM, "out of memory for measuring the table");

    for (uint32_t layer = 0; layer < g->n_layers; layer++) {
        r = solve_report_measure_layer(&v, table, &t, layer,
                                       ret_distortion + head_side_index(g, layer, 0, SIDE_K), e);
        if (r < 0)
            return r;
    }

    return 0;
}

int solve_distortion(const struct stats *s, const struct table *table, const struct solve_options *o,
                     double *ret_distortion, struct errmsg *e)
{
    const struct geometry *g = &s->o.geometry;
    _cleanup_(freep) double *heads = calloc(head_side_count(g), sizeof(*heads));
    int r;

    if (!heads)
        return fail(e, -ENOMEM, "out of memory for measuring the table");

    r = solve_distortion_heads(s, table, o, heads, e);
    if (r < 0)
        return r;

    memset(ret_distortion, 0, (size_t) g->n_layers * 2 * sizeof(*ret_distortion));
    for (uint32_t hs = 0; hs < head_side_count(g); hs++)
        ret_distortion[hs / 2 / g->n_kv_heads * 2 + hs % 2] += heads[hs];
    return 0;
}

static void solve_report_count_bits(const struct solver *v, const struct table *table,
                                    struct solve_report *ret)
{
    double numbers = (double) (v->n_heads / 2) * v->g->d, stored[2] = {0}, nominal = 0;

    for (uint32_t hs = 0; hs < v->n_heads; hs++) {
        const struct head *h = &v->heads[hs];

        stored[hs % 2] += table->codecs[hs].code_bits;
        for (uint32_t b = 0; b < h->t.n_bands; b++)
            nominal += (double) h->bits[b] * band_coords(&h->t, b);
    }

    ret->bpd_code = table->bpd_code;
    ret->bpd_nominal = nominal / (2 * numbers);
    ret->k_bpd = stored[SIDE_K] / numbers;
    ret->v_bpd = stored[SIDE_V] / numbers;
}

/* Adds one layer to the means. */
static void solve_report_add_errors(struct solve_report_scratch *t, uint32_t n_layers,
                                    struct solve_report *ret)
{
    if (t->signal2[SIDE_K] > 0)
        ret->error_k += t->error2[SIDE_K] / t->signal2[SIDE_K] / n_layers;
    if (t->signal2[SIDE_V] > 0)
        ret->error_v += t->error2[SIDE_V] / t->signal2[SIDE_V] / n_layers;
    memset(t->error2, 0, sizeof(t->error2));
    memset(t->signal2, 0, sizeof(t->signal2));
}

int solve_measure(const struct solver *v, const void *bytes, size_t n_bytes, struct solve_report *ret,
                  struct errmsg *e)
{
    _cleanup_(table_unrefp) struct table *table = NULL;
    _cleanup_(solve_report_scratch_deinit) struct solve_report_scratch t = {0};
    double distortion[2 * GEOMETRY_HEADS_MAX] = {0};
    int r = table_parse(bytes, n_bytes, &table, e);

    if (r < 0)
        return r;

    solve_report_count_bits(v, table, ret);
    ret->distortion_estimated = v->estimated;
    if (v->n == 0) /* no vectors to encode: the report has the estimate only */
        return 0;
    if (solve_report_scratch_init(&t, v->n, v->g) < 0)
        return fail(e, -ENOMEM, "out of memory for measuring the table");

    for (uint32_t layer = 0; layer < v->g->n_layers; layer++) {
        solver_progress(v, "measuring the table", (double) layer / v->g->n_layers);
        r = solve_report_measure_layer(v, table, &t, layer, distortion, e);
        if (r < 0)
            return r;

        solve_report_add_errors(&t, v->g->n_layers, ret);
        for (uint32_t head = 0; head < v->g->n_kv_heads; head++) {
            ret->distortion_k += distortion[2 * head + SIDE_K];
            ret->distortion_v += distortion[2 * head + SIDE_V];
        }
    }

    ret->distortion = ret->distortion_k + ret->distortion_v;
    ret->measured = true;
    return 0;
}
