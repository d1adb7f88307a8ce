/* See levels.h. levels_quantise() is declared in table.h. */
#include "alloc/table/levels.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <string.h>

#include "alloc/table/trellis.h"
#include "base/half.h"

void levels_set_thresholds(struct levels *l, unsigned b)
{
    /* Sum, half and the product with a 24-bit step are exact in binary64: the conversion
     * to binary32 is the only rounding. */
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

/* A step of 2^-64 .. 2^64 times any level is a finite number that is not subnormal. */
static bool levels_book_valid(const struct levels *l, unsigned b)
{
    float largest = 0;

    if (b > TRELLIS_BITS_MAX || l->state_bits < TRELLIS_STATE_BITS_MIN ||
        l->state_bits > TRELLIS_STATE_BITS_MAX || !(l->step >= 0x1p-64f && l->step <= 0x1p64f))
        return false;
    if (!isfinite(l->normal_product) || !isfinite(l->normal_square) || l->normal_square < 0)
        return false;
    for (unsigned s = 0; s < levels_count(l, b); s++) {
        if (!(fabsf(l->value[s]) <= 127) || l->value[s] != rintf(l->value[s]))
            return false;
        largest = fmaxf(largest, fabsf(l->value[s]));
    }
    return largest == 127;
}

bool levels_valid(const struct levels *l, unsigned b)
{
    struct levels want = {.step = l->step};
    unsigned n = 1u << b;

    if (l->state_bits > 0)
        return levels_book_valid(l, b);
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

/*
 * The largest level must be 127 although the step was rounded to binary32, hence the limits. NaN (step 0)
 * becomes 0, a duplicate that levels_valid() refuses.
 */
static int8_t levels_to_int8(double x)
{
    double q = rint(x);

    if (isnan(q))
        return 0;

    return (int8_t) fmin(fmax(q, -127), 127);
}

static void levels_store_int8(const double *values, unsigned n, struct levels *l)
{
    double largest = 0;

    for (unsigned i = 0; i < n; i++)
        largest = fmax(largest, fabs(values[i]));
    l->step = (float) (largest / 127.0);
    for (unsigned i = 0; i < n; i++) {
        l->value_i8[i] = l->step > 0 ? levels_to_int8(values[i] / (double) l->step) : 0;
        l->value[i] = (float) l->value_i8[i];
    }
}

static void levels_store_binary16(const double *values, unsigned n, struct levels *l)
{
    l->step = 1.0f;
    for (unsigned i = 0; i < n; i++)
        l->value[i] = f16_to_f32(f32_to_f16((float) values[i]));
}

int levels_from_values(const double *values, unsigned b, struct levels *ret)
{
    struct levels l = {0};

    assert(b >= 1 && b <= TABLE_BITS_MAX);
    for (unsigned i = 0; i < 1u << b; i++)
        if (!isfinite(values[i]))
            return -EINVAL;
    if (b <= LEVELS_INT8_BITS_MAX)
        levels_store_int8(values, 1u << b, &l);
    else
        levels_store_binary16(values, 1u << b, &l);
    levels_set_thresholds(&l, b);
    if (!levels_valid(&l, b)) /* rounding made two levels equal, or a level overflowed */
        return -EINVAL;

    *ret = l;
    return 0;
}

int levels_from_book(const double *values, unsigned state_bits, double product, double square,
                     struct levels *ret)
{
    struct levels l = {.state_bits = (uint8_t) state_bits};
    double largest = 0;

    for (unsigned s = 0; s < 1u << state_bits; s++) {
        if (!isfinite(values[s]))
            return -EINVAL;
        largest = fmax(largest, fabs(values[s]));
    }
    l.step = (float) (largest / 127.0);
    l.normal_product = (float) product;
    l.normal_square = (float) square;
    for (unsigned s = 0; s < 1u << state_bits; s++)
        l.value[s] = (float) levels_to_int8(l.step > 0 ? values[s] / (double) l.step : 0);
    if (!levels_book_valid(&l, TRELLIS_BITS_MAX))
        return -EINVAL;

    *ret = l;
    return 0;
}

int levels_scale(const struct levels *l, unsigned b, double factor, struct levels *ret)
{
    double values[1 << TABLE_BITS_MAX];

    for (unsigned i = 0; i < levels_count(l, b); i++)
        values[i] = factor * level_z(l, i);
    if (l->state_bits > 0)
        return levels_from_book(values, l->state_bits, 0, 0, ret);
    return levels_from_values(values, b, ret);
}

uint8_t levels_quantise(const struct levels *l, unsigned b, float z)
{
    unsigned q = 0;

    /* Binary search, one bit of the code per step, highest first. */
    for (unsigned half = 1u << b >> 1; half > 0; half >>= 1)
        if (l->threshold[q + half - 1] <= z)
            q += half;
    return (uint8_t) q;
}

void levels_saturation_limits(const struct levels *l, unsigned b, float *ret_low, float *ret_high)
{
    unsigned last = (1u << b) - 1;
    float bottom = l->value[0] * l->step, top = l->value[last] * l->step;

    if (l->state_bits > 0) { /* steps are rounded to whole numbers */
        *ret_high = ((float) TRELLIS_SATURATED + 0.5f) * l->step;
        *ret_low = -*ret_high;
        return;
    }

    *ret_low = l->threshold[0] - 2 * (l->threshold[0] - bottom);
    *ret_high = l->threshold[last - 1] + 2 * (top - l->threshold[last - 1]);
}

size_t levels_count_saturated(const struct levels *l, unsigned b, const float *z, size_t n, size_t n_coords,
                              size_t stride)
{
    float low, high;
    size_t count = 0;

    levels_saturation_limits(l, b, &low, &high);
    for (size_t t = 0; t < n; t++)
        for (size_t c = 0; c < n_coords; c++)
            count += z[t * stride + c] < low || z[t * stride + c] > high;
    return count;
}
