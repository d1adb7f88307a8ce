/*
 * Other people's formats for keys and values, for `kvcobra eval --comparator` and nothing else: each encodes
 * and at once decodes, and says how many bits that took, everything that grows with the tokens counted
 * (scales, zero points, norms, outliers with their positions, low-rank factors). What is the same for every
 * sequence (rotations, code books, bases of a calibration) counts nothing, as a table counts nothing.
 *
 * Written from the papers; none of their code is here. README.md says where a format stands in for the
 * original.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "alloc/geometry.h"

struct engine;
struct errmsg;
struct stats;

/* What formats are prepared from. */
struct comparator_source {
    struct geometry geometry;
    const struct stats *stats;   /* of keys before RoPE, */
    const struct stats *rotated; /* of keys after it; NULL for formats that are not calibrated */
    struct engine *engine;       /* output projections */
};

struct comparator_codec;

struct comparator {
    const char *name;      /* "kivi-2" */
    const char *what;      /* one line: the format and what stands beside the codes */
    const char *citation;  /* one line: where it comes from */
    unsigned bits;         /* of a code */
    uint32_t block_tokens; /* coded together, from a multiple of it on; 1: each token alone */
    bool post_rope;        /* keys are coded after RoPE */
    bool calibrated;       /* needs statistics */
    /* Return: 0; -EINVAL: not for this geometry, with a sentence; -ENODATA; -ENOMEM. NULL: nothing to
     * prepare. */
    int (*prepare)(const struct comparator *c, const struct comparator_source *s, void **ret_state,
                   struct errmsg *e);
    void (*release)(void *state); /* NULL: free() */
    /* @x, @ret_y: [n, n_kv_heads, d], n a multiple of block_tokens or one block cut short; *ret_bits: what it
     * takes. Return: 0; -ENOMEM. */
    int (*code)(const struct comparator_codec *codec, uint32_t layer, enum side side, const float *x,
                size_t n, float *ret_y, uint64_t *ret_bits);
};

/* A format made ready for a model. */
struct comparator_codec {
    const struct comparator *what;
    struct geometry geometry;
    void *state;
};

/* All there are, in the order of the help; the last one's name is NULL. */
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
    comparator_turboquant_4, comparator_svdq_2, comparator_kqsvd_2, comparator_kqsvd_3, comparator_kqsvd_4;
