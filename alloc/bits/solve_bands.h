/*
 * One knapsack over all bands of all head-sides: choose 0..8 bits per band so that the total distortion is
 * least and the stored code bits stay within the budget (DESIGN 3.4). Needs neither statistics nor tables.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define BANDS_OPTIONS 9 /* 0..8 bits */
/* bands of a group whose floor or ceiling can bind; a head-side has at most 32 */
#define BANDS_GROUP_MAX 64
#define BANDS_COORDS_MAX 256

struct bands_problem {
    size_t n_bands;
    const double *distortion; /* [n_bands, 9] by bits, finite; need not be monotone or convex */
    const uint32_t *coords;   /* [n_bands] stored coordinates a band occupies: 8 (padding charged) */
    const uint32_t *group;    /* [n_bands] group for floors and ceilings (head-side), or NULL */
    size_t n_groups;
    const uint64_t *floor_bits, *ceil_bits; /* [n_groups] or NULL */
    uint64_t budget_bits;                   /* stored code bits per token, all bands together */
};

struct bands_result {
    double distortion;
    uint64_t used_bits;
    double multiplier; /* gain per unit of the last hull step taken */
};

/**
 * bands_solve() - lower convex hulls, one multiplier, the remainder spent exactly
 * @ret_bits: [n_bands]; untouched on failure
 *
 * A group with a floor or a ceiling that can bind is one item with an exact curve of its own (a small dynamic
 * programme over its bands), so floors, ceilings and the smallest possible budget are exact. Bits that lower
 * no distortion are not spent. The same input gives the same answer: ties go to fewer bits, then to lower
 * indices.
 *
 * Return: 0; -ERANGE: floors exceed the budget (only ret->used_bits is set: the smallest possible); -EINVAL:
 * a distortion not finite, coords or group out of range, a group too large, or a group that no choice of bits
 * brings between floor and ceiling; -ENOMEM.
 */
int bands_solve(const struct bands_problem *p, uint8_t *ret_bits, struct bands_result *ret);
