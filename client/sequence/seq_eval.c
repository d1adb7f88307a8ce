/*
 * Evaluation sequences: every input exact beside what its codes decode to, so that each query of a long
 * append sees what it would have seen as a decode step (DESIGN 4, "Exactness").
 *
 * Tokens are encoded and decoded as they come. A chunk that is full is packed into a page, and its decoded
 * rows are then read back from the page's bytes: what is measured is what would be stored.
 */
#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/half.h"
#include "client/connection/client.h"
#include "client/connection/options.h"
#include "client/sequence/seq.h"
#include "gpu/attend.h"

enum { BOTH_SIDES = 1 << SIDE_K | 1 << SIDE_V };

struct eval_layer {
    float *exact[2], *decoded[2]; /* by side: [rows_max, shard heads, d] */
    uint8_t *codes[2];            /* of the chunk being filled: [shard heads][64, r] */
};

struct eval {
    uint32_t n_sink;
    int32_t n_recent;
    uint32_t sides; /* bit by side: read from codes */
    uint32_t first_layer, end_layer;
    float *rotated;       /* [CHUNK_TOKENS, shard heads, d] keys being coded after RoPE; NULL: before */
    const uint8_t **keys; /* by KV head of the table: K codes of the run being coded */
    size_t rows_max;      /* 0 before the first append */
    struct eval_layer *layers;
};

static size_t seq_eval_row_stride(const struct kvc_seq *s)
{
    return (size_t) s->model->shard.n_heads * s->model->geometry.d;
}

static uint8_t *seq_eval_head_codes(const struct eval_layer *l, uint32_t head, enum side side)
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
        return fail(e, -EINVAL, "n_recent is %d: at least 0, or -1 for what a decode step sees", o->n_recent);
    if (o->sides > BOTH_SIDES)
        return fail(e, -EINVAL, "sides are %u: 1 << KVC_K, 1 << KVC_V or both", o->sides);
    if (o->first_layer >= n_layers || o->n_layers > n_layers - o->first_layer)
        return fail(e, -EINVAL, "%u layers from layer %u on: the model has %u", o->n_layers, o->first_layer,
                    n_layers);
    if (o->post_rope > 1)
        return fail(e, -EINVAL, "post_rope is %u: 0 or 1", o->post_rope);
    return 0;
}

int eval_init(struct kvc_seq *s, const kvc_eval_options *o)
{
    struct errmsg *e = &s->model->client->error;
    uint32_t n_heads = s->model->shard.n_heads;
    kvc_eval_options local;
    int r = options_read(&local, sizeof(local), o, offsetof(kvc_eval_options, sides), "kvc_eval_options", e);

    if (r == 0)
        r = seq_eval_check(s, &local, e);
    if (r < 0)
        return r;
    s->eval = calloc(1, sizeof(*s->eval));
    if (!s->eval)
        return fail(e, -ENOMEM, "out of memory for an evaluation sequence");
    s->eval->n_sink = local.n_sink;
    s->eval->n_recent = local.n_recent;
    s->eval->sides = local.sides ? local.sides : BOTH_SIDES;
    s->eval->first_layer = local.first_layer;
    s->eval->end_layer = local.n_layers ? local.first_layer + local.n_layers : seq_n_layers(s);
    if (local.post_rope) {
        s->eval->rotated = malloc(CHUNK_TOKENS * seq_eval_row_stride(s) * sizeof(float));
        if (!s->eval->rotated)
            return fail(e, -ENOMEM, "out of memory for an evaluation sequence");
    }
    s->eval->keys = calloc(s->model->geometry.n_kv_heads, sizeof(*s->eval->keys));
    if (!s->eval->keys)
        return fail(e, -ENOMEM, "out of memory for an evaluation sequence");
    s->eval->layers = calloc(seq_n_layers(s), sizeof(*s->eval->layers));
    for (uint32_t i = 0; s->eval->layers && i < seq_n_layers(s); i++)
        for (unsigned side = 0; side < 2; side++) {
            s->eval->layers[i].codes[side] = malloc((size_t) n_heads * CHUNK_TOKENS * TABLE_RANK_MAX);
            if (!s->eval->layers[i].codes[side])
                return fail(e, -ENOMEM, "out of memory for an evaluation sequence");
        }
    return s->eval->layers ? 0 : fail(e, -ENOMEM, "out of memory for an evaluation sequence");
}

void eval_free(struct kvc_seq *s)
{
    for (uint32_t i = 0; s->eval->layers && i < seq_n_layers(s); i++)
        for (unsigned side = 0; side < 2; side++) {
            free(s->eval->layers[i].exact[side]);
            free(s->eval->layers[i].decoded[side]);
            free(s->eval->layers[i].codes[side]);
        }
    free(s->eval->layers);
    free(s->eval->rotated);
    free(s->eval->keys);
    free(s->eval);
    s->eval = NULL;
}

/* What a query reads of a token that is not exact by its position. */
static const float *seq_eval_coded_rows(const struct kvc_seq *s, uint32_t layer, enum side side)
{
    const struct eval *v = s->eval;
    bool coded = v->sides >> side & 1 && layer >= v->first_layer && layer < v->end_layer;

    return (coded ? v->layers[layer].decoded : v->layers[layer].exact)[side];
}

/* A failure leaves some layers with more room than rows_max says, which does no harm. */
static int seq_eval_grow(struct kvc_seq *s, size_t rows)
{
    struct eval *v = s->eval;
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

/* ---- append ---- */

static int seq_eval_load(struct kvc_seq *s, uint32_t layer, enum side side, enum kvc_dtype dtype,
                         const void *from, size_t n_new)
{
    size_t stride = seq_eval_row_stride(s), n = n_new * stride;
    float *to = s->eval->layers[layer].exact[side] + s->layers[layer].length * stride;
    uint32_t d = s->model->geometry.d;

    dtype_load(dtype, from, 0, n, to);
    for (size_t i = 0; i < n; i++)
        if (!isfinite(to[i]))
            return fail(&s->model->client->error, -EINVAL,
                        "layer %u, KV head %zu, %s of new token %zu is not finite", layer,
                        s->model->shard.first_head + i % stride / d, side == SIDE_K ? "K" : "V", i / stride);
    return 0;
}

/* x [n, shard heads, d] := R(p)^turn x for positions p = first, first + 1, ...; @turn 1: as RoPE does, -1:
 * back. */
static void seq_eval_rotate(const struct kvc_seq *s, float *x, size_t first, size_t n, double turn)
{
    const struct geometry *g = &s->model->geometry;
    uint32_t n_planes = g->n_rot / 2;
    double c[GEOMETRY_PLANES_MAX], sn[GEOMETRY_PLANES_MAX];

    for (size_t t = 0; t < n; t++) {
        for (uint32_t i = 0; i < n_planes; i++) {
            c[i] = cos((double) (first + t) * g->freq[i]);
            sn[i] = turn * sin((double) (first + t) * g->freq[i]);
        }
        for (uint32_t h = 0; h < s->model->shard.n_heads; h++, x += g->d)
            for (uint32_t i = 0; i < n_planes; i++) {
                double a = (double) x[i], b = (double) x[i + n_planes];

                x[i] = (float) (a * c[i] - b * sn[i]);
                x[i + n_planes] = (float) (a * sn[i] + b * c[i]);
            }
    }
}

/* The keys of tokens [at, at + n) as they are coded. */
static const float *seq_eval_keys_to_code(struct kvc_seq *s, uint32_t layer, size_t at, size_t n)
{
    const float *exact = s->eval->layers[layer].exact[SIDE_K] + at * seq_eval_row_stride(s);

    if (!s->eval->rotated)
        return exact;
    memcpy(s->eval->rotated, exact, n * seq_eval_row_stride(s) * sizeof(float));
    seq_eval_rotate(s, s->eval->rotated, at, n, 1);
    return s->eval->rotated;
}

/* Decoded keys of tokens [at, at + n), once all heads have them, in the order of the exact ones. */
static void seq_eval_turn_back(struct kvc_seq *s, uint32_t layer, size_t at, size_t n)
{
    if (s->eval->rotated)
        seq_eval_rotate(s, s->eval->layers[layer].decoded[SIDE_K] + at * seq_eval_row_stride(s), at, n, -1);
}

/* Keys of tokens [at, at + n) of one layer, inside one chunk: codes, which stay in v->keys, and rows decoded
 * from them. */
static void seq_eval_encode_keys(struct kvc_seq *s, uint32_t layer, size_t at, size_t n)
{
    struct eval_layer *l = &s->eval->layers[layer];
    size_t stride = seq_eval_row_stride(s), in_chunk = at % CHUNK_TOKENS;
    float *scratch = s->model->scratch.chunk.codec;
    const float *keys = seq_eval_keys_to_code(s, layer, at, n);

    for (uint32_t h = 0; h < s->model->shard.n_heads; h++) {
        struct head_view view = seq_eval_view_of(s, layer, h);
        size_t off = (size_t) h * s->model->geometry.d;
        uint8_t *codes = seq_eval_head_codes(l, h, SIDE_K) + in_chunk * view.k->r;
        int r = codec_encode_keys(view, keys + off, stride, n, codes, &s->table->counts[SIDE_K], scratch);

        assert(r == 0); /* seq_eval_load() refused what is not finite */
        (void) r;
        codec_decode_keys(view, codes, n, l->decoded[SIDE_K] + at * stride + off, stride, scratch);
        s->eval->keys[view.head] = codes;
    }
    seq_eval_turn_back(s, layer, at, n);
}

/* The same for values, after the keys of all heads. */
static void seq_eval_encode_values(struct kvc_seq *s, uint32_t layer, size_t at, size_t n)
{
    struct eval_layer *l = &s->eval->layers[layer];
    size_t stride = seq_eval_row_stride(s), in_chunk = at % CHUNK_TOKENS;
    float *scratch = s->model->scratch.chunk.codec;

    for (uint32_t h = 0; h < s->model->shard.n_heads; h++) {
        struct head_view view = seq_eval_view_of(s, layer, h);
        size_t off = at * stride + (size_t) h * s->model->geometry.d;
        uint8_t *codes = seq_eval_head_codes(l, h, SIDE_V) + in_chunk * view.v->r;
        int r = codec_encode_values(view, l->exact[SIDE_V] + off, stride, n, s->eval->keys, codes,
                                    &s->table->counts[SIDE_V], scratch);

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

/* A full chunk goes into its page, and its rows come back out of it. */
static void seq_eval_pack_chunk(struct kvc_seq *s, uint32_t layer, size_t chunk)
{
    struct eval_layer *l = &s->eval->layers[layer];
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
    seq_eval_turn_back(s, layer, chunk * CHUNK_TOKENS, CHUNK_TOKENS);
    s->layers[layer].n_packed = chunk + 1;
}

int eval_load(struct kvc_seq *s, uint32_t layer, enum kvc_dtype dtype, const kvc_append_item *item)
{
    size_t end = s->layers[layer].length + item->n_new;
    int r;

    if (seq_eval_grow(s, end) < 0)
        return fail(&s->model->client->error, -ENOMEM, "out of memory for %zu tokens of evaluation", end);
    r = seq_eval_load(s, layer, SIDE_K, dtype, item->k, item->n_new);
    if (r == 0)
        r = seq_eval_load(s, layer, SIDE_V, dtype, item->v, item->n_new);
    if (r == 0 && end / CHUNK_TOKENS > s->n_pages)
        r = seq_claim(s, end / CHUNK_TOKENS);
    return r;
}

void eval_append(struct kvc_seq *s, uint32_t layer, size_t n_new)
{
    struct layer *l = &s->layers[layer];
    size_t end = l->length + n_new;

    for (size_t at = l->length; at < end;) {
        size_t room = CHUNK_TOKENS - at % CHUNK_TOKENS, n = end - at < room ? end - at : room;

        seq_eval_encode_keys(s, layer, at, n);
        seq_eval_encode_values(s, layer, at, n);
        at += n;
        if (at % CHUNK_TOKENS == 0)
            seq_eval_pack_chunk(s, layer, at / CHUNK_TOKENS - 1);
    }
    l->length = end;
}

/* ---- reading ---- */

size_t eval_scratch_bytes(const struct kvc_seq *s, size_t n_q)
{
    return attend_dense_scratch_bytes(&s->model->geometry, s->eval->rows_max, n_q);
}

void eval_attend(struct kvc_seq *s, uint32_t layer, uint32_t head, const struct eval_queries *queries,
                 void *scratch)
{
    struct kvc_model *m = s->model;
    const struct eval *v = s->eval;
    const struct eval_layer *l = &v->layers[layer];
    uint32_t d = m->geometry.d, group = geometry_group(&m->geometry);
    size_t stride = (size_t) m->n_q_heads * d, off = (size_t) head * d,
           q_off = queries->first * stride + off * group;
    struct attend_dense_args a = {
        .geometry = &m->geometry,
        .exact_k = l->exact[SIDE_K] + off,
        .exact_v = l->exact[SIDE_V] + off,
        .decoded_k = seq_eval_coded_rows(s, layer, SIDE_K) + off,
        .decoded_v = seq_eval_coded_rows(s, layer, SIDE_V) + off,
        .row_stride = seq_eval_row_stride(s),
        .n_sink = v->n_sink,
        .n_recent = v->n_recent,
        .q = queries->q + q_off,
        .q_stride = stride,
        .q_first = s->layers[layer].length - queries->n_q + queries->first,
        .n_q = queries->n,
        .out = queries->out + q_off,
        .out_stride = stride,
        .scratch = scratch,
        .window = queries->window,
    };

    attend_dense(&a);
}

void eval_read(const struct kvc_seq *s, uint32_t layer, enum kvc_side side, size_t first, size_t n,
               float *out)
{
    const float *exact = s->eval->layers[layer].exact[side],
                *coded = seq_eval_coded_rows(s, layer, (enum side) side);
    size_t stride = seq_eval_row_stride(s);

    for (size_t t = first; t < first + n; t++)
        memcpy(out + (t - first) * stride, (t < s->eval->n_sink ? exact : coded) + t * stride,
               stride * sizeof(*out));
}

/* ---- the rest ---- */

/* Exact inside the chunk being filled, whose codes are here; a packed chunk is not opened again. */
size_t eval_truncate(struct kvc_seq *s, size_t n)
{
    size_t n_packed = 0, length = seq_length(s);

    if (n > length)
        n = length;
    for (uint32_t i = 0; i < seq_n_layers(s); i++)
        if (s->layers[i].n_packed > n_packed)
            n_packed = s->layers[i].n_packed;
    if (n < n_packed * CHUNK_TOKENS) {
        n = n / CHUNK_TOKENS * CHUNK_TOKENS;
        n_packed = n / CHUNK_TOKENS;
    }
    for (uint32_t i = 0; i < seq_n_layers(s); i++) {
        s->layers[i].length = n;
        if (s->layers[i].n_packed > n_packed)
            s->layers[i].n_packed = n_packed;
    }
    seq_drop_pages(s, n_packed);
    return n;
}

size_t eval_tail_tokens(const struct kvc_seq *s)
{
    size_t length = seq_length(s);

    if (s->eval->n_recent < 0)
        return length - chunks_due(length) * CHUNK_TOKENS;
    return (size_t) s->eval->n_recent < length ? (size_t) s->eval->n_recent : length;
}

uint32_t eval_n_sink(const struct kvc_seq *s)
{
    return s->eval->n_sink;
}
