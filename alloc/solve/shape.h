/*
 * How Gaussian the coordinates of a head-side are, before and after rotation: excess kurtosis
 * per coordinate, and the pooled distribution for Q-Q plots. `kvcobra inspect` shows it
 * (paper, appendix "Empirical post-Hadamard Gaussianity"); solvers do not use it, since they measure
 * distortion instead of assuming a distribution.
 */
#pragma once

#include <stdint.h>

#include "alloc/solve/solve.h"
#include "alloc/table/geometry.h"

struct stats;

/* The same vectors, x - mean, in four systems of coordinates. */
enum shape_stage {
    SHAPE_EIGEN = 0,   /* U'x, U the eigenvectors of the covariance: the paper before its rotation */
    SHAPE_ROTATED = 1, /* H_d U'x, one rotation over all directions: the paper after it */
    SHAPE_BASIS = 2,   /* U'A x, the basis of `bands` under its metric */
    SHAPE_BANDS = 3,   /* SHAPE_BASIS with each band of 8 rotated: quantised by `bands` (V: no prediction) */
    SHAPE_STAGES = 4,
};

#define SHAPE_RANGE 8.0 /* standard deviations; values beyond count in the outermost bins */
#define SHAPE_BINS 4096

/* Coordinates of many head-sides, each brought to mean 0 and variance 1,
 * counted in equal bins of +-SHAPE_RANGE. */
struct shape_pool {
    uint64_t n[SHAPE_STAGES];
    uint64_t count[SHAPE_STAGES][SHAPE_BINS];
};

/* The @p-quantile of the pool, interpolated inside its bin. @p within (0, 1); NaN if empty. */
double shape_quantile(const struct shape_pool *pool, enum shape_stage stage, double p);

struct shape {
    uint32_t n[SHAPE_STAGES];                        /* coordinates that vary; 0: a constant head */
    double kurtosis[SHAPE_STAGES][GEOMETRY_DIM_MAX]; /* E[z^4] / E[z^2]^2 - 3, the mean taken away */
};

/**
 * shape_measure() - one head-side
 * @m, @power: metric of SHAPE_BASIS and SHAPE_BANDS; available
 * @seed:      signs of the rotations, as in struct solve_options
 * @ret:       kurtosis per coordinate
 * @pool:      this head-side's coordinates are added
 *
 * Return: 0; -ENODATA: the statistics hold no sampled vectors; -EDOM; -ENOMEM.
 */
int shape_measure(const struct stats *s, enum metric m, double power, uint64_t seed, uint32_t layer,
                  uint32_t head, enum side side, struct shape *ret, struct shape_pool *pool);
