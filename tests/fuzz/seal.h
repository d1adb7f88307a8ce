/*
 * Corrects what a checksum protects, since all other checks come after it: the length, the digest of the
 * geometry, and the digest at the end of a file of statistics, of moments or of a table.
 */
#pragma once

#include <sodium.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/table/geometry.h"

/* libFuzzer's build solves one accepted input in this many: reading one takes a hundredth of the time. */
#ifndef FUZZ_SOLVES_ONE_IN
#define FUZZ_SOLVES_ONE_IN 1
#endif

static inline void seal_check(bool ok)
{
    if (!ok)
        abort();
}

/* A copy of the input with its length at @length_offset. The caller frees it. */
static inline uint8_t *seal_copy(const uint8_t *data, size_t size, size_t length_offset)
{
    uint8_t *copy = malloc(size);
    uint64_t n_bytes = size;

    seal_check(copy != NULL && length_offset + sizeof(n_bytes) <= size);
    memcpy(copy, data, size);
    memcpy(copy + length_offset, &n_bytes, sizeof(n_bytes));
    return copy;
}

/*
 * Writes the digest of the geometry to @digest_offset, if the frequencies at @freq_offset are in the file.
 * @g: as the file's header has it, without frequencies
 */
static inline void seal_geometry(uint8_t *bytes, size_t size, struct geometry g, uint64_t freq_offset,
                                 size_t digest_offset)
{
    size_t freq_bytes;

    if (g.n_rot / 2 > GEOMETRY_PLANES_MAX)
        return;
    freq_bytes = g.n_rot / 2 * sizeof(double);
    if (freq_offset > size || freq_bytes > size - freq_offset)
        return;
    memcpy(g.freq, bytes + freq_offset, freq_bytes);
    geometry_digest(&g, bytes + digest_offset);
}

/* The geometry in a file's header, without frequencies */
#define SEAL_GEOMETRY_OF(h)                                                                                  \
    ((struct geometry){.n_layers = (h).n_layers,                                                             \
                       .n_heads = (h).n_heads,                                                               \
                       .n_kv_heads = (h).n_kv_heads,                                                         \
                       .d = (h).d,                                                                           \
                       .n_rot = (h).n_rot,                                                                   \
                       .attn_scale = (h).attn_scale})

/* Writes the digest of all bytes before it to the end. */
static inline void seal_finish(uint8_t *bytes, size_t size)
{
    (void) crypto_hash_sha256(bytes + size - DIGEST_BYTES, bytes, size - DIGEST_BYTES);
}

/* Whether this input is one of those that are solved; it depends on the bytes alone. */
static inline bool seal_is_solved(const uint8_t *sealed, size_t size)
{
    return sealed[size - DIGEST_BYTES] % FUZZ_SOLVES_ONE_IN == 0;
}
