/* Small valid tables for tests; see random_table.h. */
#include "tests/lib/random_table.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

#include "alloc/quantiser/levels_normal.h"
#include "alloc/table/trellis.h"
#include "alloc/quantiser/trellis_fit.h"
#include "alloc/math/rotation.h"
#include "alloc/table/table_build.h"
#include "base/cleanup.h"
#include "base/splitmix64.h"

const uint8_t random_table_model_digest[DIGEST_BYTES] = "a model that exists in tests on";

enum { BAND = 8, BANDS_MAX = GEOMETRY_DIM_MAX / BAND };

/* The arrays of one head-side's codec_spec. Stored band i holds coordinates 8 i .. 8 i + 7 of the basis. */
struct side_spec {
    struct band_spec bands[BANDS_MAX];
    double mean[GEOMETRY_DIM_MAX];
    double basis[GEOMETRY_DIM_MAX * GEOMETRY_DIM_MAX];
    double enc[GEOMETRY_DIM_MAX * GEOMETRY_DIM_MAX];
    double dec[GEOMETRY_DIM_MAX * GEOMETRY_DIM_MAX];
    double enc_mean[GEOMETRY_DIM_MAX];
    double *predict, *enc_predict; /* [d, coordinates predicted from] */
};

struct sides {
    uint32_t n;
    struct side_spec *all; /* [n] */
};

static void sides_deinit(struct sides *s)
{
    for (uint32_t i = 0; s->all && i < s->n; i++) {
        free(s->all[i].predict);
        free(s->all[i].enc_predict);
    }
    free(s->all);
}

struct geometry random_table_geometry(uint32_t n_layers, uint32_t n_heads, uint32_t n_kv_heads, uint32_t d)
{
    struct geometry g = {
        .n_layers = n_layers,
        .n_heads = n_heads,
        .n_kv_heads = n_kv_heads,
        .d = d,
        .n_rot = d,
        .attn_scale = 1 / sqrt(d),
    };

    for (uint32_t i = 0; i < d / 2; i++)
        g.freq[i] = pow(10000, -2.0 * i / d);
    return g;
}

/* A number in [-1, 1) that depends on the arguments only, so that tables do not depend
 * on earlier random numbers of a test. */
static double noise(uint64_t seed, uint64_t i)
{
    uint64_t at = seed * 0x9e3779b97f4a7c15u + i * 0xbf58476d1ce4e5b9u + 0x94d049bb133111ebu;

    return (double) (int64_t) splitmix64_mix(at) * 0x1p-63;
}

/* Standard deviation of the coordinates of band @i: each band needs half a bit less than the one before. */
static double spectrum(uint32_t i)
{
    return 2 * pow(2, -0.5 * i);
}

/* Reverse water-filling in whole bits: always the band with most distortion
 * left, until the budget is spent. */
static void spread_bits(uint32_t n_bands, double bpd, struct band_spec *bands)
{
    long left = lround(bpd * n_bands);

    for (uint32_t i = 0; i < n_bands; i++)
        bands[i].bits = 0;
    for (; left > 0; left--) {
        struct band_spec *best = NULL;
        double worst = 0;

        for (uint32_t i = 0; i < n_bands; i++) {
            double distortion = spectrum(i) * spectrum(i) * pow(4, -bands[i].bits);

            if (bands[i].bits < TABLE_BITS_MAX && distortion > worst) {
                worst = distortion;
                best = &bands[i];
            }
        }
        if (!best)
            return;
        best->bits++;
    }
}

/* Rows @row .. @row + n - 1 of the basis: rows from @from on of a rotation of one block's dimensions. */
static void put_block_rows(const struct geometry *g, uint32_t fast_planes, bool fast, const double *rotation,
                           uint32_t from, uint32_t row, uint32_t n, double *basis)
{
    uint32_t wide = fast ? 2 * fast_planes : g->d - 2 * fast_planes;

    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = 0, c = 0; j < g->d; j++) {
            bool own = geometry_in_planes(g, fast_planes, j) == fast;

            basis[(row + i) * g->d + j] = own ? rotation[(from + i) * wide + c] : 0;
            c += own;
        }
}

/* A basis in two blocks: every second band is one of the fast planes, as long as there are any. */
static void make_blocks(const struct geometry *g, uint32_t fast_planes, uint64_t seed, struct side_spec *s)
{
    static double fast[GEOMETRY_DIM_MAX * GEOMETRY_DIM_MAX], slow[GEOMETRY_DIM_MAX * GEOMETRY_DIM_MAX];
    uint32_t n_fast = 2 * fast_planes / BAND, at[2] = {0};

    rotation_matrix(2 * fast_planes, seed, fast);
    rotation_matrix(g->d - 2 * fast_planes, seed + 1, slow);
    for (uint32_t band = 0, row = 0; row < g->d; band++) {
        uint32_t slow_left = g->d - 2 * fast_planes - at[0], n;
        bool is_fast = at[1] < BAND * n_fast && (band % 2 == 1 || slow_left < BAND);

        n = is_fast || slow_left > BAND ? BAND : slow_left;
        put_block_rows(g, fast_planes, is_fast, is_fast ? fast : slow, at[is_fast], row, n, s->basis);
        s->bands[band].fast = is_fast;
        at[is_fast] += n;
        row += n;
    }
}

/* @seed: of this head-side. @fast_planes: of a basis in two blocks, or 0 */
static void make_side(const struct geometry *g, uint64_t seed, double bpd, uint32_t fast_planes,
                      struct side_spec *s)
{
    uint32_t d = g->d, n_bands = (d + BAND - 1) / BAND;

    if (fast_planes > 0)
        make_blocks(g, fast_planes, seed, s);
    else
        rotation_matrix(d, seed, s->basis);
    spread_bits(n_bands, bpd, s->bands);
    for (uint32_t i = 0; i < d; i++) {
        s->mean[i] = noise(seed, i);
        s->enc_mean[i] = s->mean[i] + 0.01 * noise(seed, d + i);
    }
    for (uint32_t band = 0; band < n_bands; band++) {
        uint32_t first = band * BAND, n = d - first < BAND ? d - first : BAND;
        double *enc = s->enc + (size_t) first * d, *dec = s->dec + (size_t) first * d;

        for (uint32_t c = 0; c < n; c++)
            for (uint32_t i = 0; i < d; i++) {
                double u = s->basis[(size_t) (first + c) * d + i];

                enc[c * d + i] = u / spectrum(band);
                dec[i * n + c] = 0.99 * u * spectrum(band);
            }
        s->bands[band].n_coords = (uint8_t) n;
        s->bands[band].enc = enc;
        s->bands[band].dec = dec;
    }
}

static struct codec_spec codec_of(const struct geometry *g, const struct side_spec *s)
{
    return (struct codec_spec){
        .mean = s->mean, .n_bands = (g->d + BAND - 1) / BAND, .bands = s->bands, .enc_mean = s->enc_mean};
}

/* Coordinates that the stored bands of a head have. */
static size_t stored_coords(const struct geometry *g, const struct side_spec *s)
{
    size_t n = 0;

    for (uint32_t band = 0; band < (g->d + BAND - 1) / BAND; band++)
        n += s->bands[band].bits > 0 ? s->bands[band].n_coords : 0;
    return n;
}

/* A weak dependence of V number @i on the coordinates of its predictors, which
 * the decoder weighs a little higher. */
static int add_prediction(const struct geometry *g, uint64_t seed, enum prediction v_from,
                          struct side_spec *sides, uint32_t i, struct codec_spec *ret)
{
    uint32_t n_kv = g->n_kv_heads, first = i / 2 / n_kv * n_kv;
    struct head_run run = prediction_heads(v_from, n_kv, i / 2 % n_kv);
    struct side_spec *v = &sides[i];
    size_t n = 0;

    for (uint32_t h = first + run.first; h < first + run.first + run.n; h++)
        n += stored_coords(g, &sides[2 * h]);
    if (n == 0)
        return 0;
    v->predict = calloc(g->d * n, sizeof(double));
    v->enc_predict = calloc(g->d * n, sizeof(double));
    if (!v->predict || !v->enc_predict)
        return -ENOMEM;
    for (size_t x = 0; x < g->d * n; x++) {
        v->enc_predict[x] = 0.1 * noise(seed + 1, x);
        v->predict[x] = 1.02 * v->enc_predict[x];
    }
    ret->predict = v->predict;
    ret->enc_predict = v->enc_predict;
    return 0;
}

static int make_levels(unsigned state_bits, struct levels levels[2][TABLE_BITS_MAX + 1])
{
    for (int side = SIDE_K; side <= SIDE_V; side++)
        for (unsigned b = 1; b <= TABLE_BITS_MAX; b++) {
            double mse;
            int r = state_bits > 0 && b <= TRELLIS_BITS_MAX
                        ? trellis_normal(b, state_bits, &levels[side][b], &mse)
                        : levels_normal(QUANT_LLOYD_MAX, b, &levels[side][b]);

            if (r < 0)
                return r;
        }
    return 0;
}

static const char default_provenance[] = "{\"made_by\": \"random_table\"}";

/* @model: digest of the model that the table is for */
static int bytes_of(const struct geometry *g, const uint8_t *model, uint64_t seed, double bpd,
                    enum prediction v_from, uint32_t n_sink, unsigned state_bits, uint32_t fast_planes,
                    const char *provenance, void **ret_bytes, size_t *ret_n_bytes)
{
    uint32_t n = head_side_count(g);
    _cleanup_(sides_deinit) struct sides sides = {.n = n, .all = calloc(n, sizeof(*sides.all))};
    _cleanup_(freep) struct codec_spec *codecs = calloc(n, sizeof(*codecs));
    _cleanup_(freep) struct levels(*levels)[TABLE_BITS_MAX + 1] = calloc(2, sizeof(*levels));
    int r;

    if (!sides.all || !codecs || !levels)
        return -ENOMEM;

    r = make_levels(state_bits, levels);
    if (r < 0)
        return r;

    for (uint32_t i = 0; i < n; i++) {
        uint32_t fast = i % 2 == SIDE_K ? fast_planes : 0;

        make_side(g, seed * n + i, bpd, fast, &sides.all[i]);
        codecs[i] = codec_of(g, &sides.all[i]);
        codecs[i].fast_planes = fast;
    }
    for (uint32_t i = SIDE_V; i < n; i += 2) {
        r = add_prediction(g, seed * n + i, v_from, sides.all, i, &codecs[i]);
        if (r < 0)
            return r;
    }

    return table_build(
        &(struct table_spec){
            .geometry = g,
            .model_digest = model,
            .n_sink = n_sink,
            .v_from = v_from,
            .levels = (const struct levels(*)[TABLE_BITS_MAX + 1]) levels,
            .codecs = codecs,
            .provenance = provenance,
        },
        ret_bytes, ret_n_bytes, NULL);
}

int random_table_bytes(const struct geometry *g, uint64_t seed, double bpd, enum prediction v_from,
                       void **ret_bytes, size_t *ret_n_bytes)
{
    return bytes_of(g, random_table_model_digest, seed, bpd, v_from, RANDOM_TABLE_SINKS, 0, 0,
                    default_provenance, ret_bytes, ret_n_bytes);
}

int random_table_bytes_sinks(const struct geometry *g, uint64_t seed, double bpd, enum prediction v_from,
                             uint32_t n_sink, void **ret_bytes, size_t *ret_n_bytes)
{
    return bytes_of(g, random_table_model_digest, seed, bpd, v_from, n_sink, 0, 0, default_provenance,
                    ret_bytes, ret_n_bytes);
}

int random_table_bytes_of(const struct geometry *g, const uint8_t model[static DIGEST_BYTES], uint64_t seed,
                          double bpd, void **ret_bytes, size_t *ret_n_bytes)
{
    return bytes_of(g, model, seed, bpd, PREDICT_HEAD, RANDOM_TABLE_SINKS, 0, 0, default_provenance,
                    ret_bytes, ret_n_bytes);
}

int random_table_bytes_provenance(const struct geometry *g, uint64_t seed, double bpd, const char *provenance,
                                  void **ret_bytes, size_t *ret_n_bytes)
{
    return bytes_of(g, random_table_model_digest, seed, bpd, PREDICT_HEAD, RANDOM_TABLE_SINKS, 0, 0,
                    provenance, ret_bytes, ret_n_bytes);
}

int random_table_bytes_trellis(const struct geometry *g, uint64_t seed, double bpd, enum prediction v_from,
                               unsigned state_bits, void **ret_bytes, size_t *ret_n_bytes)
{
    return bytes_of(g, random_table_model_digest, seed, bpd, v_from, RANDOM_TABLE_SINKS, state_bits, 0,
                    default_provenance, ret_bytes, ret_n_bytes);
}

int random_table_bytes_blocks(const struct geometry *g, uint64_t seed, double bpd, enum prediction v_from,
                              unsigned state_bits, uint32_t fast_planes, void **ret_bytes,
                              size_t *ret_n_bytes)
{
    return bytes_of(g, random_table_model_digest, seed, bpd, v_from, RANDOM_TABLE_SINKS, state_bits,
                    fast_planes, default_provenance, ret_bytes, ret_n_bytes);
}
