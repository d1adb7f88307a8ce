/*
 * Appending to sequences in GPU memory and reading them back, against the codec of the CPU: pages, tails
 * and vectors must have the same bits, for all dimensions, widths, predictions and number types, and for
 * tokens in pieces of any size. And decode steps that are captured and replayed, against attention in
 * binary64.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/cuda/device_table.h"
#include "tests/lib/test.h"
#include "tests/standin/graph.h"
#include "tests/unit/gpu/cuda/sequence_pair.h"
#include "tests/unit/gpu/attend_oracle.h"

static struct gpu_fixture *open_end(void)
{
    static struct gpu_fixture d;

    if (!gpu_fixture_init(&d, 1))
        gpu_fixture_ok(&d, -1);
    return &d;
}

/* Two whole chunks, a sink or none, and a tail, read back in pieces that
 * end inside chunks, sinks and tail. */
static void check(const struct sequence_pair_shape *shape)
{
    struct sequence_pair_shape all = *shape;
    struct gpu_fixture *d = open_end();
    struct sequence_pair s;

    all.tokens_max = 200;
    all.tail_rows = 200;
    all.group = 2;
    sequence_pair_init(&s, d, &all);
    sequence_pair_append(&s, 191, -1, NULL);
    sequence_pair_append(&s, 5, -1, NULL);
    CU_ASSERT_EQUAL(s.n_packed, 2);
    CU_ASSERT_TRUE(sequence_pair_compare(&s));
    CU_ASSERT_TRUE(sequence_pair_compare_reading(&s, SIDE_K, 0, 196));
    CU_ASSERT_TRUE(sequence_pair_compare_reading(&s, SIDE_V, 2, 67));
    CU_ASSERT_TRUE(sequence_pair_compare_reading(&s, SIDE_V, 120, 60));
    sequence_pair_deinit(&s);
    CU_ASSERT_TRUE(gpu_fixture_deinit(d));
}

static void test_shapes(void)
{
    static const uint32_t dims[] = {32, 64, 80, 96, 128, 34};

    for (uint32_t i = 0; i < sizeof(dims) / sizeof(dims[0]); i++)
        for (int v_from = PREDICT_NONE; v_from <= PREDICT_LAYER; v_from++)
            check(&(struct sequence_pair_shape){.d = dims[i],
                                                .n_kv_heads = 1 + (i + (uint32_t) v_from) % 3,
                                                .bits = -1,
                                                .v_from = (enum prediction) v_from,
                                                .dtype = (enum launch_dtype)(i % 3),
                                                .n_sink = i % 2 * 4});
    check(&(struct sequence_pair_shape){
        .d = 256, .n_kv_heads = 1, .bits = 3, .v_from = PREDICT_HEAD, .n_sink = 16});
}

static void test_every_width(void)
{
    for (int bits = 0; bits <= 8; bits++) /* 0: rank 0 */
        check(&(struct sequence_pair_shape){
            .d = 32, .n_kv_heads = 2, .bits = bits, .v_from = PREDICT_HEAD, .n_sink = 4});
}

/* Tokens in pieces of all sizes through a tail that is barely long enough: it moves to the front of its
 * buffer, also over itself, and a launch that may pack more chunks than are due packs only those. */
static void test_pieces(void)
{
    static const uint32_t pieces[] = {1, 62, 1, 63, 1,   64, 30, 90, 1,  129, 1,
                                      1, 70, 1, 1,  120, 2,  65, 1,  60, 60,  60};
    const struct sequence_pair_shape shape = {.d = 32,
                                              .n_kv_heads = 2,
                                              .group = 1,
                                              .bits = 3,
                                              .v_from = PREDICT_HEAD,
                                              .n_sink = 4,
                                              .dtype = LAUNCH_BF16,
                                              .tokens_max = 900,
                                              .tail_rows = 260};
    unsigned moves = 0, over_itself = 0;
    struct gpu_fixture *d = open_end();
    struct sequence_pair s;

    sequence_pair_init(&s, d, &shape);
    for (unsigned i = 0; i < sizeof(pieces) / sizeof(pieces[0]); i++) {
        struct device_seq before = s.mirror;
        uint32_t left;

        sequence_pair_append(&s, pieces[i], i % 2 ? -1 : 4, NULL);
        left = s.mirror.n_exact - pieces[i];
        if (s.mirror.first_row == 0 && before.first_row > 0) {
            moves++;
            over_itself += before.first_row + before.n_exact - left < left;
        }
        CU_ASSERT_TRUE(sequence_pair_compare(&s));
    }
    CU_ASSERT_TRUE(moves >= 2 && over_itself >= 1);
    for (uint32_t first = 0; first < s.length; first += 111)
        CU_ASSERT_TRUE(sequence_pair_compare_reading(&s, (enum side)(first % 2), first,
                                                     s.length - first < 130 ? s.length - first : 130));
    sequence_pair_deinit(&s);
    CU_ASSERT_TRUE(gpu_fixture_deinit(d));
}

/* A launch packs no more chunks than it may; the next launch continues. Then the host counts: two chunks,
 * due or not. */
static void test_packing_by_the_host(void)
{
    const struct sequence_pair_shape shape = {.d = 32,
                                              .n_kv_heads = 1,
                                              .group = 1,
                                              .bits = 2,
                                              .v_from = PREDICT_NONE,
                                              .tokens_max = 400,
                                              .tail_rows = 400};
    struct gpu_fixture *d = open_end();
    struct launch_append a;
    struct sequence_pair s;

    sequence_pair_init(&s, d, &shape);
    sequence_pair_append(&s, 319, 0, NULL);
    sequence_pair_append(&s, 1, 0, NULL);
    CU_ASSERT_EQUAL(s.n_packed, 0);
    for (uint32_t i = 1; i <= 3; i++) {
        sequence_pair_append(&s, 1, 1, NULL);
        CU_ASSERT_EQUAL(s.n_packed, i);
        CU_ASSERT_TRUE(sequence_pair_compare(&s));
    }
    sequence_pair_draw(&s, 0, 2, &a); /* 323 tokens: the rule would pack one */
    a.given = 1;
    gpu_fixture_ok(d, cuda_append(d->kernels, &s.layout, &a, 1, NULL, &d->e));
    sequence_pair_append_on_cpu(&s, &a);
    CU_ASSERT_EQUAL(s.n_packed, 5);
    CU_ASSERT_TRUE(sequence_pair_compare(&s));
    sequence_pair_deinit(&s);
    CU_ASSERT_TRUE(gpu_fixture_deinit(d));
}

static uint32_t faults_of(const struct sequence_pair *s)
{
    uint32_t faults;

    gpu_fixture_get(s->gpu, &faults, s->flag, sizeof(faults));
    return faults;
}

/* One bad number raises the flag, at any place and in any type; the largest valid one does not. */
static void test_not_finite(void)
{
    static const float bad[] = {INFINITY, -INFINITY, NAN, 65536};
    const struct sequence_pair_shape shape = {.d = 32,
                                              .n_kv_heads = 2,
                                              .group = 1,
                                              .bits = 2,
                                              .v_from = PREDICT_NONE,
                                              .n_sink = 4,
                                              .dtype = LAUNCH_F32,
                                              .tokens_max = 100,
                                              .tail_rows = 100};
    struct gpu_fixture *d = open_end();
    struct sequence_pair s;
    uint32_t zero = 0;

    sequence_pair_init(&s, d, &shape);
    for (size_t i = 0; i < 2 * sizeof(bad) / sizeof(bad[0]); i++) {
        enum side side = (enum side)(i % 2);
        uint32_t col = (uint32_t) test_rand_below(2 * 32), row = (uint32_t) test_rand_below(3);
        float mean = table_codec(&s.memory.table, SEQUENCE_PAIR_LAYER, col / 32, side)->mean[col % 32],
              x = mean + 65503;
        cu_ptr at;
        struct launch_append a;

        sequence_pair_draw(&s, 3, 0, &a);
        at = s.new_rows[side] + (row * 64 + col) * sizeof(float);
        gpu_fixture_set(d, at, &x, sizeof(x));
        gpu_fixture_ok(d, cuda_append(d->kernels, &s.layout, &a, 1, NULL, &d->e));
        CU_ASSERT_EQUAL(faults_of(&s), 0);
        x = bad[i / 2] + mean;
        gpu_fixture_set(d, at, &x, sizeof(x));
        gpu_fixture_ok(d, cuda_append(d->kernels, &s.layout, &a, 1, NULL, &d->e));
        CU_ASSERT_EQUAL(faults_of(&s), DEVICE_NOT_FINITE);
        gpu_fixture_set(d, s.flag, &zero, sizeof(zero));
    }
    sequence_pair_deinit(&s);
    CU_ASSERT_TRUE(gpu_fixture_deinit(d));
}

/* A tail or pages that the host did not provide: nothing is written, and the fault is raised. */
static void test_no_room(void)
{
    const struct sequence_pair_shape shape = {.d = 32,
                                              .n_kv_heads = 2,
                                              .group = 1,
                                              .bits = 2,
                                              .v_from = PREDICT_HEAD,
                                              .n_sink = 4,
                                              .tokens_max = 300,
                                              .tail_rows = 130};
    struct gpu_fixture *d = open_end();
    struct launch_append a;
    struct sequence_pair s;
    uint32_t zero = 0;

    sequence_pair_init(&s, d, &shape);
    sequence_pair_append(&s, 127, -1, NULL);
    sequence_pair_draw(&s, 68, 1, &a); /* one chunk is packed, 63 rows stay, 131 would be needed */
    gpu_fixture_ok(d, cuda_append(d->kernels, &s.layout, &a, 1, NULL, &d->e));
    CU_ASSERT_EQUAL(faults_of(&s), DEVICE_NO_ROOM);
    CU_ASSERT_TRUE(sequence_pair_compare(&s));
    gpu_fixture_set(d, s.flag, &zero, sizeof(zero));
    s.mirror.n_claimed = 0;
    gpu_fixture_set(d, s.seq, &s.mirror, sizeof(s.mirror));
    sequence_pair_draw(&s, 1, 1, &a);
    gpu_fixture_ok(d, cuda_append(d->kernels, &s.layout, &a, 1, NULL, &d->e));
    CU_ASSERT_EQUAL(faults_of(&s), DEVICE_NO_ROOM);
    CU_ASSERT_TRUE(sequence_pair_compare(&s));
    sequence_pair_deinit(&s);
    CU_ASSERT_TRUE(gpu_fixture_deinit(d));
}

/* ---- several sequences ---- */

enum { SEVERAL = 5 };

static void init_several(struct sequence_pair s[SEVERAL], struct gpu_fixture *d,
                         const struct sequence_pair_shape *shape)
{
    sequence_pair_init(&s[0], d, shape);
    for (uint32_t i = 1; i < SEVERAL; i++)
        sequence_pair_init_beside(&s[i], &s[0], shape->tail_rows + 17 * i);
}

static void deinit_several(struct sequence_pair s[SEVERAL])
{
    for (unsigned i = SEVERAL; i-- > 0;)
        sequence_pair_deinit(&s[i]);
}

/* One launch or three for all sequences, with what is due; on the CPU each by itself. @leave_out: the item
 * whose memory is missing. */
static void append_to_several(struct sequence_pair s[SEVERAL], const uint32_t n_new[SEVERAL],
                              unsigned leave_out)
{
    struct launch_append all = {0}, one[SEVERAL];

    for (unsigned i = 0; i < SEVERAL; i++) {
        sequence_pair_draw(&s[i], n_new[i], -1, &one[i]);
        if (i == 0)
            all = one[i];
        all.items[i] = one[i].items[0];
    }
    gpu_fixture_ok(s[0].gpu, cuda_append(s[0].gpu->kernels, &s[0].layout, &all, SEVERAL, NULL, &s[0].gpu->e));
    for (unsigned i = 0; i < SEVERAL; i++)
        if (i != leave_out)
            sequence_pair_append_on_cpu(&s[i], &one[i]);
}

/* Sequences of all lengths in one launch. Some get no token, some one, some more than a
 * block stores; some pack one chunk or two, in the middle or at the ends; tails move to the
 * front. Each has the same bits as alone. */
static void test_several(void)
{
    static const uint32_t rounds[][SEVERAL] = {
        {5, 130, 63, 0, 200}, {1, 1, 1, 1, 1},  {0, 1, 62, 127, 1}, {1, 1, 1, 1, 0}, {120, 0, 1, 1, 70},
        {1, 129, 1, 1, 1},    {1, 1, 1, 90, 1}, {3, 66, 1, 1, 64},  {0, 0, 0, 0, 0}, {1, 60, 64, 1, 1},
    };
    const struct sequence_pair_shape shape = {.d = 32,
                                              .n_kv_heads = 3,
                                              .group = 1,
                                              .bits = 3,
                                              .v_from = PREDICT_LAYER,
                                              .n_sink = 4,
                                              .dtype = LAUNCH_F16,
                                              .tokens_max = 460,
                                              .tail_rows = 262};
    struct gpu_fixture *d = open_end();
    struct sequence_pair s[SEVERAL];
    unsigned moved = 0;

    init_several(s, d, &shape);
    for (unsigned round = 0; round < sizeof(rounds) / sizeof(rounds[0]); round++) {
        uint32_t before[SEVERAL];

        for (unsigned i = 0; i < SEVERAL; i++)
            before[i] = s[i].mirror.first_row;
        append_to_several(s, rounds[round], SEVERAL);
        for (unsigned i = 0; i < SEVERAL; i++) {
            moved += s[i].mirror.first_row < before[i];
            CU_ASSERT_TRUE(sequence_pair_compare(&s[i]));
        }
    }
    CU_ASSERT_TRUE(moved >= 2);
    deinit_several(s);
    CU_ASSERT_TRUE(gpu_fixture_deinit(d));
}

/* If memory of one sequence is missing, only that sequence gets a fault and stores
 * nothing; the others store everything. */
static void test_no_room_for_one(void)
{
    static const uint32_t prompts[SEVERAL] = {127, 127, 127, 127, 127}, pieces[SEVERAL] = {1, 200, 1, 70, 1};
    const struct sequence_pair_shape shape = {.d = 32,
                                              .n_kv_heads = 2,
                                              .group = 1,
                                              .bits = 2,
                                              .v_from = PREDICT_HEAD,
                                              .n_sink = 4,
                                              .tokens_max = 400,
                                              .tail_rows = 200};
    struct gpu_fixture *d = open_end();
    struct sequence_pair s[SEVERAL];

    init_several(s, d, &shape);
    append_to_several(s, prompts, SEVERAL);
    append_to_several(s, pieces, 1); /* 63 rows and 200 more do not fit 217 */
    for (unsigned i = 0; i < SEVERAL; i++) {
        CU_ASSERT_EQUAL(faults_of(&s[i]), i == 1 ? DEVICE_NO_ROOM : 0);
        CU_ASSERT_EQUAL(s[i].n_packed, i == 1 ? 0 : 1);
        CU_ASSERT_TRUE(sequence_pair_compare(&s[i]));
    }
    deinit_several(s);
    CU_ASSERT_TRUE(gpu_fixture_deinit(d));
}

/* ---- captured steps ---- */

enum { SPLITS = 2 };

/* Attention of the newest token, with the memory that it reads and writes. */
static void put_attention(const struct sequence_pair *s, const float *q, struct launch_attend *ret)
{
    size_t row = (size_t) s->shape.n_kv_heads * s->shape.group * s->shape.d * sizeof(float);
    size_t partials = s->shape.n_kv_heads * SPLITS *
                      LAUNCH_PARTIAL_FLOATS(device_table_columns_max(&s->layout), s->shape.d) * sizeof(float);

    *ret = (struct launch_attend){
        .table = (const struct device_table *) (uintptr_t) s->table,
        .layer = SEQUENCE_PAIR_LAYER,
        .n_splits = SPLITS,
        .n_q = 1,
        .partials = (float *) (uintptr_t) gpu_fixture_put(s->gpu, NULL, partials),
        .items = {{.seq = (const struct device_seq *) (uintptr_t) s->seq,
                   .n_q = 1,
                   .q = (const float *) (uintptr_t) gpu_fixture_put(s->gpu, q, row),
                   .out = (float *) (uintptr_t) gpu_fixture_put(s->gpu, NULL, row)}},
    };
}

/* Whether the attention of the newest token agrees with that of the CPU's pages, within the
 * tolerance of kernel_attend_check.h. */
static bool attends(struct sequence_pair *s, const float *q, const struct launch_attend *launch_args)
{
    uint32_t d = s->shape.d, group = s->shape.group, packed = s->n_packed * CHUNK_TOKENS;
    size_t floats = (size_t) s->shape.n_kv_heads * group * d;
    float *got = malloc(floats * sizeof(*got));
    bool ok = true;

    assert(got);
    gpu_fixture_get(s->gpu, got, (cu_ptr) (uintptr_t) launch_args->items[0].out, floats * sizeof(*got));
    for (uint32_t head = 0; head < s->shape.n_kv_heads; head++) {
        size_t first = ((size_t) head * s->shape.tokens_max + packed) * d;
        const struct attend_args a = {
            .layout = &s->layout,
            .layer = SEQUENCE_PAIR_LAYER,
            .head = head,
            .payloads = (const uint8_t *const *) s->pages,
            .n_pages = s->n_packed,
            .n_sink = s->shape.n_sink,
            .exact_k = s->rows[SIDE_K] + first,
            .exact_v = s->rows[SIDE_V] + first,
            .exact_stride = d,
            .exact_first = packed,
            .n_exact = s->length - packed,
            .q = q + (size_t) head * group * d,
            .q_stride = floats,
            .q_first = s->length - 1,
            .n_q = 1,
            .out = got + (size_t) head * group * d,
            .out_stride = floats,
        };
        struct oracle_report r = oracle_packed(&a, NULL);

        ok = ok && r.error <= r.tolerance + 6 * (r.tolerance_half - r.tolerance);
    }
    free(got);
    return ok;
}

static cu_graph_exec capture_step(struct gpu_fixture *d, const struct graph_calls *graphs,
                                  const struct sequence_pair *s, const struct launch_append *append,
                                  const struct launch_attend *attend, cu_stream stream)
{
    cu_graph_exec exec;
    cu_graph graph;

    gpu_fixture_cu_ok(d, graphs->begin_capture(stream, CU_CAPTURE_GLOBAL));
    gpu_fixture_ok(d, cuda_append(d->kernels, &s->layout, append, 1, stream, &d->e));
    gpu_fixture_ok(d, cuda_attend(d->kernels, &s->layout, attend, 1, stream, &d->e));
    gpu_fixture_cu_ok(d, graphs->end_capture(stream, &graph));
    gpu_fixture_cu_ok(d, graphs->instantiate(&exec, graph, 0));
    gpu_fixture_cu_ok(d, graphs->destroy(graph));
    return exec;
}

/* A token is appended and attended to; captured once and replayed over chunk boundaries and moves of the
 * tail. The host reads nothing back. */
static void test_replay(void)
{
    const struct sequence_pair_shape shape = {.d = 32,
                                              .n_kv_heads = 2,
                                              .group = 2,
                                              .bits = 4,
                                              .v_from = PREDICT_HEAD,
                                              .n_sink = 4,
                                              .tokens_max = 350,
                                              .tail_rows = 200};
    struct gpu_fixture *d = open_end();
    struct graph_calls graphs;
    float q[2 * 2 * 32];
    struct launch_append append;
    struct launch_attend attend;
    cu_graph_exec step;
    struct sequence_pair s;
    cu_stream stream;

    sequence_pair_init(&s, d, &shape);
    CU_ASSERT_TRUE_FATAL(graph_calls_find(d->driver->library, &graphs));
    gpu_fixture_ok(d, cuda_space_enter(d->space, &d->e));
    gpu_fixture_cu_ok(d, d->driver->stream_create(&stream, 0));
    for (size_t i = 0; i < sizeof(q) / sizeof(q[0]); i++)
        q[i] = (float) test_rand_normal();
    put_attention(&s, q, &attend);
    sequence_pair_draw(&s, 1, 1, &append);
    step = capture_step(d, &graphs, &s, &append, &attend, stream);
    for (unsigned i = 0; i < 340; i++) {
        sequence_pair_draw(&s, 1, 1, &append); /* to the same place */
        gpu_fixture_cu_ok(d, graphs.launch(step, stream));
        gpu_fixture_cu_ok(d, d->driver->stream_synchronize(stream));
        sequence_pair_append_on_cpu(&s, &append);
        CU_ASSERT_TRUE(i % 21 != 0 || attends(&s, q, &attend));
    }
    CU_ASSERT_EQUAL(s.n_packed, 4);
    CU_ASSERT_TRUE(sequence_pair_compare(&s));
    gpu_fixture_cu_ok(d, graphs.exec_destroy(step));
    gpu_fixture_cu_ok(d, d->driver->stream_destroy(stream));
    cuda_space_leave(d->space);
    sequence_pair_deinit(&s);
    CU_ASSERT_TRUE(gpu_fixture_deinit(d));
}

const char test_suite[] = "appending in GPU memory";
const struct test_case test_cases[] = {
    TEST(test_shapes),     TEST(test_every_width),
    TEST(test_pieces),     TEST(test_packing_by_the_host),
    TEST(test_not_finite), TEST(test_no_room),
    TEST(test_several),    TEST(test_no_room_for_one),
    TEST(test_replay),     TEST_END,
};
