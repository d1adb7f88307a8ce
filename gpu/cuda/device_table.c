/* See device_table.h. */
#include "gpu/cuda/device_table.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#include "base/errmsg.h"
#include "base/half.h"
#include "gpu/codec.h"
#include "gpu/page_constants.h"
#include "gpu/cuda/device_table_80.h"

enum { PLANES_STEP = 16, ALIGN = 16, WIDTHS = TABLE_BITS_MAX + 1, LEVELS = 1 << TABLE_BITS_MAX };

_Static_assert(DEVICE_HALVES_MAX == TABLE_HALF_TILES_MAX, "half-tiles of a head-side");
_Static_assert(DEVICE_SINKS_MAX == TABLE_SINKS_MAX, "sinks");

/* Allocates parts of an image; without an image it only adds up their sizes.
 * Addresses are those in device memory. */
struct device_table_cursor {
    char *image;
    cu_ptr address;
    size_t bytes;
};

struct device_table_part {
    void *at;         /* NULL without an image */
    const void *read; /* its address in device memory */
};

static struct device_table_part device_table_take(struct device_table_cursor *c, size_t n, size_t bytes)
{
    size_t at = (c->bytes + ALIGN - 1) / ALIGN * ALIGN;

    c->bytes = at + n * bytes;
    return (struct device_table_part){c->image ? c->image + at : NULL,
                                      (const void *) (uintptr_t) (c->address + at)};
}

static uint32_t device_table_n_planes(const struct geometry *g)
{
    return (g->d / 2 + PLANES_STEP - 1) / PLANES_STEP * PLANES_STEP;
}

uint32_t device_table_columns_max(const struct page_layout *l)
{
    return (uint32_t) l->r_in_max;
}

uint32_t device_table_rank_max(const struct page_layout *l, enum side side)
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

/* Largest r of any head, of either side. */
static uint32_t device_table_largest_rank(const struct page_layout *l)
{
    uint32_t k = device_table_rank_max(l, SIDE_K), v = device_table_rank_max(l, SIDE_V);

    return k > v ? k : v;
}

bool device_table_has_kernels(const struct table *t)
{
    return !table_has_trellis(t) && !table_is_exact(t);
}

int device_table_check(const struct page_layout *l, struct errmsg *e)
{
    const struct geometry *g = &l->table->geometry;

    if (geometry_group(g) > DEVICE_GROUP_MAX)
        return fail(e, -EOPNOTSUPP, "GPU kernels take up to %d query heads per KV head, the model has %u",
                    DEVICE_GROUP_MAX, geometry_group(g));
    if (l->r_in_max > DEVICE_COLUMNS_MAX)
        return fail(e, -EOPNOTSUPP,
                    "GPU kernels decode a value from up to %d coordinates, the table from %zu",
                    DEVICE_COLUMNS_MAX, (size_t) l->r_in_max);

    return 0;
}

/* ---- parts ---- */

static struct device_codes device_table_codes_of(const struct codec *c, uint32_t offset)
{
    struct device_codes ret = {.n_half = c->n_half, .r = c->r};

    for (unsigned i = 0; i < c->n_half; i++) {
        ret.bits[i] = c->bits[i];
        ret.offset[i] = offset;
        offset += (uint32_t) c->bits[i] * CHUNK_TOKENS;
    }
    return ret;
}

/* The smallest power of two that is above all of @x in magnitude: divided by
 * it, the largest is between 1/2 and 1. */
static float device_table_power_of_two_above(const float *x, size_t n)
{
    float largest = 0;
    int exponent;

    for (size_t i = 0; i < n; i++)
        largest = fmaxf(largest, fabsf(x[i]));
    (void) frexpf(largest, &exponent);
    return ldexpf(1, exponent);
}

/* K's dec in binary16, [2][n_planes][r], divided by a power of two that brings its largest entry to 1 or a
 * little below, so that no entry that matters is subnormal. Returns that power. */
static float device_table_fill_dec_k(const struct geometry *g, const struct codec *k, uint16_t *ret)
{
    uint32_t n = device_table_n_planes(g);
    float scale = device_table_power_of_two_above(k->dec, (size_t) g->d * k->r);

    memset(ret, 0, (size_t) 2 * n * k->r * sizeof(*ret));
    for (unsigned hi = 0; hi < 2; hi++)
        for (uint32_t p = 0; p < g->d / 2; p++)
            for (uint32_t c = 0; c < k->r; c++)
                ret[((size_t) hi * n + p) * k->r + c] =
                    f32_to_f16(k->dec[(size_t) device_plane_dim(g->n_rot, p, hi) * k->r_in + c] / scale);
    return scale;
}

/* Euclidean norm of @n numbers from each half of [2][ld]. */
static double device_table_size_of_planes(const float *x, size_t ld, size_t from, size_t n)
{
    double sum = 0;

    for (size_t i = from; i < from + n; i++)
        sum += (double) x[i] * x[i] + (double) x[ld + i] * x[ld + i];
    return sqrt(sum);
}

/* Determines how exactly the scores of the mean are computed, by 16 planes (DEVICE_MEAN_* of
 * kernels/device_table.h). Groups of planes are rounded in ascending order of their norm, as long as all
 * rounded groups together are no larger than what the codes add to the mean: a vector of norm |dec|,
 * because levels have variance one. */
static uint32_t device_table_mean_steps_of(const struct geometry *g, const struct codec *k,
                                           const struct levels *levels, const float *mean)
{
    uint32_t n = device_table_n_planes(g), steps = 0;
    double room = 0, sizes[GEOMETRY_PLANES_MAX / PLANES_STEP + 1];

    for (size_t i = 0; i < (size_t) g->d * k->r; i++)
        if (k->bits[i % k->r / 8] > 0)
            room += pow((double) k->dec[i] / (double) levels[k->bits[i % k->r / 8]].step, 2);
    for (uint32_t i = 0; i < n / PLANES_STEP; i++) {
        sizes[i] = device_table_size_of_planes(mean, n, (size_t) i * PLANES_STEP, PLANES_STEP);
        steps |= (uint32_t) (sizes[i] > 0 ? DEVICE_MEAN_EXACT : DEVICE_MEAN_NONE) << 2 * i;
    }

    for (;;) {
        uint32_t smallest = n;

        for (uint32_t i = 0; i < n / PLANES_STEP; i++)
            if ((steps >> 2 * i & 3) == DEVICE_MEAN_EXACT && (smallest == n || sizes[i] < sizes[smallest]))
                smallest = i;
        if (smallest == n || sizes[smallest] * sizes[smallest] > room)
            return steps;

        room -= sizes[smallest] * sizes[smallest];
        steps ^= (uint32_t) (DEVICE_MEAN_EXACT ^ DEVICE_MEAN_ROUNDED) << 2 * smallest;
    }
}

static void device_table_fill_mean_k(const struct geometry *g, const struct codec *k, float *ret)
{
    uint32_t n = device_table_n_planes(g);

    memset(ret, 0, (size_t) 2 * n * sizeof(*ret));
    for (unsigned hi = 0; hi < 2; hi++)
        for (uint32_t p = 0; p < g->d / 2; p++)
            ret[hi * n + p] = k->mean[device_plane_dim(g->n_rot, p, hi)];
}

/* Copies a matrix or vector of the table unchanged; NULL stays NULL. */
static const float *device_table_copy(struct device_table_cursor *c, const float *from, size_t n)
{
    struct device_table_part p;

    if (!from)
        return NULL;

    p = device_table_take(c, n, sizeof(*from));
    if (p.at)
        memcpy(p.at, from, n * sizeof(*from));
    return p.read;
}

static struct device_encoder device_table_make_encoder(struct device_table_cursor *c,
                                                       const struct codec *codec, uint32_t d)
{
    return (struct device_encoder){
        .mean = device_table_copy(c, codec->enc_mean, d),
        .enc = device_table_copy(c, codec->enc, (size_t) codec->r * d),
        .enc_k = device_table_copy(c, codec->enc_k, (size_t) codec->r * codec->n_pred),
        .n_pred = codec->n_pred,
    };
}

static struct device_head device_table_make_head(struct device_table_cursor *c, const struct page_layout *l,
                                                 uint32_t layer, uint32_t head)
{
    const struct table *t = l->table;
    const struct geometry *g = &t->geometry;
    uint32_t of_model = l->shard.first_head + head;
    const struct codec *k = table_codec(t, layer, of_model, SIDE_K),
                       *v = table_codec(t, layer, of_model, SIDE_V);
    struct head_run run = table_predictors(t, of_model);
    struct device_table_part dec_k =
        device_table_take(c, (size_t) 2 * device_table_n_planes(g) * k->r, sizeof(uint16_t));
    struct device_table_part fragments = device_table_take(
        c, device_table_80_dec_fragment_words(device_table_n_planes(g), k->r), sizeof(uint32_t));
    struct device_table_part mean_k =
        device_table_take(c, (size_t) 2 * device_table_n_planes(g), sizeof(float));
    struct device_head h = {
        .k = device_table_codes_of(k, 0),
        .v = device_table_codes_of(v, (uint32_t) page_v_off(k)),
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
        .dec_v = device_table_copy(c, v->dec, (size_t) g->d * v->r_in),
        .mean_v = device_table_copy(c, v->mean, g->d),
        .encode_k = device_table_make_encoder(c, k, g->d),
        .encode_v = device_table_make_encoder(c, v, g->d),
        .decode_k = device_table_copy(c, k->dec, (size_t) g->d * k->r_in),
        .decode_mean_k = device_table_copy(c, k->mean, g->d),
    };

    if (!c->image)
        return h;

    h.dec_k_scale = device_table_fill_dec_k(g, k, dec_k.at);
    device_table_80_fill_dec_fragments(device_table_n_planes(g), k->r, dec_k.at, fragments.at);
    h.dec_v_scale = device_table_power_of_two_above(v->dec, (size_t) g->d * v->r_in);
    device_table_fill_mean_k(g, k, mean_k.at);
    h.mean_scale = device_table_power_of_two_above(mean_k.at, (size_t) 2 * device_table_n_planes(g));
    h.mean_steps = device_table_mean_steps_of(g, k, t->levels[SIDE_K], mean_k.at);
    return h;
}

static void device_table_fill_levels(const struct table *t, uint16_t *ret)
{
    for (unsigned side = SIDE_K; side <= SIDE_V; side++)
        for (unsigned b = 0; b < WIDTHS; b++)
            for (unsigned i = 0; i < LEVELS; i++)
                ret[(side * WIDTHS + b) * LEVELS + i] = b > 0 && i < 1u << b
                                                            ? f32_to_f16(t->levels[side][b].value[i])
                                                            : 0; /* exact: alloc/table/table.h */
}

static void device_table_fill_thresholds(const struct table *t, float *thresholds, float *limits)
{
    memset(thresholds, 0, (size_t) 2 * WIDTHS * LEVELS * sizeof(*thresholds));
    memset(limits, 0, (size_t) 2 * WIDTHS * 2 * sizeof(*limits));
    for (unsigned side = SIDE_K; side <= SIDE_V; side++)
        for (unsigned b = 1; b < WIDTHS; b++) {
            const struct levels *l = &t->levels[side][b];
            size_t at = side * WIDTHS + b;

            memcpy(thresholds + at * LEVELS, l->threshold, ((1u << b) - 1) * sizeof(*thresholds));
            levels_saturation_limits(l, b, &limits[2 * at], &limits[2 * at + 1]);
        }
}

static void device_table_fill_angles(const struct page_layout *l, float *cosine, float *sine, double *freq)
{
    const struct geometry *g = &l->table->geometry;
    uint32_t n = device_table_n_planes(g), n_rotated = g->n_rot / 2;

    for (uint32_t p = 0; p < n; p++) {
        freq[p] = p < n_rotated ? g->freq[p] : 0;
        for (uint32_t token = 0; token < CHUNK_TOKENS; token++) {
            cosine[p * CHUNK_TOKENS + token] =
                p < n_rotated ? l->constants->cos[p * CHUNK_TOKENS + token] : 1;
            sine[p * CHUNK_TOKENS + token] = p < n_rotated ? l->constants->sin[p * CHUNK_TOKENS + token] : 0;
        }
    }
}

/* Cosines and sines as operand A of 16 tokens and 16 planes (device_table.rotations): row g or g + 8,
 * planes 2t, 2t + 1 or 8 more. */
static void device_table_fill_rotations(const float *cosine, const float *sine, uint32_t n_planes,
                                        uint32_t *ret)
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

uint32_t device_table_block_bytes_max(const struct page_layout *l)
{
    size_t largest = 0, n = (size_t) l->table->geometry.n_layers * l->shard.n_heads;

    for (size_t i = 0; i < n; i++)
        if (l->block_off[i + 1] - l->block_off[i] > largest)
            largest = l->block_off[i + 1] - l->block_off[i];
    return (uint32_t) largest;
}

/* Adds up the sizes; with an image it also writes the contents. */
static void device_table_make(struct device_table_cursor *c, const struct page_layout *l)
{
    const struct table *t = l->table;
    const struct geometry *g = &t->geometry;
    uint32_t n = device_table_n_planes(g);
    struct device_table_part table = device_table_take(c, 1, sizeof(struct device_table));
    struct device_table_part heads =
        device_table_take(c, (size_t) g->n_layers * l->shard.n_heads, sizeof(struct device_head));
    struct device_table_part levels = device_table_take(c, (size_t) 2 * WIDTHS * LEVELS, sizeof(uint16_t));
    struct device_table_part thresholds = device_table_take(c, (size_t) 2 * WIDTHS * LEVELS, sizeof(float));
    struct device_table_part limits = device_table_take(c, (size_t) 2 * WIDTHS * 2, sizeof(float));
    struct device_table_part cosine = device_table_take(c, (size_t) n * CHUNK_TOKENS, sizeof(float));
    struct device_table_part sine = device_table_take(c, (size_t) n * CHUNK_TOKENS, sizeof(float));
    struct device_table_part rotations =
        device_table_take(c, (size_t) 2 * n / PLANES_STEP * 2 * 128 * 4, sizeof(uint32_t));
    struct device_table_part freq = device_table_take(c, n, sizeof(double));
    struct device_table_part page_rotation = device_table_take(c, (size_t) 2 * n, sizeof(float));
    struct device_table_part narrow = device_table_take(c, DEVICE_TABLE_80_NARROW_WORDS, sizeof(uint32_t));
    struct device_table_part wide =
        device_table_take(c, (size_t) 2 * ATTEND_80_WIDE_LEVELS, sizeof(uint16_t));

    for (uint32_t layer = 0; layer < g->n_layers; layer++)
        for (uint32_t head = 0; head < l->shard.n_heads; head++) {
            struct device_head h = device_table_make_head(c, l, layer, head);

            if (c->image)
                ((struct device_head *) heads.at)[layer * l->shard.n_heads + head] = h;
        }
    if (!c->image)
        return;
    device_table_fill_levels(t, levels.at);
    device_table_fill_thresholds(t, thresholds.at, limits.at);
    device_table_fill_angles(l, cosine.at, sine.at, freq.at);
    device_table_fill_rotations(cosine.at, sine.at, n, rotations.at);
    device_table_80_fill_page_rotation(n, freq.at, page_rotation.at);
    device_table_80_fill_narrow(levels.at, narrow.at);
    device_table_80_fill_wide(levels.at, wide.at);
    *(struct device_table *) table.at = (struct device_table){
        .d = g->d,
        .n_rot = g->n_rot,
        .n_planes = n,
        .group = geometry_group(g),
        .n_kv_heads = l->shard.n_heads,
        .n_sink = t->n_sink,
        .columns_max = device_table_columns_max(l),
        .rank_max = device_table_largest_rank(l),
        .key_rank_max = device_table_rank_max(l, SIDE_K),
        .block_bytes_max = device_table_block_bytes_max(l),
        .attn_scale = (float) g->attn_scale,
        .levels = levels.read,
        .thresholds = thresholds.read,
        .limits = limits.read,
        .cosine = cosine.read,
        .sine = sine.read,
        .rotations = rotations.read,
        .freq = freq.read,
        .page_rotation = page_rotation.read,
        .narrow = narrow.read,
        .wide = wide.read,
        .wide_values = device_table_80_wide_values(l),
        .heads = heads.read,
    };
}

size_t device_table_bytes(const struct page_layout *l)
{
    struct device_table_cursor c = {0};

    device_table_make(&c, l);
    return c.bytes;
}

void device_table_fill(const struct page_layout *l, void *image, cu_ptr address)
{
    struct device_table_cursor c = {.image = image, .address = address};

    device_table_make(&c, l);
}

/* ---- shared memory ---- */

size_t device_table_attend_shared_bytes(const struct page_layout *l)
{
    const struct geometry *g = &l->table->geometry;

    return launch_exact_shared_bytes(g->d, device_table_n_planes(g));
}

size_t device_table_coding_shared_bytes(const struct page_layout *l)
{
    return launch_coding_floats(l->table->geometry.d, device_table_largest_rank(l)) * sizeof(float) +
           LAUNCH_TILE_ROWS * CHUNK_TOKENS;
}

size_t device_table_merge_shared_bytes(const struct page_layout *l)
{
    return (device_table_columns_max(l) + 1) * sizeof(float);
}
