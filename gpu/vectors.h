/*
 * Vectors of one head between a caller's form (number type, order of the dimensions that RoPE rotates
 * together, before or after RoPE, distances) and the form that codecs and attention use: binary32 rows,
 * half-split, before RoPE. Used by sequences on the host.
 *
 * Rotations are sums of two rounded products, without FMA: every instruction set gives the same bits.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "alloc/table/geometry.h"

struct vector_form {
    const struct geometry *geometry;
    unsigned dtype;   /* of the caller's numbers, gpu/dtype.h */
    bool interleaved; /* the caller's pairs are (2 i, 2 i + 1), else (i, i + n_rot/2) */
    /* [n, n_rot/2] by row: the caller's vectors are after RoPE at these angles; NULL: before RoPE */
    const float *cos, *sin;
};

/* @n vectors of the caller, @stride numbers apart, to @to [n, d], rows @to_stride floats apart. */
void vectors_load(const struct vector_form *f, const void *from, size_t stride, size_t n, float *to,
                  size_t to_stride);

/* Rows @from [n, d], @from_stride floats apart, to the caller's @to: number i of vector t is at
 * t token_stride + i dim_stride. */
void vectors_store(const struct vector_form *f, const float *from, size_t from_stride, size_t n, void *to,
                   size_t token_stride, size_t dim_stride);

/* ret [n, d] := x - mean in binary16. Return: the first row with a number that binary16 does not have (NaN,
 * infinity or beyond 65504); @n if there is none. */
size_t vectors_centre(const float *x, size_t n, size_t d, const float *mean, uint16_t *ret);

/* ret [n, d], rows @ret_stride floats apart, := mean + x, which is binary16 of any alignment. */
void vectors_add_mean(const void *x, size_t n, size_t d, const float *mean, float *ret, size_t ret_stride);
