/*
 * The attention kernels, run on the CPU, against attention in binary64 over the same pages: the scenes are those of
 * tests/unit/gpu/test_attend.c, for one query and for many, divided among any number of splits.
 *
 * Tolerance: tests/unit/gpu/oracle.c, binary16 in GPU kernels.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/errmsg.h"
#include "gpu/cuda/plan.h"
#include "tests/cuda_on_cpu/kernels.h"
#include "tests/lib/test.h"
#include "tests/unit/gpu/oracle.h"
#include "tests/unit/gpu/scene.h"

static void *need(size_t bytes)
{
    void *p = aligned_alloc(128, (bytes + 127) / 128 * 128 + 128);

    assert(p);
    memset(p, 0xff, bytes);
    return p;
}

/* A scene's one sequence in the shape that kernels take: aligned pages, exact rows of all heads, here of one. */
struct device {
    struct plan_seq seq;
    uint8_t **payloads;
    void *table;
    uint16_t *exact[2];
    float *q, *out, *partials;
};

static void device_init(struct device *d, const struct scene *s, uint32_t n_splits, struct plan_attend *ret)
{
    const struct attend_args *a = &s->args;
    const struct geometry *g = &s->layout.table->geometry;
    size_t row = (size_t) geometry_group(g) * g->d, n_heads = s->layout.shard.n_heads;
    size_t n_tiles = PLAN_TILES(geometry_group(g), a->n_q);

    *d = (struct device) { .payloads = calloc(a->n_pages + 1, sizeof(*d->payloads)) };
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

static void device_deinit(struct device *d)
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

/* @kernel: PLAN_KERNELS for the one that a launch picks. False if it does not take the shape: then nothing was checked. */
static bool check_kernel(const struct shape *shape, uint32_t n_splits, unsigned kernel)
{
    const size_t row = (size_t) shape->group * shape->d;
    struct plan_attend plan;
    struct oracle_report r;
    struct device d;
    struct errmsg e;
    struct scene s;

    scene_init(&s, shape);
    CU_ASSERT_EQUAL_FATAL(plan_table_check(&s.layout, &e), 0);
    if (kernel == PLAN_KERNELS)
        kernel = plan_attend_kernel(&s.layout, (uint32_t) shape->n_q);
    if (!plan_attend_takes(kernel, &s.layout, (uint32_t) shape->n_q)) {
        scene_deinit(&s);
        return false;
    }
    device_init(&d, &s, n_splits, &plan);
    on_cpu_attend(plan_attend_name(kernel), &plan, 1, plan_attend_shared_bytes(kernel, &s.layout), plan_merge_shared_bytes(&s.layout));
    for (size_t i = 0; i < shape->n_q; i++)
        memcpy(s.args.out + i * s.args.out_stride, d.out + (i * s.layout.shard.n_heads + s.args.head) * row, row * sizeof(float));
    r = oracle_packed(&s.args, NULL);
    CU_ASSERT_TRUE(r.error <= r.tolerance_f16); /* false for NaN */
    if (!(r.error <= r.tolerance_f16))
        printf("    d %u n_rot %u g %u bits %d sinks %u v_from %d pages %zu exact %zu n_q %zu splits %u: %g > %g\n", shape->d,
               shape->n_rot, shape->group, shape->bits, shape->n_sink, shape->v_from, shape->n_pages, shape->n_exact,
               shape->n_q, n_splits, r.error, r.tolerance_f16);
    device_deinit(&d);
    scene_deinit(&s);
    return true;
}

static void check(const struct shape *shape, uint32_t n_splits)
{
    CU_ASSERT_TRUE(check_kernel(shape, n_splits, PLAN_KERNELS));
}

/* Other exact rows than this head's are not drawn, so the model's other heads give nothing that could be compared. */
static void test_shapes(void)
{
    static const uint32_t dims[] = { 32, 64, 80, 96, 128, 256 };
    unsigned n = 0;

    for (size_t i = 0; i < sizeof(dims) / sizeof(dims[0]); i++)
        for (uint32_t rot = 0; rot <= 2; rot++, n++)
            check(&(struct shape) {
                .d = dims[i], .n_rot = rot * dims[i] / 2, .group = 1 + n % 4, .bits = -1, .n_sink = n % 2 * 4,
                .v_from = (enum prediction) (n % 2), .n_pages = 1 + n % 3, .n_exact = 1 + n * 7, .n_q = 1, .q_first = SIZE_MAX,
            }, 1 + n % 2);
}

static void test_every_width(void)
{
    for (int bits = 0; bits <= 8; bits++)
        check(&(struct shape) { .d = 64, .n_rot = 64, .group = 3, .bits = bits, .n_sink = 4, .v_from = PREDICT_HEAD,
                                .n_pages = 2, .n_exact = 3, .n_q = 1, .q_first = SIZE_MAX }, 1);
}

static void test_groups(void)
{
    for (uint32_t group = 1; group <= 16; group += group < 4 ? 1 : 4)
        check(&(struct shape) { .d = 64, .n_rot = 64, .group = group, .bits = -1, .n_sink = 4, .v_from = PREDICT_HEAD,
                                .n_pages = 2, .n_exact = 70, .n_q = 1, .q_first = SIZE_MAX }, 2);
}

/* V from all heads of the layer: small ranks, so that the sum stays within what the kernels take. */
static void test_layer_prediction(void)
{
    check(&(struct shape) { .d = 32, .n_rot = 32, .group = 3, .bits = 3, .n_sink = 4, .v_from = PREDICT_LAYER, .n_pages = 2,
                            .n_exact = 20, .n_q = 1, .q_first = SIZE_MAX }, 2);
    check(&(struct shape) { .d = 64, .n_rot = 64, .group = 2, .bits = -1, .n_sink = 0, .v_from = PREDICT_LAYER, .n_pages = 3,
                            .n_exact = 5, .n_q = 1, .q_first = SIZE_MAX }, 1);
}

static void test_splits_and_windows(void)
{
    static const size_t windows[] = { 0, 1, 64, 150, 400 };

    for (uint32_t splits = 1; splits <= 8; splits += splits == 1 ? 2 : 5)
        for (size_t i = 0; i < sizeof(windows) / sizeof(windows[0]); i++)
            check(&(struct shape) { .d = 64, .n_rot = 32, .group = 4, .bits = -1, .n_sink = 4, .v_from = PREDICT_HEAD,
                                    .n_pages = 5, .n_exact = 66, .n_q = 1, .q_first = SIZE_MAX, .window = windows[i] }, splits);
}

/* A shape that all kernels take, and shapes that only some do: whichever takes one gives the same. */
static void test_every_kernel(void)
{
    static const struct {
        uint32_t d, key_rank, group;
        unsigned n_kernels; /* of attend_80.cu and of attend.cu */
    } cases[] = { { 64, 0, 4, 3 + 6 }, { 64, 32, 12, 1 + 3 }, { 80, 0, 3, 0 + 4 }, { 128, 0, 8, 2 + 4 }, { 128, 64, 4, 5 + 4 },
                  { 256, 0, 2, 0 + 2 }, { 256, 32, 4, 2 + 2 } };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        unsigned taken = 0;

        for (unsigned kernel = 0; kernel < PLAN_KERNELS; kernel++)
            taken += check_kernel(&(struct shape) { .d = cases[i].d, .n_rot = cases[i].d, .group = cases[i].group, .bits = 3, .key_rank = cases[i].key_rank,
                                                    .n_sink = 4, .v_from = PREDICT_HEAD, .n_pages = 2, .n_exact = 9, .n_q = 1,
                                                    .q_first = SIZE_MAX }, 2, kernel);
        CU_ASSERT_EQUAL(taken, cases[i].n_kernels);
    }
}

/* Everything that attend_80.cu's kernels tell apart: odd numbers of pages, more of them than are under way, widths, rows. */
static void test_80(void)
{
    static const struct {
        uint32_t d, key_rank;
    } dims[] = { { 64, 0 }, { 128, 32 }, { 128, 64 }, { 128, 0 }, { 256, 64 } };
    static const uint32_t groups[] = { 1, 4, 3, 8, 5, 16 };
    static const int bits[] = { 4, -1, 2, 3, 1, 6 };
    unsigned n = 0;

    for (size_t i = 0; i < sizeof(dims) / sizeof(dims[0]); i++)
        for (size_t j = 0; j < 4; j++, n++)
            check(&(struct shape) {
                .d = dims[i].d, .key_rank = dims[i].key_rank, .n_rot = dims[i].d / (1 + n % 2), .group = groups[n % 6],
                .bits = bits[n / 2 % 6], .n_sink = n % 3 * 2, .v_from = n % 2 ? PREDICT_HEAD : PREDICT_NONE, .n_pages = 1 + n * 5 % 9,
                .n_exact = 1 + n * 11 % 60, .n_q = 1, .q_first = SIZE_MAX,
            }, 1 + n % 2);
}

/* Queries are turned from page to page, and now and then formed anew. */
static void test_many_pages(void)
{
    check(&(struct shape) { .d = 64, .n_rot = 64, .group = 1, .bits = 2, .key_rank = 16, .n_pages = 131, .n_exact = 1, .n_q = 1,
                            .q_first = SIZE_MAX }, 1);
}

/* Many queries: every d and RoPE, tiles that end inside, groups that leave rows unused, with and without sinks. */
static void test_queries(void)
{
    static const uint32_t dims[] = { 32, 80, 128, 256 }, groups[] = { 1, 3, 5, 16 };
    static const size_t n_qs[] = { 2, 3, 9 };
    unsigned n = 0;

    for (size_t i = 0; i < sizeof(dims) / sizeof(dims[0]); i++)
        for (size_t j = 0; j < sizeof(n_qs) / sizeof(n_qs[0]); j++, n++)
            check(&(struct shape) {
                .d = dims[i], .n_rot = n % 3 * dims[i] / 2, .group = groups[n % 4], .bits = -1, .n_sink = n % 2 * 4,
                .v_from = (enum prediction) (n % 2), .n_pages = n % 3, .n_exact = 20 + n * 7, .n_q = n_qs[j], .q_first = SIZE_MAX,
            }, 1 + n % 2);
}

/* More queries than exact rows: the first stand inside packed pages and see only what is before them, sinks included. */
static void test_queries_inside_pages(void)
{
    static const size_t exact[] = { 20, 1, 0 }, from_page[] = { 2, 62, 64 }, windows[] = { 0, 1, 64, 65, 100 };
    static const size_t firsts[] = { 0, 2, 4, 62, 64, 127 }; /* with newer tokens behind the queries */

    for (size_t i = 0; i < sizeof(exact) / sizeof(exact[0]); i++)
        check(&(struct shape) { .d = 64, .n_rot = 32, .group = 3, .bits = -1, .n_sink = 4, .v_from = PREDICT_HEAD,
                                .n_pages = 1 + i % 2, .n_exact = exact[i], .n_q = exact[i] + from_page[i],
                                .q_first = SIZE_MAX }, 1 + i % 3);
    for (size_t i = 0; i < sizeof(firsts) / sizeof(firsts[0]); i++)
        check(&(struct shape) { .d = 64, .n_rot = 32, .group = 3, .bits = -1, .n_sink = 4, .v_from = PREDICT_HEAD, .n_pages = 3,
                                .n_exact = 20, .n_q = 26, .q_first = firsts[i] }, 1 + i % 3);
    for (size_t i = 0; i < sizeof(windows) / sizeof(windows[0]); i++)
        check(&(struct shape) { .d = 32, .n_rot = 32, .group = 4, .bits = -1, .n_sink = 4, .v_from = PREDICT_HEAD, .n_pages = 3,
                                .n_exact = 68, .n_q = 41, .q_first = SIZE_MAX, .window = windows[i] }, 2);
}

static void test_extremes(void)
{
    check(&(struct shape) { .d = 64, .n_rot = 64, .group = 3, .bits = -1, .n_sink = 4, .v_from = PREDICT_HEAD,
                            .mean_norm = 900, .n_pages = 2, .n_exact = 40, .n_q = 1, .q_first = SIZE_MAX }, 1);
    check(&(struct shape) { .d = 64, .n_rot = 64, .group = 3, .bits = -1, .n_sink = 4, .v_from = PREDICT_HEAD, .q_size = 0.02,
                            .mean_norm = 900, .n_pages = 3, .n_exact = 40, .n_q = 1, .q_first = SIZE_MAX }, 1);
    check(&(struct shape) { .d = 128, .n_rot = 128, .group = 8, .bits = 4, .n_sink = 4, .q_size = 0.02, .mean_norm = 900,
                            .n_pages = 3, .n_exact = 1, .n_q = 1, .q_first = SIZE_MAX }, 1);
    check(&(struct shape) { .d = 64, .n_rot = 64, .group = 3, .bits = -1, .n_sink = 4, .v_from = PREDICT_HEAD, .q_size = 30,
                            .n_pages = 3, .n_exact = 40, .n_q = 1, .q_first = SIZE_MAX }, 2);
    check(&(struct shape) { .d = 64, .n_rot = 64, .group = 3, .bits = -1, .n_sink = 4, .n_pages = 0, .n_exact = 1, .n_q = 1,
                            .q_first = SIZE_MAX }, 3); /* nothing packed */
}

/* What the kernels do not take is named before anything runs. */
static void test_what_is_refused(void)
{
    struct shape shape = { .d = 32, .n_rot = 32, .group = 17, .bits = 2, .n_pages = 0, .n_exact = 1, .n_q = 1,
                           .q_first = SIZE_MAX };
    struct errmsg e = { "" };
    struct scene s;

    scene_init(&s, &shape);
    CU_ASSERT_EQUAL(plan_table_check(&s.layout, &e), -EOPNOTSUPP);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "17"));
    scene_deinit(&s);
    shape = (struct shape) { .d = 256, .n_rot = 256, .group = 1, .bits = 2, .v_from = PREDICT_LAYER, .n_exact = 1, .n_q = 1,
                             .q_first = SIZE_MAX };
    scene_init(&s, &shape);
    CU_ASSERT_EQUAL(plan_table_check(&s.layout, &e), -EOPNOTSUPP);
    scene_deinit(&s);
}

const char test_suite[] = "gpu kernels on the CPU";
const struct test_case test_cases[] = {
    TEST(test_shapes), TEST(test_every_width), TEST(test_groups), TEST(test_layer_prediction), TEST(test_splits_and_windows),
    TEST(test_every_kernel), TEST(test_80), TEST(test_many_pages), TEST(test_queries), TEST(test_queries_inside_pages), TEST(test_extremes), TEST(test_what_is_refused), TEST_END,
};
