/*
 * Appending to sequences in GPU memory and reading them back, against the CPU's codec: the same bytes of pages and tails and the
 * same vectors, to the bit, for all dimensions, widths, predictions and number types, however the tokens come in pieces.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/half.h"
#include "tests/lib/test.h"
#include "tests/standin/graph.h"
#include "tests/unit/gpu/cuda/sequence.h"

static struct end *open_end(void)
{
    static struct end d;

    if (!end_init(&d, 1))
        end_ok(&d, -1);
    return &d;
}

/* Two whole chunks, a sink or none, and a tail, read back in pieces that end inside chunks, sinks, tail. */
static void check(const struct sequence_shape *shape)
{
    struct sequence_shape all = *shape;
    struct end *d = open_end();
    struct sequence s;

    all.tokens_max = 200;
    all.tail_rows = 200;
    all.group = 2;
    sequence_init(&s, d, &all);
    sequence_append(&s, 191, -1, NULL);
    sequence_append(&s, 5, -1, NULL);
    CU_ASSERT_EQUAL(s.n_packed, 2);
    CU_ASSERT_TRUE(sequence_compare(&s));
    CU_ASSERT_TRUE(sequence_compare_reading(&s, SIDE_K, 0, 196));
    CU_ASSERT_TRUE(sequence_compare_reading(&s, SIDE_V, 2, 67));
    CU_ASSERT_TRUE(sequence_compare_reading(&s, SIDE_V, 120, 60));
    sequence_deinit(&s);
    CU_ASSERT_TRUE(end_deinit(d));
}

static void test_shapes(void)
{
    static const uint32_t dims[] = { 32, 64, 80, 96, 128, 34 };

    for (uint32_t i = 0; i < sizeof(dims) / sizeof(dims[0]); i++)
        for (int v_from = PREDICT_NONE; v_from <= PREDICT_LAYER; v_from++)
            check(&(struct sequence_shape) { .d = dims[i], .n_kv_heads = 1 + (i + (uint32_t) v_from) % 3, .bits = -1,
                                             .v_from = (enum prediction) v_from, .dtype = (enum plan_dtype) (i % 3),
                                             .n_sink = i % 2 * 4 });
    check(&(struct sequence_shape) { .d = 256, .n_kv_heads = 1, .bits = 3, .v_from = PREDICT_HEAD, .n_sink = 16 });
}

static void test_every_width(void)
{
    for (int bits = 0; bits <= 8; bits++) /* 0: rank 0 */
        check(&(struct sequence_shape) { .d = 32, .n_kv_heads = 2, .bits = bits, .v_from = PREDICT_HEAD, .n_sink = 4 });
}

/*
 * Tokens in pieces of all sizes through a tail that is just long enough: it moves to the front of its buffer, also over itself,
 * and a launch that may pack more chunks than are due packs those that are.
 */
static void test_pieces(void)
{
    static const uint32_t pieces[] = { 1, 62, 1, 63, 1, 64, 30, 90, 1, 129, 1, 1, 70, 1, 1, 120, 2, 65, 1, 60, 60, 60 };
    const struct sequence_shape shape = { .d = 32, .n_kv_heads = 2, .group = 1, .bits = 3, .v_from = PREDICT_HEAD, .n_sink = 4,
                                          .dtype = PLAN_BF16, .tokens_max = 900, .tail_rows = 260 };
    unsigned moves = 0, over_itself = 0;
    struct end *d = open_end();
    struct sequence s;

    sequence_init(&s, d, &shape);
    for (unsigned i = 0; i < sizeof(pieces) / sizeof(pieces[0]); i++) {
        struct plan_seq before = s.mirror;
        uint32_t left;

        sequence_append(&s, pieces[i], i % 2 ? -1 : 4, NULL);
        left = s.mirror.n_exact - pieces[i];
        if (s.mirror.first_row == 0 && before.first_row > 0) {
            moves++;
            over_itself += before.first_row + before.n_exact - left < left;
        }
        CU_ASSERT_TRUE(sequence_compare(&s));
    }
    CU_ASSERT_TRUE(moves >= 2 && over_itself >= 1);
    for (uint32_t first = 0; first < s.length; first += 111)
        CU_ASSERT_TRUE(sequence_compare_reading(&s, (enum side) (first % 2), first, s.length - first < 130 ? s.length - first : 130));
    sequence_deinit(&s);
    CU_ASSERT_TRUE(end_deinit(d));
}

/* A launch packs no more chunks than it may; the next one goes on. Then what the host counts: two chunks, due or not. */
static void test_packing_by_the_host(void)
{
    const struct sequence_shape shape = { .d = 32, .n_kv_heads = 1, .group = 1, .bits = 2, .v_from = PREDICT_NONE,
                                          .tokens_max = 400, .tail_rows = 400 };
    struct end *d = open_end();
    struct plan_append a;
    struct sequence s;

    sequence_init(&s, d, &shape);
    sequence_append(&s, 319, 0, NULL);
    sequence_append(&s, 1, 0, NULL);
    CU_ASSERT_EQUAL(s.n_packed, 0);
    for (uint32_t i = 1; i <= 3; i++) {
        sequence_append(&s, 1, 1, NULL);
        CU_ASSERT_EQUAL(s.n_packed, i);
        CU_ASSERT_TRUE(sequence_compare(&s));
    }
    sequence_draw(&s, 0, 2, &a); /* 323 tokens: the rule would pack one */
    a.given = 1;
    end_ok(d, cuda_append(d->kernels, &s.layout, &a, NULL, &d->e));
    sequence_append_on_cpu(&s, &a);
    CU_ASSERT_EQUAL(s.n_packed, 5);
    CU_ASSERT_TRUE(sequence_compare(&s));
    sequence_deinit(&s);
    CU_ASSERT_TRUE(end_deinit(d));
}

static uint32_t faults_of(const struct sequence *s)
{
    uint32_t faults;

    end_get(s->end, &faults, s->flag, sizeof(faults));
    return faults;
}

/* One bad number raises the flag, wherever it is and in whichever type; the largest good one does not. */
static void test_not_finite(void)
{
    static const float bad[] = { INFINITY, -INFINITY, NAN, 65536 };
    const struct sequence_shape shape = { .d = 32, .n_kv_heads = 2, .group = 1, .bits = 2, .v_from = PREDICT_NONE, .n_sink = 4,
                                          .dtype = PLAN_F32, .tokens_max = 100, .tail_rows = 100 };
    struct end *d = open_end();
    struct sequence s;
    uint32_t zero = 0;

    sequence_init(&s, d, &shape);
    for (size_t i = 0; i < 2 * sizeof(bad) / sizeof(bad[0]); i++) {
        enum side side = (enum side) (i % 2);
        uint32_t col = (uint32_t) test_rand_below(2 * 32), row = (uint32_t) test_rand_below(3);
        float mean = table_codec(&s.view.table, SEQUENCE_LAYER, col / 32, side)->mean[col % 32], x = mean + 65503;
        cu_ptr at;
        struct plan_append a;

        sequence_draw(&s, 3, 0, &a);
        at = s.new_rows[side] + (row * 64 + col) * sizeof(float);
        end_set(d, at, &x, sizeof(x));
        end_ok(d, cuda_append(d->kernels, &s.layout, &a, NULL, &d->e));
        CU_ASSERT_EQUAL(faults_of(&s), 0);
        x = bad[i / 2] + mean;
        end_set(d, at, &x, sizeof(x));
        end_ok(d, cuda_append(d->kernels, &s.layout, &a, NULL, &d->e));
        CU_ASSERT_EQUAL(faults_of(&s), PLAN_NOT_FINITE);
        end_set(d, s.flag, &zero, sizeof(zero));
    }
    sequence_deinit(&s);
    CU_ASSERT_TRUE(end_deinit(d));
}

/* A tail or pages that the host did not provide: nothing is written, and it is told. */
static void test_no_room(void)
{
    const struct sequence_shape shape = { .d = 32, .n_kv_heads = 2, .group = 1, .bits = 2, .v_from = PREDICT_HEAD, .n_sink = 4,
                                          .tokens_max = 300, .tail_rows = 130 };
    struct end *d = open_end();
    struct plan_append a;
    struct sequence s;
    uint32_t zero = 0;

    sequence_init(&s, d, &shape);
    sequence_append(&s, 127, -1, NULL);
    sequence_draw(&s, 68, 1, &a); /* one chunk goes, 63 rows stay, 131 would be there */
    end_ok(d, cuda_append(d->kernels, &s.layout, &a, NULL, &d->e));
    CU_ASSERT_EQUAL(faults_of(&s), PLAN_NO_ROOM);
    CU_ASSERT_TRUE(sequence_compare(&s));
    end_set(d, s.flag, &zero, sizeof(zero));
    s.mirror.n_claimed = 0;
    end_set(d, s.seq, &s.mirror, sizeof(s.mirror));
    sequence_draw(&s, 1, 1, &a);
    end_ok(d, cuda_append(d->kernels, &s.layout, &a, NULL, &d->e));
    CU_ASSERT_EQUAL(faults_of(&s), PLAN_NO_ROOM);
    CU_ASSERT_TRUE(sequence_compare(&s));
    sequence_deinit(&s);
    CU_ASSERT_TRUE(end_deinit(d));
}

/* One captured append of a token, replayed over chunk boundaries and moves of the tail: nothing is asked of the host. */
static void test_replay(void)
{
    const struct sequence_shape shape = { .d = 32, .n_kv_heads = 2, .group = 1, .bits = 4, .v_from = PREDICT_HEAD, .n_sink = 4,
                                          .tokens_max = 350, .tail_rows = 200 };
    struct end *d = open_end();
    struct graph_calls graphs;
    cu_graph_exec exec;
    struct plan_append a;
    struct sequence s;
    cu_stream stream;
    cu_graph graph;

    sequence_init(&s, d, &shape);
    CU_ASSERT_TRUE_FATAL(graph_calls_find(d->driver->library, &graphs));
    end_ok(d, cuda_space_enter(d->space, &d->e));
    end_cu_ok(d, d->driver->stream_create(&stream, 0));
    sequence_draw(&s, 1, 1, &a);
    end_cu_ok(d, graphs.begin_capture(stream, CU_CAPTURE_GLOBAL));
    end_ok(d, cuda_append(d->kernels, &s.layout, &a, stream, &d->e));
    end_cu_ok(d, graphs.end_capture(stream, &graph));
    end_cu_ok(d, graphs.instantiate(&exec, graph, 0));
    for (unsigned i = 0; i < 340; i++) {
        struct plan_append same;

        sequence_draw(&s, 1, 1, &same);
        end_cu_ok(d, graphs.launch(exec, stream));
        end_cu_ok(d, d->driver->stream_synchronize(stream));
        sequence_append_on_cpu(&s, &same);
    }
    CU_ASSERT_EQUAL(s.n_packed, 4);
    CU_ASSERT_TRUE(sequence_compare(&s));
    end_cu_ok(d, graphs.exec_destroy(exec));
    end_cu_ok(d, graphs.destroy(graph));
    end_cu_ok(d, d->driver->stream_destroy(stream));
    cuda_space_leave(d->space);
    sequence_deinit(&s);
    CU_ASSERT_TRUE(end_deinit(d));
}

const char test_suite[] = "appending in GPU memory";
const struct test_case test_cases[] = {
    TEST(test_shapes), TEST(test_every_width), TEST(test_pieces), TEST(test_packing_by_the_host), TEST(test_not_finite),
    TEST(test_no_room), TEST(test_replay), TEST_END,
};
