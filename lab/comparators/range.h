/*
 * Asymmetric uniform codes between the smallest and the largest number of a group, for KIVI, GEAR and the
 * values of KVQuant. Step and minimum are stored in binary16.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

enum { RANGE_META_BITS = 32 }; /* step and minimum of a group */

/**
 * range_code() - code and decode a group of numbers
 * @x, @ret_y: n numbers, @stride apart; may be the same array
 * @b:         bits of a code, 1 to 8
 *
 * step = (max - min) / (2^b - 1), code = round((x - min) / step) within 0 .. 2^b - 1. A group without spread
 * is its minimum. Return: bits of the codes and of step and minimum.
 */
uint64_t range_code(const float *x, size_t n, size_t stride, unsigned b, float *ret_y);
