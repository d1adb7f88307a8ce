/* Sorting of numbers, for medians and quantiles. */
#pragma once

#include <stddef.h>

/* @values: [n], ascending afterwards; no NaN among them. */
void sort_doubles(double *values, size_t n);
