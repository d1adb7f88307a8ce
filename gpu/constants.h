/*
 * What attention needs of a table besides the table itself, computed once per page_layout: levels as whole numbers, for
 * kernels that look them up by index and multiply integers, and the cosines and sines of in-page offsets.
 */
#pragma once

#include <stdint.h>

#include "alloc/table.h"

/* Largest whole number of a level with b >= 5. */
#define LEVEL_WHOLE_MAX 4095

struct level_table {
    _Alignas(64) int16_t value[1 << TABLE_BITS_MAX]; /* levels / unit, repeated: index bits above b do not matter */
    float unit;                                      /* what 1 stands for, as dec expects levels */
};

/* @b in 1..8. Levels with b <= 4 are whole already; others are rounded to a power of two, 2^-9 at best. */
void level_table_init(struct level_table *t, const struct levels *l, unsigned b);

struct page_constants {
    struct level_table levels[2][TABLE_BITS_MAX + 1]; /* by side and b */
    float *cos, *sin;                                 /* [n_rot/2][64] */
    float angles[];
};

/* One allocation; free() it. NULL: out of memory. */
struct page_constants *page_constants_new(const struct table *table);
