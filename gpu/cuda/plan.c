/* Tables for kernels; see plan.h. */
#include "gpu/cuda/plan.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#include "base/errmsg.h"
#include "base/half.h"
#include "gpu/codec.h"
#include "gpu/page_constants.h"
#include "gpu/cuda/plan_80.h"

enum { PLANES_STEP = 16, ALIGN = 16, WIDTHS = TABLE_BITS_MAX + 1, LEVELS = 1 << TABLE_BITS_MAX };

_Static_assert(PLAN_HALVES_MAX == TABLE_HALF_TILES_MAX, "half-tiles of a head-side");
_Static_assert(PLAN_SINKS_MAX == TABLE_SINKS_MAX, "sinks");

/* Hands out parts of an image; without one it only adds up. Addresses are those of the place where it will be
 * read. */
struct plan_cursor {
    char *image;
    cu_ptr address;
    size_t bytes;
};

struct plan_part {
    void *at;         /* NULL without an image */
    const void *read; /* its address for kernels */
};

static struct plan_part plan_take(struct plan_cursor *c, size_t n, size_t bytes)
{
    size_t at = (c->bytes + ALIGN - 1) / ALIGN * ALIGN;

    c->bytes = at + n * bytes;
    return (struct plan_part){c->image ? c->image + at : NULL, (const void *) (uintptr_t) (c->address + at)};
}

static uint32_t plan_n_planes_of(const struct geometry *g)
{
    return (g->d / 2 + PLANES_STEP - 1) / PLANES_STEP * PLANES_STEP;
}

/* attend.cu's plan_plane_dim(). */
static uint32_t plan_plane_dim(const struct geometry *g, uint32_t plane, unsigned hi)
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
static uint32_t plan_largest_rank(const struct page_layout *l)
{
    uint32_t k = plan_rank_max(l, SIDE_K), v = plan_rank_max(l, SIDE_V);

    return k > v ? k : v;
}

int plan_table_check(const struct page_layout *l, struct errmsg *e)
{
    const struct geometry *g = &l->table->geometry;

    if (geometry_group(g) > PLAN_GROUP_MAX)
        return fail(e, -EOPNOTSUPP, "GPU kernels take up to %d query heads per KV head, the model has %u",
                    PLAN_GROUP_MAX, geometry_group(g));
    if (l->r_in_max > PLAN_COLUMNS_MAX)
        return fail(e, -EOPNOTSUPP,
                    "GPU kernels decode a value from up to %d coordinates, the table from %zu",
                    PLAN_COLUMNS_MAX, (size_t) l->r_in_max);
    return 0;
}

/* ---- parts ---- */

static struct plan_codes plan_codes_of(const struct codec *c, uint32_t offset)
{
    struct plan_codes ret = {.n_half = c->n_half, .r = c->r};

    for (unsigned i = 0; i < c->n_half; i++) {
        ret.bits[i] = c->bits[i];
        ret.offset[i] = offset;
        offset += (uint32_t) c->bits[i] * CHUNK_TOKENS;
    }
    return ret;
}

/* The power of two that brings the largest of them to 1 or a little below. */
static float plan_power_of_two_above(const float *x, size_t n)
{
    float largest = 0;
    int exponent;

    for (size_t i = 0; i < n; i++)
        largest = fmaxf(largest, fabsf(x[i]));
    (void) frexpf(largest, &exponent);
    return ldexpf(1, exponent);
}

/*
 * K's dec in binary16, [2][n_planes][r], times a power of two that brings its largest entry to 1 or a little
 * below, so that none that matters is subnormal; returns what 1 stands for.
 */
static float plan_fill_dec_k(const struct geometry *g, const struct codec *k, uint16_t *ret)
{
    uint32_t n = plan_n_planes_of(g);
    float scale = plan_power_of_two_above(k->dec, (size_t) g->d * k->r);

    memset(ret, 0, (size_t) 2 * n * k->r * sizeof(*ret));
    for (unsigned hi = 0; hi < 2; hi++)
        for (uint32_t p = 0; p < g->d / 2; p++)
            for (uint32_t c = 0; c < k->r; c++)
                ret[((size_t) hi * n + p) * k->r + c] =
                    f32_to_f16(k->dec[(size_t) plan_plane_dim(g, p, hi) * k->r_in + c] / scale);
    return scale;
}

/* Euclidean size of [n] numbers from each half of [2][ld]. */
static double plan_size_of_planes(const float *x, size_t ld, size_t from, size_t n)
{
    double sum = 0;

    for (size_t i = from; i < from + n; i++)
        sum += (double) x[i] * x[i] + (double) x[ld + i] * x[ld + i];
    return sqrt(sum);
}

/*
 * How exactly the mean's scores are formed, 16 planes at a time (kernels/plan.h): rounded while all that is
 * rounded is together no larger than what the codes add to the mean, a vector of size |dec| as levels have
 * variance one; the smallest first.
 */
static uint32_t plan_mean_steps_of(const struct geometry *g, const struct codec *k,
                                   const struct levels *levels, const float *mean)
{
    uint32_t n = plan_n_planes_of(g), steps = 0;
    double room = 0, sizes[GEOMETRY_PLANES_MAX / PLANES_STEP + 1];

    for (size_t i = 0; i < (size_t) g->d * k->r; i++)
        if (k->bits[i % k->r / 8] > 0)
            room += pow((double) k->dec[i] / (double) levels[k->bits[i % k->r / 8]].step, 2);
    for (uint32_t i = 0; i < n / PLANES_STEP; i++) {
        sizes[i] = plan_size_of_planes(mean, n, (size_t) i * PLANES_STEP, PLANES_STEP);
        steps |= (uint32_t) (sizes[i] > 0 ? PLAN_MEAN_EXACT : PLAN_MEAN_NONE) << 2 * i;
    }
    for (;;) {
        uint32_t smallest = n;

        for (uint32_t i = 0; i < n / PLANES_STEP; i++)
            if ((steps >> 2 * i & 3) == PLAN_MEAN_EXACT && (smallest == n || sizes[i] < sizes[smallest]))
                smallest = i;
        if (smallest == n || sizes[smallest] * sizes[smallest] > room)
            return steps;
        room -= sizes[smallest] * sizes[smallest];
        steps ^= (uint32_t) (PLAN_MEAN_EXACT ^ PLAN_MEAN_ROUNDED) << 2 * smallest;
    }
}

static void plan_fill_mean_k(const struct geometry *g, const struct codec *k, float *ret)
{
    uint32_t n = plan_n_planes_of(g);

    memset(ret, 0, (size_t) 2 * n * sizeof(*ret));
    for (unsigned hi = 0; hi < 2; hi++)
        for (uint32_t p = 0; p < g->d / 2; p++)
            ret[hi * n + p] = k->mean[plan_plane_dim(g, p, hi)];
}

/* A matrix or vector of the table as it is; NULL stays NULL. */
static const float *plan_copy(struct plan_cursor *c, const float *from, size_t n)
{
    struct plan_part p;

    if (!from)
        return NULL;
    p = plan_take(c, n, sizeof(*from));
    if (p.at)
        memcpy(p.at, from, n * sizeof(*from));
    return p.read;
}

static struct plan_encoder plan_make_encoder(struct plan_cursor *c, const struct codec *codec, uint32_t d)
{
    return (struct plan_encoder){
        .mean = plan_copy(c, codec->enc_mean, d),
        .enc = plan_copy(c, codec->enc, (size_t) codec->r * d),
        .enc_k = plan_copy(c, codec->enc_k, (size_t) codec->r * codec->n_pred),
        .n_pred = codec->n_pred,
    };
}

static struct plan_head plan_make_head(struct plan_cursor *c, const struct page_layout *l, uint32_t layer,
                                       uint32_t head)
{
    const struct table *t = l->table;
    const struct geometry *g = &t->geometry;
    uint32_t of_model = l->shard.first_head + head;
    const struct codec *k = table_codec(t, layer, of_model, SIDE_K),
                       *v = table_codec(t, layer, of_model, SIDE_V);
    struct head_run run = table_predictors(t, of_model);
    struct plan_part dec_k = plan_take(c, (size_t) 2 * plan_n_planes_of(g) * k->r, sizeof(uint16_t));
    struct plan_part fragments =
        plan_take(c, plan_dec_fragment_words(plan_n_planes_of(g), k->r), sizeof(uint32_t));
    struct plan_part mean_k = plan_take(c, (size_t) 2 * plan_n_planes_of(g), sizeof(float));
    struct plan_head h = {
        .k = plan_codes_of(k, 0),
        .v = plan_codes_of(v, (uint32_t) page_v_off(k)),
        .block = (uint32_t) page_block_off(l, layer, head),
        .block_bytes = (uint32_t) (page_block_off(l, layer, head + 1) - page_block_off(l, layer, head)),
        .sinks_k = (uint32_t) page_sink_off(l, layer, head, SIDE_K),
        .sinks_v = (uint32_t) page_sink_off(l, layer, head, SIDE_V),
        .n_predictors = run.n,
        .first_predictor = run.first - l->shard.first_head,
        .r_in = v->r_in,
        .dec_k = dec_k.read,
        .dec_k_fragments = fragments.read,
        .mean_k = mean_k.read,
        .dec_v = plan_copy(c, v->dec, (size_t) g->d * v->r_in),
        .mean_v = plan_copy(c, v->mean, g->d),
        .encode_k = plan_make_encoder(c, k, g->d),
        .encode_v = plan_make_encoder(c, v, g->d),
        .decode_k = plan_copy(c, k->dec, (size_t) g->d * k->r_in),
        .decode_mean_k = plan_copy(c, k->mean, g->d),
    };

    if (!c->image)
        return h;
    h.dec_k_scale = plan_fill_dec_k(g, k, dec_k.at);
    plan_fill_dec_fragments(plan_n_planes_of(g), k->r, dec_k.at, fragments.at);
    plan_fill_mean_k(g, k, mean_k.at);
    h.mean_scale = plan_power_of_two_above(mean_k.at, (size_t) 2 * plan_n_planes_of(g));
    h.mean_steps = plan_mean_steps_of(g, k, t->levels[SIDE_K], mean_k.at);
    return h;
}

static void plan_fill_levels(const struct table *t, uint16_t *ret)
{
    for (unsigned side = SIDE_K; side <= SIDE_V; side++)
        for (unsigned b = 0; b < WIDTHS; b++)
            for (unsigned i = 0; i < LEVELS; i++)
                ret[(side * WIDTHS + b) * LEVELS + i] = b > 0 && i < 1u << b
                                                            ? f32_to_f16(t->levels[side][b].value[i])
                                                            : 0; /* exact: alloc/table.h */
}

static void plan_fill_thresholds(const struct table *t, float *thresholds, float *limits)
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

static void plan_fill_angles(const struct page_layout *l, float *cosine, float *sine, double *freq)
{
    const struct geometry *g = &l->table->geometry;
    uint32_t n = plan_n_planes_of(g), turning = g->n_rot / 2;

    for (uint32_t p = 0; p < n; p++) {
        freq[p] = p < turning ? g->freq[p] : 0;
        for (uint32_t token = 0; token < CHUNK_TOKENS; token++) {
            cosine[p * CHUNK_TOKENS + token] = p < turning ? l->constants->cos[p * CHUNK_TOKENS + token] : 1;
            sine[p * CHUNK_TOKENS + token] = p < turning ? l->constants->sin[p * CHUNK_TOKENS + token] : 0;
        }
    }
}

/* The same as operand A of 16 tokens and 16 planes (plan_table.turns): row g or g + 8, planes 2t, 2t + 1 or 8
 * more. */
static void plan_fill_turns(const float *cosine, const float *sine, uint32_t n_planes, uint32_t *ret)
{
    uint32_t words = n_planes / PLANES_STEP * 2 * 128 * 4;

    for (uint32_t i = 0; i < words; i++) {
        uint32_t lane = i / 4 % 32, token = 16 * (i / 128 % 4) + lane / 4 + (i & 1) * 8;
        uint32_t plane = i / 1024 * PLANES_STEP + lane % 4 * 2 + (i >> 1 & 1) * 8;
        const float *of = i / 512 % 2 == 0 ? cosine : sine;

        ret[i] = ret[words + i] = 0;
        for (uint32_t x = 0; x < 2; x++) {
            float exact = of[(plane + x) * CHUNK_TOKENS + token];
            uint16_t rounded = f32_to_f16(exact);

            ret[i] |= (uint32_t) rounded << 16 * x;
            ret[words + i] |= (uint32_t) f32_to_f16(exact - f16_to_f32(rounded)) << 16 * x;
        }
    }
}

uint32_t plan_block_bytes_max(const struct page_layout *l)
{
    size_t largest = 0, n = (size_t) l->table->geometry.n_layers * l->shard.n_heads;

    for (size_t i = 0; i < n; i++)
        if (l->block_off[i + 1] - l->block_off[i] > largest)
            largest = l->block_off[i + 1] - l->block_off[i];
    return (uint32_t) largest;
}

/* Adds up, and with an image also writes. */
static void plan_make(struct plan_cursor *c, const struct page_layout *l)
{
    const struct table *t = l->table;
    const struct geometry *g = &t->geometry;
    uint32_t n = plan_n_planes_of(g);
    struct plan_part table = plan_take(c, 1, sizeof(struct plan_table));
    struct plan_part heads = plan_take(c, (size_t) g->n_layers * l->shard.n_heads, sizeof(struct plan_head));
    struct plan_part levels = plan_take(c, (size_t) 2 * WIDTHS * LEVELS, sizeof(uint16_t));
    struct plan_part thresholds = plan_take(c, (size_t) 2 * WIDTHS * LEVELS, sizeof(float));
    struct plan_part limits = plan_take(c, (size_t) 2 * WIDTHS * 2, sizeof(float));
    struct plan_part cosine = plan_take(c, (size_t) n * CHUNK_TOKENS, sizeof(float));
    struct plan_part sine = plan_take(c, (size_t) n * CHUNK_TOKENS, sizeof(float));
    struct plan_part turns = plan_take(c, (size_t) 2 * n / PLANES_STEP * 2 * 128 * 4, sizeof(uint32_t));
    struct plan_part freq = plan_take(c, n, sizeof(double));
    struct plan_part page_turn = plan_take(c, (size_t) 2 * n, sizeof(float));
    struct plan_part narrow = plan_take(c, PLAN_NARROW_WORDS, sizeof(uint32_t));
    struct plan_part wide = plan_take(c, (size_t) 2 * PLAN_80_WIDE_LEVELS, sizeof(uint16_t));

    for (uint32_t layer = 0; layer < g->n_layers; layer++)
        for (uint32_t head = 0; head < l->shard.n_heads; head++) {
            struct plan_head h = plan_make_head(c, l, layer, head);

            if (c->image)
                ((struct plan_head *) heads.at)[layer * l->shard.n_heads + head] = h;
        }
    if (!c->image)
        return;
    plan_fill_levels(t, levels.at);
    plan_fill_thresholds(t, thresholds.at, limits.at);
    plan_fill_angles(l, cosine.at, sine.at, freq.at);
    plan_fill_turns(cosine.at, sine.at, n, turns.at);
    plan_fill_page_turn(n, freq.at, page_turn.at);
    plan_fill_narrow(levels.at, narrow.at);
    plan_fill_wide(levels.at, wide.at);
    *(struct plan_table *) table.at = (struct plan_table){
        .d = g->d,
        .n_rot = g->n_rot,
        .n_planes = n,
        .group = geometry_group(g),
        .n_kv_heads = l->shard.n_heads,
        .n_sink = t->n_sink,
        .columns_max = plan_columns_max(l),
        .rank_max = plan_largest_rank(l),
        .key_rank_max = plan_rank_max(l, SIDE_K),
        .block_bytes_max = plan_block_bytes_max(l),
        .attn_scale = (float) g->attn_scale,
        .levels = levels.read,
        .thresholds = thresholds.read,
        .limits = limits.read,
        .cosine = cosine.read,
        .sine = sine.read,
        .turns = turns.read,
        .freq = freq.read,
        .page_turn = page_turn.read,
        .narrow = narrow.read,
        .wide = wide.read,
        .wide_values = plan_wide_values(l),
        .heads = heads.read,
    };
}

size_t plan_table_bytes(const struct page_layout *l)
{
    struct plan_cursor c = {0};

    plan_make(&c, l);
    return c.bytes;
}

void plan_table_fill(const struct page_layout *l, void *image, cu_ptr address)
{
    struct plan_cursor c = {.image = image, .address = address};

    plan_make(&c, l);
}

/* ---- kernels of attention ---- */

bool plan_attend_takes(enum plan_attend_kernel kernel, const struct page_layout *l, uint32_t n_q)
{
    static const struct {
        uint32_t n_key_coords, n_columns, n_rows;
    } most[PLAN_ATTEND_COUNT] = {
#define KERNEL_MOST(name, n_key_coords, n_columns, n_rows) {n_key_coords, n_columns, n_rows},
        PLAN_ATTEND_KERNELS(KERNEL_MOST)
#undef KERNEL_MOST
    };
    uint32_t group = geometry_group(&l->table->geometry), of_tile = PLAN_TILE_QUERIES(group);

    return plan_rank_max(l, SIDE_K) <= most[kernel].n_key_coords &&
           plan_columns_max(l) <= most[kernel].n_columns &&
           (n_q < of_tile ? n_q : of_tile) * group <= most[kernel].n_rows;
}

enum plan_attend_kernel plan_attend_kernel(const struct page_layout *l, uint32_t n_q)
{
    unsigned i = 0;

    while (i + 1 < PLAN_ATTEND_COUNT && !plan_attend_takes((enum plan_attend_kernel) i, l, n_q))
        i++;
    return (enum plan_attend_kernel) i; /* the last takes what plan_table_check() accepted */
}

/* ---- those for compute capability 9.0 ---- */

static const struct {
    const char *name;
    uint32_t d, n_rows;
} kernels_90[PLAN_90_COUNT] = {
#define KERNEL_90(name, d, n_rows) {#name, d, n_rows},
    PLAN_90_KERNELS(KERNEL_90)
#undef KERNEL_90
};

size_t plan_90_shared_bytes(enum plan_90_kernel kernel, const struct page_layout *l)
{
    return plan_90_shape(kernels_90[kernel].d, kernels_90[kernel].n_rows, plan_rank_max(l, SIDE_K),
                         plan_block_bytes_max(l))
        .bytes;
}

bool plan_90_takes(enum plan_90_kernel kernel, const struct page_layout *l, uint32_t n_q)
{
    uint32_t group = geometry_group(&l->table->geometry), of_tile = PLAN_TILE_QUERIES(group);

    return l->table->geometry.d == kernels_90[kernel].d &&
           (l->table->v_from != PREDICT_LAYER || l->table->geometry.n_kv_heads == 1) &&
           (n_q < of_tile ? n_q : of_tile) * group <= kernels_90[kernel].n_rows &&
           plan_90_shared_bytes(kernel, l) <= PLAN_90_SHARED_MAX;
}

enum plan_90_kernel plan_90_kernel(const struct page_layout *l, uint32_t n_q)
{
    unsigned i = 0;

    while (i < PLAN_90_COUNT && !plan_90_takes((enum plan_90_kernel) i, l, n_q))
        i++;
    return (enum plan_90_kernel) i;
}

/* ---- shared memory ---- */

size_t plan_attend_shared_bytes(const struct page_layout *l)
{
    const struct geometry *g = &l->table->geometry;

    return plan_exact_shared_bytes(g->d, plan_n_planes_of(g));
}

size_t plan_coding_shared_bytes(const struct page_layout *l)
{
    return plan_coding_floats(l->table->geometry.d, plan_largest_rank(l)) * sizeof(float) +
           PLAN_TILE_ROWS * CHUNK_TOKENS;
}

size_t plan_merge_shared_bytes(const struct page_layout *l)
{
    return (plan_columns_max(l) + 1) * sizeof(float);
}
