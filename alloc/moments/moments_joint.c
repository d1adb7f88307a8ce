/*
 * The joint part of moments: scatters of keys with the keys and values of other heads of their layer. Values
 * that are predicted from all heads of a layer need them. See moments.h and moments_format.h.
 */
#include <errno.h>
#include <float.h>
#include <math.h>
#include <string.h>

#include "alloc/moments/moments_format.h"
#include "base/errmsg.h"

/* The three blocks [d, d] of heads @a > @b: k_a with k_b, v_a with k_b, v_b with k_a. */
static double *moments_joint_blocks(const struct moments *m, uint32_t layer, uint32_t a, uint32_t b)
{
    size_t pair = (size_t) a * (a - 1) / 2 + b, dd = (size_t) m->o.geometry.d * m->o.geometry.d;

    return m->joint + layer * moments_joint_numbers(&m->o.geometry) + 3 * pair * dd;
}

const double *moments_key_scatter(const struct moments *m, uint32_t layer, uint32_t head, uint32_t lower)
{
    return moments_joint_blocks(m, layer, head, lower);
}

const double *moments_value_scatter(const struct moments *m, uint32_t layer, uint32_t value, uint32_t key)
{
    size_t dd = (size_t) m->o.geometry.d * m->o.geometry.d;

    return value > key ? moments_joint_blocks(m, layer, value, key) + dd
                       : moments_joint_blocks(m, layer, key, value) + 2 * dd;
}

/* block += delta_x delta_y' weight */
static void moments_joint_add_means(double *block, size_t d, double weight, const double *x, const double *y)
{
    for (size_t i = 0; i < d; i++)
        for (size_t j = 0; j < d; j++)
            block[i * d + j] += weight * x[i] * y[j];
}

/*
 * Chan's rule (moments.c) for the blocks of one layer. @delta: [heads, 2d] differences of the means;
 * @weight: n_a n_b / n
 */
static void moments_joint_shift(struct moments *m, uint32_t layer, double weight, const double *delta)
{
    size_t d = m->o.geometry.d, dd = d * d;

    for (uint32_t a = 1; a < m->o.geometry.n_kv_heads; a++)
        for (uint32_t b = 0; b < a; b++) {
            const double *in_a = delta + a * 2 * d, *in_b = delta + b * 2 * d;
            double *block = moments_joint_blocks(m, layer, a, b);

            moments_joint_add_means(block, d, weight, in_a, in_b);
            moments_joint_add_means(block + dd, d, weight, in_a + d, in_b);
            moments_joint_add_means(block + 2 * dd, d, weight, in_b + d, in_a);
        }
}

void moments_joint_merge(struct moments *m, const struct moments *other, uint32_t layer)
{
    const struct geometry *g = &m->o.geometry;
    size_t heads = g->n_kv_heads, width = 2 * (size_t) g->d, numbers = moments_joint_numbers(g);
    double n_a = (double) m->count[layer * heads], n_b = (double) other->count[layer * heads];
    const double *mean_a = m->mean + layer * heads * width, *mean_b = other->mean + layer * heads * width;

    for (size_t i = 0; i < numbers; i++)
        m->joint[layer * numbers + i] += other->joint[layer * numbers + i];
    for (size_t i = 0; i < heads * width; i++)
        m->delta[i] = mean_b[i] - mean_a[i];
    moments_joint_shift(m, layer, n_a * (n_b / (n_a + n_b)), m->delta);
}

/* block += sum over rows of x y' */
static void moments_joint_add_rows(double *block, size_t d, size_t n, size_t stride, const double *x,
                                   const double *y)
{
    for (size_t t = 0; t < n; t++, x += stride, y += stride)
        for (size_t i = 0; i < d; i++)
            for (size_t j = 0; j < d; j++)
                block[i * d + j] += x[i] * y[j];
}

/* The rows [n, heads, 2d] of m->wide minus their mean, which goes to m->delta. */
static void moments_joint_centre(struct moments *m, size_t n, size_t numbers)
{
    memset(m->delta, 0, numbers * sizeof(*m->delta));
    for (size_t t = 0; t < n; t++)
        for (size_t i = 0; i < numbers; i++)
            m->delta[i] += m->wide[t * numbers + i];
    for (size_t i = 0; i < numbers; i++)
        m->delta[i] /= (double) n;
    for (size_t t = 0; t < n; t++)
        for (size_t i = 0; i < numbers; i++)
            m->wide[t * numbers + i] -= m->delta[i];
}

void moments_joint_add(struct moments *m, uint32_t layer, size_t n, const float *k, const float *v)
{
    size_t heads = m->o.geometry.n_kv_heads, d = m->o.geometry.d, dd = d * d, numbers = heads * 2 * d;
    double n_a = (double) m->count[layer * heads];

    for (size_t t = 0; t < n; t++)
        for (size_t h = 0; h < heads; h++)
            for (size_t i = 0; i < d; i++) {
                m->wide[t * numbers + h * 2 * d + i] = (double) k[(t * heads + h) * d + i];
                m->wide[t * numbers + h * 2 * d + d + i] = (double) v[(t * heads + h) * d + i];
            }
    moments_joint_centre(m, n, numbers);
    for (uint32_t a = 1; a < heads; a++)
        for (uint32_t b = 0; b < a; b++) {
            const double *in_a = m->wide + a * 2 * d, *in_b = m->wide + b * 2 * d;
            double *block = moments_joint_blocks(m, layer, a, b);

            moments_joint_add_rows(block, d, n, numbers, in_a, in_b);
            moments_joint_add_rows(block + dd, d, n, numbers, in_a + d, in_b);
            moments_joint_add_rows(block + 2 * dd, d, n, numbers, in_b + d, in_a);
        }
    for (size_t i = 0; i < numbers; i++)
        m->delta[i] -= m->mean[layer * numbers + i];
    moments_joint_shift(m, layer, n_a * ((double) n / (n_a + (double) n)), m->delta);
}

/* ---- bytes from a file ---- */

/* Cauchy and Schwarz: |block[i, j]| <= deviation x[i] y[j], with leeway for the rounding of long sums. */
static bool moments_joint_block_possible(const double *block, size_t d, const double *x, const double *y)
{
    for (size_t i = 0; i < d; i++)
        for (size_t j = 0; j < d; j++)
            if (!(fabs(block[i * d + j]) <= x[i] * y[j] * (1 + 1e-6) + DBL_MIN))
                return false;
    return true;
}

int moments_joint_check(const struct moments *m, uint32_t layer, struct errmsg *e)
{
    size_t heads = m->o.geometry.n_kv_heads, d = m->o.geometry.d, dd = d * d;

    for (uint32_t h = 0; h < heads; h++) {
        const double *scatter = m->scatter + moments_scatter_at(m, layer, h);

        if (m->count[layer * heads + h] != m->count[layer * heads])
            return fail(e, -EBADMSG, "moments file: the heads of layer %u have different tokens", layer);
        for (size_t i = 0; i < 2 * d; i++)
            m->delta[h * 2 * d + i] = sqrt(scatter[i * (i + 1) / 2 + i]);
    }

    for (uint32_t a = 1; a < heads; a++)
        for (uint32_t b = 0; b < a; b++) {
            const double *block = moments_joint_blocks(m, layer, a, b);
            const double *in_a = m->delta + a * 2 * d, *in_b = m->delta + b * 2 * d;

            if (!moments_joint_block_possible(block, d, in_a, in_b) ||
                !moments_joint_block_possible(block + dd, d, in_a + d, in_b) ||
                !moments_joint_block_possible(block + 2 * dd, d, in_b + d, in_a))
                return fail(e, -EBADMSG,
                            "moments file: no tokens have the moments of layer %u, heads %u and %u", layer, a,
                            b);
        }

    return 0;
}
