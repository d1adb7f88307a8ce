/* From a solver's heads to the bytes of a table. This file describes the codecs to
 * table_build(), which orders, pads and folds. */
#include <errno.h>
#include <stdlib.h>

#include "alloc/solve/solve_internal.h"
#include "alloc/stats/stats_internal.h"
#include "alloc/table/table_build.h"
#include "alloc/table/table_half.h"
#include "base/cleanup.h"
#include "base/errmsg.h"

/* Where each band's columns start in a fitted decoder; bands without bits have
 * none. Returns the number of columns. */
static size_t solve_build_decoder_columns(const struct head *h, size_t ret_first[TABLE_HALF_TILES_MAX])
{
    struct stored_order order;
    size_t cols = 0;

    solve_stored_order(h, &order);
    for (uint32_t i = 0; i < order.n_bands; i++) {
        ret_first[order.band[i]] = cols;
        cols += band_coords(&h->t, order.band[i]);
    }
    return cols;
}

/* The head's bands with decode matrices by columns, [d, n_coords] each, one after another in h->dec. */
static void solve_build_fill_bands(const struct solver *v, uint32_t hs, struct band_spec *ret_bands)
{
    struct head *h = &v->heads[hs];
    size_t d = h->t.d, first[TABLE_HALF_TILES_MAX] = {0}, cols = solve_build_decoder_columns(h, first);
    double *dec = h->dec;

    for (uint32_t b = 0; b < h->t.n_bands; b++) {
        uint32_t n = band_coords(&h->t, b);
        const double *rows = h->t.dec + (size_t) b * BAND_COORDS * d;
        bool fitted = h->decoder.dec && h->bits[b] > 0;
        double factor = fitted ? 1 : solve_inverse_factor(v, (enum side)(hs % 2), h->bits[b]);

        for (size_t i = 0; i < d; i++)
            for (uint32_t c = 0; c < n; c++)
                dec[i * n + c] = fitted ? h->decoder.dec[i * cols + first[b] + c] : factor * rows[c * d + i];
        ret_bands[b] = (struct band_spec){
            .bits = h->bits[b],
            .n_coords = (uint8_t) n,
            .enc = h->t.enc + (size_t) b * BAND_COORDS * d,
            .dec = dec,
            .fast = hs % 2 == SIDE_K && b * BAND_COORDS < v->blocks.n_first,
        };
        dec += d * n;
    }
}

void solve_round_encoders(struct solver *v, enum side side)
{
    for (uint32_t hs = (uint32_t) side; v->half && hs < v->n_heads; hs += 2) {
        struct transform *t = &v->heads[hs].t;

        for (size_t i = 0; i < t->n_coords; i++)
            table_half_round(t->enc + i * t->d, t->d);
    }
}

/* With v->half: the table with its matrices as binary16. */
static int solve_build_table(const struct solver *v, const struct table_spec *spec, void **ret_bytes,
                             size_t *ret_n_bytes, struct errmsg *e)
{
    _cleanup_(freep) void *single = NULL;
    size_t n_single;
    int r;

    if (!v->half)
        return table_build(spec, ret_bytes, ret_n_bytes, e);

    r = table_build(spec, &single, &n_single, e);
    return r == 0 ? table_half_convert(single, n_single, ret_bytes, ret_n_bytes, e) : r;
}

int solve_build(struct solver *v, void **ret_bytes, size_t *ret_n_bytes, struct errmsg *e)
{
    _cleanup_(freep) struct codec_spec *codecs = calloc(v->n_heads, sizeof(*codecs));
    _cleanup_(freep) struct band_spec *bands =
        calloc((size_t) v->n_heads * TABLE_HALF_TILES_MAX, sizeof(*bands));
    _cleanup_(freep) char *provenance = NULL;
    struct table_spec spec = {
        .geometry = v->g,
        .model_digest = v->s->o.model_digest,
        .n_sink = v->s->o.n_sink,
        .v_from = v->o.v_from,
        .levels = (const struct levels(*)[TABLE_BITS_MAX + 1]) v->levels,
        .codecs = codecs,
    };
    int r;

    solver_progress(v, "building the table", 0);
    if (!codecs || !bands)
        return fail(e, -ENOMEM, "out of memory for the table");

    r = solve_provenance(v, &provenance, e);
    if (r < 0)
        return r;

    spec.provenance = provenance;
    for (uint32_t hs = 0; hs < v->n_heads; hs++) {
        const struct head *h = &v->heads[hs];

        solve_build_fill_bands(v, hs, bands + (size_t) hs * TABLE_HALF_TILES_MAX);
        codecs[hs] = (struct codec_spec){
            .mean = h->decoder.mean ? h->decoder.mean : h->mean,
            .n_bands = h->t.n_bands,
            .bands = bands + (size_t) hs * TABLE_HALF_TILES_MAX,
            .predict = h->decoder.predict ? h->decoder.predict : h->predict,
            .enc_mean = h->mean,
            .enc_predict = h->predict,
            .fast_planes = hs % 2 == SIDE_K ? v->fast_planes : 0,
        };
    }

    return solve_build_table(v, &spec, ret_bytes, ret_n_bytes, e);
}
