/* Merges statistics of disjoint texts (DESIGN 3.5): sums add up; samples are the union,
 * truncated to the smallest hashes. */
#include <errno.h>
#include <string.h>

#include "alloc/stats_internal.h"
#include "alloc/stats_sample.h"
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
    if (a->seed != b->seed)
        return fail(e, -EINVAL, "the statistics have different seeds: %llu and %llu",
                    (unsigned long long) a->seed, (unsigned long long) b->seed);

    return 0;
}

static void stats_merge_add(double *to, const double *from, size_t n)
{
    for (size_t i = 0; i < n; i++)
        to[i] += from[i];
}

int stats_merge(struct stats *s, const struct stats *other, struct errmsg *e)
{
    const struct geometry *g = &s->o.geometry;
    size_t n_hs = head_side_count(g), d = g->d, dd = d * d;
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
    if (s->n_sources + other->n_sources > STATS_SOURCES_MAX)
        return fail(e, -EINVAL, "the statistics are of %zu and %zu texts, more than %d together",
                    s->n_sources, other->n_sources, STATS_SOURCES_MAX);

    r = stats_sample_merge(s, other, e); /* the last step that can fail; on failure @s is unchanged */
    if (r < 0)
        return r;

    for (size_t i = 0; i < other->n_sources; i++) {
        r = stats_add_source(s, &other->sources[i], e);
        if (r < 0)
            return r;
    }

    for (size_t hs = 0; hs < n_hs && other->n_tokens > 0; hs++)
        stats_merge_moments(d, s->n_tokens, s->mean + hs * d, s->scatter + hs * dd, other->n_tokens,
                            other->mean + hs * d, other->scatter + hs * dd);
    if (s->query)
        stats_merge_add(s->query, other->query, n_hs / 2 * dd);
    if (s->metric)
        stats_merge_add(s->metric, other->metric, n_hs * dd);
    if (s->output)
        stats_merge_add(s->output, other->output, n_hs * dd);
    if (other->n_fisher > 0)
        stats_merge_add(s->fisher, other->fisher, n_hs * dd);
    for (size_t i = 0; i < (size_t) g->n_layers * 2; i++) {
        s->depth[i].kl += other->depth[i].kl;
        s->depth[i].D += other->depth[i].D;
        s->depth[i].n += other->depth[i].n;
    }

    s->n_tokens += other->n_tokens;
    s->n_fisher += other->n_fisher;
    return 0;
}
