/*
 * Distortion curves: the distortion of a band at each width (DESIGN 3.4). Solvers multiply them by the band's
 * variance and the head's depth weight.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "alloc/quantiser/levels_normal.h"
#include "alloc/solve/solve.h"
#include "alloc/table/table.h"

/* Levels of a quantiser for N(0,1) at every width, and their exact errors: computed once per solve. */
struct curve_model {
    enum curve curve;
    struct levels levels[TABLE_BITS_MAX + 1]; /* [b], b in 1..8 */
    double mse[TABLE_BITS_MAX + 1];           /* [b]; 1 at b = 0 */
    /* Of widths up to TRELLIS_BITS_MAX, if the table will have trellises: books for N(0,1), and the error of
     * a trellis there divided by that of scalar levels, by which measured curves are multiplied. Else ratio
     * is 1. */
    struct levels books[TABLE_BITS_MAX + 1];
    double ratio[TABLE_BITS_MAX + 1];
};

/* @state_bits: of the trellises; 0: none. Return: 0; -ENOMEM; -EINVAL: the quantiser has no levels. */
int curve_model_init(struct curve_model *m, enum curve curve, enum quantiser q, unsigned state_bits);

/**
 * curve_band() - distortion of a band of unit variance per coordinate
 * @z:   [n, stride] finite calibration coordinates, those of the band in the first @n_coords columns;
 *       CURVE_MEASURED only, which requires n > 0
 * @ret: by width: squared error summed over the band, mean over tokens; at width 0 that of storing nothing
 *
 * Return: 0; -ENOMEM.
 */
int curve_band(const struct curve_model *m, const float *z, size_t n, size_t n_coords, size_t stride,
               double ret[static TABLE_BITS_MAX + 1]);

/* levels_quantise() without branches: b steps of a binary search in the thresholds. @z is not NaN. */
static inline unsigned quantise_fast(const struct levels *l, unsigned b, float z)
{
    unsigned code = 0;

    for (unsigned half = 1u << (b - 1); half > 0; half >>= 1)
        code += z >= l->threshold[code + half - 1] ? half : 0;
    return code;
}

/*
 * z [n, n_coords], row stride @stride, := the level of each number, in units of z. No number is NaN; n_coords
 * is at most 8. With a trellis, every 64 rows are the strings of a chunk; behind a rest of fewer, zeros
 * follow.
 */
void curve_quantise_levels(const struct levels *l, unsigned b, float *z, size_t n, size_t n_coords,
                           size_t stride);

/* The same, := the stored value of the level, without its step. */
void curve_quantise_values(const struct levels *l, unsigned b, float *z, size_t n, size_t n_coords,
                           size_t stride);

/* ret_codes [n, n_coords], row stride @codes_stride, := the number of that level; with a trellis, a state. */
void curve_quantise_codes(const struct levels *l, unsigned b, const float *z, size_t n, size_t n_coords,
                          size_t stride, uint8_t *ret_codes, size_t codes_stride);
