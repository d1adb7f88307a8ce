/*
 * Attention of sequences on the GPU: the items of a call are cut and grouped into launches, each of one table
 * and of about as many queries per item, since a launch has one grid for all: decode steps of many sequences
 * in one, a long prompt in its own.
 *
 * The launches, and how each divides its pages, follow from what the host knows without reading from the
 * device, so that the same call can be captured in a graph. Splits follow from the pages that sequences have
 * room for (64, 128, 256 ...), not from the pages that they have: a captured step and an eager one then add
 * in the same order, also after a sequence has grown.
 */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/checked.h"
#include "client/gpu/gpu_memory.h"
#include "client/gpu/gpu_table.h"
#include "client/gpu/seq_gpu.h"
#include "client/sequence/seq.h"
#include "gpu/cuda/device_table.h"

enum {
    SPLIT_PAGES_MIN = 4, /* with fewer pages the fixed cost of a split dominates, mostly partial results */
    SPLITS_MAX = 128,    /* the merging thread adds them one after the other */
};

/* Queries of one sequence for one launch. */
struct seq_gpu_attend_part {
    struct kvc_seq *seq;
    const float *q;
    float *out;
    uint32_t n_q;
    uint32_t n_behind; /* newer queries of the item, in other parts */
    uint32_t class;    /* tiles, rounded up to a power of two */
};

/* Neighbouring parts that one launch takes. */
struct seq_gpu_attend_run {
    size_t n;
    uint32_t n_q, n_splits;
    size_t workspace_bytes;
};

/* ---- cutting ---- */

static size_t seq_gpu_attend_n_tiles(const struct kvc_seq *s, size_t n_q)
{
    return LAUNCH_TILES(geometry_group(&s->model->geometry), n_q);
}

/* Partial results of one tile in one split, all KV heads. */
static size_t seq_gpu_attend_tile_bytes(const struct kvc_seq *s)
{
    return s->model->shard.n_heads *
           (size_t) LAUNCH_PARTIAL_FLOATS(device_table_columns_max(&s->table->layout), s->model->geometry.d) *
           sizeof(float);
}

/* Most queries of one part, a multiple of those of a tile. */
static size_t seq_gpu_attend_part_queries(const struct gpu *g, const struct kvc_seq *s)
{
    size_t tiles = g->workspace.most_bytes / seq_gpu_attend_tile_bytes(s);

    return (tiles > 0 ? tiles : 1) * LAUNCH_TILE_QUERIES(geometry_group(&s->model->geometry));
}

static size_t seq_gpu_attend_count_parts(const struct gpu *g, const kvc_attend_item *items, size_t n)
{
    size_t count = 0;

    for (size_t i = 0; i < n; i++)
        if (items[i].n_q > 0)
            count += (items[i].n_q - 1) / seq_gpu_attend_part_queries(g, items[i].seq) + 1;
    return count;
}

static uint32_t seq_gpu_attend_class_of(size_t tiles)
{
    uint32_t class = 1;

    while (class < tiles)
        class *= 2;
    return class;
}

static size_t seq_gpu_attend_make_parts(const struct gpu *g, const kvc_attend_item *item,
                                        struct seq_gpu_attend_part *ret)
{
    struct kvc_seq *s = item->seq;
    size_t most = seq_gpu_attend_part_queries(g, s),
           stride = (size_t) s->model->n_q_heads * s->model->geometry.d, n_parts = 0;

    for (size_t first = 0; first < item->n_q; first += most) {
        size_t left = item->n_q - first, n_q = left < most ? left : most;

        ret[n_parts++] = (struct seq_gpu_attend_part){
            .seq = s,
            .q = (const float *) item->q + first * stride,
            .out = (float *) item->out + first * stride,
            .n_q = (uint32_t) n_q,
            .n_behind = (uint32_t) (left - n_q),
            .class = seq_gpu_attend_class_of(seq_gpu_attend_n_tiles(s, n_q)),
        };
    }

    return n_parts;
}

/* Parts of one launch next to each other, in the order of the caller. */
static int seq_gpu_attend_by_launch(const void *a, const void *b)
{
    const struct seq_gpu_attend_part *x = a, *y = b;

    if (x->seq->table != y->seq->table)
        return x->seq->table < y->seq->table ? -1 : 1;
    if (x->class != y->class)
        return x->class < y->class ? -1 : 1;
    return x->q < y->q ? -1 : x->q > y->q;
}

/* ---- launching ---- */

/* As many splits as run at a time: with fewer, multiprocessors are idle; more would wait until others have
 * ended. @n_tiles: of all items of the launch; their partial results fit the workspace. */
static uint32_t seq_gpu_attend_choose_splits(const struct gpu *g, const struct kvc_seq *s, uint32_t n_q,
                                             size_t n_tiles, size_t room)
{
    size_t want = (size_t) g->device.multiprocessors *
                  cuda_attend_blocks(g->kernels, &s->table->layout, n_q) /
                  (n_tiles * s->model->shard.n_heads);
    size_t most = room / SPLIT_PAGES_MIN < SPLITS_MAX ? room / SPLIT_PAGES_MIN : SPLITS_MAX;
    size_t fit = g->workspace.most_bytes / (n_tiles * seq_gpu_attend_tile_bytes(s));

    most = most < fit ? most : fit;
    most = most > 0 ? most : 1;
    if (want < 1)
        return 1;
    return (uint32_t) (want < most ? want : most);
}

/* The number of parts that one launch takes, from the first of @parts on. */
static struct seq_gpu_attend_run seq_gpu_attend_run_of(const struct gpu *g,
                                                       const struct seq_gpu_attend_part *parts, size_t n)
{
    const struct kvc_seq *s = parts->seq;
    size_t most = g->workspace.most_bytes / (parts->class * seq_gpu_attend_tile_bytes(s)), room = 0, tiles;
    struct seq_gpu_attend_run run = {0};

    for (; run.n < n && run.n < LAUNCH_ITEMS_MAX && (run.n == 0 || run.n < most); run.n++) {
        const struct seq_gpu_attend_part *p = parts + run.n;

        if (p->seq->table != s->table || p->class != parts->class)
            break;

        run.n_q = p->n_q > run.n_q ? p->n_q : run.n_q;
        room = p->seq->n_pages_max > room ? p->seq->n_pages_max : room;
    }

    tiles = seq_gpu_attend_n_tiles(s, run.n_q);
    run.n_splits = seq_gpu_attend_choose_splits(g, s, run.n_q, run.n * tiles, room);
    run.workspace_bytes = run.n * tiles * run.n_splits * seq_gpu_attend_tile_bytes(s);
    return run;
}

static int seq_gpu_attend_launch(struct gpu *g, const struct seq_gpu_attend_part *parts,
                                 const struct seq_gpu_attend_run *run, uint32_t layer,
                                 const kvc_attend_options *o, struct errmsg *e)
{
    struct kvc_seq *s = parts->seq;
    struct launch_attend launch = {
        .partials = (float *) (uintptr_t) g->workspace.memory.at,
        .layer = layer,
        .n_splits = run->n_splits,
        .n_q = run->n_q,
        .window = o->window,
    };
    cu_ptr table;
    int r = gpu_table(s->model->client, s->table, &table);

    if (r < 0)
        return r;

    launch.table = (const struct device_table *) (uintptr_t) table;
    for (size_t i = 0; i < run->n; i++)
        launch.items[i] = (struct launch_attend_item){
            .seq = (const struct device_seq *) (uintptr_t) parts[i].seq->gpu->device_seqs.at + layer,
            .q = parts[i].q,
            .out = parts[i].out,
            .n_q = parts[i].n_q,
            .n_behind = parts[i].n_behind,
        };
    return gpu_result(g, cuda_attend(g->kernels, &s->table->layout, &launch, (unsigned) run->n, g->stream, e),
                      e);
}

/* ---- the call ---- */

/* All memory is allocated before the first launch. */
static int seq_gpu_attend_prepare(struct gpu *g, const kvc_attend_item *items, size_t n, bool capturing,
                                  struct errmsg *e)
{
    int r = gpu_check_usable(g, e);

    for (size_t i = 0; r == 0 && i < n; i++) {
        cu_ptr unused;

        r = gpu_table(items[i].seq->model->client, items[i].seq->table, &unused);
        if (r == 0 && !capturing) /* a captured launch reads what kvc_seq_replay() wrote */
            r = seq_gpu_refresh(items[i].seq);
    }
    return r;
}

static int seq_gpu_attend_reserve(struct gpu *g, const struct seq_gpu_attend_part *parts, size_t n,
                                  bool capturing, struct errmsg *e)
{
    size_t bytes = 0;

    for (size_t at = 0; at < n;) {
        struct seq_gpu_attend_run run = seq_gpu_attend_run_of(g, parts + at, n - at);

        bytes = run.workspace_bytes > bytes ? run.workspace_bytes : bytes;
        at += run.n;
    }
    return gpu_workspace_reserve(g, bytes, capturing, e);
}

int seq_gpu_attend(struct kvc_client *c, const kvc_attend_item *items, size_t n, uint32_t layer,
                   const kvc_attend_options *o)
{
    struct gpu *g = c->gpu;
    size_t n_parts = seq_gpu_attend_count_parts(g, items, n), done = 0, bytes;
    struct errmsg *e = &c->error;
    struct seq_gpu_attend_part *parts;
    bool capturing = gpu_is_capturing(g);
    int r;

    if (n_parts == 0)
        return 0;
    if (!checked_mul(n_parts, sizeof(*parts), &bytes) || workers_reserve(&c->workers, 0, bytes, 0) < 0)
        return fail(e, -ENOMEM, "out of memory for attention of %zu sequences", n);

    parts = c->workers.items;
    for (size_t i = 0; i < n; i++)
        done += seq_gpu_attend_make_parts(g, &items[i], parts + done);
    assert(done == n_parts);
    qsort(parts, n_parts, sizeof(*parts), seq_gpu_attend_by_launch);
    r = seq_gpu_attend_prepare(g, items, n, capturing, e);
    if (r == 0)
        r = seq_gpu_attend_reserve(g, parts, n_parts, capturing, e);
    for (size_t at = 0; r == 0 && at < n_parts;) {
        struct seq_gpu_attend_run run = seq_gpu_attend_run_of(g, parts + at, n_parts - at);

        r = seq_gpu_attend_launch(g, parts + at, &run, layer, o, e);
        at += run.n;
    }

    return r;
}

const char *seq_gpu_kernel_name(struct kvc_client *c, struct model_table *t)
{
    (void) snprintf(t->kernel_name, sizeof(t->kernel_name), "cuda %s",
                    cuda_attend_name(c->gpu->kernels, &t->layout, 1));
    return t->kernel_name;
}
