/* Synthetic tables; see bench_service_model.h. */
#include "tools/bench/bench_service_model.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "alloc/quantiser/levels_normal.h"
#include "alloc/table/table_build.h"
#include "base/cleanup.h"
#include "base/errmsg.h"

enum { DIM_MAX = 64, BANDS_MAX = DIM_MAX / 8, HEAD_SIDES_MAX = 1024 };

const uint8_t bench_model_digest[DIGEST_BYTES] = "the model of the service's bench";

struct geometry bench_geometry(const struct bench_shape *s)
{
    struct geometry g = {.n_layers = s->n_layers,
                         .n_heads = s->n_kv_heads,
                         .n_kv_heads = s->n_kv_heads,
                         .d = s->d,
                         .n_rot = s->d,
                         .attn_scale = 1 / sqrt(s->d)};

    for (unsigned i = 0; i < s->d / 2; i++)
        g.freq[i] = pow(10000, -2.0 * i / s->d);
    return g;
}

kvc_model_id bench_model_id(const struct geometry *g)
{
    kvc_model_id id = {
        .struct_bytes = sizeof(id),
        .geometry = {.struct_bytes = sizeof(id.geometry),
                     .n_layers = g->n_layers,
                     .n_heads = g->n_heads,
                     .n_kv_heads = g->n_kv_heads,
                     .head_dim = g->d,
                     .n_rot = g->n_rot,
                     .attn_scale = g->attn_scale,
                     .rope_freq = g->freq},
    };

    memcpy(id.model_digest, bench_model_digest, sizeof(id.model_digest));
    return id;
}

static int service_model_build(const struct bench_shape *s, double scale, void **ret_bytes,
                               size_t *ret_n_bytes, struct errmsg *e)
{
    static struct levels levels[2][TABLE_BITS_MAX + 1];
    static double mean[DIM_MAX], enc[BANDS_MAX][8 * DIM_MAX], dec[BANDS_MAX][DIM_MAX * 8];
    struct band_spec bands[BANDS_MAX];
    struct codec_spec codecs[HEAD_SIDES_MAX];
    struct geometry g = bench_geometry(s);
    size_t n_codecs = 2 * (size_t) s->n_layers * s->n_kv_heads;
    int r = 0;

    assert(s->d <= DIM_MAX && s->n_bands * 8 <= s->d && n_codecs <= HEAD_SIDES_MAX);
    for (unsigned i = 0; i < s->n_bands; i++) {
        for (unsigned c = 0; c < 8; c++) {
            enc[i][c * s->d + i * 8 + c] = 1;
            dec[i][(i * 8 + c) * 8 + c] = scale;
        }

        bands[i] = (struct band_spec){.bits = (uint8_t) s->bits, .n_coords = 8, .enc = enc[i], .dec = dec[i]};
    }

    for (size_t i = 0; i < n_codecs; i++)
        codecs[i] = (struct codec_spec){.mean = mean, .n_bands = s->n_bands, .bands = bands};
    for (unsigned i = 0; r == 0 && i < 2 * TABLE_BITS_MAX; i++)
        r = levels_normal(QUANT_LLOYD_MAX, i % TABLE_BITS_MAX + 1,
                          &levels[i / TABLE_BITS_MAX][i % TABLE_BITS_MAX + 1]);
    if (r < 0)
        return fail(e, r, "cannot compute levels");

    return table_build(&(struct table_spec){.geometry = &g,
                                            .model_digest = bench_model_digest,
                                            .n_sink = s->no_sinks ? 0 : 4,
                                            .levels = (const struct levels(*)[TABLE_BITS_MAX + 1]) levels,
                                            .codecs = codecs,
                                            .provenance = "{\"made_by\": \"bench service\"}"},
                       ret_bytes, ret_n_bytes, e);
}

int bench_model_init(struct bench_model *m, const struct bench_shape *s, double scale, struct errmsg *e)
{
    _cleanup_(freep) void *bytes = NULL;
    size_t n_bytes;
    int r = service_model_build(s, scale, &bytes, &n_bytes, e);

    *m = (struct bench_model){.table = NULL};
    if (r < 0)
        return r;

    r = table_parse(bytes, n_bytes, &m->table, e);
    if (r < 0)
        return r;

    r = page_layout_init(&m->layout, m->table, (struct shard){0, s->n_kv_heads});
    if (r < 0) {
        m->table = table_unref(m->table);
        return fail(e, r, "cannot compute the page layout of the bench's table");
    }

    return 0;
}

void bench_model_deinit(struct bench_model *m)
{
    if (m->table)
        page_layout_deinit(&m->layout);
    m->table = table_unref(m->table);
}
