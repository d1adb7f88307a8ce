/*
 * Orthogonal rotations that spread variance evenly over coordinates: Sylvester-Hadamard
 * with seeded column signs where the order is a power of two, else the Hartley matrix
 * cas(2 pi i j / n) / sqrt(n) with seeded column signs.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* @ret [n, n] row-major binary64, n >= 1. The same (n, seed) gives the same matrix on every machine. */
void rotation_matrix(size_t n, uint64_t seed, double *ret);
