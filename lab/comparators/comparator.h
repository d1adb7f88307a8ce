/*
 * Published formats for keys and values, for `kvcobra eval --comparator` only. Each encodes and decodes in
 * one call and returns the bits: all data that grows with the tokens (codes, scales, zero points, norms,
 * outliers with their positions, low-rank factors). Data that all sequences share (rotations, code books,
 * calibrated bases) is not counted, like the matrices of a table.
 *
 * Implemented from the papers, without their code. README.md lists the differences from the originals.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "alloc/table/geometry.h"

struct engine;
struct errmsg;
struct stats;

/* Input of prepare(). */
struct comparator_source {
    struct geometry geometry;
    const struct stats *stats;   /* of keys before RoPE */
    const struct stats *rotated; /* of keys after RoPE; both NULL for formats that are not calibrated */
    struct engine *engine;       /* output projections */
};

struct comparator_codec;

struct comparator {
    const char *name;      /* "kivi-2" */
    const char *what;      /* one line: the format and the data beside its codes */
    const char *citation;  /* one line: its source */
    unsigned bits;         /* of a code */
    uint32_t block_tokens; /* tokens coded together; blocks begin at multiples. 1: each token alone */
    bool post_rope;        /* keys are coded after RoPE */
    bool calibrated;       /* needs statistics */
    /* Return: 0; -EINVAL: not for this geometry, with a sentence; -ENODATA; -ENOMEM. NULL: no preparation. */
    int (*prepare)(const struct comparator *c, const struct comparator_source *s, void **ret_state,
                   struct errmsg *e);
    void (*release)(void *state); /* NULL: free() */
    /* @x, @ret_y: [n, n_kv_heads, d], n: a multiple of block_tokens, or one incomplete block. Return: 0;
     * -ENOMEM. */
    int (*code)(const struct comparator_codec *codec, uint32_t layer, enum side side, const float *x,
                size_t n, float *ret_y, uint64_t *ret_bits);
};

/* A format prepared for a model. */
struct comparator_codec {
    const struct comparator *what;
    struct geometry geometry;
    void *state;
};

/* All formats, in the order of the help; ends with NULL. */
extern const struct comparator *const comparators[];

/* Return: the format, or NULL. */
const struct comparator *comparator_find(const char *name);

int comparator_codec_new(const struct comparator *c, const struct comparator_source *s,
                         struct comparator_codec **ret_codec, struct errmsg *e);
struct comparator_codec *comparator_codec_free(struct comparator_codec *codec);
static inline void comparator_codec_freep(struct comparator_codec **codec)
{
    *codec = comparator_codec_free(*codec);
}

/* Formats of one file each. */
extern const struct comparator comparator_q8_0, comparator_q4_0, comparator_q4_0_rot, comparator_kivi_2,
    comparator_kivi_4, comparator_kvquant_2, comparator_kvquant_3, comparator_kvquant_4, comparator_gear_2,
    comparator_quarot_3, comparator_quarot_4, comparator_turboquant_2, comparator_turboquant_3,
    comparator_turboquant_4, comparator_svdq_2, comparator_kqsvd_2, comparator_kqsvd_3, comparator_kqsvd_4,
    comparator_oscar_2, comparator_kvarn_2, comparator_kvarn_3, comparator_kvarn_4, comparator_tcq_2,
    comparator_tcq_3;
