/*
 * Activations of a caller as alloc/stats/stats.h takes them: binary32, row-major without gaps, keys and
 * queries before RoPE, half-split. Input that has this form already is not copied. Scratch memory grows to
 * the largest window and is kept.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "alloc/table/geometry.h"

struct errmsg;

struct stats_input {
    float *scratch[4]; /* queries, keys, values, residual stream */
    size_t n_scratch[4];
};

/* The vectors of one layer and of @n_heads heads, as a caller has them. */
struct stats_vectors {
    const void *x; /* [n, n_heads, d] */
    uint32_t dtype;
    size_t n, n_heads;
    size_t token_stride, head_stride; /* in numbers; 0: row-major without gaps */
    /* vectors that RoPE applies to */
    uint32_t keys, pairs; /* enum kvc_keys, enum kvc_pairs; 0, 0 for others */
    uint64_t position;    /* of the first token */
};

enum stats_input_place { INPUT_QUERIES = 0, INPUT_KEYS = 1, INPUT_VALUES = 2, INPUT_RESIDUAL = 3 };

void stats_input_deinit(struct stats_input *in);

/**
 * stats_input_vectors() - vectors as binary32 rows without gaps, before RoPE, half-split
 * @place: the scratch memory to use
 * @name:  what the vectors are, for sentences
 * @ret:   the caller's own memory, or scratch memory that is valid until the next call with this place
 *
 * Return: 0; -EINVAL: an argument is not valid; -ENOMEM.
 */
int stats_input_vectors(struct stats_input *in, const struct geometry *g, const struct stats_vectors *v,
                        enum stats_input_place place, const char *name, const float **ret, struct errmsg *e);

/**
 * stats_input_mean_squares() - the mean square of each token's residual stream
 * @x:            [n, n_embd] of number type @dtype
 * @token_stride: in numbers; 0: n_embd
 * @ret:          [n]; valid until the next call
 *
 * Return: 0; -EINVAL; -ENOMEM.
 */
int stats_input_mean_squares(struct stats_input *in, const void *x, uint32_t dtype, size_t n, size_t n_embd,
                             size_t token_stride, const float **ret, struct errmsg *e);

/**
 * stats_input_matrix() - a matrix as binary32, row-major without gaps
 * @x:                        [rows, columns] of number type @dtype
 * @row_stride, @column_stride: in numbers; 0: row-major without gaps
 * @ret_copy:                 free() it; NULL: @x has this form already
 *
 * Return: 0; -EINVAL; -ENOMEM.
 */
int stats_input_matrix(const void *x, uint32_t dtype, size_t rows, size_t columns, size_t row_stride,
                       size_t column_stride, float **ret_copy, struct errmsg *e);
