/*
 * Encodes and decodes one head; see codec.h. This file has the order of work. The arithmetic is in
 * ops_*.c and gives the same bits in each of them.
 *
 * Work goes in groups of 16 tokens, stored transposed ([coordinate][16 tokens], one token per lane). Lanes
 * never mix, so the codes of a token do not depend on its neighbours.
 */
#include "gpu/codec.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "alloc/table/trellis.h"
#include "gpu/cpu/ops.h"

enum { GROUP = OPS_LANES, PLANE_FLOATS = GEOMETRY_DIM_MAX * GROUP };

_Static_assert(TABLE_RANK_MAX == GEOMETRY_DIM_MAX, "coordinates and dimensions share the size of a plane");

/* The caller's scratch; every plane is [up to 256][GROUP]. */
struct planes {
    float *x;         /* centred vectors; when decoding, sums */
    float *z;         /* coordinates */
    float *levels;    /* of the codes of one head and side */
    float *predicted; /* part of z */
};

enum { N_PLANES = 4 };

/* Strings of the coordinates of one head, side and chunk that have a trellis: columns in the order of
 * coordinates. Each width is encoded in multiples of TRELLIS_LANES, so columns behind its last are used too.
 * */
struct strings {
    int16_t steps[CHUNK_TOKENS][TABLE_RANK_MAX + TRELLIS_LANES];
    uint8_t states[CHUNK_TOKENS][TABLE_RANK_MAX + TRELLIS_LANES];
    _Alignas(64) uint8_t scratch[TRELLIS_SCRATCH];
};

size_t codec_scratch_floats(void)
{
    return (size_t) N_PLANES * PLANE_FLOATS +
           (sizeof(struct strings) + _Alignof(struct strings)) / sizeof(float);
}

/* Behind the planes, aligned. */
static struct strings *codec_strings_of(float *scratch)
{
    uintptr_t at = (uintptr_t) (scratch + (size_t) N_PLANES * PLANE_FLOATS);

    return (struct strings *) ((at + _Alignof(struct strings) - 1) &
                               ~(uintptr_t) (_Alignof(struct strings) - 1));
}

static struct planes codec_planes_of(float *scratch)
{
    return (struct planes){
        .x = scratch,
        .z = scratch + PLANE_FLOATS,
        .levels = scratch + 2 * PLANE_FLOATS,
        .predicted = scratch + 3 * PLANE_FLOATS,
    };
}

static struct matrix_in codec_in(const float *p, size_t ld)
{
    return (struct matrix_in){p, ld};
}

static struct matrix_out codec_out(float *p)
{
    return (struct matrix_out){p, GROUP};
}

/* ---- encode ---- */

/* Transposes x [n, d] to planes [d][GROUP] and subtracts the mean; lanes from n on are zero. False if a
 * number is not finite. */
static bool codec_load_centred(const float *x, size_t stride, size_t n, const float *mean, size_t d,
                               float *ret)
{
    const struct ops *ops = ops_best();
    size_t i = 0;

    for (; n == GROUP && i + GROUP <= d; i += GROUP)
        ops->transpose(x + i, stride, ret + i * GROUP, GROUP);
    for (; i < d; i++)
        for (size_t t = 0; t < GROUP; t++)
            ret[i * GROUP + t] = t < n ? x[t * stride + i] : mean[i];
    return ops->centre(mean, d, ret);
}

/* One side of one head, whose vectors are encoded chunk by chunk. */
struct encoding {
    const struct table *table;
    enum side side;
    const struct codec *c;
    struct strings *strings;
    struct encode_counts *counts;
};

static const struct levels *codec_levels(const struct encoding *e, size_t half)
{
    return &e->table->levels[e->side][e->c->bits[half]];
}

/* Coordinates z [8][GROUP] of half-tile @half at tokens @at .. of a chunk, in steps; the first @n lanes
 * count as saturated or not, lanes behind them are zero. */
static void codec_store_steps(const struct encoding *e, size_t half, const float *z, size_t at, size_t n)
{
    float inverse = 1 / codec_levels(e, half)->step;

    for (size_t t = 0; t < GROUP; t++) {
        int16_t *to = &e->strings->steps[at + t][8 * half];

        for (size_t i = 0; i < 8; i++) {
            to[i] = t < n ? trellis_steps(z[i * GROUP + t], inverse) : 0;
            e->counts->saturated += to[i] > TRELLIS_SATURATED || to[i] < -TRELLIS_SATURATED;
        }
    }
    e->counts->coords += 8 * n;
}

/* Quantises z [r][GROUP] of tokens @at .. of a chunk to codes [r][GROUP]; the first @n lanes are tokens.
 * Half-tiles without bits get code 0, and so do those with a trellis, whose strings begin here. */
static void codec_quantise_group(const struct encoding *e, const float *z, size_t at, size_t n,
                                 uint8_t *codes)
{
    struct encode_counts *counts = e->counts;

    for (size_t half = 0; half < e->c->n_half; half++) {
        unsigned b = e->c->bits[half];
        const struct levels *l = codec_levels(e, half);
        uint8_t *ret = codes + half * 8 * GROUP;
        struct quantise_limits limits;

        if (l->state_bits > 0)
            codec_store_steps(e, half, z + half * 8 * GROUP, at, n);
        if (b == 0 || l->state_bits > 0) {
            memset(ret, 0, 8 * GROUP);
            continue;
        }

        levels_saturation_limits(l, b, &limits.low, &limits.high);
        counts->saturated +=
            ops_best()->quantise(l, b, limits, z + half * 8 * GROUP, (size_t) 8 * GROUP, n, ret);
        counts->coords += 8 * n;
    }
}

/* Encodes the strings of a chunk of which @n tokens are there, and puts their states into codes [n, r].
 * Widths descend, so what a width writes behind its last column is written again by the next. */
static void codec_encode_strings(const struct encoding *e, size_t n, uint8_t *codes)
{
    struct strings *s = e->strings;
    size_t half = 0, r = e->c->r;

    while (half < e->c->n_half) {
        const struct levels *l = codec_levels(e, half);
        size_t first = half, cols;

        while (half < e->c->n_half && e->c->bits[half] == e->c->bits[first])
            half++;
        if (l->state_bits == 0)
            continue;

        cols = (8 * (half - first) + TRELLIS_LANES - 1) / TRELLIS_LANES * TRELLIS_LANES;
        for (size_t t = n; t < CHUNK_TOKENS; t++)
            memset(&s->steps[t][8 * first], 0, cols * sizeof(s->steps[t][0]));
        ops_best()->trellis(l, e->c->bits[first], &s->steps[0][8 * first], cols,
                            TABLE_RANK_MAX + TRELLIS_LANES, &s->states[0][8 * first], s->scratch);
        for (size_t t = 0; t < n; t++)
            memcpy(codes + t * r + 8 * first, &s->states[t][8 * first], 8 * (half - first));
    }
}

/* Looks up the levels [r][GROUP] of codes [r][GROUP]. */
static void codec_lookup_group(const struct table *t, enum side side, const struct codec *c,
                               const uint8_t *codes, float *ret)
{
    for (size_t half = 0; half < c->n_half; half++) {
        unsigned b = c->bits[half];
        const struct levels *l = &t->levels[side][b];
        size_t at = half * 8 * GROUP;

        if (b == 0)
            memset(ret + at, 0, 8 * GROUP * sizeof(*ret));
        else
            ops_best()->lookup(l, levels_index_bits(l, b), codes + at, 8 * GROUP, ret + at);
    }
}

typedef uint8_t bytes16 __attribute__((vector_size(16)));

static inline bytes16 codec_interleave_low(bytes16 a, bytes16 b)
{
    return __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
}

static inline bytes16 codec_interleave_high(bytes16 a, bytes16 b)
{
    return __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
}

/* @x: 128 bytes. Interleaving the first half with the last moves byte i to the place whose index has the
 * seven bits of i rotated by one: three rounds make [16][8] of [8][16], four rounds [8][16] of [16][8]. */
static inline void codec_interleave(bytes16 x[8], unsigned rounds)
{
    for (unsigned round = 0; round < rounds; round++) {
        bytes16 y[8];

        for (unsigned i = 0; i < 4; i++) {
            y[2 * i] = codec_interleave_low(x[i], x[i + 4]);
            y[2 * i + 1] = codec_interleave_high(x[i], x[i + 4]);
        }
        memcpy(x, y, sizeof(y));
    }
}

/* Transposes codes [n, r] to [r][GROUP]; lanes from n on get code 0. */
static void codec_load_codes(const uint8_t *codes, size_t r, size_t n, uint8_t *ret)
{
    for (size_t i = 0; i < r; i += 8) {
        uint8_t rows[GROUP][8] = {{0}};
        bytes16 x[8];

        for (size_t t = 0; t < n; t++)
            memcpy(rows[t], codes + t * r + i, 8);
        memcpy(x, rows, sizeof(x));
        codec_interleave(x, 4);
        memcpy(ret + i * GROUP, x, sizeof(x));
    }
}

static void codec_store_codes(const uint8_t *codes, size_t r, size_t n, uint8_t *ret)
{
    for (size_t i = 0; i < r; i += 8) {
        uint8_t rows[GROUP][8];
        bytes16 x[8];

        memcpy(x, codes + i * GROUP, sizeof(x));
        codec_interleave(x, 3);
        memcpy(rows, x, sizeof(rows));
        for (size_t t = 0; t < n; t++)
            memcpy(ret + t * r + i, rows[t], 8);
    }
}

static void codec_look_up(const struct table *t, enum side side, const struct codec *c, const uint8_t *codes,
                          size_t n, float *ret)
{
    uint8_t group[TABLE_RANK_MAX * GROUP];

    codec_load_codes(codes, c->r, n, group);
    codec_lookup_group(t, side, c, group, ret);
}

/* sums [rows][GROUP] += m c for tokens at .. at + n - 1. c are the levels of the K codes that V is
 * predicted from; they take the first columns of m. The sum of each head is added to those of the heads
 * before it: the order is the same on every machine, and one plane of levels is enough. */
static void codec_add_predictors(struct head_view h, const uint8_t *const *codes_k, size_t at, size_t n,
                                 struct matrix_in m, size_t rows, float *levels, float *sums)
{
    struct head_run run = table_predictors(h.table, h.head);

    for (uint32_t head = run.first; head < run.first + run.n; head++) {
        const struct codec *k = table_codec(h.table, h.layer, head, SIDE_K);

        if (k->r == 0)
            continue;
        codec_look_up(h.table, SIDE_K, k, codes_k[head] + at * k->r, n, levels);
        ops_best()->matmul_ordered(rows, GROUP, k->r, m, codec_in(levels, GROUP), codec_out(sums));
        m.p += k->r;
    }
}

static void codec_project(const struct codec *c, size_t d, const float *x, float *z)
{
    memset(z, 0, (size_t) c->r * GROUP * sizeof(*z));
    ops_best()->matmul_ordered(c->r, GROUP, d, codec_in(c->enc, d), codec_in(x, GROUP), codec_out(z));
}

int codec_encode_keys(struct head_view h, const float *k, size_t row_stride, size_t n, uint8_t *codes,
                      struct encode_counts *counts, float *scratch)
{
    struct planes p = codec_planes_of(scratch);
    const struct encoding e = {h.table, SIDE_K, h.k, codec_strings_of(scratch), counts};
    uint8_t group[TABLE_RANK_MAX * GROUP];
    size_t d = h.table->geometry.d;

    for (size_t at = 0; at < n; at += GROUP) {
        size_t lanes = n - at < GROUP ? n - at : GROUP, in_chunk = at % CHUNK_TOKENS;

        if (!codec_load_centred(k + at * row_stride, row_stride, lanes, h.k->enc_mean, d, p.x))
            return -EINVAL;

        codec_project(h.k, d, p.x, p.z);
        codec_quantise_group(&e, p.z, in_chunk, lanes, group);
        codec_store_codes(group, h.k->r, lanes, codes + at * h.k->r);
        if (in_chunk + GROUP == CHUNK_TOKENS || at + GROUP >= n)
            codec_encode_strings(&e, in_chunk + lanes, codes + (at - in_chunk) * h.k->r);
    }

    return 0;
}

int codec_encode_values(struct head_view h, const float *v, size_t row_stride, size_t n,
                        const uint8_t *const *codes_k, uint8_t *codes, struct encode_counts *counts,
                        float *scratch)
{
    struct planes p = codec_planes_of(scratch);
    const struct encoding e = {h.table, SIDE_V, h.v, codec_strings_of(scratch), counts};
    uint8_t group[TABLE_RANK_MAX * GROUP];
    size_t d = h.table->geometry.d, r = h.v->r;

    for (size_t at = 0; at < n; at += GROUP) {
        size_t lanes = n - at < GROUP ? n - at : GROUP, in_chunk = at % CHUNK_TOKENS;

        if (!codec_load_centred(v + at * row_stride, row_stride, lanes, h.v->enc_mean, d, p.x))
            return -EINVAL;

        codec_project(h.v, d, p.x, p.z);
        if (h.v->enc_k) {
            memset(p.predicted, 0, r * GROUP * sizeof(float));
            codec_add_predictors(h, codes_k, at, lanes, codec_in(h.v->enc_k, h.v->n_pred), r, p.levels,
                                 p.predicted);
            for (size_t i = 0; i < r * GROUP; i++)
                p.z[i] -= p.predicted[i];
        }

        codec_quantise_group(&e, p.z, in_chunk, lanes, group);
        codec_store_codes(group, r, lanes, codes + at * r);
        if (in_chunk + GROUP == CHUNK_TOKENS || at + GROUP >= n)
            codec_encode_strings(&e, in_chunk + lanes, codes + (at - in_chunk) * r);
    }

    return 0;
}

/* ---- decode ---- */

static void codec_fill_mean(const float *mean, size_t d, float *sums)
{
    for (size_t i = 0; i < d; i++)
        for (size_t t = 0; t < GROUP; t++)
            sums[i * GROUP + t] = mean[i];
}

/* Adds to sums the columns that belong to the codec's own codes. */
static void codec_add_own(struct head_view h, enum side side, const struct codec *c, const uint8_t *codes,
                          size_t n, struct planes p)
{
    if (c->r == 0)
        return;
    codec_look_up(h.table, side, c, codes, n, p.levels);
    ops_best()->matmul_ordered(h.table->geometry.d, GROUP, c->r, codec_in(c->dec + c->n_pred, c->r_in),
                               codec_in(p.levels, GROUP), codec_out(p.x));
}

static void codec_store_vectors(const float *sums, size_t d, size_t n, float *ret, size_t row_stride)
{
    size_t i = 0;

    for (; n == GROUP && i + GROUP <= d; i += GROUP)
        ops_best()->transpose(sums + i * GROUP, GROUP, ret + i, row_stride);
    for (; i < d; i++)
        for (size_t t = 0; t < n; t++)
            ret[t * row_stride + i] = sums[i * GROUP + t];
}

void codec_decode_keys(struct head_view h, const uint8_t *codes, size_t n, float *k, size_t row_stride,
                       float *scratch)
{
    struct planes p = codec_planes_of(scratch);
    size_t d = h.table->geometry.d;

    for (size_t at = 0; at < n; at += GROUP) {
        size_t lanes = n - at < GROUP ? n - at : GROUP;

        codec_fill_mean(h.k->mean, d, p.x);
        codec_add_own(h, SIDE_K, h.k, codes + at * h.k->r, lanes, p);
        codec_store_vectors(p.x, d, lanes, k + at * row_stride, row_stride);
    }
}

void codec_decode_values(struct head_view h, const uint8_t *const *codes_k, const uint8_t *codes, size_t n,
                         float *v, size_t row_stride, float *scratch)
{
    struct planes p = codec_planes_of(scratch);
    size_t d = h.table->geometry.d;

    for (size_t at = 0; at < n; at += GROUP) {
        size_t lanes = n - at < GROUP ? n - at : GROUP;

        codec_fill_mean(h.v->mean, d, p.x);
        if (h.v->n_pred > 0)
            codec_add_predictors(h, codes_k, at, lanes, codec_in(h.v->dec, h.v->r_in), d, p.levels, p.x);
        codec_add_own(h, SIDE_V, h.v, codes + at * h.v->r, lanes, p);
        codec_store_vectors(p.x, d, lanes, v + at * row_stride, row_stride);
    }
}
