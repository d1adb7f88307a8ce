/*
 * Measures a finished table on the samples it was solved from: bits, and distortion e'Me (squared error in
 * the metric). Encodes and decodes with the table's own matrices and levels instead of the solver's, so that
 * an error in building the table shows in the report.
 */
#include <cblas.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/solve/curve.h"
#include "alloc/solve/solve_internal.h"
#include "alloc/stats/stats_internal.h"
#include "alloc/table/levels.h"
#include "base/cleanup.h"
#include "base/errmsg.h"

/* A table that is measured, and what it costs by head-side: [n_heads] sums over samples. */
struct solve_report_measured {
    const struct table *table;
    uint32_t n_heads;
    uint8_t **codes;    /* [n_heads] of K, if V is predicted from it: [n, r] of all rows */
    double *distortion; /* mean e'Me, times the head's weight */
    double *error2;     /* squares of x - x^ */
    double *signal2;    /* squares of x - mean */
    double *saturated;  /* coordinates beyond levels_saturation_limits() */
};

static void solve_report_measured_deinit(struct solve_report_measured *m)
{
    for (uint32_t hs = 0; hs < m->n_heads; hs++)
        free(m->codes[hs]);
    free(m->codes);
    free(m->distortion);
}

static int solve_report_measured_init(struct solve_report_measured *m, const struct table *t,
                                      uint32_t n_heads)
{
    *m = (struct solve_report_measured){.table = t};
    m->codes = calloc((size_t) n_heads + 1, sizeof(*m->codes));
    m->distortion = calloc(4 * (size_t) n_heads + 1, sizeof(*m->distortion));
    if (!m->distortion || !m->codes)
        return -ENOMEM;

    m->n_heads = n_heads;
    m->error2 = m->distortion + n_heads;
    m->signal2 = m->error2 + n_heads;
    m->saturated = m->signal2 + n_heads;
    return 0;
}

/* Scratch memory of a head-side for blocks of rows. */
struct solve_report_scratch {
    size_t d, stride;
    float *keys;     /* [SOLVE_BLOCK, stride] decoded levels that the side is predicted from */
    float *codes;    /* [SOLVE_BLOCK, r] of the side */
    float *x;        /* [SOLVE_BLOCK, d] */
    float *error;    /* [SOLVE_BLOCK, d] */
    float *weighted; /* [SOLVE_BLOCK, d] */
    float *M;        /* [d, d] */
};

static void solve_report_scratch_deinit(struct solve_report_scratch *t)
{
    free(t->keys);
}

static int solve_report_scratch_init(struct solve_report_scratch *t, size_t stride, size_t d)
{
    *t = (struct solve_report_scratch){.d = d, .stride = stride};
    t->keys = malloc((SOLVE_BLOCK * (stride + TABLE_RANK_MAX + 3 * d) + d * d) * sizeof(float));
    if (!t->keys)
        return -ENOMEM;

    t->codes = t->keys + SOLVE_BLOCK * stride;
    t->x = t->codes + SOLVE_BLOCK * TABLE_RANK_MAX;
    t->error = t->x + SOLVE_BLOCK * d;
    t->weighted = t->error + SOLVE_BLOCK * d;
    t->M = t->weighted + SOLVE_BLOCK * d;
    return 0;
}

/* z [n, r], row stride @stride, := levels of @codes [n, r]. */
static void solve_report_look_up(const struct table *table, const struct codec *c, enum side side,
                                 const uint8_t *codes, size_t n, float *z, size_t stride)
{
    for (size_t t = 0; t < n; t++)
        for (uint32_t i = 0; i < c->r; i++) {
            unsigned b = c->bits[i / 8];

            z[t * stride + i] = b > 0 ? table->levels[side][b].value[codes[t * c->r + i]] : 0;
        }
}

/* z [n, r] := levels of their codes, which are kept in @ret_codes [n, r] if that is not NULL. Adds the
 * saturated coordinates to *@saturated. */
static void solve_report_quantise_rows(const struct table *table, const struct codec *c, enum side side,
                                       float *z, size_t n, uint8_t *ret_codes, double *saturated)
{
    for (uint32_t half = 0; half < c->r / 8u; half++) {
        unsigned b = c->bits[half];
        const struct levels *l = &table->levels[side][b];

        if (b > 0)
            *saturated += (double) levels_count_saturated(l, b, z + half * 8, n, 8, c->r);
        if (b > 0 && ret_codes)
            curve_quantise_codes(l, b, z + half * 8, n, 8, c->r, ret_codes + half * 8, c->r);
        else if (b > 0)
            curve_quantise_values(l, b, z + half * 8, n, 8, c->r);
        else
            for (size_t i = 0; i < n; i++)
                memset(z + i * c->r + half * 8, 0, 8 * sizeof(*z));
    }
    if (ret_codes)
        solve_report_look_up(table, c, side, ret_codes, n, z, c->r);
}

/* t->codes [n, r] := levels of one side's codes of t->x, predicted from t->keys. @ret_codes, @saturated: as
 * above. */
static void solve_report_encode_rows(struct solve_report_scratch *t, const struct table *table,
                                     const struct codec *c, enum side side, size_t n, uint8_t *ret_codes,
                                     double *saturated)
{
    size_t d = t->d;

    if (c->r == 0)
        return;

    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < d; j++)
            t->error[i * d + j] = t->x[i * d + j] - c->enc_mean[j];
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int) n, c->r, (int) d, 1.0f, t->error, (int) d,
                c->enc, (int) d, 0.0f, t->codes, c->r);
    if (c->n_pred > 0)
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int) n, c->r, (int) c->n_pred, -1.0f, t->keys,
                    (int) t->stride, c->enc_k, (int) c->n_pred, 1.0f, t->codes, c->r);
    solve_report_quantise_rows(table, c, side, t->codes, n, ret_codes, saturated);
}

/* t->error := x - x^, from the codes in t->codes. */
static void solve_report_decode_rows(struct solve_report_scratch *t, const struct codec *c, size_t n)
{
    size_t d = t->d;

    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < d; j++)
            t->error[i * d + j] = t->x[i * d + j] - c->mean[j];
    if (c->n_pred > 0)
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int) n, (int) d, (int) c->n_pred, -1.0f,
                    t->keys, (int) t->stride, c->dec, (int) c->r_in, 1.0f, t->error, (int) d);
    if (c->r > 0)
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int) n, (int) d, c->r, -1.0f, t->codes, c->r,
                    c->dec + c->n_pred, (int) c->r_in, 1.0f, t->error, (int) d);
}

/* a'b in partial sums, which become vectors. */
static double solve_report_dot(const float *a, const float *b, size_t n)
{
    double sum[8] = {0};
    size_t i = 0;

    for (; i + 8 <= n; i += 8)
        for (size_t k = 0; k < 8; k++)
            sum[k] += (double) a[i + k] * (double) b[i + k];
    for (; i < n; i++)
        sum[0] += (double) a[i] * (double) b[i];
    return sum[0] + sum[1] + sum[2] + sum[3] + sum[4] + sum[5] + sum[6] + sum[7];
}

/* Adds e'Me over the rows e of t->error, and plain squares, which clients can also compute from live
 * vectors. */
static void solve_report_add_rows(struct solve_report_scratch *t, const struct codec *c, size_t n,
                                  double *distortion, double *error2, double *signal2)
{
    size_t d = t->d;

    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int) n, (int) d, (int) d, 1.0f, t->error, (int) d,
                t->M, (int) d, 0.0f, t->weighted, (int) d);
    *distortion += solve_report_dot(t->error, t->weighted, n * d);
    *error2 += solve_report_dot(t->error, t->error, n * d);
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < d; j++)
            t->x[i * d + j] -= c->mean[j];
    *signal2 += solve_report_dot(t->x, t->x, n * d);
}

/* t->keys of a block: levels of the K codes of @run, which were kept. */
static void solve_report_read_keys(struct solve_report_scratch *t, const struct solver *v,
                                   const struct solve_report_measured *m, uint32_t layer, struct head_run run,
                                   const struct solve_rows *rows)
{
    size_t at = 0;

    for (uint32_t head = run.first; head < run.first + run.n; head++) {
        const struct codec *c = table_codec(m->table, layer, head, SIDE_K);
        const uint8_t *codes = m->codes[head_side_index(v->g, layer, head, SIDE_K)];

        solve_report_look_up(m->table, c, SIDE_K, codes + rows->first * c->r, rows->n, t->keys + at,
                             t->stride);
        at += c->r;
    }
}

/* One head-side; @ctx: the struct solve_report_measured. */
static int solve_report_measure_head(struct solver *v, uint32_t hs, void *ctx)
{
    struct solve_report_measured *m = ctx;
    uint32_t layer = hs / 2 / v->g->n_kv_heads, head = hs / 2 % v->g->n_kv_heads;
    enum side side = (enum side)(hs % 2);
    const struct codec *c = table_codec(m->table, layer, head, side);
    struct head_run run = side == SIDE_V ? table_predictors(m->table, head) : (struct head_run){0, 0};
    _cleanup_(solve_report_scratch_deinit) struct solve_report_scratch t = {0};
    const double zero[GEOMETRY_DIM_MAX] = {0};
    const struct head_metric *metric = NULL;
    struct solve_rows rows = {.n = 0};
    double distortion = 0;
    size_t d = v->g->d;
    uint8_t *kept = NULL;
    int r = solver_head_metric(v, hs, &metric);

    if (r == 0)
        r = solve_report_scratch_init(&t, c->n_pred, d);
    if (r != 0)
        return r;

    if (side == SIDE_K && table_predictors(m->table, head).n > 0) {
        kept = m->codes[hs] = malloc(v->n * c->r + 1);
        if (!kept)
            return -ENOMEM;
    }

    for (size_t i = 0; i < d * d; i++)
        t.M[i] = (float) metric->M[i];
    while (solve_rows_next(v, 1, &rows)) {
        solve_report_read_keys(&t, v, m, layer, run, &rows);
        solve_rows_read(v, hs, &rows, zero, t.x);
        solve_report_encode_rows(&t, m->table, c, side, rows.n, kept ? kept + rows.first * c->r : NULL,
                                 &m->saturated[hs]);
        solve_report_decode_rows(&t, c, rows.n);
        solve_report_add_rows(&t, c, rows.n, &distortion, &m->error2[hs], &m->signal2[hs]);
    }

    m->distortion[hs] = v->heads[hs].weight * distortion / (double) v->n;
    return 0;
}

/* All head-sides, coded or not: K before V, which reads its codes. */
static int solve_report_measure(struct solver *v, struct solve_report_measured *m, struct errmsg *e)
{
    _cleanup_(freep) uint32_t *items = calloc((size_t) v->n_heads + 1, sizeof(*items));
    int r = 0;

    if (!items)
        return fail(e, -ENOMEM, "out of memory for measuring the table");

    for (unsigned side = SIDE_K; r == 0 && side <= SIDE_V; side++) {
        size_t n = 0;

        for (uint32_t hs = side; hs < v->n_heads; hs += 2)
            items[n++] = hs;
        r = solver_each(v, "measuring the table", solve_report_measure_head, m, items, n, e);
    }
    return r;
}

int solve_distortion_heads(const struct stats *s, const struct table *table, const struct solve_options *o,
                           double *ret_distortion, struct errmsg *e)
{
    const struct geometry *g = &s->o.geometry;
    _cleanup_(solver_deinit) struct solver v = {0};
    _cleanup_(solve_report_measured_deinit) struct solve_report_measured m = {.table = NULL};
    int r;

    if (table->geometry.n_layers != g->n_layers || table->geometry.n_kv_heads != g->n_kv_heads ||
        table->geometry.d != g->d)
        return fail(e, -EINVAL, "the table is for another geometry than the statistics");

    r = solver_init(&v, s, o, e);
    if (r < 0)
        return r;
    if (v.n == 0)
        return fail(e, -EINVAL, "the statistics hold no sampled tokens, which measuring a table needs");
    if (solve_report_measured_init(&m, table, v.n_heads) < 0)
        return fail(e, -ENOMEM, "out of memory for measuring the table");

    r = solve_report_measure(&v, &m, e);
    if (r == 0)
        memcpy(ret_distortion, m.distortion, v.n_heads * sizeof(*ret_distortion));
    return r;
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

/* @saturated: by head-side. */
static double solve_report_share(const struct solver *v, const struct table *table, enum side side,
                                 const double *saturated)
{
    double sum = 0, coded = 0;

    for (uint32_t hs = (uint32_t) side; hs < v->n_heads; hs += 2) {
        sum += saturated[hs];
        coded += (double) v->n * codec_coded(&table->codecs[hs]);
    }
    return coded > 0 ? sum / coded : 0;
}

/* The sums over head-sides, and the mean of relative errors over layers. */
static void solve_report_add(const struct solver *v, const struct solve_report_measured *m,
                             struct solve_report *ret)
{
    uint32_t n_layers = v->g->n_layers, n_hs = 2 * v->g->n_kv_heads;

    for (uint32_t side = SIDE_K; side <= SIDE_V; side++)
        ret->saturated[side] = solve_report_share(v, m->table, (enum side) side, m->saturated);
    for (uint32_t layer = 0; layer < n_layers; layer++)
        for (uint32_t side = SIDE_K; side <= SIDE_V; side++) {
            double error2 = 0, signal2 = 0, distortion = 0;

            for (uint32_t hs = layer * n_hs + side; hs < (layer + 1) * n_hs; hs += 2) {
                error2 += m->error2[hs];
                signal2 += m->signal2[hs];
                distortion += m->distortion[hs];
            }
            *(side == SIDE_K ? &ret->distortion_k : &ret->distortion_v) += distortion;
            if (signal2 > 0)
                *(side == SIDE_K ? &ret->error_k : &ret->error_v) += error2 / signal2 / n_layers;
        }

    ret->distortion = ret->distortion_k + ret->distortion_v;
}

int solve_measure(struct solver *v, const void *bytes, size_t n_bytes, struct solve_report *ret,
                  struct errmsg *e)
{
    _cleanup_(table_unrefp) struct table *table = NULL;
    _cleanup_(solve_report_measured_deinit) struct solve_report_measured m = {.table = NULL};
    int r = table_parse(bytes, n_bytes, &table, e);

    if (r < 0)
        return r;

    solve_report_count_bits(v, table, ret);
    ret->distortion_estimated = v->estimated;
    if (v->n == 0) /* no vectors to encode: the report has the estimate only */
        return 0;
    if (solve_report_measured_init(&m, table, v->n_heads) < 0)
        return fail(e, -ENOMEM, "out of memory for measuring the table");

    r = solve_report_measure(v, &m, e);
    if (r < 0)
        return r;

    solve_report_add(v, &m, ret);
    ret->measured = true;
    return 0;
}
