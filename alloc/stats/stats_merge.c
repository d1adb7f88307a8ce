/* Merges statistics of disjoint texts (DESIGN 3.5): sums add up; samples are the union,
 * truncated to the smallest hashes. */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "alloc/stats/stats_format.h"
#include "alloc/stats/stats_internal.h"
#include "alloc/stats/stats_sample.h"
#include "base/errmsg.h"

int stats_check_complete(const struct stats *s, struct errmsg *e)
{
    if (s->spoiled)
        return fail(e, -EINVAL, "the statistics hold part of a window that failed: start them again");
    if (s->window.next_layer != 0)
        return fail(e, -EINVAL, "the statistics hold part of a window: layers %u to %u of it are missing",
                    s->window.next_layer, s->o.geometry.n_layers - 1);

    return 0;
}

/* Refuses statistics that are not parts of one whole, with a sentence about the first difference. */
static int stats_merge_check_same(const struct stats_options *a, const struct stats_options *b,
                                  struct errmsg *e)
{
    uint8_t geometry_a[DIGEST_BYTES], geometry_b[DIGEST_BYTES];

    if (memcmp(a->model_digest, b->model_digest, DIGEST_BYTES) != 0)
        return fail(e, -EINVAL, "the statistics are of different models: %s and %s", a->model_name,
                    b->model_name);

    geometry_digest(&a->geometry, geometry_a);
    geometry_digest(&b->geometry, geometry_b);
    if (memcmp(geometry_a, geometry_b, DIGEST_BYTES) != 0)
        return fail(e, -EINVAL,
                    "the statistics are of different geometries: heads, dimensions, RoPE or scale");
    if (a->n_sink != b->n_sink)
        return fail(e, -EINVAL, "the statistics leave out different sinks: %u and %u tokens", a->n_sink,
                    b->n_sink);
    if (a->n_samples != b->n_samples)
        return fail(e, -EINVAL, "the statistics keep different numbers of tokens: %u and %u", a->n_samples,
                    b->n_samples);
    if (a->key_stride != b->key_stride)
        return fail(e, -EINVAL, "the statistics have different key strides: %u and %u", a->key_stride,
                    b->key_stride);
    if (a->want_attention != b->want_attention)
        return fail(e, -EINVAL, "only one of the statistics has the attention metric");
    if (a->want_output != b->want_output)
        return fail(e, -EINVAL, "only one of the statistics has the output metric");

    return 0;
}

/* Whether the sums of a metric can be added. Absent ones are NULL. */
static bool stats_merge_fits(const double *to, const double *from, size_t n)
{
    for (size_t i = 0; to && from && i < n; i++)
        if (!isfinite((float) (to[i] + from[i])))
            return false;
    return true;
}

static void stats_merge_add(double *to, const double *from, size_t n)
{
    for (size_t i = 0; to && from && i < n; i++)
        to[i] = (double) (float) (to[i] + from[i]);
}

/* The mean by tokens of those that were measured. */
static double stats_merge_kl(const struct stats *s, const struct stats *other)
{
    double a = s->kl_per_distortion, b = other->kl_per_distortion, share;

    if (a == 0 || b == 0)
        return a + b;

    share = (double) other->n_tokens / (double) (s->n_tokens + other->n_tokens);
    return a + share * (b - a);
}

int stats_merge(struct stats *s, const struct stats *other, struct errmsg *e)
{
    const struct geometry *g = &s->o.geometry;
    size_t n_hs = head_side_count(g), dd = (size_t) g->d * g->d;
    uint32_t map[STATS_DOMAINS_MAX];
    int r;

    if (s->cross || other->cross)
        return fail(e, -EINVAL, "statistics made of moments do not merge: merge the moments");
    if (s == other)
        return fail(e, -EINVAL, "statistics cannot be merged with themselves");
    if ((r = stats_check_complete(s, e)) < 0 || (r = stats_check_complete(other, e)) < 0 ||
        (r = stats_merge_check_same(&s->o, &other->o, e)) < 0)
        return r;
    if (s->n_tokens > 0 && other->n_tokens > 0 && (s->n_fisher > 0) != (other->n_fisher > 0))
        return fail(e, -EINVAL, "only one of the statistics has gradients");
    if (other->n_fisher > 0 && (r = stats_want_fisher(s)) < 0)
        return fail(e, r, "out of memory for the Fisher metric");
    if (other->n_tokens > STATS_TOKENS_MAX - s->n_tokens || other->n_fisher > STATS_TOKENS_MAX - s->n_fisher)
        return fail(e, -EINVAL, "the statistics count more than 2^48 tokens together");
    if (s->n_sources + other->n_sources > STATS_SOURCES_MAX)
        return fail(e, -EINVAL, "the statistics are of %zu and %zu texts, more than %d together",
                    s->n_sources, other->n_sources, STATS_SOURCES_MAX);

    if (!stats_merge_fits(s->query, other->query, n_hs / 2 * dd) ||
        !stats_merge_fits(s->metric, other->metric, n_hs * dd) ||
        !stats_merge_fits(s->output, other->output, n_hs * dd) ||
        !stats_merge_fits(s->fisher, other->fisher, n_hs * dd))
        return fail(e, -EINVAL, "the sums of a metric of both statistics are too large for binary32");

    r = stats_sample_check(s, other, e); /* after this only memory can be missing */
    if (r < 0)
        return r;

    s->has_file_digest = false;
    if (stats_domain_merge(s, other, map) < 0)
        return fail(e, -ENOMEM, "out of memory for the moments of sources");

    r = stats_sample_merge(s, other, map, e);
    if (r < 0)
        return r;

    for (size_t i = 0; i < other->n_sources; i++) {
        r = stats_add_source(s, &other->sources[i], e);
        if (r < 0)
            return r;
    }

    stats_merge_add(s->query, other->query, n_hs / 2 * dd);
    stats_merge_add(s->metric, other->metric, n_hs * dd);
    stats_merge_add(s->output, other->output, n_hs * dd);
    stats_merge_add(s->fisher, other->fisher, n_hs * dd);
    for (size_t i = 0; i < (size_t) g->n_layers * 2; i++) {
        s->depth[i].kl += other->depth[i].kl;
        s->depth[i].D += other->depth[i].D;
        s->depth[i].n += other->depth[i].n;
    }

    s->kl_per_distortion = stats_merge_kl(s, other);
    s->n_tokens += other->n_tokens;
    s->n_fisher += other->n_fisher;
    s->mixed_seeds = s->mixed_seeds || other->mixed_seeds || s->o.seed != other->o.seed;
    stats_domain_sum(s);
    return 0;
}
