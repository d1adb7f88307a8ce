/* Scenes for kernels; see kernel_scene.h. */
#include "tests/unit/gpu/cuda/kernel_scene.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/errmsg.h"
#include "gpu/cuda/plan.h"
#include "tests/lib/test.h"
#include "tests/unit/gpu/oracle.h"

static void *need(size_t bytes)
{
    void *p = aligned_alloc(128, (bytes + 127) / 128 * 128 + 128);

    assert(p);
    memset(p, 0xff, bytes);
    return p;
}

void kernel_scene_init(struct kernel_scene *d, const struct scene *s, uint32_t n_splits, struct plan_attend *ret)
{
    const struct attend_args *a = &s->args;
    const struct geometry *g = &s->layout.table->geometry;
    size_t row = (size_t) geometry_group(g) * g->d, n_heads = s->layout.shard.n_heads;
    size_t n_tiles = PLAN_TILES(geometry_group(g), a->n_q);

    *d = (struct kernel_scene) { .payloads = calloc(a->n_pages + 1, sizeof(*d->payloads)) };
    for (size_t i = 0; i < a->n_pages; i++) {
        size_t bytes = s->layout.payload_bytes[i == 0 ? PAGE_FIRST : PAGE_REST];

        d->payloads[i] = memcpy(need(bytes), a->payloads[i], bytes);
    }
    for (int side = 0; side < 2; side++) {
        d->exact[side] = need(n_heads * (a->n_exact + 1) * g->d * sizeof(uint16_t));
        for (size_t i = 0; i < a->n_exact; i++)
            memcpy(d->exact[side] + (a->head * (a->n_exact + 1) + i) * g->d,
                   (side == SIDE_K ? a->exact_k : a->exact_v) + i * a->exact_stride, g->d * sizeof(uint16_t));
    }
    d->table = need(plan_table_bytes(&s->layout));
    plan_table_fill(&s->layout, d->table, (cu_ptr) (uintptr_t) d->table);
    d->q = need(a->n_q * n_heads * row * sizeof(float));
    for (size_t i = 0; i < a->n_q * n_heads * row; i++)
        d->q[i] = a->q[i / row / n_heads * a->q_stride + i % row];
    d->out = need(a->n_q * n_heads * row * sizeof(float));
    d->partials = need(n_tiles * n_heads * n_splits * PLAN_PARTIAL_FLOATS(plan_columns_max(&s->layout), g->d) * sizeof(float));
    d->seq = (struct plan_seq) {
        .payloads = d->payloads, .n_pages = (uint32_t) a->n_pages, .n_exact = (uint32_t) a->n_exact,
        .exact_k = d->exact[SIDE_K], .exact_v = d->exact[SIDE_V], .exact_ld = (uint32_t) a->n_exact + 1,
    };
    *ret = (struct plan_attend) {
        .table = d->table, .partials = d->partials, .layer = a->layer, .n_splits = n_splits, .n_q = (uint32_t) a->n_q,
        .window = (uint32_t) a->window,
        .items = { { .seq = &d->seq, .q = d->q, .out = d->out, .n_q = (uint32_t) a->n_q,
                     .n_behind = (uint32_t) (a->n_pages * CHUNK_TOKENS + a->n_exact - a->q_first - a->n_q) } },
    };
}

void kernel_scene_deinit(struct kernel_scene *d)
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

bool kernel_scene_check(const struct shape *shape, uint32_t n_splits, kernel_launch launch, unsigned which, double roundings)
{
    const size_t row = (size_t) shape->group * shape->d;
    struct plan_attend plan;
    struct oracle_report r;
    struct kernel_scene d;
    struct errmsg e;
    struct scene s;
    double limit;
    bool taken;

    scene_init(&s, shape);
    CU_ASSERT_EQUAL_FATAL(plan_table_check(&s.layout, &e), 0);
    kernel_scene_init(&d, &s, n_splits, &plan);
    taken = launch(&s.layout, &plan, which);
    for (size_t i = 0; i < shape->n_q; i++)
        memcpy(s.args.out + i * s.args.out_stride, d.out + (i * s.layout.shard.n_heads + s.args.head) * row, row * sizeof(float));
    if (taken) {
        r = oracle_packed(&s.args, NULL);
        limit = r.tolerance + 1.5 * sqrt(roundings * pow(r.score_rounding, 2) + pow(r.weight_rounding, 2));
        CU_ASSERT_TRUE(r.error <= limit); /* false for NaN */
        if (!(r.error <= limit))
            printf("    d %u n_rot %u g %u bits %d sinks %u v_from %d pages %zu exact %zu n_q %zu splits %u: %g > %g\n", shape->d,
                   shape->n_rot, shape->group, shape->bits, shape->n_sink, shape->v_from, shape->n_pages, shape->n_exact,
                   shape->n_q, n_splits, r.error, limit);
    }
    kernel_scene_deinit(&d);
    scene_deinit(&s);
    return taken;
}
