/*
 * The bytes of a table file, for the files that write (table_build.c) and check them (table.c,
 * table_check.c), and for the daemon, which asks for the version. All other files read struct table.
 * alloc/README.md draws the bytes.
 *
 *     header | freq | levels | codecs | provenance | matrices | golden | SHA-256 of all before
 *
 * An exact table has frequencies and provenance only; all other sections are empty.
 *
 * Little-endian. Every section starts at the next multiple of 64; bytes between are zero. No other placement
 * is valid: a table has exactly one encoding, so its digest can be its name.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "alloc/table/table_types.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "tables are used in place, and they are little-endian");

#define TABLE_MAGIC "KVCTABLE" /* without its NUL */
/* Tables without a trellis, without matrices of binary16 and without bases in two blocks that are not exact
 * are written in version 2, others in version 3; both are read. */
#define TABLE_VERSION_SCALAR 2
#define TABLE_VERSION 3
#define TABLE_ALIGN 64
#define TABLE_PROVENANCE_MAX ((size_t) 1 << 20) /* with its NUL */

/* Tokens per (layer, head) in the golden section: two, since a code of level 0 does not test its column. */
#define TABLE_GOLDEN_TOKENS 2

enum table_section {
    SECTION_FREQ, /* binary64 [n_rot / 2] */
    /* for both sides, b = 1..8: binary32 step, value[2^b], threshold[2^b - 1]; version 3: struct
     * table_levels_head, then the same, or the int8 levels of a trellis by state */
    SECTION_LEVELS,
    SECTION_CODECS,     /* struct table_codec_entry [head_side_count] */
    SECTION_PROVENANCE, /* JSON text and one NUL */
    /* for each codec enc_mean, enc, enc_k, mean, dec, each at a multiple of 64 */
    SECTION_MATRICES,
    /* for each layer and token: K codes of all heads; then for each head V codes [r_V] and
     * binary32 k^ [d], v^ [d], z of K [r_K], z of V [r_V] */
    SECTION_GOLDEN,
    SECTION_COUNT,
};

/* How enc, enc_k and dec are stored; means are binary32 in each form. */
enum table_matrix_form {
    MATRICES_SINGLE = 0, /* binary32 [rows, columns] */
    /* binary32 scale [rows], then binary16 [rows, columns]; a number is the product, exact but for
     * underflow, since scales are powers of two. Version 3 */
    MATRICES_HALF = 1,
};

struct table_section_entry {
    uint64_t off, bytes;
};

struct table_header {
    char magic[8];
    uint32_t version;
    uint32_t v_from;  /* enum prediction */
    uint64_t n_bytes; /* of the file, digest included */
    uint32_t n_sink;
    uint32_t n_golden; /* TABLE_GOLDEN_TOKENS; 0 in an exact table */
    uint8_t model_digest[DIGEST_BYTES];
    uint32_t n_layers, n_heads, n_kv_heads, d, n_rot;
    uint32_t matrix_form; /* enum table_matrix_form */
    double attn_scale;
    struct table_section_entry sections[SECTION_COUNT];
    struct exact_form exact; /* version 3 */
    uint8_t reserved1[61];
};
_Static_assert(sizeof(struct table_header) == 256, "no padding");

struct table_codec_entry {
    uint8_t bits[TABLE_HALF_TILES_MAX]; /* [n_half], then zeros */
    uint16_t n_half, r, code_bits;
    uint16_t fast_planes; /* as in struct codec; version 3 */
    uint32_t n_pred, fast_halves;
    uint64_t matrices_off; /* offset of the first matrix in the section; the others follow */
    uint64_t reserved2;
};
_Static_assert(sizeof(struct table_codec_entry) == 64, "no padding");

/* Floats of one width in the levels section: step, 2^b values, 2^b - 1 thresholds. */
#define TABLE_LEVEL_FLOATS(b) ((size_t) 2 << (b))

/* Version 3: before the numbers of each width. */
struct table_levels_head {
    uint32_t state_bits;                 /* of a trellis, b <= 4; 0: scalar levels */
    float step;                          /* of a trellis; 0 for scalar levels, whose step follows */
    float normal_product, normal_square; /* as in struct levels; 0 for scalar levels */
};
_Static_assert(sizeof(struct table_levels_head) == 16, "no padding");

/* Bytes of one width in the levels section of a version: a multiple of 4. */
static inline size_t table_levels_bytes(uint32_t version, uint32_t state_bits, unsigned b)
{
    size_t head = version == TABLE_VERSION_SCALAR ? 0 : sizeof(struct table_levels_head);

    return head + (state_bits > 0 ? (size_t) 1 << state_bits : TABLE_LEVEL_FLOATS(b) * sizeof(float));
}

/* Room for half-tiles: a head dimension padded to a multiple of 16. */
static inline uint32_t table_half_tiles_max(uint32_t d)
{
    return (d + 15) / 16 * 2;
}

/* Bytes of one token of one head in the golden section, without its K codes,
 * which are stored before all heads. */
static inline size_t table_golden_head_bytes(const struct codec *k, const struct codec *v, uint32_t d)
{
    return v->r + (2 * (size_t) d + k->r + v->r) * sizeof(float);
}

/* A matrix of a codec; without columns it has no bytes. */
struct table_matrix {
    size_t rows, columns;
    enum table_matrix_form form;
};

/* Matrices of a codec in the order of the file. */
enum { CODEC_MATRICES = 5 };
static inline void table_matrices(uint32_t r, uint32_t n_pred, uint32_t d, enum table_matrix_form form,
                                  struct table_matrix ret[CODEC_MATRICES])
{
    ret[0] = (struct table_matrix){1, d, MATRICES_SINGLE};
    ret[1] = (struct table_matrix){r, d, form};
    ret[2] = (struct table_matrix){r, n_pred, form};
    ret[3] = ret[0];
    ret[4] = (struct table_matrix){d, (size_t) n_pred + r, form};
}

static inline size_t table_matrix_bytes(struct table_matrix m)
{
    size_t n = m.rows * m.columns; /* at most (256 + 8192) * 256 */

    if (n == 0)
        return 0;
    return m.form == MATRICES_SINGLE ? n * sizeof(float) : m.rows * sizeof(float) + n * sizeof(uint16_t);
}

/* Sums in binary64, and sums of absolute terms for error bounds. */
struct table_sums {
    double x[GEOMETRY_DIM_MAX], magnitude[GEOMETRY_DIM_MAX];
};

/**
 * table_decode_head() - one token of one head from its codes: x^ by side, [d]
 * @codes_k: K codes of all heads of the layer, one head after the other; each within its width
 * @codes_v: [r_V] of @head
 *
 * Only geometry, v_from, levels and codecs of @t are read: the builder decodes golden codes before it has
 * a whole table.
 */
void table_decode_head(const struct table *t, uint32_t layer, uint32_t head, const uint8_t *codes_k,
                       const uint8_t *codes_v, struct table_sums ret[2]);

/* z of one token of one head, by side, [r]; @x by side, [d]. Codes and @t as above. */
void table_encode_head(const struct table *t, uint32_t layer, uint32_t head, const uint8_t *codes_k,
                       const float *const x[2], struct table_sums ret[2]);

/* K codes of one token of a layer. */
static inline size_t table_layer_codes(const struct table *t, uint32_t layer)
{
    size_t n = 0;

    for (uint32_t head = 0; head < t->geometry.n_kv_heads; head++)
        n += table_codec(t, layer, head, SIDE_K)->r;
    return n;
}

/*
 * Fills @ret from a directory entry whose numbers were checked. @matrices: start of the section. Matrices of
 * binary16 are expanded at *@room, which moves past them; NULL if there are none.
 */
void table_codec_view(const struct table_codec_entry *entry, uint32_t d, enum table_matrix_form form,
                      const uint8_t *matrices, float **room, struct codec *ret);

/* Bytes that suffice for all expanded matrices of a section of @n_bytes with those of @n codecs: numbers of
 * twice the size, each matrix to a multiple of TABLE_ALIGN. */
static inline size_t table_expanded_bytes(size_t n_bytes, size_t n)
{
    return 2 * n_bytes + 3 * n * TABLE_ALIGN;
}

/* Checks of table_parse() on @t, which has geometry, v_from, bytes and sections that lie inside them.
 * @ret_codecs [head_side_count]; @room as for table_codec_view(). @with_numbers: whether matrices are
 * checked too. Return: 0; -EBADMSG with a sentence. */
int table_check_levels(struct table *t, struct errmsg *e);
int table_check_codecs(struct table *t, struct codec *ret_codecs, float *room, bool with_numbers,
                       struct errmsg *e);
int table_check_provenance(struct table *t, struct errmsg *e);
int table_check_golden(const struct table *t, struct errmsg *e);

/* Most head-sides of an exact table: its file is small, and its reader makes a codec for each. */
enum { EXACT_HEAD_SIDES_MAX = 1 << 16 };

/* Return: 0; @error with a sentence: more head-sides. */
int table_exact_check_size(const struct geometry *g, int error, struct errmsg *e);

/* The same for an exact table, in place of levels, codecs and golden vectors. */
int table_check_exact(struct table *t, struct codec *ret_codecs, struct errmsg *e);

static inline const struct table_header *table_header(const struct table *t)
{
    return t->bytes;
}

static inline const uint8_t *table_section(const struct table *t, enum table_section s)
{
    return (const uint8_t *) t->bytes + table_header(t)->sections[s].off;
}

static inline enum table_matrix_form table_matrix_form_of(const struct table *t)
{
    return (enum table_matrix_form) table_header(t)->matrix_form;
}
