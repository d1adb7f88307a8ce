/* Views of codecs, and encoding and decoding in plain C, for the reader and the
 * builder of tables. See table_format.h. */
#include <math.h>

#include "alloc/table/table_format.h"
#include "base/half.h"

/* @m at @p as binary32 at *@room, which moves to the next multiple of TABLE_ALIGN behind it. */
static const float *table_codec_expand(struct table_matrix m, const uint8_t *p, float **room)
{
    const float *scale = (const float *) (const void *) p, *first = *room;
    const uint16_t *half = (const uint16_t *) (const void *) (scale + m.rows);
    size_t n = m.rows * m.columns, step = TABLE_ALIGN / sizeof(float);

    for (size_t i = 0; i < n; i++)
        (*room)[i] = scale[i / m.columns] * f16_to_f32(half[i]);
    *room += (n + step - 1) / step * step;
    return first;
}

void table_codec_view(const struct table_codec_entry *entry, uint32_t d, enum table_matrix_form form,
                      const uint8_t *matrices, float **room, struct codec *ret)
{
    const float *at[CODEC_MATRICES] = {NULL};
    struct table_matrix all[CODEC_MATRICES];
    size_t off = entry->matrices_off;

    table_matrices(entry->r, entry->n_pred, d, form, all);
    for (unsigned i = 0; i < CODEC_MATRICES; i++) {
        size_t bytes = table_matrix_bytes(all[i]);

        if (bytes > 0 && all[i].form == MATRICES_SINGLE)
            at[i] = (const float *) (const void *) (matrices + off);
        else if (bytes > 0)
            at[i] = table_codec_expand(all[i], matrices + off, room);
        off = (off + bytes + TABLE_ALIGN - 1) / TABLE_ALIGN * TABLE_ALIGN;
    }

    *ret = (struct codec){
        .n_half = entry->n_half,
        .r = entry->r,
        .code_bits = entry->code_bits,
        .fast_planes = entry->fast_planes,
        .fast_halves = entry->fast_halves,
        .n_pred = entry->n_pred,
        .r_in = entry->n_pred + entry->r,
        .enc_mean = at[0],
        .enc = at[1],
        .enc_k = at[2],
        .mean = at[3],
        .dec = at[4],
    };
    for (unsigned i = 0; i < entry->n_half; i++)
        ret->bits[i] = entry->bits[i];
}

static double table_codec_level(const struct table *t, const struct codec *c, enum side side,
                                const uint8_t *codes, unsigned i)
{
    return (double) t->levels[side][c->bits[i / 8]].value[codes[i]];
}

static void table_codec_add(struct table_sums *s, uint32_t i, double term)
{
    s->x[i] += term;
    s->magnitude[i] += fabs(term);
}

/*
 * sums [rows] += sign m c, with c the levels of the K codes that V of @head is predicted from: the first
 * columns of m [rows, cols].
 */
static void table_codec_add_predictors(const struct table *t, uint32_t layer, uint32_t head,
                                       const uint8_t *codes_k, double sign, const float *m, uint32_t rows,
                                       size_t cols, struct table_sums *sums)
{
    struct head_run run = table_predictors(t, head);
    size_t col = 0;

    for (uint32_t h = 0; h < run.first + run.n; h++) {
        const struct codec *k = table_codec(t, layer, h, SIDE_K);

        for (unsigned j = 0; h >= run.first && j < k->r; j++, col++) {
            double c = sign * table_codec_level(t, k, SIDE_K, codes_k, j);

            for (uint32_t i = 0; i < rows; i++)
                table_codec_add(sums, i, (double) m[i * cols + col] * c);
        }

        codes_k += k->r;
    }
}

/* K codes of @head among those of its layer. */
static const uint8_t *table_codec_own_codes(const struct table *t, uint32_t layer, uint32_t head,
                                            const uint8_t *codes_k)
{
    for (uint32_t h = 0; h < head; h++)
        codes_k += table_codec(t, layer, h, SIDE_K)->r;
    return codes_k;
}

void table_decode_head(const struct table *t, uint32_t layer, uint32_t head, const uint8_t *codes_k,
                       const uint8_t *codes_v, struct table_sums ret[2])
{
    const uint8_t *const codes[2] = {table_codec_own_codes(t, layer, head, codes_k), codes_v};
    uint32_t d = t->geometry.d;

    for (unsigned side = SIDE_K; side <= SIDE_V; side++) {
        const struct codec *c = table_codec(t, layer, head, (enum side) side);

        ret[side] = (struct table_sums){0};
        for (uint32_t i = 0; i < d; i++)
            table_codec_add(&ret[side], i, (double) c->mean[i]);
        if (c->n_pred > 0)
            table_codec_add_predictors(t, layer, head, codes_k, 1, c->dec, d, c->r_in, &ret[side]);
        for (unsigned j = 0; j < c->r; j++) {
            double l = table_codec_level(t, c, (enum side) side, codes[side], j);

            for (uint32_t i = 0; i < d; i++)
                table_codec_add(&ret[side], i, (double) c->dec[(size_t) i * c->r_in + c->n_pred + j] * l);
        }
    }
}

void table_encode_head(const struct table *t, uint32_t layer, uint32_t head, const uint8_t *codes_k,
                       const float *const x[2], struct table_sums ret[2])
{
    uint32_t d = t->geometry.d;

    for (unsigned side = SIDE_K; side <= SIDE_V; side++) {
        const struct codec *c = table_codec(t, layer, head, (enum side) side);

        ret[side] = (struct table_sums){0};
        for (uint32_t i = 0; i < c->r; i++)
            for (uint32_t j = 0; j < d; j++)
                table_codec_add(&ret[side], i,
                                (double) c->enc[(size_t) i * d + j] *
                                    ((double) x[side][j] - (double) c->enc_mean[j]));
        if (c->enc_k)
            table_codec_add_predictors(t, layer, head, codes_k, -1, c->enc_k, c->r, c->n_pred, &ret[side]);
    }
}
