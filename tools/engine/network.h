/*
 * A model from a GGUF file: hyperparameters, and tensors by their place in the network.
 *
 * network_sizes.c reads the keys, network_rope.c the rotation, network.c binds the tensors, network_digest.c
 * computes the digest. Keys and tensors that would change the arithmetic in an unknown way are refused: an
 * error is better than a wrong result.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "alloc/table/geometry.h"
#include "tools/engine/quants.h"

struct errmsg;
struct gguf;

enum network_family {
    NETWORK_LLAMA, /* also Mistral; q and k rows of the file are interleaved */
    NETWORK_QWEN2,
    NETWORK_QWEN3, /* queries and keys are normalised per head */
};

/* y = W x, W [n_rows, n_cols] in blocks along the rows. */
struct matrix {
    const struct quant_type *type;
    const uint8_t *data;
    size_t n_rows, n_cols, row_bytes;
};

/* Vectors are decoded at opening; NULL: the model has none. */
struct network_layer {
    const float *attn_norm, *ffn_norm; /* [n_embd] */
    struct matrix q, k, v, o, gate, up, down;
    const float *q_bias, *k_bias, *v_bias, *o_bias;
    const float *q_norm, *k_norm; /* [d] */
};

struct network {
    enum network_family family;
    char architecture[32];
    uint32_t n_embd, n_ff, n_vocab, n_context, window_tokens;
    double norm_epsilon;
    struct geometry geometry;
    float q_unrotated_scale; /* for the dimensions n_rot .. d-1 of a query: 1 over YaRN's magnitude squared */
    struct matrix embedding, output; /* the same if tied */
    bool tied;
    const float *output_norm;
    struct network_layer *layers;
    float *vectors; /* memory of all vectors above */
};

/* The caller zeroes @ret_network and deinitialises it, also after a failure. @g must outlive it. */
int network_init(struct network *ret_network, const struct gguf *g, struct errmsg *e);
void network_deinit(struct network *m);

/* Steps of network_init(). */
int network_read_sizes(struct network *m, const struct gguf *g, struct errmsg *e);
int network_read_rope(struct network *m, const struct gguf *g, struct errmsg *e);

/* BLAKE2b-256 of everything that determines K and V; see network_digest.c. @progress: called with the number
 * of bytes hashed so far; may be NULL. */
typedef void (*network_progress_fn)(void *ctx, uint64_t bytes);
int network_digest(const struct network *m, const struct gguf *g, network_progress_fn progress, void *ctx,
                   uint8_t ret_digest[static DIGEST_BYTES], struct errmsg *e);
uint64_t network_digest_bytes(const struct gguf *g); /* the bytes that it hashes */

/* "llama.block_count" for "%s.block_count": the keys of a file are prefixed with its architecture. */
#define NETWORK_KEY_BYTES 128
const char *network_key(const struct network *m, const char *suffix, char ret_key[static NETWORK_KEY_BYTES]);
