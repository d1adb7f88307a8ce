/* Reading a sequence in host memory back: decoded vectors of pages, exact ones of
 * sinks and tail. See seq_host.h. */
#include <string.h>

#include "base/half.h"
#include "client/sequence/seq_host.h"
#include "client/sequence/seq_pages.h"
#include "client/sequence/seq_tail.h"
#include "gpu/codec.h"

static void seq_host_add_mean(const uint16_t *row, const float *mean, uint32_t d, float *out)
{
    for (uint32_t i = 0; i < d; i++)
        out[i] = mean[i] + f16_to_f32(row[i]);
}

/* Rows [first, end) of one chunk of one head, from its page. */
static void seq_host_read_packed(struct kvc_seq *s, uint32_t layer, uint32_t head, enum side side,
                                 size_t chunk, size_t first, size_t end, float *out)
{
    const struct page_layout *layout = &s->table->layout;
    struct model_scratch *scratch = &s->model->scratch;
    const uint8_t *payload = seq_payloads(s)[chunk];
    uint32_t d = s->model->geometry.d, n_sink = s->table->table->n_sink;
    size_t stride = (size_t) s->model->shard.n_heads * d;
    const float *mean = table_codec(s->table->table, layer, s->model->shard.first_head + head, side)->mean;
    float *rows = scratch->rows;

    chunk_decode(layout, payload, layer, head, side, rows, d, &scratch->chunk);
    for (size_t t = first; t < end; t++) {
        float *to = out + (t - first) * stride;

        if (chunk == 0 && t < n_sink) {
            uint16_t sink[GEOMETRY_DIM_MAX];

            memcpy(sink, payload + page_sink_off(layout, layer, head, side) + t * d * sizeof(*sink),
                   d * sizeof(*sink));
            seq_host_add_mean(sink, mean, d, to);
        } else {
            memcpy(to, rows + t * d, d * sizeof(*to));
        }
    }
}

static void seq_host_read_head(struct kvc_seq *s, uint32_t layer, uint32_t head, enum side side, size_t first,
                               size_t n, float *out)
{
    const struct layer *l = &s->layers[layer];
    uint32_t d = s->model->geometry.d;
    size_t stride = (size_t) s->model->shard.n_heads * d, packed = l->n_packed * CHUNK_TOKENS;
    const float *mean = table_codec(s->table->table, layer, s->model->shard.first_head + head, side)->mean;

    for (size_t at = first; at < first + n;) {
        float *to = out + (at - first) * stride;

        if (at < packed) {
            size_t chunk = at / CHUNK_TOKENS, start = chunk * CHUNK_TOKENS, end = start + CHUNK_TOKENS;

            if (end > first + n)
                end = first + n;
            seq_host_read_packed(s, layer, head, side, chunk, at - start, end - start, to);
            at = end;
        } else {
            seq_host_add_mean(l->rows[side] + seq_tail_row(s, head, at - packed), mean, d, to);
            at++;
        }
    }
}

int seq_host_read(struct kvc_seq *s, uint32_t layer, enum kvc_side side, size_t first, size_t n, float *out)
{
    for (uint32_t h = 0; h < s->model->shard.n_heads; h++)
        seq_host_read_head(s, layer, h, (enum side) side, first, n, out + (size_t) h * s->model->geometry.d);
    return 0;
}
