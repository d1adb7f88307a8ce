/*
 * Appending to several sequences on a GPU in one call: the same bits as sequences of the CPU, which get their
 * tokens one after the other; the promised number of launches; all or nothing; captured in a graph. On the
 * stand-in driver; with TEST_GPU=1 on the real one.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/kvcobra-gpu.h"
#include "client/connection/client.h"
#include "client/gpu/gpu_memory.h"
#include "client/sequence/seq.h"
#include "client/gpu/seq_gpu.h"
#include "tests/lib/test.h"
#include "tests/standin/graph.h"
#include "tests/unit/client/gpu_pair.h"

enum { LAYERS = 2, SEVERAL = 5, OTHER_TABLE = 3, MANY = LAUNCH_ITEMS_MAX + 6, STREAM_NON_BLOCKING = 1 };

static const struct gpu_pair_shape shape = {.n_layers = LAYERS,
                                            .n_heads = 2,
                                            .n_kv_heads = 1,
                                            .d = 32,
                                            .n_sink = 4,
                                            .bpd = 3,
                                            .v_from = PREDICT_HEAD};
static const struct gpu_pair_shape other_shape = {
    .n_layers = LAYERS, .n_heads = 2, .n_kv_heads = 1, .d = 32, .bpd = 4};

/* Inputs of some sequences' next tokens: on the host for one, on the device for the other. */
struct inputs {
    size_t n;
    float *k[MANY], *v[MANY];
    struct gpu_memory on_gpu[2 * MANY];
    kvc_append_item items[MANY];
};

static struct inputs inputs_new(const struct gpu_pair *t, struct seq_pair *s, size_t n, uint32_t layer,
                                const size_t n_new[])
{
    struct inputs x = {.n = n};
    size_t width = (size_t) t->n_heads * t->g.d;

    for (size_t i = 0; i < n; i++) {
        size_t first = s[i].gpu->layers[layer].length;

        x.k[i] = gpu_pair_input(t, s[i].text, layer, 0, first, n_new[i]);
        x.v[i] = gpu_pair_input(t, s[i].text, layer, 1, first, n_new[i]);
        x.on_gpu[2 * i] = gpu_pair_take(t, x.k[i], n_new[i] * width * sizeof(float) + 1);
        x.on_gpu[2 * i + 1] = gpu_pair_take(t, x.v[i], n_new[i] * width * sizeof(float) + 1);
        x.items[i] = (kvc_append_item){.struct_bytes = sizeof(kvc_append_item),
                                       .seq = s[i].gpu,
                                       .k = (const void *) (uintptr_t) x.on_gpu[2 * i].at,
                                       .v = (const void *) (uintptr_t) x.on_gpu[2 * i + 1].at,
                                       .n_new = n_new[i]};
    }
    return x;
}

static void inputs_free(const struct gpu_pair *t, struct inputs *x)
{
    for (size_t i = 0; i < x->n; i++) {
        gpu_pair_give(t, &x->on_gpu[2 * i]);
        gpu_pair_give(t, &x->on_gpu[2 * i + 1]);
        free(x->k[i]);
        free(x->v[i]);
    }
}

/* Appends them to the CPU's sequences, one after the other. */
static void append_on_cpu(struct seq_pair *s, const struct inputs *x, uint32_t layer)
{
    for (size_t i = 0; i < x->n; i++)
        CU_ASSERT_EQUAL(kvc_seq_append(s[i].cpu, layer, KVC_F32, x->k[i], x->v[i], x->items[i].n_new), 0);
}

static void append_all(const struct gpu_pair *t, struct seq_pair *s, size_t n, const size_t n_new[])
{
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        struct inputs x = inputs_new(t, s, n, layer, n_new);

        CU_ASSERT_EQUAL(kvc_seq_append_batch(x.items, n, layer, KVC_F32), 0);
        append_on_cpu(s, &x, layer);
        inputs_free(t, &x);
    }
}

static bool all_alike(const struct gpu_pair *t, struct seq_pair *s, size_t n)
{
    bool alike = true;

    for (size_t i = 0; i < n; i++)
        if (!seq_pair_is_alike(t, &s[i])) {
            printf("    sequence %zu differs\n", i);
            alike = false;
        }
    return alike;
}

static void several_new(struct gpu_pair *t, struct seq_pair s[SEVERAL])
{
    struct gpu_pair other;

    *t = gpu_pair_new(&shape);
    other = gpu_pair_other(t, &other_shape);
    for (uint32_t i = 0; i < SEVERAL; i++)
        s[i] = seq_pair_new(i == OTHER_TABLE ? &other : t, i);
}

static const size_t rounds[][SEVERAL] = {
    {5, 130, 63, 70, 0}, {1, 1, 1, 1, 1},   {0, 1, 62, 57, 300}, {1, 1, 1, 1, 1},
    {120, 0, 1, 1, 200}, {1, 64, 1, 90, 1}, {0, 0, 0, 0, 0},     {1, 1, 1, 1, 1},
};

/* Different numbers of tokens in two tables: some chunks are packed, some tails grow,
 * some sequences get no token. */
static void test_as_one_by_one(void)
{
    struct seq_pair s[SEVERAL];
    struct gpu_pair t;

    several_new(&t, s);
    for (size_t i = 0; i < sizeof(rounds) / sizeof(rounds[0]); i++) {
        append_all(&t, s, SEVERAL, rounds[i]);
        CU_ASSERT_TRUE(all_alike(&t, s, SEVERAL));
    }
    CU_ASSERT(s[4].gpu->layers[1].n_packed > 2 && s[1].gpu->layers[1].n_packed == 2 &&
              s[2].gpu->layers[0].n_packed == 1);
    gpu_pair_free(&t);
}

/* ---- counting calls of the driver ---- */

/* State of the replacements of two calls of the driver. */
static struct watched {
    struct cuda_driver was;
    unsigned n_launches, n_allocations;
    unsigned n_single; /* launches for one sequence of one KV head, or none */
    unsigned failing;  /* the allocation, from 1, that fails with all after it; 0: none */
} watched;

static cu_result count_launch(cu_function f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                              unsigned bz, unsigned shared, cu_stream stream, void **parameters, void **extra)
{
    watched.n_launches++;
    watched.n_single += gx == 1;
    return watched.was.launch(f, gx, gy, gz, bx, by, bz, shared, stream, parameters, extra);
}

static cu_result count_allocation(cu_ptr *ret, size_t bytes)
{
    watched.n_allocations++;
    return watched.failing > 0 && watched.n_allocations >= watched.failing
               ? CU_OUT_OF_MEMORY
               : watched.was.mem_alloc(ret, bytes);
}

static void watch(const struct gpu_pair *t)
{
    struct cuda_driver *d = t->gpu->gpu->driver;

    watched = (struct watched){.was = *d};
    d->launch = count_launch;
    d->mem_alloc = count_allocation;
}

/* A batch of more sequences than a launch takes: one launch per 64, three for those where one packs. */
static void test_launches(void)
{
    static struct seq_pair s[MANY];
    static struct inputs x;
    size_t ones[MANY], prompts[MANY];
    struct gpu_pair t = gpu_pair_new(&shape);

    for (uint32_t i = 0; i < MANY; i++) {
        s[i] = seq_pair_new(&t, i);
        ones[i] = 1;
        prompts[i] = i == 69 ? 125 : 3;
    }
    append_all(&t, s, MANY, prompts);
    watch(&t);
    for (unsigned step = 0; step < 4; step++) {
        watched.n_launches = watched.n_single = 0;
        x = inputs_new(&t, s, MANY, 0, ones);
        CU_ASSERT_EQUAL(kvc_seq_append_batch(x.items, MANY, 0, KVC_F32), 0);
        /* before the 128th token a chunk is packed; two writes to the device: the page's
         * address, and the number of pages */
        CU_ASSERT_EQUAL(watched.n_launches, step == 2 ? 3 + 1 + 2 : 2);
        CU_ASSERT_EQUAL(watched.n_single,
                        step == 2 ? 2 + 2 : 0); /* packing is launched only for sequences that pack */
        append_on_cpu(s, &x, 0);
        inputs_free(&t, &x);
    }
    CU_ASSERT_EQUAL(s[69].gpu->layers[0].n_packed, 1);
    for (uint32_t i = 0; i < MANY; i++)
        CU_ASSERT_TRUE(seq_pair_reads_alike(&t, &s[i], 0, KVC_V, 0, 3));
    *t.gpu->gpu->driver = watched.was;
    gpu_pair_free(&t);
}

/* ---- all or nothing ---- */

static const size_t pieces[SEVERAL] = {300, 70, 400, 129, 210};

/*
 * Memory for longer tails and pages runs out at each sequence in turn: no sequence has changed, and the same
 * call then works. Memory allocated before a failure stays cached, so each try fails one allocation later.
 */
static void test_out_of_memory(void)
{
    struct seq_pair s[SEVERAL];
    struct inputs x;
    struct gpu_pair t;
    unsigned n_failed = 0;
    int r;

    several_new(&t, s);
    append_all(&t, s, SEVERAL, rounds[0]);
    x = inputs_new(&t, s, SEVERAL, 0, pieces);
    watch(&t);
    for (;;) {
        watched.n_allocations = 0;
        watched.failing = n_failed == 0 ? 1 : 2;
        r = kvc_seq_append_batch(x.items, SEVERAL, 0, KVC_F32);
        if (r == 0)
            break;
        n_failed++;
        watched.failing = 0; /* reading back allocates too */
        CU_ASSERT_EQUAL_FATAL(r, -ENOMEM);
        CU_ASSERT_PTR_NOT_NULL(strstr(kvc_last_error(t.gpu), "of the batch: "));
        CU_ASSERT_TRUE(all_alike(&t, s, SEVERAL));
        for (unsigned i = 0; i < SEVERAL; i++)
            CU_ASSERT_EQUAL(s[i].gpu->n_pages, s[i].cpu->n_pages);
    }
    CU_ASSERT(n_failed >= SEVERAL); /* each grows at least */
    watched.failing = 0;
    append_on_cpu(s, &x, 0);
    inputs_free(&t, &x);
    x = inputs_new(&t, s, SEVERAL, 1, pieces);
    CU_ASSERT_EQUAL(kvc_seq_append_batch(x.items, SEVERAL, 1, KVC_F32), 0);
    append_on_cpu(s, &x, 1);
    inputs_free(&t, &x);
    CU_ASSERT_TRUE(all_alike(&t, s, SEVERAL));
    *t.gpu->gpu->driver = watched.was;
    gpu_pair_free(&t);
}

/* One wrong item, at each place. */
static void test_mistakes(void)
{
    struct gpu_pair t, u = gpu_pair_new(&shape);
    struct seq_pair s[SEVERAL], foreign = seq_pair_new(&u, 9);
    struct inputs x;

    several_new(&t, s);
    append_all(&t, s, SEVERAL, rounds[0]);
    x = inputs_new(&t, s, SEVERAL, 0, pieces);
    for (unsigned i = 0; i < SEVERAL; i++) {
        const kvc_append_item
            had = x.items[i],
            wrong[] = {
                {.struct_bytes = sizeof(had), .seq = had.seq, .k = NULL, .v = had.v, .n_new = had.n_new},
                {.struct_bytes = sizeof(had),
                 .seq = had.seq,
                 .k = had.k,
                 .v = had.v,
                 .n_new = KVC_APPEND_TOKENS_MAX + 1},
                {.struct_bytes = sizeof(had),
                 .seq = x.items[i == 0 ? 1 : 0].seq,
                 .k = had.k,
                 .v = had.v,
                 .n_new = 1},
                {.struct_bytes = sizeof(had), .seq = foreign.gpu, .k = had.k, .v = had.v, .n_new = 1},
                {.struct_bytes = sizeof(had), .seq = s[i].cpu, .k = had.k, .v = had.v, .n_new = 1},
            };

        for (unsigned n = 0; n < sizeof(wrong) / sizeof(wrong[0]); n++) {
            x.items[i] = wrong[n];
            CU_ASSERT_EQUAL(kvc_seq_append_batch(x.items, SEVERAL, 0, KVC_F32), -EINVAL);
        }
        s[i].gpu->layers[0].length += SEQ_GPU_TOKENS_MAX; /* found after others have claimed pages */
        x.items[i] = had;
        CU_ASSERT_EQUAL(kvc_seq_append_batch(x.items, SEVERAL, 0, KVC_F32), -EFBIG);
        s[i].gpu->layers[0].length -= SEQ_GPU_TOKENS_MAX;
        CU_ASSERT_TRUE(all_alike(&t, s, SEVERAL));
        for (unsigned n = 0; n < SEVERAL; n++)
            CU_ASSERT_EQUAL(s[n].gpu->n_pages, s[n].cpu->n_pages);
    }
    CU_ASSERT_EQUAL(kvc_seq_append_batch(x.items, SEVERAL, 0, KVC_F32), 0);
    append_on_cpu(s, &x, 0);
    inputs_free(&t, &x);
    gpu_pair_free(&u);
    gpu_pair_free(&t);
}

/* ---- captured ---- */

/* The driver's result, in the GPU's context. */
#define DRIVER(t, call)                                                                                      \
    do {                                                                                                     \
        CU_ASSERT_EQUAL_FATAL(gpu_enter((t)->gpu->gpu, NULL), 0);                                            \
        CU_ASSERT_EQUAL_FATAL(call, CU_SUCCESS);                                                             \
        cuda_space_leave((t)->gpu->gpu->space);                                                              \
    } while (0)

/* One token of each sequence in both layers; the buffers of @x are read when the graph is launched. */
static cu_graph_exec capture(const struct gpu_pair *t, const struct graph_calls *graphs, cu_stream stream,
                             const struct inputs x[LAYERS])
{
    cu_graph_exec exec;
    cu_graph graph;

    DRIVER(t, graphs->begin_capture(stream, CU_CAPTURE_GLOBAL));
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        CU_ASSERT_EQUAL(kvc_seq_append_batch(x[layer].items, SEVERAL, layer, KVC_F32), 0);
    DRIVER(t, graphs->end_capture(stream, &graph));
    DRIVER(t, graphs->instantiate(&exec, graph, 0));
    DRIVER(t, graphs->destroy(graph));
    return exec;
}

/* Writes the next tokens into the buffers that the graph reads, and appends them to the CPU's sequences. */
static void feed(const struct gpu_pair *t, struct seq_pair s[SEVERAL], const struct inputs x[LAYERS])
{
    size_t width = (size_t) t->n_heads * t->g.d;

    for (uint32_t i = 0; i < LAYERS * SEVERAL; i++) {
        uint32_t layer = i / SEVERAL, n = i % SEVERAL;
        size_t first = s[n].cpu->layers[layer].length;
        float *k = gpu_pair_input(t, s[n].text, layer, 0, first, 1),
              *v = gpu_pair_input(t, s[n].text, layer, 1, first, 1);

        CU_ASSERT_EQUAL(gpu_write(t->gpu->gpu, x[layer].on_gpu[2 * n].at, k, width * sizeof(*k), NULL), 0);
        CU_ASSERT_EQUAL(gpu_write(t->gpu->gpu, x[layer].on_gpu[2 * n + 1].at, v, width * sizeof(*v), NULL),
                        0);
        CU_ASSERT_EQUAL(kvc_seq_append(s[n].cpu, layer, KVC_F32, k, v, 1), 0);
        free(k);
        free(v);
    }
}

/* A step of all sequences, captured once, replayed over chunk boundaries of each; then eager batches. */
static void test_replayed(void)
{
    static const size_t ones[SEVERAL] = {1, 1, 1, 1, 1};
    struct graph_calls graphs;
    struct inputs x[LAYERS];
    struct seq_pair s[SEVERAL];
    struct cuda_driver *d;
    cu_graph_exec exec;
    cu_stream stream;
    struct gpu_pair t;

    several_new(&t, s);
    d = t.gpu->gpu->driver;
    CU_ASSERT_TRUE_FATAL(graph_calls_find(d->library, &graphs));
    DRIVER(&t, d->stream_create(&stream, STREAM_NON_BLOCKING));
    CU_ASSERT_EQUAL_FATAL(kvc_client_set_stream(t.gpu, stream), 0);
    append_all(&t, s, SEVERAL, rounds[0]);
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        x[layer] = inputs_new(&t, s, SEVERAL, layer, ones);
    exec = capture(&t, &graphs, stream, x);
    CU_ASSERT_TRUE(all_alike(&t, s, SEVERAL)); /* capturing changed nothing */
    for (unsigned step = 0; step < 140; step++) {
        for (unsigned i = 0; i < SEVERAL; i++)
            CU_ASSERT_EQUAL(kvc_seq_replay(s[i].gpu, 1), 0);
        feed(&t, s, x);
        DRIVER(&t, graphs.launch(exec, stream));
    }
    CU_ASSERT_EQUAL(kvc_client_synchronize(t.gpu), 0);
    CU_ASSERT_TRUE(all_alike(&t, s, SEVERAL));
    append_all(&t, s, SEVERAL, rounds[4]);
    append_all(&t, s, SEVERAL, ones);
    CU_ASSERT_TRUE(all_alike(&t, s, SEVERAL));
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        inputs_free(&t, &x[layer]);
    DRIVER(&t, graphs.exec_destroy(exec));
    CU_ASSERT_EQUAL(kvc_client_set_stream(t.gpu, NULL), 0);
    DRIVER(&t, d->stream_destroy(stream));
    gpu_pair_free(&t);
}

const char test_suite[] = "batches of sequences on a GPU";
const struct test_case test_cases[] = {
    TEST(test_as_one_by_one), TEST(test_launches), TEST(test_out_of_memory),
    TEST(test_mistakes),      TEST(test_replayed), TEST_END,
};
