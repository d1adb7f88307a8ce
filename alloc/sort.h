/*
 * Sorting of numbers, for medians and quantiles in alloc/ and in the commands: the comparison of binary64
 * numbers is written once, here.
 */
#pragma once

#include <stddef.h>

/* @values: [n], ascending afterwards; no NaN among them. */
void sort_doubles(double *values, size_t n);
