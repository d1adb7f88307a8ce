/* See sort.h. */
#include "alloc/sort.h"

#include <stdlib.h>

static int sort_compare(const void *a, const void *b)
{
    double x = *(const double *) a, y = *(const double *) b;

    return (x > y) - (x < y);
}

void sort_doubles(double *values, size_t n)
{
    qsort(values, n, sizeof(*values), sort_compare);
}
