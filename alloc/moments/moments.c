/*
 * Adding and merging moments; see moments.h.
 *
 * Each block of tokens gives a mean and the scatter around it, which Chan's rule joins to the earlier ones.
 * No large numbers are subtracted, so a key bias a thousand times the deviation costs no digit. All sums
 * are binary64: moments add up over days of traffic. In binary32 the rounding error of the largest direction
 * would exceed the variance of the smallest ones, and a codec chooses directions by their variance.
 */
#include "alloc/moments/moments.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/moments/moments_format.h"
#include "alloc/table/table.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/errmsg.h"

#define BLOCK_ROWS 64 /* rows of a block and the triangle fit the second-level cache up to d = 128 */

/* The joint part, if the options want it. False: out of memory. */
static bool moments_alloc_joint(struct moments *m)
{
    const struct geometry *g = &m->o.geometry;
    size_t wide = (size_t) g->n_kv_heads * 2 * g->d;

    if (!m->o.joint)
        return true;

    m->joint = calloc(g->n_layers * moments_joint_numbers(g), sizeof(*m->joint));
    m->wide = malloc(BLOCK_ROWS * wide * sizeof(*m->wide));
    m->delta = malloc(wide * sizeof(*m->delta));
    return m->joint && m->wide && m->delta;
}

int moments_new(const struct moments_options *o, struct moments **ret_moments, struct errmsg *e)
{
    _cleanup_(moments_freep) struct moments *m = NULL;
    size_t n_heads, width = 2 * (size_t) o->geometry.d;
    int r = geometry_validate(&o->geometry, e);

    if (r < 0)
        return r;
    if (o->n_sink > TABLE_SINKS_MAX)
        return fail(e, -EINVAL, "%u sinks left out, at most %u are possible", o->n_sink, TABLE_SINKS_MAX);
    if (!memchr(o->model_name, '\0', sizeof(o->model_name)))
        return fail(e, -EINVAL, "the model's name is not terminated");

    n_heads = (size_t) o->geometry.n_layers * o->geometry.n_kv_heads;
    m = calloc(1, sizeof(*m));
    if (!m)
        return fail(e, -ENOMEM, "out of memory for moments");

    m->o = *o;
    m->o.joint = o->joint && o->geometry.n_kv_heads > 1;
    m->count = calloc(n_heads, sizeof(*m->count));
    m->mean = calloc(n_heads * width, sizeof(*m->mean));
    m->scatter = calloc(n_heads * moments_triangle(&o->geometry), sizeof(*m->scatter));
    m->rows = malloc((BLOCK_ROWS + 1) * width * sizeof(*m->rows));
    m->block = malloc(moments_triangle(&o->geometry) * sizeof(*m->block));
    if (!m->count || !m->mean || !m->scatter || !m->rows || !m->block || !moments_alloc_joint(m))
        return fail(e, -ENOMEM, "out of memory: moments of this model take %zu MiB",
                    (n_heads * (width + moments_triangle(&o->geometry)) +
                     (m->o.joint ? o->geometry.n_layers * moments_joint_numbers(&o->geometry) : 0)) *
                            sizeof(double) >>
                        20);

    *ret_moments = take_ptr(m);
    return 0;
}

struct moments *moments_free(struct moments *m)
{
    if (!m)
        return NULL;

    free(m->count);
    free(m->mean);
    free(m->scatter);
    free(m->joint);
    free(m->rows);
    free(m->block);
    free(m->wide);
    free(m->delta);
    free(m);
    return NULL;
}

/*
 * Chan: with delta = mean_b - mean_a and n = n_a + n_b, scatter = scatter_a + scatter_b + delta delta' n_a
 * n_b / n and mean = mean_a + delta n_b / n. @n_b > 0.
 */
static void moments_join(size_t width, uint64_t *n_a, double *mean_a, double *scatter_a, uint64_t n_b,
                         const double *mean_b, const double *scatter_b)
{
    double share = (double) n_b / (double) (*n_a + n_b), weight = (double) *n_a * share;

    for (size_t i = 0; i < width; i++) {
        double delta = (mean_b[i] - mean_a[i]) * weight;

        for (size_t j = 0; j <= i; j++)
            *scatter_a++ += *scatter_b++ + delta * (mean_b[j] - mean_a[j]);
    }
    for (size_t i = 0; i < width; i++)
        mean_a[i] += (mean_b[i] - mean_a[i]) * share;
    *n_a += n_b;
}

/* Mean and scatter of the @n rows in m->rows [n, width]; the rows are centred in place. */
static void moments_of_block(const struct moments *m, size_t n, size_t width, double *ret_mean,
                             double *ret_scatter)
{
    memset(ret_mean, 0, width * sizeof(*ret_mean));
    for (size_t t = 0; t < n; t++)
        for (size_t i = 0; i < width; i++)
            ret_mean[i] += m->rows[t * width + i];
    for (size_t i = 0; i < width; i++)
        ret_mean[i] /= (double) n;
    for (size_t t = 0; t < n; t++)
        for (size_t i = 0; i < width; i++)
            m->rows[t * width + i] -= ret_mean[i];
    for (size_t i = 0; i < width; i++) {
        memset(ret_scatter, 0, (i + 1) * sizeof(*ret_scatter));
        for (size_t t = 0; t < n; t++) {
            const double *row = m->rows + t * width;
            double x = row[i];

            for (size_t j = 0; j <= i; j++)
                ret_scatter[j] += x * row[j];
        }

        ret_scatter += i + 1;
    }
}

static int moments_check_finite(const char *what, uint32_t layer, uint32_t first_head, uint32_t n_heads,
                                size_t n, size_t d, const float *x, struct errmsg *e)
{
    for (size_t i = 0; i < n * n_heads * d; i++)
        if (!isfinite(x[i]))
            return fail(e, -EINVAL, "a %s of layer %u head %zu is not finite", what, layer,
                        first_head + i / d % n_heads);
    return 0;
}

/* At most BLOCK_ROWS tokens. */
static void moments_add_head(struct moments *m, size_t head, size_t rows, size_t stride, const float *k,
                             const float *v)
{
    size_t d = m->o.geometry.d, width = 2 * d;
    double *mean = m->rows + BLOCK_ROWS * width;

    for (size_t t = 0; t < rows; t++)
        for (size_t i = 0; i < d; i++) {
            m->rows[t * width + i] = (double) k[t * stride + i];
            m->rows[t * width + d + i] = (double) v[t * stride + i];
        }
    moments_of_block(m, rows, width, mean, m->block);
    moments_join(width, &m->count[head], m->mean + head * width,
                 m->scatter + head * moments_triangle(&m->o.geometry), rows, mean, m->block);
}

int moments_add(struct moments *m, uint32_t layer, uint32_t first_head, uint32_t n_heads, size_t n,
                const float *k, const float *v, struct errmsg *e)
{
    const struct geometry *g = &m->o.geometry;
    int r;

    if (layer >= g->n_layers || first_head > g->n_kv_heads || n_heads > g->n_kv_heads - first_head)
        return fail(e, -EINVAL, "layer %u, heads %u to %u: the model has %u layers of %u KV heads", layer,
                    first_head, first_head + n_heads, g->n_layers, g->n_kv_heads);
    if (m->o.joint && n_heads != g->n_kv_heads)
        return fail(e, -EINVAL, "joint moments need all %u KV heads of a layer, not %u", g->n_kv_heads,
                    n_heads);
    if (n > MOMENTS_COUNT_MAX)
        return fail(e, -EINVAL, "%zu tokens in one call are too many to count", n);
    if ((r = moments_check_finite("key", layer, first_head, n_heads, n, g->d, k, e)) < 0 ||
        (r = moments_check_finite("value", layer, first_head, n_heads, n, g->d, v, e)) < 0)
        return r;

    for (size_t first = 0; first < n; first += BLOCK_ROWS) {
        size_t rows = n - first < BLOCK_ROWS ? n - first : BLOCK_ROWS, stride = (size_t) n_heads * g->d;

        if (m->o.joint)
            moments_joint_add(m, layer, rows, k + first * stride, v + first * stride);
        for (uint32_t h = 0; h < n_heads; h++)
            moments_add_head(m, (size_t) layer * g->n_kv_heads + first_head + h, rows, stride,
                             k + first * stride + h * g->d, v + first * stride + h * g->d);
    }

    return 0;
}

/* Refuses two sets of moments that are not parts of one whole, with a sentence about the first difference. */
static int moments_check_same(const struct moments_options *a, const struct moments_options *b,
                              struct errmsg *e)
{
    uint8_t geometry_a[DIGEST_BYTES], geometry_b[DIGEST_BYTES];

    if (memcmp(a->model_digest, b->model_digest, DIGEST_BYTES) != 0)
        return fail(e, -EINVAL, "the moments are of different models: %s and %s", a->model_name,
                    b->model_name);

    geometry_digest(&a->geometry, geometry_a);
    geometry_digest(&b->geometry, geometry_b);
    if (memcmp(geometry_a, geometry_b, DIGEST_BYTES) != 0)
        return fail(e, -EINVAL, "the moments are of different geometries: heads, dimensions, RoPE or scale");
    if (a->n_sink != b->n_sink)
        return fail(e, -EINVAL, "the moments leave out different sinks: %u and %u tokens", a->n_sink,
                    b->n_sink);
    if (a->joint && !b->joint)
        return fail(e, -EINVAL, "moments without covariances between heads cannot be added to joint ones");

    return 0;
}

int moments_merge(struct moments *m, const struct moments *other, struct errmsg *e)
{
    const struct geometry *g = &m->o.geometry;
    size_t width = 2 * (size_t) g->d, triangle = moments_triangle(g);
    size_t n_heads = (size_t) g->n_layers * g->n_kv_heads;
    int r;

    if (m == other)
        return fail(e, -EINVAL, "moments cannot be merged with themselves");

    r = moments_check_same(&m->o, &other->o, e);
    if (r < 0)
        return r;

    for (size_t h = 0; h < n_heads; h++)
        if (other->count[h] > MOMENTS_COUNT_MAX - m->count[h])
            return fail(e, -EINVAL,
                        "the moments count more than 2^48 tokens together, the most that a file can hold");
    for (uint32_t layer = 0; m->o.joint && layer < g->n_layers; layer++)
        if (other->count[layer * g->n_kv_heads] > 0)
            moments_joint_merge(m, other, layer);
    for (size_t h = 0; h < n_heads; h++)
        if (other->count[h] > 0)
            moments_join(width, &m->count[h], m->mean + h * width, m->scatter + h * triangle, other->count[h],
                         other->mean + h * width, other->scatter + h * triangle);
    if (m->o.model_name[0] == '\0')
        memcpy(m->o.model_name, other->o.model_name, sizeof(m->o.model_name));
    return 0;
}

static void moments_scale(double *x, size_t n, double factor)
{
    for (size_t i = 0; i < n; i++)
        x[i] *= factor;
}

void moments_halve(struct moments *m)
{
    const struct geometry *g = &m->o.geometry;
    size_t triangle = moments_triangle(g), joint = moments_joint_numbers(g);

    for (size_t h = 0; h < (size_t) g->n_layers * g->n_kv_heads; h++) {
        uint64_t half = m->count[h] - m->count[h] / 2; /* not 0, unless there are none */
        double factor = m->count[h] > 0 ? (double) half / (double) m->count[h] : 0;

        moments_scale(m->scatter + h * triangle, triangle, factor);
        if (m->o.joint && h % g->n_kv_heads == 0) /* one count for the heads of a layer */
            moments_scale(m->joint + h / g->n_kv_heads * joint, joint, factor);
        m->count[h] = half;
    }
}

const struct moments_options *moments_get_options(const struct moments *m)
{
    return &m->o;
}

uint64_t moments_count(const struct moments *m, uint32_t layer, uint32_t head)
{
    return m->count[(size_t) layer * m->o.geometry.n_kv_heads + head];
}

const double *moments_mean(const struct moments *m, uint32_t layer, uint32_t head)
{
    return m->mean + ((size_t) layer * m->o.geometry.n_kv_heads + head) * 2 * m->o.geometry.d;
}

const double *moments_scatter(const struct moments *m, uint32_t layer, uint32_t head)
{
    return m->scatter + moments_scatter_at(m, layer, head);
}
