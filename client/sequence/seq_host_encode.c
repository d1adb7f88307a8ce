/*
 * Encoding chunks of a sequence in host memory, from rows of the tail into pages, on all threads of the
 * client. See seq_host.h.
 *
 * A piece of work is one head of one chunk, keys before values; a whole chunk if values are predicted from
 * the keys of all heads. Each piece has codes of its own, so the bytes do not depend on the division.
 */
#include "client/sequence/pack.h"
#include "client/sequence/seq_host.h"
#include "client/sequence/seq_pages.h"
#include "client/sequence/seq_tail.h"

enum { DIVIDED_NUMBERS_MIN = 1 << 16 }; /* encoding fewer, some 0.2 ms, is not worth waking threads */

/* Memory of one worker. */
struct seq_host_encoder {
    struct encode_counts counts[2];
    struct chunk_work work;
    float *rows; /* [64, d] */
};

struct seq_host_encoding {
    struct kvc_seq *s;
    const struct workers *workers;
    uint32_t layer;
    size_t first;            /* chunk */
    uint32_t heads_together; /* in one piece: 1 or all */
    /* [n_chunks] 1: sampled by watch.h, whose sums are added in order by one thread */
    uint8_t *sampled;
};

/* One head and side of a chunk whose rows are in the tail. */
static void seq_host_encode_side(struct kvc_seq *s, uint32_t layer, uint32_t head, enum side side,
                                 size_t chunk, struct encode_counts *counts, float *rows,
                                 struct chunk_work *w)
{
    const struct layer *l = &s->layers[layer];
    const struct pack_head p = {
        .layout = &s->table->layout,
        .layer = layer,
        .head = head,
        .side = side,
        .rows = l->rows[side] + seq_tail_row(s, head, (chunk - l->n_packed) * CHUNK_TOKENS),
        .n_sink = chunk == 0 ? s->table->table->n_sink : 0,
    };

    pack_head(&p, rows, page_payload(s->pages[chunk]), counts, w);
}

/* Keys of all heads before any values. */
static void seq_host_encode_alone(struct kvc_seq *s, uint32_t layer, size_t chunk)
{
    struct kvc_model *m = s->model;
    bool sampled = watch_samples(m, s->table, s->number, chunk);

    for (unsigned side = SIDE_K; side <= SIDE_V; side++)
        for (uint32_t h = 0; h < m->shard.n_heads; h++) {
            seq_host_encode_side(s, layer, h, (enum side) side, chunk, &s->table->counts[side],
                                 m->scratch.rows, &m->scratch.chunk);
            if (sampled)
                watch_add(m, &(struct watch_chunk){s->table, layer, h, (enum side) side, m->scratch.rows,
                                                   page_payload(s->pages[chunk])});
        }
}

/* ---- on threads ---- */

static size_t seq_host_encoder_bytes(const struct kvc_model *m)
{
    return sizeof(struct seq_host_encoder) + 64 + chunk_work_bytes(&m->geometry, m->shard) +
           (size_t) CHUNK_TOKENS * m->geometry.d * sizeof(float);
}

/* The encoder of worker @i, whose scratch is aligned to 64. */
static struct seq_host_encoder *seq_host_encoder_of(const struct workers *w, unsigned i)
{
    return workers_scratch(w, i);
}

static void seq_host_encoder_init(struct seq_host_encoder *x, const struct kvc_model *m)
{
    char *memory = (char *) x + (sizeof(*x) + 63) / 64 * 64;

    *x = (struct seq_host_encoder){
        .rows = (float *) (void *) (memory + chunk_work_bytes(&m->geometry, m->shard))};
    chunk_work_place(&x->work, &m->geometry, m->shard, memory);
}

static void seq_host_encode_piece(void *arg, size_t i, unsigned worker)
{
    const struct seq_host_encoding *e = arg;
    struct kvc_seq *s = e->s;
    struct seq_host_encoder *x = seq_host_encoder_of(e->workers, worker);
    uint32_t n_pieces = s->model->shard.n_heads / e->heads_together; /* of a chunk */
    uint32_t head = (uint32_t) (i % n_pieces) * e->heads_together;
    size_t chunk = e->first + i / n_pieces;

    if (e->sampled[i / n_pieces])
        return;

    for (unsigned side = SIDE_K; side <= SIDE_V; side++)
        for (uint32_t h = head; h < head + e->heads_together; h++)
            seq_host_encode_side(s, e->layer, h, (enum side) side, chunk, &x->counts[side], x->rows,
                                 &x->work);
}

static void seq_host_encode_together(const struct seq_host_encoding *e, size_t n_chunks)
{
    struct kvc_seq *s = e->s;

    for (size_t i = 0; i < n_chunks; i++)
        e->sampled[i] = watch_samples(s->model, s->table, s->number, e->first + i);
    for (unsigned i = 0; i < e->workers->n; i++)
        seq_host_encoder_init(seq_host_encoder_of(e->workers, i), s->model);
    workers_run(e->workers, seq_host_encode_piece, (void *) e,
                n_chunks * (s->model->shard.n_heads / e->heads_together));
    for (unsigned i = 0; i < e->workers->n; i++)
        for (unsigned side = SIDE_K; side <= SIDE_V; side++) {
            const struct encode_counts *counts = &seq_host_encoder_of(e->workers, i)->counts[side];

            s->table->counts[side].coords += counts->coords;
            s->table->counts[side].saturated += counts->saturated;
        }
    for (size_t i = 0; i < n_chunks; i++)
        if (e->sampled[i])
            seq_host_encode_alone(s, e->layer, e->first + i);
}

void seq_host_encode(struct kvc_seq *s, uint32_t layer, size_t first, size_t end)
{
    struct kvc_model *m = s->model;
    struct workers *workers = &m->client->workers;
    size_t n_chunks = end > first ? end - first : 0;
    size_t numbers = n_chunks * 2 * CHUNK_TOKENS * m->shard.n_heads * m->geometry.d;
    bool apart = table_predictors(s->table->table, m->shard.first_head).n <= 1;
    struct seq_host_encoding e = {.s = s,
                                  .workers = workers,
                                  .layer = layer,
                                  .first = first,
                                  .heads_together = apart ? 1 : m->shard.n_heads};

    /* without memory for the threads the calling one encodes with the memory of the model */
    if (workers->n > 1 && numbers >= DIVIDED_NUMBERS_MIN &&
        workers_reserve(workers, seq_host_encoder_bytes(m), n_chunks, 0) == 0) {
        e.sampled = workers->items;
        seq_host_encode_together(&e, n_chunks);
        return;
    }

    for (size_t i = 0; i < n_chunks; i++)
        seq_host_encode_alone(s, layer, first + i);
}
