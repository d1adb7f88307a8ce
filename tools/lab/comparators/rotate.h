/* One rotation for all heads, applied to many vectors: what the rotating formats share. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct errmsg;
struct rotate;

/* Blocks of @order (which divides @d) of rotation_matrix(), on the diagonal. Free with free(). */
int rotate_new(uint32_t d, uint32_t order, uint64_t seed, struct rotate **ret_turn, struct errmsg *e);

/* y = R x and y = R' x for @n vectors [n, d]; not in place. */
void rotate_forward(const struct rotate *t, const float *x, size_t n, float *ret_y);
void rotate_inverse(const struct rotate *t, const float *x, size_t n, float *ret_y);
