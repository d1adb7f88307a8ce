/*
 * Attention of sequences on the GPU: the items of a call are cut and grouped into launches, each of one table
 * and of about as many queries per item, since a launch has one grid for all: decode steps of many sequences
 * in one, a long prompt in its own.
 *
 * Which launches, and how pages are split in each, follows from what the host knows without asking the
 * device, so that the same call can be captured in a graph. Splits follow from the pages that sequences have
 * room for (64, 128, 256 ...), not from those that they have: a captured step and an eager one then add in
 * the same order, also when a sequence has grown meanwhile.
 */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/checked.h"
#include "client/connection/client.h"
#include "client/sequence/seq.h"
#include "client/gpu/seq_gpu.h"
#include "gpu/cuda/device_table.h"

enum {
    SPLIT_PAGES_MIN = 4, /* fewer are not worth a split's fixed cost, partial results above all */
    SPLITS_MAX = 128,    /* a merging thread adds them one after the other */
};

/* Queries of one sequence for one launch. */
struct gpu_attend_part {
    struct kvc_seq *seq;
    const float *q;
    float *out;
    uint32_t n_q, n_behind; /* newer queries of the item, which other parts have */
    uint32_t class;         /* tiles, as a power of two */
};

/* Neighbouring parts that one launch takes. */
struct gpu_attend_run {
    size_t n;
    uint32_t n_q, n_splits;
    size_t workspace_bytes;
};

/* ---- cutting ---- */

static size_t gpu_attend_n_tiles(const struct kvc_seq *s, size_t n_q)
{
    return LAUNCH_TILES(geometry_group(&s->model->geometry), n_q);
}

/* Partial results of one tile in one split, all KV heads. */
static size_t gpu_attend_tile_bytes(const struct kvc_seq *s)
{
    return s->model->shard.n_heads *
           (size_t) LAUNCH_PARTIAL_FLOATS(device_table_columns_max(&s->table->layout), s->model->geometry.d) *
           sizeof(float);
}

/* Queries that one part may have, a multiple of a tile's. */
static size_t gpu_attend_part_queries(const struct gpu *g, const struct kvc_seq *s)
{
    size_t tiles = g->workspace.most_bytes / gpu_attend_tile_bytes(s);

    return (tiles > 0 ? tiles : 1) * LAUNCH_TILE_QUERIES(geometry_group(&s->model->geometry));
}

static size_t gpu_attend_count_parts(const struct gpu *g, const kvc_attend_item *items, size_t n)
{
    size_t count = 0;

    for (size_t i = 0; i < n; i++)
        if (items[i].n_q > 0)
            count += (items[i].n_q - 1) / gpu_attend_part_queries(g, items[i].seq) + 1;
    return count;
}

static uint32_t gpu_attend_class_of(size_t tiles)
{
    uint32_t class = 1;

    while (class < tiles)
        class *= 2;
    return class;
}

static size_t gpu_attend_make_parts(const struct gpu *g, const kvc_attend_item *item,
                                    struct gpu_attend_part *ret)
{
    struct kvc_seq *s = item->seq;
    size_t most = gpu_attend_part_queries(g, s), stride = (size_t) s->model->n_q_heads * s->model->geometry.d,
           n_parts = 0;

    for (size_t first = 0; first < item->n_q; first += most) {
        size_t left = item->n_q - first, n_q = left < most ? left : most;

        ret[n_parts++] = (struct gpu_attend_part){
            .seq = s,
            .q = item->q + first * stride,
            .out = item->out + first * stride,
            .n_q = (uint32_t) n_q,
            .n_behind = (uint32_t) (left - n_q),
            .class = gpu_attend_class_of(gpu_attend_n_tiles(s, n_q)),
        };
    }
    return n_parts;
}

/* What goes into one launch stands together; the order within it is the caller's. */
static int gpu_attend_by_launch(const void *a, const void *b)
{
    const struct gpu_attend_part *x = a, *y = b;

    if (x->seq->table != y->seq->table)
        return x->seq->table < y->seq->table ? -1 : 1;
    if (x->class != y->class)
        return x->class < y->class ? -1 : 1;
    return x->q < y->q ? -1 : x->q > y->q;
}

/* ---- launching ---- */

/* As many as are at work at a time: fewer leave multiprocessors without work, more begin when the others end.
 */
static uint32_t gpu_attend_choose_splits(const struct gpu *g, const struct kvc_seq *s, uint32_t n_q,
                                         size_t n_blocks, size_t room)
{
    size_t want = (size_t) g->device.multiprocessors *
                  cuda_attend_blocks(g->kernels, &s->table->layout, n_q) / n_blocks;
    size_t most = room / SPLIT_PAGES_MIN < SPLITS_MAX ? room / SPLIT_PAGES_MIN : SPLITS_MAX;

    most = most > 0 ? most : 1;
    return (uint32_t) (want < 1 ? 1 : want < most ? want : most);
}

/* The parts that go with the first of @parts. */
static struct gpu_attend_run gpu_attend_run_of(const struct gpu *g, const struct gpu_attend_part *parts,
                                               size_t n)
{
    const struct kvc_seq *s = parts->seq;
    size_t most = g->workspace.most_bytes / (parts->class * gpu_attend_tile_bytes(s)), room = 0, tiles;
    struct gpu_attend_run run = {0};

    for (; run.n < n && run.n < LAUNCH_ITEMS_MAX && (run.n == 0 || run.n < most); run.n++) {
        const struct gpu_attend_part *p = parts + run.n;

        if (p->seq->table != s->table || p->class != parts->class)
            break;
        run.n_q = p->n_q > run.n_q ? p->n_q : run.n_q;
        room = p->seq->n_pages_max > room ? p->seq->n_pages_max : room;
    }
    tiles = gpu_attend_n_tiles(s, run.n_q);
    run.n_splits = gpu_attend_choose_splits(g, s, run.n_q, run.n * tiles * s->model->shard.n_heads, room);
    run.workspace_bytes = run.n * tiles * run.n_splits * gpu_attend_tile_bytes(s);
    return run;
}

static int gpu_attend_launch(struct gpu *g, const struct gpu_attend_part *parts,
                             const struct gpu_attend_run *run, uint32_t layer, const kvc_attend_options *o,
                             struct errmsg *e)
{
    struct kvc_seq *s = parts->seq;
    struct launch_attend plan = {
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
    plan.table = (const struct device_table *) (uintptr_t) table;
    for (size_t i = 0; i < run->n; i++)
        plan.items[i] = (struct launch_attend_item){
            .seq = (const struct device_seq *) (uintptr_t) parts[i].seq->gpu->plans.at + layer,
            .q = parts[i].q,
            .out = parts[i].out,
            .n_q = parts[i].n_q,
            .n_behind = parts[i].n_behind,
        };
    return gpu_result(g, cuda_attend(g->kernels, &s->table->layout, &plan, (unsigned) run->n, g->stream, e),
                      e);
}

/* ---- the call ---- */

/* Everything that can fail for want of memory, before anything is launched. */
static int gpu_attend_prepare(struct gpu *g, const kvc_attend_item *items, size_t n, bool capturing,
                              struct errmsg *e)
{
    int r = gpu_check(g, e);

    for (size_t i = 0; r == 0 && i < n; i++) {
        cu_ptr unused;

        r = gpu_table(items[i].seq->model->client, items[i].seq->table, &unused);
        if (r == 0 && !capturing) /* what is captured finds at its launch what kvc_seq_replay() wrote */
            r = seq_gpu_refresh(items[i].seq);
    }
    return r;
}

static int gpu_attend_reserve(struct gpu *g, const struct gpu_attend_part *parts, size_t n, bool capturing,
                              struct errmsg *e)
{
    size_t bytes = 0;

    for (size_t at = 0; at < n;) {
        struct gpu_attend_run run = gpu_attend_run_of(g, parts + at, n - at);

        bytes = run.workspace_bytes > bytes ? run.workspace_bytes : bytes;
        at += run.n;
    }
    return gpu_workspace_reserve(g, bytes, capturing, e);
}

int seq_gpu_attend(struct kvc_client *c, const kvc_attend_item *items, size_t n, uint32_t layer,
                   const kvc_attend_options *o)
{
    struct gpu *g = c->gpu;
    size_t n_parts = gpu_attend_count_parts(g, items, n), done = 0, bytes;
    struct errmsg *e = &c->error;
    struct gpu_attend_part *parts;
    bool capturing = gpu_is_capturing(g);
    int r;

    if (n_parts == 0)
        return 0;
    if (!checked_mul(n_parts, sizeof(*parts), &bytes) || workers_reserve(&c->workers, 0, bytes, 0) < 0)
        return fail(e, -ENOMEM, "out of memory for attention of %zu sequences", n);
    parts = c->workers.items;
    for (size_t i = 0; i < n; i++)
        done += gpu_attend_make_parts(g, &items[i], parts + done);
    assert(done == n_parts);
    qsort(parts, n_parts, sizeof(*parts), gpu_attend_by_launch);
    r = gpu_attend_prepare(g, items, n, capturing, e);
    if (r == 0)
        r = gpu_attend_reserve(g, parts, n_parts, capturing, e);
    for (size_t at = 0; r == 0 && at < n_parts;) {
        struct gpu_attend_run run = gpu_attend_run_of(g, parts + at, n_parts - at);

        r = gpu_attend_launch(g, parts + at, &run, layer, o, e);
        at += run.n;
    }
    return r;
}

const char *seq_gpu_kernel_name(struct kvc_client *c, struct model_table *t)
{
    (void) snprintf(t->gpu_kernel, sizeof(t->gpu_kernel), "cuda %s",
                    cuda_attend_name(c->gpu->kernels, &t->layout, 1));
    return t->gpu_kernel;
}
