/* See raw_codec.h. One layer is in memory at a time. */
#include "daemon/requests/raw_codec.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/core_file.h"
#include "base/errmsg.h"
#include "base/fd_io.h"
#include "base/half.h"
#include "gpu/dtype.h"

static const char *const side_names[] = {"K", "V"};

struct raw_codec_workspace {
    void *numbers;  /* [64, heads, d] as in the arena */
    float *rows[2]; /* [64, heads, d] by side */
    struct chunk_work chunk;
};

static void raw_codec_workspace_deinit(struct raw_codec_workspace *w)
{
    free(w->numbers);
    free(w->rows[SIDE_K]);
    free(w->rows[SIDE_V]);
    chunk_work_deinit(&w->chunk);
}

/* @n: numbers of one side of a layer. */
static int raw_codec_workspace_init(struct raw_codec_workspace *w, const struct page_layout *l, size_t n,
                                    struct errmsg *e)
{
    *w = (struct raw_codec_workspace){
        .numbers = calloc(n, sizeof(float)),
        .rows = {calloc(n, sizeof(float)), calloc(n, sizeof(float))},
    };
    if (w->numbers && w->rows[0] && w->rows[1] &&
        chunk_work_init(&w->chunk, &l->table->geometry, l->shard) == 0) {
        core_file_exclude(w->numbers, n * sizeof(float));
        for (unsigned side = 0; side < 2; side++)
            core_file_exclude(w->rows[side], n * sizeof(float));
        return 0;
    }
    return fail(e, -ENOMEM, "kvcobrad is out of memory for %zu numbers of vectors", n);
}

static size_t raw_codec_layer_numbers(const struct page_layout *l)
{
    return (size_t) CHUNK_TOKENS * l->shard.n_heads * l->table->geometry.d;
}

bool raw_codec_bytes(const struct page_layout *l, unsigned dtype, uint32_t n_layers, uint64_t *ret)
{
    size_t bytes;

    if (!checked_mul(raw_codec_layer_numbers(l), dtype_bytes(dtype), &bytes) ||
        !checked_mul(bytes, n_layers, &bytes))
        return false;

    *ret = bytes;
    return true;
}

/* ---- the arena ---- */

static int raw_codec_read_all(const struct raw_place *p, uint64_t offset, void *to, size_t bytes,
                              struct errmsg *e)
{
    int r = fd_pread_all(p->fd, to, bytes, p->offset + offset);

    if (r == -ENODATA)
        r = -EIO;
    if (r < 0)
        return fail(e, r, "cannot read the arena: %s", strerror(-r));
    return 0;
}

static int raw_codec_write_all(const struct raw_place *p, const void *from, size_t bytes, struct errmsg *e)
{
    int r = fd_pwrite_all(p->fd, from, bytes, p->offset);

    if (r < 0)
        return fail(e, r, "cannot write to the arena: %s", strerror(-r));
    return 0;
}

/* ---- encode ---- */

/*
 * Stores the sinks of one head and side as binary16 of x - mean. In the rows to encode, the mean replaces the
 * sinks, as in every page of class first: their norms would count as drift.
 */
static int raw_codec_take_sinks(const struct page_layout *l, uint32_t layer, uint32_t head, enum side side,
                                float *rows, size_t stride, uint8_t *payload, struct errmsg *e)
{
    const struct codec *codec = table_codec(l->table, layer, l->shard.first_head + head, side);
    uint8_t *to = payload + page_sink_off(l, layer, head, side);
    uint32_t d = l->table->geometry.d;

    for (uint32_t t = 0; t < l->table->n_sink; t++)
        for (uint32_t i = 0; i < d; i++) {
            float *x = &rows[t * stride + i];
            uint16_t h = f32_to_f16(*x - codec->mean[i]);

            if ((h & 0x7c00) == 0x7c00)
                return fail(e, -EINVAL,
                            "layer %" PRIu32 ", KV head %" PRIu32 ", %s of token %" PRIu32
                            ": %g does not fit binary16 around the table's mean",
                            layer, l->shard.first_head + head, side_names[side], t, (double) *x);

            memcpy(to + (t * d + i) * sizeof(h), &h, sizeof(h));
            *x = codec->enc_mean[i];
        }
    return 0;
}

/* Encodes one head and side. The keys of all heads of a layer come before its values. */
static int raw_codec_encode_head(const struct page_layout *l, uint32_t layer, uint32_t head, enum side side,
                                 bool first, struct raw_codec_workspace *w, uint8_t *payload,
                                 struct encode_counts counts[2], struct errmsg *e)
{
    uint32_t d = l->table->geometry.d;
    size_t stride = (size_t) l->shard.n_heads * d;
    float *rows = w->rows[side] + head * d;
    int r = first ? raw_codec_take_sinks(l, layer, head, side, rows, stride, payload, e) : 0;

    if (r < 0)
        return r;

    r = chunk_encode(l, layer, head, side, rows, stride, payload, &counts[side], &w->chunk);
    if (r < 0)
        return fail(e, r, "layer %" PRIu32 ", KV head %" PRIu32 ": a key or value is not finite", layer,
                    l->shard.first_head + head);
    return 0;
}

int raw_codec_encode(const struct page_layout *l, uint32_t layer, const struct raw_place *k,
                     const struct raw_place *v, bool first, uint8_t *payload, struct encode_counts counts[2],
                     struct errmsg *e)
{
    _cleanup_(raw_codec_workspace_deinit) struct raw_codec_workspace w = {0};
    const struct raw_place *places[2] = {k, v};
    size_t n = raw_codec_layer_numbers(l);
    int r = raw_codec_workspace_init(&w, l, n, e);

    /* a slot has bytes of earlier pages */
    if (layer == 0)
        memset(payload, 0, l->payload_bytes[first ? PAGE_FIRST : PAGE_REST]);
    for (unsigned side = SIDE_K; r == 0 && side <= SIDE_V; side++) {
        size_t bytes = n * dtype_bytes(places[side]->dtype);

        r = raw_codec_read_all(places[side], (uint64_t) layer * bytes, w.numbers, bytes, e);
        if (r == 0)
            dtype_load(places[side]->dtype, w.numbers, 0, n, w.rows[side]);
    }

    for (unsigned side = SIDE_K; side <= SIDE_V; side++)
        for (uint32_t head = 0; r == 0 && head < l->shard.n_heads; head++)
            r = raw_codec_encode_head(l, layer, head, (enum side) side, first, &w, payload, counts, e);
    return r;
}

/* ---- decode ---- */

static void raw_codec_decode_head(const struct page_layout *l, const uint8_t *payload, bool first,
                                  uint32_t layer, uint32_t head, enum side side,
                                  struct raw_codec_workspace *w)
{
    const float *mean = table_codec(l->table, layer, l->shard.first_head + head, side)->mean;
    uint32_t d = l->table->geometry.d;
    size_t stride = (size_t) l->shard.n_heads * d;
    float *rows = w->rows[0] + head * d;
    const uint8_t *sinks;

    chunk_decode(l, payload, layer, head, side, rows, stride, &w->chunk);
    if (!first)
        return;

    sinks = payload + page_sink_off(l, layer, head, side);
    for (uint32_t t = 0; t < l->table->n_sink; t++)
        for (uint32_t i = 0; i < d; i++) {
            uint16_t h;

            memcpy(&h, sinks + (t * d + i) * sizeof(h), sizeof(h));
            rows[t * stride + i] = mean[i] + f16_to_f32(h);
        }
}

int raw_codec_decode(const struct page_layout *l, const uint8_t *payload, bool first, uint32_t layer,
                     enum side side, const struct raw_place *to, struct errmsg *e)
{
    _cleanup_(raw_codec_workspace_deinit) struct raw_codec_workspace w = {0};
    size_t n = raw_codec_layer_numbers(l);
    int r = raw_codec_workspace_init(&w, l, n, e);

    if (r < 0)
        return r;

    for (uint32_t h = 0; h < l->shard.n_heads; h++)
        raw_codec_decode_head(l, payload, first, layer, h, side, &w);
    dtype_store(to->dtype, w.rows[0], n, w.numbers);
    return raw_codec_write_all(to, w.numbers, n * dtype_bytes(to->dtype), e);
}
