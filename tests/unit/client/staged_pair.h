/*
 * Pairs of gpu_pair.h whose GPU's client has its pages in host memory: the same vectors, in any form that a
 * caller may have them in, are appended to both sequences, and pages and reads are compared to the bit.
 */
#pragma once

#include "client/kvcobra-gpu.h"
#include "tests/unit/client/gpu_pair.h"

struct seq_pair staged_pair_new(const struct gpu_pair *t, uint64_t text, enum kvc_keys keys,
                                enum kvc_pairs pairs, uint32_t flags);

/* Appends @n more tokens in all layers, or in one, with distances that are drawn. Return: what both calls
 * returned. */
int staged_append(const struct gpu_pair *t, struct seq_pair *s, enum kvc_dtype dtype, size_t n);
int staged_append_layer(const struct gpu_pair *t, struct seq_pair *s, uint32_t layer, enum kvc_dtype dtype,
                        size_t n);

/* Commits both: then both have packed alike, whatever their appends packed. */
void staged_commit(struct seq_pair *s);

/* The bytes of all packed pages. */
bool staged_pages_alike(struct seq_pair *s);

/* Positions that kvc_seq_read_blocks() reads into caches of a drawn form: alike to the bit in binary32,
 * and to the last bit in 16 bits where the GPU decodes. */
bool staged_blocks_alike(const struct gpu_pair *t, const struct seq_pair *s, size_t first, size_t n);

/* Pages, reads of everything, and usage. */
bool staged_is_alike(const struct gpu_pair *t, struct seq_pair *s);
