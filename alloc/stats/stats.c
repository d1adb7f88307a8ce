/*
 * Calibration statistics: creating them and adding windows; see stats.h.
 *
 * Means and centred scatters are Welford's, merged by Chan's rule. No large numbers are subtracted, so a key
 * bias a thousand times the deviation costs no digit. Products over tokens run in binary32 blocks (BLAS) and
 * are added up in binary64.
 */
#include "alloc/stats/stats.h"

#include <cblas.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/stats/stats_internal.h"
#include "alloc/stats/stats_sample.h"
#include "alloc/table/table.h"
#include "base/cleanup.h"
#include "base/errmsg.h"

#define BLOCK_ROWS 256 /* rows of one binary32 product: its rounding error stays near that of one term */
#define WINDOW_MAX (1u << 20) /* tokens; BLAS counts in int */
#define SAMPLES_MAX (1u << 20)
#define STRIDE_MAX 4096

uint32_t stats_samples_default(const struct geometry *g)
{
    uint64_t per_token = (uint64_t) head_side_count(g) * g->d * sizeof(uint16_t);

    return per_token * STATS_SAMPLES_DEFAULT <= STATS_SAMPLES_BYTES
               ? STATS_SAMPLES_DEFAULT
               : (uint32_t) (STATS_SAMPLES_BYTES / per_token);
}

void stats_options_default(struct stats_options *o, const struct geometry *g)
{
    *o = (struct stats_options){
        .geometry = *g,
        .n_sink = 4,
        .n_samples = stats_samples_default(g),
        .key_stride = 8,
        .want_attention = true,
    };
}

int stats_options_check(const struct stats_options *o, struct errmsg *e)
{
    int r = geometry_validate(&o->geometry, e);

    if (r < 0)
        return r;
    if (o->n_sink > TABLE_SINKS_MAX)
        return fail(e, -EINVAL, "%u sinks requested, at most %u are possible", o->n_sink, TABLE_SINKS_MAX);
    if (o->n_samples == 0 || o->n_samples > SAMPLES_MAX)
        return fail(e, -EINVAL, "%u sampled tokens requested, 1 to %u are possible", o->n_samples,
                    SAMPLES_MAX);
    if (o->key_stride == 0 || o->key_stride > STRIDE_MAX)
        return fail(e, -EINVAL, "key stride %u is not in 1..%u", o->key_stride, STRIDE_MAX);
    if (!memchr(o->model_name, '\0', sizeof(o->model_name)))
        return fail(e, -EINVAL, "the model's name is not terminated");

    return 0;
}

uint64_t stats_bytes(const struct stats_options *o)
{
    const struct geometry *g = &o->geometry;
    uint64_t n_hs = head_side_count(g), d = g->d;
    /* all domains and their sum; offset and scale of samples */
    uint64_t per_hs = (STATS_DOMAINS_MAX + 1) * (d + d * d) * sizeof(double) + (d + 1) * sizeof(float);

    if (o->want_attention || o->want_output) /* half: query moments are per head, not per side */
        per_hs += d * d * sizeof(double) / 2;
    per_hs += d * d * sizeof(double) * ((uint64_t) o->want_attention + o->want_output);
    if (o->want_attention || o->want_output) /* products of W_O */
        per_hs += d * d * sizeof(double) * geometry_group(g) / 2;
    per_hs += (uint64_t) o->n_samples * d * sizeof(uint16_t);
    return n_hs * per_hs + (uint64_t) o->n_samples * (sizeof(struct sample_id) + 1);
}

static bool stats_alloc_arrays(struct stats *s)
{
    const struct geometry *g = &s->o.geometry;
    size_t n_hs = head_side_count(g), dd = (size_t) g->d * g->d;

    s->mean = calloc(n_hs * g->d, sizeof(double));
    s->scatter = calloc(n_hs * dd, sizeof(double));
    s->depth = calloc((size_t) g->n_layers * 2, sizeof(*s->depth));
    s->have_wo = calloc(g->n_layers, sizeof(*s->have_wo));
    s->offset = calloc(n_hs * g->d, sizeof(*s->offset));
    s->scale = calloc(n_hs, sizeof(*s->scale));
    if (stats_wants_queries(s))
        s->query = calloc(n_hs / 2 * dd, sizeof(double));
    if (s->o.want_attention)
        s->metric = calloc(n_hs * dd, sizeof(double));
    if (s->o.want_output)
        s->output = calloc(n_hs * dd, sizeof(double));
    if ((stats_wants_queries(s) && !s->query) || (s->o.want_attention && !s->metric) ||
        (s->o.want_output && !s->output))
        return false;

    return s->mean && s->scatter && s->depth && s->have_wo && s->offset && s->scale;
}

int stats_alloc(const struct stats_options *o, size_t n_slots, struct stats **ret_stats, struct errmsg *e)
{
    _cleanup_(stats_freep) struct stats *s = NULL;
    int r = stats_options_check(o, e);

    if (r < 0)
        return r;

    s = calloc(1, sizeof(*s));
    if (!s)
        return fail(e, -ENOMEM, "out of memory for statistics");

    s->o = *o;
    if (!stats_alloc_arrays(s) || stats_grow_slots(s, n_slots) < 0)
        return fail(e, -ENOMEM, "out of memory: statistics of this model take %llu MiB",
                    (unsigned long long) (stats_bytes(o) >> 20));

    *ret_stats = take_ptr(s);
    return 0;
}

int stats_new(const struct stats_options *o, struct stats **ret_stats, struct errmsg *e)
{
    return stats_alloc(o, o->n_samples, ret_stats, e);
}

struct stats *stats_free(struct stats *s)
{
    if (!s)
        return NULL;

    for (uint32_t i = 0; i < s->n_domains; i++) {
        free(s->domains[i].mean);
        free(s->domains[i].scatter);
    }
    free(s->mean);
    free(s->scatter);
    free(s->query);
    free(s->metric);
    free(s->output);
    free(s->fisher);
    free(s->depth);
    free(s->sources);
    free(s->cross);
    free(s->ids);
    free(s->domain_of);
    free(s->samples);
    free(s->offset);
    free(s->scale);
    free(s->wo);
    free(s->have_wo);
    free(s->window.picks);
    free(s);
    return NULL;
}

/* sum[i] += a'a, both triangles, of rows a [n, d] with a stride; binary32 blocks, binary64 sum. */
static void stats_add_gram(double *sum, const float *a, size_t n, size_t d, size_t stride, float *product)
{
    for (size_t row = 0; row < n; row += BLOCK_ROWS) {
        size_t rows = n - row < BLOCK_ROWS ? n - row : BLOCK_ROWS;

        cblas_ssyrk(CblasRowMajor, CblasLower, CblasTrans, (int) d, (int) rows, 1.0f, a + row * stride,
                    (int) stride, 0.0f, product, (int) d);
        for (size_t i = 0; i < d; i++)
            for (size_t j = 0; j <= i; j++) {
                sum[i * d + j] += (double) product[i * d + j];
                if (i != j)
                    sum[j * d + i] += (double) product[i * d + j];
            }
    }
}

int stats_set_output_projection(struct stats *s, uint32_t layer, const float *wo, uint32_t n_embd,
                                struct errmsg *e)
{
    const struct geometry *g = &s->o.geometry;
    size_t d = g->d, width = g->n_heads * d;
    _cleanup_(freep) float *product = malloc(d * d * sizeof(*product));

    if (layer >= g->n_layers || n_embd == 0)
        return fail(e, -EINVAL, "output projection of layer %u: the model has %u layers", layer, g->n_layers);

    for (size_t i = 0; i < n_embd * width; i++)
        if (!isfinite(wo[i]))
            return fail(e, -EINVAL, "the output projection of layer %u is not finite", layer);
    if (!s->wo)
        s->wo = calloc((size_t) g->n_layers * g->n_heads * d * d, sizeof(double));
    if (!s->wo || !product)
        return fail(e, -ENOMEM, "out of memory for the output projections");

    for (uint32_t h = 0; h < g->n_heads; h++) {
        double *G = s->wo + ((size_t) layer * g->n_heads + h) * d * d;

        memset(G, 0, d * d * sizeof(*G));
        stats_add_gram(G, wo + h * d, n_embd, d, width, product);
    }

    s->have_wo[layer] = true;
    return 0;
}

/* Scratch of one window's moments. */
struct stats_moments {
    double mean[GEOMETRY_DIM_MAX];
    float centre[GEOMETRY_DIM_MAX];
    double *scatter; /* [d, d] */
    float *product;  /* [d, d] */
    float *centred;  /* [BLOCK_ROWS, d] */
};

/*
 * Mean and centred scatter of x [n, d]. With m the mean, and c the mean
 * rounded to binary32, the textbook form
 *     sum (x-m)(x-m)'
 * is computed as
 *     sum (x-c)(x-c)' - n (m-c)(m-c)'
 * because x and c are binary32 numbers: their difference has the precision of the data.
 */
static void stats_window_moments(struct stats_moments *m, const float *x, size_t n, size_t d, size_t stride)
{
    memset(m->mean, 0, sizeof(m->mean));
    memset(m->scatter, 0, d * d * sizeof(double));
    for (size_t row = 0; row < n; row++)
        for (size_t i = 0; i < d; i++)
            m->mean[i] += (double) x[row * stride + i];
    for (size_t i = 0; i < d; i++) {
        m->mean[i] /= (double) n;
        m->centre[i] = (float) m->mean[i];
    }

    for (size_t row = 0; row < n; row += BLOCK_ROWS) {
        size_t rows = n - row < BLOCK_ROWS ? n - row : BLOCK_ROWS;

        for (size_t t = 0; t < rows; t++)
            for (size_t i = 0; i < d; i++)
                m->centred[t * d + i] = x[(row + t) * stride + i] - m->centre[i];
        stats_add_gram(m->scatter, m->centred, rows, d, d, m->product);
    }

    for (size_t i = 0; i < d; i++)
        for (size_t j = 0; j < d; j++)
            m->scatter[i * d + j] -=
                (double) n * ((m->mean[i] - (double) m->centre[i]) * (m->mean[j] - (double) m->centre[j]));
}

/*
 * Chan: with delta = mean_b - mean_a, scatter = scatter_a + scatter_b + delta delta' n_a n_b / n and
 * mean = mean_a + delta n_b / n.
 */
void stats_merge_moments(size_t d, uint64_t n_a, double *mean_a, double *scatter_a, uint64_t n_b,
                         const double *mean_b, const double *scatter_b)
{
    double share = (double) n_b / (double) (n_a + n_b), weight = (double) n_a * share;

    for (size_t i = 0; i < d; i++)
        for (size_t j = 0; j < d; j++)
            scatter_a[i * d + j] +=
                scatter_b[i * d + j] + (mean_b[i] - mean_a[i]) * (mean_b[j] - mean_a[j]) * weight;
    for (size_t i = 0; i < d; i++)
        mean_a[i] += (mean_b[i] - mean_a[i]) * share;
}

static int stats_add_moments(struct stats *s, uint32_t layer, size_t n, size_t n_first, const float *x[2])
{
    const struct geometry *g = &s->o.geometry;
    size_t d = g->d, stride = g->n_kv_heads * d;
    _cleanup_(freep) double *scatter = malloc(d * d * sizeof(*scatter));
    _cleanup_(freep) float *floats = malloc((d * d + BLOCK_ROWS * d) * sizeof(*floats));
    struct stats_domain *to = &s->domains[s->window.domain];
    struct stats_moments m = {.scatter = scatter, .product = floats};

    if (!scatter || !floats)
        return -ENOMEM;

    m.centred = floats + d * d;
    for (uint32_t h = 0; h < g->n_kv_heads; h++)
        for (int side = SIDE_K; side <= SIDE_V; side++) {
            uint32_t hs = head_side_index(g, layer, h, (enum side) side);

            stats_window_moments(&m, x[side] + n_first * stride + h * d, n - n_first, d, stride);
            stats_merge_moments(d, to->n_tokens, to->mean + hs * d, to->scatter + hs * d * d, n - n_first,
                                m.mean, m.scatter);
        }
    return 0;
}

int stats_add_query(struct stats *s, uint32_t layer, size_t n, size_t n_first, const float *q)
{
    const struct geometry *g = &s->o.geometry;
    size_t d = g->d, stride = g->n_heads * d;
    _cleanup_(freep) float *product = malloc(d * d * sizeof(*product));

    if (!product)
        return -ENOMEM;

    for (uint32_t h = 0; h < g->n_heads; h++) {
        size_t kv = (size_t) layer * g->n_kv_heads + h / geometry_group(g);

        stats_add_gram(s->query + kv * d * d, q + n_first * stride + h * d, n - n_first, d, stride, product);
    }

    return 0;
}

static int stats_check_finite(const char *what, uint32_t layer, size_t n, uint32_t n_heads, size_t d,
                              const float *x, struct errmsg *e)
{
    for (size_t i = 0; i < n * n_heads * d; i++)
        if (!isfinite(x[i]))
            return fail(e, -EINVAL, "%s of layer %u head %zu is not finite at token %zu of the window", what,
                        layer, i / d % n_heads, i / d / n_heads);
    return 0;
}

/* Refuses a residual stream of length 0, since the output metric divides by it. */
static int stats_check_residual(uint32_t layer, size_t n, const float *residual, struct errmsg *e)
{
    for (size_t t = 0; t < n; t++)
        if (!isfinite(residual[t]) || residual[t] <= 0)
            return fail(e, -EINVAL,
                        "the residual stream of layer %u has mean square %g at token %zu of the window",
                        layer, (double) residual[t], t);
    return 0;
}

/* Refuses a call that neither continues the window nor may begin one. */
static int stats_check_order(const struct stats *s, uint64_t document, uint64_t position, uint32_t layer,
                             size_t n, struct errmsg *e)
{
    const struct window *w = &s->window;

    if (s->cross)
        return fail(e, -EINVAL, "statistics made of moments take no windows: add tokens to the moments");
    if (s->spoiled)
        return fail(e, -EINVAL,
                    "an earlier window failed after its first layer: start these statistics again");
    if (layer != w->next_layer)
        return fail(e, -EINVAL, "layer %u was added, but layer %u of the window comes next", layer,
                    w->next_layer);
    if (n == 0 || n > WINDOW_MAX)
        return fail(e, -EINVAL, "a window of %zu tokens is not in 1..%u", n, WINDOW_MAX);
    if (layer > 0 && (w->n != n || w->document != document || w->position != position))
        return fail(e, -EINVAL, "layer %u is of another window than the layers before it", layer);
    if (stats_wants_queries(s) && !s->have_wo[layer])
        return fail(e, -EINVAL, "the %s metric needs the output projection of layer %u first",
                    s->o.want_output ? "output" : "attention", layer);

    return 0;
}

bool stats_round_sums(double *sums, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        float rounded = (float) sums[i];

        if (!isfinite(rounded))
            return false;
        sums[i] = (double) rounded;
    }
    return true;
}

/* The sums of one layer. */
static bool stats_round_layer(struct stats *s, uint32_t layer)
{
    size_t per_layer = (size_t) s->o.geometry.n_kv_heads * s->o.geometry.d * s->o.geometry.d;

    return (!s->query || stats_round_sums(s->query + layer * per_layer, per_layer)) &&
           (!s->metric || stats_round_sums(s->metric + 2 * layer * per_layer, 2 * per_layer)) &&
           (!s->output || stats_round_sums(s->output + 2 * layer * per_layer, 2 * per_layer));
}

static int stats_append_layer(struct stats *s, uint32_t layer, const float *q, const float *const x[2],
                              const float *residual, struct errmsg *e)
{
    const struct window *w = &s->window;
    const float *rows[2] = {x[0], x[1]};
    int r;

    if (w->n <= w->n_first) /* the window holds sinks only */
        return 0;

    stats_sample_copy(s, layer, x);
    r = stats_add_moments(s, layer, w->n, w->n_first, rows);
    if (r == 0 && stats_wants_queries(s))
        r = stats_add_query(s, layer, w->n, w->n_first, q);
    if (r == 0 && stats_wants_queries(s))
        r = metric_sums_add(s, layer, w->n, w->n_first, stats_token_hash(s->o.seed, w->document, w->position),
                            q, x[SIDE_K], x[SIDE_V], residual);
    if (r < 0)
        return fail(e, r, "out of memory for the statistics of layer %u", layer);
    if (!stats_round_layer(s, layer))
        return fail(e, -EINVAL, "the metric of layer %u is too large for binary32: its numbers have no sense",
                    layer);

    return 0;
}

/* The first layer: what the window has for all of them. */
static int stats_begin_window(struct stats *s, uint64_t document, uint64_t position, size_t n,
                              struct errmsg *e)
{
    struct window *w = &s->window;
    int r;

    w->document = document;
    w->position = position;
    w->n = n;
    w->n_first = 0;
    if (position == 0)
        w->n_first = n < s->o.n_sink ? n : s->o.n_sink;
    r = stats_sample_draw(s, e); /* refuses tokens that were added before, and must change nothing then */
    if (r < 0 || n <= w->n_first)
        return r;

    if (stats_domain_get(s, &s->next, &w->domain) < 0) {
        s->spoiled = true; /* the drawn tokens have slots */
        return fail(e, -ENOMEM, "out of memory for the moments of one more source");
    }

    for (size_t i = 0; i < w->n_picks; i++)
        s->domain_of[w->picks[i].slot] = (uint8_t) w->domain;
    return 0;
}

static void stats_end_window(struct stats *s)
{
    struct window *w = &s->window;

    w->next_layer = 0;
    if (w->n <= w->n_first)
        return;

    s->has_offset = true;
    s->n_tokens += w->n - w->n_first;
    s->domains[w->domain].n_tokens += w->n - w->n_first;
    stats_domain_sum(s);
}

int stats_add_layer(struct stats *s, uint64_t document, uint64_t position, uint32_t layer, size_t n,
                    const float *q, const float *k, const float *v, const float *residual, struct errmsg *e)
{
    const struct geometry *g = &s->o.geometry;
    struct window *w = &s->window;
    int r = stats_check_order(s, document, position, layer, n, e);

    s->has_file_digest = false;
    if (r < 0)
        return r;
    if (stats_wants_queries(s) && !q)
        return fail(e, -EINVAL, "the metrics need the queries of layer %u", layer);
    if (s->o.want_output && !residual)
        return fail(e, -EINVAL, "the output metric needs the residual stream of layer %u", layer);
    if ((q && (r = stats_check_finite("a query", layer, n, g->n_heads, g->d, q, e)) < 0) ||
        (r = stats_check_finite("a key", layer, n, g->n_kv_heads, g->d, k, e)) < 0 ||
        (r = stats_check_finite("a value", layer, n, g->n_kv_heads, g->d, v, e)) < 0 ||
        (residual && (r = stats_check_residual(layer, n, residual, e)) < 0)) {
        s->spoiled = layer > 0;
        return r;
    }

    if (layer == 0) {
        r = stats_begin_window(s, document, position, n, e);
        if (r < 0)
            return r;
    }

    r = stats_append_layer(s, layer, q, (const float *[2]){k, v}, residual, e);
    if (r < 0) {
        s->spoiled = true;
        return r;
    }

    if (++w->next_layer == g->n_layers)
        stats_end_window(s);
    return 0;
}

uint64_t stats_window_bytes(const struct stats_options *o, size_t n)
{
    if (!o->want_attention && !o->want_output)
        return 0;

    return metric_sums_bytes(&o->geometry, n, o->want_output);
}
