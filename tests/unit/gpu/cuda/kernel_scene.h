/* Scenes of packed attention (tests/unit/gpu/scene.h) for kernels on the CPU, and their comparison with the
 * oracle. */
#pragma once

#include "gpu/cuda/kernels/launch.h"
#include "tests/unit/gpu/scene.h"

/* A scene's one sequence in the shape that kernels take: aligned pages, exact rows of all heads, here of one.
 */
struct kernel_scene {
    struct device_seq seq;
    uint8_t **payloads;
    void *table;
    uint16_t *exact[2];
    float *q, *out, *partials;
};

/* @ret: one item, and room for the partial results of @n_items. */
void kernel_scene_init(struct kernel_scene *d, const struct scene *s, uint32_t n_splits, size_t n_items,
                       struct launch_attend *ret);
void kernel_scene_deinit(struct kernel_scene *d);

/* A launch of attention over @l, kvc_merge included. False: the kernel does not take the shape, nothing was
 * done. */
typedef bool (*kernel_launch)(const struct page_layout *l, const struct launch_attend *a, unsigned n_items,
                              unsigned which);

/**
 * kernel_scene_check() - draw a scene, launch, compare
 * @which:     passed to @launch
 * @roundings: of numbers of ten bits that a score's products suffer at random to each other, in squares: 3 of
 * queries, keys and K's dec, and what a kernel rounds besides
 *
 * Tolerance. To the oracle's for sums in binary32, binary16 adds: queries, keys and K's dec are rounded by
 * 2^-12 of each number, weights too. A score is a sum of d products of such numbers; three roundings at
 * random to each other move it by 3 x 2^-12 |q| |k - mean| / sqrt(d) in the mean, four times that at most,
 * and the output by twice that, weighted values by 2^-12: together below six times what whole numbers are
 * allowed (oracle.c), 2^-11 (1 + 2 |q| |k - mean| / sqrt(d)). More roundings are allowed for by the root of
 * their number to three.
 *
 * Return: what @launch did.
 */
bool kernel_scene_check(const struct shape *shape, uint32_t n_splits, kernel_launch launch, unsigned which,
                        double roundings);

/* The same of one launch for sequences of other lengths, tails and numbers of queries, one of which has none.
 * Of one dimension. */
bool kernel_scene_check_batch(uint32_t d, uint32_t n_splits, size_t window, kernel_launch launch,
                              unsigned which, double roundings);
