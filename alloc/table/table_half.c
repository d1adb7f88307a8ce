/* See table_half.h. */
#include "alloc/table/table_half.h"

#include <errno.h>
#include <math.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/table/table.h"
#include "alloc/table/table_format.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "base/half.h"

/* The power of two below the largest magnitude of a row: quotients are below 2, and binary16 has all of its
 * small numbers for the others. Never subnormal, which a reader refuses. */
static float table_half_scale(float largest)
{
    int exponent = largest > 0 ? ilogbf(largest) : 0;

    return ldexpf(1, exponent < -126 ? -126 : exponent);
}

void table_half_round(double *row, size_t n)
{
    float largest = 0, scale;

    for (size_t i = 0; i < n; i++)
        largest = fmaxf(largest, fabsf((float) row[i]));
    scale = table_half_scale(largest);
    for (size_t i = 0; i < n; i++)
        row[i] = (double) (f16_to_f32(f32_to_f16((float) row[i] / scale)) * scale);
}

bool table_has_half_matrices(const struct table *t)
{
    return table_matrix_form_of(t) == MATRICES_HALF;
}

static size_t table_half_align(size_t n)
{
    return (n + TABLE_ALIGN - 1) / TABLE_ALIGN * TABLE_ALIGN;
}

/* One matrix [rows, columns] at @p. */
static void table_half_put(struct table_matrix m, const float *x, uint8_t *p)
{
    float *scale = (float *) (void *) p;
    uint16_t *half = (uint16_t *) (void *) (scale + m.rows);

    if (m.form == MATRICES_SINGLE) {
        memcpy(p, x, table_matrix_bytes(m));
        return;
    }
    for (size_t row = 0; row < m.rows; row++) {
        float largest = 0;

        for (size_t i = row * m.columns; i < (row + 1) * m.columns; i++)
            largest = fmaxf(largest, fabsf(x[i]));
        scale[row] = table_half_scale(largest);
        for (size_t i = row * m.columns; i < (row + 1) * m.columns; i++)
            half[i] = f32_to_f16(x[i] / scale[row]);
    }
}

/* Both tables, and the views of the new one. */
struct table_half {
    const struct table *from;
    uint32_t n; /* head-sides */
    size_t n_bytes;
    uint8_t *bytes; /* [n_bytes] */
    float *numbers; /* matrices as binary32 */
    struct codec *codecs;
};

static void table_half_deinit(struct table_half *h)
{
    free(h->bytes);
    free(h->numbers);
    free(h->codecs);
}

static struct table_header *table_half_header(const struct table_half *h)
{
    return (struct table_header *) (void *) h->bytes;
}

static uint8_t *table_half_section(const struct table_half *h, enum table_section s)
{
    return h->bytes + table_half_header(h)->sections[s].off;
}

/* Bytes of the matrices of a codec. */
static size_t table_half_codec_bytes(const struct table_half *h, uint32_t hs)
{
    const struct codec *c = &h->from->codecs[hs];
    struct table_matrix all[CODEC_MATRICES];
    size_t n = 0;

    table_matrices(c->r, c->n_pred, h->from->geometry.d, MATRICES_HALF, all);
    for (unsigned i = 0; i < CODEC_MATRICES; i++)
        n += table_half_align(table_matrix_bytes(all[i]));
    return n;
}

/* Levels have a head before each width in version 3. */
static size_t table_half_levels_bytes(const struct table *t)
{
    size_t n = table_header(t)->sections[SECTION_LEVELS].bytes;

    return table_header(t)->version == TABLE_VERSION
               ? n
               : n + 2 * TABLE_BITS_MAX * sizeof(struct table_levels_head);
}

static int table_half_lay_out(struct table_half *h, struct errmsg *e)
{
    struct table_header header = *table_header(h->from);
    size_t end = sizeof(header);

    header.version = TABLE_VERSION;
    header.matrix_form = MATRICES_HALF;
    header.sections[SECTION_LEVELS].bytes = table_half_levels_bytes(h->from);
    header.sections[SECTION_MATRICES].bytes = 0;
    for (uint32_t i = 0; i < h->n; i++)
        header.sections[SECTION_MATRICES].bytes += table_half_codec_bytes(h, i);
    for (unsigned s = 0; s < SECTION_COUNT; s++) {
        header.sections[s].off = end;
        end = table_half_align(end + header.sections[s].bytes);
    }

    header.n_bytes = h->n_bytes = end + DIGEST_BYTES;
    if (h->n_bytes > TABLE_FILE_BYTES_MAX) /* of a small table whose rows are short */
        return fail(e, -EINVAL, "the table would have more than %zu bytes", TABLE_FILE_BYTES_MAX);

    h->bytes = calloc(1, h->n_bytes);
    h->codecs = calloc(h->n, sizeof(*h->codecs));
    h->numbers = aligned_alloc(
        TABLE_ALIGN, table_half_align(table_expanded_bytes(header.sections[SECTION_MATRICES].bytes, h->n)));
    if (!h->bytes || !h->codecs || !h->numbers)
        return fail(e, -ENOMEM, "out of memory: the table has %zu bytes", h->n_bytes);

    memcpy(h->bytes, &header, sizeof(header));
    return 0;
}

/* The sections that stay, and the levels. */
static void table_half_copy(const struct table_half *h)
{
    static const enum table_section same[] = {SECTION_FREQ, SECTION_CODECS, SECTION_PROVENANCE,
                                              SECTION_GOLDEN};
    const uint8_t *from = table_section(h->from, SECTION_LEVELS);
    uint8_t *to = table_half_section(h, SECTION_LEVELS);

    for (size_t i = 0; i < sizeof(same) / sizeof(same[0]); i++)
        memcpy(table_half_section(h, same[i]), table_section(h->from, same[i]),
               table_half_header(h)->sections[same[i]].bytes);
    if (table_header(h->from)->version == TABLE_VERSION) {
        memcpy(to, from, table_half_header(h)->sections[SECTION_LEVELS].bytes);
        return;
    }
    for (unsigned i = 0; i < 2 * TABLE_BITS_MAX; i++) { /* a head of zeros: scalar levels */
        size_t n = TABLE_LEVEL_FLOATS(i % TABLE_BITS_MAX + 1) * sizeof(float);

        memcpy(to + sizeof(struct table_levels_head), from, n);
        to += sizeof(struct table_levels_head) + n;
        from += n;
    }
}

static void table_half_put_matrices(const struct table_half *h)
{
    struct table_codec_entry *entries =
        (struct table_codec_entry *) (void *) table_half_section(h, SECTION_CODECS);
    uint8_t *matrices = table_half_section(h, SECTION_MATRICES);
    uint32_t d = h->from->geometry.d;
    float *room = h->numbers;
    size_t at = 0;

    for (uint32_t i = 0; i < h->n; i++) {
        const struct codec *c = &h->from->codecs[i];
        const float *x[CODEC_MATRICES] = {c->enc_mean, c->enc, c->enc_k, c->mean, c->dec};
        struct table_matrix all[CODEC_MATRICES];

        entries[i].matrices_off = at;
        table_matrices(c->r, c->n_pred, d, MATRICES_HALF, all);
        for (unsigned m = 0; m < CODEC_MATRICES; m++) {
            if (table_matrix_bytes(all[m]) > 0)
                table_half_put(all[m], x[m], matrices + at);
            at += table_half_align(table_matrix_bytes(all[m]));
        }
        table_codec_view(&entries[i], d, MATRICES_HALF, matrices, &room, &h->codecs[i]);
    }
}

/* Golden vectors of the codes that are there, by the new matrices. */
static void table_half_put_golden(const struct table_half *h)
{
    uint32_t n_kv = h->from->geometry.n_kv_heads, d = h->from->geometry.d;
    uint8_t *p = table_half_section(h, SECTION_GOLDEN);
    struct table t = *h->from;

    t.codecs = h->codecs;
    for (uint32_t at = 0; at < t.geometry.n_layers * TABLE_GOLDEN_TOKENS; at++) {
        uint32_t layer = at / TABLE_GOLDEN_TOKENS;
        const uint8_t *codes_k = p;

        p += table_layer_codes(&t, layer);
        for (uint32_t head = 0; head < n_kv; head++) {
            const struct codec *k = table_codec(&t, layer, head, SIDE_K),
                               *v = table_codec(&t, layer, head, SIDE_V);
            float *out = (float *) (void *) (p + v->r);
            const float *const x[2] = {out, out + d};
            struct table_sums sums[2];

            table_decode_head(&t, layer, head, codes_k, p, sums);
            for (uint32_t i = 0; i < 2 * d; i++)
                out[i] = (float) sums[i / d].x[i % d];
            table_encode_head(&t, layer, head, codes_k, x, sums);
            for (uint32_t i = 0; i < (uint32_t) k->r + v->r; i++)
                out[2 * d + i] = (float) (i < k->r ? sums[SIDE_K].x[i] : sums[SIDE_V].x[i - k->r]);
            p += table_golden_head_bytes(k, v, d);
        }
    }
}

int table_half_convert(const void *bytes, size_t n_bytes, void **ret_bytes, size_t *ret_n_bytes,
                       struct errmsg *e)
{
    _cleanup_(table_unrefp) struct table *from = NULL, *parsed = NULL;
    _cleanup_(table_half_deinit) struct table_half h = {.n = 0};
    int r = table_parse(bytes, n_bytes, &from, e);

    if (r < 0)
        return r;
    if (table_matrix_form_of(from) == MATRICES_HALF)
        return fail(e, -EINVAL, "the table's matrices are binary16 already");

    h.from = from;
    h.n = head_side_count(&from->geometry);
    r = table_half_lay_out(&h, e);
    if (r < 0)
        return r;

    table_half_copy(&h);
    table_half_put_matrices(&h);
    table_half_put_golden(&h);
    (void) crypto_hash_sha256(h.bytes + h.n_bytes - DIGEST_BYTES, h.bytes, h.n_bytes - DIGEST_BYTES);
    r = table_parse(h.bytes, h.n_bytes, &parsed, e);
    if (r < 0)
        return r == -EBADMSG ? -EINVAL : r;

    *ret_bytes = take_ptr(h.bytes);
    *ret_n_bytes = h.n_bytes;
    return 0;
}
