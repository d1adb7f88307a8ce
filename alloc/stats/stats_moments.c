/* Statistics from moments instead of vectors; see stats_moments.h. */
#include <errno.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/moments/moments.h"
#include "alloc/stats/stats_moments.h"
#include "alloc/stats/stats_internal.h"
#include "base/cleanup.h"
#include "base/errmsg.h"

/* Refuses moments and statistics of different models, with a sentence about
 * the first difference. @s may be NULL. */
static int stats_moments_check_same(const struct moments_options *m, const struct stats *s, struct errmsg *e)
{
    uint8_t geometry_m[DIGEST_BYTES], geometry_s[DIGEST_BYTES];

    if (!s)
        return 0;
    if (memcmp(m->model_digest, s->o.model_digest, DIGEST_BYTES) != 0)
        return fail(e, -EINVAL,
                    "the moments and the statistics of the metric are of different models: %s and %s",
                    m->model_name[0] ? m->model_name : "(no name)", s->o.model_name);

    geometry_digest(&m->geometry, geometry_m);
    geometry_digest(&s->o.geometry, geometry_s);
    if (memcmp(geometry_m, geometry_s, DIGEST_BYTES) != 0)
        return fail(e, -EINVAL,
                    "the moments and the statistics of the metric are of different geometries: heads, "
                    "dimensions, RoPE or scale");
    if (m->n_sink != s->o.n_sink)
        return fail(e, -EINVAL, "the moments leave out %u sinks, the statistics of the metric %u", m->n_sink,
                    s->o.n_sink);

    return stats_check_complete(s, e);
}

/* One head. Scales its scatters to the token count of the statistics, which is one for all heads. */
static void stats_moments_take_head(struct stats *s, const struct moments *m, uint32_t layer, uint32_t head)
{
    const struct geometry *g = &s->o.geometry;
    size_t d = g->d, dd = d * d;
    const double *mean = moments_mean(m, layer, head), *scatter = moments_scatter(m, layer, head);
    double scale = (double) s->n_tokens / (double) moments_count(m, layer, head);
    double *cross = s->cross + ((size_t) layer * g->n_kv_heads + head) * dd;

    for (int side = SIDE_K; side <= SIDE_V; side++) {
        uint32_t hs = head_side_index(g, layer, head, (enum side) side);
        size_t first = (size_t) side * d;

        memcpy(s->mean + hs * d, mean + first, d * sizeof(double));
        for (size_t i = 0; i < d; i++)
            for (size_t j = 0; j <= i; j++) {
                size_t a = first + i, b = first + j;

                s->scatter[hs * dd + i * d + j] = s->scatter[hs * dd + j * d + i] =
                    scale * scatter[a * (a + 1) / 2 + b];
            }
    }

    for (size_t i = 0; i < d; i++) /* rows of V, columns of K: below the diagonal */
        for (size_t j = 0; j < d; j++)
            cross[i * d + j] = scale * scatter[(d + i) * (d + i + 1) / 2 + j];
}

/* Scales sums over key positions to the token count of the moments. Gradients keep their own count. */
static void stats_moments_take_sums(double *to, const double *from, size_t n, double scale)
{
    for (size_t i = 0; from && i < n; i++)
        to[i] = scale * from[i];
}

static int stats_moments_take_metrics(struct stats *s, const struct stats *from, struct errmsg *e)
{
    size_t n_hs = head_side_count(&s->o.geometry), dd = (size_t) s->o.geometry.d * s->o.geometry.d;
    double scale = (double) s->n_tokens / (double) from->n_tokens;

    if (from->fisher && stats_want_fisher(s) < 0)
        return fail(e, -ENOMEM, "out of memory for the Fisher metric");

    stats_moments_take_sums(s->query, from->query, n_hs / 2 * dd, scale);
    stats_moments_take_sums(s->metric, from->metric, n_hs * dd, scale);
    stats_moments_take_sums(s->output, from->output, n_hs * dd, scale);
    stats_moments_take_sums(s->fisher, from->fisher, n_hs * dd, 1);
    s->n_fisher = from->n_fisher;
    memcpy(s->depth, from->depth, (size_t) s->o.geometry.n_layers * 2 * sizeof(*s->depth));
    s->kl_per_distortion = from->kl_per_distortion;
    s->has_metric_digest = true;
    return stats_digest(from, s->metric_digest, e);
}

static uint64_t stats_moments_least_count(const struct moments *m, const struct geometry *g)
{
    uint64_t least = UINT64_MAX;

    for (uint32_t layer = 0; layer < g->n_layers; layer++)
        for (uint32_t head = 0; head < g->n_kv_heads; head++)
            if (moments_count(m, layer, head) < least)
                least = moments_count(m, layer, head);
    return least;
}

int stats_from_moments(const struct moments *m, const struct stats *metric_from, struct stats **ret_stats,
                       struct errmsg *e)
{
    const struct moments_options *mo = moments_get_options(m);
    const struct geometry *g = &mo->geometry;
    _cleanup_(stats_freep) struct stats *s = NULL;
    struct stats_options o;
    int r = stats_moments_check_same(mo, metric_from, e);

    if (r < 0)
        return r;

    stats_options_default(&o, g);
    if (metric_from)
        o = metric_from->o;
    else
        o.want_attention = o.want_output = false;
    o.n_sink = mo->n_sink;
    memcpy(o.model_digest, mo->model_digest, DIGEST_BYTES);
    if (!metric_from)
        memcpy(o.model_name, mo->model_name, sizeof(o.model_name));
    r = stats_alloc(&o, 0, &s, e);
    if (r < 0)
        return r;

    s->cross = calloc((size_t) g->n_layers * g->n_kv_heads * g->d * g->d, sizeof(*s->cross));
    if (!s->cross || moments_digest(m, s->moments_digest) < 0)
        return fail(e, -ENOMEM, "out of memory for statistics of moments");

    s->n_tokens = stats_moments_least_count(m, g);
    if (s->n_tokens == 0)
        return fail(e, -EINVAL,
                    "the moments of some layer and head hold no token: merge those of all layers and heads "
                    "before solving");

    for (uint32_t layer = 0; layer < g->n_layers; layer++)
        for (uint32_t head = 0; head < g->n_kv_heads; head++)
            stats_moments_take_head(s, m, layer, head);
    r = metric_from ? stats_moments_take_metrics(s, metric_from, e) : 0;
    if (r < 0)
        return r;

    *ret_stats = take_ptr(s);
    return 0;
}
