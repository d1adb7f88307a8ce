/* One rotation for all heads, applied to many vectors, for the formats that rotate. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct errmsg;
struct rotate;

/* Blocks of @order (which divides @d) of rotation_matrix(), on the diagonal. Free with free(). */
int rotate_new(uint32_t d, uint32_t order, uint64_t seed, struct rotate **ret_rotate, struct errmsg *e);

/* y = R x and y = R' x for @n vectors [n, d]; not in place. */
void rotate_forward(const struct rotate *r, const float *x, size_t n, float *ret_y);
void rotate_inverse(const struct rotate *r, const float *x, size_t n, float *ret_y);
