/*
 * The encoding and decoding kernels, run on the CPU, against gpu/chunk.h: the same bytes, the same vectors, to the bit, for all
 * dimensions, widths, predictions and number types.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/half.h"
#include "gpu/chunk.h"
#include "gpu/cuda/plan.h"
#include "tests/cuda_on_cpu/kernels.h"
#include "tests/lib/test.h"
#include "tests/unit/gpu/view.h"

enum { LAYER = 1, N_LAYERS = 2 };

struct shape {
    uint32_t d, n_kv_heads;
    int bits;              /* view.h */
    enum prediction v_from;
    enum plan_dtype dtype;
    uint32_t n_exact;
};

static void *need(size_t bytes)
{
    void *p = aligned_alloc(128, (bytes + 127) / 128 * 128 + 128);

    assert(p);
    memset(p, 0, bytes);
    return p;
}

/* [64][n_kv_heads][d] drawn in @dtype; the same numbers in binary32 go to @ret_f32. */
static void *draw(const struct shape *s, size_t n, float *ret_f32)
{
    uint16_t *halves = need(n * sizeof(*halves));

    for (size_t i = 0; i < n; i++) {
        float x = (float) (2 * test_rand_normal());

        halves[i] = s->dtype == PLAN_F16 ? f32_to_f16(x) : f32_to_bf16(x);
        ret_f32[i] = s->dtype == PLAN_F32 ? x : s->dtype == PLAN_F16 ? f16_to_f32(halves[i]) : bf16_to_f32(halves[i]);
    }
    if (s->dtype != PLAN_F32)
        return halves;
    free(halves);
    return memcpy(need(n * sizeof(float)), ret_f32, n * sizeof(float));
}

/* The CPU's page of one layer; sinks are at the encoder's mean, as sequences put them. */
static void encode_on_cpu(const struct page_layout *l, const struct shape *s, float *const x[2], uint8_t *payload,
                          struct encode_counts counts[2])
{
    const struct table *t = l->table;
    size_t row = (size_t) s->n_kv_heads * s->d;
    struct chunk_work w;

    assert(chunk_work_init(&w, &t->geometry, l->shard) == 0);
    for (uint32_t side = SIDE_K; side <= SIDE_V; side++)
        for (uint32_t h = 0; h < s->n_kv_heads; h++) {
            float *at = x[side] + (size_t) h * s->d;

            for (size_t token = 0; token < s->n_exact; token++)
                memcpy(at + token * row, table_codec(t, LAYER, h, (enum side) side)->enc_mean, s->d * sizeof(float));
            assert((side == SIDE_K ? chunk_encode_keys : chunk_encode_values)(l, LAYER, h, at, row, payload, &counts[side],
                                                                              &w) == 0);
        }
    chunk_work_deinit(&w);
}

static void check_decoding(const struct page_layout *l, const struct shape *s, const struct plan_table *table,
                           const uint8_t *payload)
{
    size_t row = (size_t) s->n_kv_heads * s->d, n = CHUNK_TOKENS * row;
    float *want = need(n * sizeof(float)), *got = need(n * sizeof(float));
    struct chunk_work w;

    assert(chunk_work_init(&w, &l->table->geometry, l->shard) == 0);
    for (uint32_t side = SIDE_K; side <= SIDE_V; side++) {
        const struct plan_decode plan = { .table = table, .payloads = &payload, .layer = LAYER, .side = side, .out = got };

        for (uint32_t h = 0; h < s->n_kv_heads; h++)
            chunk_decode(l, payload, LAYER, h, (enum side) side, want + (size_t) h * s->d, row, &w);
        on_cpu_decode(&plan, 1);
        CU_ASSERT_EQUAL(memcmp(want, got, n * sizeof(float)), 0);
    }
    chunk_work_deinit(&w);
    free(want);
    free(got);
}

static void check(const struct shape *s)
{
    struct view_options o = { .geometry = view_geometry(N_LAYERS, 2 * s->n_kv_heads, s->n_kv_heads, s->d, s->d),
                              .n_sink = 4, .v_from = s->v_from, .bits = s->bits };
    size_t n = (size_t) CHUNK_TOKENS * s->n_kv_heads * s->d;
    float *x[2] = { need(n * sizeof(float)), need(n * sizeof(float)) };
    struct encode_counts counts[2] = { { 0 } };
    unsigned long long saturated[2] = { 0 };
    uint32_t not_finite = 0;
    struct page_layout l;
    struct view v;
    struct plan_chunk chunk;
    struct plan_encode plan;
    uint8_t *want, *got;
    void *table;

    view_init(&v, &o);
    assert(page_layout_init(&l, &v.table, (struct shard) { 0, s->n_kv_heads }) == 0);
    want = need(l.payload_bytes[PAGE_FIRST]);
    got = need(l.payload_bytes[PAGE_FIRST]);
    table = need(plan_table_bytes(&l));
    plan_table_fill(&l, table, (cu_ptr) (uintptr_t) table);
    chunk = (struct plan_chunk) { .payload = got, .k = draw(s, n, x[0]), .v = draw(s, n, x[1]), .n_exact = s->n_exact };
    plan = (struct plan_encode) { .table = table, .chunks = &chunk, .layer = LAYER, .dtype = s->dtype,
                                  .not_finite = &not_finite, .saturated = saturated };
    encode_on_cpu(&l, s, x, want, counts);
    on_cpu_encode(&plan, 1, plan_encode_shared_bytes(&l));
    CU_ASSERT_EQUAL(memcmp(want, got, l.payload_bytes[PAGE_FIRST]), 0);
    if (memcmp(want, got, l.payload_bytes[PAGE_FIRST]) != 0)
        printf("    d %u heads %u bits %d v_from %d dtype %d sinks %u\n", s->d, s->n_kv_heads, s->bits, s->v_from, s->dtype,
               s->n_exact);
    CU_ASSERT_EQUAL(not_finite, 0);
    CU_ASSERT_EQUAL(saturated[0], counts[0].saturated);
    CU_ASSERT_EQUAL(saturated[1], counts[1].saturated);
    check_decoding(&l, s, table, want);
    free((void *) chunk.k);
    free((void *) chunk.v);
    free(table);
    free(want);
    free(got);
    free(x[0]);
    free(x[1]);
    page_layout_deinit(&l);
    view_deinit(&v);
}

static void test_shapes(void)
{
    static const uint32_t dims[] = { 32, 64, 80, 96, 128 };

    for (uint32_t i = 0; i < sizeof(dims) / sizeof(dims[0]); i++)
        for (int v_from = PREDICT_NONE; v_from <= PREDICT_LAYER; v_from++)
            check(&(struct shape) { .d = dims[i], .n_kv_heads = 1 + (i + (uint32_t) v_from) % 3, .bits = -1,
                                    .v_from = (enum prediction) v_from, .dtype = (enum plan_dtype) (i % 3),
                                    .n_exact = i % 2 * 4 });
}

static void test_every_width(void)
{
    for (int bits = 0; bits <= 8; bits++)
        check(&(struct shape) { .d = 32, .n_kv_heads = 2, .bits = bits, .v_from = PREDICT_HEAD, .dtype = PLAN_F32 });
}

/* One bad number in a chunk raises the flag, wherever it is; without one it stays down (check()). */
static void test_not_finite(void)
{
    static const float bad[] = { INFINITY, -INFINITY, NAN };
    struct view_options o = { .geometry = view_geometry(N_LAYERS, 2, 2, 32, 32), .n_sink = 4, .bits = 2 };
    size_t n = (size_t) CHUNK_TOKENS * 2 * 32;
    float *x[2] = { need(n * sizeof(float)), need(n * sizeof(float)) };
    struct page_layout l;
    struct view v;
    uint8_t *payload;
    void *table;

    view_init(&v, &o);
    assert(page_layout_init(&l, &v.table, (struct shard) { 0, 2 }) == 0);
    payload = need(l.payload_bytes[PAGE_FIRST]);
    table = need(plan_table_bytes(&l));
    plan_table_fill(&l, table, (cu_ptr) (uintptr_t) table);
    for (size_t i = 0; i < 6; i++) {
        const struct plan_chunk chunk = { .payload = payload, .k = x[0], .v = x[1] };
        uint32_t not_finite = 0;
        const struct plan_encode plan = { .table = table, .chunks = &chunk, .layer = LAYER, .not_finite = &not_finite };
        float *at = &x[i % 2][test_rand_below(n)];

        *at = bad[i / 2];
        on_cpu_encode(&plan, 1, plan_encode_shared_bytes(&l));
        CU_ASSERT_EQUAL(not_finite, 1);
        *at = 0;
    }
    free(x[0]);
    free(x[1]);
    free(payload);
    free(table);
    page_layout_deinit(&l);
    view_deinit(&v);
}

const char test_suite[] = "gpu codec kernels on the CPU";
const struct test_case test_cases[] = { TEST(test_shapes), TEST(test_every_width), TEST(test_not_finite), TEST_END };
