/*
 * Sorting of numbers, for medians and quantiles in alloc/ and in the commands, and of samples for curves and
 * levels.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* @values: [n], ascending afterwards; no NaN among them. */
void sort_doubles(double *values, size_t n);

/* The same of binary32 numbers, by radix: ten times as many samples per second as with qsort().
 * @scratch: [2 n] */
void sort_floats(float *values, size_t n, uint32_t *scratch);

/* The number of @values that are below @t. */
size_t sort_rank(const float *values, size_t n, float t);
