/*
 * Writes a table with its matrices as binary16, from one with binary32: each row of enc, enc_k and dec is
 * divided by the power of two below its largest magnitude, and golden vectors are computed again. Tests alone
 * write such tables.
 */
#pragma once

#include <assert.h>
#include <math.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/table/table_format.h"
#include "base/half.h"

/* One matrix [rows, columns] at @p; moves past it. What it decodes to goes to @ret_rounded. */
static inline uint8_t *table_half_put(struct table_matrix m, const float *x, uint8_t *p, float *ret_rounded)
{
    float *scale = (float *) (void *) p;
    uint16_t *half = (uint16_t *) (void *) (scale + m.rows);

    if (table_matrix_bytes(m) == 0)
        return p;
    if (m.form == MATRICES_SINGLE) {
        memcpy(p, x, m.columns * sizeof(*x));
        memcpy(ret_rounded, x, m.columns * sizeof(*x));
    }
    for (size_t row = 0; row < m.rows && m.form == MATRICES_HALF; row++) {
        float largest = 0;

        for (size_t i = row * m.columns; i < (row + 1) * m.columns; i++)
            largest = fmaxf(largest, fabsf(x[i]));
        scale[row] = largest > 0 ? ldexpf(1, ilogbf(largest)) : 1;
        for (size_t i = row * m.columns; i < (row + 1) * m.columns; i++) {
            half[i] = f32_to_f16(x[i] / scale[row]);
            ret_rounded[i] = f16_to_f32(half[i]) * scale[row];
        }
    }
    return p + (table_matrix_bytes(m) + TABLE_ALIGN - 1) / TABLE_ALIGN * TABLE_ALIGN;
}

/* The levels with a head before each width, as version 3 has them. */
static inline size_t table_half_put_levels(const struct table *t, uint8_t *p)
{
    const uint8_t *from = table_section(t, SECTION_LEVELS);
    size_t n = 0;

    if (table_header(t)->version == TABLE_VERSION) {
        memcpy(p, from, table_header(t)->sections[SECTION_LEVELS].bytes);
        return table_header(t)->sections[SECTION_LEVELS].bytes;
    }
    for (unsigned i = 0; i < 2 * TABLE_BITS_MAX; i++) {
        size_t bytes = TABLE_LEVEL_FLOATS(i % TABLE_BITS_MAX + 1) * sizeof(float);

        memset(p + n, 0, sizeof(struct table_levels_head));
        memcpy(p + n + sizeof(struct table_levels_head), from, bytes);
        n += sizeof(struct table_levels_head) + bytes;
        from += bytes;
    }
    return n;
}

/* The codes of @t, with vectors and coordinates of the matrices of @rounded. */
static inline void table_half_put_golden(const struct table *t, const struct table *rounded, uint8_t *p)
{
    uint32_t n_kv = t->geometry.n_kv_heads, d = t->geometry.d;

    memcpy(p, table_section(t, SECTION_GOLDEN), table_header(t)->sections[SECTION_GOLDEN].bytes);
    for (uint32_t at = 0; at < t->geometry.n_layers * TABLE_GOLDEN_TOKENS; at++) {
        uint32_t layer = at / TABLE_GOLDEN_TOKENS;
        const uint8_t *codes_k = p;

        p += table_layer_codes(t, layer);
        for (uint32_t head = 0; head < n_kv; head++) {
            const struct codec *k = table_codec(t, layer, head, SIDE_K),
                               *v = table_codec(t, layer, head, SIDE_V);
            float *out = (float *) (void *) (p + v->r);
            const float *const x[2] = {out, out + d};
            struct table_sums sums[2];

            table_decode_head(rounded, layer, head, codes_k, p, sums);
            for (uint32_t i = 0; i < 2 * d; i++)
                out[i] = (float) sums[i / d].x[i % d];
            table_encode_head(rounded, layer, head, codes_k, x, sums);
            for (uint32_t i = 0; i < (uint32_t) k->r + v->r; i++)
                out[2 * d + i] = (float) (i < k->r ? sums[SIDE_K].x[i] : sums[SIDE_V].x[i - k->r]);
            p += table_golden_head_bytes(k, v, d);
        }
    }
}

/* @ret_bytes: malloc'ed */
static inline void table_half_write(const struct table *t, void **ret_bytes, size_t *ret_n)
{
    const struct table_header *from = table_header(t);
    uint32_t n = head_side_count(&t->geometry);
    size_t room = t->n_bytes + 2 * TABLE_BITS_MAX * sizeof(struct table_levels_head) + TABLE_ALIGN;
    uint8_t *bytes = calloc(1, room), *p;
    float *numbers = malloc(table_expanded_bytes(t->n_bytes, n));
    struct codec *codecs = malloc(n * sizeof(*codecs));
    struct table_header *h = (struct table_header *) (void *) bytes;
    struct table rounded = *t;
    struct table_codec_entry *entries = NULL;
    float *at = numbers;
    size_t end = sizeof(*h);

    assert(bytes && numbers && codecs);
    *h = *from;
    h->version = TABLE_VERSION;
    h->matrix_form = MATRICES_HALF;
    rounded.codecs = codecs;
    for (unsigned s = 0; s < SECTION_COUNT; s++) {
        h->sections[s].off = end;
        p = bytes + end;
        if (s == SECTION_LEVELS) {
            h->sections[s].bytes = table_half_put_levels(t, p);
        } else if (s == SECTION_GOLDEN) {
            table_half_put_golden(t, &rounded, p);
        } else if (s != SECTION_MATRICES) {
            memcpy(p, table_section(t, (enum table_section) s), from->sections[s].bytes);
            if (s == SECTION_CODECS)
                entries = (struct table_codec_entry *) (void *) p;
        }
        for (uint32_t i = 0; i < n && s == SECTION_MATRICES; i++) {
            const float *x[CODEC_MATRICES] = {t->codecs[i].enc_mean, t->codecs[i].enc, t->codecs[i].enc_k,
                                              t->codecs[i].mean, t->codecs[i].dec};
            float *to[CODEC_MATRICES];
            struct table_matrix all[CODEC_MATRICES];

            table_matrices(t->codecs[i].r, t->codecs[i].n_pred, t->geometry.d, MATRICES_HALF, all);
            entries[i].matrices_off = (size_t) (p - (bytes + end));
            for (unsigned m = 0; m < CODEC_MATRICES; m++) {
                to[m] = at;
                p = table_half_put(all[m], x[m], p, at);
                at += all[m].rows * all[m].columns;
            }
            codecs[i] = t->codecs[i];
            codecs[i].enc_mean = to[0];
            codecs[i].enc = to[1];
            codecs[i].enc_k = x[2] ? to[2] : NULL;
            codecs[i].mean = to[3];
            codecs[i].dec = to[4];
        }
        if (s == SECTION_MATRICES)
            h->sections[s].bytes = (size_t) (p - (bytes + end));
        end = (end + h->sections[s].bytes + TABLE_ALIGN - 1) / TABLE_ALIGN * TABLE_ALIGN;
    }
    h->n_bytes = end + DIGEST_BYTES;
    (void) crypto_hash_sha256(bytes + end, bytes, end);
    free(numbers);
    free(codecs);
    *ret_bytes = bytes;
    *ret_n = end + DIGEST_BYTES;
}
