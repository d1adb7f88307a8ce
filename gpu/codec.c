/*
 * Encode and decode one head: the order of work. The arithmetic is in ops_*.c and gives the same bits in each.
 *
 * Work goes in groups of 16 tokens, held transposed ([coordinate][16 tokens], one token per lane), so that lanes
 * never mix and a token's codes do not depend on who its neighbours are.
 */
#include "gpu/codec.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "gpu/ops.h"

enum { GROUP = OPS_LANES, PLANE_FLOATS = GEOMETRY_DIM_MAX * GROUP };

_Static_assert(TABLE_RANK_MAX == GEOMETRY_DIM_MAX, "coordinates and dimensions share the size of a plane");

/* The caller's scratch; every plane is [up to 256][GROUP]. */
struct planes {
    float *x;        /* centred vectors; when decoding, sums */
    float *z;        /* coordinates */
    float *levels_k; /* levels of K codes, directly followed by */
    float *levels_v; /* those of V codes */
    float *predicted;
};

enum { N_PLANES = 5 };

size_t codec_scratch_floats(void)
{
    return (size_t) N_PLANES * PLANE_FLOATS;
}

static struct planes planes_of(float *scratch)
{
    return (struct planes) {
        .x = scratch,
        .z = scratch + PLANE_FLOATS,
        .levels_k = scratch + 2 * PLANE_FLOATS,
        .levels_v = scratch + 3 * PLANE_FLOATS,
        .predicted = scratch + 4 * PLANE_FLOATS,
    };
}

static struct matrix_in in(const float *p, size_t ld)
{
    return (struct matrix_in) { p, ld };
}

static struct matrix_out out(float *p)
{
    return (struct matrix_out) { p, GROUP };
}

/* Columns of V's dec that multiply K's levels. */
static size_t predicting_columns(struct head_view h)
{
    return (size_t) (h.v->r_in - h.v->r);
}

/* ---- encode -------------------------------------------------------------------------------------------------- */

/* x [n, d] to planes [d][GROUP], mean subtracted; lanes from n on are zero. False if a number is not finite. */
static bool load_centred(const float *x, size_t stride, size_t n, const float *mean, size_t d, float *ret)
{
    bool finite = true;

    for (size_t i = 0; i < d; i++)
        for (size_t t = 0; t < GROUP; t++) {
            float v = t < n ? x[t * stride + i] - mean[i] : 0;

            finite &= isfinite(v) != 0;
            ret[i * GROUP + t] = v;
        }
    return finite;
}

/* levels_quantise() with the loop unrolled by bits; tests hold the two against each other. */
static inline uint8_t quantise(const struct levels *l, unsigned b, float z)
{
    unsigned code = 0;

    for (unsigned bit = 1u << (b - 1); bit > 0; bit >>= 1)
        code = z >= l->threshold[(code | bit) - 1] ? code | bit : code;
    return (uint8_t) code;
}

/*
 * The outermost cells are open; taken as wide as they would be if they were symmetric about their level, that is
 * twice the distance from the threshold to the level. This is defined for one bit too, which has no inner cell.
 */
static void saturation_limits(const struct levels *l, unsigned b, float *ret_low, float *ret_high)
{
    unsigned last = (1u << b) - 1;
    float bottom = l->value[0] * l->step, top = l->value[last] * l->step;

    *ret_low = l->threshold[0] - 2 * (l->threshold[0] - bottom);
    *ret_high = l->threshold[last - 1] + 2 * (top - l->threshold[last - 1]);
}

/* z [r][GROUP] to codes [r][GROUP]; the first @n lanes are tokens. Half-tiles without bits get code 0. */
static void quantise_group(const struct table *t, enum side side, const struct codec *c, const float *z, size_t n,
                           uint8_t *codes, struct encode_counts *counts)
{
    for (size_t half = 0; half < c->n_half; half++) {
        unsigned b = c->bits[half];
        const struct levels *l = &t->levels[side][b];
        const float *x = z + half * 8 * GROUP;
        uint8_t *ret = codes + half * 8 * GROUP;
        float low, high;

        if (b == 0) {
            memset(ret, 0, 8 * GROUP);
            continue;
        }
        saturation_limits(l, b, &low, &high);
        for (size_t i = 0; i < 8 * GROUP; i++) {
            ret[i] = quantise(l, b, x[i]);
            counts->saturated += i % GROUP < n && (x[i] < low || x[i] > high);
        }
        counts->coords += 8 * n;
    }
}

/* codes [r][GROUP] to their levels [r][GROUP]. */
static void lookup_group(const struct table *t, enum side side, const struct codec *c, const uint8_t *codes, float *ret)
{
    for (size_t half = 0; half < c->n_half; half++) {
        unsigned b = c->bits[half];
        size_t at = half * 8 * GROUP;

        if (b == 0)
            memset(ret + at, 0, 8 * GROUP * sizeof(*ret));
        else
            ops_best()->lookup(&t->levels[side][b], b, codes + at, 8 * GROUP, ret + at);
    }
}

static void project(const struct codec *c, size_t d, const float *x, float *z)
{
    memset(z, 0, (size_t) c->r * GROUP * sizeof(*z));
    ops_best()->matmul_ordered(c->r, GROUP, d, in(c->enc, d), in(x, GROUP), out(z));
}

static void store_codes(const uint8_t *codes, size_t r, size_t n, uint8_t *ret)
{
    for (size_t t = 0; t < n; t++)
        for (size_t i = 0; i < r; i++)
            ret[t * r + i] = codes[i * GROUP + t];
}

/* x -= P c, with P the first columns of V's dec. */
static void subtract_prediction(struct head_view h, struct planes p)
{
    size_t d = h.table->geometry.d, columns = predicting_columns(h);

    memset(p.predicted, 0, d * GROUP * sizeof(float));
    ops_best()->matmul_ordered(d, GROUP, columns, in(h.v->dec, h.v->r_in), in(p.levels_k, GROUP), out(p.predicted));
    for (size_t i = 0; i < d * GROUP; i++)
        p.x[i] -= p.predicted[i];
}

static int encode_group(struct head_view h, const float *k, const float *v, size_t row_stride, size_t n,
                        uint8_t *codes_k, uint8_t *codes_v, struct encode_counts counts[2], struct planes p)
{
    uint8_t codes[TABLE_RANK_MAX * GROUP];
    size_t d = h.table->geometry.d;

    if (!load_centred(k, row_stride, n, h.k->mean, d, p.x))
        return -EINVAL;
    project(h.k, d, p.x, p.z);
    quantise_group(h.table, SIDE_K, h.k, p.z, n, codes, &counts[SIDE_K]);
    store_codes(codes, h.k->r, n, codes_k);

    if (!load_centred(v, row_stride, n, h.v->mean, d, p.x))
        return -EINVAL;
    if (predicting_columns(h) > 0) {
        lookup_group(h.table, SIDE_K, h.k, codes, p.levels_k);
        subtract_prediction(h, p);
    }
    project(h.v, d, p.x, p.z);
    quantise_group(h.table, SIDE_V, h.v, p.z, n, codes, &counts[SIDE_V]);
    store_codes(codes, h.v->r, n, codes_v);
    return 0;
}

int codec_encode(struct head_view h, const float *k, const float *v, size_t row_stride, size_t n, uint8_t *codes_k,
                 uint8_t *codes_v, struct encode_counts counts[2], float *scratch)
{
    struct planes p = planes_of(scratch);

    for (size_t at = 0; at < n; at += GROUP) {
        int r = encode_group(h, k + at * row_stride, v + at * row_stride, row_stride, n - at < GROUP ? n - at : GROUP,
                             codes_k + at * h.k->r, codes_v + at * h.v->r, counts, p);

        if (r < 0)
            return r;
    }
    return 0;
}

/* ---- decode -------------------------------------------------------------------------------------------------- */

/* codes [n, r] to [r][GROUP]; lanes from n on get code 0. */
static void load_codes(const uint8_t *codes, size_t r, size_t n, uint8_t *ret)
{
    for (size_t i = 0; i < r; i++)
        for (size_t t = 0; t < GROUP; t++)
            ret[i * GROUP + t] = t < n ? codes[t * r + i] : 0;
}

/* x^ [n, d] = mean + dec levels, levels [r_in][GROUP]. */
static void reconstruct(const struct codec *c, size_t d, const float *levels, float *sums, size_t n, float *ret,
                        size_t row_stride)
{
    for (size_t i = 0; i < d; i++)
        for (size_t t = 0; t < GROUP; t++)
            sums[i * GROUP + t] = c->mean[i];
    ops_best()->matmul_ordered(d, GROUP, c->r_in, in(c->dec, c->r_in), in(levels, GROUP), out(sums));
    for (size_t t = 0; t < n; t++)
        for (size_t i = 0; i < d; i++)
            ret[t * row_stride + i] = sums[i * GROUP + t];
}

static void decode_group(struct head_view h, const uint8_t *codes_k, const uint8_t *codes_v, size_t n, float *k,
                         float *v, size_t row_stride, struct planes p)
{
    uint8_t codes[TABLE_RANK_MAX * GROUP];
    size_t d = h.table->geometry.d, columns = predicting_columns(h);

    /* [c ; c_V] as one operand: the K levels end where the V levels begin */
    float *levels = p.levels_v - columns * GROUP;

    assert(columns == 0 || columns == h.k->r);
    if (k || columns > 0) {
        load_codes(codes_k, h.k->r, n, codes);
        lookup_group(h.table, SIDE_K, h.k, codes, p.levels_v - (size_t) h.k->r * GROUP);
    }
    if (k)
        reconstruct(h.k, d, p.levels_v - (size_t) h.k->r * GROUP, p.x, n, k, row_stride);
    if (v) {
        load_codes(codes_v, h.v->r, n, codes);
        lookup_group(h.table, SIDE_V, h.v, codes, p.levels_v);
        reconstruct(h.v, d, levels, p.x, n, v, row_stride);
    }
}

void codec_decode(struct head_view h, const uint8_t *codes_k, const uint8_t *codes_v, size_t n, float *k, float *v,
                  size_t row_stride, float *scratch)
{
    struct planes p = planes_of(scratch);

    for (size_t at = 0; at < n; at += GROUP)
        decode_group(h, codes_k ? codes_k + at * h.k->r : NULL, codes_v ? codes_v + at * h.v->r : NULL,
                     n - at < GROUP ? n - at : GROUP, k ? k + at * row_stride : NULL,
                     v ? v + at * row_stride : NULL, row_stride, p);
}
