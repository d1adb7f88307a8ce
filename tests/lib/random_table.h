/*
 * Small valid tables without a calibration: every head-side gets an orthogonal basis with its signs drawn
 * from the seed, a falling spectrum, bits that follow the spectrum, and a decoder that differs slightly from
 * its encoder's inverse. Decoding encoded N(0, 1)-like vectors gives vectors near the input, so that tests
 * can check the distortion too.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "alloc/table/table.h"

#define RANDOM_TABLE_SINKS 4

/* The model that tables are for, where the caller names none. */
extern const uint8_t random_table_model_digest[DIGEST_BYTES];

/* A geometry with half-split RoPE of base 10000 over all of @d and the usual scale. */
struct geometry random_table_geometry(uint32_t n_layers, uint32_t n_heads, uint32_t n_kv_heads, uint32_t d);

/**
 * random_table_bytes() - the bytes of a table file
 * @seed:      another seed gives another digest
 * @bpd:       code bits per number in 0..8, the same for every head-side, rounded to whole bits per band
 * @ret_bytes: malloc'ed, caller frees
 *
 * Return: 0; negative errno of table_build().
 */
int random_table_bytes(const struct geometry *g, uint64_t seed, double bpd, enum prediction v_from,
                       void **ret_bytes, size_t *ret_n_bytes);

/* The same with trellises of 2^@state_bits states for widths of up to four bits: a table of format 3. 0 state
 * bits: scalar levels. */
int random_table_bytes_trellis(const struct geometry *g, uint64_t seed, double bpd, enum prediction v_from,
                               unsigned state_bits, void **ret_bytes, size_t *ret_n_bytes);

/* The same with bases of keys in two blocks, of RoPE planes 0 .. @fast_planes - 1, a multiple of 4, and of
 * the other dimensions: a table of format 3. */
int random_table_bytes_blocks(const struct geometry *g, uint64_t seed, double bpd, enum prediction v_from,
                              unsigned state_bits, uint32_t fast_planes, void **ret_bytes,
                              size_t *ret_n_bytes);

/* The same with another number of sinks. */
int random_table_bytes_sinks(const struct geometry *g, uint64_t seed, double bpd, enum prediction v_from,
                             uint32_t n_sink, void **ret_bytes, size_t *ret_n_bytes);

/* The same for another model, with values predicted from the head's own keys. */
int random_table_bytes_of(const struct geometry *g, const uint8_t model[static DIGEST_BYTES], uint64_t seed,
                          double bpd, void **ret_bytes, size_t *ret_n_bytes);

/* random_table_bytes() with this provenance, and values predicted from the head's own keys. */
int random_table_bytes_provenance(const struct geometry *g, uint64_t seed, double bpd, const char *provenance,
                                  void **ret_bytes, size_t *ret_n_bytes);
