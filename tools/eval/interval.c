/* See interval.h. */
#include "tools/eval/interval.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/splitmix64.h"

/* 97.5 % of N(0, 1) */
static const double quantile_z = 1.959964;

/* Drawn means: 2.5 % of them are 100 at each end. */
enum { DRAWS = 4000, DRAWS_OUTSIDE = DRAWS / 40 };

static double interval_weight(const struct interval_sample *s, size_t i)
{
    return s->weights ? s->weights[i] : 1;
}

double interval_mean(const struct interval_sample *samples, size_t n_samples)
{
    double all = 0;

    for (size_t k = 0; k < n_samples; k++) {
        double sum = 0, weight = 0;

        for (size_t i = 0; i < samples[k].n; i++) {
            sum += interval_weight(&samples[k], i) * samples[k].values[i];
            weight += interval_weight(&samples[k], i);
        }
        all += sum / weight;
    }

    return all / (double) n_samples;
}

/* The mean of as many values of @s, each drawn from all of them. */
static double interval_draw_mean(const struct interval_sample *s, uint64_t *state)
{
    double sum = 0, weight = 0;

    for (size_t i = 0; i < s->n; i++) {
        size_t at = splitmix64_next(state) % s->n;

        sum += interval_weight(s, at) * s->values[at];
        weight += interval_weight(s, at);
    }

    return sum / weight;
}

static int interval_ascending(const void *a, const void *b)
{
    double x = *(const double *) a, y = *(const double *) b;

    return (x > y) - (x < y);
}

struct interval interval_bootstrap(const struct interval_sample *samples, size_t n_samples, uint64_t seed)
{
    double means[DRAWS];

    assert(n_samples > 0);
    for (size_t k = 0; k < n_samples; k++)
        if (samples[k].n < 2)
            return (struct interval){NAN, NAN};
    for (size_t draw = 0; draw < DRAWS; draw++) {
        uint64_t state = splitmix64_seed(seed, draw);

        means[draw] = 0;
        for (size_t k = 0; k < n_samples; k++)
            means[draw] += interval_draw_mean(&samples[k], &state) / (double) n_samples;
    }

    qsort(means, DRAWS, sizeof(*means), interval_ascending);
    return (struct interval){means[DRAWS_OUTSIDE], means[DRAWS - 1 - DRAWS_OUTSIDE]};
}

struct interval interval_share(size_t found, size_t asked)
{
    const double z = quantile_z;
    double n = (double) asked, p = (double) found / n;
    double middle = (p + z * z / (2 * n)) / (1 + z * z / n);
    double half = z / (1 + z * z / n) * sqrt(p * (1 - p) / n + z * z / (4 * n * n));

    return (struct interval){fmax(middle - half, 0), fmin(middle + half, 1)};
}

/*
 * Newcombe, Statistics in Medicine 17 (1998) 2635, method 10. Wilson's limits of both shares are combined as
 * the sides of a triangle, with the correlation of the two models between them:
 *
 *     low = d - sqrt(a^2 - 2 phi a b + b^2),  a = p2 - low2,  b = high1 - p1
 *
 * phi is the correlation of the fourfold table, lowered by n / 2 if it is positive.
 */
struct interval interval_difference(const struct interval_pairs *p)
{
    double both = (double) p->both, lost = (double) p->lost, won = (double) p->won,
           neither = (double) p->neither;
    double n = both + lost + won + neither, first = (both + lost) / n, second = (both + won) / n;
    struct interval f = interval_share(p->both + p->lost, (size_t) n),
                    s = interval_share(p->both + p->won, (size_t) n);
    double margins = (both + lost) * (won + neither) * (both + won) * (lost + neither);
    double product = both * neither - lost * won, phi = 0, d = second - first, a, b, low, high;

    if (margins > 0)
        phi = (product > 0 ? fmax(product - n / 2, 0) : product) / sqrt(margins);
    a = second - s.low, b = f.high - first;
    low = d - sqrt(fmax(a * a - 2 * phi * a * b + b * b, 0));
    a = s.high - second, b = first - f.low;
    high = d + sqrt(fmax(a * a - 2 * phi * a * b + b * b, 0));
    return (struct interval){low, high};
}

double interval_mcnemar(size_t lost, size_t won)
{
    double n = (double) (lost + won), tail = 0;
    size_t fewer = lost < won ? lost : won;

    /* sum over k <= fewer of (n over k) / 2^n; logarithms, since 2^n overflows */
    for (size_t k = 0; k <= fewer; k++)
        tail += exp(lgamma(n + 1) - lgamma((double) k + 1) - lgamma(n - (double) k + 1) - n * log(2));
    return fmin(2 * tail, 1);
}

const char *interval_text(struct interval v, int decimals, char ret[static INTERVAL_BYTES])
{
    if (isnan(v.low) || isnan(v.high))
        (void) snprintf(ret, INTERVAL_BYTES, "-");
    else
        (void) snprintf(ret, INTERVAL_BYTES, v.low < 0 ? "%.*f to %.*f" : "%.*f-%.*f", decimals, v.low,
                        decimals, v.high);
    return ret;
}
