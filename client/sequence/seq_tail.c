/* See seq_tail.h. */
#include "client/sequence/seq_tail.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/half.h"
#include "client/sequence/seq_ops.h"
#include "gpu/dtype.h"

enum { STORE_TOKENS = 16 }; /* converted at a time, so that they stay in the nearest cache */

/* ---- room ---- */

int seq_grow_tail(struct kvc_seq *s, size_t rows)
{
    if (rows <= s->tail_rows)
        return 0;

    return s->ops->resize_tail(s, (rows + CHUNK_TOKENS - 1) / CHUNK_TOKENS * CHUNK_TOKENS);
}

void seq_trim_tail(struct kvc_seq *s)
{
    struct errmsg *e = &s->model->client->error, before = *e;

    for (uint32_t i = 0; i < seq_n_layers(s); i++)
        if (seq_tail_n_rows(&s->layers[i]) >= TAIL_ROWS_MIN)
            return;

    if (s->tail_rows > TAIL_ROWS_MIN && s->ops->resize_tail(s, TAIL_ROWS_MIN) < 0)
        *e = before; /* without memory for the copy the tail stays long */
}

/* New buffers for all layers and sides; those that are not NULL are freed with the array. */
struct tail_buffers {
    uint16_t **at; /* [n] */
    uint32_t n;
};

static void seq_tail_buffers_deinit(struct tail_buffers *b)
{
    for (uint32_t i = 0; b->at && i < b->n; i++)
        free(b->at[i]);
    free(b->at);
}

int seq_tail_resize(struct kvc_seq *s, size_t rows)
{
    uint32_t n_heads = s->model->shard.n_heads, n = 2 * seq_n_layers(s);
    size_t width = seq_tail_width(s);
    _cleanup_(seq_tail_buffers_deinit) struct tail_buffers fresh = {calloc(n, sizeof(uint16_t *)), n};

    if (!fresh.at)
        return -ENOMEM;

    for (uint32_t i = 0; i < n; i++) {
        fresh.at[i] = calloc((size_t) n_heads * rows, width * sizeof(uint16_t));
        if (!fresh.at[i])
            return -ENOMEM;
    }

    for (uint32_t i = 0; i < n; i++) {
        struct layer *l = &s->layers[i / 2];
        uint16_t *old = l->rows[i % 2];

        for (uint32_t h = 0; old && h < n_heads; h++)
            memcpy(fresh.at[i] + (size_t) h * rows * width, old + seq_tail_row(s, h, 0),
                   seq_tail_n_rows(l) * width * sizeof(uint16_t));
        l->rows[i % 2] = fresh.at[i];
        fresh.at[i] = old;
    }

    s->tail_rows = rows;
    return 0;
}

/* ---- rows ---- */

static int seq_tail_refuse_number(const struct kvc_seq *s, uint32_t layer, uint32_t head, enum side side,
                                  size_t token, float x)
{
    struct errmsg *e = &s->model->client->error;
    const char *name = side == SIDE_K ? "K" : "V";

    head += s->model->shard.first_head;
    if (isfinite(x))
        return fail(
            e, -EINVAL,
            "layer %u, KV head %u, %s of new token %zu: %g is too far from the table's mean for binary16",
            layer, head, name, token, (double) x);

    return fail(e, -EINVAL, "layer %u, KV head %u, %s of new token %zu is not finite", layer, head, name,
                token);
}

/* The number of vector @x that binary16 does not have. */
static float seq_tail_bad_number(const float *x, const float *mean, uint32_t d)
{
    for (uint32_t i = 0; i + 1 < d; i++)
        if (!isfinite(f16_to_f32(f32_to_f16(x[i] - mean[i]))))
            return x[i];
    return x[d - 1];
}

/* seq_tail_store_head() for an exact table: rows are the caller's bytes. */
static size_t seq_tail_copy_head(const char *from, const struct seq_vectors *v, uint16_t *rows,
                                 float *ret_bad)
{
    size_t bytes = dtype_bytes(v->dtype), row = v->d * bytes;

    for (size_t t = 0; t < v->n_tokens; t++, from += v->token_stride * bytes) {
        uint32_t i = 0;

        memcpy((char *) rows + t * row, from, row);
        if (dtype_all_finite(v->dtype, (char *) rows + t * row, v->d))
            continue;
        do
            dtype_load(v->dtype, (char *) rows + t * row, i++, 1, ret_bad);
        while (isfinite(*ret_bad));
        return t;
    }
    return v->n_tokens;
}

/* Rows of one head. Return: the first token whose row cannot be stored, with a number of it; all: none. */
static size_t seq_tail_store_head(struct vector_form f, const char *from, const struct seq_vectors *v,
                                  const float *mean, uint16_t *rows, float *ret_bad)
{
    size_t bytes = dtype_bytes(v->dtype), planes = f.geometry->n_rot / 2;
    float x[STORE_TOKENS * GEOMETRY_DIM_MAX];

    for (size_t t = 0; t < v->n_tokens; t += STORE_TOKENS) {
        size_t n = v->n_tokens - t < STORE_TOKENS ? v->n_tokens - t : STORE_TOKENS, good;

        vectors_load(&f, from + t * v->token_stride * bytes, v->token_stride, n, x, v->d);
        good = vectors_centre(x, n, v->d, mean, rows + t * v->d);
        if (good < n) {
            *ret_bad = seq_tail_bad_number(x + good * v->d, mean, v->d);
            return t + good;
        }
        if (f.cos) {
            f.cos += n * planes;
            f.sin += n * planes;
        }
    }
    return v->n_tokens;
}

int seq_tail_store(struct kvc_seq *s, uint32_t layer, enum side side, size_t n_stored, const void *from,
                   const struct seq_vectors *v)
{
    struct layer *l = &s->layers[layer];
    struct vector_form form = seq_form_of(s, side, v->dtype, l->length + n_stored);
    size_t at = seq_tail_n_rows(l) + n_stored, bytes = dtype_bytes(v->dtype);

    for (uint32_t h = 0; h < v->n_heads; h++) {
        const float *mean = table_codec(s->table->table, layer, s->model->shard.first_head + h, side)->mean;
        const char *head = (const char *) from + h * v->head_stride * bytes;
        uint16_t *rows = l->rows[side] + seq_tail_row(s, h, at);
        float bad = 0;
        size_t good = table_is_exact(s->table->table) ? seq_tail_copy_head(head, v, rows, &bad)
                                                      : seq_tail_store_head(form, head, v, mean, rows, &bad);

        if (good < v->n_tokens)
            return seq_tail_refuse_number(s, layer, h, side, n_stored + good, bad);
    }
    return 0;
}

int seq_tail_copy(struct kvc_seq *to, const struct kvc_seq *from)
{
    uint32_t n_heads = from->model->shard.n_heads;
    size_t width = seq_tail_width(from);

    for (uint32_t i = 0; i < seq_n_layers(from); i++) {
        const struct layer *l = &from->layers[i];

        to->layers[i].length = l->length;
        to->layers[i].n_packed = l->n_packed;
        for (uint32_t h = 0; h < n_heads; h++)
            for (unsigned side = 0; side < 2; side++)
                memcpy(to->layers[i].rows[side] + seq_tail_row(to, h, 0),
                       l->rows[side] + seq_tail_row(from, h, 0),
                       seq_tail_n_rows(l) * width * sizeof(uint16_t));
    }

    return 0;
}
