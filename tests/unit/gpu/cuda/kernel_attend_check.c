/* See kernel_attend_check.h. */
#include "tests/unit/gpu/cuda/kernel_attend_check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/errmsg.h"
#include "gpu/cuda/device_table.h"
#include "tests/lib/test.h"
#include "tests/unit/gpu/attend_oracle.h"

static void *need(size_t bytes)
{
    void *p = aligned_alloc(128, (bytes + 127) / 128 * 128 + 128);

    assert(p);
    memset(p, 0xff, bytes);
    return p;
}

enum { FIRST_ROW = 3 }; /* of the exact rows in their buffer; the rows around them are NaN */

void kernel_attend_inputs_init(struct kernel_attend_inputs *d, const struct attend_scene *s,
                               uint32_t n_splits, size_t n_items, struct launch_attend *ret)
{
    const struct attend_args *a = &s->args;
    const struct geometry *g = &s->layout.table->geometry;
    size_t row = (size_t) geometry_group(g) * g->d, n_heads = s->layout.shard.n_heads;
    size_t n_tiles = LAUNCH_TILES(geometry_group(g), a->n_q), ld = a->n_exact + FIRST_ROW + 1;

    *d = (struct kernel_attend_inputs){.payloads = calloc(a->n_pages + 1, sizeof(*d->payloads))};
    for (size_t i = 0; i < a->n_pages; i++) {
        size_t bytes = s->layout.payload_bytes[i == 0 ? PAGE_FIRST : PAGE_REST];

        d->payloads[i] = memcpy(need(bytes), a->payloads[i], bytes);
    }
    for (int side = 0; side < 2; side++) {
        d->exact[side] = need(n_heads * ld * g->d * sizeof(uint16_t));
        for (size_t i = 0; i < a->n_exact; i++)
            memcpy(d->exact[side] + (a->head * ld + FIRST_ROW + i) * g->d,
                   (side == SIDE_K ? a->exact_k : a->exact_v) + i * a->exact_stride, g->d * sizeof(uint16_t));
    }
    d->table = need(device_table_bytes(&s->layout));
    device_table_fill(&s->layout, d->table, (cu_ptr) (uintptr_t) d->table);
    d->q = need(a->n_q * n_heads * row * sizeof(float));
    for (size_t i = 0; i < a->n_q * n_heads * row; i++)
        d->q[i] = a->q[i / row / n_heads * a->q_stride + i % row];
    d->out = need(a->n_q * n_heads * row * sizeof(float));
    d->partials = need(n_items * n_tiles * n_heads * n_splits *
                       LAUNCH_PARTIAL_FLOATS(device_table_columns_max(&s->layout), g->d) * sizeof(float));
    d->seq = (struct device_seq){
        .payloads = d->payloads,
        .n_pages = (uint32_t) a->n_pages,
        .n_exact = (uint32_t) a->n_exact,
        .exact_k = d->exact[SIDE_K],
        .exact_v = d->exact[SIDE_V],
        .exact_ld = (uint32_t) ld,
        .first_row = FIRST_ROW,
    };
    *ret = (struct launch_attend){
        .table = d->table,
        .partials = d->partials,
        .layer = a->layer,
        .n_splits = n_splits,
        .n_q = (uint32_t) a->n_q,
        .window = (uint32_t) a->window,
        .items = {{.seq = &d->seq,
                   .q = d->q,
                   .out = d->out,
                   .n_q = (uint32_t) a->n_q,
                   .n_behind = (uint32_t) (a->n_pages * CHUNK_TOKENS + a->n_exact - a->q_first - a->n_q)}},
    };
}

void kernel_attend_inputs_deinit(struct kernel_attend_inputs *d)
{
    for (size_t i = 0; d->payloads[i]; i++)
        free(d->payloads[i]);
    free(d->payloads);
    free(d->table);
    free(d->exact[0]);
    free(d->exact[1]);
    free(d->q);
    free(d->out);
    free(d->partials);
}

/* Whether the output @got [n_q][heads][group][d] of one item is within its tolerance. */
static bool is_within(const struct attend_args *a, const float *got, double roundings)
{
    size_t row = (size_t) geometry_group(&a->layout->table->geometry) * a->layout->table->geometry.d;
    struct oracle_report r;
    double limit;

    for (size_t i = 0; i < a->n_q; i++)
        memcpy(a->out + i * a->out_stride, got + (i * a->layout->shard.n_heads + a->head) * row,
               row * sizeof(float));
    r = oracle_packed(a, NULL);
    limit = r.tolerance + 1.5 * sqrt(roundings * pow(r.score_rounding, 2) + pow(r.weight_rounding, 2));
    if (!(r.error <= limit)) /* true for NaN */
        printf("    %zu pages, %zu exact, %zu queries: %g > %g\n", a->n_pages, a->n_exact, a->n_q, r.error,
               limit);
    return r.error <= limit;
}

bool kernel_attend_check(const struct attend_shape *shape, uint32_t n_splits, kernel_launch launch,
                         unsigned which, double roundings)
{
    struct launch_attend launch_args;
    struct kernel_attend_inputs d;
    struct errmsg e;
    struct attend_scene s;
    bool taken;

    attend_scene_init(&s, shape);
    CU_ASSERT_EQUAL_FATAL(device_table_check(&s.layout, &e), 0);
    kernel_attend_inputs_init(&d, &s, n_splits, 1, &launch_args);
    taken = launch(&s.layout, &launch_args, 1, which);
    if (taken) {
        bool ok = is_within(&s.args, d.out, roundings);

        CU_ASSERT_TRUE(ok);
        if (!ok)
            printf("    d %u n_rot %u g %u bits %d sinks %u v_from %d splits %u\n", shape->d, shape->n_rot,
                   shape->group, shape->bits, shape->n_sink, shape->v_from, n_splits);
    }
    kernel_attend_inputs_deinit(&d);
    attend_scene_deinit(&s);
    return taken;
}

/* ---- batches ---- */

/* All items share the same pages, and parts of the same tail. */
static const struct batch_item {
    uint32_t n_pages, n_exact, first_row, n_q;
} batch[] = {{3, 70, 0, 1}, {0, 9, 2, 9}, {2, 66, 1, 7}, {3, 0, 0, 0}, {1, 1, 69, 2}, {3, 64, 3, 3}};

enum { BATCH = sizeof(batch) / sizeof(batch[0]), UNTOUCHED = 7 };

static void check_item(const struct attend_scene *s, const struct batch_item *item, const float *out,
                       size_t floats, double roundings)
{
    struct attend_args a = s->args;

    a.n_pages = item->n_pages;
    a.n_exact = item->n_exact;
    a.exact_first = a.n_pages * CHUNK_TOKENS;
    a.exact_k += item->first_row * a.exact_stride;
    a.exact_v += item->first_row * a.exact_stride;
    a.n_q = item->n_q;
    a.q_first = a.exact_first + a.n_exact - a.n_q;
    CU_ASSERT_TRUE(a.n_q == 0 || is_within(&a, out, roundings));
    for (size_t x = a.n_q * floats / s->args.n_q; x < floats;
         x++) /* nothing was written beyond its queries */
        CU_ASSERT_EQUAL(out[x], UNTOUCHED);
}

bool kernel_attend_check_batch(uint32_t d, uint32_t n_splits, size_t window, kernel_launch launch,
                               unsigned which, double roundings)
{
    const struct attend_shape shape = {.d = d,
                                       .n_rot = d,
                                       .group = 3,
                                       .bits = -1,
                                       .n_sink = 4,
                                       .v_from = PREDICT_HEAD,
                                       .n_pages = 3,
                                       .n_exact = 70,
                                       .n_q = 9,
                                       .q_first = SIZE_MAX,
                                       .window = window};
    struct device_seq seqs[BATCH];
    struct launch_attend launch_args;
    struct kernel_attend_inputs k;
    struct attend_scene s;
    size_t floats;
    bool taken;

    attend_scene_init(&s, &shape);
    kernel_attend_inputs_init(&k, &s, n_splits, BATCH, &launch_args);
    floats = shape.n_q * s.layout.shard.n_heads * shape.group * d;
    for (size_t i = 0; i < BATCH; i++) {
        seqs[i] = k.seq;
        seqs[i].n_pages = batch[i].n_pages;
        seqs[i].n_exact = batch[i].n_exact;
        seqs[i].first_row = FIRST_ROW + batch[i].first_row;
        launch_args.items[i] = (struct launch_attend_item){
            .seq = &seqs[i], .q = k.q, .out = need(floats * sizeof(float)), .n_q = batch[i].n_q};
        for (size_t x = 0; x < floats; x++)
            launch_args.items[i].out[x] = UNTOUCHED;
    }
    taken = launch(&s.layout, &launch_args, BATCH, which);
    for (size_t i = 0; i < BATCH; i++) {
        if (taken)
            check_item(&s, &batch[i], launch_args.items[i].out, floats, roundings);
        free(launch_args.items[i].out);
    }
    kernel_attend_inputs_deinit(&k);
    attend_scene_deinit(&s);
    return taken;
}
