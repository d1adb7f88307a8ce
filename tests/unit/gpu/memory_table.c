/* See memory_table.h. */
#include "tests/unit/gpu/memory_table.h"

#include <math.h>
#include <stdlib.h>

#include "alloc/quantiser/levels_normal.h"
#include "alloc/table/trellis.h"
#include "tests/lib/random_book.h"
#include "tests/lib/test.h"

struct geometry memory_table_geometry(uint32_t n_layers, uint32_t n_heads, uint32_t n_kv_heads, uint32_t d,
                                      uint32_t n_rot)
{
    struct geometry g = {
        .n_layers = n_layers,
        .n_heads = n_heads,
        .n_kv_heads = n_kv_heads,
        .d = d,
        .n_rot = n_rot,
        .attn_scale = 1 / sqrt(d),
    };

    for (uint32_t i = 0; i < n_rot / 2; i++)
        g.freq[i] = pow(10000, -2.0 * i / n_rot);
    return g;
}

/* Draws descending bits of an even number of half-tiles, at most as many as d takes. */
static void draw_bits(const struct memory_table_options *o, enum side side, struct codec *c)
{
    unsigned max = (o->geometry.d + 15) / 16 * 2;
    unsigned top = TABLE_BITS_MAX;

    if (side == SIDE_K && o->key_rank > 0)
        max = o->key_rank / 8;
    if (o->bits == 0)
        return;
    c->n_half = (uint16_t) (o->bits > 0 ? max : 2 * (1 + test_rand_below(max / 2)));
    for (unsigned i = 0; i < c->n_half; i++) {
        if (o->bits > 0)
            c->bits[i] = (uint8_t) o->bits;
        else /* now and then a step down; the last ones may become zero */
            c->bits[i] = (uint8_t) (top -= top > 0 && test_rand_below(3) == 0 ? 1 + test_rand_below(top) : 0);
        c->code_bits = (uint16_t) (c->code_bits + 8 * c->bits[i]);
    }
    c->r = (uint16_t) (8 * c->n_half);
}

static void fill(float *p, size_t n, double scale)
{
    for (size_t i = 0; i < n; i++)
        p[i] = (float) (scale * test_rand_normal());
}

/* Columns of dec for the codes of @c: entries in units of z, zero for empty half-tiles. */
static void fill_columns(const struct table *t, enum side side, const struct codec *c, size_t d, size_t ld,
                         double scale, float *dec)
{
    for (size_t col = 0; col < c->r; col++) {
        unsigned b = c->bits[col / 8];
        double s = b == 0 ? 0 : scale * (double) t->levels[side][b].step;

        for (size_t i = 0; i < d; i++)
            dec[i * ld + col] = (float) (s * test_rand_normal());
    }
}

static void fill_enc(const struct codec *c, size_t d, float *enc)
{
    for (size_t row = 0; row < c->r; row++)
        fill(enc + row * d, d, c->bits[row / 8] == 0 ? 0 : 1 / sqrt((double) d));
}

/* Bases of K in two blocks: zeros where a dimension of one meets a coordinate of the other. */
static void part_blocks(const struct memory_table_options *o, struct codec *c)
{
    size_t d = o->geometry.d;

    c->fast_planes = (uint16_t) o->fast_planes;
    for (unsigned half = 1; half < c->n_half; half += 3)
        c->fast_halves |= c->bits[half] > 0 ? 1u << half : 0;
    for (size_t col = 0; col < c->r; col++)
        for (uint32_t i = 0; i < d; i++)
            if (codec_half_is_fast(c, col / 8) != geometry_in_planes(&o->geometry, o->fast_planes, i))
                ((float *) c->enc)[col * d + i] = ((float *) c->dec)[i * c->r + col] = 0;
}

static float *make_codec(const struct memory_table_options *o, const struct table *t, size_t hs,
                         struct codec *c, float *at)
{
    enum side side = hs % 2;
    size_t d = o->geometry.d, n_kv = o->geometry.n_kv_heads;
    struct head_run run = table_predictors(t, (uint32_t) (hs / 2 % n_kv));
    const struct codec *keys = t->codecs + hs / 2 / n_kv * n_kv * 2 + 2 * run.first;
    size_t col = 0;

    for (uint32_t h = 0; h < run.n && side == SIDE_V; h++)
        c->n_pred += keys[2 * h].r;
    c->r_in = c->r + c->n_pred;
    c->enc_mean = at;
    fill(at, d, 1);
    at += d;
    c->mean = at;
    fill(at, d, side == SIDE_K && o->mean_norm > 0 ? o->mean_norm / sqrt((double) d) : 1);
    at += d;
    if (c->r > 0) {
        c->enc = at;
        fill_enc(c, d, at);
        at += (size_t) c->r * d;
    }
    if (c->r > 0 && c->n_pred > 0) {
        c->enc_k = at;
        fill_enc(c, c->n_pred, at);
        for (size_t i = 0; i < (size_t) c->r * c->n_pred; i++) /* levels of four bits are up to 127 */
            at[i] /= 32;
        at += (size_t) c->r * c->n_pred;
    }
    if (c->r_in > 0) {
        c->dec = at;
        fill_columns(t, side, c, d, c->r_in, 1 / sqrt((double) c->r + 1), at + c->n_pred);
        for (uint32_t h = 0; col < c->n_pred; col += keys[2 * h++].r)
            fill_columns(t, SIDE_K, &keys[2 * h], d, c->r_in, 0.3 / sqrt((double) c->n_pred), at + col);
        at += c->r_in * d;
    }
    if (side == SIDE_K && o->fast_planes > 0)
        part_blocks(o, c);
    return at;
}

void memory_table_init(struct memory_table *v, const struct memory_table_options *o)
{
    size_t n = head_side_count(&o->geometry), d = o->geometry.d, floats = 0;
    float *at;

    *v = (struct memory_table){.table = {.geometry = o->geometry, .n_sink = o->n_sink, .v_from = o->v_from}};
    for (int side = SIDE_K; side <= SIDE_V; side++)
        for (unsigned b = 1; b <= TABLE_BITS_MAX; b++)
            if (o->state_bits > 0 && b <= TRELLIS_BITS_MAX)
                random_book(o->state_bits, &v->table.levels[side][b]);
            else
                assert(levels_normal(QUANT_LLOYD_MAX, b, &v->table.levels[side][b]) == 0);
    v->codecs = calloc(n, sizeof(*v->codecs));
    assert(v->codecs);
    v->table.codecs = v->codecs;
    for (size_t i = 0; i < n; i++) {
        draw_bits(o, (enum side)(i % 2), &v->codecs[i]);
        floats += (2 + 2 * v->codecs[i].r) * d;
        if (i % 2 == SIDE_V) /* more than any prediction takes */
            floats += (v->codecs[i].r + d) * o->geometry.n_kv_heads * GEOMETRY_DIM_MAX;
    }
    v->pool = calloc(floats, sizeof(*v->pool));
    assert(v->pool);
    at = v->pool;
    for (size_t i = 0; i < n; i++)
        at = make_codec(o, &v->table, i, &v->codecs[i], at);
}

void memory_table_deinit(struct memory_table *v)
{
    free(v->codecs);
    free(v->pool);
}
