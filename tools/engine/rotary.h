/*
 * RoPE on vectors of the library's order (half-split, rotary dimensions first): cosines and sines of the
 * positions that are needed, kept. Used by the caches of tools/; what ships in the client library has its
 * own.
 */
#pragma once

#include <stddef.h>

struct errmsg;
struct geometry;

struct rotary {
    float *cosine, *sine; /* [n_positions, n_rot / 2] */
    size_t n_positions, capacity;
    size_t half, d; /* n_rot / 2 */
};

/* Makes sure of positions 0 .. n - 1. @n_max: as many as will ever be wanted. @r all zeros at first. -ENOMEM.
 */
int rotary_reserve(struct rotary *r, const struct geometry *g, size_t n, size_t n_max, struct errmsg *e);

/* y = scale R(position) x; [d], which may be the same array. The position is reserved. */
void rotary_turn(const struct rotary *r, size_t position, const float *x, float scale, float *y);

void rotary_deinit(struct rotary *r);
