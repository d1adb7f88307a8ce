/* Softmax over the keys a query may see; shared by attention forward and backward and by the head. */
#pragma once

#include <stddef.h>

/* In place, over the first @n > 0 of @width scores; the rest become 0. The sum is taken in binary64. */
void softmax_masked(float *s, size_t n, size_t width);
