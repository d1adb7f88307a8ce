/*
 * The stored form of sampled vectors: binary16 numbers of (x - offset) / scale. The offset is the mean of the
 * first window, so that a mean a thousand times the deviation costs no digit; the scale is a power of two
 * near the deviation, and grows if a later vector does not fit. See stats_sample.h.
 */
#include <float.h>
#include <math.h>
#include <stdlib.h>

#include "alloc/stats/stats_internal.h"
#include "alloc/stats/stats_sample.h"
#include "base/half.h"

#define LARGEST 0x1p15 /* stored numbers are smaller when they are written; binary16 ends at 65504 */
#define GROWN 0x1p9    /* the largest one after the scale grew */

/* The power of two that is not below @x, within the range of binary32. */
static float sample_code_power(double x)
{
    int exponent;

    (void) frexp(x, &exponent);
    if (!(x > 0) || exponent < -100) /* a first window of equal vectors: the scale grows with the next one */
        exponent = -100;
    return (float) ldexp(1, exponent < 127 ? exponent : 127);
}

void sample_code_set_offset(struct stats *s, uint32_t head_side, const float *x, size_t n, size_t stride)
{
    size_t d = s->o.geometry.d;
    double square = 0, mean[GEOMETRY_DIM_MAX] = {0};

    for (size_t t = 0; t < n; t++)
        for (size_t i = 0; i < d; i++)
            mean[i] += (double) x[t * stride + i] / (double) n;
    for (size_t i = 0; i < d; i++)
        s->offset[head_side * d + i] = (float) mean[i];
    for (size_t t = 0; t < n; t++)
        for (size_t i = 0; i < d; i++) {
            double away = (double) x[t * stride + i] - (double) s->offset[head_side * d + i];

            square += away * away / (double) (n * d);
        }

    s->scale[head_side] = sample_code_power(sqrt(square));
}

/* Divides what is stored by a power of two, and multiplies the scale by it. */
static void sample_code_grow(struct stats *s, uint32_t head_side, double largest)
{
    float scale = sample_code_power(largest / GROWN), factor = s->scale[head_side] / scale;
    uint16_t *rows = stats_sample_rows(s, head_side);

    for (size_t i = 0; i < s->n_slots * s->o.geometry.d; i++)
        rows[i] = f32_to_f16(f16_to_f32(rows[i]) * factor);
    s->scale[head_side] = scale;
}

void sample_code_put(struct stats *s, uint32_t head_side, size_t slot, const float *x)
{
    size_t d = s->o.geometry.d;
    const float *offset = s->offset + head_side * d;
    uint16_t *to = stats_sample_rows(s, head_side) + slot * d;
    double largest = 0;

    for (size_t i = 0; i < d; i++)
        largest = fmax(largest, fabs((double) x[i] - (double) offset[i]));
    if (largest >= LARGEST * (double) s->scale[head_side])
        sample_code_grow(s, head_side, largest);
    for (size_t i = 0; i < d; i++)
        to[i] = f32_to_f16((float) (((double) x[i] - (double) offset[i]) / (double) s->scale[head_side]));
}

/* f16_to_f32() of a finite number, without branches: the exponent is corrected by a product, which is exact,
 * also for subnormal numbers. */
static inline float sample_code_finite(uint16_t h)
{
    float magnitude = half_bits_to_float((uint32_t) (h & 0x7fff) << 13) * 0x1p112f;

    return half_bits_to_float(half_float_to_bits(magnitude) | (uint32_t) (h & 0x8000) << 16);
}

/* offset + scale h: the product is exact, since the scale is a power of two, and the sum is rounded once. */
void sample_code_get(const struct stats *s, uint32_t head_side, size_t slot, float *restrict ret_x)
{
    size_t d = s->o.geometry.d;
    const float *restrict offset = s->offset + head_side * d;
    const uint16_t *restrict from = stats_sample_rows(s, head_side) + slot * d;
    float scale = s->scale[head_side];

    for (size_t i = 0; i < d; i++) {
        float x = offset[i] + scale * sample_code_finite(from[i]);

        x = x < -FLT_MAX ? -FLT_MAX : x; /* of a hostile file */
        ret_x[i] = x > FLT_MAX ? FLT_MAX : x;
    }
}

/* The slots of a source are between those of others, so the processor does not foresee them: without this, a
 * solve waits for three quarters of the time that it spends here. */
#define AHEAD 12
#define LINE_NUMBERS (64 / sizeof(uint16_t))

static void sample_code_prefetch(const struct stats *s, uint32_t head_side, size_t slot)
{
    size_t d = s->o.geometry.d;
    const uint16_t *from = stats_sample_rows(s, head_side) + slot * d;

    for (size_t i = 0; i < d; i += LINE_NUMBERS)
        __builtin_prefetch(from + i);
}

void sample_code_read(const struct stats *s, uint32_t head_side, const uint32_t *slots, size_t n, size_t step,
                      float *ret_x)
{
    for (size_t i = 0; i < n; i++) {
        if (i + AHEAD < n)
            sample_code_prefetch(s, head_side, slots[(i + AHEAD) * step]);
        sample_code_get(s, head_side, slots[i * step], ret_x + i * s->o.geometry.d);
    }
}

float *stats_sample_load(const struct stats *s, uint32_t head_side)
{
    size_t d = s->o.geometry.d;
    float *x = malloc((s->n_held * d + 1) * sizeof(*x));

    for (size_t i = 0; x && i < s->n_held; i++)
        sample_code_get(s, head_side, i, x + i * d);
    return x;
}
