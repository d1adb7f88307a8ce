/*
 * Packing one head and side of a chunk: from rows of a tail to its block in a page. Used by sequences of the
 * host, and by client/gpu/gpu_check_case.c, which compares a GPU with it.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "gpu/chunk.h"
#include "gpu/page_layout.h"

struct pack_head {
    const struct page_layout *layout;
    uint32_t layer, head; /* the head is counted from the shard's first */
    enum side side;
    const uint16_t *rows; /* [64, d] binary16 of x - mean, finite; of an exact table its numbers */
    uint32_t n_sink;      /* of this chunk: 0 for all but the first */
};

/**
 * pack_head() - encode a head's rows into its block of @payload
 * @x:      [64, d] work: the encoded vectors are there afterwards
 * @counts: of this side; added to
 * @w:      keys of all heads of the layer are packed before any values
 *
 * Sinks stay exact in the page. Their code positions, which readers mask, hold the code of the mean: the
 * norms of sinks would count as drift.
 */
void pack_head(const struct pack_head *p, float *x, uint8_t *payload, struct encode_counts *counts,
               struct chunk_work *w);
