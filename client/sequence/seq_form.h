/*
 * The form in which a caller has vectors: distances between tokens and heads, number type, and, for keys and
 * queries, the options of the sequence (before or after RoPE, order of pairs). Used where vectors enter or
 * leave a sequence of the host.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/sequence/seq.h"
#include "gpu/vectors.h"

/* Vectors of several tokens and heads in memory of the caller; distances in numbers. */
struct seq_vectors {
    size_t n_tokens;
    uint32_t n_heads, d;
    size_t token_stride, head_stride;
    unsigned dtype;
};

/* Distances of 0 are those of [n_tokens, n_heads, d] without gaps. */
struct seq_vectors seq_form_vectors(size_t n_tokens, uint32_t n_heads, uint32_t d, unsigned dtype,
                                    size_t token_stride, size_t head_stride);

/* Keys or values of an item of an append. */
struct seq_vectors seq_form_appended(const kvc_append_item *item, enum side side, enum kvc_dtype dtype);

/* Whether the vectors are [n_tokens, n_heads, d] without gaps. */
bool seq_form_is_contiguous(const struct seq_vectors *v);

/* A dimension of an array: @n places, @stride numbers apart. */
struct seq_axis {
    size_t n, stride;
};

/* Whether different places of @axes never overlap, and the last byte of the array is within PTRDIFF_MAX.
 * Sorts @axes. */
bool seq_form_is_disjoint(struct seq_axis *axes, size_t n_axes, size_t number_bytes);

/* Return: 0; -EINVAL with a sentence: vectors overlap, or their distances are beyond the memory of a process.
 * @name: of the vectors, for the sentence. */
int seq_form_check(struct errmsg *e, const char *name, const struct seq_vectors *v);

/* Before seq_form_of() for keys or queries at positions first .. first + n - 1. Return: 0; -ENOMEM with a
 * sentence. */
int seq_form_prepare(struct kvc_seq *s, size_t first, size_t n);

/* The form of vectors from position @first on. seq_form_prepare() has been called if @side is SIDE_K. */
struct vector_form seq_form_of(const struct kvc_seq *s, enum side side, unsigned dtype, size_t first);
