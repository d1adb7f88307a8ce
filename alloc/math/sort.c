/* See sort.h. */
#include "alloc/math/sort.h"

#include <stdlib.h>

#include "base/half.h"

static int sort_compare(const void *a, const void *b)
{
    double x = *(const double *) a, y = *(const double *) b;

    return (x > y) - (x < y);
}

void sort_doubles(double *values, size_t n)
{
    qsort(values, n, sizeof(*values), sort_compare);
}

/* ---- binary32 ---- */

/* Maps the bits of a binary32 number to an unsigned number of the same order: negative ones are inverted,
 * others get the top bit. */
static uint32_t sort_key(uint32_t u)
{
    return u ^ (uint32_t) - (int32_t) (u >> 31) ^ (~u & 0x80000000u);
}

static uint32_t sort_key_undo(uint32_t u)
{
    return u ^ (u >> 31 ? 0x80000000u : 0xffffffffu);
}

/* One of three passes of 11 bits. */
static void sort_pass(const uint32_t *from, uint32_t *to, size_t n, unsigned shift)
{
    size_t start[2048] = {0}, sum = 0;

    for (size_t i = 0; i < n; i++)
        start[from[i] >> shift & 2047]++;
    for (size_t k = 0; k < 2048; k++) {
        size_t count = start[k];

        start[k] = sum;
        sum += count;
    }

    for (size_t i = 0; i < n; i++)
        to[start[from[i] >> shift & 2047]++] = from[i];
}

void sort_floats(float *values, size_t n, uint32_t *scratch)
{
    uint32_t *a = scratch, *b = scratch + n;

    for (size_t i = 0; i < n; i++)
        a[i] = sort_key(half_float_to_bits(values[i]));
    sort_pass(a, b, n, 0);
    sort_pass(b, a, n, 11);
    sort_pass(a, b, n, 22);
    for (size_t i = 0; i < n; i++)
        values[i] = half_bits_to_float(sort_key_undo(b[i]));
}

size_t sort_rank(const float *values, size_t n, float t)
{
    size_t lo = 0, hi = n;

    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;

        if (values[mid] < t)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}
