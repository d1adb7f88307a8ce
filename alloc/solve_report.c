/*
 * What a finished table does to the samples it was made from: bits, and distortion by encoding and decoding with the
 * table's own matrices and levels, not with the solver's. A mistake between the two shows here.
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

/* One (layer, head) being judged; [n, ...] arrays of the samples. */
struct trial {
    size_t n, d;
    float *codes;    /* [n, r_K + r_V] decoded levels: K's, then V's beside them */
    float *error;    /* [n, d] */
    float *weighted; /* [n, d] */
    float *M32;      /* [d, d] */
    double *S, *M;   /* [d, d] */
};

static void trial_deinit(struct trial *t)
{
    free(t->codes);
    free(t->S);
}

static int trial_init(struct trial *t, size_t n, size_t d)
{
    *t = (struct trial) { .n = n, .d = d };
    t->codes = malloc((n * (2 * TABLE_RANK_MAX + 2 * d) + d * d) * sizeof(float));
    t->S = malloc(2 * d * d * sizeof(double));
    if (!t->codes || !t->S)
        return -ENOMEM;
    t->error = t->codes + n * 2 * TABLE_RANK_MAX;
    t->weighted = t->error + n * d;
    t->M32 = t->weighted + n * d;
    t->M = t->S + d * d;
    return 0;
}

/* z [n, r] with a row stride := levels of their codes. */
static void quantise_rows(const struct table *table, const struct codec *c, enum side side, float *z, size_t n,
                          size_t stride)
{
    for (size_t t = 0; t < n; t++)
        for (unsigned i = 0; i < c->r; i++) {
            unsigned b = c->bits[i / 8];
            float *x = z + t * stride + i;

            *x = b > 0 ? table->levels[side][b].value[quantise_fast(&table->levels[side][b], b, *x)] : 0;
        }
}

/*
 * error := x - x^ of one side. Codes of this side go to columns [first, first + r) of t->codes (row stride @stride);
 * with prediction, columns [0, first) hold K's.
 */
static void code_side(struct trial *t, const struct table *table, const struct codec *c, enum side side,
                      const float *x, size_t first, size_t stride)
{
    size_t n = t->n, d = t->d, used = c->r_in - (size_t) c->r; /* columns of K's codes in dec */
    float *codes = t->codes + first;

    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < d; j++)
            t->error[i * d + j] = x[i * d + j] - c->mean[j];
    if (used > 0) /* subtract P c */
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int) n, (int) d, (int) used, -1.0f, t->codes,
                    (int) stride, c->dec, c->r_in, 1.0f, t->error, (int) d);
    if (c->r == 0)
        return;
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int) n, c->r, (int) d, 1.0f, t->error, (int) d, c->enc,
                (int) d, 0.0f, codes, (int) stride);
    quantise_rows(table, c, side, codes, n, stride);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int) n, (int) d, c->r, -1.0f, codes, (int) stride,
                c->dec + used, c->r_in, 1.0f, t->error, (int) d);
}

/* Mean of e'Me over the rows of t->error. */
static double mean_harm(struct trial *t)
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

static int judge_head(const struct solver *v, const struct table *table, struct trial *t, uint32_t layer,
                      uint32_t head, double ret_harm[2], struct errmsg *e)
{
    const struct codec *codecs[2] = { table_codec(table, layer, head, SIDE_K),
                                      table_codec(table, layer, head, SIDE_V) };
    size_t r_k = codecs[SIDE_K]->r, stride = r_k + codecs[SIDE_V]->r;

    for (int side = SIDE_K; side <= SIDE_V; side++) {
        uint32_t hs = head_side_index(v->g, layer, head, (enum side) side);
        int r;

        solver_covariance(v, hs, t->S);
        r = metric_matrix(v->s, v->o.metric, v->o.temper, layer, head, (enum side) side, t->S, t->M);
        if (r < 0)
            return solver_fail(layer, head, (enum side) side, r, e);
        code_side(t, table, codecs[side], (enum side) side, stats_sample_rows(v->s, hs), side == SIDE_K ? 0 : r_k,
                  stride > 0 ? stride : 1);
        ret_harm[side] += v->heads[hs].weight * mean_harm(t);
    }
    return 0;
}

int solve_harm_heads(const struct stats *s, const struct table *table, const struct solve_options *o,
                     double *ret_harm, struct errmsg *e)
{
    const struct geometry *g = &s->o.geometry;
    _cleanup_(solver_deinit) struct solver v = { 0 };
    _cleanup_(trial_deinit) struct trial t = { 0 };
    int r;

    if (table->geometry.n_layers != g->n_layers || table->geometry.n_kv_heads != g->n_kv_heads ||
        table->geometry.d != g->d)
        return fail(e, -EINVAL, "the table is for another geometry than the statistics");
    r = solver_init(&v, s, o, e);
    if (r < 0)
        return r;
    if (s->n_held == 0)
        return fail(e, -EINVAL, "the statistics hold no sampled tokens to judge the table by");
    if (trial_init(&t, s->n_held, g->d) < 0)
        return fail(e, -ENOMEM, "out of memory for judging the table");
    for (uint32_t layer = 0; r == 0 && layer < g->n_layers; layer++)
        for (uint32_t head = 0; r == 0 && head < g->n_kv_heads; head++) {
            double harm[2] = { 0 };

            r = judge_head(&v, table, &t, layer, head, harm, e);
            for (int side = SIDE_K; r == 0 && side <= SIDE_V; side++)
                ret_harm[head_side_index(g, layer, head, (enum side) side)] = harm[side];
        }
    return r;
}

int solve_harm(const struct stats *s, const struct table *table, const struct solve_options *o, double *ret_harm,
               struct errmsg *e)
{
    const struct geometry *g = &s->o.geometry;
    _cleanup_(freep) double *heads = calloc(head_side_count(g), sizeof(*heads));
    int r = heads ? solve_harm_heads(s, table, o, heads, e) : fail(e, -ENOMEM, "out of memory for judging the table");

    if (r < 0)
        return r;
    memset(ret_harm, 0, (size_t) g->n_layers * 2 * sizeof(*ret_harm));
    for (uint32_t hs = 0; hs < head_side_count(g); hs++)
        ret_harm[hs / 2 / g->n_kv_heads * 2 + hs % 2] += heads[hs];
    return 0;
}

static void count_bits(const struct solver *v, const struct table *table, struct solve_report *ret)
{
    double numbers = (double) (v->n_heads / 2) * v->g->d, stored[2] = { 0 }, nominal = 0;

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

int solve_measure(const struct solver *v, const void *bytes, size_t n_bytes, struct solve_report *ret,
                  struct errmsg *e)
{
    _cleanup_(table_unrefp) struct table *table = NULL;
    _cleanup_(trial_deinit) struct trial t = { 0 };
    double harm[2] = { 0 };
    int r = table_parse(bytes, n_bytes, &table, e);

    if (r < 0)
        return r;
    count_bits(v, table, ret);
    ret->distortion_estimated = v->estimated;
    if (v->s->n_held == 0) /* nothing to encode: the estimate is all there is */
        return 0;
    if (trial_init(&t, v->s->n_held, v->g->d) < 0)
        return fail(e, -ENOMEM, "out of memory for judging the table");
    for (uint32_t layer = 0; layer < v->g->n_layers; layer++) {
        solver_progress(v, "judging the table", (double) layer / v->g->n_layers);
        for (uint32_t head = 0; head < v->g->n_kv_heads; head++) {
            r = judge_head(v, table, &t, layer, head, harm, e);
            if (r < 0)
                return r;
        }
    }
    ret->distortion_k = harm[SIDE_K];
    ret->distortion_v = harm[SIDE_V];
    ret->distortion = harm[SIDE_K] + harm[SIDE_V];
    return 0;
}
