/*
 * Appending: a token goes into the tail as binary16 of x - mean; chunks that are old enough go from the tail into
 * pages. One token is converted, checked and stored without a system call and without allocating.
 */
#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/half.h"
#include "client/client.h"
#include "client/seq.h"
#include "client/seq_gpu.h"

_Static_assert(KVC_F32 == (int) DTYPE_F32 && KVC_F16 == (int) DTYPE_F16 && KVC_BF16 == (int) DTYPE_BF16, "number types");

static const char *const side_names[] = { "K", "V" };

static const struct codec *codec_of(const struct kvc_seq *s, uint32_t layer, uint32_t head, enum side side)
{
    return table_codec(s->table->table, layer, s->model->shard.first_head + head, side);
}

/* ---- tail -------------------------------------------------------------------------------------------------------- */

/* All layers' tails with room for @want rows; all or none: a failure changes nothing. */
static int resize_tail(struct kvc_seq *s, size_t want)
{
    uint32_t n_heads = s->model->shard.n_heads, d = s->model->geometry.d;
    uint32_t n_buffers = 2 * seq_n_layers(s), i;
    uint16_t **fresh = calloc(n_buffers, sizeof(*fresh));

    if (!fresh)
        return -ENOMEM;
    for (i = 0; i < n_buffers; i++) {
        fresh[i] = calloc((size_t) n_heads * want, d * sizeof(uint16_t));
        if (!fresh[i])
            break;
    }
    if (i < n_buffers) {
        while (i-- > 0)
            free(fresh[i]);
        free(fresh);
        return -ENOMEM;
    }
    for (i = 0; i < n_buffers; i++) {
        struct layer *l = &s->layers[i / 2];
        uint16_t **at = &l->rows[i % 2];

        for (uint32_t h = 0; h < n_heads && *at; h++)
            memcpy(fresh[i] + (size_t) h * want * d, *at + seq_row(s, h, 0),
                   (l->length - l->n_packed * CHUNK_TOKENS) * d * sizeof(uint16_t));
        free(*at);
        *at = fresh[i];
    }
    free(fresh);
    s->tail_rows = want;
    return 0;
}

int seq_grow_tail(struct kvc_seq *s, size_t rows)
{
    if (rows <= s->tail_rows)
        return 0;
    rows = (rows + CHUNK_TOKENS - 1) / CHUNK_TOKENS * CHUNK_TOKENS;
    return s->gpu ? seq_gpu_resize_tail(s, rows) : resize_tail(s, rows);
}

void seq_trim_tail(struct kvc_seq *s)
{
    struct errmsg *e = &s->model->client->error, before = *e;

    for (uint32_t i = 0; i < seq_n_layers(s); i++)
        if (s->layers[i].length - s->layers[i].n_packed * CHUNK_TOKENS >= TAIL_ROWS_MIN)
            return;
    if (s->tail_rows > TAIL_ROWS_MIN && (s->gpu ? seq_gpu_resize_tail : resize_tail)(s, TAIL_ROWS_MIN) < 0)
        *e = before; /* without memory to copy into it stays long */
}

static int bad_number(const struct kvc_seq *s, uint32_t layer, uint32_t head, enum side side, size_t token, float x)
{
    struct errmsg *e = &s->model->client->error;

    head += s->model->shard.first_head;
    if (isfinite(x))
        return fail(e, -EINVAL, "layer %u, KV head %u, %s of new token %zu: %g is too far from the table's mean for "
                    "binary16", layer, head, side_names[side], token, (double) x);
    return fail(e, -EINVAL, "layer %u, KV head %u, %s of new token %zu is not finite", layer, head, side_names[side],
                token);
}

/* Stores the piece behind the rows that are there; they count only when the caller raises the length. */
static int store_rows(struct kvc_seq *s, uint32_t layer, enum side side, enum kvc_dtype dtype, const void *from,
                      size_t n_new)
{
    struct layer *l = &s->layers[layer];
    uint32_t n_heads = s->model->shard.n_heads, d = s->model->geometry.d;
    size_t at = l->length - l->n_packed * CHUNK_TOKENS;
    float x[GEOMETRY_DIM_MAX];

    for (size_t t = 0; t < n_new; t++)
        for (uint32_t h = 0; h < n_heads; h++) {
            const float *mean = codec_of(s, layer, h, side)->mean;
            uint16_t *row = l->rows[side] + seq_row(s, h, at + t);

            dtype_load(dtype, from, (t * n_heads + h) * d, d, x);
            for (uint32_t i = 0; i < d; i++) {
                row[i] = f32_to_f16(x[i] - mean[i]);
                if ((row[i] & 0x7c00) == 0x7c00) /* NaN, infinity, or beyond 65504 */
                    return bad_number(s, layer, h, side, t, x[i]);
            }
        }
    return 0;
}

/* ---- from tail to page ------------------------------------------------------------------------------------------- */

/*
 * One head and side of the oldest chunk in the tail; keys of all heads before any values. Sinks stay exact in the page;
 * their code positions, which readers mask, hold the code of the mean, so that their norms do not count as drift.
 */
static void pack_head(struct kvc_seq *s, uint32_t layer, uint32_t head, enum side side, size_t chunk, bool sampled)
{
    const struct page_layout *layout = &s->table->layout;
    struct scratch *scratch = &s->model->scratch;
    const struct codec *codec = codec_of(s, layer, head, side);
    const uint16_t *rows = s->layers[layer].rows[side] + seq_row(s, head, 0);
    uint8_t *payload = page_payload(s->pages[chunk]);
    uint32_t d = s->model->geometry.d, n_sink = chunk == 0 ? s->table->table->n_sink : 0;
    int r;

    if (n_sink > 0)
        memcpy(payload + page_sink_off(layout, layer, head, side), rows, (size_t) n_sink * d * sizeof(*rows));
    for (size_t t = 0; t < CHUNK_TOKENS; t++)
        for (uint32_t i = 0; i < d; i++)
            scratch->rows[t * d + i] = t < n_sink ? codec->enc_mean[i] : codec->mean[i] + f16_to_f32(rows[t * d + i]);
    r = (side == SIDE_K ? chunk_encode_keys : chunk_encode_values)(layout, layer, head, scratch->rows, d, payload,
                                                                   &s->table->counts[side], &scratch->chunk);
    assert(r == 0); /* the tail holds finite numbers only */
    (void) r;
    if (sampled)
        watch_head(s, layer, head, side, scratch->rows, payload);
}

int seq_pack_layer(struct kvc_seq *s, uint32_t layer, size_t n_chunks)
{
    struct layer *l = &s->layers[layer];
    uint32_t n_heads = s->model->shard.n_heads, d = s->model->geometry.d;

    if (s->gpu)
        return seq_gpu_pack_layer(s, layer, n_chunks);
    while (l->n_packed < n_chunks) {
        size_t left = l->length - (l->n_packed + 1) * CHUNK_TOKENS;
        bool sampled = watch_samples(s, l->n_packed);

        for (unsigned side = SIDE_K; side <= SIDE_V; side++)
            for (uint32_t h = 0; h < n_heads; h++) {
                uint16_t *rows = l->rows[side] + seq_row(s, h, 0);

                pack_head(s, layer, h, (enum side) side, l->n_packed, sampled);
                memmove(rows, rows + CHUNK_TOKENS * d, left * d * sizeof(*rows));
            }
        l->n_packed++;
    }
    return 0;
}

/* ---- the call ---------------------------------------------------------------------------------------------------- */

static int check_arguments(struct kvc_seq *s, uint32_t layer, enum kvc_dtype dtype, const void *k, const void *v,
                           size_t n_new)
{
    struct errmsg *e = &s->model->client->error;

    if (layer >= seq_n_layers(s))
        return fail(e, -EINVAL, "layer %u: the model has %u", layer, seq_n_layers(s));
    if (dtype_bytes(dtype) == 0)
        return fail(e, -EINVAL, "unknown number type %d", (int) dtype);
    if (n_new > 0 && (!k || !v))
        return fail(e, -EINVAL, "kvc_seq_append: k or v is NULL");
    if (n_new > KVC_APPEND_TOKENS_MAX)
        return fail(e, -EINVAL, "%zu tokens in one call, at most %d", n_new, KVC_APPEND_TOKENS_MAX);
    return seq_check_whole(s);
}

static int append(struct kvc_seq *s, uint32_t layer, enum kvc_dtype dtype, const void *k, const void *v, size_t n_new)
{
    struct layer *l = &s->layers[layer];
    size_t rows = l->length - l->n_packed * CHUNK_TOKENS, due, n_pages;
    int r;

    if (seq_grow_tail(s, rows + n_new) < 0)
        return fail(&s->model->client->error, -ENOMEM, "out of memory for a tail of %zu tokens", rows + n_new);
    r = store_rows(s, layer, SIDE_K, dtype, k, n_new);
    if (r == 0)
        r = store_rows(s, layer, SIDE_V, dtype, v, n_new);
    if (r < 0)
        return r;
    /* pages that this append lets be packed, now, at the next append or at a commit: after this nothing can fail */
    n_pages = chunks_due(l->length + n_new);
    if (n_pages > s->n_pages) {
        r = seq_claim(s, n_pages);
        if (r < 0)
            return r;
    }
    /* before the first new token: 64 (c + 2) <= length + 1, so that a decode step sees 64 to 127 exact ones */
    due = chunks_due(l->length + 1);
    l->length += n_new; /* the new rows move along when chunks in front of them are packed */
    return seq_pack_layer(s, layer, due);
}

int kvc_seq_append(kvc_seq *s, uint32_t layer, enum kvc_dtype dtype, const void *k, const void *v, size_t n_new)
{
    int r = seq_enter(s);

    if (r < 0)
        return r;
    r = check_arguments(s, layer, dtype, k, v, n_new);
    if (r < 0 || n_new == 0)
        return r;
    if (s->gpu)
        return seq_gpu_append(s, layer, dtype, k, v, n_new);
    return s->eval ? eval_append(s, layer, dtype, k, v, n_new) : append(s, layer, dtype, k, v, n_new);
}
