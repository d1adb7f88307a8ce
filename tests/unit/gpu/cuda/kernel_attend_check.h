/* Runs attention kernels on the scenes of tests/unit/gpu/attend_scene.h, and
 * compares the results with the oracle. */
#pragma once

#include "gpu/cuda/kernels/launch.h"
#include "tests/unit/gpu/attend_scene.h"

/* The one sequence of a scene as kernels take it: aligned pages, exact rows
 * of all heads, of which one is drawn. */
struct kernel_attend_inputs {
    struct device_seq seq;
    uint8_t **payloads;
    void *table;
    uint16_t *exact[2];
    float *q, *out, *partials;
};

/* @ret: one item, and memory for the partial results of @n_items. */
void kernel_attend_inputs_init(struct kernel_attend_inputs *d, const struct attend_scene *s,
                               uint32_t n_splits, size_t n_items, struct launch_attend *ret);
void kernel_attend_inputs_deinit(struct kernel_attend_inputs *d);

/* Launches attention over @l, kvc_merge included. False: the kernel does not
 * take the shape, and nothing was done. */
typedef bool (*kernel_launch)(const struct page_layout *l, const struct launch_attend *a, unsigned n_items,
                              unsigned which);

/**
 * kernel_attend_check() - draw a scene, launch, compare
 * @which:     passed to @launch
 * @roundings: number of independent roundings to ten bits in the products of a score, in squares: 3 of
 *             queries, keys and K's dec, plus those of the kernel
 *
 * Tolerance. Binary16 adds to the tolerance of the oracle for binary32 sums. Queries, keys, K's dec and
 * weights are rounded by 2^-12 of each number. A score is a sum of d products of such numbers:
 *
 *     3 x 2^-12 |q| |k - mean| / sqrt(d)        a score by three independent roundings, in the mean; at
 *                                               most four times that
 *     twice that                                the output
 *     2^-12                                     weighted values
 *     2^-11 (1 + 2 |q| |k - mean| / sqrt(d))    six times the tolerance for whole numbers
 *                                               (attend_oracle.c): more than all of these together
 *
 * More roundings multiply it by the root of their number / 3.
 *
 * Return: the result of @launch.
 */
bool kernel_attend_check(const struct attend_shape *shape, uint32_t n_splits, kernel_launch launch,
                         unsigned which, double roundings);

/* The same for one launch of sequences with different lengths, tails and numbers of queries, one of which
 * has no query. All have dimension @d. */
bool kernel_attend_check_batch(uint32_t d, uint32_t n_splits, size_t window, kernel_launch launch,
                               unsigned which, double roundings);
