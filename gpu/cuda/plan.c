/* Tables for kernels; see plan.h. */
#include "gpu/cuda/plan.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#include "base/errmsg.h"
#include "base/half.h"
#include "gpu/codec.h"
#include "gpu/constants.h"
#include "gpu/cuda/plan_80.h"

enum { PLANES_STEP = 16, ALIGN = 16, WIDTHS = TABLE_BITS_MAX + 1, LEVELS = 1 << TABLE_BITS_MAX };

_Static_assert(PLAN_HALVES_MAX == TABLE_HALF_TILES_MAX, "half-tiles of a head-side");
_Static_assert(PLAN_SINKS_MAX == TABLE_SINKS_MAX, "sinks");

/* Hands out parts of an image; without one it only adds up. Addresses are those of the place where it will be read. */
struct cursor {
    char *image;
    cu_ptr address;
    size_t bytes;
};

struct part {
    void *at;         /* NULL without an image */
    const void *read; /* its address for kernels */
};

static struct part take(struct cursor *c, size_t n, size_t bytes)
{
    size_t at = (c->bytes + ALIGN - 1) / ALIGN * ALIGN;

    c->bytes = at + n * bytes;
    return (struct part) { c->image ? c->image + at : NULL, (const void *) (uintptr_t) (c->address + at) };
}

static uint32_t n_planes_of(const struct geometry *g)
{
    return (g->d / 2 + PLANES_STEP - 1) / PLANES_STEP * PLANES_STEP;
}

/* attend.cu's plane_dim(). */
static uint32_t plane_dim(const struct geometry *g, uint32_t plane, unsigned hi)
{
    uint32_t half = g->n_rot / 2;

    return plane < half ? plane + hi * half : 2 * plane + hi;
}

uint32_t plan_columns_max(const struct page_layout *l)
{
    return (uint32_t) l->r_in_max;
}

uint32_t plan_rank_max(const struct page_layout *l, enum side side)
{
    const struct geometry *g = &l->table->geometry;
    uint32_t largest = 0;

    for (uint32_t layer = 0; layer < g->n_layers; layer++)
        for (uint32_t head = 0; head < l->shard.n_heads; head++) {
            uint32_t r = table_codec(l->table, layer, l->shard.first_head + head, side)->r;

            largest = r > largest ? r : largest;
        }
    return largest;
}

/* Of both sides. */
static uint32_t rank_max(const struct page_layout *l)
{
    uint32_t k = plan_rank_max(l, SIDE_K), v = plan_rank_max(l, SIDE_V);

    return k > v ? k : v;
}

int plan_table_check(const struct page_layout *l, struct errmsg *e)
{
    const struct geometry *g = &l->table->geometry;

    if (geometry_group(g) > PLAN_GROUP_MAX)
        return fail(e, -EOPNOTSUPP, "GPU kernels take up to %d query heads per KV head, the model has %u", PLAN_GROUP_MAX,
                    geometry_group(g));
    if (l->r_in_max > PLAN_COLUMNS_MAX)
        return fail(e, -EOPNOTSUPP, "GPU kernels decode a value from up to %d coordinates, the table from %zu",
                    PLAN_COLUMNS_MAX, (size_t) l->r_in_max);
    return 0;
}

/* ---- parts --------------------------------------------------------------------------------------------------------- */

static struct plan_codes codes_of(const struct codec *c, uint32_t offset)
{
    struct plan_codes ret = { .n_half = c->n_half, .r = c->r };

    for (unsigned i = 0; i < c->n_half; i++) {
        ret.bits[i] = c->bits[i];
        ret.offset[i] = offset;
        offset += (uint32_t) c->bits[i] * CHUNK_TOKENS;
    }
    return ret;
}

/*
 * K's dec in binary16, [2][n_planes][r], times a power of two that brings its largest entry to 1 or a little below, so that
 * none that matters is subnormal; returns what 1 stands for.
 */
static float fill_dec_k(const struct geometry *g, const struct codec *k, uint16_t *ret)
{
    uint32_t n = n_planes_of(g);
    float largest = 0;
    int exponent;

    for (size_t i = 0; i < (size_t) g->d * k->r; i++)
        largest = fmaxf(largest, fabsf(k->dec[i]));
    (void) frexpf(largest, &exponent);
    memset(ret, 0, (size_t) 2 * n * k->r * sizeof(*ret));
    for (unsigned hi = 0; hi < 2; hi++)
        for (uint32_t p = 0; p < g->d / 2; p++)
            for (uint32_t c = 0; c < k->r; c++)
                ret[((size_t) hi * n + p) * k->r + c] =
                    f32_to_f16(ldexpf(k->dec[(size_t) plane_dim(g, p, hi) * k->r_in + c], -exponent));
    return ldexpf(1, exponent);
}

static void fill_mean_k(const struct geometry *g, const struct codec *k, float *ret)
{
    uint32_t n = n_planes_of(g);

    memset(ret, 0, (size_t) 2 * n * sizeof(*ret));
    for (unsigned hi = 0; hi < 2; hi++)
        for (uint32_t p = 0; p < g->d / 2; p++)
            ret[hi * n + p] = k->mean[plane_dim(g, p, hi)];
}

/* A matrix or vector of the table as it is; NULL stays NULL. */
static const float *copy(struct cursor *c, const float *from, size_t n)
{
    struct part p;

    if (!from)
        return NULL;
    p = take(c, n, sizeof(*from));
    if (p.at)
        memcpy(p.at, from, n * sizeof(*from));
    return p.read;
}

static struct plan_encoder make_encoder(struct cursor *c, const struct codec *codec, uint32_t d)
{
    return (struct plan_encoder) {
        .mean = copy(c, codec->enc_mean, d),
        .enc = copy(c, codec->enc, (size_t) codec->r * d),
        .enc_k = copy(c, codec->enc_k, (size_t) codec->r * codec->n_pred),
        .n_pred = codec->n_pred,
    };
}

static struct plan_head make_head(struct cursor *c, const struct page_layout *l, uint32_t layer, uint32_t head)
{
    const struct table *t = l->table;
    const struct geometry *g = &t->geometry;
    uint32_t of_model = l->shard.first_head + head;
    const struct codec *k = table_codec(t, layer, of_model, SIDE_K), *v = table_codec(t, layer, of_model, SIDE_V);
    struct head_run run = table_predictors(t, of_model);
    struct part dec_k = take(c, (size_t) 2 * n_planes_of(g) * k->r, sizeof(uint16_t));
    struct part fragments = take(c, plan_dec_fragment_words(n_planes_of(g), k->r), sizeof(uint32_t));
    struct part mean_k = take(c, (size_t) 2 * n_planes_of(g), sizeof(float));
    struct plan_head h = {
        .k = codes_of(k, 0), .v = codes_of(v, (uint32_t) page_v_off(k)),
        .block = (uint32_t) page_block_off(l, layer, head),
        .sinks_k = (uint32_t) page_sink_off(l, layer, head, SIDE_K),
        .sinks_v = (uint32_t) page_sink_off(l, layer, head, SIDE_V),
        .n_predictors = run.n, .first_predictor = run.first - l->shard.first_head, .r_in = v->r_in,
        .dec_k = dec_k.read, .dec_k_fragments = fragments.read, .mean_k = mean_k.read,
        .dec_v = copy(c, v->dec, (size_t) g->d * v->r_in), .mean_v = copy(c, v->mean, g->d),
        .encode_k = make_encoder(c, k, g->d), .encode_v = make_encoder(c, v, g->d),
        .decode_k = copy(c, k->dec, (size_t) g->d * k->r_in), .decode_mean_k = copy(c, k->mean, g->d),
    };

    if (!c->image)
        return h;
    h.dec_k_scale = fill_dec_k(g, k, dec_k.at);
    plan_fill_dec_fragments(n_planes_of(g), k->r, dec_k.at, fragments.at);
    fill_mean_k(g, k, mean_k.at);
    h.mean_k_scale = plan_mean_scale(n_planes_of(g), mean_k.at);
    return h;
}

static void fill_levels(const struct table *t, uint16_t *ret)
{
    for (unsigned side = SIDE_K; side <= SIDE_V; side++)
        for (unsigned b = 0; b < WIDTHS; b++)
            for (unsigned i = 0; i < LEVELS; i++)
                ret[(side * WIDTHS + b) * LEVELS + i] =
                    b > 0 && i < 1u << b ? f32_to_f16(t->levels[side][b].value[i]) : 0; /* exact: alloc/table.h */
}

static void fill_thresholds(const struct table *t, float *thresholds, float *limits)
{
    memset(thresholds, 0, (size_t) 2 * WIDTHS * LEVELS * sizeof(*thresholds));
    memset(limits, 0, (size_t) 2 * WIDTHS * 2 * sizeof(*limits));
    for (unsigned side = SIDE_K; side <= SIDE_V; side++)
        for (unsigned b = 1; b < WIDTHS; b++) {
            const struct levels *l = &t->levels[side][b];
            size_t at = side * WIDTHS + b;

            memcpy(thresholds + at * LEVELS, l->threshold, ((1u << b) - 1) * sizeof(*thresholds));
            codec_saturation_limits(l, b, &limits[2 * at], &limits[2 * at + 1]);
        }
}

static void fill_angles(const struct page_layout *l, float *cosine, float *sine, double *freq)
{
    const struct geometry *g = &l->table->geometry;
    uint32_t n = n_planes_of(g), turning = g->n_rot / 2;

    for (uint32_t p = 0; p < n; p++) {
        freq[p] = p < turning ? g->freq[p] : 0;
        for (uint32_t token = 0; token < CHUNK_TOKENS; token++) {
            cosine[p * CHUNK_TOKENS + token] = p < turning ? l->constants->cos[p * CHUNK_TOKENS + token] : 1;
            sine[p * CHUNK_TOKENS + token] = p < turning ? l->constants->sin[p * CHUNK_TOKENS + token] : 0;
        }
    }
}

/* Adds up, and with an image also writes. */
static void make(struct cursor *c, const struct page_layout *l)
{
    const struct table *t = l->table;
    const struct geometry *g = &t->geometry;
    uint32_t n = n_planes_of(g);
    struct part table = take(c, 1, sizeof(struct plan_table));
    struct part heads = take(c, (size_t) g->n_layers * l->shard.n_heads, sizeof(struct plan_head));
    struct part levels = take(c, (size_t) 2 * WIDTHS * LEVELS, sizeof(uint16_t));
    struct part thresholds = take(c, (size_t) 2 * WIDTHS * LEVELS, sizeof(float));
    struct part limits = take(c, (size_t) 2 * WIDTHS * 2, sizeof(float));
    struct part cosine = take(c, (size_t) n * CHUNK_TOKENS, sizeof(float));
    struct part sine = take(c, (size_t) n * CHUNK_TOKENS, sizeof(float));
    struct part freq = take(c, n, sizeof(double));
    struct part page_turn = take(c, (size_t) 2 * n, sizeof(float));
    struct part turns = take(c, plan_turn_words(n), sizeof(uint32_t));
    struct part narrow = take(c, PLAN_NARROW_WORDS, sizeof(uint32_t));
    struct part wide = take(c, (size_t) 2 * PLAN_80_WIDE_LEVELS, sizeof(uint16_t));

    for (uint32_t layer = 0; layer < g->n_layers; layer++)
        for (uint32_t head = 0; head < l->shard.n_heads; head++) {
            struct plan_head h = make_head(c, l, layer, head);

            if (c->image)
                ((struct plan_head *) heads.at)[layer * l->shard.n_heads + head] = h;
        }
    if (!c->image)
        return;
    fill_levels(t, levels.at);
    fill_thresholds(t, thresholds.at, limits.at);
    fill_angles(l, cosine.at, sine.at, freq.at);
    plan_fill_turns(n, freq.at, cosine.at, sine.at, turns.at, page_turn.at);
    plan_fill_narrow(levels.at, narrow.at);
    plan_fill_wide(levels.at, wide.at);
    *(struct plan_table *) table.at = (struct plan_table) {
        .d = g->d, .n_rot = g->n_rot, .n_planes = n, .group = geometry_group(g), .n_kv_heads = l->shard.n_heads,
        .n_sink = t->n_sink, .columns_max = plan_columns_max(l), .rank_max = rank_max(l),
        .attn_scale = (float) g->attn_scale,
        .levels = levels.read, .thresholds = thresholds.read, .limits = limits.read, .cosine = cosine.read, .sine = sine.read,
        .freq = freq.read, .page_turn = page_turn.read, .turns = turns.read, .narrow = narrow.read, .wide = wide.read,
        .key_rank_max = plan_rank_max(l, SIDE_K), .block_bytes_max = plan_block_bytes_max(l), .wide_values = plan_wide_values(l),
        .heads = heads.read,
    };
}

size_t plan_table_bytes(const struct page_layout *l)
{
    struct cursor c = { 0 };

    make(&c, l);
    return c.bytes;
}

void plan_table_fill(const struct page_layout *l, void *image, cu_ptr address)
{
    struct cursor c = { .image = image, .address = address };

    make(&c, l);
}

/* ---- kernels of attention ------------------------------------------------------------------------------------------ */

static bool general_takes(unsigned kernel, const struct page_layout *l, uint32_t n_q)
{
    static const struct {
        uint32_t n_key_coords, n_columns, n_rows;
    } most[PLAN_ATTEND_COUNT] = {
#define KERNEL_MOST(name, n_key_coords, n_columns, n_rows) { n_key_coords, n_columns, n_rows },
        PLAN_ATTEND_KERNELS(KERNEL_MOST)
#undef KERNEL_MOST
    };
    uint32_t group = geometry_group(&l->table->geometry), of_tile = PLAN_TILE_QUERIES(group);

    return plan_rank_max(l, SIDE_K) <= most[kernel].n_key_coords && plan_columns_max(l) <= most[kernel].n_columns &&
           (n_q < of_tile ? n_q : of_tile) * group <= most[kernel].n_rows;
}

bool plan_attend_takes(unsigned kernel, const struct page_layout *l, uint32_t n_q)
{
    return kernel < PLAN_80_COUNT ? plan_80_takes((enum plan_80_kernel) kernel, l, n_q)
                                  : general_takes(kernel - PLAN_80_COUNT, l, n_q);
}

unsigned plan_attend_kernel(const struct page_layout *l, uint32_t n_q)
{
    unsigned i = 0;

    while (i + 1 < PLAN_KERNELS && !plan_attend_takes(i, l, n_q))
        i++;
    return i; /* the last takes what plan_table_check() accepted */
}

const char *plan_attend_name(unsigned kernel)
{
    static const char *const names[PLAN_KERNELS] = {
#define NAME_80(name, d, n_key_coords, n_columns, n_rows) #name,
#define NAME_GENERAL(name, n_key_coords, n_columns, n_rows) #name,
        PLAN_80_KERNELS(NAME_80) PLAN_ATTEND_KERNELS(NAME_GENERAL)
#undef NAME_80
#undef NAME_GENERAL
    };

    return names[kernel];
}

const char *plan_attend_path(unsigned kernel)
{
    return kernel < PLAN_80_COUNT ? "sm_80" : "general";
}

/* ---- shared memory --------------------------------------------------------------------------------------------------- */

size_t plan_attend_shared_bytes(unsigned kernel, const struct page_layout *l)
{
    const struct geometry *g = &l->table->geometry;

    return kernel < PLAN_80_COUNT ? plan_80_shared_bytes((enum plan_80_kernel) kernel, l)
                                  : plan_exact_shared_bytes(g->d, n_planes_of(g));
}

size_t plan_coding_shared_bytes(const struct page_layout *l)
{
    return plan_coding_floats(l->table->geometry.d, rank_max(l)) * sizeof(float) + 2 * 8 * CHUNK_TOKENS;
}

size_t plan_merge_shared_bytes(const struct page_layout *l)
{
    return (plan_columns_max(l) + 1) * sizeof(float);
}
