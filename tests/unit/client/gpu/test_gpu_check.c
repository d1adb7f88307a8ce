/*
 * A table's first use on a GPU is checked, on the stand-in driver: tables of all kinds pass, and every kernel
 * that is made wrong (STANDIN_WRONG) is noticed before a sequence exists, named, and costs that table alone.
 * With TEST_GPU=1 the driver is the real one, whose kernels are not wrong on order.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/kvcobra-gpu.h"
#include "client/connection/client.h"
#include "client/gpu/gpu_table.h"
#include "client/model/model.h"
#include "client/sequence/seq.h"
#include "tests/lib/test.h"
#include "tests/standin/graph.h"
#include "tests/standin/libcuda.h"
#include "tests/unit/client/gpu_pair.h"

static const struct gpu_pair_shape small = {
    .n_layers = 2, .n_heads = 4, .n_kv_heads = 2, .d = 64, .n_sink = 4, .bpd = 3, .v_from = PREDICT_HEAD};
static const struct gpu_pair_shape layered = {
    .n_layers = 2, .n_heads = 4, .n_kv_heads = 2, .d = 64, .n_sink = 0, .bpd = 2.5, .v_from = PREDICT_LAYER};
/* One query of one head, two and three of it, and more select three kernels. */
static const struct gpu_pair_shape many = {
    .n_layers = 1, .n_heads = 2, .n_kv_heads = 1, .d = 64, .n_sink = 4, .bpd = 2, .v_from = PREDICT_HEAD};
static const struct gpu_pair_shape wide = {
    .n_layers = 1, .n_heads = 4, .n_kv_heads = 1, .d = 128, .n_sink = 4, .bpd = 2, .v_from = PREDICT_NONE};
static const struct gpu_pair_shape odd = {
    .n_layers = 1, .n_heads = 3, .n_kv_heads = 1, .d = 96, .n_sink = 4, .bpd = 2, .v_from = PREDICT_HEAD};

/* Only the stand-in counts launches and has wrong kernels. */
static bool skips(void)
{
    if (getenv("TEST_GPU"))
        test_skip("a real GPU does not fail on demand");
    return getenv("TEST_GPU") != NULL;
}

static int new_seq(kvc_model *m)
{
    kvc_seq *s = NULL;
    int r = kvc_seq_new(m, NULL, 0, &s);

    CU_ASSERT_EQUAL(s != NULL, r == 0);
    (void) kvc_seq_free(s);
    return r;
}

static struct gpu_pair gpu_pair_with(const struct gpu_pair_shape *shape, const char *wrong)
{
    struct gpu_pair t;

    if (wrong)
        CU_ASSERT_EQUAL(setenv("STANDIN_WRONG", wrong, 1), 0);
    t = gpu_pair_new(shape);
    CU_ASSERT_EQUAL(unsetenv("STANDIN_WRONG"), 0);
    return t;
}

/* ---- correct kernels ---- */

static const struct gpu_pair_shape shapes[] = {
    {.n_layers = 1,
     .n_heads = 16,
     .n_kv_heads = 1,
     .d = 64,
     .n_rot = 32,
     .n_sink = 16,
     .bpd = 4,
     .v_from = PREDICT_NONE},
    {.n_layers = 1,
     .n_heads = 8,
     .n_kv_heads = 1,
     .d = 128,
     .n_rot = 64,
     .n_sink = 0,
     .bpd = 2,
     .v_from = PREDICT_HEAD},
    {.n_layers = 2, .n_heads = 9, .n_kv_heads = 3, .d = 96, .n_sink = 4, .bpd = 2, .v_from = PREDICT_LAYER},
    {.n_layers = 1,
     .n_heads = 6,
     .n_kv_heads = 3,
     .d = 64,
     .n_sink = 4,
     .bpd = 3,
     .v_from = PREDICT_HEAD,
     .first_head = 1,
     .n_heads_here = 2},
    {.n_layers = 1, .n_heads = 3, .n_kv_heads = 1, .d = 32, .n_sink = 1, .bpd = 6, .v_from = PREDICT_HEAD},
    {.n_layers = 3, .n_heads = 2, .n_kv_heads = 2, .d = 64, .n_sink = 0, .bpd = 0.25, .v_from = PREDICT_NONE},
    {.n_layers = 1, .n_heads = 1, .n_kv_heads = 1, .d = 256, .n_sink = 4, .bpd = 1, .v_from = PREDICT_HEAD},
};

static void test_tables(void)
{
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        struct gpu_pair t = gpu_pair_new(&shapes[i]);

        if (new_seq(t.gpu_model) < 0) {
            printf("    table %zu: %s\n", i, kvc_last_error(t.gpu));
            CU_FAIL("refused");
        }
        gpu_pair_free(&t);
    }
}

/* The check runs once per table, not per sequence, and frees its memory. */
static void test_once(void)
{
    kvc_seq *s[2] = {NULL, NULL};
    long n[3] = {0};
    size_t taken = 0;
    struct gpu_pair t;
    struct gpu *g;

    if (skips())
        return;
    t = gpu_pair_new(&small);
    g = t.gpu->gpu;
    n[0] = standin_look().launches;
    for (unsigned i = 0; i < 2; i++) {
        CU_ASSERT_EQUAL_FATAL(kvc_seq_new(t.gpu_model, NULL, 0, &s[i]), 0);
        n[i + 1] = standin_look().launches;
        if (i == 0)
            taken = g->n_memories - g->n_cached;
    }
    /* for every new sequence: its flag is set to 0, its lengths are written */
    CU_ASSERT_EQUAL(n[2] - n[1], 2);
    /* and for the first one: a write of words, three appends of which one packs both sides, two readings, two
     * kernels of checksums, and attention with its merge by three kernels, for the queries of a tile */
    CU_ASSERT_EQUAL(n[1] - n[0], 2 + 1 + 5 + 2 + 2 + 6);
    CU_ASSERT_EQUAL(taken, 4); /* the table, a slab of flags, and lengths and tail of the sequence */
    CU_ASSERT_EQUAL(g->n_memories - g->n_cached, taken + 2);
    gpu_pair_free(&t);
}

/* ---- wrong kernels ---- */

/* The table is refused with the kernel's name at every try; the client stays usable,
 * and the CPU's client accepts it. */
static void check_wrong(const struct gpu_pair_shape *shape, const char *kernel, const char *how)
{
    char setting[96], first[ERRMSG_BYTES];
    struct gpu_pair t;
    long launches;

    (void) snprintf(setting, sizeof(setting), "%s:%s", kernel, how);
    t = gpu_pair_with(shape, setting);
    CU_ASSERT_EQUAL(new_seq(t.gpu_model), -EOPNOTSUPP);
    (void) snprintf(first, sizeof(first), "%s", kvc_last_error(t.gpu));
    if (!strstr(first, kernel) || !strstr(first, "GPU-c0") || !strstr(first, "client of the CPU")) {
        printf("    %s: \"%s\"\n", setting, first);
        CU_FAIL("not named");
    }
    launches = standin_look().launches;
    CU_ASSERT_EQUAL(new_seq(t.gpu_model), -EOPNOTSUPP);
    CU_ASSERT_STRING_EQUAL(kvc_last_error(t.gpu), first);
    CU_ASSERT_EQUAL(standin_look().launches, launches); /* the check is not repeated */
    CU_ASSERT_EQUAL(kvc_client_synchronize(t.gpu), 0);
    CU_ASSERT_FALSE(t.gpu->gpu->lost);
    CU_ASSERT_EQUAL(new_seq(t.cpu_model), 0);
    gpu_pair_free(&t);
}

static void test_wrong_kernels(void)
{
    static const char *const kernels[] = {"kvc_write_words", "kvc_append_rows", "kvc_pack_keys",
                                          "kvc_pack_values", "kvc_read",        "kvc_crc",
                                          "kvc_merge"};

    if (skips())
        return;
    for (size_t i = 0; i < sizeof(kernels) / sizeof(kernels[0]); i++) {
        check_wrong(&small, kernels[i], "skip");
        if (strcmp(kernels[i], "kvc_crc") != 0) /* both of its kernels would flip a bit, the same one */
            check_wrong(&small, kernels[i], "flip");
    }
}

/* Checksums take two kernels; the sentence names the second. */
static void test_wrong_beginning(void)
{
    struct gpu_pair t;

    if (skips())
        return;
    t = gpu_pair_with(&small, "kvc_crc_begin:flip");
    CU_ASSERT_EQUAL(new_seq(t.gpu_model), -EOPNOTSUPP);
    CU_ASSERT_PTR_NOT_NULL(strstr(kvc_last_error(t.gpu), "kvc_crc: the checksum of"));
    gpu_pair_free(&t);
}

/* Every kernel of attention that a table selects for some number of queries. */
static void check_wrong_attention(const struct gpu_pair_shape *shape, unsigned n_expected)
{
    struct gpu_pair t = gpu_pair_new(shape);
    const struct page_layout *l = &t.gpu_model->current->layout;
    const char *last = "";
    unsigned n = 0;

    for (uint32_t n_q = 1; n_q <= 20; n_q++) {
        const char *name = cuda_attend_name(t.gpu->gpu->kernels, l, n_q);

        if (strcmp(name, last) == 0)
            continue;
        check_wrong(shape, name, n % 2 ? "skip" : "flip");
        last = name;
        n++;
    }
    CU_ASSERT_EQUAL(n, n_expected);
    gpu_pair_free(&t);
}

static void test_wrong_attention(void)
{
    if (skips())
        return;
    check_wrong_attention(&small, 3);
    check_wrong_attention(&many, 3);
    check_wrong_attention(&wide, 3);
    check_wrong_attention(&layered, 2);
    check_wrong_attention(&odd, 2);
}

/* ---- one table of several ---- */

/* Kernels that only one of a client's tables runs on. */
static void test_other_tables(void)
{
    struct gpu_pair t, u;

    if (skips())
        return;
    t = gpu_pair_with(&small, "kvc_attend80:flip");
    u = gpu_pair_other(&t, &layered);
    CU_ASSERT_EQUAL(new_seq(t.gpu_model), -EOPNOTSUPP);
    CU_ASSERT_EQUAL(new_seq(u.gpu_model), 0);
    CU_ASSERT_EQUAL(new_seq(t.gpu_model), -EOPNOTSUPP);
    CU_ASSERT_EQUAL(new_seq(u.gpu_model), 0);
    gpu_pair_free(&t);

    t = gpu_pair_with(&small, "kvc_attend_:skip"); /* the general ones */
    u = gpu_pair_other(&t, &layered);
    CU_ASSERT_EQUAL(new_seq(t.gpu_model), 0);
    CU_ASSERT_EQUAL(new_seq(u.gpu_model), -EOPNOTSUPP);
    CU_ASSERT_PTR_NOT_NULL(strstr(kvc_last_error(u.gpu), "kvc_attend_"));
    CU_ASSERT_EQUAL(new_seq(t.gpu_model), 0);
    gpu_pair_free(&t);
}

/* While a graph is captured a table cannot be checked, and is not refused for later. */
static void test_capture(void)
{
    struct gpu_pair t = gpu_pair_new(&small);
    struct model_table *table = t.gpu_model->current;
    struct gpu *g = t.gpu->gpu;
    struct graph_calls graphs;
    cu_graph graph = NULL;
    cu_stream stream = NULL;
    cu_ptr unused;

    CU_ASSERT_TRUE_FATAL(graph_calls_find(g->driver->library, &graphs));
    CU_ASSERT_EQUAL_FATAL(gpu_enter(g, NULL), 0);
    CU_ASSERT_EQUAL_FATAL(g->driver->stream_create(&stream, 1), CU_SUCCESS);
    cuda_space_leave(g->space);
    CU_ASSERT_EQUAL(kvc_client_set_stream(t.gpu, stream), 0);
    CU_ASSERT_EQUAL_FATAL(graphs.begin_capture(stream, CU_CAPTURE_RELAXED), CU_SUCCESS);
    CU_ASSERT_EQUAL(new_seq(t.gpu_model), -EBUSY);
    CU_ASSERT_EQUAL(gpu_table(t.gpu, table, &unused), -EBUSY);
    CU_ASSERT_EQUAL_FATAL(graphs.end_capture(stream, &graph), CU_SUCCESS);
    CU_ASSERT_EQUAL(graphs.destroy(graph), CU_SUCCESS);
    CU_ASSERT_STRING_EQUAL(table->gpu->refusal.text, "");
    CU_ASSERT_EQUAL(new_seq(t.gpu_model), 0);
    CU_ASSERT_EQUAL(kvc_client_set_stream(t.gpu, NULL), 0);
    CU_ASSERT_EQUAL_FATAL(gpu_enter(g, NULL), 0);
    CU_ASSERT_EQUAL(g->driver->stream_destroy(stream), CU_SUCCESS);
    cuda_space_leave(g->space);
    gpu_pair_free(&t);
}

const char test_suite[] = "checking a GPU";
const struct test_case test_cases[] = {
    TEST(test_tables),          TEST(test_once),         TEST(test_wrong_kernels), TEST(test_wrong_beginning),
    TEST(test_wrong_attention), TEST(test_other_tables), TEST(test_capture),       TEST_END,
};
