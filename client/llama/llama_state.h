/*
 * The bytes of a state of llama_state_seq_get_data(), which llama.cpp does not document. As written at its
 * commit 0c1e57098 and, with the sizes of the rotations, since October 2026; all little-endian:
 *
 *   u32 magic, i32 sequence id                          of the whole state
 *   u32 n_streams, per stream: u32 n_cells, and if that is not 0:
 *       per cell: i32 position, u32 n_ids = 1, i32 sequence id
 *       u32 v_transposed, u32 n_layers
 *       since October 2026: u32 size of the rotation of keys, u32 of values; 0: not rotated
 *       per layer, keys:    i32 type, u64 row_bytes, rows of [n_cells, n_kv_heads, head_dim]
 *       per layer, values:  the same, if they are not transposed; else
 *                           i32 type, u32 number_bytes, u32 n_rows, [n_kv_heads, head_dim, n_cells]
 *
 * Only one stream has cells: that of the sequence. Keys are after RoPE. Nothing says which of the two it is:
 * the header of layer 0 makes sense at one of two places only, since a row has neither 0 bytes nor 2^32.
 *
 * Parsing trusts nothing: the bytes may be a file, or those of a release with another format. The functions
 * know neither sequences nor models, so that a fuzzer can call them.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "client/kvcobra-llama.h"

struct errmsg;

/* The model that a state must fit. */
struct llama_shape {
    uint32_t n_layers, n_kv_heads, head_dim;
};

/* Where a state has its numbers. All layers have the same sizes. */
struct llama_state {
    kvc_llama_layout layout;
    size_t k, v; /* offsets of the numbers of layer 0; multiples of 4 */
    size_t step; /* bytes from the numbers of one layer to those of the next */
};

/* Numbers per token of one layer and side. */
static inline size_t llama_row_numbers(const struct llama_shape *shape)
{
    return (size_t) shape->n_kv_heads * shape->head_dim;
}

/**
 * llama_state_parse() - check a state
 *
 * Return: 0; -EBADMSG, -EOPNOTSUPP, -EINVAL with a sentence: see kvc_llama_state_check().
 */
int llama_state_parse(const uint8_t *state, size_t n_bytes, const struct llama_shape *shape,
                      struct llama_state *ret, struct errmsg *e);

/* Places of a state with @layout. Return: 0; -EINVAL with a sentence: @layout is not valid, or the state
 * is larger than memory. */
int llama_state_plan(const kvc_llama_layout *layout, const struct llama_shape *shape, struct llama_state *ret,
                     size_t *ret_bytes, struct errmsg *e);

/* Writes everything but the numbers. @plan and the size of @state are those of llama_state_plan(). */
void llama_state_write_headers(const struct llama_state *plan, const struct llama_shape *shape,
                               uint8_t *state);
