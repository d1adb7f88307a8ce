/* See seq_copied.h. */
#include "client/gpu/seq_copied.h"

#include <errno.h>

#include "client/gpu/gpu_memory.h"
#include "client/gpu/gpu_pointer.h"
#include "client/gpu/gpu_ring.h"
#include "client/sequence/seq.h"
#include "client/sequence/seq_form.h"
#include "client/sequence/seq_host.h"
#include "client/sequence/seq_pages.h"
#include "client/sequence/seq_tail.h"
#include "gpu/dtype.h"

enum { COPIES_IN_RING = 4 }; /* one is copied while the host works on the next one */

int seq_copied_init(struct kvc_seq *s)
{
    return gpu_check_not_capturing(s->model->client->gpu, &s->model->client->error);
}

static size_t seq_copied_least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Tokens of @n, of @token_bytes each, whose numbers are copied together. */
static size_t seq_copied_tokens(const struct gpu *g, size_t token_bytes, size_t n)
{
    size_t most = g->ring->places.bytes / COPIES_IN_RING / token_bytes;

    return seq_copied_least(most > 0 ? most : 1, n);
}

static int seq_copied_launch(struct kvc_client *c, const struct launch_copy *a)
{
    struct gpu *g = c->gpu;

    return gpu_result(g, cuda_copy_numbers(g->kernels, a, g->stream, &c->error), &c->error);
}

/* ---- appending ---- */

/* Copies vectors @first .. @first + n - 1 to the ring, without gaps. */
static int seq_copied_fetch(struct kvc_client *c, const void *from, const struct seq_vectors *v, size_t first,
                            size_t n, struct gpu_copy **ret)
{
    struct gpu *g = c->gpu;
    size_t bytes = n * v->n_heads * v->d * dtype_bytes(v->dtype);
    struct launch_copy a = {
        .caller = (void *) (uintptr_t) from,
        .dim_stride = 1,
        .token_stride = v->token_stride,
        .head_stride = v->head_stride,
        .block_tokens = UINT64_MAX,
        .first = (uint32_t) first,
        .n = (uint32_t) n,
        .n_heads = v->n_heads,
        .d = v->d,
        .number_bytes = (uint32_t) dtype_bytes(v->dtype),
    };
    struct gpu_copy *copy = NULL;
    int r = gpu_workspace_reserve(g, bytes, false, &c->error);

    if (r < 0)
        return r;

    a.dense = (void *) (uintptr_t) g->workspace.memory.at;
    r = seq_copied_launch(c, &a);
    if (r == 0)
        r = gpu_ring_take(g, bytes, &copy, &c->error);
    if (r == 0)
        r = gpu_ring_read(g, copy, g->workspace.memory.at, &c->error);
    if (r == 0)
        *ret = copy;
    return r;
}

/* Stores one side of an item as rows of the tail. */
static int seq_copied_store(const struct seq_append_call *call, const kvc_append_item *item, enum side side)
{
    struct kvc_client *c = call->client;
    const struct seq_vectors v = seq_form_appended(item, side, call->dtype);
    size_t n_most = seq_copied_tokens(c->gpu, (size_t) v.n_heads * v.d * dtype_bytes(v.dtype), v.n_tokens);
    const void *from = side == SIDE_K ? item->k : item->v;
    int r = gpu_check_pointer(c->gpu, from, side == SIDE_K ? "k" : "v", &c->error);

    for (size_t done = 0, n; r == 0 && done < v.n_tokens; done += n) {
        struct seq_vectors dense;
        struct gpu_copy *copy = NULL;

        n = seq_copied_least(n_most, v.n_tokens - done);
        r = seq_copied_fetch(c, from, &v, done, n, &copy);
        if (r < 0)
            return r;

        dense = seq_form_vectors(n, v.n_heads, v.d, v.dtype, 0, 0);
        r = seq_tail_store(item->seq, call->layer, side, done, gpu_ring_at(c->gpu, copy), &dense);
        gpu_ring_drop(c->gpu, copy);
    }
    return r;
}

int seq_copied_append_stage(const struct seq_append_call *call, const kvc_append_item *item)
{
    struct kvc_seq *s = item->seq;
    const struct layer *l = &s->layers[call->layer];
    size_t rows = seq_tail_n_rows(l) + item->n_new, n_pages;
    int r;

    if (seq_grow_tail(s, rows) < 0)
        return fail(&call->client->error, -ENOMEM, "out of memory for a tail of %zu tokens", rows);

    r = seq_form_prepare(s, l->length, item->n_new);
    for (unsigned side = SIDE_K; r == 0 && side <= SIDE_V; side++)
        r = seq_copied_store(call, item, (enum side) side);
    if (r < 0)
        return r;

    n_pages = seq_n_pages_needed(s, l->length + item->n_new);
    return n_pages > s->n_pages ? seq_claim(s, n_pages) : 0;
}

/* ---- reading ---- */

/* Positions of one layer in one copy. */
struct seq_copied_piece {
    uint32_t layer; /* of the call */
    size_t first, n;
};

/* The block of a position, counted from the first one of the call; blocks of the caller's list from 0. */
static size_t seq_copied_block(const struct seq_read_call *c, size_t position)
{
    return (c->blocks ? position : position - c->first) / c->block_tokens;
}

/* Positions of a copy that begins with @first: those that have places in the ring, and in as many blocks as a
 * launch takes. */
static size_t seq_copied_count(const struct seq_read_call *c, size_t first)
{
    const struct kvc_model *m = c->seq->model;
    size_t width = (size_t) m->shard.n_heads * m->geometry.d;
    size_t n = seq_copied_tokens(m->client->gpu, 2 * width * dtype_bytes(c->dtype), c->first + c->n - first);
    size_t in_block = (c->blocks ? first : first - c->first) % c->block_tokens;

    if (c->block_tokens < SIZE_MAX / LAUNCH_COPY_BLOCKS_MAX)
        n = seq_copied_least(n, c->block_tokens * LAUNCH_COPY_BLOCKS_MAX - in_block);
    return n;
}

/* Decodes a piece to the place, side by side, without gaps. */
static int seq_copied_decode(const struct seq_read_call *c, const struct seq_copied_piece *p, void *place)
{
    const struct kvc_model *m = c->seq->model;
    size_t width = (size_t) m->shard.n_heads * m->geometry.d;
    void *const bases[2] = {
        [KVC_K] = c->bases[2 * p->layer + KVC_K] ? place : NULL,
        [KVC_V] =
            c->bases[2 * p->layer + KVC_V] ? (char *) place + p->n * width * dtype_bytes(c->dtype) : NULL,
    };
    const struct seq_read_call call = {
        .seq = c->seq,
        .first = p->first,
        .n = p->n,
        .first_layer = c->first_layer + p->layer,
        .n_layers = 1,
        .bases = bases,
        .dim_stride = 1,
        .token_stride = width,
        .head_stride = m->geometry.d,
        .block_tokens = p->n,
        .dtype = c->dtype,
    };

    return seq_host_read_blocks(&call);
}

/* From @in on the GPU to the caller's memory. */
static int seq_copied_scatter(const struct seq_read_call *c, const struct seq_copied_piece *p,
                              const struct gpu_input *in)
{
    const struct kvc_model *m = c->seq->model;
    size_t block = seq_copied_block(c, p->first), end = seq_copied_block(c, p->first + p->n - 1) + 1;
    struct launch_copy a = {
        .dim_stride = c->dim_stride,
        .token_stride = c->token_stride,
        .head_stride = c->head_stride,
        .block_stride = c->block_stride,
        .block_tokens = c->block_tokens,
        .first = (uint32_t) ((c->blocks ? p->first : p->first - c->first) - block * c->block_tokens),
        .n = (uint32_t) p->n,
        .n_heads = m->shard.n_heads,
        .d = m->geometry.d,
        .number_bytes = (uint32_t) dtype_bytes(c->dtype),
        .to_caller = 1,
    };
    int r = 0;

    for (size_t i = block; i < end; i++)
        a.blocks[i - block] = c->blocks ? c->blocks[i] : (int64_t) i;
    for (unsigned side = 0; r == 0 && side < 2; side++) {
        a.caller = c->bases[2 * p->layer + side];
        a.dense = (void *) (uintptr_t) (in->memory.at + side * p->n * a.n_heads * a.d * a.number_bytes);
        if (a.caller)
            r = seq_copied_launch(m->client, &a);
    }
    return r;
}

static int seq_copied_read_piece(const struct seq_read_call *c, const struct seq_copied_piece *p)
{
    const struct kvc_model *m = c->seq->model;
    struct kvc_client *client = m->client;
    size_t bytes = 2 * p->n * m->shard.n_heads * m->geometry.d * dtype_bytes(c->dtype);
    struct gpu_input *in = NULL;
    struct gpu_copy *copy = NULL;
    int r = gpu_ring_take(client->gpu, bytes, &copy, &client->error);

    if (r < 0)
        return r;

    r = seq_copied_decode(c, p, gpu_ring_at(client->gpu, copy));
    if (r < 0) {
        gpu_ring_drop(client->gpu, copy);
        return r;
    }

    r = gpu_ring_fetch(client->gpu, copy, &in, &client->error);
    if (r == 0)
        r = seq_copied_scatter(c, p, in);
    return r < 0 ? r : gpu_ring_end_fetch(client->gpu, in, &client->error);
}

static int seq_copied_check_read(const struct seq_read_call *c)
{
    struct kvc_client *client = c->seq->model->client;
    int r = gpu_check_not_capturing(client->gpu, &client->error);

    for (uint32_t i = 0; r == 0 && i < 2 * c->n_layers; i++)
        if (c->bases[i])
            r = gpu_check_pointer(client->gpu, c->bases[i], "a base to read to", &client->error);
    return r;
}

int seq_copied_read_blocks(const struct seq_read_call *call)
{
    int r = seq_copied_check_read(call);

    for (uint32_t layer = 0; r == 0 && layer < call->n_layers; layer++) {
        struct seq_copied_piece p = {.layer = layer, .first = call->first};

        if (!call->bases[2 * layer + KVC_K] && !call->bases[2 * layer + KVC_V])
            continue;
        for (; r == 0 && p.first < call->first + call->n; p.first += p.n) {
            p.n = seq_copied_count(call, p.first);
            r = seq_copied_read_piece(call, &p);
        }
    }
    if (r < 0)
        return r;

    /* the bytes count if the pages are held now that all of them were read */
    connection_check(&call->seq->model->client->connection, true);
    return seq_check_whole(call->seq);
}
