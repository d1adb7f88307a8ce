/*
 * Appending to sequences on the GPU: eagerly, into a graph that is being captured, and ahead of such a
 * graph's launch.
 *
 * The sequences of a call are grouped into launches by their tables. Those with chunks to pack stand first,
 * those with most before the others, so that packing is launched for no more sequences than have something to
 * pack.
 *
 * A captured append stores its tokens where the layer's length in device memory says, whatever it is by then,
 * and packs nothing. What an eager append does besides, claiming pages, growing the tail, packing the chunks
 * that are due, is done by kvc_seq_replay() before each launch. So a replayed step costs no more launches
 * than it stores, and leaves the same bits.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "base/checked.h"
#include "client/connection/client.h"
#include "client/sequence/seq.h"
#include "client/gpu/seq_gpu.h"

_Static_assert(LAUNCH_F32 == (int) KVC_F32 && LAUNCH_F16 == (int) KVC_F16 && LAUNCH_BF16 == (int) KVC_BF16,
               "number types");

static struct errmsg *gpu_append_error_of(const struct kvc_seq *s)
{
    return &s->model->client->error;
}

static size_t gpu_append_n_exact(const struct layer *l)
{
    return l->length - l->n_packed * CHUNK_TOKENS;
}

/* Chunks that layer @l packs before its next token. */
static size_t gpu_append_n_due(const struct layer *l)
{
    size_t due = chunks_due(l->length + 1);

    return due > l->n_packed ? due - l->n_packed : 0;
}

/* ---- launches ---- */

/* The host's lengths after a launch: the rule is the kernels'. */
static void gpu_append_follow(struct kvc_seq *s, uint32_t layer, size_t n_new, size_t n_pack, bool given)
{
    struct layer *l = &s->layers[layer];
    uint32_t *first_row = &s->gpu->layers[layer].first_row;
    struct append_step step = append_step((uint32_t) l->n_packed, (uint32_t) gpu_append_n_exact(l), *first_row,
                                      (uint32_t) s->tail_rows, (uint32_t) n_new, (uint32_t) n_pack, given);

    assert(step.n_pack == n_pack && step.n_exact <= s->tail_rows);
    l->n_packed += step.n_pack;
    l->length += n_new;
    *first_row = step.first_row;
}

/* @a with its first @n items, of the table of @s. */
static int gpu_append_launch(const struct kvc_seq *s, struct launch_append *a, size_t n)
{
    struct gpu *g = s->model->client->gpu;
    cu_ptr table;
    int r = gpu_table(s->model->client, s->table, &table);

    if (r < 0)
        return r;
    a->table = (const struct device_table *) (uintptr_t) table;
    return gpu_result(
        g, cuda_append(g->kernels, &s->table->layout, a, (unsigned) n, g->stream, gpu_append_error_of(s)),
        gpu_append_error_of(s));
}

static struct device_seq *gpu_append_plan_at(const struct kvc_seq *s, uint32_t layer)
{
    return (struct device_seq *) (uintptr_t) s->gpu->plans.at + layer;
}

int seq_gpu_pack_layer(struct kvc_seq *s, uint32_t layer, size_t n_chunks)
{
    struct layer *l = &s->layers[layer];
    size_t n_pack = n_chunks > l->n_packed ? n_chunks - l->n_packed : 0;
    struct launch_append a = {.dtype = LAUNCH_F32,
                            .layer = layer,
                            .given = true,
                            .items = {{.seq = gpu_append_plan_at(s, layer), .n_pack = (uint32_t) n_pack}}};
    int r = n_pack > 0 ? seq_gpu_refresh(s) : 0;

    if (r < 0 || n_pack == 0)
        return r;
    r = gpu_append_launch(s, &a, 1);
    if (r == 0)
        gpu_append_follow(s, layer, 0, n_pack, true);
    return r;
}

/* ---- room ---- */

/*
 * What layers need for @n_new more tokens in each of @n_layers from @first on: room in the tail behind what
 * is not packed before, and a page for every chunk that may be packed before the next append. All or nothing.
 */
static int gpu_append_make_room(struct kvc_seq *s, uint32_t first, uint32_t n_layers, size_t n_new)
{
    size_t rows = 0, n_pages = 0, before = s->n_pages;
    int r;

    for (uint32_t i = first; i < first + n_layers; i++) {
        const struct layer *l = &s->layers[i];
        size_t behind = gpu_append_n_exact(l) - gpu_append_n_due(l) * CHUNK_TOKENS + n_new,
               due = chunks_due(l->length + n_new);

        if (n_new > SEQ_GPU_TOKENS_MAX || l->length > SEQ_GPU_TOKENS_MAX - n_new)
            return fail(gpu_append_error_of(s), -EFBIG,
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

/* One sequence's tokens, and the chunks that leave its tail before. */
struct addition {
    const kvc_append_item *item;
    size_t n_pack;
};

int seq_gpu_append_reserve(struct kvc_client *c, size_t n)
{
    size_t bytes;

    if (!checked_mul(n, sizeof(struct addition), &bytes) || workers_reserve(&c->workers, 0, bytes, 0) < 0)
        return fail(&c->error, -ENOMEM, "out of memory for appending to %zu sequences", n);
    return 0;
}

int seq_gpu_append_prepare(const kvc_append_item *item, uint32_t layer, bool capturing)
{
    return capturing || item->n_new == 0 ? 0 : gpu_append_make_room(item->seq, layer, 1, item->n_new);
}

/* What goes into one launch stands together, what packs most first. */
static int gpu_append_by_launch(const void *a, const void *b)
{
    const struct addition *x = a, *y = b;

    if (x->item->seq->table != y->item->seq->table)
        return x->item->seq->table < y->item->seq->table ? -1 : 1;
    if (x->n_pack != y->n_pack)
        return x->n_pack > y->n_pack ? -1 : 1;
    return x->item < y->item ? -1 : x->item > y->item;
}

/* The additions that go with the first of @of. */
static size_t gpu_append_count_run(const struct addition *of, size_t n)
{
    size_t run = 1;

    while (run < n && run < LAUNCH_ITEMS_MAX && of[run].item->seq->table == of->item->seq->table)
        run++;
    return run;
}

static int gpu_append_launch_run(const struct addition *of, size_t n, uint32_t layer, enum kvc_dtype dtype,
                                 bool capturing)
{
    struct launch_append a = {.dtype = (enum launch_dtype) dtype, .layer = layer};
    int r;

    for (size_t i = 0; i < n; i++) {
        const kvc_append_item *item = of[i].item;

        a.items[i] = (struct launch_append_item){.seq = gpu_append_plan_at(item->seq, layer),
                                               .k = item->k,
                                               .v = item->v,
                                               .n_new = (uint32_t) item->n_new,
                                               .n_pack = (uint32_t) of[i].n_pack};
    }
    r = gpu_append_launch(of->item->seq, &a, n);
    for (size_t i = 0; r == 0 && i < n; i++) {
        struct kvc_seq *s = of[i].item->seq;

        if (!capturing)
            gpu_append_follow(s, layer, of[i].item->n_new, of[i].n_pack, false);
        s->gpu->layers[layer].n_captured =
            capturing ? s->gpu->layers[layer].n_captured + of[i].item->n_new : 0;
    }
    return r;
}

int seq_gpu_append(struct kvc_client *c, const kvc_append_item *items, size_t n, uint32_t layer,
                   enum kvc_dtype dtype, bool capturing)
{
    struct addition *all = c->workers.items;
    size_t n_all = 0, run;
    int r = 0;

    for (size_t i = 0; i < n; i++)
        if (items[i].n_new > 0)
            all[n_all++] =
                (struct addition){&items[i], capturing ? 0 : gpu_append_n_due(&items[i].seq->layers[layer])};
    qsort(all, n_all, sizeof(*all), gpu_append_by_launch);
    for (size_t at = 0; r == 0 && at < n_all; at += run) {
        run = gpu_append_count_run(all + at, n_all - at);
        r = gpu_append_launch_run(all + at, run, layer, dtype, capturing);
    }
    return r;
}

/* ---- replays ---- */

static int gpu_append_replay(struct kvc_seq *s, size_t n_new)
{
    int r = gpu_append_make_room(s, 0, seq_n_layers(s), n_new);

    for (uint32_t i = 0; r == 0 && n_new > 0 && i < seq_n_layers(s); i++)
        r = seq_gpu_pack_layer(s, i, s->layers[i].n_packed + gpu_append_n_due(&s->layers[i]));
    for (uint32_t i = 0; r == 0 && i < seq_n_layers(s); i++) {
        gpu_append_follow(s, i, n_new, 0, false);
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
        return fail(gpu_append_error_of(s), -EOPNOTSUPP,
                    "kvc_seq_replay: this client's sequences are not on a GPU, there is no graph to launch");
    if (n_new > KVC_APPEND_TOKENS_MAX)
        return fail(gpu_append_error_of(s), -EINVAL, "%zu tokens in one launch, at most %d", n_new,
                    KVC_APPEND_TOKENS_MAX);
    if (!seq_is_between_steps(s))
        return fail(gpu_append_error_of(s), -EINVAL, "layers differ in length: launch graphs between steps");
    r = seq_check_whole(s);
    if (r == 0)
        r = gpu_check_not_capturing(s->model->client->gpu, gpu_append_error_of(s));
    return r < 0 ? r : gpu_append_replay(s, n_new);
}
