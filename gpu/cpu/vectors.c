/* See gpu/vectors.h. */
#include "gpu/vectors.h"

#include <string.h>

#include "base/half.h"
#include "gpu/dtype.h"

/* x [d] := R x. @sign 1: to after RoPE, -1: back. */
static void vectors_rotate(const struct geometry *g, const float *cos, const float *sin, float sign, float *x)
{
    size_t half = g->n_rot / 2;

    for (size_t i = 0; i < half; i++) {
        float lo = x[i], hi = x[half + i], s = sign * sin[i];

        x[i] = lo * cos[i] - hi * s;
        x[half + i] = hi * cos[i] + lo * s;
    }
}

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

void vectors_load(const struct vector_form *f, const void *from, size_t stride, size_t n, float *to,
                  size_t to_stride)
{
    const struct geometry *g = f->geometry;
    size_t half = g->n_rot / 2;

    for (size_t t = 0; t < n; t++, to += to_stride) {
        dtype_load(f->dtype, from, t * stride, g->d, to);
        if (f->interleaved)
            vectors_split_pairs(g, to);
        if (f->cos)
            vectors_rotate(g, f->cos + t * half, f->sin + t * half, -1, to);
    }
}

void vectors_store(const struct vector_form *f, const float *from, size_t from_stride, size_t n, void *to,
                   size_t token_stride, size_t dim_stride)
{
    const struct geometry *g = f->geometry;
    size_t half = g->n_rot / 2, bytes = dtype_bytes(f->dtype);
    float x[GEOMETRY_DIM_MAX];

    for (size_t t = 0; t < n; t++, from += from_stride) {
        char *at = (char *) to + t * token_stride * bytes;

        memcpy(x, from, g->d * sizeof(*x));
        if (f->cos)
            vectors_rotate(g, f->cos + t * half, f->sin + t * half, 1, x);
        if (f->interleaved)
            vectors_join_pairs(g, x);
        if (dim_stride == 1)
            dtype_store(f->dtype, x, g->d, at);
        else
            for (size_t i = 0; i < g->d; i++)
                dtype_store(f->dtype, &x[i], 1, at + i * dim_stride * bytes);
    }
}

size_t vectors_centre(const float *x, size_t n, size_t d, const float *mean, uint16_t *ret)
{
    for (size_t t = 0; t < n; t++)
        for (size_t i = 0; i < d; i++) {
            uint16_t half = f32_to_f16(x[t * d + i] - mean[i]);

            ret[t * d + i] = half;
            if ((half & 0x7c00) == 0x7c00)
                return t;
        }
    return n;
}

void vectors_add_mean(const void *x, size_t n, size_t d, const float *mean, float *ret, size_t ret_stride)
{
    for (size_t t = 0; t < n; t++)
        for (size_t i = 0; i < d; i++) {
            uint16_t half;

            memcpy(&half, (const char *) x + (t * d + i) * sizeof(half), sizeof(half));
            ret[t * ret_stride + i] = mean[i] + f16_to_f32(half);
        }
}
