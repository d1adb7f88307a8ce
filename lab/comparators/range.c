/* See range.h. */
#include "lab/comparators/range.h"

#include <math.h>

#include "base/half.h"

uint64_t range_code(const float *x, size_t n, size_t stride, unsigned b, float *ret_y)
{
    float lo = x[0], hi = x[0], top = (float) ((1u << b) - 1), step, least;

    for (size_t i = 1; i < n; i++) {
        lo = fminf(lo, x[i * stride]);
        hi = fmaxf(hi, x[i * stride]);
    }

    step = f16_to_f32(f32_to_f16((hi - lo) / top));
    least = f16_to_f32(f32_to_f16(lo));
    for (size_t i = 0; i < n; i++) {
        float code = step > 0 ? rintf(fminf(fmaxf((x[i * stride] - least) / step, 0), top)) : 0;

        ret_y[i * stride] = least + code * step;
    }

    return n * b + RANGE_META_BITS;
}
