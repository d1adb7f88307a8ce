/* See solver.h. */
#include "alloc/solver.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/linalg.h"
#include "alloc/metric.h"
#include "alloc/stats_internal.h"
#include "alloc/stats_sample.h"
#include "base/errmsg.h"

/* Variance of each source beside that of all of them together, mean over head-sides. */
static void solver_compare_variances(const struct solver *v, double ret[static STATS_DOMAINS_MAX])
{
    size_t n_hs = head_side_count(v->g), d = v->g->d;

    for (uint32_t i = 0; i < v->n_sources; i++)
        ret[i] = 0;
    for (size_t hs = 0; hs < n_hs; hs++) {
        double variance[STATS_DOMAINS_MAX], all = 0;

        for (uint32_t i = 0; i < v->n_sources; i++) {
            const struct stats_domain *from = &v->s->domains[v->sources[i]];

            variance[i] = linalg_trace(d, from->scatter + hs * d * d) / (double) from->n_tokens;
            all += v->share[i] * variance[i];
        }
        for (uint32_t i = 0; all > 0 && i < v->n_sources; i++)
            ret[i] += variance[i] / all / (double) n_hs;
    }
}

/* The value of the source in the middle of the tokens, if sources are sorted by @x. */
static double solver_median(const struct solver *v, const double *x)
{
    double median = INFINITY;

    for (uint32_t i = 0; i < v->n_sources; i++) {
        double up_to = 0;

        for (uint32_t j = 0; j < v->n_sources; j++)
            up_to += x[j] <= x[i] ? v->share[j] : 0;
        if (up_to > 0.5 && x[i] < median)
            median = x[i];
    }
    return median;
}

static void solver_set_shares(struct solver *v)
{
    double n_tokens = 0;

    for (uint32_t i = 0; i < v->n_sources; i++)
        n_tokens += (double) v->n_tokens[v->sources[i]];
    for (uint32_t i = 0; i < v->n_sources; i++)
        v->share[i] = (double) v->n_tokens[v->sources[i]] / n_tokens;
}

/* Reduces the tokens of odd sources (solver.h). */
static void solver_reduce_odd_sources(struct solver *v)
{
    double variance[STATS_DOMAINS_MAX] = {0}, median;

    solver_compare_variances(v, variance);
    median = solver_median(v, variance);
    if (!(median > 0) || !isfinite(median)) /* most of the text is odd: nothing can be said about the rest */
        return;

    for (uint32_t i = 0; i < v->n_sources; i++) {
        uint64_t *n = &v->n_tokens[v->sources[i]];
        double others = (double) *n / v->share[i] * (1 - v->share[i]);

        if (variance[i] > median * SOLVER_ODD && v->share[i] < SOLVER_WIDE_SHARE)
            *n = 0;
        else if (variance[i] * SOLVER_ODD < median && v->share[i] > SOLVER_NARROW_SHARE)
            *n = (uint64_t) (others * SOLVER_NARROW_SHARE);
        else
            continue;

        v->reduced |= 1u << v->sources[i];
    }
    solver_set_shares(v);
}

/* The sources of the solve and their samples; of a reduced source fewer samples. */
static int solver_take_sources(struct solver *v, uint32_t mask)
{
    const struct stats *s = v->s;
    uint8_t number[STATS_DOMAINS_MAX] = {0};
    uint64_t n_seen[STATS_DOMAINS_MAX] = {0}, step[STATS_DOMAINS_MAX] = {0}; /* 0: no sample is taken */

    for (uint32_t i = 0; i < s->n_domains; i++)
        if (mask >> i & 1) {
            number[i] = (uint8_t) v->n_sources;
            v->n_tokens[i] = s->domains[i].n_tokens;
            v->sources[v->n_sources++] = i;
            v->mask |= 1u << i;
        }
    solver_set_shares(v);
    if (v->o.leave_out && v->o.method == METHOD_BANDS)
        solver_reduce_odd_sources(v);
    for (uint32_t i = 0; i < v->n_sources; i++) {
        uint64_t n = v->n_tokens[v->sources[i]];

        step[v->sources[i]] = n > 0 ? (s->domains[v->sources[i]].n_tokens + n - 1) / n : 0;
    }

    v->rows = malloc((s->n_held + 1) * sizeof(*v->rows));
    v->source_of = malloc(s->n_held + 1);
    if (!v->rows || !v->source_of)
        return -ENOMEM;

    for (size_t t = 0; t < s->n_held; t++) {
        uint32_t i = s->domain_of[t];

        if (step[i] == 0 || ++n_seen[i] % step[i] != 0)
            continue;

        v->rows[v->n] = (uint32_t) t;
        v->source_of[v->n++] = number[i];
    }
    for (uint32_t i = 0; i < v->n_sources; i++)
        v->largest_share = fmax(v->largest_share, v->share[i]);
    v->leaves_out = v->o.leave_out && v->o.method == METHOD_BANDS && v->n_sources > 1 && v->n > 0 &&
                    v->largest_share <= SOLVER_SHARE_MAX;
    return 0;
}

int solver_init_with(struct solver *v, const struct stats *s, const struct solve_options *o, uint32_t mask,
                     struct errmsg *e)
{
    const struct geometry *g = &s->o.geometry;
    size_t d = g->d;
    int r;

    *v = (struct solver){.s = s, .g = g, .o = *o, .only_layer = ALL_LAYERS};
    r = solve_options_check(s, o, e);
    if (r < 0)
        return r;

    if (solver_take_sources(v, mask) < 0)
        return fail(e, -ENOMEM, "out of memory for solving");

    r = curve_model_init(&v->model, o->curve, o->quantiser);
    if (r < 0)
        return fail(e, r, "the quantiser has no levels");

    memcpy(v->levels[SIDE_K], v->model.levels, sizeof(v->model.levels));
    memcpy(v->levels[SIDE_V], v->model.levels, sizeof(v->model.levels));
    if (o->levels_from)
        memcpy(v->levels, o->levels_from->levels, sizeof(v->levels));
    v->heads = calloc(head_side_count(g), sizeof(*v->heads));
    if (!v->heads)
        return fail(e, -ENOMEM, "out of memory for solving");

    for (uint32_t hs = 0; hs < head_side_count(g); hs++) {
        struct head *h = &v->heads[v->n_heads++];
        uint32_t layer = hs / (2 * g->n_kv_heads);

        h->mean = malloc(d * sizeof(*h->mean));
        h->dec = malloc(d * d * sizeof(*h->dec));
        if (!h->mean || !h->dec || transform_init(&h->t, g->d) < 0)
            return fail(e, -ENOMEM, "out of memory for solving");

        solver_moments(v, hs, v->mask, h->mean, h->dec); /* h->dec has the room that is needed */
        /* depth weights are KL per unit of the attention metric: they do not apply to other metrics */
        h->weight =
            o->depth_weights && o->metric == METRIC_ATTENTION ? metric_depth_weight(s, layer, hs % 2) : 1;
    }

    return 0;
}

int solver_init(struct solver *v, const struct stats *s, const struct solve_options *o, struct errmsg *e)
{
    return solver_init_with(v, s, o, UINT32_MAX, e);
}

void solver_deinit(struct solver *v)
{
    free(v->rows);
    free(v->source_of);
    for (uint32_t hs = 0; hs < v->n_heads; hs++) {
        free(v->heads[hs].mean);
        free(v->heads[hs].dec);
        free(v->heads[hs].predict);
        free(v->heads[hs].decoder.mean);
        free(v->heads[hs].decoder.predict);
        free(v->heads[hs].decoder.dec);
        transform_deinit(&v->heads[hs].t);
    }
    free(v->heads);
    *v = (struct solver){.n_heads = 0};
}

int solver_fail(uint32_t layer, uint32_t head, enum side side, int err, struct errmsg *e)
{
    char letter = side == SIDE_K ? 'K' : 'V';

    if (err == -ENOMEM)
        return fail(e, -ENOMEM, "out of memory for layer %u, head %u, side %c", layer, head, letter);

    return fail(e, -EINVAL,
                "layer %u, head %u, side %c: its covariance, metric or samples are too large for a transform",
                layer, head, letter);
}

float *solver_samples(const struct solver *v, uint32_t head_side)
{
    size_t d = v->g->d;
    float *x = malloc((v->n * d + 1) * sizeof(*x));

    for (size_t t = 0; x && t < v->n; t++)
        sample_code_get(v->s, head_side, v->rows[t], x + t * d);
    return x;
}

void solver_moments(const struct solver *v, uint32_t head_side, uint32_t mask, double *ret_mean,
                    double *ret_S)
{
    size_t d = v->g->d, dd = d * d;
    uint64_t n = 0;

    if (v->n_sources == 0) { /* moments have no sources */
        memcpy(ret_mean, v->s->mean + head_side * d, d * sizeof(*ret_mean));
        memcpy(ret_S, v->s->scatter + head_side * dd, dd * sizeof(*ret_S));
        n = v->s->n_tokens;
    } else {
        memset(ret_mean, 0, d * sizeof(*ret_mean));
        memset(ret_S, 0, dd * sizeof(*ret_S));
    }

    for (uint32_t i = 0; i < v->s->n_domains; i++) {
        const struct stats_domain *from = &v->s->domains[i];

        double left_out = 1 - (double) v->n_tokens[i] / (double) from->n_tokens;

        if (!(mask >> i & 1) || v->n_tokens[i] == 0)
            continue;

        stats_merge_moments(d, n, ret_mean, ret_S, v->n_tokens[i], from->mean + head_side * d,
                            from->scatter + head_side * dd);
        for (size_t k = 0; left_out > 0 && k < dd; k++) /* the scatter is that of all tokens of the source */
            ret_S[k] -= left_out * from->scatter[head_side * dd + k];
        n += v->n_tokens[i];
    }

    for (size_t i = 0; i < dd; i++)
        ret_S[i] /= (double) n;
}

void solver_covariance(const struct solver *v, uint32_t head_side, double *ret_S)
{
    double mean[GEOMETRY_DIM_MAX];

    solver_moments(v, head_side, v->mask, mean, ret_S);
}

int solver_metric(const struct solver *v, uint32_t head_side, const double *S, double *ret_M)
{
    uint32_t head = head_side / 2;

    return metric_matrix(v->s, v->o.metric, v->o.temper, head / v->g->n_kv_heads, head % v->g->n_kv_heads,
                         (enum side)(head_side % 2), S, ret_M);
}
