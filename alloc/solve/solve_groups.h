/*
 * One budget for several statistics: the groups of layers of a model, whose layers with another window or
 * other RoPE have tables of their own. All must be of the same windows of text, with a metric whose
 * distortions may be added: output or fisher.
 */
#pragma once

#include <stddef.h>

#include "alloc/bits/solve_bands.h"
#include "alloc/solve/solve_internal.h"

struct errmsg;

/* The bands of a group, as a solve with a budget alone would choose among them. */
struct solve_group {
    struct solve_pool pool;
    double numbers; /* per token, without head-sides that are always the same, such as values of 0 */
    double coded;   /* with them: what a budget of kvc_solve() counts */
    uint32_t share; /* of its numbers in the budget, of SOLVE_GROUP_WHOLE: solve_group_share() */
};

/* Bits of a budget are those of a prompt of SOLVE_GROUP_PROMPT tokens. */
enum { SOLVE_GROUP_WHOLE = BANDS_COORDS_MAX, SOLVE_GROUP_PROMPT = 4096 };

/* The share of a group whose layers attend to @window tokens; 0: to all. Such a prompt reads the pages of the
 * window alone. */
uint32_t solve_group_share(uint32_t window);

/* @o: of method bands; its budget decides what values are predicted from. Return: as solve_table(). */
int solve_group_collect(const struct stats *s, const struct solve_options *o, struct solve_group *ret,
                        struct errmsg *e);
void solve_group_deinit(struct solve_group *g);

/**
 * solve_groups_divide() - one knapsack over the bands of all groups
 * @bpd:     bits per number of all groups together, by solve_group.numbers and their shares
 * @ret_bpd: [n] the budget of each, by solve_group.coded
 *
 * Return: 0; -ERANGE: the floors of groups exceed the budget; -ENOMEM.
 */
int solve_groups_divide(const struct solve_group *groups, size_t n, double bpd, double *ret_bpd,
                        struct errmsg *e);
