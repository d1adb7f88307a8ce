/*
 * One knapsack over every band of every head-side: choose bits in 0..8 per band, least total distortion, total
 * stored code bits within budget. DESIGN 3.4.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct bands_problem {
    size_t n_bands;
    const double *distortion;   /* [n_bands, 9] by bits; need not be monotone or convex */
    const uint32_t *coords;     /* [n_bands] stored coordinates a band occupies: 8 (padding charged) */
    const uint32_t *group;      /* [n_bands] group for floors and ceilings (head-side), or NULL */
    size_t n_groups;
    const uint64_t *floor_bits, *ceil_bits; /* [n_groups] or NULL */
    uint64_t budget_bits;       /* stored code bits per token, all bands together */
};

struct bands_result {
    double distortion;
    uint64_t used_bits;
    double multiplier;          /* of the last hull step taken */
};

/* Lower convex hulls, one multiplier, remainder spent exactly. @ret_bits [n_bands].
 * Return: 0; -ERANGE: floors exceed the budget (ret->used_bits says the smallest possible); -ENOMEM. */
int bands_solve(const struct bands_problem *p, uint8_t *ret_bits, struct bands_result *ret);

/* Exact dynamic programme over bits; small cases only: the oracle of the tests. Same contract. */
int bands_solve_exact(const struct bands_problem *p, uint8_t *ret_bits, struct bands_result *ret);
