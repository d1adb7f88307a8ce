/*
 * The shape of a model's KV cache and the parts of attention that a codec depends on: heads, RoPE, scale.
 * libc and libsodium only.
 *
 * Key order inside the library is half-split with the rotary dimensions first: plane i of the n_rot/2
 * rotary planes is the pair (i, i + n_rot/2); dimensions n_rot..d-1 are not rotated.
 * Readers of other orders permute on entry.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct errmsg;

#define GEOMETRY_DIM_MIN 32
#define GEOMETRY_DIM_MAX 256
#define GEOMETRY_LAYERS_MAX 1024
#define GEOMETRY_HEADS_MAX 1024 /* query heads; KV heads divide them */
#define GEOMETRY_PLANES_MAX (GEOMETRY_DIM_MAX / 2)
#define GEOMETRY_POSITIONS 65536 /* longest sequence of a caller that names none */
#define DIGEST_BYTES 32

struct geometry {
    uint32_t n_layers;
    uint32_t n_heads;    /* query heads per layer */
    uint32_t n_kv_heads; /* query head h reads KV head h / (n_heads / n_kv_heads) */
    uint32_t d;          /* head dimension, even */
    uint32_t n_rot;      /* rotated dimensions, even, <= d; 0 = no RoPE */
    double attn_scale;   /* score = attn_scale * <R(m) q, R(n) k>; YaRN's magnitude is folded in */
    double freq[GEOMETRY_PLANES_MAX]; /* [n_rot/2] radians per position, RoPE scaling applied */
};

/**
 * geometry_validate() - check every field against the limits above
 * Return: 0; -EINVAL with a sentence naming the field.
 */
int geometry_validate(const struct geometry *g, struct errmsg *e);

/**
 * geometry_from_caller() - a geometry of a public struct, checked
 * @shape: all members but the frequencies
 * @freq:  [n_rot/2]; may be NULL if nothing is rotated
 *
 * Return: 0; -EINVAL with a sentence naming the field.
 */
int geometry_from_caller(const struct geometry *shape, const double *freq, struct geometry *ret,
                         struct errmsg *e);

/**
 * geometry_check_same() - whether a model can use a table that was made for geometry @table
 * @model:       of the running model, as its engine computed it; both are valid
 * @n_positions: longest sequence; 0: every number must be equal
 *
 * Engines compute the same frequencies in binary32 or binary64, and hold the scale in binary32. With
 * @n_positions, frequencies may differ by so little that no angle up to that position differs by 2^-8
 * radians, and the scale by 1e-6 of its size. The model must then use the table's geometry, so that
 * attention is the same in all processes.
 *
 * Return: 0; -EINVAL with a sentence that names the first field that differs, and both values.
 */
int geometry_check_same(const struct geometry *model, const struct geometry *table, uint32_t n_positions,
                        struct errmsg *e);

/* SHA-256 over a fixed little-endian encoding of every field (unused freq entries left out). @g is valid. */
void geometry_digest(const struct geometry *g, uint8_t ret_digest[static DIGEST_BYTES]);

/**
 * geometry_complete() - the frequencies of a geometry that is read from a file, and the checks of a whole one
 * @g:      all fields but freq, n_rot at most GEOMETRY_DIM_MAX
 * @freq:   [n_rot / 2] doubles, at any address
 * @digest: [DIGEST_BYTES], as the file has it
 * @file:   names the kind of file in the sentence
 *
 * Return: 0; -EBADMSG with a sentence.
 */
int geometry_complete(struct geometry *g, const void *freq, const uint8_t *digest, const char *file,
                      struct errmsg *e);

/* Whether dimension @dim belongs to RoPE planes 0 .. @n - 1. */
static inline bool geometry_in_planes(const struct geometry *g, uint32_t n, uint32_t dim)
{
    uint32_t half = g->n_rot / 2;

    return dim < half ? dim < n : dim < 2 * half && dim - half < n;
}

/* Head-sides are numbered (layer * n_kv_heads + head) * 2 + side everywhere. */
enum side {
    SIDE_K = 0,
    SIDE_V = 1,
};

static inline uint32_t geometry_group(const struct geometry *g)
{
    return g->n_heads / g->n_kv_heads;
}

static inline uint32_t head_side_index(const struct geometry *g, uint32_t layer, uint32_t head,
                                       enum side side)
{
    return (layer * g->n_kv_heads + head) * 2 + (uint32_t) side;
}

static inline uint32_t head_side_count(const struct geometry *g)
{
    return g->n_layers * g->n_kv_heads * 2;
}
