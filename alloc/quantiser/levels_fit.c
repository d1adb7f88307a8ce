/*
 * Lloyd's algorithm on sorted samples; see levels_fit.h. The mean of a cell is a difference of two prefix
 * sums, so a round costs 2^b binary searches, whatever the number of samples.
 */
#include "alloc/quantiser/levels_fit.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/math/sort.h"
#include "alloc/quantiser/levels_normal.h"
#include "base/checked.h"
#include "base/cleanup.h"

enum { N_MAX = 1 << TABLE_BITS_MAX };

struct sorted {
    size_t n;
    const float *x;     /* [n] ascending */
    const double *sum;  /* [n + 1] sum[i] = x_0 + ... + x_(i-1) */
    const double *sum2; /* [n + 1] of squares */
};

/* Number of samples < t: a sample equal to @t belongs to the upper cell. */
static size_t levels_fit_rank(const struct sorted *s, double t)
{
    size_t lo = 0, hi = s->n;

    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;

        if ((double) s->x[mid] < t)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

/* One round of Lloyd's algorithm; an empty cell keeps its level. Returns the largest move. */
static double levels_fit_lloyd_round(const struct sorted *s, unsigned n_levels, double *values)
{
    double worst = 0, next[N_MAX];
    size_t first = 0;

    for (unsigned q = 0; q < n_levels; q++) {
        size_t end = q + 1 < n_levels ? levels_fit_rank(s, 0.5 * (values[q] + values[q + 1])) : s->n;

        next[q] = end > first ? (s->sum[end] - s->sum[first]) / (double) (end - first) : values[q];
        worst = fmax(worst, fabs(next[q] - values[q]));
        first = end;
    }

    memcpy(values, next, n_levels * sizeof(next[0]));
    return worst;
}

/* Sum of squared errors of the stored form. */
static double levels_fit_total_error(const struct sorted *s, const struct levels *l, unsigned b)
{
    double total = 0;
    size_t first = 0;

    for (unsigned q = 0; q < 1u << b; q++) {
        size_t end = q + 1 < 1u << b ? levels_fit_rank(s, (double) l->threshold[q]) : s->n;
        double y = level_z(l, q);

        total += s->sum2[end] - s->sum2[first] - 2.0 * y * (s->sum[end] - s->sum[first]) +
                 y * y * (double) (end - first);
        first = end;
    }

    return total;
}

/*
 * Stops when no level moves by more than 1e-6, a tenth of the rounding of a binary16 number near zero at 8
 * bits, or after 1000 rounds: at 8 bits the last of them change the error by less than one part in a million.
 */
static void levels_fit_sorted(const struct sorted *s, unsigned b, struct levels *l)
{
    struct levels fitted;
    double values[N_MAX];

    for (unsigned q = 0; q < 1u << b; q++)
        values[q] = level_z(l, q);
    for (unsigned round = 0; round < 1000; round++)
        if (!(levels_fit_lloyd_round(s, 1u << b, values) > 1e-6))
            break;
    /* Rounding may make two levels equal, or cost more than fitting gained:
     * then keep the levels of N(0,1). */
    if (levels_from_values(values, b, &fitted) == 0 &&
        levels_fit_total_error(s, &fitted, b) < levels_fit_total_error(s, l, b))
        *l = fitted;
}

int levels_fit(const float *samples, size_t n, unsigned b, struct levels *ret)
{
    _cleanup_(freep) float *x = NULL;
    _cleanup_(freep) uint32_t *scratch = NULL;
    _cleanup_(freep) double *sums = NULL;
    struct levels l;
    size_t n_sums;
    int r;

    r = levels_normal(QUANT_LLOYD_MAX, b, &l);
    if (r < 0)
        return r;
    if (n < LEVELS_FIT_MIN) {
        *ret = l;
        return 0;
    }

    if (!checked_add(n, 1, &n_sums) || !checked_mul(n_sums, 2, &n_sums))
        return -ENOMEM;

    x = calloc(n, sizeof(*x));
    scratch = calloc(n, 2 * sizeof(*scratch));
    sums = calloc(n_sums, sizeof(*sums));
    if (!x || !scratch || !sums)
        return -ENOMEM;

    memcpy(x, samples, n * sizeof(*x));
    sort_floats(x, n, scratch);
    for (size_t i = 0; i < n; i++) {
        double v = (double) x[i];

        sums[i + 1] = sums[i] + v;
        sums[n + 1 + i + 1] = sums[n + 1 + i] + v * v;
    }

    levels_fit_sorted(&(struct sorted){.n = n, .x = x, .sum = sums, .sum2 = sums + n + 1}, b, &l);
    *ret = l;
    return 0;
}
