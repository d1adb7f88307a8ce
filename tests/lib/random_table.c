/* Small valid tables for tests; see random_table.h. */
#include "tests/lib/random_table.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "alloc/quant.h"
#include "alloc/rotation.h"
#include "alloc/table_build.h"
#include "base/cleanup.h"

const uint8_t random_table_model_digest[DIGEST_BYTES] = "a model that exists in tests on";

enum { BAND = 8, BANDS_MAX = GEOMETRY_DIM_MAX / BAND };

/* Everything that one head-side's codec_spec points to; stored band i holds coordinates 8 i .. 8 i + 7 of the basis. */
struct side_spec {
    struct band_spec bands[BANDS_MAX];
    double mean[GEOMETRY_DIM_MAX];
    double basis[GEOMETRY_DIM_MAX * GEOMETRY_DIM_MAX];
    double enc[GEOMETRY_DIM_MAX * GEOMETRY_DIM_MAX];
    double dec[GEOMETRY_DIM_MAX * GEOMETRY_DIM_MAX];
    double predict[GEOMETRY_DIM_MAX * GEOMETRY_DIM_MAX];
};

struct geometry random_table_geometry(uint32_t n_layers, uint32_t n_heads, uint32_t n_kv_heads, uint32_t d)
{
    struct geometry g = {
        .n_layers = n_layers, .n_heads = n_heads, .n_kv_heads = n_kv_heads, .d = d, .n_rot = d,
        .attn_scale = 1 / sqrt(d),
    };

    for (uint32_t i = 0; i < d / 2; i++)
        g.freq[i] = pow(10000, -2.0 * i / d);
    return g;
}

/* A value of [-1, 1) that only depends on its arguments: tables must not depend on what a test drew before. */
static double noise(uint64_t seed, uint64_t i)
{
    uint64_t z = seed * 0x9e3779b97f4a7c15u + i * 0xbf58476d1ce4e5b9u + 0x94d049bb133111ebu;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (double) (int64_t) (z ^ z >> 31) * 0x1p-63;
}

/* Standard deviation of the coordinates of band @i: each band carries half a bit less than the one before. */
static double spectrum(uint32_t i)
{
    return 2 * pow(2, -0.5 * i);
}

/* Reverse water-filling in whole bits: always the band with most distortion left, until the budget is spent. */
static void spread_bits(uint32_t n_bands, double bpd, struct band_spec *bands)
{
    long left = lround(bpd * n_bands);

    for (uint32_t i = 0; i < n_bands; i++)
        bands[i].bits = 0;
    for (; left > 0; left--) {
        struct band_spec *best = NULL;
        double worst = 0;

        for (uint32_t i = 0; i < n_bands; i++) {
            double harm = spectrum(i) * spectrum(i) * pow(4, -bands[i].bits);

            if (bands[i].bits < TABLE_BITS_MAX && harm > worst) {
                worst = harm;
                best = &bands[i];
            }
        }
        if (!best)
            return;
        best->bits++;
    }
}

/* @seed belongs to this head-side alone. */
static void make_side(const struct geometry *g, uint64_t seed, double bpd, struct side_spec *s)
{
    uint32_t d = g->d, n_bands = (d + BAND - 1) / BAND;

    rotation_matrix(d, seed, s->basis);
    spread_bits(n_bands, bpd, s->bands);
    for (uint32_t i = 0; i < d; i++)
        s->mean[i] = noise(seed, i);
    for (uint32_t band = 0; band < n_bands; band++) {
        uint32_t first = band * BAND, n = d - first < BAND ? d - first : BAND;
        double *enc = s->enc + (size_t) first * d, *dec = s->dec + (size_t) first * d;

        for (uint32_t c = 0; c < n; c++)
            for (uint32_t i = 0; i < d; i++) {
                double u = s->basis[(size_t) (first + c) * d + i];

                enc[c * d + i] = u / spectrum(band);
                dec[i * n + c] = u * spectrum(band);
            }
        s->bands[band].n_coords = (uint8_t) n;
        s->bands[band].enc = enc;
        s->bands[band].dec = dec;
    }
}

static struct codec_spec codec_of(const struct geometry *g, const struct side_spec *s)
{
    return (struct codec_spec) { .mean = s->mean, .n_bands = (g->d + BAND - 1) / BAND, .bands = s->bands };
}

/* A weak dependence of V on K's coordinates. */
static void add_prediction(const struct geometry *g, uint64_t seed, const struct side_spec *k, struct side_spec *v,
                           struct codec_spec *ret)
{
    uint32_t order[BANDS_MAX], n = 0;
    struct codec_spec spec = codec_of(g, k);
    uint32_t n_stored = band_order(&spec, order);

    for (uint32_t i = 0; i < n_stored; i++)
        n += k->bands[order[i]].n_coords;
    if (n == 0)
        return;
    for (size_t i = 0; i < (size_t) g->d * n; i++)
        v->predict[i] = 0.1 * noise(seed + 1, i);
    ret->predict = v->predict;
}

static int make_levels(struct levels levels[2][TABLE_BITS_MAX + 1])
{
    for (int side = SIDE_K; side <= SIDE_V; side++)
        for (unsigned b = 1; b <= TABLE_BITS_MAX; b++) {
            int r = levels_normal(QUANT_LLOYD_MAX, b, &levels[side][b]);

            if (r < 0)
                return r;
        }
    return 0;
}

int random_table_bytes(const struct geometry *g, uint64_t seed, double bpd, bool v_from_k, void **ret_bytes,
                       size_t *ret_n_bytes)
{
    uint32_t n = head_side_count(g);
    _cleanup_(freep) struct side_spec *sides = calloc(n, sizeof(*sides));
    _cleanup_(freep) struct codec_spec *codecs = calloc(n, sizeof(*codecs));
    _cleanup_(freep) struct levels (*levels)[TABLE_BITS_MAX + 1] = calloc(2, sizeof(*levels));
    int r;

    if (!sides || !codecs || !levels)
        return -ENOMEM;
    r = make_levels(levels);
    if (r < 0)
        return r;
    for (uint32_t i = 0; i < n; i++) {
        make_side(g, seed * n + i, bpd, &sides[i]);
        codecs[i] = codec_of(g, &sides[i]);
        if (i % 2 == SIDE_V && v_from_k)
            add_prediction(g, seed * n + i, &sides[i - 1], &sides[i], &codecs[i]);
    }
    return table_build(&(struct table_spec) {
        .geometry = g, .model_digest = random_table_model_digest, .n_sink = RANDOM_TABLE_SINKS,
        .levels = (const struct levels (*)[TABLE_BITS_MAX + 1]) levels, .codecs = codecs,
        .provenance = "{\"made_by\": \"random_table\"}",
    }, ret_bytes, ret_n_bytes, NULL);
}
