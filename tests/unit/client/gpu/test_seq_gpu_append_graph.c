/*
 * Steps of a sequence on a GPU captured in a CUDA graph: replayed, they store and return the same bits as
 * eager steps; calls that cannot be captured fail and do not end the capture. The stand-in driver records
 * launches as the real one does (TEST_GPU=1).
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/kvcobra-gpu.h"
#include "client/connection/client.h"
#include "client/gpu/gpu_memory.h"
#include "client/sequence/seq.h"
#include "client/sequence/seq_tail.h"
#include "client/gpu/seq_gpu.h"
#include "tests/lib/test.h"
#include "tests/standin/graph.h"
#include "tests/unit/client/gpu_pair.h"

enum { LAYERS = 2, STREAM_NON_BLOCKING = 1, PROMPT = 100 };

/* A client on a stream of its own, with the buffers that a graph reads and writes in one step. */
struct capture_case {
    struct gpu_pair t;
    struct graph_calls graphs;
    cu_stream stream;
    size_t width, q_width; /* numbers of one token */
    struct gpu_memory k[LAYERS], v[LAYERS], q[LAYERS], out[LAYERS];
};

static cu_graph_exec no_graph;

/* The driver's result, in the GPU's context. */
#define DRIVER(case, call)                                                                                   \
    do {                                                                                                     \
        CU_ASSERT_EQUAL_FATAL(gpu_enter((case)->t.gpu->gpu, NULL), 0);                                       \
        CU_ASSERT_EQUAL_FATAL(call, CU_SUCCESS);                                                             \
        cuda_space_leave((case)->t.gpu->gpu->space);                                                         \
    } while (0)

static struct capture_case capture_new(void)
{
    const struct gpu_pair_shape shape = {.n_layers = LAYERS,
                                         .n_heads = 2,
                                         .n_kv_heads = 1,
                                         .d = 32,
                                         .n_sink = 4,
                                         .bpd = 3,
                                         .v_from = PREDICT_HEAD};
    struct capture_case r = {.t = gpu_pair_new(&shape)};
    struct gpu *g = r.t.gpu->gpu;

    CU_ASSERT_TRUE_FATAL(graph_calls_find(g->driver->library, &r.graphs));
    DRIVER(&r, g->driver->stream_create(&r.stream, STREAM_NON_BLOCKING));
    CU_ASSERT_EQUAL_FATAL(kvc_client_set_stream(r.t.gpu, r.stream), 0);
    r.width = (size_t) r.t.n_heads * r.t.g.d;
    r.q_width = r.width * geometry_group(&r.t.g);
    for (unsigned i = 0; i < LAYERS; i++) {
        r.k[i] = gpu_pair_take(&r.t, NULL, r.width * sizeof(float));
        r.v[i] = gpu_pair_take(&r.t, NULL, r.width * sizeof(float));
        r.q[i] = gpu_pair_take(&r.t, NULL, r.q_width * sizeof(float));
        r.out[i] = gpu_pair_take(&r.t, NULL, r.q_width * sizeof(float));
    }
    return r;
}

static void capture_free(struct capture_case *r)
{
    struct gpu *g = r->t.gpu->gpu;

    for (unsigned i = 0; i < LAYERS; i++) {
        gpu_pair_give(&r->t, &r->k[i]);
        gpu_pair_give(&r->t, &r->v[i]);
        gpu_pair_give(&r->t, &r->q[i]);
        gpu_pair_give(&r->t, &r->out[i]);
    }
    CU_ASSERT_EQUAL(kvc_client_set_stream(r->t.gpu, NULL), 0);
    DRIVER(r, g->driver->stream_destroy(r->stream));
    gpu_pair_free(&r->t);
}

static float *at(struct gpu_memory m)
{
    return (float *) (uintptr_t) m.at;
}

/* Writes the inputs of position @position into the buffers. */
static void fill(struct capture_case *r, uint64_t text, size_t position)
{
    struct gpu *g = r->t.gpu->gpu;

    for (uint32_t i = 0; i < LAYERS; i++)
        for (unsigned kind = 0; kind < 3; kind++) {
            float *x = gpu_pair_input(&r->t, text, i, kind, position, 1);
            struct gpu_memory inputs[] = {r->k[i], r->v[i], r->q[i]}, m = inputs[kind];

            CU_ASSERT_EQUAL(gpu_write(g, m.at, x, (kind == 2 ? r->q_width : r->width) * sizeof(*x), NULL), 0);
            free(x);
        }
}

/* Appends and attends in all layers, from the buffers. */
static int step(struct capture_case *r, kvc_seq *s)
{
    int err = 0;

    for (uint32_t i = 0; err == 0 && i < LAYERS; i++) {
        err = kvc_seq_append(s, i, KVC_F32, at(r->k[i]), at(r->v[i]), 1);
        if (err == 0)
            err = kvc_seq_attend(s, i, at(r->q[i]), 1, at(r->out[i]));
    }
    if (err < 0)
        printf("    %s\n", kvc_last_error(r->t.gpu));
    return err;
}

static float *outputs(struct capture_case *r)
{
    float *x = malloc(LAYERS * r->q_width * sizeof(*x));

    assert(x);
    for (uint32_t i = 0; i < LAYERS; i++)
        CU_ASSERT_EQUAL(
            gpu_read(r->t.gpu->gpu, x + i * r->q_width, r->out[i].at, r->q_width * sizeof(*x), NULL), 0);
    return x;
}

static void begin(struct capture_case *r)
{
    DRIVER(r, r->graphs.begin_capture(r->stream, CU_CAPTURE_GLOBAL));
}

static cu_graph_exec end(struct capture_case *r)
{
    cu_graph_exec exec = no_graph;
    cu_graph graph;

    DRIVER(r, r->graphs.end_capture(r->stream,
                                    &graph)); /* an unsafe call in between would have invalidated it */
    DRIVER(r, r->graphs.instantiate(&exec, graph, 0));
    DRIVER(r, r->graphs.destroy(graph));
    return exec;
}

static void launch(struct capture_case *r, cu_graph_exec exec)
{
    DRIVER(r, r->graphs.launch(exec, r->stream));
}

/* A sequence with a prompt and one step, so that memory for steps is allocated. */
static struct seq_pair prompted(struct capture_case *r, uint64_t text)
{
    struct seq_pair s = seq_pair_new(&r->t, text);

    CU_ASSERT_EQUAL_FATAL(seq_pair_append(&r->t, &s, KVC_F32, PROMPT), 0);
    CU_ASSERT_EQUAL_FATAL(seq_pair_append(&r->t, &s, KVC_F32, 1), 0);
    CU_ASSERT_EQUAL_FATAL(kvc_seq_attend(s.gpu, 0, at(r->q[0]), 1, at(r->out[0])), 0);
    return s;
}

/* The step of the next token, eagerly in @eager, by its graph in @replayed; both give the same. */
static bool steps_agree(struct capture_case *r, struct seq_pair *eager, kvc_seq *replayed, cu_graph_exec exec)
{
    size_t position = kvc_seq_length(replayed);
    float *want, *got;
    bool same;

    fill(r, eager->text, position);
    CU_ASSERT_EQUAL(step(r, eager->gpu), 0);
    want = outputs(r);
    CU_ASSERT_EQUAL(kvc_seq_replay(replayed, 1), 0);
    launch(r, exec);
    got = outputs(r);
    CU_ASSERT_EQUAL(kvc_seq_length(replayed), position + 1);
    same = memcmp(want, got, LAYERS * r->q_width * sizeof(*got)) == 0;
    if (!same)
        printf("    position %zu: %g, not %g\n", position, got[0], want[0]);
    free(want);
    free(got);
    return same;
}

/* Compares both GPU sequences with the CPU's, to which the same tokens are appended. */
static void expect_alike(struct capture_case *r, struct seq_pair *s, kvc_seq *replayed)
{
    size_t first = kvc_seq_length(s->cpu), n = kvc_seq_length(s->gpu) - first;
    struct seq_pair other = {.cpu = s->cpu, .gpu = replayed, .text = s->text};

    for (size_t i = 0; i < n; i++)
        for (uint32_t layer = 0; layer < LAYERS; layer++) {
            float *k = gpu_pair_input(&r->t, s->text, layer, 0, first + i, 1),
                  *v = gpu_pair_input(&r->t, s->text, layer, 1, first + i, 1);

            CU_ASSERT_EQUAL(kvc_seq_append(s->cpu, layer, KVC_F32, k, v, 1), 0);
            free(k);
            free(v);
        }
    CU_ASSERT_TRUE(seq_pair_is_alike(&r->t, s));
    CU_ASSERT_TRUE(seq_pair_is_alike(&r->t, &other));
}

static void test_200_steps(void)
{
    struct capture_case r = capture_new();
    struct seq_pair s = prompted(&r, 1);
    kvc_seq *replayed = NULL;
    cu_graph_exec exec;

    CU_ASSERT_EQUAL_FATAL(kvc_seq_fork(s.gpu, &replayed), 0);
    begin(&r);
    CU_ASSERT_EQUAL(step(&r, replayed), 0);
    exec = end(&r);
    CU_ASSERT_EQUAL(kvc_seq_length(replayed), PROMPT + 1); /* capturing changed nothing */
    for (unsigned i = 0; i < 200; i++)
        CU_ASSERT_TRUE(steps_agree(&r, &s, replayed, exec));
    CU_ASSERT_EQUAL(seq_n_packed(replayed), 3); /* 301 tokens: 64 * 4 <= 302 < 64 * 5 */
    expect_alike(&r, &s, replayed);
    DRIVER(&r, r.graphs.exec_destroy(exec));
    capture_free(&r);
}

/* Moves the only page of @s, which is not shared, and overwrites its old memory. Return: the new memory. */
static struct gpu_memory move_page(struct capture_case *r, kvc_seq *s)
{
    size_t bytes = s->table->layout.slot_bytes[PAGE_FIRST];
    struct gpu_memory to = gpu_pair_take(&r->t, NULL, bytes);
    uint8_t *dirt = malloc(bytes);

    assert(dirt);
    memset(dirt, 0x5a, bytes);
    CU_ASSERT_EQUAL(gpu_copy(r->t.gpu->gpu, to.at, s->pages[0]->device, bytes, NULL), 0);
    CU_ASSERT_EQUAL(gpu_write(r->t.gpu->gpu, s->pages[0]->device, dirt, bytes, NULL), 0);
    s->pages[0]->device = to.at;
    r->t.gpu->pages_moved++;
    free(dirt);
    return to;
}

/* All calls between launches that move memory of a graph: cuts, forks, a larger
 * workspace, eager steps, pages. */
static void test_between_launches(void)
{
    struct capture_case r = capture_new();
    struct seq_pair s = prompted(&r, 2), f;
    const size_t n_q = 90;
    kvc_seq *replayed = NULL;
    struct gpu_memory moved = {0};
    cu_graph_exec exec;
    cu_ptr was = 0;
    size_t kept;

    CU_ASSERT_EQUAL_FATAL(kvc_seq_fork(s.gpu, &replayed), 0);
    begin(&r);
    CU_ASSERT_EQUAL(step(&r, replayed), 0);
    exec = end(&r);
    for (unsigned i = 0; i < 60; i++) {
        CU_ASSERT_TRUE(steps_agree(&r, &s, replayed, exec));
        if (i == 20) {
            CU_ASSERT_EQUAL(kvc_seq_truncate(s.gpu, PROMPT + 5, &kept), 0);
            CU_ASSERT_EQUAL(kvc_seq_truncate(replayed, PROMPT + 5, &kept), 0);
        }
        if (i == 30) { /* an eager step in between, and another one of the fork */
            fill(&r, s.text, kvc_seq_length(replayed));
            CU_ASSERT_EQUAL(step(&r, s.gpu), 0);
            CU_ASSERT_EQUAL(step(&r, replayed), 0);
        }
        if (i == 55) {
            CU_ASSERT_EQUAL_FATAL(replayed->n_pages, 1);
            was = replayed->pages[0]->device;
            moved = move_page(&r, replayed);
        }
    }
    expect_alike(&r, &s, replayed);
    f = seq_pair_fork(&s, 9);
    CU_ASSERT_EQUAL(r.t.gpu->gpu->workspace.n_kept, 0);
    CU_ASSERT_TRUE(gpu_pair_attend(&r.t, &f, &n_q, 1, 0, 0)); /* the graph's workspace is too small for it */
    CU_ASSERT_EQUAL(r.t.gpu->gpu->workspace.n_kept, 1);
    for (unsigned i = 0; i < 3; i++)
        CU_ASSERT_TRUE(steps_agree(&r, &s, replayed, exec));
    replayed->pages[0]->device = was; /* back to its old memory, before it is freed */
    gpu_pair_give(&r.t, &moved);
    DRIVER(&r, r.graphs.exec_destroy(exec));
    capture_free(&r);
}

/* A page moves before attention is captured and before the launch: the graph has no old address. */
static void test_addresses_are_not_captured(void)
{
    struct capture_case r = capture_new();
    struct seq_pair s = prompted(&r, 5);
    struct gpu_memory moved[2];
    cu_graph_exec exec;
    float *want, *got;
    cu_ptr was;

    CU_ASSERT_EQUAL_FATAL(seq_pair_append(&r.t, &s, KVC_F32, 90), 0);
    fill(&r, 5, kvc_seq_length(s.gpu));
    CU_ASSERT_EQUAL(step(&r, s.gpu), 0);
    CU_ASSERT_FATAL(seq_n_packed(s.gpu) > 0);
    want = outputs(&r);
    was = s.gpu->pages[0]->device;
    moved[0] = move_page(&r, s.gpu);
    begin(&r);
    for (uint32_t i = 0; i < LAYERS; i++)
        CU_ASSERT_EQUAL(kvc_seq_attend(s.gpu, i, at(r.q[i]), 1, at(r.out[i])), 0);
    exec = end(&r);
    moved[1] = move_page(&r, s.gpu);
    CU_ASSERT_EQUAL(kvc_seq_replay(s.gpu, 0), 0);
    launch(&r, exec);
    got = outputs(&r);
    CU_ASSERT_EQUAL(memcmp(want, got, LAYERS * r.q_width * sizeof(*got)), 0);
    s.gpu->pages[0]->device = was; /* back to its old memory, before it is freed */
    gpu_pair_give(&r.t, &moved[0]);
    gpu_pair_give(&r.t, &moved[1]);
    free(want);
    free(got);
    DRIVER(&r, r.graphs.exec_destroy(exec));
    capture_free(&r);
}

/* Due chunks of a long prompt are packed by the replay; a graph may attend to several sequences. */
static void test_backlog_and_batch(void)
{
    struct capture_case r = capture_new();
    struct seq_pair s = seq_pair_new(&r.t, 3);
    kvc_attend_item items[2];
    cu_graph_exec exec;
    float *want, *got;

    CU_ASSERT_EQUAL_FATAL(seq_pair_append(&r.t, &s, KVC_F32, 300), 0);
    CU_ASSERT_EQUAL(seq_n_packed(s.gpu), 0);
    items[0] = (kvc_attend_item){.struct_bytes = sizeof(kvc_attend_item),
                                 .seq = s.gpu,
                                 .q = at(r.q[0]),
                                 .n_q = 1,
                                 .out = at(r.out[0])};
    items[1] = (kvc_attend_item){.struct_bytes = sizeof(kvc_attend_item),
                                 .seq = s.gpu,
                                 .q = at(r.q[1]),
                                 .n_q = 1,
                                 .out = at(r.out[1])};
    fill(&r, 3, 300);
    CU_ASSERT_EQUAL(kvc_seq_attend_batch(items, 2, 1, NULL), 0);
    want = outputs(&r);
    begin(&r);
    CU_ASSERT_EQUAL(kvc_seq_attend_batch(items, 2, 1, NULL), 0);
    exec = end(&r);
    fill(&r, 4, 300);
    CU_ASSERT_EQUAL(kvc_seq_replay(s.gpu, 0), 0); /* nothing is appended, so nothing is packed */
    CU_ASSERT_EQUAL(seq_n_packed(s.gpu), 0);
    fill(&r, 3, 300);
    launch(&r, exec);
    got = outputs(&r);
    CU_ASSERT_EQUAL(memcmp(want, got, LAYERS * r.q_width * sizeof(*got)), 0);
    DRIVER(&r, r.graphs.exec_destroy(exec));
    begin(&r);
    CU_ASSERT_EQUAL(step(&r, s.gpu), 0);
    exec = end(&r);
    CU_ASSERT_EQUAL(kvc_seq_replay(s.gpu, 1), 0);
    CU_ASSERT_EQUAL(seq_n_packed(s.gpu), 3); /* 64 * 4 <= 301 < 64 * 5 */
    launch(&r, exec);
    expect_alike(&r, &s, s.gpu);
    DRIVER(&r, r.graphs.exec_destroy(exec));
    free(want);
    free(got);
    capture_free(&r);
}

/* ---- calls refused during a capture ---- */

static void expect_busy(struct capture_case *r, int err)
{
    CU_ASSERT_EQUAL(err, -EBUSY);
    CU_ASSERT_PTR_NOT_NULL(strstr(kvc_last_error(r->t.gpu), "captured"));
}

static void test_refused_while_capturing(void)
{
    struct capture_case r = capture_new();
    struct seq_pair s = prompted(&r, 5), other = prompted(&r, 6), next;
    kvc_seq *none = NULL;
    cu_graph_exec exec;
    size_t kept = 77;

    CU_ASSERT_EQUAL_FATAL(seq_pair_append(&r.t, &other, KVC_F32, 100), 0); /* pages */
    begin(&r);
    expect_busy(&r, kvc_seq_new(r.t.gpu_model, NULL, 0, &none));
    expect_busy(&r, kvc_seq_fork(s.gpu, &none));
    expect_busy(&r, kvc_seq_truncate(s.gpu, 3, &kept));
    expect_busy(&r, kvc_seq_replay(s.gpu, 1));
    expect_busy(&r, kvc_client_synchronize(r.t.gpu));
    expect_busy(&r, kvc_client_set_stream(r.t.gpu, NULL));
    seq_pair_free(&other); /* allowed, and not part of the graph */
    CU_ASSERT_EQUAL(step(&r, s.gpu), 0);
    exec = end(&r);               /* the capture is still valid */
    next = seq_pair_new(&r.t, 7); /* in the memory of the freed one */
    CU_ASSERT_EQUAL_FATAL(seq_pair_append(&r.t, &next, KVC_F32, 5), 0);
    CU_ASSERT_PTR_NULL(none);
    CU_ASSERT_EQUAL(kept, 77);
    fill(&r, 5, PROMPT + 1);
    CU_ASSERT_EQUAL(kvc_seq_replay(s.gpu, 1), 0);
    launch(&r, exec);
    expect_alike(&r, &s, s.gpu);
    CU_ASSERT_EQUAL_FATAL(seq_pair_append(&r.t, &next, KVC_F32, 1), 0);
    CU_ASSERT_TRUE(seq_pair_is_alike(&r.t, &next));
    DRIVER(&r, r.graphs.exec_destroy(exec));
    capture_free(&r);
}

/* Attention that was never run before has no workspace. */
static void test_no_workspace(void)
{
    struct capture_case r = capture_new();
    struct seq_pair s = seq_pair_new(&r.t, 5);
    cu_graph_exec exec;

    begin(&r);
    CU_ASSERT_EQUAL(kvc_seq_attend(s.gpu, 0, at(r.q[0]), 1, at(r.out[0])),
                    -EINVAL); /* of a token that was not appended */
    CU_ASSERT_EQUAL(kvc_seq_append(s.gpu, 0, KVC_F32, at(r.k[0]), at(r.v[0]), 1), 0);
    expect_busy(&r, kvc_seq_attend(s.gpu, 0, at(r.q[0]), 1, at(r.out[0])));
    exec = end(&r);
    DRIVER(&r, r.graphs.exec_destroy(exec));
    CU_ASSERT_EQUAL(kvc_seq_length(s.gpu), 0);
    capture_free(&r);
}

/* A graph that is launched without its replay runs out of room: no memory is
 * overwritten, and the error is reported. */
static void test_launches_without_replay(void)
{
    struct capture_case r = capture_new();
    struct seq_pair s = prompted(&r, 6);
    cu_graph_exec exec;
    size_t kept;

    CU_ASSERT_EQUAL(kvc_client_synchronize(r.t.gpu), 0);
    begin(&r);
    CU_ASSERT_EQUAL(step(&r, s.gpu), 0);
    exec = end(&r);
    fill(&r, 6, 0);
    for (unsigned i = PROMPT; i < TAIL_ROWS_MIN; i++) /* one more than there is room for */
        launch(&r, exec);
    CU_ASSERT_EQUAL(kvc_client_synchronize(r.t.gpu), -EINVAL);
    CU_ASSERT_PTR_NOT_NULL(strstr(kvc_last_error(r.t.gpu), "kvc_seq_replay"));
    CU_ASSERT_EQUAL(kvc_seq_truncate(s.gpu, PROMPT, &kept), 0);
    CU_ASSERT_EQUAL(kvc_seq_truncate(s.cpu, PROMPT, &kept), 0);
    CU_ASSERT_TRUE(seq_pair_is_alike(&r.t, &s));
    DRIVER(&r, r.graphs.exec_destroy(exec));
    capture_free(&r);
}

const char test_suite[] = "sequences in CUDA graphs";
const struct test_case test_cases[] = {
    TEST(test_200_steps),
    TEST(test_between_launches),
    TEST(test_addresses_are_not_captured),
    TEST(test_backlog_and_batch),
    TEST(test_refused_while_capturing),
    TEST(test_no_workspace),
    TEST(test_launches_without_replay),
    TEST_END,
};
