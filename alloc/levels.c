/* See levels.h; levels_quantise() is declared in table.h, next to the type. */
#include "alloc/levels.h"

#include <math.h>
#include <string.h>

#include "base/half.h"

void levels_set_thresholds(struct levels *l, unsigned b)
{
    /* Sum and half are exact in binary64, and so is the product with a 24-bit step: one rounding in all. */
    for (unsigned i = 0; i + 1 < 1u << b; i++)
        l->threshold[i] =
            (float) (((double) l->value[i] + (double) l->value[i + 1]) * 0.5 * (double) l->step);
}

static bool levels_value_valid(const struct levels *l, unsigned b, unsigned i)
{
    float v = l->value[i];

    if (b <= LEVELS_INT8_BITS_MAX)
        return v == (float) l->value_i8[i] && l->value_i8[i] != INT8_MIN;
    return isfinite(v) && f16_to_f32(f32_to_f16(v)) == v;
}

bool levels_valid(const struct levels *l, unsigned b)
{
    struct levels want = {.step = l->step};
    unsigned n = 1u << b;

    if (b > LEVELS_INT8_BITS_MAX ? l->step != 1.0f : !(isnormal(l->step) && l->step > 0))
        return false;
    for (unsigned i = 0; i < n; i++)
        if (!levels_value_valid(l, b, i) || (i > 0 && l->value[i] <= l->value[i - 1]))
            return false;
    memcpy(want.value, l->value, sizeof(want.value));
    levels_set_thresholds(&want, b);
    for (unsigned i = 0; i + 1 < n; i++)
        if (!isfinite(want.threshold[i]) || want.threshold[i] != l->threshold[i] ||
            (i > 0 && want.threshold[i] <= want.threshold[i - 1]))
            return false;
    return true;
}

uint8_t levels_quantise(const struct levels *l, unsigned b, float z)
{
    unsigned q = 0;

    /* The b bits of the answer from the top: a half of the thresholds is either all <= z or needs looking
     * into. */
    for (unsigned half = 1u << b >> 1; half > 0; half >>= 1)
        if (l->threshold[q + half - 1] <= z)
            q += half;
    return (uint8_t) q;
}
