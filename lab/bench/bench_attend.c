/* The caches of `kvcobra-lab bench attend`; see bench_attend.h. */
#include "lab/bench/bench_attend.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/quantiser/levels_normal.h"
#include "base/cleanup.h"
#include "base/half.h"
#include "base/splitmix64.h"
#include "gpu/chunk.h"
#include "gpu/cpu/ops.h"
#include "gpu/rope.h"

enum { PREDICTING_SHARE = 256 /* levels of four bits are up to 127: z stays about 1 */ };

/* Mean 0, variance 1, -sqrt(3)..sqrt(3). */
static float bench_attend_next_number(uint64_t *s)
{
    return ((float) (splitmix64_next(s) >> 40) * 0x1p-23f - 1) * 1.7320508f;
}

/* ---- a table in memory ---- */

static float *bench_attend_make_codec(const struct table *t, struct codec *c, unsigned bits, size_t n_coords,
                                      size_t n_predicting, uint64_t *seed, float *at)
{
    size_t d = t->geometry.d;
    float scale = t->levels[SIDE_K][bits].step / sqrtf((float) (n_coords + n_predicting));

    c->n_half = (uint16_t) (n_coords / 8);
    c->r = (uint16_t) n_coords;
    c->n_pred = (uint32_t) n_predicting;
    c->r_in = (uint32_t) (n_coords + n_predicting);
    c->code_bits = (uint16_t) (bits * n_coords);
    memset(c->bits, (int) bits, c->n_half);
    c->mean = at;
    for (size_t i = 0; i < d; i++)
        *at++ = bench_attend_next_number(seed);
    c->enc_mean = c->mean;
    c->dec = at;
    for (size_t i = 0; i < d * c->r_in; i++)
        *at++ = scale * bench_attend_next_number(seed);
    c->enc = at;
    for (size_t i = 0; i < n_coords * d; i++)
        *at++ = bench_attend_next_number(seed) / sqrtf((float) d);
    if (n_predicting > 0)
        c->enc_k = at;
    for (size_t i = 0; i < n_coords * n_predicting; i++)
        *at++ = bench_attend_next_number(seed) / sqrtf((float) n_predicting) / PREDICTING_SHARE;
    return at;
}

int attend_synthetic_init(struct attend_synthetic *s, const struct attend_synthetic_shape *shape)
{
    struct attend_synthetic made = {.table.v_from = shape->v_from_k ? PREDICT_HEAD : PREDICT_NONE};
    struct geometry *g = &made.table.geometry;
    size_t d = shape->d, predicting = shape->v_from_k ? shape->k_coords : 0;
    unsigned bits = shape->bits > 0 ? shape->bits : 4;
    uint64_t seed = 1;
    float *at;

    *g = (struct geometry){
        .n_layers = 1,
        .n_heads = shape->n_kv_heads * shape->group,
        .n_kv_heads = shape->n_kv_heads,
        .d = shape->d,
        .n_rot = shape->n_rot > 0 ? shape->n_rot : shape->d,
        .attn_scale = 1 / sqrt(shape->d),
    };
    for (uint32_t i = 0; i < g->n_rot / 2; i++)
        g->freq[i] = pow(500000, -2.0 * i / g->n_rot);
    for (int side = SIDE_K; side <= SIDE_V; side++)
        for (unsigned b = 1; b <= TABLE_BITS_MAX; b++)
            if (levels_normal(QUANT_LLOYD_MAX, b, &made.table.levels[side][b]) < 0)
                return -EINVAL;
    made.codecs = calloc((size_t) shape->n_kv_heads * 2, sizeof(*made.codecs));
    made.matrices =
        calloc(shape->n_kv_heads * (d * (2 + 2 * (shape->k_coords + shape->v_coords) + predicting) +
                                    shape->v_coords * predicting),
               sizeof(float));
    made.table.codecs = made.codecs;
    if (!made.codecs || !made.matrices) {
        attend_synthetic_deinit(&made);
        return -ENOMEM;
    }

    at = made.matrices;
    for (uint32_t h = 0; h < shape->n_kv_heads; h++) {
        at = bench_attend_make_codec(&made.table, &made.codecs[2 * h], bits, shape->k_coords, 0, &seed, at);
        at = bench_attend_make_codec(&made.table, &made.codecs[2 * h + 1], bits, shape->v_coords, predicting,
                                     &seed, at);
    }

    *s = made;
    return 0;
}

void attend_synthetic_part(struct attend_synthetic *s, uint32_t fast_coords)
{
    const struct geometry *g = &s->table.geometry;
    uint32_t n = 0;

    while (n < g->n_rot / 2 && g->freq[n] > 0.1)
        n++;
    for (uint32_t h = 0; h < g->n_kv_heads; h++) {
        struct codec *k = &s->codecs[2 * h];

        k->fast_planes = (uint16_t) n;
        k->fast_halves = (1u << fast_coords / 8) - 1;
        for (uint32_t col = 0; col < k->r; col++) {
            bool fast = col < fast_coords;
            float size = sqrtf((float) k->r / (float) (fast ? fast_coords : k->r - fast_coords));

            for (uint32_t i = 0; i < g->d; i++) {
                float factor = geometry_in_planes(g, n, i) == fast ? size : 0;

                ((float *) k->dec)[i * k->r_in + col] *= factor;
                ((float *) k->enc)[col * g->d + i] *= factor;
            }
        }
    }
}

void attend_synthetic_deinit(struct attend_synthetic *s)
{
    free(s->codecs);
    free(s->matrices);
    *s = (struct attend_synthetic){0};
}

/* ---- caches ---- */

struct decoded {
    float k[CHUNK_TOKENS * GEOMETRY_DIM_MAX], v[CHUNK_TOKENS * GEOMETRY_DIM_MAX];
};

/* Decodes @head of page @page into the layout of the binary16 cache. */
static void bench_attend_fill_f16(struct attend_case *c, size_t head, size_t page, struct decoded *x,
                                  struct chunk_work *work)
{
    const struct geometry *g = &c->table->geometry;
    uint32_t layer = (uint32_t) head / g->n_kv_heads, in_layer = (uint32_t) head % g->n_kv_heads;
    size_t d = g->d, at = (head * c->n_pages + page) * CHUNK_TOKENS * d;
    struct rope_phase phase, step;

    chunk_decode(&c->layout, c->payloads[page], layer, in_layer, SIDE_K, x->k, d, work);
    chunk_decode(&c->layout, c->payloads[page], layer, in_layer, SIDE_V, x->v, d, work);
    rope_phase_at(g, (double) (page * CHUNK_TOKENS), &phase);
    rope_phase_at(g, 1, &step);
    for (size_t t = 0; t < CHUNK_TOKENS; t++) {
        rope_rotate(g, &phase, x->k + t * d, x->k + t * d);
        rope_phase_advance(g, &phase, &step);
        for (size_t i = 0; i < d; i++) {
            c->k[at + i * CHUNK_TOKENS + t] = f32_to_f16(x->k[t * d + i]);
            c->v[at + t * d + i] = f32_to_f16(x->v[t * d + i]);
        }
    }
}

static void bench_attend_fill_queries(struct attend_case *c)
{
    const struct geometry *g = &c->table->geometry;
    size_t group = geometry_group(g), first = c->n_pages * CHUNK_TOKENS - c->n_tokens;
    uint64_t seed = 3;

    for (size_t i = 0; i < c->n_heads * c->n_tokens * group; i++) {
        float *q = c->q + i * g->d, *rotated = c->q_rotated + i * g->d;
        struct rope_phase phase;

        for (size_t x = 0; x < g->d; x++)
            q[x] = (float) c->query_size * bench_attend_next_number(&seed);
        rope_phase_at(g, (double) (first + i / group % c->n_tokens), &phase);
        rope_rotate(g, &phase, q, rotated);
        for (size_t x = 0; x < g->d; x++)
            rotated[x] *= (float) g->attn_scale;
    }
}

int attend_case_set_queries(struct attend_case *c, size_t n, double size)
{
    const struct geometry *g = &c->table->geometry;
    size_t numbers = c->n_heads * n * geometry_group(g) * g->d;
    _cleanup_(freep) float *q = calloc(numbers, sizeof(*q)), *rotated = calloc(numbers, sizeof(*rotated));

    if (!q || !rotated)
        return -ENOMEM;

    free(c->q);
    free(c->q_rotated);
    c->q = take_ptr(q);
    c->q_rotated = take_ptr(rotated);
    c->n_tokens = n;
    c->query_size = size;
    bench_attend_fill_queries(c);
    return 0;
}

/* Stride of pages: like the slots of a pool, they begin at cache lines. */
static size_t bench_attend_page_stride(const struct attend_case *c)
{
    return c->layout.slot_bytes[PAGE_FIRST];
}

static int bench_attend_allocate(struct attend_case *c)
{
    const struct geometry *g = &c->table->geometry;
    size_t numbers = c->n_heads * c->n_pages * CHUNK_TOKENS * g->d;

    c->pages = aligned_alloc(PAGE_ALIGN, c->n_pages * bench_attend_page_stride(c));
    c->payloads = calloc(c->n_pages, sizeof(*c->payloads));
    /* 64 binary16 numbers are 128 bytes, so the size is a multiple of the alignment. */
    c->k = aligned_alloc(PAGE_ALIGN, numbers * sizeof(*c->k));
    c->v = aligned_alloc(PAGE_ALIGN, numbers * sizeof(*c->v));
    return c->pages && c->payloads && c->k && c->v ? attend_case_set_queries(c, 1, 1) : -ENOMEM;
}

static int bench_attend_fill(struct attend_case *c)
{
    _cleanup_(freep) struct decoded *x = malloc(sizeof(*x));
    _cleanup_(chunk_work_deinit) struct chunk_work work = {0};
    size_t bytes = bench_attend_page_stride(c);
    uint64_t seed = 2;

    if (!x || chunk_work_init(&work, &c->table->geometry, c->layout.shard) < 0)
        return -ENOMEM;

    for (size_t i = 0; i < c->n_pages * bytes; i++) /* all bytes are valid codes */
        c->pages[i] = (uint8_t) splitmix64_next(&seed);
    for (size_t page = 0; page < c->n_pages; page++) {
        c->payloads[page] = c->pages + page * bytes;
        for (size_t head = 0; head < c->n_heads; head++)
            bench_attend_fill_f16(c, head, page, x, &work);
    }

    return 0;
}

int attend_case_init(struct attend_case *c, const char *name, const struct table *table, size_t f16_bytes)
{
    const struct geometry *g = &table->geometry;
    struct attend_case made = {
        .name = name,
        .table = table,
        .n_heads = (size_t) g->n_layers * g->n_kv_heads,
    };
    size_t page_bytes = made.n_heads * CHUNK_TOKENS * g->d * 2 * sizeof(uint16_t);
    int r = page_layout_init(&made.layout, table, (struct shard){0, g->n_kv_heads});

    if (r < 0)
        return r;

    made.n_pages = (f16_bytes + page_bytes - 1) / page_bytes;
    r = bench_attend_allocate(&made);
    if (r == 0)
        r = bench_attend_fill(&made);
    if (r < 0) {
        attend_case_deinit(&made);
        return r;
    }

    *c = made;
    return 0;
}

void attend_case_deinit(struct attend_case *c)
{
    page_layout_deinit(&c->layout);
    free(c->pages);
    free(c->payloads);
    free(c->k);
    free(c->v);
    free(c->q);
    free(c->q_rotated);
    *c = (struct attend_case){0};
}

size_t attend_case_packed_bytes(const struct attend_case *c)
{
    return c->n_pages * c->layout.payload_bytes[PAGE_REST];
}

/* ---- one head ---- */

static struct attend_args bench_attend_head_args(const struct attend_case *c, size_t head, void *scratch,
                                                 float *out)
{
    const struct geometry *g = &c->table->geometry;
    size_t token = (size_t) geometry_group(g) * g->d, n = c->n_pages * CHUNK_TOKENS;

    return (struct attend_args){
        .layout = &c->layout,
        .layer = (uint32_t) head / g->n_kv_heads,
        .head = (uint32_t) head % g->n_kv_heads,
        .payloads = c->payloads,
        .n_pages = c->n_pages,
        .exact_first = n,
        .exact_stride = g->d,
        .q = c->q + head * c->n_tokens * token,
        .q_stride = token,
        .q_first = n - c->n_tokens,
        .n_q = c->n_tokens,
        .out = out,
        .out_stride = token,
        .scratch = scratch,
    };
}

size_t attend_case_packed(const struct attend_case *c, const struct ops *ops, size_t head, bool all_values,
                          void *scratch, float *out)
{
    struct attend_args a = bench_attend_head_args(c, head, scratch, out);

    a.all_values = all_values;
    return attend_skips_with(&a, ops);
}

void attend_case_folding(const struct attend_case *c, const struct ops *ops, void *scratch,
                         struct attend_folding *ret)
{
    *ret = (struct attend_folding){0};
    for (size_t head = 0; head < c->n_heads; head++) {
        struct attend_args a = bench_attend_head_args(c, head, scratch, NULL);
        struct attend_folding of_head;

        attend_folding_with(&a, ops, &of_head);
        ret->planes = of_head.planes;
        ret->formed = of_head.formed > ret->formed ? of_head.formed : ret->formed;
        ret->bound = of_head.bound > ret->bound ? of_head.bound : ret->bound;
    }
}

void attend_case_f16(const struct attend_case *c, const struct attend_f16 *f16, size_t head, float *out)
{
    const struct geometry *g = &c->table->geometry;
    size_t at = head * c->n_pages * CHUNK_TOKENS * g->d;
    struct attend_f16_args a = {
        .d = g->d,
        .group = geometry_group(g),
        .n_tokens = c->n_tokens,
        .n_blocks = c->n_pages,
        .k = c->k + at,
        .v = c->v + at,
        .q = c->q_rotated + head * attend_case_rows(c) * g->d,
        .out = out,
    };

    f16->attend(&a);
}
