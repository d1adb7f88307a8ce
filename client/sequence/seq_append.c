/*
 * Appending: a token goes into the tail as binary16 of x - mean; chunks that are old enough go from the tail
 * into pages. One token is converted, checked and stored without a system call and without allocating.
 */
#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/half.h"
#include "client/connection/client.h"
#include "client/connection/options.h"
#include "client/sequence/seq.h"
#include "client/gpu/seq_gpu.h"

_Static_assert(KVC_F32 == (int) DTYPE_F32 && KVC_F16 == (int) DTYPE_F16 && KVC_BF16 == (int) DTYPE_BF16,
               "number types");

static const char *const side_names[] = {"K", "V"};

static const struct codec *seq_append_codec_of(const struct kvc_seq *s, uint32_t layer, uint32_t head,
                                               enum side side)
{
    return table_codec(s->table->table, layer, s->model->shard.first_head + head, side);
}

/* ---- tail ---- */

/* All layers' tails with room for @want rows; all or none: a failure changes nothing. */
static int seq_append_resize_tail(struct kvc_seq *s, size_t want)
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
    return s->gpu ? seq_gpu_resize_tail(s, rows) : seq_append_resize_tail(s, rows);
}

void seq_trim_tail(struct kvc_seq *s)
{
    struct errmsg *e = &s->model->client->error, before = *e;

    for (uint32_t i = 0; i < seq_n_layers(s); i++)
        if (s->layers[i].length - s->layers[i].n_packed * CHUNK_TOKENS >= TAIL_ROWS_MIN)
            return;
    if (s->tail_rows > TAIL_ROWS_MIN &&
        (s->gpu ? seq_gpu_resize_tail : seq_append_resize_tail)(s, TAIL_ROWS_MIN) < 0)
        *e = before; /* without memory to copy into it stays long */
}

static int seq_append_bad_number(const struct kvc_seq *s, uint32_t layer, uint32_t head, enum side side,
                                 size_t token, float x)
{
    struct errmsg *e = &s->model->client->error;

    head += s->model->shard.first_head;
    if (isfinite(x))
        return fail(e, -EINVAL,
                    "layer %u, KV head %u, %s of new token %zu: %g is too far from the table's mean for "
                    "binary16",
                    layer, head, side_names[side], token, (double) x);
    return fail(e, -EINVAL, "layer %u, KV head %u, %s of new token %zu is not finite", layer, head,
                side_names[side], token);
}

/* Stores the piece behind the rows that are there; they count only when the caller raises the length. */
static int seq_append_store_rows(struct kvc_seq *s, uint32_t layer, enum side side, enum kvc_dtype dtype,
                                 const void *from, size_t n_new)
{
    struct layer *l = &s->layers[layer];
    uint32_t n_heads = s->model->shard.n_heads, d = s->model->geometry.d;
    size_t at = l->length - l->n_packed * CHUNK_TOKENS;
    float x[GEOMETRY_DIM_MAX];

    for (size_t t = 0; t < n_new; t++)
        for (uint32_t h = 0; h < n_heads; h++) {
            const float *mean = seq_append_codec_of(s, layer, h, side)->mean;
            uint16_t *row = l->rows[side] + seq_row(s, h, at + t);

            dtype_load(dtype, from, (t * n_heads + h) * d, d, x);
            for (uint32_t i = 0; i < d; i++) {
                row[i] = f32_to_f16(x[i] - mean[i]);
                if ((row[i] & 0x7c00) == 0x7c00) /* NaN, infinity, or beyond 65504 */
                    return seq_append_bad_number(s, layer, h, side, t, x[i]);
            }
        }
    return 0;
}

/* ---- from tail to page ---- */

/*
 * One head and side of the oldest chunk in the tail; keys of all heads before any values. Sinks stay exact in
 * the page; their code positions, which readers mask, hold the code of the mean, so that their norms do not
 * count as drift.
 */
static void seq_append_pack_head(struct kvc_seq *s, uint32_t layer, uint32_t head, enum side side,
                                 size_t chunk, bool sampled)
{
    const struct page_layout *layout = &s->table->layout;
    struct scratch *scratch = &s->model->scratch;
    const struct codec *codec = seq_append_codec_of(s, layer, head, side);
    const uint16_t *rows = s->layers[layer].rows[side] + seq_row(s, head, 0);
    uint8_t *payload = page_payload(s->pages[chunk]);
    uint32_t d = s->model->geometry.d, n_sink = chunk == 0 ? s->table->table->n_sink : 0;
    int r;

    if (n_sink > 0)
        memcpy(payload + page_sink_off(layout, layer, head, side), rows, (size_t) n_sink * d * sizeof(*rows));
    for (size_t t = 0; t < CHUNK_TOKENS; t++)
        for (uint32_t i = 0; i < d; i++)
            scratch->rows[t * d + i] =
                t < n_sink ? codec->enc_mean[i] : codec->mean[i] + f16_to_f32(rows[t * d + i]);
    r = chunk_encode(layout, layer, head, side, scratch->rows, d, payload, &s->table->counts[side],
                     &scratch->chunk);
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

                seq_append_pack_head(s, layer, h, (enum side) side, l->n_packed, sampled);
                memmove(rows, rows + CHUNK_TOKENS * d, left * d * sizeof(*rows));
            }
        l->n_packed++;
    }
    return 0;
}

/* ---- the calls ---- */

static int seq_append_check_item(const kvc_append_item *item, uint32_t layer, enum kvc_dtype dtype,
                                 struct kvc_client *c)
{
    struct kvc_seq *s = item->seq;
    struct errmsg *e = &c->error;

    if (!s || s->model->client != c)
        return fail(e, -EINVAL, "a batch is of sequences of one client");
    if (s->last_append == c->n_appends)
        return fail(e, -EINVAL, "a sequence may stand in a batch once");
    s->last_append = c->n_appends;
    s->n_pages_before = s->n_pages;
    if (layer >= seq_n_layers(s))
        return fail(e, -EINVAL, "layer %u: the model has %u", layer, seq_n_layers(s));
    if (dtype_bytes(dtype) == 0)
        return fail(e, -EINVAL, "unknown number type %d", (int) dtype);
    if (item->n_new > 0 && (!item->k || !item->v))
        return fail(e, -EINVAL, "k or v of %zu new tokens is NULL", item->n_new);
    if (item->n_new > KVC_APPEND_TOKENS_MAX)
        return fail(e, -EINVAL, "%zu tokens in one call, at most %d", item->n_new, KVC_APPEND_TOKENS_MAX);
    return seq_check_whole(s);
}

/* All that can fail: the new rows stand behind those that are there, and pages are claimed.
 * seq_append_take_in() makes them count. */
static int seq_append_bring(const kvc_append_item *item, uint32_t layer, enum kvc_dtype dtype)
{
    struct kvc_seq *s = item->seq;
    const struct layer *l = &s->layers[layer];
    size_t rows = l->length - l->n_packed * CHUNK_TOKENS + item->n_new, n_pages;
    int r;

    if (item->n_new == 0)
        return 0;
    if (s->eval)
        return eval_load(s, layer, dtype, item);
    if (seq_grow_tail(s, rows) < 0)
        return fail(&s->model->client->error, -ENOMEM, "out of memory for a tail of %zu tokens", rows);
    r = seq_append_store_rows(s, layer, SIDE_K, dtype, item->k, item->n_new);
    if (r == 0)
        r = seq_append_store_rows(s, layer, SIDE_V, dtype, item->v, item->n_new);
    /* pages that this append lets be packed, now, at the next append or at a commit */
    n_pages = chunks_due(l->length + item->n_new);
    return r == 0 && n_pages > s->n_pages ? seq_claim(s, n_pages) : r;
}

static void seq_append_take_in(const kvc_append_item *item, uint32_t layer)
{
    struct kvc_seq *s = item->seq;
    size_t due = chunks_due(s->layers[layer].length +
                            1); /* before the first new token: a decode step sees 64 to 127 exact ones */

    if (item->n_new == 0)
        return;
    if (s->eval) {
        eval_append(s, layer, item->n_new);
        return;
    }
    s->layers[layer].length +=
        item->n_new; /* the new rows move along when chunks in front of them are packed */
    (void) seq_pack_layer(s, layer, due); /* which cannot fail: this is not on a GPU */
}

/* A failure leaves no sequence with more pages than it had. */
static void seq_append_drop_claims(const kvc_append_item *items, size_t n)
{
    for (size_t i = 0; i < n; i++)
        seq_drop_pages(items[i].seq, items[i].seq->n_pages_before);
}

/* The sentence of what failed with item @i of @n, which says so where there are several. */
static int seq_append_fail_item(struct kvc_client *c, int r, size_t i, size_t n)
{
    struct errmsg why = c->error;

    return n > 1 ? fail(&c->error, r, "sequence %zu of the batch: %.*s", i, (int) sizeof(why.text) - 64,
                        why.text)
                 : r;
}

static int append_items(struct kvc_client *c, const kvc_append_item *items, size_t n, uint32_t layer,
                        enum kvc_dtype dtype)
{
    bool capturing = c->gpu && gpu_is_capturing(c->gpu);
    size_t i;
    int r = 0;

    c->n_appends++;
    for (i = 0; r == 0 && i < n; i++)
        r = seq_append_check_item(&items[i], layer, dtype, c);
    if (r < 0)
        return seq_append_fail_item(c, r, i - 1, n);
    r = c->gpu ? seq_gpu_append_reserve(c, n) : 0;
    if (r < 0)
        return r;
    for (i = 0; r == 0 && i < n; i++)
        r = c->gpu ? seq_gpu_append_prepare(&items[i], layer, capturing)
                   : seq_append_bring(&items[i], layer, dtype);
    if (r < 0) {
        seq_append_drop_claims(items, i);
        return seq_append_fail_item(c, r, i - 1, n);
    }
    if (c->gpu)
        return seq_gpu_append(c, items, n, layer, dtype, capturing);
    for (i = 0; i < n; i++)
        seq_append_take_in(&items[i], layer);
    return 0;
}

int kvc_seq_append(kvc_seq *s, uint32_t layer, enum kvc_dtype dtype, const void *k, const void *v,
                   size_t n_new)
{
    const kvc_append_item item = {.seq = s, .k = k, .v = v, .n_new = n_new};
    int r = seq_enter(s);

    return r < 0 ? r : append_items(s->model->client, &item, 1, layer, dtype);
}

int kvc_seq_append_batch(const kvc_append_item *items, size_t n, uint32_t layer, enum kvc_dtype dtype)
{
    _cleanup_(freep) void *copy = NULL;
    struct kvc_client *c;
    int r;

    if (n == 0)
        return 0;
    if (!items || options_check(items->struct_bytes, sizeof(*items), "", NULL) < 0 || !items->seq)
        return -EINVAL;

    c = items->seq->model->client;
    r = seq_enter(items->seq);
    if (r < 0)
        return r;

    r = options_read_items(items, n, sizeof(*items), sizeof(*items), "kvc_append_item", &copy, &c->error);
    if (r < 0)
        return r;

    return append_items(c, copy ? copy : items, n, layer, dtype);
}
