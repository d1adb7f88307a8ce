/*
 * What a table holds: levels and codecs, and how a reader finds them. alloc/table/table.h loads tables and
 * counts references to them.
 *
 * One codec per head-side. With x a pre-RoPE key or a value [d]:
 *
 *   K:  z = enc (x - enc_mean)                codes q_i = quantise(z_i, bits of half-tile i/8, side K)
 *       c_i = level[K][b][q_i]                x^ = mean + dec c                                   (r_in = r)
 *   V:  c [n_pred] = levels of the *stored* K codes of the same token, of the heads that V is predicted from
 *       z = enc (x - enc_mean) - enc_k c      x^ = mean + dec [c ; c_V]            (r_in = n_pred + r)
 *
 * Encoder and decoder are separate, since the best decoder of given codes is not the encoder's inverse. If
 * it is the inverse, with P the prediction: enc_mean = mean, enc_k = enc P, P = dec[:, :n_pred].
 *
 * z has unit variance per coordinate; thresholds are in that unit. level[][b][] for b <= 4 is an integer of
 * -127..127 whose step is folded into dec (and K's into enc_k); for b >= 5 a binary16 value, in units of z.
 * Coordinates are in half-tiles of 8 in descending b, an even number of them; empty ones (b = 0) have zero
 * rows in enc and enc_k, zero columns in dec, level 0 and no bytes.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "alloc/table/geometry.h"

#define TABLE_BITS_MAX 8
#define TABLE_HALF_TILES_MAX 32 /* ceil(256 / 16) * 2 */
#define TABLE_RANK_MAX (TABLE_HALF_TILES_MAX * 8)
#define TABLE_SINKS_MAX 16
/* Most K codes that a value may be predicted from: all codes of 32 heads of 256 dimensions. */
#define TABLE_PRED_MAX 8192
#define TABLE_FILE_BYTES_MAX ((size_t) 4 << 30)

struct levels {
    float value[1 << TABLE_BITS_MAX]; /* [levels_count()]; scalar ones ascend; see above for the unit */
    /* [2^b - 1] ascending, in units of z; a tie takes the upper code; zeros with a trellis */
    float threshold[(1 << TABLE_BITS_MAX)];
    int8_t value_i8[16]; /* scalar, b <= 4: value as integer; else zeros */
    float step;          /* unit of value in z: the int8 step for b <= 4, 1 for b >= 5 */
    /* trellis.h: value is [2^state_bits], by state; 0: scalar levels, by code */
    uint8_t state_bits;
    /* With a trellis, c = value * step of z ~ N(0,1): E c z and E c^2, by which moments are refitted */
    float normal_product, normal_square;
};

/* Bits of an index of value: a code, or the state of a trellis. */
static inline unsigned levels_index_bits(const struct levels *l, unsigned b)
{
    return l->state_bits > 0 ? l->state_bits : b;
}

static inline unsigned levels_count(const struct levels *l, unsigned b)
{
    return 1u << levels_index_bits(l, b);
}

/* The type of the numbers that pages of an exact table hold. The numbers are those of the file. */
enum exact_type {
    EXACT_NONE = 0, /* the table has codecs */
    EXACT_F32 = 1,
    EXACT_F16 = 2,
    EXACT_BF16 = 3,
};

/*
 * What pages of an exact table hold: the vectors of an engine's cache, byte for byte. Engines whose caches
 * differ in one of these have tables of different digests, and share no page.
 */
struct exact_form {
    uint8_t type;        /* enum exact_type */
    uint8_t after_rope;  /* 1: keys are after RoPE, 0: before */
    uint8_t interleaved; /* 1: RoPE rotates dimensions (2 i, 2 i + 1) together, 0: (i, i + n_rot / 2) */
};

static inline size_t exact_number_bytes(uint8_t type)
{
    return type == EXACT_F32 ? 4 : 2;
}

/* The K codes that a V codec reads. The numbers are those of the file. */
enum prediction {
    PREDICT_NONE = 0,
    PREDICT_HEAD = 1,  /* those of its own head */
    PREDICT_LAYER = 2, /* those of every KV head of its layer, in the order of heads */
};

struct codec {
    uint16_t n_half;    /* half-tiles, even, <= TABLE_HALF_TILES_MAX; 0 = rank 0, x^ = mean (+ P c for V) */
    uint16_t r;         /* 8 * n_half */
    uint16_t code_bits; /* stored bits per token: 8 * sum of bits[] */
    uint8_t bits[TABLE_HALF_TILES_MAX]; /* [n_half], descending */
    /* K: 0, or RoPE planes 0 .. fast_planes - 1 have coordinates of their own, which their dimensions alone
     * give and take; bit i of fast_halves: half-tile i has such coordinates. V: 0 */
    uint16_t fast_planes;
    uint32_t fast_halves;
    uint32_t n_pred;       /* columns of c, <= TABLE_PRED_MAX; K: 0 */
    uint32_t r_in;         /* columns of dec: n_pred + r */
    const float *enc_mean; /* [d] */
    const float *enc;      /* [r, d] row-major; NULL if r == 0 */
    const float *enc_k;    /* [r, n_pred] row-major; NULL if r == 0 or n_pred == 0 */
    const float *mean;     /* [d]; exact vectors are stored relative to it too */
    const float *dec;      /* [d, r_in] row-major; NULL if r_in == 0 */
};

/* Whether half-tile @half has coordinates of the fast planes. */
static inline bool codec_half_is_fast(const struct codec *c, size_t half)
{
    return c->fast_halves >> half & 1;
}

/* Row @i of dec, [r_in]. Without columns dec is NULL, from which C forms no address. */
static inline const float *codec_dec_row(const struct codec *c, size_t i)
{
    return c->r_in > 0 ? c->dec + i * c->r_in : c->dec;
}

struct table {
    struct geometry geometry;
    uint8_t digest[DIGEST_BYTES]; /* SHA-256 of the canonical bytes: the table's name */
    uint8_t model_digest[DIGEST_BYTES];
    uint8_t geometry_digest[DIGEST_BYTES];
    uint32_t n_sink; /* exact first tokens of a sequence, <= TABLE_SINKS_MAX */
    enum prediction v_from;
    /* Without codecs: rank 0, means of 0, and code_bits of whole vectors. No sinks: all is exact */
    struct exact_form exact;
    double bpd_code;        /* stored code bits per number, padding included */
    const char *provenance; /* JSON text, NUL-terminated: statistics and options it was solved with */
    struct levels levels[2][TABLE_BITS_MAX + 1]; /* [side][b], b in 1..8 */
    const struct codec *codecs;                  /* [head_side_count()], by head_side_index() */
    const void *bytes;                           /* the file image, owned by the table */
    size_t n_bytes;
};

/* Coordinates with bits; padding of a half-tile counts. */
static inline unsigned codec_coded(const struct codec *c)
{
    bool has_empty = c->n_half > 0 && c->bits[c->n_half - 1] == 0;

    return c->r - 8u * has_empty;
}

/* Whether pages hold the engine's bytes, which only reading understands. */
static inline bool table_is_exact(const struct table *t)
{
    return t->exact.type != EXACT_NONE;
}

/* Whether widths of a side have trellis-coded levels: a table of format 3. */
static inline bool table_has_trellis(const struct table *t)
{
    unsigned states = 0;

    for (unsigned side = 0; side < 2; side++)
        for (unsigned b = 1; b <= TABLE_BITS_MAX; b++)
            states |= t->levels[side][b].state_bits;
    return states != 0;
}

/* A run of KV heads of one layer. */
struct head_run {
    uint32_t first, n;
};

/* The heads whose K codes predict V of @head. */
static inline struct head_run prediction_heads(enum prediction p, uint32_t n_kv_heads, uint32_t head)
{
    return p == PREDICT_LAYER ? (struct head_run){0, n_kv_heads} : (struct head_run){head, p == PREDICT_HEAD};
}

static inline struct head_run table_predictors(const struct table *t, uint32_t head)
{
    return prediction_heads(t->v_from, t->geometry.n_kv_heads, head);
}

static inline const struct codec *table_codec(const struct table *t, uint32_t layer, uint32_t head,
                                              enum side side)
{
    return &t->codecs[head_side_index(&t->geometry, layer, head, side)];
}
