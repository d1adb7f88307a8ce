/*
 * The bytes of a table file, for those who write (table_build.c) and check them (table.c, table_check.c). Everything
 * else reads struct table. alloc/README.md draws the same.
 *
 *     header | freq | levels | codecs | provenance | matrices | golden | SHA-256 of all before
 *
 * Little-endian. Every section starts at the next multiple of 64; bytes between are zero. Nothing may be placed
 * elsewhere: a table has exactly one encoding, or its digest would not be its name.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "alloc/table.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "tables are used in place, and they are little-endian");

#define TABLE_MAGIC "KVCTABLE" /* without its NUL */
#define TABLE_VERSION 1
#define TABLE_ALIGN 64
#define TABLE_FLAG_V_FROM_K 1u
#define TABLE_PROVENANCE_MAX ((size_t) 1 << 20) /* with its NUL */

/* Tokens per (layer, head) in the golden section: two, since a code whose level is 0 hides its column. */
#define TABLE_GOLDEN_TOKENS 2

enum table_section {
    SECTION_FREQ,       /* binary64 [n_rot / 2] */
    SECTION_LEVELS,     /* for both sides, b = 1..8: binary32 step, value[2^b], threshold[2^b - 1] */
    SECTION_CODECS,     /* struct table_codec_entry [head_side_count] */
    SECTION_PROVENANCE, /* JSON text and one NUL */
    SECTION_MATRICES,   /* binary32; for each codec mean, enc, dec, each at a multiple of 64 */
    SECTION_GOLDEN,     /* for each (layer, head), each token: codes K [r], codes V [r], binary32 k^ [d], v^ [d] */
    SECTION_COUNT,
};

struct table_section_entry {
    uint64_t off, bytes;
};

struct table_header {
    char magic[8];
    uint32_t version;
    uint32_t flags;
    uint64_t n_bytes; /* of the file, digest included */
    uint32_t n_sink;
    uint32_t n_golden; /* TABLE_GOLDEN_TOKENS */
    uint8_t model_digest[DIGEST_BYTES];
    uint32_t n_layers, n_heads, n_kv_heads, d, n_rot;
    uint32_t reserved0;
    double attn_scale;
    struct table_section_entry sections[SECTION_COUNT];
    uint8_t reserved1[64];
};
_Static_assert(sizeof(struct table_header) == 256, "no padding");

struct table_codec_entry {
    uint8_t bits[TABLE_HALF_TILES_MAX]; /* [n_half], then zeros */
    uint16_t n_half, r, r_in, code_bits;
    uint64_t mean_off, enc_off, dec_off; /* from the start of the matrices; where it would stand if it is empty */
};
_Static_assert(sizeof(struct table_codec_entry) == 64, "no padding");

/* Floats of one width in the levels section: step, 2^b values, 2^b - 1 thresholds. */
#define TABLE_LEVEL_FLOATS(b) ((size_t) 2 << (b))
#define TABLE_LEVELS_BYTES (2 * (TABLE_LEVEL_FLOATS(TABLE_BITS_MAX + 1) - 4) * sizeof(float)) /* sum over b = 1..8 */

/* Room for half-tiles: a head dimension padded to a multiple of 16. */
static inline uint32_t table_half_tiles_max(uint32_t d)
{
    return (d + 15) / 16 * 2;
}

static inline size_t table_golden_bytes(const struct codec *k, const struct codec *v, uint32_t d)
{
    return TABLE_GOLDEN_TOKENS * ((size_t) k->r + v->r + 2 * (size_t) d * sizeof(float));
}

/**
 * table_decode_head() - one token of one head from its codes, in binary64
 * @codes:         by side, [r]; each within its width
 * @ret_x:         by side, [d]
 * @ret_magnitude: by side, [d]: sum of the absolute terms, for error bounds
 *
 * @t needs geometry, levels and codecs only: the builder decodes golden codes before there is a table.
 */
void table_decode_head(const struct table *t, uint32_t layer, uint32_t head, const uint8_t *const codes[2],
                       double ret_x[2][GEOMETRY_DIM_MAX], double ret_magnitude[2][GEOMETRY_DIM_MAX]);

/* Fills @ret from a directory entry whose numbers were checked. @matrices: start of the section. */
void table_codec_view(const struct table_codec_entry *entry, const uint8_t *matrices, struct codec *ret);

/* Checks of table_parse() on @t, which has geometry, v_from_k, bytes and sections that lie inside them.
 * @ret_codecs [head_side_count]. Return: 0; -EBADMSG with a sentence. */
int table_check_levels(struct table *t, struct errmsg *e);
int table_check_codecs(struct table *t, struct codec *ret_codecs, struct errmsg *e);
int table_check_provenance(struct table *t, struct errmsg *e);
int table_check_golden(const struct table *t, struct errmsg *e);

static inline const struct table_header *table_header(const struct table *t)
{
    return t->bytes;
}

static inline const uint8_t *table_section(const struct table *t, enum table_section s)
{
    return (const uint8_t *) t->bytes + table_header(t)->sections[s].off;
}
