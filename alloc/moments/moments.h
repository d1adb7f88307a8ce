/*
 * Moments: what is stored of tokens whose vectors may not be stored (DESIGN 3.5). Per (layer, KV head) the
 * number of tokens, and mean and centred scatter of the joint vector x = [k ; v] of 2d numbers, k before
 * RoPE. A table can be solved from them if the metric comes from other statistics (stats_from_moments()).
 *
 * Used by clients that observe live traffic and by calibration: libc and libsodium (SHA-256) only, no BLAS.
 * Moments of disjoint tokens, of several processes or of several ranges of heads merge into those of all of
 * them. One thread at a time per object. alloc/README.md draws the bytes.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "alloc/table/geometry.h"

struct errmsg;
struct moments;

#define MOMENTS_NAME_BYTES 128

struct moments_options {
    struct geometry geometry;
    uint8_t model_digest[DIGEST_BYTES];
    /* shown to users; may be empty. Merging keeps the first non-empty name */
    char model_name[MOMENTS_NAME_BYTES];
    uint32_t n_sink; /* first tokens of a sequence that the caller leaves out */
    /* also the covariance of keys with the keys and values of other heads of their layer, for tables that
     * predict values from all heads. With one KV head there is none, and this becomes false */
    bool joint;
};

/**
 * moments_new() - moments of no tokens
 * @o: copied
 *
 * Takes about moments_bytes() of memory. Return: 0; -EINVAL: an impossible geometry, named; -ENOMEM.
 */
int moments_new(const struct moments_options *o, struct moments **ret_moments, struct errmsg *e);
struct moments *moments_free(struct moments *m);
static inline void moments_freep(struct moments **m)
{
    *m = moments_free(*m);
}

/**
 * moments_add() - count the tokens of one layer and a range of its heads
 * @first_head, @n_heads: KV heads that @k and @v hold; all KV heads for a whole layer
 * @k, @v: [n, n_heads, d] keys before RoPE, half-split, rotary dimensions first, and values; no sinks
 *
 * Each (layer, head) has its own count, so layers may count different tokens.
 * About 2 d^2 multiplications per token and head.
 *
 * Return: 0; -EINVAL: no such layer or heads, not all heads of joint moments, or a number that is not
 * finite; then nothing was added.
 */
int moments_add(struct moments *m, uint32_t layer, uint32_t first_head, uint32_t n_heads, size_t n,
                const float *k, const float *v, struct errmsg *e);

/* Adds @other's tokens: same model, geometry, sinks and key order; else -EINVAL with the difference named. Up
 * to rounding, the result does not depend on the order of merging. Of joint moments, others take what they
 * have themselves; joint moments take joint ones only. */
int moments_merge(struct moments *m, const struct moments *other, struct errmsg *e);

/* Gives all tokens half their weight: means and covariances stay, tokens that are added later count twice as
 * much beside them. */
void moments_halve(struct moments *m);

/* Bytes of the file image of moments of this geometry. They do not depend on the number of tokens. */
size_t moments_bytes(const struct geometry *g, bool joint);

/* The file image into @dst of moments_bytes(); its last DIGEST_BYTES are the SHA-256 that names it. */
void moments_write(const struct moments *m, void *dst);

/* The SHA-256 that names the moments. Return: 0; -ENOMEM. */
int moments_digest(const struct moments *m, uint8_t ret_digest[static DIGEST_BYTES]);

/**
 * moments_parse() - check a file image and copy it
 *
 * Hostile input is safe. Only moments that tokens can have are accepted: finite, and every
 * covariance within the bounds of its variances.
 *
 * Return: 0; -EBADMSG with a sentence; -ENOMEM.
 */
int moments_parse(const void *bytes, size_t n_bytes, struct moments **ret_moments, struct errmsg *e);

/* Whether @bytes begin with the magic number of a moments file. */
bool moments_recognise(const void *bytes, size_t n_bytes);

int moments_save(const struct moments *m, const char *path, struct errmsg *e);

const struct moments_options *moments_get_options(const struct moments *m);

/* Tokens counted of one (layer, head). */
uint64_t moments_count(const struct moments *m, uint32_t layer, uint32_t head);

/* Mean [2d] of x = [k ; v]; borrowed. */
const double *moments_mean(const struct moments *m, uint32_t layer, uint32_t head);

/* Centred scatter sum (x - mean)(x - mean)': its lower triangle by rows, entry
 * (i, j <= i) at i (i + 1) / 2 + j; borrowed. */
const double *moments_scatter(const struct moments *m, uint32_t layer, uint32_t head);

/* Of joint moments: scatter [d, d] of the key of @head (rows) with that of @lower < @head, and of the value
 * of head @value (rows) with the key of another head; borrowed. */
const double *moments_key_scatter(const struct moments *m, uint32_t layer, uint32_t head, uint32_t lower);
const double *moments_value_scatter(const struct moments *m, uint32_t layer, uint32_t value, uint32_t key);
