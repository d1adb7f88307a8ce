/*
 * The exact tail of a sequence: binary16 of x - mean of the tokens that are not
 * packed, or the caller's numbers if the table is exact, per layer, side and head.
 *
 * seq_grow_tail() and seq_trim_tail() are for every kind of sequence that has a tail; the other functions are
 * the host's, whose rows lie in struct layer.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "client/sequence/seq.h"
#include "client/sequence/seq_form.h"

/* A decode step holds at most this: 127 rows and the one being appended. */
#define TAIL_ROWS_MIN (2 * CHUNK_TOKENS)

/* Numbers of struct layer.rows that a row has: binary16 of x - mean, or those of an exact table, of which
 * binary32 takes two places. */
static inline size_t seq_tail_width(const struct kvc_seq *s)
{
    bool wide = s->table->table->exact.type == EXACT_F32;

    return (size_t) s->model->geometry.d << wide;
}

/* Index of a row in struct layer.rows of one side. */
static inline size_t seq_tail_row(const struct kvc_seq *s, uint32_t head, size_t row)
{
    return ((size_t) head * s->tail_rows + row) * seq_tail_width(s);
}

/* Rows that a layer has in its tail. */
static inline size_t seq_tail_n_rows(const struct layer *l)
{
    return l->length - l->n_packed * CHUNK_TOKENS;
}

/* Room for @rows rows in every layer's tail. Return: 0; as seq_ops.resize_tail, on a GPU with a sentence. */
int seq_grow_tail(struct kvc_seq *s, size_t rows);

/* Gives back the room of a long append, once its chunks are packed. */
void seq_trim_tail(struct kvc_seq *s);

/* seq_ops.resize_tail. Return: 0; -ENOMEM. */
int seq_tail_resize(struct kvc_seq *s, size_t rows);

/* Stores new rows behind the present ones and @n_stored others; they count when the caller raises the
 * length. seq_form_prepare() has been called for their positions.
 * Return: 0; -EINVAL with a sentence: a number is not finite, or too far from the mean for binary16. */
int seq_tail_store(struct kvc_seq *s, uint32_t layer, enum side side, size_t n_stored, const void *from,
                   const struct seq_vectors *v);

/* seq_ops.copy */
int seq_tail_copy(struct kvc_seq *to, const struct kvc_seq *from);
