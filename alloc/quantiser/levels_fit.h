/*
 * Levels fitted to the coordinates of a model. Solvers call this once per width and side, after the bits are
 * fixed (DESIGN 3.3).
 */
#pragma once

#include <stddef.h>

#include "alloc/table/table.h"

/**
 * levels_fit() - Lloyd's algorithm on samples, started at the Lloyd-Max levels of N(0,1)
 * @samples: [n], borrowed and unchanged; with fewer than LEVELS_FIT_MIN, *ret is the start
 * Return: 0; -ENOMEM.
 */
#define LEVELS_FIT_MIN 4096
int levels_fit(const float *samples, size_t n, unsigned b, struct levels *ret);
