/* See gpu/vectors.h. */
#include "gpu/vectors.h"

#include <string.h>

#include "gpu/cpu/ops.h"
#include "gpu/dtype.h"

/* Interleaved pairs to half-split ones. */
static void vectors_split_pairs(const struct geometry *g, float *x)
{
    float pairs[GEOMETRY_DIM_MAX];
    size_t half = g->n_rot / 2;

    memcpy(pairs, x, g->n_rot * sizeof(*x));
    for (size_t i = 0; i < half; i++) {
        x[i] = pairs[2 * i];
        x[half + i] = pairs[2 * i + 1];
    }
}

static void vectors_join_pairs(const struct geometry *g, float *x)
{
    float halves[GEOMETRY_DIM_MAX];
    size_t half = g->n_rot / 2;

    memcpy(halves, x, g->n_rot * sizeof(*x));
    for (size_t i = 0; i < half; i++) {
        x[2 * i] = halves[i];
        x[2 * i + 1] = halves[half + i];
    }
}

/* ---- number types ---- */

static void vectors_from(unsigned dtype, const void *from, size_t n, float *to)
{
    switch (dtype) {
    case DTYPE_F16:
        ops_best()->from_half(from, n, to);
        break;
    case DTYPE_BF16:
        ops_best()->from_brain(from, n, to);
        break;
    default:
        memcpy(to, from, n * sizeof(*to));
    }
}

static void vectors_to(unsigned dtype, const float *from, size_t n, void *to)
{
    switch (dtype) {
    case DTYPE_F16:
        (void) ops_best()->to_half(from, n, to);
        break;
    case DTYPE_BF16:
        ops_best()->to_brain(from, n, to);
        break;
    default:
        memcpy(to, from, n * sizeof(*from));
    }
}

/* ---- vectors of a caller ---- */

void vectors_load(const struct vector_form *f, const void *from, size_t stride, size_t n, float *to,
                  size_t to_stride)
{
    const struct geometry *g = f->geometry;
    size_t half = g->n_rot / 2, bytes = dtype_bytes(f->dtype);

    for (size_t t = 0; t < n; t++, to += to_stride) {
        vectors_from(f->dtype, (const char *) from + t * stride * bytes, g->d, to);
        if (f->interleaved)
            vectors_split_pairs(g, to);
        if (f->cos)
            ops_best()->turn(to, to + half, f->cos + t * half, f->sin + t * half, -1, half);
    }
}

/* One vector in the caller's order and number type. */
static void vectors_convert(const struct vector_form *f, const float *from, size_t t, void *to)
{
    const struct geometry *g = f->geometry;
    size_t half = g->n_rot / 2;
    float x[GEOMETRY_DIM_MAX];

    if (!f->cos && !f->interleaved) {
        vectors_to(f->dtype, from, g->d, to);
        return;
    }

    memcpy(x, from, g->d * sizeof(*x));
    if (f->cos)
        ops_best()->turn(x, x + half, f->cos + t * half, f->sin + t * half, 1, half);
    if (f->interleaved)
        vectors_join_pairs(g, x);
    vectors_to(f->dtype, x, g->d, to);
}

/* Numbers of @bytes each, @step numbers apart. */
static void vectors_scatter(const void *from, size_t bytes, size_t n, void *to, size_t step)
{
    const char *at = from;
    char *ret = to;

    if (bytes == 2)
        for (size_t i = 0; i < n; i++)
            memcpy(ret + i * step * 2, at + i * 2, 2);
    else
        for (size_t i = 0; i < n; i++)
            memcpy(ret + i * step * 4, at + i * 4, 4);
}

void vectors_store(const struct vector_form *f, const float *from, size_t from_stride, size_t n, void *to,
                   size_t token_stride, size_t dim_stride)
{
    size_t bytes = dtype_bytes(f->dtype);
    float x[GEOMETRY_DIM_MAX];

    for (size_t t = 0; t < n; t++) {
        char *at = (char *) to + t * token_stride * bytes;

        if (dim_stride == 1) {
            vectors_convert(f, from + t * from_stride, t, at);
        } else {
            vectors_convert(f, from + t * from_stride, t, x);
            vectors_scatter(x, bytes, f->geometry->d, at, dim_stride);
        }
    }
}

size_t vectors_centre(const float *x, size_t n, size_t d, const float *mean, uint16_t *ret)
{
    float centred[GEOMETRY_DIM_MAX];

    for (size_t t = 0; t < n; t++) {
        for (size_t i = 0; i < d; i++)
            centred[i] = x[t * d + i] - mean[i];
        if (!ops_best()->to_half(centred, d, ret + t * d))
            return t;
    }
    return n;
}

void vectors_add_mean(const void *x, size_t n, size_t d, const float *mean, float *ret, size_t ret_stride)
{
    for (size_t t = 0; t < n; t++, ret += ret_stride) {
        ops_best()->from_half((const char *) x + t * d * sizeof(uint16_t), d, ret);
        for (size_t i = 0; i < d; i++)
            ret[i] = mean[i] + ret[i];
    }
}
