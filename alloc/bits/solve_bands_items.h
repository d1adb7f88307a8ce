/*
 * The knapsack of solve_bands.h with constraints turned into items, each with its undominated choices. An
 * item is one band, or one group whose floor or ceiling can bind; the choices of a group are its exact best
 * distortions at each cost. Internal to solve_bands*.c.
 *
 * Costs are in units: the greatest common divisor of the bands' coordinates (8 bits, normally).
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "alloc/bits/solve_bands.h"

struct bands_point {
    uint32_t cost; /* units */
    double distortion;
};

/* Points ascend strictly in cost and descend strictly in distortion; the first is the cheapest allowed. */
struct bands_item {
    struct bands_point *points; /* borrowed from struct bands_items */
    uint32_t n_points;
    uint32_t base;  /* chosen point */
    uint32_t index; /* of the band, or of the group */
};

struct bands_items {
    const struct bands_problem *problem; /* borrowed */
    size_t n_items, n_band_items;        /* band items first, then group items */
    struct bands_item *items;
    struct bands_point *points;
    size_t n_points;
    size_t *group_first; /* [n_groups + 1] into members; NULL without groups */
    size_t *members;     /* [n_bands] bands by group */
    uint32_t unit_bits;  /* bits in a unit */
    uint64_t budget;     /* units */
};

/* Return: 0; -EINVAL, -ENOMEM as bands_solve(). Call bands_items_deinit() after a failure too. */
int bands_items_init(struct bands_items *s, const struct bands_problem *p);
void bands_items_deinit(struct bands_items *s);

/* The bits of every band for the chosen points. Return: 0; -ENOMEM. */
int bands_items_bits(const struct bands_items *s, uint8_t *ret_bits);

/**
 * bands_improve() - spend the units that a greedy choice left over
 * @lambda:   multiplier (distortion per unit) at which the chosen points are optimal
 * @leftover: units unspent
 * @gained:   gain of the best known use of them; the chosen points are replaced only by a better choice
 *
 * Any better choice lies within lambda * leftover - gained of the Lagrangian optimum, so options further away
 * are left out and a small exact dynamic programme decides among the rest: exact unless more than CORE_ITEMS
 * items remain, in which case the nearest ones take part.
 *
 * Return: 1 if the chosen points were replaced, 0 if not; -ENOMEM.
 */
int bands_improve(struct bands_items *s, double lambda, uint64_t leftover, double gained);
