/* Softmax over the keys that a query sees. For attention, forward and backward, and for the head. */
#pragma once

#include <stddef.h>

/* In place, over the first @n > 0 of @width scores; the rest become 0. The sum is taken in binary64. */
void softmax_masked(float *s, size_t n, size_t width);
