/*
 * RoPE on vectors of the library's order (half-split, rotary dimensions first): stored cosines and sines of
 * positions. For the caches of tools/; the client library has its own.
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

/* Computes positions 0 .. n - 1 if they are missing. @n_max: most positions of any later call. @r: zeros at
 * first. Return: 0; -ENOMEM.
 */
int rotary_reserve(struct rotary *r, const struct geometry *g, size_t n, size_t n_max, struct errmsg *e);

/* y = scale R(position) x; [d], which may be the same array. The position must be computed before. */
void rotary_rotate(const struct rotary *r, size_t position, const float *x, float scale, float *y);

void rotary_deinit(struct rotary *r);
