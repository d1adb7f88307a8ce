/* See distinct.h. */
#include "daemon/store/distinct.h"

#include <math.h>

enum { RANK_MAX = 64 - DISTINCT_BITS + 1 };

void distinct_add(struct distinct *d, uint64_t hash)
{
    uint8_t *x = &d->registers[hash & (DISTINCT_REGISTERS - 1)];
    uint64_t rest = hash >> DISTINCT_BITS;
    uint8_t rank = rest == 0 ? RANK_MAX : (uint8_t) (__builtin_ctzll(rest) + 1);

    if (rank > *x)
        *x = rank;
}

void distinct_merge(struct distinct *into, const struct distinct *from)
{
    for (unsigned i = 0; i < DISTINCT_REGISTERS; i++)
        into->registers[i] =
            into->registers[i] > from->registers[i] ? into->registers[i] : from->registers[i];
}

/* sigma(x) = x + sum over k >= 1 of x^(2^k) 2^(k - 1), for registers without a key; infinite for x = 1. */
static double distinct_sigma(double x)
{
    double sum = x, weight = 1, before;

    if (x == 1)
        return HUGE_VAL;
    do {
        before = sum;
        x *= x;
        sum += x * weight;
        weight *= 2;
    } while (sum != before);
    return sum;
}

/* tau(x) = (1 - x - sum over k >= 1 of (1 - x^(2^-k))^2 2^-k) / 3, for registers with the largest rank. */
static double distinct_tau(double x)
{
    double sum = 1 - x, weight = 1, before;

    if (x == 0 || x == 1)
        return 0;
    do {
        before = sum;
        x = sqrt(x);
        weight *= 0.5;
        sum -= (1 - x) * (1 - x) * weight;
    } while (sum != before);
    return sum / 3;
}

double distinct_count(const struct distinct *d)
{
    const double m = DISTINCT_REGISTERS, alpha = 0.5 / M_LN2;
    uint32_t n[RANK_MAX + 1] = {0}; /* registers by rank */
    double z;

    for (unsigned i = 0; i < DISTINCT_REGISTERS; i++)
        n[d->registers[i]]++;

    z = m * distinct_tau(1 - n[RANK_MAX] / m);
    for (unsigned rank = RANK_MAX - 1; rank > 0; rank--)
        z = 0.5 * (z + n[rank]);
    z += m * distinct_sigma(n[0] / m);
    return alpha * m * m / z; /* 0 without a key: z is infinite */
}
