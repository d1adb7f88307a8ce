/* See stats_rotate.h. */
#include "alloc/stats/stats_rotate.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/stats/stats_internal.h"
#include "alloc/stats/stats_sample.h"
#include "base/cleanup.h"
#include "base/errmsg.h"

/* Most positions that metrics are averaged over: every k-th sampled one. A plane that rotates by a radian per
 * token averages out over some ten positions; slow planes hardly rotate at all. */
#define POSITIONS_MAX 512

#define ALL_DOMAINS UINT32_MAX

struct stats_rotate_phase {
    double cos[GEOMETRY_PLANES_MAX], sin[GEOMETRY_PLANES_MAX];
};

static void stats_rotate_phase_at(const struct geometry *g, uint64_t position, struct stats_rotate_phase *ret)
{
    for (uint32_t i = 0; i < g->n_rot / 2; i++) {
        ret->cos[i] = cos((double) position * g->freq[i]);
        ret->sin[i] = sin((double) position * g->freq[i]);
    }
}

/* x := R x; element i of x stands at x[i * stride]. */
static void stats_rotate_vector(const struct geometry *g, const struct stats_rotate_phase *p, double *x,
                                size_t stride)
{
    uint32_t half = g->n_rot / 2;

    for (uint32_t i = 0; i < half; i++) {
        double *lo = x + i * stride, *hi = x + (i + half) * stride, a = *lo, b = *hi;

        *lo = a * p->cos[i] - b * p->sin[i];
        *hi = a * p->sin[i] + b * p->cos[i];
    }
}

static bool stats_rotate_is_of(const struct stats *s, size_t sample, uint32_t domain)
{
    return domain == ALL_DOMAINS || s->domain_of[sample] == domain;
}

/* Mean and scatter of the rotated vectors of one domain, or of all. Return: how many there are. */
static size_t stats_rotate_moments(const struct stats *s, uint32_t domain, const float *x, double *ret_mean,
                                   double *ret_scatter)
{
    size_t d = s->o.geometry.d, n = 0;

    memset(ret_mean, 0, d * sizeof(*ret_mean));
    memset(ret_scatter, 0, d * d * sizeof(*ret_scatter));
    for (size_t t = 0; t < s->n_held; t++)
        if (stats_rotate_is_of(s, t, domain)) {
            n++;
            for (size_t i = 0; i < d; i++)
                ret_mean[i] += (double) x[t * d + i];
        }
    for (size_t i = 0; n > 0 && i < d; i++)
        ret_mean[i] /= (double) n;
    for (size_t t = 0; t < s->n_held; t++)
        for (size_t i = 0; stats_rotate_is_of(s, t, domain) && i < d; i++)
            for (size_t j = 0; j <= i; j++)
                ret_scatter[i * d + j] +=
                    ((double) x[t * d + i] - ret_mean[i]) * ((double) x[t * d + j] - ret_mean[j]);
    return n;
}

/* Rotates the samples of one head's keys; mean and centred scatter of each domain are then those of its
 * samples. A domain without samples, a small one, gets those of all: zeros would count as its tokens. */
static int stats_rotate_samples(const struct stats *from, struct stats *s, uint32_t head_side)
{
    const struct geometry *g = &s->o.geometry;
    size_t d = g->d;
    _cleanup_(freep) float *x = stats_sample_load(from, head_side);
    double row[GEOMETRY_DIM_MAX] = {0};

    if (!x)
        return -ENOMEM;

    for (size_t t = 0; t < s->n_held; t++) {
        struct stats_rotate_phase p;

        stats_rotate_phase_at(g, s->ids[t].position, &p);
        for (size_t i = 0; i < d; i++)
            row[i] = (double) x[t * d + i];
        stats_rotate_vector(g, &p, row, 1);
        for (size_t i = 0; i < d; i++)
            x[t * d + i] = (float) row[i];
    }

    sample_code_set_offset(s, head_side, x, s->n_held, d);
    memset(stats_sample_rows(s, head_side), 0, s->n_slots * d * sizeof(uint16_t));
    for (size_t t = 0; t < s->n_held; t++)
        sample_code_put(s, head_side, t, x + t * d);
    for (uint32_t i = 0; i < s->n_domains; i++) {
        double *mean = s->domains[i].mean + head_side * d,
               *scatter = s->domains[i].scatter + head_side * d * d;
        size_t n = stats_rotate_moments(s, i, x, mean, scatter);
        double scale;

        if (n == 0)
            n = stats_rotate_moments(s, ALL_DOMAINS, x, mean, scatter);
        scale = (double) s->domains[i].n_tokens / (double) n; /* stats_rotated() refuses to have no samples */
        for (size_t a = 0; a < d; a++)
            for (size_t b = 0; b <= a; b++)
                scatter[b * d + a] = scatter[a * d + b] *= scale;
    }

    return 0;
}

/* M := mean over sampled positions of R(p) M R(p)'. @scratch: [2, d, d] */
static void stats_rotate_average(const struct stats *s, double *M, double *scratch)
{
    const struct geometry *g = &s->o.geometry;
    size_t d = g->d, step = (s->n_held + POSITIONS_MAX - 1) / POSITIONS_MAX, n = 0;
    double *sum = scratch, *rotated = scratch + d * d;

    memset(sum, 0, d * d * sizeof(*sum));
    for (size_t t = 0; t < s->n_held; t += step, n++) {
        struct stats_rotate_phase p;

        stats_rotate_phase_at(g, s->ids[t].position, &p);
        memcpy(rotated, M, d * d * sizeof(*rotated));
        for (size_t i = 0; i < d; i++)
            stats_rotate_vector(g, &p, rotated + i, d); /* columns */
        for (size_t i = 0; i < d; i++)
            stats_rotate_vector(g, &p, rotated + i * d, 1); /* rows */
        for (size_t i = 0; i < d * d; i++)
            sum[i] += rotated[i];
    }

    for (size_t i = 0; i < d; i++)
        for (size_t j = 0; j <= i; j++) /* the solvers need exact symmetry */
            M[i * d + j] = M[j * d + i] = (sum[i * d + j] + sum[j * d + i]) / (2 * (double) n);
}

static void stats_rotate_copy(void *to, const void *from, size_t n, size_t bytes)
{
    if (from)
        memcpy(to, from, n * bytes);
}

static int stats_rotate_duplicate(const struct stats *s, struct stats **ret_stats, struct errmsg *e)
{
    const struct geometry *g = &s->o.geometry;
    size_t n_hs = head_side_count(g), d = g->d, dd = d * d;
    _cleanup_(stats_freep) struct stats *to = NULL;
    int r = stats_alloc(&s->o, s->n_held, &to, e);

    if (r < 0 || (s->fisher && (r = stats_want_fisher(to)) < 0))
        return fail(e, r, "out of memory for statistics of rotated keys");

    for (uint32_t i = 0; i < s->n_domains; i++) {
        uint32_t at;

        if (stats_domain_get(to, &s->domains[i], &at) < 0)
            return fail(e, -ENOMEM, "out of memory for statistics of rotated keys");

        to->domains[at].n_tokens = s->domains[i].n_tokens;
        stats_rotate_copy(to->domains[at].mean, s->domains[i].mean, n_hs * d, sizeof(double));
        stats_rotate_copy(to->domains[at].scatter, s->domains[i].scatter, n_hs * dd, sizeof(double));
    }

    to->n_tokens = s->n_tokens;
    to->n_fisher = s->n_fisher;
    to->n_held = s->n_held;
    to->has_offset = s->has_offset;
    to->mixed_seeds = s->mixed_seeds;
    stats_rotate_copy(to->query, s->query, n_hs / 2 * dd, sizeof(double));
    stats_rotate_copy(to->metric, s->metric, n_hs * dd, sizeof(double));
    stats_rotate_copy(to->output, s->output, n_hs * dd, sizeof(double));
    stats_rotate_copy(to->fisher, s->fisher, n_hs * dd, sizeof(double));
    for (size_t i = 0; i < s->n_sources; i++)
        if (stats_add_source(to, &s->sources[i], e) < 0)
            return -ENOMEM;
    stats_rotate_copy(to->depth, s->depth, (size_t) g->n_layers * 2, sizeof(*s->depth));
    stats_rotate_copy(to->ids, s->ids, s->n_held, sizeof(*s->ids));
    stats_rotate_copy(to->domain_of, s->domain_of, s->n_held, 1);
    stats_rotate_copy(to->offset, s->offset, n_hs * d, sizeof(float));
    stats_rotate_copy(to->scale, s->scale, n_hs, sizeof(float));
    for (uint32_t hs = 0; hs < n_hs; hs++)
        stats_rotate_copy(stats_sample_rows(to, hs), stats_sample_rows(s, hs), s->n_held * d,
                          sizeof(uint16_t));
    *ret_stats = take_ptr(to);
    return 0;
}

int stats_rotated(const struct stats *s, struct stats **ret_stats, struct errmsg *e)
{
    size_t d = s->o.geometry.d;
    _cleanup_(stats_freep) struct stats *to = NULL;
    _cleanup_(freep) double *scratch = malloc(2 * d * d * sizeof(*scratch));
    int r = stats_check_complete(s, e);

    if (r < 0)
        return r;
    if (s->n_held == 0)
        return fail(e, -EINVAL, "the statistics hold no sampled tokens to rotate");
    if (!scratch)
        return fail(e, -ENOMEM, "out of memory for statistics of rotated keys");

    r = stats_rotate_duplicate(s, &to, e);
    if (r < 0)
        return r;

    for (uint32_t hs = SIDE_K; hs < head_side_count(&s->o.geometry); hs += 2) {
        if (stats_rotate_samples(s, to, hs) < 0)
            return fail(e, -ENOMEM, "out of memory for statistics of rotated keys");
        if (to->query)
            stats_rotate_average(to, to->query + hs / 2 * d * d, scratch);
        if (to->metric)
            stats_rotate_average(to, to->metric + hs * d * d, scratch);
        if (to->output)
            stats_rotate_average(to, to->output + hs * d * d, scratch);
        if (to->fisher)
            stats_rotate_average(to, to->fisher + hs * d * d, scratch);
    }

    stats_domain_sum(to);
    *ret_stats = take_ptr(to);
    return 0;
}
