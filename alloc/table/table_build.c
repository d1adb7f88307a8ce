/*
 * From solved codecs to the bytes of a table: orders and pads bands, folds steps, computes
 * golden vectors, appends the digest, and parses the result before it returns. The same inputs
 * give the same bytes. See table_build.h.
 */
#include "alloc/table/table_build.h"

#include <errno.h>
#include <math.h>
#include <sodium.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/table/levels.h"
#include "alloc/table/table_format.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "base/splitmix64.h"

uint32_t table_band_order(const struct codec_spec *c, uint32_t *ret_order)
{
    uint32_t n = 0, stored;

    for (unsigned bits = TABLE_BITS_MAX; bits > 0; bits--)
        for (uint32_t i = 0; i < c->n_bands; i++)
            if (c->bands[i].bits == bits)
                ret_order[n++] = i;
    stored = n;
    for (uint32_t i = 0; i < c->n_bands; i++)
        if (c->bands[i].bits == 0 || c->bands[i].bits > TABLE_BITS_MAX)
            ret_order[n++] = i;
    return stored;
}

struct builder {
    const struct table_spec *spec;
    struct errmsg *e;
    uint32_t n_sides, version;
    struct table_section_entry sections[SECTION_COUNT];
    size_t n_bytes;
    uint8_t *bytes;                    /* [n_bytes] */
    struct table_codec_entry *entries; /* [n_sides] */
    struct codec *codecs;              /* [n_sides] views into bytes */
};

static void table_build_builder_deinit(struct builder *b)
{
    free(b->bytes);
    free(b->entries);
    free(b->codecs);
}

static int table_build_bad_codec(const struct builder *b, uint32_t i, const char *what)
{
    uint32_t n_kv = b->spec->geometry->n_kv_heads;

    return fail(b->e, -EINVAL, "layer %u, head %u, side %c: %s", i / 2 / n_kv, i / 2 % n_kv,
                i % 2 ? 'V' : 'K', what);
}

/* ---- layout ---- */

static int table_build_check_spec(struct builder *b)
{
    const struct table_spec *s = b->spec;
    int r;

    r = geometry_validate(s->geometry, b->e);
    if (r < 0)
        return r;
    if (s->n_sink > TABLE_SINKS_MAX)
        return fail(b->e, -EINVAL, "%u sinks requested, at most %u are possible", s->n_sink, TABLE_SINKS_MAX);
    if (strlen(s->provenance) >= TABLE_PROVENANCE_MAX)
        return fail(b->e, -EINVAL, "the provenance has more than %zu bytes", TABLE_PROVENANCE_MAX - 1);

    for (unsigned side = 0; side < 2; side++)
        for (unsigned bits = 1; bits <= TABLE_BITS_MAX; bits++)
            if (!levels_valid(&s->levels[side][bits], bits))
                return fail(b->e, -EINVAL, "the %u-bit levels of side %c are not in stored form", bits,
                            side ? 'V' : 'K');
    b->n_sides = head_side_count(s->geometry);
    for (uint32_t i = 0; i < b->n_sides; i++)
        if (s->codecs[i].predict && (i % 2 == SIDE_K || s->v_from == PREDICT_NONE))
            return table_build_bad_codec(b, i, "it has a prediction, but the table predicts no values");
    return 0;
}

/* The K head-sides that V of head-side @i is predicted from: first, first + 2, ... */
static struct head_run table_build_predictors(const struct builder *b, uint32_t i)
{
    uint32_t n_kv = b->spec->geometry->n_kv_heads;
    struct head_run run = prediction_heads(b->spec->v_from, n_kv, i / 2 % n_kv);

    return (struct head_run){i / 2 / n_kv * n_kv * 2 + 2 * run.first, i % 2 == SIDE_V ? run.n : 0};
}

static int table_build_lay_out_codec(struct builder *b, uint32_t i)
{
    const struct codec_spec *c = &b->spec->codecs[i];
    struct table_codec_entry *en = &b->entries[i];
    uint32_t order[TABLE_HALF_TILES_MAX], d = b->spec->geometry->d, stored;

    if (c->n_bands > TABLE_HALF_TILES_MAX)
        return table_build_bad_codec(b, i, "it has more bands than half-tiles");

    for (uint32_t k = 0; k < c->n_bands; k++)
        if (c->bands[k].bits > TABLE_BITS_MAX || c->bands[k].n_coords < 1 || c->bands[k].n_coords > 8)
            return table_build_bad_codec(b, i, "a band has an impossible width or number of coordinates");
    stored = table_band_order(c, order);
    if (stored > table_half_tiles_max(d))
        return table_build_bad_codec(b, i, "it has more bands with bits than its dimension has half-tiles");

    en->n_half = (uint16_t) (stored + stored % 2);
    en->r = (uint16_t) (8 * en->n_half);
    for (uint32_t k = 0; k < stored; k++) {
        const struct band_spec *band = &c->bands[order[k]];

        en->bits[k] = band->bits;
        en->code_bits = (uint16_t) (en->code_bits + 8 * band->bits);
        en->fast_halves |= (uint32_t) band->fast << k;
    }
    en->fast_planes = (uint16_t) c->fast_planes;

    return 0;
}

/* Runs after table_build_lay_out_codec() of all head-sides: V's matrices have a column for every K code of
 * heads that may come later. */
static int table_build_lay_out_matrices(struct builder *b, uint32_t i, size_t *cursor)
{
    struct table_codec_entry *en = &b->entries[i];
    struct head_run run = table_build_predictors(b, i);
    struct table_matrix all[CODEC_MATRICES];

    for (uint32_t h = 0; h < run.n; h++)
        en->n_pred += b->entries[run.first + 2 * h].r;
    if (en->n_pred > TABLE_PRED_MAX)
        return fail(b->e, -EINVAL,
                    "values would be predicted from %u key codes, at most %u are possible: predict them from "
                    "their own head's",
                    en->n_pred, TABLE_PRED_MAX);

    en->matrices_off = *cursor;
    table_matrices(en->r, en->n_pred, b->spec->geometry->d, MATRICES_SINGLE, all);
    for (unsigned m = 0; m < CODEC_MATRICES; m++)
        if (!checked_add(*cursor, table_matrix_bytes(all[m]), cursor) ||
            !checked_align(*cursor, TABLE_ALIGN, cursor))
            return -EOVERFLOW;
    return 0;
}

static int table_build_lay_out(struct builder *b)
{
    const struct table_spec *s = b->spec;
    size_t matrices = 0, golden = 0, end = sizeof(struct table_header);
    int r;

    b->entries = calloc(b->n_sides, sizeof(*b->entries));
    b->codecs = calloc(b->n_sides, sizeof(*b->codecs));
    if (!b->entries || !b->codecs)
        return fail(b->e, -ENOMEM, "out of memory for the table");

    for (uint32_t i = 0; i < b->n_sides; i++) {
        r = table_build_lay_out_codec(b, i);
        if (r < 0)
            return r;

        golden +=
            TABLE_GOLDEN_TOKENS * (b->entries[i].r + (b->entries[i].r + s->geometry->d) * sizeof(float));
    }

    for (uint32_t i = 0; i < b->n_sides; i++) {
        r = table_build_lay_out_matrices(b, i, &matrices);
        if (r < 0)
            return r;
    }

    b->sections[SECTION_FREQ].bytes = s->geometry->n_rot / 2 * sizeof(double);
    b->version = TABLE_VERSION_SCALAR;
    for (unsigned i = 0; i < 2 * TABLE_BITS_MAX; i++)
        if (s->levels[i / TABLE_BITS_MAX][i % TABLE_BITS_MAX + 1].state_bits > 0)
            b->version = TABLE_VERSION;
    for (uint32_t i = 0; i < b->n_sides; i++)
        if (b->entries[i].fast_planes > 0)
            b->version = TABLE_VERSION;
    for (unsigned i = 0; i < 2 * TABLE_BITS_MAX; i++) {
        unsigned bits = i % TABLE_BITS_MAX + 1;

        b->sections[SECTION_LEVELS].bytes +=
            table_levels_bytes(b->version, s->levels[i / TABLE_BITS_MAX][bits].state_bits, bits);
    }
    b->sections[SECTION_CODECS].bytes = b->n_sides * sizeof(*b->entries);
    b->sections[SECTION_PROVENANCE].bytes = strlen(s->provenance) + 1;
    b->sections[SECTION_MATRICES].bytes = matrices;
    b->sections[SECTION_GOLDEN].bytes = golden;
    for (unsigned i = 0; i < SECTION_COUNT; i++) {
        b->sections[i].off = end;
        if (!checked_add(end, b->sections[i].bytes, &end) || !checked_align(end, TABLE_ALIGN, &end))
            return -EOVERFLOW;
    }

    if (end > TABLE_FILE_BYTES_MAX - DIGEST_BYTES)
        return fail(b->e, -EINVAL, "the table would have more than %zu bytes", TABLE_FILE_BYTES_MAX);

    b->n_bytes = end + DIGEST_BYTES;
    return 0;
}

/* ---- filling ---- */

static uint8_t *table_build_section(const struct builder *b, enum table_section s)
{
    return b->bytes + b->sections[s].off;
}

static void table_build_fill_header(struct builder *b)
{
    const struct geometry *g = b->spec->geometry;
    struct table_header h = {
        .version = b->version,
        .v_from = (uint32_t) b->spec->v_from,
        .n_bytes = b->n_bytes,
        .n_sink = b->spec->n_sink,
        .n_golden = TABLE_GOLDEN_TOKENS,
        .n_layers = g->n_layers,
        .n_heads = g->n_heads,
        .n_kv_heads = g->n_kv_heads,
        .d = g->d,
        .n_rot = g->n_rot,
        .attn_scale = g->attn_scale,
    };

    memcpy(h.magic, TABLE_MAGIC, sizeof(h.magic));
    memcpy(h.model_digest, b->spec->model_digest, DIGEST_BYTES);
    memcpy(h.sections, b->sections, sizeof(h.sections));
    memcpy(b->bytes, &h, sizeof(h));
    memcpy(table_build_section(b, SECTION_FREQ), g->freq, b->sections[SECTION_FREQ].bytes);
    memcpy(table_build_section(b, SECTION_CODECS), b->entries, b->sections[SECTION_CODECS].bytes);
    memcpy(table_build_section(b, SECTION_PROVENANCE), b->spec->provenance,
           b->sections[SECTION_PROVENANCE].bytes);
}

static void table_build_put_width(uint32_t version, const struct levels *l, unsigned bits, uint8_t *p)
{
    struct table_levels_head h = {.state_bits = l->state_bits};
    size_t n = (size_t) 1 << bits;

    if (l->state_bits > 0) {
        h.step = l->step;
        h.normal_product = l->normal_product;
        h.normal_square = l->normal_square;
    }
    if (version != TABLE_VERSION_SCALAR) {
        memcpy(p, &h, sizeof(h));
        p += sizeof(h);
    }
    if (l->state_bits > 0) {
        for (size_t s = 0; s < (size_t) 1 << l->state_bits; s++)
            p[s] = (uint8_t) (int8_t) l->value[s];
        return;
    }
    memcpy(p, &l->step, sizeof(l->step));
    memcpy(p + sizeof(float), l->value, n * sizeof(float));
    memcpy(p + (1 + n) * sizeof(float), l->threshold, (n - 1) * sizeof(float));
}

static void table_build_fill_levels(struct builder *b)
{
    uint8_t *p = table_build_section(b, SECTION_LEVELS);

    for (unsigned side = 0; side < 2; side++)
        for (unsigned bits = 1; bits <= TABLE_BITS_MAX; bits++) {
            const struct levels *l = &b->spec->levels[side][bits];

            table_build_put_width(b->version, l, bits, p);
            p += table_levels_bytes(b->version, l->state_bits, bits);
        }
}

/* Copies columns [d, n] of @from (row stride n_from, first column c_from) times @scale to columns of @to. */
static void table_build_put_columns(float *to, size_t n_to, size_t c_to, const double *from, size_t n_from,
                                    size_t c_from, size_t n, uint32_t d, double scale)
{
    for (uint32_t i = 0; i < d; i++)
        for (size_t j = 0; j < n; j++)
            to[i * n_to + c_to + j] = (float) (from[i * n_from + c_from + j] * scale);
}

/* The matrices of a codec inside the section, to be filled. */
struct matrices {
    float *enc_mean, *enc, *enc_k, *mean, *dec;
};

static struct matrices table_build_matrices_of(const struct builder *b, uint32_t i)
{
    const struct codec *c = &b->codecs[i];

    return (struct matrices){(float *) c->enc_mean, (float *) c->enc, (float *) c->enc_k, (float *) c->mean,
                             (float *) c->dec};
}

/* Bands in stored order: rows of enc; columns of dec after those of P, steps folded in. */
static void table_build_fill_bands(const struct builder *b, uint32_t i, struct matrices m)
{
    const struct codec_spec *c = &b->spec->codecs[i];
    uint32_t order[TABLE_HALF_TILES_MAX], d = b->spec->geometry->d, stored = table_band_order(c, order);

    for (uint32_t k = 0; k < stored; k++) {
        const struct band_spec *band = &c->bands[order[k]];

        for (size_t j = 0; j < (size_t) band->n_coords * d; j++)
            m.enc[(size_t) 8 * k * d + j] = (float) band->enc[j];
        table_build_put_columns(m.dec, b->codecs[i].r_in, b->codecs[i].n_pred + 8 * k, band->dec,
                                band->n_coords, 0, band->n_coords, d,
                                (double) b->spec->levels[i % 2][band->bits].step);
    }
}

/* The coordinates in P, of all heads that V of head-side @i is predicted from. */
static size_t table_build_predicting_coords(const struct builder *b, uint32_t i)
{
    struct head_run run = table_build_predictors(b, i);
    size_t n = 0;

    for (uint32_t h = 0; h < run.n; h++) {
        const struct codec_spec *k = &b->spec->codecs[run.first + 2 * h];

        for (uint32_t band = 0; band < k->n_bands; band++)
            n += k->bands[band].bits > 0 ? k->bands[band].n_coords : 0;
    }
    return n;
}

/* Columns of @from [rows, coords] from K's z to columns of @to [rows, cols] from K's codes: K's steps folded
 * in, zero columns where K's bands are padded. */
static void table_build_fill_prediction(const struct builder *b, uint32_t i, const double *from,
                                        uint32_t rows, float *to, size_t cols)
{
    struct head_run run = table_build_predictors(b, i);
    size_t n = table_build_predicting_coords(b, i), coord = 0, col = 0;

    for (uint32_t h = 0; h < run.n; h++) {
        const struct codec_spec *k = &b->spec->codecs[run.first + 2 * h];
        uint32_t order[TABLE_HALF_TILES_MAX], stored = table_band_order(k, order);

        for (uint32_t j = 0; j < stored; j++) {
            const struct band_spec *band = &k->bands[order[j]];

            table_build_put_columns(to, cols, col + 8 * j, from, n, coord, band->n_coords, rows,
                                    (double) b->spec->levels[SIDE_K][band->bits].step);
            coord += band->n_coords;
        }

        col += b->entries[run.first + 2 * h].r;
    }
}

/* enc_k = enc P, in binary64 from the spec's own matrices. */
static int table_build_fill_encoder_prediction(const struct builder *b, uint32_t i, struct matrices m)
{
    const struct codec_spec *c = &b->spec->codecs[i];
    const double *P = c->enc_predict ? c->enc_predict : c->predict;
    uint32_t order[TABLE_HALF_TILES_MAX], d = b->spec->geometry->d, stored = table_band_order(c, order);
    size_t n = table_build_predicting_coords(b, i);
    _cleanup_(freep) double *product = calloc((size_t) 8 * n + 1, sizeof(*product));

    if (!product)
        return fail(b->e, -ENOMEM, "out of memory for the table");

    for (uint32_t k = 0; k < stored; k++) {
        const struct band_spec *band = &c->bands[order[k]];

        memset(product, 0, 8 * n * sizeof(*product));
        for (uint32_t row = 0; row < band->n_coords; row++)
            for (uint32_t x = 0; x < d; x++)
                for (size_t j = 0; j < n; j++)
                    product[row * n + j] += band->enc[(size_t) row * d + x] * P[x * n + j];
        table_build_fill_prediction(b, i, product, 8, m.enc_k + (size_t) 8 * k * b->codecs[i].n_pred,
                                    b->codecs[i].n_pred);
    }

    return 0;
}

/* @p: NULL if a matrix has no numbers */
static bool table_build_all_finite(const float *p, size_t n)
{
    for (size_t i = 0; p && i < n; i++)
        if (!isfinite(p[i]))
            return false;
    return true;
}

static bool table_build_codec_finite(const struct codec *c, uint32_t d)
{
    return table_build_all_finite(c->mean, d) && table_build_all_finite(c->enc_mean, d) &&
           table_build_all_finite(c->enc, (size_t) c->r * d) &&
           table_build_all_finite(c->enc_k, (size_t) c->r * c->n_pred) &&
           table_build_all_finite(c->dec, (size_t) c->r_in * d);
}

static int table_build_fill_codec(struct builder *b, uint32_t i)
{
    const struct codec_spec *c = &b->spec->codecs[i];
    uint32_t d = b->spec->geometry->d;
    struct matrices m;
    int r = 0;

    table_codec_view(&b->entries[i], d, MATRICES_SINGLE, table_build_section(b, SECTION_MATRICES), NULL,
                     &b->codecs[i]);
    m = table_build_matrices_of(b, i);
    for (uint32_t j = 0; j < d; j++) {
        m.mean[j] = (float) c->mean[j];
        m.enc_mean[j] = (float) (c->enc_mean ? c->enc_mean : c->mean)[j];
    }

    table_build_fill_bands(b, i, m);
    if (c->predict)
        table_build_fill_prediction(b, i, c->predict, d, m.dec, b->codecs[i].r_in);
    if (c->predict && m.enc_k)
        r = table_build_fill_encoder_prediction(b, i, m);
    if (r < 0)
        return r;

    return table_build_codec_finite(&b->codecs[i], d)
               ? 0
               : table_build_bad_codec(b, i, "a matrix is not finite in binary32");
}

/* ---- golden vectors ---- */

/* Drawn by splitmix64 from a counter that starts at 0: a table gets the same codes, or states of a trellis,
 * each time it is built. */
static void table_build_golden_codes(const struct table *t, enum side side, const struct codec *c,
                                     uint64_t *counter, uint8_t *ret)
{
    for (unsigned i = 0; i < c->r; i++) {
        unsigned n = levels_count(&t->levels[side][c->bits[i / 8]], c->bits[i / 8]);

        ret[i] = (uint8_t) (splitmix64_next(counter) >> 32 & (n - 1));
    }
}

/* Rounds sums to binary32. */
static void table_build_put_sums(const struct table_sums sums[2], uint32_t n_k, uint32_t n_v, float *out)
{
    for (uint32_t i = 0; i < n_k; i++)
        out[i] = (float) sums[SIDE_K].x[i];
    for (uint32_t i = 0; i < n_v; i++)
        out[n_k + i] = (float) sums[SIDE_V].x[i];
}

/* One token of one head; moves @p, which starts with its V codes. */
static int table_build_fill_golden_head(const struct builder *b, const struct table *t, uint32_t hs_k,
                                        const uint8_t *codes_k, uint8_t **p)
{
    uint32_t n_kv = t->geometry.n_kv_heads, layer = hs_k / 2 / n_kv, head = hs_k / 2 % n_kv,
             d = t->geometry.d;
    const struct codec *k = &b->codecs[hs_k], *v = &b->codecs[hs_k + 1];
    float *out = (float *) (void *) (*p + v->r);
    const float *const x[2] = {out, out + d};
    struct table_sums sums[2];

    table_decode_head(t, layer, head, codes_k, *p, sums);
    table_build_put_sums(sums, d, d, out);
    table_encode_head(t, layer, head, codes_k, x, sums);
    table_build_put_sums(sums, k->r, v->r, out + 2 * (size_t) d);
    if (!table_build_all_finite(out, 2 * (size_t) d + k->r + v->r))
        return table_build_bad_codec(b, hs_k, "golden vectors are not finite in binary32");

    *p += table_golden_head_bytes(k, v, d);
    return 0;
}

/* One token of layer @layer; moves @p. */
static int table_build_fill_golden_token(const struct builder *b, const struct table *t, uint32_t layer,
                                         uint64_t *counter, uint8_t **p)
{
    uint32_t n_kv = t->geometry.n_kv_heads, first = layer * n_kv * 2;
    const uint8_t *codes_k = *p;

    for (uint32_t hs = first; hs < first + 2 * n_kv; hs += 2) {
        table_build_golden_codes(t, SIDE_K, &b->codecs[hs], counter, *p);
        *p += b->codecs[hs].r;
    }

    for (uint32_t hs = first; hs < first + 2 * n_kv; hs += 2) {
        int r;

        table_build_golden_codes(t, SIDE_V, &b->codecs[hs + 1], counter, *p);
        r = table_build_fill_golden_head(b, t, hs, codes_k, p);
        if (r < 0)
            return r;
    }

    return 0;
}

static int table_build_fill_golden(struct builder *b)
{
    struct table t = {.geometry = *b->spec->geometry, .v_from = b->spec->v_from, .codecs = b->codecs};
    uint8_t *p = table_build_section(b, SECTION_GOLDEN);
    uint64_t counter = 0;

    memcpy(t.levels, b->spec->levels, sizeof(t.levels));
    memset(&t.levels[SIDE_K][0], 0, sizeof(t.levels[SIDE_K][0])); /* empty half-tiles decode to level 0 */
    memset(&t.levels[SIDE_V][0], 0, sizeof(t.levels[SIDE_V][0]));
    for (uint32_t layer = 0; layer < t.geometry.n_layers; layer++)
        for (unsigned token = 0; token < TABLE_GOLDEN_TOKENS; token++) {
            int r = table_build_fill_golden_token(b, &t, layer, &counter, &p);

            if (r < 0)
                return r;
        }
    return 0;
}

int table_build(const struct table_spec *s, void **ret_bytes, size_t *ret_n_bytes, struct errmsg *e)
{
    _cleanup_(table_build_builder_deinit) struct builder b = {.spec = s, .e = e};
    struct table *t = NULL;
    int r;

    if ((r = table_build_check_spec(&b)) < 0 || (r = table_build_lay_out(&b)) < 0)
        return r;

    b.bytes = calloc(1, b.n_bytes);
    if (!b.bytes)
        return fail(e, -ENOMEM, "out of memory: the table has %zu bytes", b.n_bytes);

    table_build_fill_header(&b);
    table_build_fill_levels(&b);
    for (uint32_t i = 0; i < b.n_sides; i++) {
        r = table_build_fill_codec(&b, i);
        if (r < 0)
            return r;
    }

    r = table_build_fill_golden(&b);
    if (r < 0)
        return r;

    (void) crypto_hash_sha256(b.bytes + b.n_bytes - DIGEST_BYTES, b.bytes, b.n_bytes - DIGEST_BYTES);

    r = table_parse(b.bytes, b.n_bytes, &t, e);
    if (r < 0) /* the only check that table_parse() adds is for control characters in the provenance */
        return r == -EBADMSG ? -EINVAL : r;

    (void) table_unref(t);
    *ret_bytes = take_ptr(b.bytes);
    *ret_n_bytes = b.n_bytes;
    return 0;
}
