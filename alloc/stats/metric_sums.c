/*
 * The sums of the two metrics that need no gradients
 * (DESIGN 3.1, alloc/README.md), over one window and layer.
 *
 * attention: the effect of an error on the distribution over keys, and on the output.
 *   K: an error e of key n changes the score of query m by scale <R(m) q, R(n) e> = scale <q~, e> with
 *      q~ = R(n)' R(m) q, and the softmax by its Fisher information p(1-p). So
 *      M = sum over the group's query heads and m >= n of p(1-p) scale^2 q~ q~', averaged over keys n.
 *      (scale^2 is the 1/d of the text.)
 *   V: an error e of value n moves the output of head h by p_mn e and the residual stream by W_O,h p_mn e.
 *      So M = sum_h E[sum_m p_mn^2] W_O,h' W_O,h.
 *
 * output: the squared error of what attention adds to the residual stream, relative to that
 * stream after it, so that layers compare. With B_h = W_O,h' W_O,h, o_m = sum_n p_mn v_n and r_m
 * the mean square of the stream at query m:
 *   K: an error s of the score moves the output of the head by p_mn (v_n - o_m) s. So
 *      M = sum_h,m p_mn^2 / r_m (v_n - o_m)' B_h (v_n - o_m) scale^2 q~ q~', averaged over keys n.
 *   V: M = sum_h E[sum_m p_mn^2 / r_m] B_h.
 *
 * No [T, T] array is formed: a first pass over all keys finds the maximum, denominator, sum of squares and
 * output of each query (online softmax); a second pass computes the weights of the sampled keys only.
 */
#include <cblas.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/stats/metric_pass.h"
#include "alloc/stats/stats_internal.h"
#include "base/cleanup.h"

/* Data of the output metric beside the pass. */
struct outputs {
    const float *residual; /* [n] mean squares of the residual stream after attention */
    float *B;              /* [group, d, d] */
    float *mapped;         /* [group, n, d] B o_m */
    float *own;            /* [group, n] o_m' B o_m */
    float *sampled;        /* [PASS_KEY_BLOCK, d] values of sampled keys */
    float *cross;          /* [PASS_KEY_BLOCK, n] v_n' B o_m */
    float *block;
};

static void metric_sums_outputs_deinit(struct outputs *o)
{
    free(o->block);
}

static size_t metric_sums_outputs_floats(const struct geometry *g, size_t n)
{
    size_t d = g->d;

    return geometry_group(g) * (d * d + n * (d + 1)) + PASS_KEY_BLOCK * (d + n);
}

uint64_t metric_sums_bytes(const struct geometry *g, size_t n, bool want_output)
{
    uint64_t pass = pass_bytes(g, n, want_output);

    return want_output ? pass + (uint64_t) metric_sums_outputs_floats(g, n) * sizeof(float) : pass;
}

static int metric_sums_outputs_init(struct outputs *o, const struct pass *p, const float *residual)
{
    size_t n = p->n, d = p->d;

    *o = (struct outputs){.residual = residual};
    o->block = malloc(metric_sums_outputs_floats(p->g, n) * sizeof(float));
    if (!o->block)
        return -ENOMEM;

    o->B = o->block;
    o->mapped = o->B + p->group * d * d;
    o->own = o->mapped + p->group * n * d;
    o->sampled = o->own + p->group * n;
    o->cross = o->sampled + PASS_KEY_BLOCK * d;
    return 0;
}

/* B o_m and o_m' B o_m of every query of head @j of the group; after pass_softmax() of that head. */
static void metric_sums_map_outputs(struct outputs *o, const struct pass *p, size_t j, const double *wo)
{
    size_t n = p->n, d = p->d;
    float *B = o->B + j * d * d, *mapped = o->mapped + j * n * d;
    const float *output = p->output + j * n * d;

    for (size_t i = 0; i < d * d; i++)
        B[i] = (float) wo[i];
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int) n, (int) d, (int) d, 1.0f, output, (int) d,
                B, (int) d, 0.0f, mapped, (int) d);
    for (size_t m = 0; m < n; m++) {
        float sum = 0;

        for (size_t i = 0; i < d; i++)
            sum += output[m * d + i] * mapped[m * d + i];
        o->own[j * n + m] = sum;
    }
}

static float metric_sums_quadratic(const float *B, const float *x, size_t d)
{
    float sum = 0;

    for (size_t i = 0; i < d; i++) {
        float row = 0;

        for (size_t j = 0; j < d; j++)
            row += B[i * d + j] * x[j];
        sum += x[i] * row;
    }
    return sum;
}

static void metric_sums_weigh_attention(struct pass *p, const size_t *at, size_t n_keys)
{
    for (size_t j = 0; j < p->group; j++)
        for (size_t i = 0; i < n_keys; i++) {
            const float *prob = p->probs + (j * PASS_KEY_BLOCK + i) * p->n;
            float *w = p->weights + (j * PASS_KEY_BLOCK + i) * p->n;

            for (size_t m = at[i]; m < p->n; m++)
                w[m] = fmaxf(prob[m] * (1.0f - prob[m]), 0.0f); /* rounding may leave prob a little above 1 */
        }
}

/* p^2 / r (v - o)' B (v - o), computed as p^2 / r (v'Bv - 2 v'Bo + o'Bo): matrix products instead of one
 * vector for each pair. Cancellation where v and o nearly agree leaves noise of 2^-24 of their lengths; the
 * weight of such pairs is negligible. */
static void metric_sums_weigh_output(struct outputs *o, struct pass *p, const size_t *at, size_t n_keys)
{
    size_t n = p->n, d = p->d, first = at[0];

    for (size_t i = 0; i < n_keys; i++)
        memcpy(o->sampled + i * d, p->value + at[i] * d, d * sizeof(float));
    for (size_t j = 0; j < p->group; j++) {
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int) n_keys, (int) (n - first), (int) d, 1.0f,
                    o->sampled, (int) d, o->mapped + (j * n + first) * d, (int) d, 0.0f, o->cross + first,
                    (int) n);
        for (size_t i = 0; i < n_keys; i++) {
            const float *prob = p->probs + (j * PASS_KEY_BLOCK + i) * n, *cross = o->cross + i * n;
            float *w = p->weights + (j * PASS_KEY_BLOCK + i) * n;
            float of_value = metric_sums_quadratic(o->B + j * d * d, o->sampled + i * d, d);

            for (size_t m = at[i]; m < n; m++)
                w[m] = fmaxf(
                    prob[m] * prob[m] / o->residual[m] * (of_value - 2 * cross[m] + o->own[j * n + m]), 0.0f);
        }
    }
}

/* Second pass: the K metrics of one KV head from every stride-th key. A sum that is NULL is left out. */
static void metric_sums_add_keys(struct pass *p, struct outputs *o, uint32_t stride, uint64_t key_seed,
                                 double *attention, double *output)
{
    size_t n_keys = p->n - p->n_first, step = stride < n_keys ? stride : n_keys;
    size_t offset = (size_t) (key_seed % step), n_sampled = (n_keys - offset + step - 1) / step;
    double scale = (double) n_keys / (double) n_sampled;

    for (size_t done = 0; done < n_sampled; done += PASS_KEY_BLOCK) {
        size_t at[PASS_KEY_BLOCK], n = n_sampled - done < PASS_KEY_BLOCK ? n_sampled - done : PASS_KEY_BLOCK;

        for (size_t i = 0; i < n; i++)
            at[i] = p->n_first + offset + (done + i) * step;
        pass_sample(p, at, n);
        if (attention) {
            metric_sums_weigh_attention(p, at, n);
            for (size_t i = 0; i < n; i++)
                pass_add_key(p, i, at[i], scale, attention);
        }

        if (output) {
            metric_sums_weigh_output(o, p, at, n);
            for (size_t i = 0; i < n; i++)
                pass_add_key(p, i, at[i], scale, output);
        }
    }
}

/* sum += B_h times the sum over queries of p^2, or of p^2 / r_m for the output metric. */
static void metric_sums_add_value(const struct pass *p, size_t j, const double *wo, const float *residual,
                                  double *sum)
{
    const float *squares = p->squares + j * p->n;
    double total = 0;

    for (size_t m = p->n_first; m < p->n; m++)
        total += (double) squares[m] / (residual ? (double) residual[m] : 1);
    for (size_t i = 0; i < p->d * p->d; i++)
        sum[i] += total * wo[i];
}

int metric_sums_add(struct stats *s, uint32_t layer, size_t n, size_t n_first, uint64_t key_seed,
                    const float *q, const float *k, const float *v, const float *residual)
{
    const struct geometry *g = &s->o.geometry;
    size_t dd = (size_t) g->d * g->d, group = geometry_group(g);
    _cleanup_(pass_deinit) struct pass p = {0};
    _cleanup_(metric_sums_outputs_deinit) struct outputs o = {0};
    int r = pass_init(&p, g, n, n_first, s->output != NULL);

    if (r < 0)
        return r;

    if (s->output) {
        r = metric_sums_outputs_init(&o, &p, residual);
        if (r < 0)
            return r;
    }

    for (uint32_t kv = 0; kv < g->n_kv_heads; kv++) {
        size_t at_k = head_side_index(g, layer, kv, SIDE_K) * dd,
               at_v = head_side_index(g, layer, kv, SIDE_V) * dd;

        pass_keys(&p, kv, k, v);
        for (size_t j = 0; j < group; j++) {
            uint32_t head = kv * (uint32_t) group + (uint32_t) j;
            const double *wo = s->wo + ((size_t) layer * g->n_heads + head) * dd;

            pass_queries(&p, j, head, q);
            pass_softmax(&p, j);
            if (s->metric)
                metric_sums_add_value(&p, j, wo, NULL, s->metric + at_v);
            if (s->output) {
                metric_sums_add_value(&p, j, wo, residual, s->output + at_v);
                metric_sums_map_outputs(&o, &p, j, wo);
            }
        }

        metric_sums_add_keys(&p, &o, s->o.key_stride, key_seed, s->metric ? s->metric + at_k : NULL,
                             s->output ? s->output + at_k : NULL);
    }

    return 0;
}
