/*
 * Reading a sequence in host memory back: decoded vectors of pages, exact ones of sinks and tail, to memory
 * of the caller. See seq_host.h.
 *
 * A call is divided by layer and chunk: the values of a chunk may need the codes of all its keys.
 */
#include <errno.h>
#include <string.h>

#include "base/checked.h"
#include "client/sequence/seq_form.h"
#include "client/sequence/seq_host.h"
#include "client/sequence/seq_pages.h"
#include "client/sequence/seq_tail.h"
#include "gpu/chunk.h"
#include "gpu/dtype.h"

/* ---- rows of one head and chunk ---- */

static void seq_host_read_packed(const struct kvc_seq *s, const struct seq_rows *r, const float *mean,
                                 float *rows, struct chunk_work *w)
{
    const struct page_layout *layout = &s->table->layout;
    const uint8_t *payload = s->payloads[r->first / CHUNK_TOKENS];
    size_t in_chunk = r->first % CHUNK_TOKENS, d = s->model->geometry.d, n_sink = s->table->table->n_sink;

    if (r->side == SIDE_K)
        chunk_decode_keys(layout, r->layer, r->head, rows, d, w);
    else
        chunk_decode_values(layout, payload, r->layer, r->head, rows, d, w);
    if (in_chunk > 0)
        memmove(rows, rows + in_chunk * d, r->n * d * sizeof(*rows));
    if (r->first < n_sink) {
        const uint8_t *sinks = payload + page_sink_off(layout, r->layer, r->head, r->side);
        size_t n = n_sink - r->first < r->n ? n_sink - r->first : r->n;

        vectors_add_mean(sinks + r->first * d * sizeof(uint16_t), n, d, mean, rows, d);
    }
}

/* Rows of an exact table as binary32, which has all their numbers. */
static void seq_host_read_exact(const struct kvc_seq *s, const struct seq_rows *r, float *rows)
{
    const struct layer *l = &s->layers[r->layer];
    const struct page_layout *layout = &s->table->layout;
    size_t packed = l->n_packed * CHUNK_TOKENS, d = s->model->geometry.d;
    unsigned dtype = exact_dtype(s->table->table);

    if (r->first < packed)
        dtype_load(dtype,
                   s->payloads[r->first / CHUNK_TOKENS] + page_side_off(layout, r->layer, r->head, r->side),
                   r->first % CHUNK_TOKENS * d, r->n * d, rows);
    else
        dtype_load(dtype, l->rows[r->side] + seq_tail_row(s, r->head, r->first - packed), 0, r->n * d, rows);
}

void seq_host_read_chunk(const struct kvc_seq *s, uint32_t layer, size_t chunk, struct chunk_work *w)
{
    if (chunk < s->layers[layer].n_packed && !table_is_exact(s->table->table))
        chunk_load_keys(&s->table->layout, s->payloads[chunk], layer, w);
}

void seq_host_read_rows(const struct kvc_seq *s, const struct seq_rows *r, float *rows, struct chunk_work *w)
{
    const struct layer *l = &s->layers[r->layer];
    const struct shard *shard = &s->model->shard;
    const float *mean = table_codec(s->table->table, r->layer, shard->first_head + r->head, r->side)->mean;
    size_t packed = l->n_packed * CHUNK_TOKENS, d = s->model->geometry.d;

    if (table_is_exact(s->table->table))
        seq_host_read_exact(s, r, rows);
    else if (r->first < packed)
        seq_host_read_packed(s, r, mean, rows, w);
    else
        vectors_add_mean(l->rows[r->side] + seq_tail_row(s, r->head, r->first - packed), r->n, d, mean, rows,
                         d);
}

/* ---- the memory of the caller ---- */

/* The block of a position and its place there. */
struct seq_host_place {
    size_t block, token;
};

static struct seq_host_place seq_host_place_of(const struct seq_read_call *c, size_t position)
{
    size_t i = c->blocks ? position : position - c->first;
    size_t block = i / c->block_tokens;

    return (struct seq_host_place){c->blocks ? (size_t) c->blocks[block] : block, i % c->block_tokens};
}

/* Stores @rows of positions inside one chunk, a run of each block at a time. */
static void seq_host_store_rows(const struct seq_read_call *c, const struct seq_rows *r, const float *rows)
{
    size_t d = c->seq->model->geometry.d, bytes = dtype_bytes(c->dtype);
    char *base = c->bases[2 * (r->layer - c->first_layer) + r->side];

    for (size_t at = r->first, n; at < r->first + r->n; at += n) {
        struct seq_host_place p = seq_host_place_of(c, at);
        size_t off = p.block * c->block_stride + p.token * c->token_stride + r->head * c->head_stride;
        struct vector_form f = seq_form_of(c->seq, r->side, c->dtype, at);

        n = r->first + r->n - at;
        if (n > c->block_tokens - p.token)
            n = c->block_tokens - p.token;
        vectors_store(&f, rows + (at - r->first) * d, d, n, base + off * bytes, c->token_stride,
                      c->dim_stride);
    }
}

/* ---- the call ---- */

struct seq_host_reading {
    const struct seq_read_call *call;
    const struct workers *workers;
    size_t n_chunks;
};

/* Chunk i % n_chunks of a layer, both sides, all heads. */
static void seq_host_read_piece(void *arg, size_t i, unsigned worker)
{
    const struct seq_host_reading *x = arg;
    const struct seq_read_call *c = x->call;
    const struct kvc_model *m = c->seq->model;
    size_t chunk = c->first / CHUNK_TOKENS + i % x->n_chunks, start = chunk * CHUNK_TOKENS;
    size_t end = start + CHUNK_TOKENS < c->first + c->n ? start + CHUNK_TOKENS : c->first + c->n;
    struct seq_rows r = {.layer = c->first_layer + (uint32_t) (i / x->n_chunks),
                         .first = start > c->first ? start : c->first};
    float *rows = workers_scratch(x->workers, worker);
    struct chunk_work w;

    r.n = end - r.first;
    chunk_work_place(&w, &m->geometry, m->shard, rows + (size_t) CHUNK_TOKENS * m->geometry.d);
    c->seq->ops->read_chunk(c->seq, r.layer, chunk, &w);
    for (; r.head < m->shard.n_heads; r.head++)
        for (unsigned side = SIDE_K; side <= SIDE_V; side++) {
            if (!c->bases[2 * (i / x->n_chunks) + side])
                continue;
            r.side = (enum side) side;
            c->seq->ops->read_rows(c->seq, &r, rows, &w);
            seq_host_store_rows(c, &r, rows);
        }
}

int seq_host_read_blocks(const struct seq_read_call *call)
{
    struct kvc_seq *s = call->seq;
    const struct kvc_model *m = s->model;
    struct workers *workers = &m->client->workers;
    size_t first_chunk = call->first / CHUNK_TOKENS, end = call->first + call->n;
    size_t scratch =
        (size_t) CHUNK_TOKENS * m->geometry.d * sizeof(float) + chunk_work_bytes(&m->geometry, m->shard);
    struct seq_host_reading x = {
        .call = call, .workers = workers, .n_chunks = (end + CHUNK_TOKENS - 1) / CHUNK_TOKENS - first_chunk};
    int r = seq_form_prepare(s, call->first, call->n);

    if (r < 0)
        return r;
    if (workers_reserve(workers, scratch, 0, 0) < 0)
        return fail(&m->client->error, -ENOMEM, "out of memory for reading with %u threads", workers->n);

    (void) seq_payloads(s); /* refreshes the addresses that seq_host_read_packed() reads */
    workers_run(workers, seq_host_read_piece, &x, x.n_chunks * call->n_layers);
    return 0;
}

int seq_host_read(struct kvc_seq *s, uint32_t layer, enum kvc_side side, size_t first, size_t n, float *out)
{
    void *const bases[2] = {[KVC_K] = side == KVC_K ? out : NULL, [KVC_V] = side == KVC_V ? out : NULL};
    size_t d = s->model->geometry.d;
    const struct seq_read_call call = {
        .seq = s,
        .first = first,
        .n = n,
        .first_layer = layer,
        .n_layers = 1,
        .bases = bases,
        .dim_stride = 1,
        .token_stride = s->model->shard.n_heads * d,
        .head_stride = d,
        .block_tokens = n,
        .dtype = KVC_F32,
    };

    return s->ops->read_blocks(&call);
}
