/*
 * Appending to staged sequences: one launch stores the new rows of all sequences of a call, two more pack
 * chunks that are due. A sequence whose new tokens do not fit into its tail has launches of its own.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "base/checked.h"
#include "client/gpu/gpu_memory.h"
#include "client/gpu/gpu_pointer.h"
#include "client/gpu/gpu_ring.h"
#include "client/gpu/gpu_table.h"
#include "client/gpu/seq_staged.h"
#include "client/sequence/seq.h"
#include "client/sequence/seq_form.h"
#include "client/sequence/seq_ops.h"
#include "client/sequence/seq_pages.h"
#include "client/sequence/seq_tail.h"

_Static_assert(LAUNCH_F32 == (int) KVC_F32 && LAUNCH_F16 == (int) KVC_F16 && LAUNCH_BF16 == (int) KVC_BF16,
               "number types");

enum { PIECE_TOKENS = 4096 }; /* of a long append: bounds the memory for its rows */

static struct errmsg *seq_staged_append_error_of(const struct kvc_seq *s)
{
    return &s->model->client->error;
}

static struct gpu *seq_staged_append_gpu_of(const struct kvc_seq *s)
{
    return s->model->client->gpu;
}

/* ---- one append ---- */

/* Chunks that layer @l has packed when @n_new tokens are stored, and whether those fit into the tail. */
struct seq_staged_plan {
    size_t n_packed;
    bool fits;
};

static struct seq_staged_plan seq_staged_append_plan(const struct kvc_seq *s, const struct layer *l,
                                                     size_t n_new)
{
    size_t due = seq_chunks_due_before_append(s, l->length);
    struct seq_staged_plan p = {.n_packed = due > l->n_packed ? due : l->n_packed};

    p.fits = l->length - p.n_packed * CHUNK_TOKENS + n_new <= s->tail_rows;
    if (!p.fits) {
        due = seq_chunks_due(s, l->length + n_new);
        p.n_packed = due > l->n_packed ? due : l->n_packed;
    }
    return p;
}

static size_t seq_staged_append_piece_tokens(const struct kvc_seq *s)
{
    size_t most = gpu_angles_most(&s->table->gpu->angles);

    return most < PIECE_TOKENS ? most : (size_t) PIECE_TOKENS;
}

/* Rows in the buffer of a long append: those of the tail and those of a piece. */
static size_t seq_staged_append_buffer_rows(const struct kvc_seq *s, size_t n_new)
{
    size_t piece = seq_staged_append_piece_tokens(s), n = n_new < piece ? n_new : piece;

    return (s->tail_rows + n + CHUNK_TOKENS - 1) / CHUNK_TOKENS * CHUNK_TOKENS;
}

/* ---- launches ---- */

static const struct device_table *seq_staged_append_table(const struct kvc_seq *s)
{
    return (const struct device_table *) (uintptr_t) s->table->gpu->image.at;
}

/* Chunks that one launch by side packs, of sequences with one table. */
struct seq_staged_packing {
    struct launch_encode launch;
    unsigned n;
};

/* Packs what was added. @s: one of the sequences. */
static int seq_staged_append_pack_added(const struct kvc_seq *s, struct seq_staged_packing *x)
{
    struct gpu *g = seq_staged_append_gpu_of(s);
    struct errmsg *e = seq_staged_append_error_of(s);
    unsigned n = x->n;

    x->n = 0;
    x->launch.table = seq_staged_append_table(s);
    return gpu_result(g, cuda_encode(g->kernels, &s->table->layout, &x->launch, n, g->stream, e), e);
}

/* Adds chunks @first .. @end - 1 of a layer, whose rows are in @rows and whose pages are staged. */
static int seq_staged_append_add(struct kvc_seq *s, uint32_t layer, struct launch_row_buffer rows,
                                 size_t first, size_t end, struct seq_staged_packing *x)
{
    int r = 0;

    for (size_t i = first; r == 0 && i < end; i++) {
        x->launch.chunks[x->n++] = (struct launch_chunk){
            .payload = (uint8_t *) (uintptr_t) (s->pages[i]->staging->slot + PAGE_HEADER_BYTES),
            .rows = rows,
            .number = (uint32_t) i,
            .layer = layer,
        };
        if (x->n == LAUNCH_CHUNKS_MAX)
            r = seq_staged_append_pack_added(s, x);
    }
    return r;
}

static int seq_staged_append_encode(struct kvc_seq *s, uint32_t layer, struct launch_row_buffer rows,
                                    size_t first, size_t end)
{
    struct seq_staged_packing x = {.n = 0};
    int r = seq_staged_append_add(s, layer, rows, first, end, &x);

    return r < 0 ? r : seq_staged_append_pack_added(s, &x);
}

static struct launch_rows_item seq_staged_append_item(const kvc_append_item *item, enum kvc_dtype dtype,
                                                      size_t position, size_t offset, size_t n,
                                                      struct launch_row_buffer to)
{
    const struct kvc_seq *s = item->seq;
    struct launch_rows_item ret = {
        .to = to,
        .faults = (uint32_t *) (uintptr_t) gpu_flag_address(s->model->client->gpu, s->staged->sound.flag),
        .first = (uint32_t) position,
        .n = (uint32_t) n,
        .form = seq_staged_form(s),
    };

    for (unsigned side = SIDE_K; side <= SIDE_V; side++) {
        struct seq_vectors v = seq_form_appended(item, (enum side) side, dtype);
        const char *at = side == SIDE_K ? item->k : item->v;

        ret.vectors[side] = at + offset * v.token_stride * (dtype == KVC_F32 ? 4 : 2);
        ret.token_stride[side] = v.token_stride;
        ret.head_stride[side] = v.head_stride;
    }
    return ret;
}

static int seq_staged_append_cover(const struct kvc_seq *s, size_t first, size_t n)
{
    if (s->keys != KVC_KEYS_AFTER_ROPE)
        return 0;

    return gpu_angles_cover(seq_staged_append_gpu_of(s), &s->table->gpu->angles, &s->model->geometry, first,
                            n, seq_staged_append_error_of(s));
}

/* Stores the rows of the first @n items of @a, which all have the table of @s. */
static int seq_staged_append_store(const struct kvc_seq *s, struct launch_rows *a, unsigned n)
{
    struct gpu *g = seq_staged_append_gpu_of(s);
    struct errmsg *e = seq_staged_append_error_of(s);

    a->table = seq_staged_append_table(s);
    a->angles = gpu_angles_of(&s->table->gpu->angles);
    return gpu_result(g, cuda_store_rows(g->kernels, &s->table->layout, a, n, g->stream, e), e);
}

/* ---- long appends ---- */

static struct launch_row_buffer seq_staged_append_buffer(const struct kvc_seq *s, size_t n_rows)
{
    cu_ptr at = seq_staged_append_gpu_of(s)->workspace.memory.at;
    size_t side = (size_t) s->model->shard.n_heads * n_rows * s->model->geometry.d * sizeof(uint16_t);

    return (struct launch_row_buffer){
        .rows = {(uint16_t *) (uintptr_t) at, (uint16_t *) (uintptr_t) (at + side)},
        .n_rows = (uint32_t) n_rows};
}

static int seq_staged_append_move(const struct kvc_seq *s, struct launch_row_buffer from,
                                  struct launch_row_buffer to, size_t first, size_t end)
{
    struct gpu *g = seq_staged_append_gpu_of(s);
    struct errmsg *e = seq_staged_append_error_of(s);
    const struct launch_move a = {.table = seq_staged_append_table(s),
                                  .from = from,
                                  .to = to,
                                  .first = (uint32_t) first,
                                  .n = (uint32_t) (end - first)};

    return gpu_result(g, cuda_move_rows(g->kernels, &s->table->layout, &a, g->stream, e), e);
}

/* Tokens @offset .. @offset + n - 1 of the item: the rows of the tail and theirs meet in the buffer, chunks
 * that are due are packed from there, and the other rows go to the tail. */
static int seq_staged_append_piece(const struct seq_append_call *call, const kvc_append_item *item,
                                   size_t offset, size_t n)
{
    struct kvc_seq *s = item->seq;
    struct layer *l = &s->layers[call->layer];
    const struct launch_row_buffer tail = seq_staged_tail(s, call->layer),
                                   buffer = seq_staged_append_buffer(s, seq_staged_append_buffer_rows(s, n));
    size_t due = seq_chunks_due(s, l->length + n), packed = due > l->n_packed ? due : l->n_packed;
    struct launch_rows a = {.dtype = (enum launch_dtype) call->dtype, .layer = call->layer};
    int r;

    a.items[0] = seq_staged_append_item(item, call->dtype, l->length, offset, n, buffer);
    r = seq_staged_append_cover(s, l->length, n);
    if (r == 0)
        r = seq_staged_append_move(s, tail, buffer, l->n_packed * CHUNK_TOKENS, l->length);
    if (r == 0)
        r = seq_staged_append_store(s, &a, 1);
    gpu_angles_next_launch(&s->table->gpu->angles);
    if (r == 0)
        r = seq_staged_append_encode(s, call->layer, buffer, l->n_packed, packed);
    if (r == 0)
        r = seq_staged_append_move(s, buffer, tail, packed * CHUNK_TOKENS, l->length + n);
    if (r < 0)
        return r;

    l->n_packed = packed;
    l->length += n;
    return 0;
}

static int seq_staged_append_long(const struct seq_append_call *call, const kvc_append_item *item)
{
    size_t most = seq_staged_append_piece_tokens(item->seq);
    int r = 0;

    for (size_t done = 0, n; r == 0 && done < item->n_new; done += n) {
        n = item->n_new - done < most ? item->n_new - done : most;
        r = seq_staged_append_piece(call, item, done, n);
    }
    return r;
}

/* ---- room ---- */

/* Device memory for the pages of chunks @first .. @end - 1. */
static int seq_staged_append_stage_pages(struct kvc_seq *s, size_t first, size_t end)
{
    struct model_table_gpu *t = s->table->gpu;
    int r = 0;

    for (size_t i = first; r == 0 && i < end; i++)
        if (!s->pages[i]->staging)
            r = gpu_ring_stage(seq_staged_append_gpu_of(s), &t->slots[s->pages[i]->class], s->pages[i],
                               seq_staged_append_error_of(s));
    return r;
}

static int seq_staged_append_reserve_buffer(const struct kvc_seq *s, size_t n_new)
{
    size_t bytes;

    if (!checked_mul3(2 * (size_t) s->model->shard.n_heads, seq_staged_append_buffer_rows(s, n_new),
                      s->model->geometry.d * sizeof(uint16_t), &bytes))
        return fail(seq_staged_append_error_of(s), -ENOMEM, "no GPU has memory for %zu rows", n_new);

    return gpu_workspace_reserve(seq_staged_append_gpu_of(s), bytes, false, seq_staged_append_error_of(s));
}

static int seq_staged_append_check_vectors(const kvc_append_item *item)
{
    struct gpu *g = seq_staged_append_gpu_of(item->seq);
    int r = gpu_check_pointer(g, item->k, "k", seq_staged_append_error_of(item->seq));

    return r < 0 ? r : gpu_check_pointer(g, item->v, "v", seq_staged_append_error_of(item->seq));
}

int seq_staged_append_begin(struct seq_append_call *call)
{
    struct kvc_client *c = call->client;
    int r = gpu_check_not_capturing(c->gpu, &c->error);

    if (r < 0)
        return r;
    if (gpu_ring_reserve_items(c->gpu, call->n) < 0)
        return fail(&c->error, -ENOMEM, "out of memory for appending to %zu sequences", call->n);

    return 0;
}

int seq_staged_append_stage(const struct seq_append_call *call, const kvc_append_item *item)
{
    struct kvc_seq *s = item->seq;
    const struct layer *l = &s->layers[call->layer];
    size_t n_pages;
    struct seq_staged_plan plan;
    int r = seq_staged_append_check_vectors(item);

    if (r < 0)
        return r;
    if (l->length > SEQ_STAGED_TOKENS_MAX - item->n_new)
        return fail(&call->client->error, -EFBIG, "layer %u has %zu tokens, a sequence on a GPU at most %zu",
                    call->layer, l->length, SEQ_STAGED_TOKENS_MAX);

    plan = seq_staged_append_plan(s, l, item->n_new);
    n_pages = seq_n_pages_needed(s, l->length + item->n_new);
    if (n_pages > s->n_pages)
        r = seq_claim(s, n_pages);
    if (r == 0)
        r = seq_staged_append_stage_pages(s, l->n_packed, plan.n_packed);
    if (r == 0 && !plan.fits)
        r = seq_staged_append_reserve_buffer(s, item->n_new);
    return r;
}

void seq_staged_append_apply(struct seq_append_call *call, const kvc_append_item *item)
{
    const kvc_append_item **all = call->client->gpu->ring->items;

    all[call->n_queued++] = item;
}

/* ---- the call ---- */

int seq_staged_pack(struct kvc_seq *s, uint32_t layer, size_t n_chunks)
{
    struct layer *l = &s->layers[layer];
    int r;

    if (n_chunks <= l->n_packed)
        return 0;

    r = seq_staged_append_stage_pages(s, l->n_packed, n_chunks);
    if (r == 0)
        r = seq_staged_append_encode(s, layer, seq_staged_tail(s, layer), l->n_packed, n_chunks);
    if (r < 0)
        return r;

    l->n_packed = n_chunks;
    return seq_staged_send(s);
}

/* Items of one launch next to each other. */
static int seq_staged_append_by_table(const void *a, const void *b)
{
    const kvc_append_item *x = *(const kvc_append_item *const *) a, *y = *(const kvc_append_item *const *) b;

    if (x->seq->table != y->seq->table)
        return x->seq->table < y->seq->table ? -1 : 1;
    return x < y ? -1 : x > y;
}

/* Packs due chunks of the items that fit into their tails, in as few launches as possible. */
static int seq_staged_append_pack(const struct seq_append_call *call, const kvc_append_item *const *of,
                                  size_t n)
{
    struct seq_staged_packing x = {.n = 0};
    int r = 0;

    for (size_t i = 0; r == 0 && i < n; i++) {
        struct kvc_seq *s = of[i]->seq;
        const struct layer *l = &s->layers[call->layer];
        struct seq_staged_plan plan = seq_staged_append_plan(s, l, of[i]->n_new);

        if (plan.fits)
            r = seq_staged_append_add(s, call->layer, seq_staged_tail(s, call->layer), l->n_packed,
                                      plan.n_packed, &x);
    }
    if (r == 0)
        r = seq_staged_append_pack_added(of[0]->seq, &x);
    for (size_t i = 0; r == 0 && i < n; i++) {
        struct layer *l = &of[i]->seq->layers[call->layer];
        struct seq_staged_plan plan = seq_staged_append_plan(of[i]->seq, l, of[i]->n_new);

        if (plan.fits)
            l->n_packed = plan.n_packed;
    }
    return r;
}

/* Stores the rows of a launch and counts them. @t: of all items. */
static int seq_staged_append_flush(const struct seq_append_call *call, struct model_table *t,
                                   struct launch_rows *a, const kvc_append_item *const *of, unsigned *n)
{
    int r = *n > 0 ? seq_staged_append_store(of[0]->seq, a, *n) : 0;

    gpu_angles_next_launch(&t->gpu->angles);
    for (unsigned i = 0; r == 0 && i < *n; i++)
        of[i]->seq->layers[call->layer].length += of[i]->n_new;
    *n = 0;
    return r;
}

/* The items of one table. Those that fit into their tails share launches. */
static int seq_staged_append_run(const struct seq_append_call *call, const kvc_append_item *const *of,
                                 size_t n)
{
    struct launch_rows a = {.dtype = (enum launch_dtype) call->dtype, .layer = call->layer};
    const kvc_append_item *queued[LAUNCH_ROWS_ITEMS_MAX];
    struct model_table *t = of[0]->seq->table;
    unsigned n_queued = 0;
    int r = seq_staged_append_pack(call, of, n);

    for (size_t i = 0; r == 0 && i < n; i++) {
        struct kvc_seq *s = of[i]->seq;
        struct layer *l = &s->layers[call->layer];

        if (!seq_staged_append_plan(s, l, of[i]->n_new).fits) {
            r = seq_staged_append_flush(call, t, &a, queued, &n_queued);
            if (r == 0)
                r = seq_staged_append_long(call, of[i]);
            continue;
        }

        r = n_queued == LAUNCH_ROWS_ITEMS_MAX ? -EAGAIN : seq_staged_append_cover(s, l->length, of[i]->n_new);
        if (r == -EAGAIN) {
            r = seq_staged_append_flush(call, t, &a, queued, &n_queued);
            if (r == 0)
                r = seq_staged_append_cover(s, l->length, of[i]->n_new);
        }
        a.items[n_queued] = seq_staged_append_item(of[i], call->dtype, l->length, 0, of[i]->n_new,
                                                   seq_staged_tail(s, call->layer));
        queued[n_queued++] = of[i];
    }
    return r < 0 ? r : seq_staged_append_flush(call, t, &a, queued, &n_queued);
}

/* After a failure the tokens of earlier launches stay counted. */
int seq_staged_append_end(struct seq_append_call *call)
{
    const kvc_append_item **all = call->client->gpu->ring->items;
    size_t n = call->n_queued;
    int r = 0;

    qsort(all, n, sizeof(*all), seq_staged_append_by_table);
    for (size_t at = 0, run; r == 0 && at < n; at += run) {
        for (run = 1; at + run < n && all[at + run]->seq->table == all[at]->seq->table; run++)
            ;
        r = seq_staged_append_run(call, all + at, run);
    }
    for (size_t i = 0; r == 0 && i < n; i++)
        r = seq_staged_send(all[i]->seq);
    return r;
}
