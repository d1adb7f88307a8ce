/* The oracle of bands_solve(): an exact dynamic programme over every bit of the budget, for small cases. */
#pragma once

#include "alloc/bits/solve_bands.h"

/* As bands_solve(), but multiplier is 0. */
int bands_solve_exact(const struct bands_problem *p, uint8_t *ret_bits, struct bands_result *ret);
