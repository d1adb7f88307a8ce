/*
 * Solved codecs to the bytes of a table: bands ordered and padded, steps folded, golden vectors decoded, all of it
 * sealed by a digest and parsed once before anybody gets it. Same inputs, same bytes.
 */
#include "alloc/table_build.h"

#include <errno.h>
#include <math.h>
#include <sodium.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/levels.h"
#include "alloc/table_format.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/errmsg.h"

uint32_t band_order(const struct codec_spec *c, uint32_t *ret_order)
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
    uint32_t n_sides;
    bool v_from_k;
    struct table_section_entry sections[SECTION_COUNT];
    size_t n_bytes;
    uint8_t *bytes;                    /* [n_bytes] */
    struct table_codec_entry *entries; /* [n_sides] */
    struct codec *codecs;              /* [n_sides] views into bytes */
};

static void builder_deinit(struct builder *b)
{
    free(b->bytes);
    free(b->entries);
    free(b->codecs);
}

static int bad_codec(const struct builder *b, uint32_t i, const char *what)
{
    uint32_t n_kv = b->spec->geometry->n_kv_heads;

    return fail(b->e, -EINVAL, "layer %u, head %u, side %c: %s", i / 2 / n_kv, i / 2 % n_kv, i % 2 ? 'V' : 'K', what);
}

/* ---- layout -------------------------------------------------------------------------------------------------- */

static int check_spec(struct builder *b)
{
    const struct table_spec *s = b->spec;
    int r;

    r = geometry_validate(s->geometry, b->e);
    if (r < 0)
        return r;
    if (s->n_sink > TABLE_SINKS_MAX)
        return fail(b->e, -EINVAL, "%u sinks asked for, at most %u are possible", s->n_sink, TABLE_SINKS_MAX);
    if (strlen(s->provenance) >= TABLE_PROVENANCE_MAX)
        return fail(b->e, -EINVAL, "the provenance has more than %zu bytes", TABLE_PROVENANCE_MAX - 1);
    for (unsigned side = 0; side < 2; side++)
        for (unsigned bits = 1; bits <= TABLE_BITS_MAX; bits++)
            if (!levels_valid(&s->levels[side][bits], bits))
                return fail(b->e, -EINVAL, "the %u-bit levels of side %c are not in stored form", bits,
                            side ? 'V' : 'K');
    b->n_sides = head_side_count(s->geometry);
    for (uint32_t i = 1; i < b->n_sides; i += 2)
        b->v_from_k |= s->codecs[i].predict != NULL;
    return 0;
}

static int lay_out_codec(struct builder *b, uint32_t i, size_t *cursor)
{
    const struct codec_spec *c = &b->spec->codecs[i];
    struct table_codec_entry *en = &b->entries[i];
    uint32_t order[TABLE_HALF_TILES_MAX], d = b->spec->geometry->d, stored;
    size_t floats[3], *offs[3] = { &en->mean_off, &en->enc_off, &en->dec_off };

    if (c->n_bands > TABLE_HALF_TILES_MAX)
        return bad_codec(b, i, "more bands than half-tiles");
    for (uint32_t k = 0; k < c->n_bands; k++)
        if (c->bands[k].bits > TABLE_BITS_MAX || c->bands[k].n_coords < 1 || c->bands[k].n_coords > 8)
            return bad_codec(b, i, "a band has an impossible width or size");
    stored = band_order(c, order);
    if (stored > table_half_tiles_max(d))
        return bad_codec(b, i, "more bands with bits than its dimension has half-tiles");
    en->n_half = (uint16_t) (stored + stored % 2);
    en->r = (uint16_t) (8 * en->n_half);
    en->r_in = (uint16_t) (en->r + (i % 2 && b->v_from_k ? b->entries[i - 1].r : 0));
    for (uint32_t k = 0; k < stored; k++) {
        en->bits[k] = c->bands[order[k]].bits;
        en->code_bits = (uint16_t) (en->code_bits + 8 * en->bits[k]);
    }

    floats[0] = d;
    floats[1] = (size_t) en->r * d;
    floats[2] = (size_t) en->r_in * d;
    for (unsigned m = 0; m < 3; m++) {
        *offs[m] = *cursor;
        if (!checked_add(*cursor, floats[m] * sizeof(float), cursor) || !checked_align(*cursor, TABLE_ALIGN, cursor))
            return -EOVERFLOW;
    }
    return 0;
}

static int lay_out(struct builder *b)
{
    const struct table_spec *s = b->spec;
    size_t matrices = 0, golden = 0, end = sizeof(struct table_header);
    int r;

    b->entries = calloc(b->n_sides, sizeof(*b->entries));
    b->codecs = calloc(b->n_sides, sizeof(*b->codecs));
    if (!b->entries || !b->codecs)
        return -ENOMEM;
    for (uint32_t i = 0; i < b->n_sides; i++) {
        r = lay_out_codec(b, i, &matrices);
        if (r < 0)
            return r;
        golden += TABLE_GOLDEN_TOKENS * (b->entries[i].r + s->geometry->d * sizeof(float));
    }
    b->sections[SECTION_FREQ].bytes = s->geometry->n_rot / 2 * sizeof(double);
    b->sections[SECTION_LEVELS].bytes = TABLE_LEVELS_BYTES;
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

/* ---- filling ------------------------------------------------------------------------------------------------- */

static uint8_t *section(const struct builder *b, enum table_section s)
{
    return b->bytes + b->sections[s].off;
}

static void fill_header(struct builder *b)
{
    const struct geometry *g = b->spec->geometry;
    struct table_header h = {
        .version = TABLE_VERSION,
        .flags = b->v_from_k ? TABLE_FLAG_V_FROM_K : 0,
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
    memcpy(section(b, SECTION_FREQ), g->freq, b->sections[SECTION_FREQ].bytes);
    memcpy(section(b, SECTION_CODECS), b->entries, b->sections[SECTION_CODECS].bytes);
    memcpy(section(b, SECTION_PROVENANCE), b->spec->provenance, b->sections[SECTION_PROVENANCE].bytes);
}

static void fill_levels(struct builder *b)
{
    float *p = (float *) (void *) section(b, SECTION_LEVELS);

    for (unsigned side = 0; side < 2; side++)
        for (unsigned bits = 1; bits <= TABLE_BITS_MAX; bits++) {
            const struct levels *l = &b->spec->levels[side][bits];
            size_t n = (size_t) 1 << bits;

            p[0] = l->step;
            memcpy(p + 1, l->value, n * sizeof(*p));
            memcpy(p + 1 + n, l->threshold, (n - 1) * sizeof(*p));
            p += TABLE_LEVEL_FLOATS(bits);
        }
}

/* Copies columns [d, n] of @from (row stride n_from, first column c_from) times @scale to columns of @to. */
static void put_columns(float *to, size_t n_to, size_t c_to, const double *from, size_t n_from, size_t c_from, size_t n,
                        uint32_t d, double scale)
{
    for (uint32_t i = 0; i < d; i++)
        for (size_t j = 0; j < n; j++)
            to[i * n_to + c_to + j] = (float) (from[i * n_from + c_from + j] * scale);
}

/* Bands in stored order: rows of enc; columns of dec after @skip columns of P, steps folded in. */
static void fill_bands(const struct builder *b, uint32_t i, size_t skip, float *enc, float *dec)
{
    const struct codec_spec *c = &b->spec->codecs[i];
    uint32_t order[TABLE_HALF_TILES_MAX], d = b->spec->geometry->d, stored = band_order(c, order);

    for (uint32_t k = 0; k < stored; k++) {
        const struct band_spec *band = &c->bands[order[k]];

        for (size_t j = 0; j < (size_t) band->n_coords * d; j++)
            enc[(size_t) 8 * k * d + j] = (float) band->enc[j];
        put_columns(dec, b->entries[i].r_in, skip + 8 * k, band->dec, band->n_coords, 0, band->n_coords, d,
                    (double) b->spec->levels[i % 2][band->bits].step);
    }
}

/* P from K's z to K's codes: K's steps folded in, zero columns where K's bands are padded. */
static void fill_prediction(const struct builder *b, uint32_t i, float *dec)
{
    const struct codec_spec *k = &b->spec->codecs[i - 1];
    const double *predict = b->spec->codecs[i].predict;
    uint32_t order[TABLE_HALF_TILES_MAX], d = b->spec->geometry->d, stored = band_order(k, order);
    size_t n = 0, from = 0;

    for (uint32_t j = 0; j < stored; j++)
        n += k->bands[order[j]].n_coords;
    for (uint32_t j = 0; j < stored; j++) {
        const struct band_spec *band = &k->bands[order[j]];

        put_columns(dec, b->entries[i].r_in, 8 * j, predict, n, from, band->n_coords, d,
                    (double) b->spec->levels[SIDE_K][band->bits].step);
        from += band->n_coords;
    }
}

static bool all_finite(const float *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!isfinite(p[i]))
            return false;
    return true;
}

static int fill_codec(struct builder *b, uint32_t i)
{
    const struct codec_spec *c = &b->spec->codecs[i];
    const struct table_codec_entry *en = &b->entries[i];
    uint8_t *matrices = section(b, SECTION_MATRICES);
    float *mean = (float *) (void *) (matrices + en->mean_off), *enc = (float *) (void *) (matrices + en->enc_off);
    float *dec = (float *) (void *) (matrices + en->dec_off);
    uint32_t d = b->spec->geometry->d;

    for (uint32_t j = 0; j < d; j++)
        mean[j] = (float) c->mean[j];
    fill_bands(b, i, (size_t) en->r_in - en->r, enc, dec);
    if (c->predict && i % 2 == SIDE_V)
        fill_prediction(b, i, dec);
    if (!all_finite(mean, d) || !all_finite(enc, (size_t) en->r * d) || !all_finite(dec, (size_t) en->r_in * d))
        return bad_codec(b, i, "a matrix is not finite in binary32");
    table_codec_view(en, matrices, &b->codecs[i]);
    return 0;
}

/* ---- golden vectors ------------------------------------------------------------------------------------------ */

/* splitmix64 of a counter: the same codes for the same table, whoever builds it */
static uint64_t golden_random(uint64_t *counter)
{
    uint64_t z = (*counter += 0x9e3779b97f4a7c15u);

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static void golden_codes(const struct codec *c, uint64_t *counter, uint8_t *ret)
{
    for (unsigned i = 0; i < c->r; i++)
        ret[i] = (uint8_t) (golden_random(counter) >> 32 & ((1u << c->bits[i / 8]) - 1));
}

static int fill_golden(struct builder *b)
{
    const struct geometry *g = b->spec->geometry;
    struct table t = { .geometry = *g, .v_from_k = b->v_from_k, .codecs = b->codecs };
    uint8_t *p = section(b, SECTION_GOLDEN);
    double x[2][GEOMETRY_DIM_MAX], magnitude[2][GEOMETRY_DIM_MAX];
    uint64_t counter = 0;

    memcpy(t.levels, b->spec->levels, sizeof(t.levels));
    memset(&t.levels[SIDE_K][0], 0, sizeof(t.levels[SIDE_K][0])); /* empty half-tiles: level 0 */
    memset(&t.levels[SIDE_V][0], 0, sizeof(t.levels[SIDE_V][0]));
    for (uint32_t i = 0; i < b->n_sides; i += 2)
        for (unsigned token = 0; token < TABLE_GOLDEN_TOKENS; token++) {
            const uint8_t *const codes[2] = { p, p + b->codecs[i].r };
            float *out = (float *) (void *) (p + b->codecs[i].r + b->codecs[i + 1].r);

            golden_codes(&b->codecs[i], &counter, p);
            golden_codes(&b->codecs[i + 1], &counter, p + b->codecs[i].r);
            table_decode_head(&t, i / 2 / g->n_kv_heads, i / 2 % g->n_kv_heads, codes, x, magnitude);
            for (uint32_t j = 0; j < g->d; j++) {
                out[j] = (float) x[SIDE_K][j];
                out[g->d + j] = (float) x[SIDE_V][j];
            }
            if (!all_finite(out, 2 * (size_t) g->d))
                return bad_codec(b, i, "decoded vectors are not finite in binary32");
            p = (uint8_t *) (out + 2 * (size_t) g->d);
        }
    return 0;
}

int table_build(const struct table_spec *s, void **ret_bytes, size_t *ret_n_bytes, struct errmsg *e)
{
    _cleanup_(builder_deinit) struct builder b = { .spec = s, .e = e };
    struct table *t = NULL;
    int r;

    if ((r = check_spec(&b)) < 0 || (r = lay_out(&b)) < 0)
        return r;
    b.bytes = calloc(1, b.n_bytes);
    if (!b.bytes)
        return fail(e, -ENOMEM, "out of memory: the table has %zu bytes", b.n_bytes);
    fill_header(&b);
    fill_levels(&b);
    for (uint32_t i = 0; i < b.n_sides; i++) {
        r = fill_codec(&b, i);
        if (r < 0)
            return r;
    }
    r = fill_golden(&b);
    if (r < 0)
        return r;
    (void) crypto_hash_sha256(b.bytes + b.n_bytes - DIGEST_BYTES, b.bytes, b.n_bytes - DIGEST_BYTES);

    r = table_parse(b.bytes, b.n_bytes, &t, e);
    if (r < 0) /* provenance with control characters is the one thing not seen before */
        return r == -EBADMSG ? -EINVAL : r;
    (void) table_unref(t);
    *ret_bytes = take_ptr(b.bytes);
    *ret_n_bytes = b.n_bytes;
    return 0;
}
