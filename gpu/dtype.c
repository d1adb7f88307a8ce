/* See dtype.h. */
#include "gpu/dtype.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "base/half.h"

size_t dtype_bytes(unsigned dtype)
{
    switch (dtype) {
    case DTYPE_F32:
        return 4;
    case DTYPE_F16:
    case DTYPE_BF16:
        return 2;
    }
    return 0;
}

void dtype_load(unsigned dtype, const void *from, size_t first, size_t n, float *to)
{
    const uint16_t *half = (const uint16_t *) from + first;

    switch (dtype) {
    case DTYPE_F32:
        memcpy(to, (const float *) from + first, n * sizeof(*to));
        break;
    case DTYPE_F16:
        for (size_t i = 0; i < n; i++)
            to[i] = f16_to_f32(half[i]);
        break;
    case DTYPE_BF16:
        for (size_t i = 0; i < n; i++)
            to[i] = bf16_to_f32(half[i]);
        break;
    }
}

void dtype_store(unsigned dtype, const float *from, size_t n, void *to)
{
    uint16_t *half = to;

    switch (dtype) {
    case DTYPE_F32:
        memcpy(to, from, n * sizeof(*from));
        break;
    case DTYPE_F16:
        for (size_t i = 0; i < n; i++)
            half[i] = f32_to_f16(from[i]);
        break;
    case DTYPE_BF16:
        for (size_t i = 0; i < n; i++)
            half[i] = f32_to_bf16(from[i]);
        break;
    }
}

/* A number is not finite if all bits of its exponent are set: without branches, for vector instructions. */
bool dtype_all_finite(unsigned dtype, const void *x, size_t n)
{
    const uint16_t exponent = dtype == DTYPE_F16 ? 0x7c00 : 0x7f80, *half = x;
    unsigned n_bad = 0;

    if (dtype == DTYPE_F32) {
        const float *f = x;

        for (size_t i = 0; i < n; i++)
            n_bad |= !(fabsf(f[i]) <= FLT_MAX);
    } else {
        for (size_t i = 0; i < n; i++)
            n_bad |= (half[i] & exponent) == exponent;
    }
    return n_bad == 0;
}
