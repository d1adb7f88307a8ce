/*
 * See seq_eval.h. Tokens are encoded and decoded as they are appended. A chunk that is full is
 * packed into a page, and its decoded rows are then read back from the page's bytes: the
 * measurement sees what would be stored.
 */
#include "client/sequence/seq_eval.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/half.h"
#include "base/options.h"
#include "client/sequence/seq_form.h"
#include "client/sequence/seq_host.h"
#include "client/sequence/seq_pages.h"
#include "client/sequence/usage.h"
#include "gpu/attend.h"
#include "gpu/dtype.h"

enum { BOTH_SIDES = 1 << SIDE_K | 1 << SIDE_V };

struct seq_eval_layer {
    float *exact[2], *decoded[2]; /* by side: [rows_max, shard heads, d] */
    uint8_t *codes[2];            /* of the chunk being filled: [shard heads][64, r] */
};

struct seq_eval {
    uint32_t n_sink;
    int32_t n_recent;
    uint32_t sides; /* bit by side: queries read decoded vectors */
    uint32_t first_layer, end_layer;
    float *rotated; /* [CHUNK_TOKENS, shard heads, d] rotated keys; NULL: keys are encoded before RoPE */
    const uint8_t **keys; /* by KV head of the table: K codes of the tokens being encoded */
    size_t rows_max;      /* 0 before the first append */
    struct seq_eval_layer *layers;
};

static size_t seq_eval_row_stride(const struct kvc_seq *s)
{
    return (size_t) s->model->shard.n_heads * s->model->geometry.d;
}

static uint8_t *seq_eval_head_codes(const struct seq_eval_layer *l, uint32_t head, enum side side)
{
    return l->codes[side] + (size_t) head * CHUNK_TOKENS * TABLE_RANK_MAX;
}

static struct head_view seq_eval_view_of(const struct kvc_seq *s, uint32_t layer, uint32_t head)
{
    return head_view(s->table->table, layer, s->model->shard.first_head + head);
}

static int seq_eval_check(const struct kvc_seq *s, const kvc_eval_options *o, struct errmsg *e)
{
    uint32_t n_layers = seq_n_layers(s);

    if (o->n_recent < -1)
        return fail(e, -EINVAL,
                    "n_recent is %d: at least 0, or -1 for the tokens that a decode step reads exactly",
                    o->n_recent);
    if (o->sides > BOTH_SIDES)
        return fail(e, -EINVAL, "sides are %u: 1 << KVC_K, 1 << KVC_V or both", o->sides);
    if (o->first_layer >= n_layers || o->n_layers > n_layers - o->first_layer)
        return fail(e, -EINVAL, "%u layers from layer %u on: the model has %u", o->n_layers, o->first_layer,
                    n_layers);
    if (o->post_rope > 1)
        return fail(e, -EINVAL, "post_rope is %u: 0 or 1", o->post_rope);
    return 0;
}

static int seq_eval_allocate_layers(struct kvc_seq *s)
{
    size_t bytes = (size_t) s->model->shard.n_heads * CHUNK_TOKENS * TABLE_RANK_MAX;

    s->eval->layers = calloc(seq_n_layers(s), sizeof(*s->eval->layers));
    if (!s->eval->layers)
        return -ENOMEM;

    for (uint32_t i = 0; i < seq_n_layers(s); i++)
        for (unsigned side = 0; side < 2; side++) {
            s->eval->layers[i].codes[side] = malloc(bytes);
            if (!s->eval->layers[i].codes[side])
                return -ENOMEM;
        }
    return 0;
}

/* What was allocated before a failure is freed with the sequence. */
static int seq_eval_allocate(struct kvc_seq *s, bool post_rope)
{
    s->eval = calloc(1, sizeof(*s->eval));
    if (!s->eval)
        return -ENOMEM;
    if (post_rope) {
        s->eval->rotated = malloc(CHUNK_TOKENS * seq_eval_row_stride(s) * sizeof(float));
        if (!s->eval->rotated)
            return -ENOMEM;
    }

    s->eval->keys = calloc(s->model->geometry.n_kv_heads, sizeof(*s->eval->keys));
    if (!s->eval->keys)
        return -ENOMEM;

    return seq_eval_allocate_layers(s);
}

int seq_eval_set_options(struct kvc_seq *s, const kvc_eval_options *o)
{
    struct errmsg *e = &s->model->client->error;
    kvc_eval_options local;
    int r;

    r = options_read(&local, sizeof(local), o, offsetof(kvc_eval_options, sides), "kvc_eval_options", e);
    if (r < 0)
        return r;

    r = seq_eval_check(s, &local, e);
    if (r < 0)
        return r;

    r = seq_eval_allocate(s, local.post_rope);
    if (r < 0)
        return fail(e, r, "out of memory for an evaluation sequence");

    s->eval->n_sink = local.n_sink;
    s->eval->n_recent = local.n_recent;
    s->eval->sides = local.sides ? local.sides : BOTH_SIDES;
    s->eval->first_layer = local.first_layer;
    s->eval->end_layer = local.n_layers ? local.first_layer + local.n_layers : seq_n_layers(s);
    return 0;
}

static void seq_eval_deinit(struct kvc_seq *s)
{
    struct seq_eval *v = s->eval;

    if (!v)
        return;

    for (uint32_t i = 0; v->layers && i < seq_n_layers(s); i++)
        for (unsigned side = 0; side < 2; side++) {
            free(v->layers[i].exact[side]);
            free(v->layers[i].decoded[side]);
            free(v->layers[i].codes[side]);
        }
    free(v->layers);
    free(v->rotated);
    free(v->keys);
    free(v);
    s->eval = NULL;
}

/* The rows that queries read of tokens that are not exact by their position. */
static const float *seq_eval_coded_rows(const struct kvc_seq *s, uint32_t layer, enum side side)
{
    const struct seq_eval *v = s->eval;
    bool coded = v->sides >> side & 1 && layer >= v->first_layer && layer < v->end_layer;

    return (coded ? v->layers[layer].decoded : v->layers[layer].exact)[side];
}

/* A failure leaves some layers with more room than rows_max: the next call reallocates it. */
static int seq_eval_grow(struct kvc_seq *s, size_t rows)
{
    struct seq_eval *v = s->eval;
    size_t max = v->rows_max ? v->rows_max : 512, bytes;

    if (rows <= v->rows_max)
        return 0;
    while (max < rows)
        max *= 2;
    bytes = max * seq_eval_row_stride(s) * sizeof(float);
    for (uint32_t i = 0; i < seq_n_layers(s); i++)
        for (unsigned side = 0; side < 2; side++) {
            float **buffers[] = {&v->layers[i].exact[side], &v->layers[i].decoded[side]};

            for (unsigned b = 0; b < 2; b++) {
                float *p = realloc(*buffers[b], bytes);

                if (!p)
                    return -ENOMEM;

                *buffers[b] = p;
            }
        }
    v->rows_max = max;
    return 0;
}

/* ---- appending ---- */

static int seq_eval_load_side(struct kvc_seq *s, uint32_t layer, enum side side, const void *from,
                              const struct seq_vectors *v)
{
    size_t stride = seq_eval_row_stride(s), n = v->n_tokens * stride, length = s->layers[layer].length;
    float *to = s->eval->layers[layer].exact[side] + length * stride;
    struct vector_form form = seq_form_of(s, side, v->dtype, length);
    uint32_t d = v->d;

    for (uint32_t h = 0; h < v->n_heads; h++)
        vectors_load(&form, (const char *) from + h * v->head_stride * dtype_bytes(v->dtype), v->token_stride,
                     v->n_tokens, to + (size_t) h * d, stride);
    for (size_t i = 0; i < n; i++)
        if (!isfinite(to[i]))
            return fail(&s->model->client->error, -EINVAL,
                        "layer %u, KV head %zu, %s of new token %zu is not finite", layer,
                        s->model->shard.first_head + i % stride / d, side == SIDE_K ? "K" : "V", i / stride);
    return 0;
}

/* x [n, shard heads, d] := R(p)^sign x for positions p = first, first + 1, ...;
 * @sign 1: as RoPE does, -1: back. */
static void seq_eval_rotate(const struct kvc_seq *s, float *x, size_t first, size_t n, double sign)
{
    const struct geometry *g = &s->model->geometry;
    uint32_t n_planes = g->n_rot / 2;
    double c[GEOMETRY_PLANES_MAX], sn[GEOMETRY_PLANES_MAX];

    for (size_t t = 0; t < n; t++) {
        for (uint32_t i = 0; i < n_planes; i++) {
            c[i] = cos((double) (first + t) * g->freq[i]);
            sn[i] = sign * sin((double) (first + t) * g->freq[i]);
        }

        for (uint32_t h = 0; h < s->model->shard.n_heads; h++, x += g->d)
            for (uint32_t i = 0; i < n_planes; i++) {
                double a = (double) x[i], b = (double) x[i + n_planes];

                x[i] = (float) (a * c[i] - b * sn[i]);
                x[i + n_planes] = (float) (a * sn[i] + b * c[i]);
            }
    }
}

/* The keys of tokens [at, at + n) as they are encoded. */
static const float *seq_eval_keys_to_encode(struct kvc_seq *s, uint32_t layer, size_t at, size_t n)
{
    const float *exact = s->eval->layers[layer].exact[SIDE_K] + at * seq_eval_row_stride(s);

    if (!s->eval->rotated)
        return exact;
    memcpy(s->eval->rotated, exact, n * seq_eval_row_stride(s) * sizeof(float));
    seq_eval_rotate(s, s->eval->rotated, at, n, 1);
    return s->eval->rotated;
}

/* Brings decoded keys of tokens [at, at + n) of all heads back to before RoPE, as the exact ones are. */
static void seq_eval_rotate_back(struct kvc_seq *s, uint32_t layer, size_t at, size_t n)
{
    if (s->eval->rotated)
        seq_eval_rotate(s, s->eval->layers[layer].decoded[SIDE_K] + at * seq_eval_row_stride(s), at, n, -1);
}

/* Coordinates count when their chunk is full: with a trellis the chunk is encoded again whenever it grows. */
static struct encode_counts *seq_eval_counts(const struct kvc_seq *s, enum side side, size_t end,
                                             struct encode_counts *ignored)
{
    bool again = table_has_trellis(s->table->table) && end % CHUNK_TOKENS != 0;

    return again ? ignored : &s->table->counts[side];
}

/* Keys of tokens [at, at + n) of one layer, inside one chunk: codes, which v->keys points
 * to, and rows decoded from them. */
static void seq_eval_encode_keys(struct kvc_seq *s, uint32_t layer, size_t at, size_t n)
{
    struct encode_counts ignored = {0};
    struct seq_eval_layer *l = &s->eval->layers[layer];
    size_t stride = seq_eval_row_stride(s), in_chunk = at % CHUNK_TOKENS;
    float *scratch = s->model->scratch.chunk.codec;
    const float *keys = seq_eval_keys_to_encode(s, layer, at, n);

    for (uint32_t h = 0; h < s->model->shard.n_heads; h++) {
        struct head_view view = seq_eval_view_of(s, layer, h);
        size_t off = (size_t) h * s->model->geometry.d;
        uint8_t *codes = seq_eval_head_codes(l, h, SIDE_K) + in_chunk * view.k->r;
        int r = codec_encode_keys(view, keys + off, stride, n, codes,
                                  seq_eval_counts(s, SIDE_K, at + n, &ignored), scratch);

        assert(r == 0); /* seq_eval_load_side() refused numbers that are not finite */
        (void) r;
        codec_decode_keys(view, codes, n, l->decoded[SIDE_K] + at * stride + off, stride, scratch);
        s->eval->keys[view.head] = codes;
    }

    seq_eval_rotate_back(s, layer, at, n);
}

/* seq_eval_encode_keys() for values; called after the keys of all heads. */
static void seq_eval_encode_values(struct kvc_seq *s, uint32_t layer, size_t at, size_t n)
{
    struct seq_eval_layer *l = &s->eval->layers[layer];
    size_t stride = seq_eval_row_stride(s), in_chunk = at % CHUNK_TOKENS;
    float *scratch = s->model->scratch.chunk.codec;
    struct encode_counts ignored = {0};

    for (uint32_t h = 0; h < s->model->shard.n_heads; h++) {
        struct head_view view = seq_eval_view_of(s, layer, h);
        size_t off = at * stride + (size_t) h * s->model->geometry.d;
        uint8_t *codes = seq_eval_head_codes(l, h, SIDE_V) + in_chunk * view.v->r;
        int r = codec_encode_values(view, l->exact[SIDE_V] + off, stride, n, s->eval->keys, codes,
                                    seq_eval_counts(s, SIDE_V, at + n, &ignored), scratch);

        assert(r == 0);
        (void) r;
        codec_decode_values(view, s->eval->keys, codes, n, l->decoded[SIDE_V] + off, stride, scratch);
    }
}

static void seq_eval_store_sinks(struct kvc_seq *s, uint32_t layer, uint32_t head)
{
    const struct table *table = s->table->table;
    uint32_t d = s->model->geometry.d;

    for (unsigned side = SIDE_K; side <= SIDE_V; side++) {
        const float *mean = table_codec(table, layer, s->model->shard.first_head + head, side)->mean;
        uint8_t *to = page_payload(s->pages[0]) + page_sink_off(&s->table->layout, layer, head, side);

        for (uint32_t t = 0; t < table->n_sink; t++)
            for (uint32_t i = 0; i < d; i++) {
                float x =
                    s->eval->layers[layer].exact[side][t * seq_eval_row_stride(s) + (size_t) head * d + i];
                uint16_t half = f32_to_f16(x - mean[i]);

                memcpy(to + ((size_t) t * d + i) * sizeof(half), &half, sizeof(half));
            }
    }
}

/* Packs a full chunk into its page, and decodes its rows from there. */
static void seq_eval_pack_chunk(struct kvc_seq *s, uint32_t layer, size_t chunk)
{
    struct seq_eval_layer *l = &s->eval->layers[layer];
    const struct page_layout *layout = &s->table->layout;
    uint8_t *payload = page_payload(s->pages[chunk]);
    uint32_t n_heads = s->model->shard.n_heads;
    size_t stride = seq_eval_row_stride(s);

    for (uint32_t h = 0; h < n_heads; h++) {
        block_pack(seq_eval_view_of(s, layer, h), seq_eval_head_codes(l, h, SIDE_K),
                   seq_eval_head_codes(l, h, SIDE_V), payload + page_block_off(layout, layer, h));
        if (chunk == 0)
            seq_eval_store_sinks(s, layer, h);
    }

    for (uint32_t i = 0; i < 2 * n_heads; i++) {
        float *rows =
            l->decoded[i % 2] + chunk * CHUNK_TOKENS * stride + (size_t) (i / 2) * s->model->geometry.d;

        chunk_decode(layout, payload, layer, i / 2, (enum side)(i % 2), rows, stride,
                     &s->model->scratch.chunk);
    }

    seq_eval_rotate_back(s, layer, chunk * CHUNK_TOKENS, CHUNK_TOKENS);
    s->layers[layer].n_packed = chunk + 1;
}

static int seq_eval_append_stage(const struct seq_append_call *call, const kvc_append_item *item)
{
    struct kvc_seq *s = item->seq;
    const struct seq_vectors k = seq_form_appended(item, SIDE_K, call->dtype),
                             v = seq_form_appended(item, SIDE_V, call->dtype);
    size_t end = s->layers[call->layer].length + item->n_new;
    int r;

    if (seq_eval_grow(s, end) < 0)
        return fail(&call->client->error, -ENOMEM, "out of memory for %zu tokens of evaluation", end);

    r = seq_form_prepare(s, s->layers[call->layer].length, item->n_new);
    if (r < 0)
        return r;

    r = seq_eval_load_side(s, call->layer, SIDE_K, item->k, &k);
    if (r < 0)
        return r;

    r = seq_eval_load_side(s, call->layer, SIDE_V, item->v, &v);
    if (r < 0)
        return r;

    return end / CHUNK_TOKENS > s->n_pages ? seq_claim(s, end / CHUNK_TOKENS) : 0;
}

static void seq_eval_append_apply(struct seq_append_call *call, const kvc_append_item *item)
{
    struct kvc_seq *s = item->seq;
    struct layer *l = &s->layers[call->layer];
    size_t end = l->length + item->n_new;

    for (size_t at = l->length; at < end;) {
        size_t room = CHUNK_TOKENS - at % CHUNK_TOKENS, n = end - at < room ? end - at : room;
        size_t before = table_has_trellis(s->table->table) ? at % CHUNK_TOKENS : 0; /* of the same strings */

        seq_eval_encode_keys(s, call->layer, at - before, before + n);
        seq_eval_encode_values(s, call->layer, at - before, before + n);
        at += n;
        if (at % CHUNK_TOKENS == 0)
            seq_eval_pack_chunk(s, call->layer, at / CHUNK_TOKENS - 1);
    }

    l->length = end;
}

/* ---- reading ---- */

static size_t seq_eval_scratch_bytes(const struct kvc_seq *s, size_t n_q)
{
    return attend_dense_scratch_bytes(&s->model->geometry, s->eval->rows_max, n_q);
}

static void seq_eval_attend_piece(const struct seq_attend_call *c, const struct seq_attend_piece *p,
                                  void *scratch)
{
    const struct kvc_seq *s = p->item->seq;
    const struct kvc_model *m = s->model;
    const struct seq_eval *v = s->eval;
    const struct seq_eval_layer *l = &v->layers[c->layer];
    struct seq_host_queries x = seq_host_queries_load(c, p, scratch);
    size_t off = (size_t) p->head * m->geometry.d;
    struct attend_dense_args a = {
        .geometry = &m->geometry,
        .exact_k = l->exact[SIDE_K] + off,
        .exact_v = l->exact[SIDE_V] + off,
        .decoded_k = seq_eval_coded_rows(s, c->layer, SIDE_K) + off,
        .decoded_v = seq_eval_coded_rows(s, c->layer, SIDE_V) + off,
        .row_stride = seq_eval_row_stride(s),
        .n_sink = v->n_sink,
        .n_recent = v->n_recent,
        .q = x.q,
        .q_stride = x.q_stride,
        .q_first = s->layers[c->layer].length - p->item->n_q + p->first_q,
        .n_q = p->n_q,
        .out = x.out,
        .out_stride = x.out_stride,
        .scratch = x.scratch,
        .window = c->options.window,
    };

    attend_dense(&a);
    seq_host_queries_store(p, &x);
}

static void seq_eval_read_chunk(const struct kvc_seq *s, uint32_t layer, size_t chunk, struct chunk_work *w)
{
    (void) s;
    (void) layer;
    (void) chunk;
    (void) w;
}

static void seq_eval_read_rows(const struct kvc_seq *s, const struct seq_rows *r, float *rows,
                               struct chunk_work *w)
{
    const float *exact = s->eval->layers[r->layer].exact[r->side],
                *coded = seq_eval_coded_rows(s, r->layer, r->side);
    size_t stride = seq_eval_row_stride(s), d = s->model->geometry.d;

    (void) w;
    for (size_t t = r->first; t < r->first + r->n; t++, rows += d)
        memcpy(rows, (t < s->eval->n_sink ? exact : coded) + t * stride + r->head * d, d * sizeof(*rows));
}

/* ---- cutting, counting ---- */

/* A cut inside the chunk being filled is exact, since its codes are in memory; a
 * packed chunk is not unpacked. */
static size_t seq_eval_truncate(struct kvc_seq *s, size_t n)
{
    n = seq_cut(s, n);
    seq_drop_pages(s, seq_n_packed_most(s));
    return n;
}

/* The newest tokens that a product sequence would hold exactly. */
static size_t seq_eval_tail_tokens(const struct kvc_seq *s)
{
    size_t length = seq_length(s);

    if (s->eval->n_recent < 0)
        return length - chunks_due(length) * CHUNK_TOKENS;

    return (size_t) s->eval->n_recent < length ? (size_t) s->eval->n_recent : length;
}

/*
 * The bytes that a product sequence would hold with this n_sink and n_recent. A last chunk that is not full
 * counts the codes of its tokens, a header and the rounding of a slot.
 */
static void seq_eval_count_usage(const struct kvc_seq *s, kvc_usage *u)
{
    const struct page_layout *l = &s->table->layout;
    uint64_t tail = seq_eval_tail_tokens(s), packed = u->tokens - tail, n_sink = s->eval->n_sink;
    uint64_t n_pages = (packed + CHUNK_TOKENS - 1) / CHUNK_TOKENS;
    uint64_t padding_bits = packed * s->table->padding_bits;

    u->code_bytes = (packed * s->table->code_bits + 7) / 8;
    u->header_bytes = n_pages * PAGE_HEADER_BYTES;
    u->sink_bytes = usage_exact_bytes(s, packed < n_sink ? packed : n_sink);
    u->padding_bytes =
        (padding_bits + 7) / 8 + n_pages * (l->slot_bytes[PAGE_REST] - l->page_bytes[PAGE_REST]);
    u->tail_bytes = usage_exact_bytes(s, tail);
}

/* Missing: what client_ops.seqs does for a whole call, and operations on tails, of which
 * evaluation sequences have none. */
const struct seq_ops seq_eval_ops = {
    .uses_arena = false,
    .is_shareable = false,
    .takes_forms = true,
    .init = seq_ops_nothing,
    .deinit = seq_eval_deinit,
    .check_sound = seq_ops_check_nothing,
    .check_idle = seq_ops_check_nothing,
    .append_stage = seq_eval_append_stage,
    .append_apply = seq_eval_append_apply,
    .pages_dropped = seq_ops_drop_nothing,
    .refresh = seq_ops_nothing,
    .lengths_changed = seq_ops_nothing,
    .truncate = seq_eval_truncate,
    .attended_length = seq_host_attended_length,
    .read = seq_host_read,
    .read_blocks = seq_host_read_blocks,
    .read_chunk = seq_eval_read_chunk,
    .read_rows = seq_eval_read_rows,
    .count_usage = seq_eval_count_usage,
    .attends_by_pages = false,
    .attend_scratch_bytes = seq_eval_scratch_bytes,
    .attend_piece = seq_eval_attend_piece,
};
