/*
 * The stored form of levels: what makes a struct levels well-formed. Shared by the table reader, which checks
 * it, and the quantisers, which make it; libc only.
 */
#pragma once

#include <stdbool.h>

#include "alloc/table.h"

/* Codes of widths up to this are int8 multiples of one step, wider ones binary16 (DESIGN 3.3). */
#define LEVELS_INT8_BITS_MAX 4

/* Thresholds as midpoints of @l's values; exact in binary64, rounded once to binary32. */
void levels_set_thresholds(struct levels *l, unsigned b);

/* Whether values, step and thresholds are what DESIGN 3.3 says: integers or binary16, ascending, midpoints.
 */
bool levels_valid(const struct levels *l, unsigned b);
