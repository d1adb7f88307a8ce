/* What the reader and the builder of tables share: views of codecs, and decoding in plain C. See table_format.h. */
#include <math.h>

#include "alloc/table_format.h"

void table_codec_view(const struct table_codec_entry *entry, const uint8_t *matrices, struct codec *ret)
{
    *ret = (struct codec) {
        .n_half = entry->n_half,
        .r = entry->r,
        .r_in = entry->r_in,
        .code_bits = entry->code_bits,
        .mean = (const float *) (const void *) (matrices + entry->mean_off),
        .enc = entry->r > 0 ? (const float *) (const void *) (matrices + entry->enc_off) : NULL,
        .dec = entry->r_in > 0 ? (const float *) (const void *) (matrices + entry->dec_off) : NULL,
    };
    for (unsigned i = 0; i < entry->n_half; i++)
        ret->bits[i] = entry->bits[i];
}

/* Levels of the codes of one side; returns their number. */
static unsigned look_up(const struct table *t, const struct codec *c, enum side side, const uint8_t *codes, double *ret)
{
    for (unsigned i = 0; i < c->r; i++)
        ret[i] = (double) t->levels[side][c->bits[i / 8]].value[codes[i]];
    return c->r;
}

void table_decode_head(const struct table *t, uint32_t layer, uint32_t head, const uint8_t *const codes[2],
                       double ret_x[2][GEOMETRY_DIM_MAX], double ret_magnitude[2][GEOMETRY_DIM_MAX])
{
    double in[2 * TABLE_RANK_MAX]; /* c, or [c ; c_V] */
    unsigned n = 0;

    for (unsigned side = SIDE_K; side <= SIDE_V; side++) {
        const struct codec *c = table_codec(t, layer, head, (enum side) side);

        if (side == SIDE_V && !t->v_from_k)
            n = 0;
        n += look_up(t, c, (enum side) side, codes[side], in + n);
        for (unsigned i = 0; i < t->geometry.d; i++) {
            double x = (double) c->mean[i], magnitude = fabs(x);

            for (unsigned j = 0; j < n; j++) {
                double term = (double) c->dec[(size_t) i * c->r_in + j] * in[j];

                x += term;
                magnitude += fabs(term);
            }
            ret_x[side][i] = x;
            ret_magnitude[side][i] = magnitude;
        }
    }
}
