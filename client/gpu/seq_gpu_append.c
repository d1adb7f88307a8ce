/*
 * Appending to sequences on the GPU: at once, into a graph that is being captured, and
 * before each launch of such a graph.
 *
 * The sequences of a call are grouped into launches by their tables. Those with most chunks to pack come
 * first, so that packing is launched for no more sequences than have something to pack.
 *
 * A captured append stores its tokens at the length that is in device memory when the graph runs,
 * and packs nothing. The rest of an append (claiming pages, growing the tail, packing due chunks) is
 * done by kvc_seq_replay() before each launch. So a replayed step costs no launch that stores
 * nothing, and leaves the same bits.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "client/kvcobra-gpu.h"
#include "base/checked.h"
#include "client/gpu/gpu_table.h"
#include "client/gpu/seq_gpu.h"
#include "client/sequence/seq.h"
#include "client/sequence/seq_ops.h"
#include "client/sequence/seq_pages.h"
#include "client/sequence/seq_tail.h"

_Static_assert(LAUNCH_F32 == (int) KVC_F32 && LAUNCH_F16 == (int) KVC_F16 && LAUNCH_BF16 == (int) KVC_BF16,
               "number types");

static struct errmsg *seq_gpu_append_error_of(const struct kvc_seq *s)
{
    return &s->model->client->error;
}

/* Chunks that layer @l packs before its next token. */
static size_t seq_gpu_append_n_due(const struct layer *l)
{
    size_t due = chunks_due(l->length + 1);

    return due > l->n_packed ? due - l->n_packed : 0;
}

/* ---- launches ---- */

/* Advances the host's lengths after a launch by the rule of the kernels. */
static void seq_gpu_append_advance(struct kvc_seq *s, uint32_t layer, size_t n_new, size_t n_pack, bool given)
{
    struct layer *l = &s->layers[layer];
    uint32_t *first_row = &s->gpu->layers[layer].first_row;
    struct append_step step =
        append_step((uint32_t) l->n_packed, (uint32_t) seq_tail_n_rows(l), *first_row,
                    (uint32_t) s->tail_rows, (uint32_t) n_new, (uint32_t) n_pack, given);

    assert(step.n_pack == n_pack && step.n_exact <= s->tail_rows);
    l->n_packed += step.n_pack;
    l->length += n_new;
    *first_row = step.first_row;
}

/* Launches the first @n items of @a, whose sequences have the table of @s. */
static int seq_gpu_append_launch(const struct kvc_seq *s, struct launch_append *a, size_t n)
{
    struct gpu *g = s->model->client->gpu;
    cu_ptr table;
    int r = gpu_table(s->model->client, s->table, &table);

    if (r < 0)
        return r;
    a->table = (const struct device_table *) (uintptr_t) table;
    return gpu_result(
        g, cuda_append(g->kernels, &s->table->layout, a, (unsigned) n, g->stream, seq_gpu_append_error_of(s)),
        seq_gpu_append_error_of(s));
}

static struct device_seq *seq_gpu_append_device_seq(const struct kvc_seq *s, uint32_t layer)
{
    return (struct device_seq *) (uintptr_t) s->gpu->device_seqs.at + layer;
}

int seq_gpu_pack(struct kvc_seq *s, uint32_t layer, size_t n_chunks)
{
    struct layer *l = &s->layers[layer];
    size_t n_pack = n_chunks > l->n_packed ? n_chunks - l->n_packed : 0;
    struct launch_append a = {
        .dtype = LAUNCH_F32,
        .layer = layer,
        .given = true,
        .items = {{.seq = seq_gpu_append_device_seq(s, layer), .n_pack = (uint32_t) n_pack}},
    };
    int r;

    if (n_pack == 0)
        return 0;

    r = seq_gpu_refresh(s);
    if (r < 0)
        return r;

    r = seq_gpu_append_launch(s, &a, 1);
    if (r < 0)
        return r;

    seq_gpu_append_advance(s, layer, 0, n_pack, true);
    return 0;
}

/* ---- room ---- */

/*
 * Makes room for @n_new more tokens in each of @n_layers from @first on: rows in the tail, after due chunks
 * are packed, and a page for every chunk that may be packed before the next append. All or nothing.
 */
static int seq_gpu_append_make_room(struct kvc_seq *s, uint32_t first, uint32_t n_layers, size_t n_new)
{
    size_t rows = 0, n_pages = 0, before = s->n_pages;
    int r;

    for (uint32_t i = first; i < first + n_layers; i++) {
        const struct layer *l = &s->layers[i];
        size_t behind = seq_tail_n_rows(l) - seq_gpu_append_n_due(l) * CHUNK_TOKENS + n_new,
               due = chunks_due(l->length + n_new);

        if (n_new > SEQ_GPU_TOKENS_MAX || l->length > SEQ_GPU_TOKENS_MAX - n_new)
            return fail(seq_gpu_append_error_of(s), -EFBIG,
                        "layer %u has %zu tokens, a sequence on a GPU at most %zu", i, l->length,
                        SEQ_GPU_TOKENS_MAX);

        rows = behind > rows ? behind : rows;
        n_pages = due > n_pages ? due : n_pages;
    }

    r = seq_grow_tail(s, rows);
    if (r == 0 && n_pages > s->n_pages)
        r = seq_claim(s, n_pages);
    if (r == 0)
        r = seq_gpu_refresh(s);
    if (r < 0)
        seq_drop_pages(s, before);
    return r;
}

/* ---- batches ---- */

/* New tokens of one sequence, and the chunks that are packed before they are stored. */
struct seq_gpu_addition {
    const kvc_append_item *item;
    size_t n_pack;
};

int seq_gpu_append_begin(struct seq_append_call *call)
{
    struct kvc_client *c = call->client;
    size_t bytes;

    call->capturing = gpu_is_capturing(c->gpu);
    if (!checked_mul(call->n, sizeof(struct seq_gpu_addition), &bytes) ||
        workers_reserve(&c->workers, 0, bytes, 0) < 0)
        return fail(&c->error, -ENOMEM, "out of memory for appending to %zu sequences", call->n);

    return 0;
}

int seq_gpu_append_stage(const struct seq_append_call *call, const kvc_append_item *item)
{
    return call->capturing ? 0 : seq_gpu_append_make_room(item->seq, call->layer, 1, item->n_new);
}

void seq_gpu_append_apply(struct seq_append_call *call, const kvc_append_item *item)
{
    struct seq_gpu_addition *all = call->client->workers.items;
    size_t due = seq_gpu_append_n_due(&item->seq->layers[call->layer]);

    all[call->n_queued++] = (struct seq_gpu_addition){item, call->capturing ? 0 : due};
}

/* Items of one launch next to each other, those that pack most first. */
static int seq_gpu_append_by_launch(const void *a, const void *b)
{
    const struct seq_gpu_addition *x = a, *y = b;

    if (x->item->seq->table != y->item->seq->table)
        return x->item->seq->table < y->item->seq->table ? -1 : 1;
    if (x->n_pack != y->n_pack)
        return x->n_pack > y->n_pack ? -1 : 1;
    return x->item < y->item ? -1 : x->item > y->item;
}

/* The number of additions that one launch takes, from the first of @of on. */
static size_t seq_gpu_append_count_run(const struct seq_gpu_addition *of, size_t n)
{
    size_t run = 1;

    while (run < n && run < LAUNCH_ITEMS_MAX && of[run].item->seq->table == of->item->seq->table)
        run++;
    return run;
}

/* After a launch: captured tokens are counted when they are replayed. */
static void seq_gpu_append_count(const struct seq_append_call *call, const struct seq_gpu_addition *a)
{
    struct kvc_seq *s = a->item->seq;
    struct seq_gpu_layer *l = &s->gpu->layers[call->layer];

    if (call->capturing) {
        l->n_captured += a->item->n_new;
        return;
    }
    seq_gpu_append_advance(s, call->layer, a->item->n_new, a->n_pack, false);
    l->n_captured = 0;
}

static int seq_gpu_append_launch_run(const struct seq_append_call *call, const struct seq_gpu_addition *of,
                                     size_t n)
{
    struct launch_append a = {.dtype = (enum launch_dtype) call->dtype, .layer = call->layer};
    int r;

    for (size_t i = 0; i < n; i++) {
        const kvc_append_item *item = of[i].item;

        a.items[i] = (struct launch_append_item){
            .seq = seq_gpu_append_device_seq(item->seq, call->layer),
            .k = item->k,
            .v = item->v,
            .n_new = (uint32_t) item->n_new,
            .n_pack = (uint32_t) of[i].n_pack,
        };
    }

    r = seq_gpu_append_launch(of->item->seq, &a, n);
    if (r < 0)
        return r;

    for (size_t i = 0; i < n; i++)
        seq_gpu_append_count(call, &of[i]);
    return 0;
}

/* One or three launches, for as many sequences of a table as a launch takes. After a failure the
 * tokens of earlier launches stay counted. */
int seq_gpu_append_end(struct seq_append_call *call)
{
    struct seq_gpu_addition *all = call->client->workers.items;
    size_t run;
    int r = 0;

    qsort(all, call->n_queued, sizeof(*all), seq_gpu_append_by_launch);
    for (size_t at = 0; r == 0 && at < call->n_queued; at += run) {
        run = seq_gpu_append_count_run(all + at, call->n_queued - at);
        r = seq_gpu_append_launch_run(call, all + at, run);
    }
    return r;
}

/* ---- replays ---- */

static int seq_gpu_append_replay(struct kvc_seq *s, size_t n_new)
{
    int r = seq_gpu_append_make_room(s, 0, seq_n_layers(s), n_new);

    for (uint32_t i = 0; r == 0 && n_new > 0 && i < seq_n_layers(s); i++)
        r = seq_gpu_pack(s, i, s->layers[i].n_packed + seq_gpu_append_n_due(&s->layers[i]));
    for (uint32_t i = 0; r == 0 && i < seq_n_layers(s); i++) {
        seq_gpu_append_advance(s, i, n_new, 0, false);
        s->gpu->layers[i].n_captured = 0;
    }
    return r;
}

int kvc_seq_replay(kvc_seq *s, size_t n_new)
{
    int r = seq_enter(s);

    if (r < 0)
        return r;
    if (!s->gpu)
        return fail(seq_gpu_append_error_of(s), -EOPNOTSUPP,
                    "kvc_seq_replay: this client's sequences are not on a GPU, there is no graph to launch");
    if (n_new > KVC_APPEND_TOKENS_MAX)
        return fail(seq_gpu_append_error_of(s), -EINVAL, "%zu tokens in one launch, at most %d are allowed",
                    n_new, KVC_APPEND_TOKENS_MAX);
    if (!seq_is_between_steps(s))
        return fail(seq_gpu_append_error_of(s), -EINVAL,
                    "layers differ in length: launch graphs between steps");

    r = seq_check_whole(s);
    if (r < 0)
        return r;

    r = gpu_check_not_capturing(s->model->client->gpu, seq_gpu_append_error_of(s));
    if (r < 0)
        return r;

    return seq_gpu_append_replay(s, n_new);
}
