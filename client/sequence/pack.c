/* See pack.h. */
#include "client/sequence/pack.h"

#include <assert.h>
#include <string.h>

#include "gpu/vectors.h"

void pack_head(const struct pack_head *p, float *x, uint8_t *payload, struct encode_counts *counts,
               struct chunk_work *w)
{
    const struct page_layout *l = p->layout;
    const struct codec *c = table_codec(l->table, p->layer, l->shard.first_head + p->head, p->side);
    uint32_t d = l->table->geometry.d;
    int r;

    if (table_is_exact(l->table)) {
        memcpy(payload + page_side_off(l, p->layer, p->head, p->side), p->rows,
               (size_t) c->code_bits * CHUNK_TOKENS / 8);
        return;
    }

    if (p->n_sink > 0)
        memcpy(payload + page_sink_off(l, p->layer, p->head, p->side), p->rows,
               (size_t) p->n_sink * d * sizeof(*p->rows));

    for (size_t t = 0; t < p->n_sink; t++)
        memcpy(x + t * d, c->enc_mean, d * sizeof(*x));
    vectors_add_mean(p->rows + (size_t) p->n_sink * d, CHUNK_TOKENS - p->n_sink, d, c->mean,
                     x + (size_t) p->n_sink * d, d);

    r = chunk_encode(l, p->layer, p->head, p->side, x, d, payload, counts, w);
    assert(r == 0); /* the rows are finite */
    (void) r;
}
