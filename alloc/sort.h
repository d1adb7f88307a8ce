/* Sorting numbers: medians and quantiles here and in the command begin with it. */
#pragma once

#include <stddef.h>

/* @values: [n], ascending afterwards; no NaN among them. */
void sort_doubles(double *values, size_t n);
