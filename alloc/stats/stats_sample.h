/*
 * The sample of tokens whose vectors are stored: those with the smallest keyed hash of
 * (seed, document, position). The choice does not depend on the order of windows, so statistics
 * of parts merge to those of the whole.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct errmsg;
struct stats;

/* SipHash-2-4 of (document, position), keyed by the seed. */
uint64_t stats_token_hash(uint64_t seed, uint64_t document, uint64_t position);

/* Chooses the tokens of s->window that get slots; called before its first layer.
 * Return: 0; -EINVAL: a token of the window was added before, named; -ENOMEM. Nothing changed on failure. */
int stats_sample_draw(struct stats *s, struct errmsg *e);

/* Copies the drawn rows of one layer: x[side] [n, n_kv_heads, d]. The first window sets the offsets. */
void stats_sample_copy(struct stats *s, uint32_t layer, const float *const x[2]);

/**
 * stats_sample_check() - whether the samples of @other can be added
 * Return: 0; -EINVAL: a token is in both, named; -ENOMEM.
 */
int stats_sample_check(const struct stats *s, const struct stats *other, struct errmsg *e);

/* Adds @other's samples to @s and keeps the n_samples smallest hashes. @map: new numbers of @other's domains.
 * Vectors are rounded again, to the offset of @s. Return: 0; -ENOMEM. */
int stats_sample_merge(struct stats *s, const struct stats *other, const uint32_t *map, struct errmsg *e);

/* ---- the stored form (stats_sample_code.c) ---- */

/* Offset and scale of one head-side := mean and deviation of the rows x [n, d]. Nothing is stored yet. */
void sample_code_set_offset(struct stats *s, uint32_t head_side, const float *x, size_t n, size_t stride);

/* Stores or reads the vector [d] of a slot. */
void sample_code_put(struct stats *s, uint32_t head_side, size_t slot, const float *x);
void sample_code_get(const struct stats *s, uint32_t head_side, size_t slot, float *ret_x);

/* ret_x [n, d] := the vectors of the slots slots[0], slots[step], slots[2 step] ... */
void sample_code_read(const struct stats *s, uint32_t head_side, const uint32_t *slots, size_t n, size_t step,
                      float *ret_x);
