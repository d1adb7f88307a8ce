/* Parts of a table that attend_80.cu reads, in the order in which its fragments want them; written by plan.c's fill. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gpu/cuda/kernels/attend_80.h"
#include "gpu/layout.h"

enum { PLAN_NARROW_WORDS = 3 * 5 * 4 };

static inline size_t plan_dec_fragment_words(uint32_t n_planes, uint32_t r)
{
    return (size_t) n_planes / 8 * (r / 16) * 32 * 4;
}

static inline size_t plan_turn_words(uint32_t n_planes)
{
    return (size_t) 2 * 4 * (n_planes / 16) * 32 * 8;
}

/* @dec: [2][n_planes][r] binary16. */
void plan_fill_dec_fragments(uint32_t n_planes, uint32_t r, const uint16_t *dec, uint32_t *ret);

/* The least power of two that no plane of @mean [2][n_planes] exceeds. */
float plan_mean_scale(uint32_t n_planes, const float *mean);

/* @cosine, @sine: [n_planes][64]; @freq: [n_planes]. */
void plan_fill_turns(uint32_t n_planes, const double *freq, const float *cosine, const float *sine, uint32_t *ret_turns,
                     float *ret_page_turn);

/* @levels: [2][9][256] binary16. */
void plan_fill_narrow(const uint16_t *levels, uint32_t *ret);
void plan_fill_wide(const uint16_t *levels, uint16_t *ret);

/* Of all heads of the shard. */
uint32_t plan_block_bytes_max(const struct page_layout *l);
bool plan_wide_values(const struct page_layout *l);

/* Of attend_80.cu's kernels: whether one takes the table and calls of @n_q > 0 queries, and the shared memory of one that does. */
bool plan_80_takes(enum plan_80_kernel kernel, const struct page_layout *l, uint32_t n_q);
size_t plan_80_shared_bytes(enum plan_80_kernel kernel, const struct page_layout *l);
