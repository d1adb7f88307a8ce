/*
 * Sequences on a GPU with pages in host memory whose table no kernel knows, on the stand-in driver: the CPU
 * encodes and decodes what is copied, so that pages and numbers of every type have the bits of a sequence on
 * the CPU. test_seq_staged.c runs its schedules on them too.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/connection/client.h"
#include "client/gpu/gpu_memory.h"
#include "client/gpu/gpu_ring.h"
#include "client/kvcobra-gpu.h"
#include "client/sequence/seq.h"
#include "gpu/attend.h"
#include "tests/lib/test.h"
#include "tests/unit/client/staged_pair.h"

static const struct gpu_pair_shape small = {.n_layers = 2,
                                            .n_heads = 4,
                                            .n_kv_heads = 2,
                                            .d = 64,
                                            .bpd = 3,
                                            .v_from = PREDICT_HEAD,
                                            .pages = KVC_GPU_PAGES_HOST,
                                            .ring_bytes = (size_t) 1 << 20,
                                            .state_bits = 6};

static bool says(const struct gpu_pair *t, const char *part)
{
    bool found = strstr(kvc_last_error(t->gpu), part) != NULL;

    if (!found)
        printf("    \"%s\" does not say \"%s\"\n", kvc_last_error(t->gpu), part);
    return found;
}

/* The client is on a GPU, and its table is used all the same: the name says where. */
static void test_who_encodes(void)
{
    struct gpu_pair t = gpu_pair_new(&small);
    kvc_model_info info = {.struct_bytes = sizeof(info)};

    CU_ASSERT_EQUAL(kvc_model_get_info(t.gpu_model, &info), 0);
    CU_ASSERT_STRING_EQUAL(info.kernel, attend_kernel_name());
    gpu_pair_free(&t);
}

/* More numbers than the ring has room for, and more blocks than a launch takes. */
static void test_long_prompt(void)
{
    struct gpu_pair t = gpu_pair_new(&small);
    struct seq_pair s =
        staged_pair_new(&t, 3, KVC_KEYS_AFTER_ROPE, KVC_PAIRS_INTERLEAVED, KVC_SEQ_PUBLISH_ALL);

    CU_ASSERT_PTR_NULL(s.gpu->staged);
    CU_ASSERT_EQUAL_FATAL(staged_append(&t, &s, KVC_F32, 1), 0);
    CU_ASSERT_EQUAL_FATAL(staged_append(&t, &s, KVC_F32, 1000), 0);
    staged_commit(&s);
    CU_ASSERT_EQUAL(seq_n_packed(s.gpu), 1001 / CHUNK_TOKENS);
    CU_ASSERT_TRUE(staged_pages_alike(&s));
    for (unsigned i = 0; i < 6; i++) /* blocks of one token among them, by chance */
        CU_ASSERT_TRUE(staged_blocks_alike(&t, &s, i, 1001 - i));
    CU_ASSERT_EQUAL(gpu_ring_finish(t.gpu->gpu, NULL), 0);
    CU_ASSERT_EQUAL(t.gpu->gpu->ring->places.free_bytes, t.gpu->gpu->ring->places.bytes);
    gpu_pair_free(&t);
}

/* Sequences of a table that kernels know and of one that they do not know, in one call. */
static void test_batch_of_both_kinds(void)
{
    enum { N = 8 };
    const struct gpu_pair_shape other = {
        .n_layers = 2, .n_heads = 4, .n_kv_heads = 2, .d = 64, .n_sink = 4, .bpd = 2, .v_from = PREDICT_NONE};
    struct gpu_pair t = gpu_pair_new(&small), u = gpu_pair_other(&t, &other);
    struct seq_pair s[N];
    kvc_append_item items[N], on_cpu[N];
    struct gpu_memory m[2 * N];
    float *x[2 * N];

    for (size_t i = 0; i < N; i++) {
        s[i] = staged_pair_new(i % 2 ? &t : &u, i, KVC_KEYS_AFTER_ROPE, KVC_PAIRS_HALF_SPLIT, 0);
        CU_ASSERT_EQUAL(s[i].gpu->staged != NULL, i % 2 == 0);
        CU_ASSERT_EQUAL_FATAL(staged_append(&t, &s[i], KVC_F32, 120 + i), 0);
    }
    for (uint32_t layer = 0; layer < t.g.n_layers; layer++) {
        for (size_t i = 0; i < N; i++) {
            size_t n_new = 70 + i; /* packs a chunk */

            for (unsigned side = 0; side < 2; side++) {
                x[2 * i + side] = gpu_pair_input(&t, s[i].text, layer, side, 120 + i, n_new);
                m[2 * i + side] =
                    gpu_pair_take(&t, x[2 * i + side], n_new * t.n_heads * t.g.d * sizeof(float));
            }
            on_cpu[i] = (kvc_append_item){.struct_bytes = sizeof(kvc_append_item),
                                          .seq = s[i].cpu,
                                          .k = x[2 * i],
                                          .v = x[2 * i + 1],
                                          .n_new = n_new};
            items[i] = on_cpu[i];
            items[i].seq = s[i].gpu;
            items[i].k = (const void *) (uintptr_t) m[2 * i].at;
            items[i].v = (const void *) (uintptr_t) m[2 * i + 1].at;
        }
        CU_ASSERT_EQUAL(kvc_seq_append_batch(on_cpu, N, layer, KVC_F32), 0);
        CU_ASSERT_EQUAL(kvc_seq_append_batch(items, N, layer, KVC_F32), 0);
        for (size_t i = 0; i < 2 * N; i++) {
            gpu_pair_give(&t, &m[i]);
            free(x[i]);
        }
    }
    CU_ASSERT_EQUAL(kvc_client_synchronize(t.gpu), 0);
    for (size_t i = 0; i < N; i++) {
        staged_commit(&s[i]);
        CU_ASSERT_TRUE(staged_is_alike(&t, &s[i]));
    }
    gpu_pair_free(&t);
}

/* Bad arguments and numbers change nothing. */
static void test_refused(void)
{
    struct gpu_pair t = gpu_pair_new(&small);
    const kvc_seq_options o = {.struct_bytes = sizeof(o), .flags = KVC_SEQ_REPEATABLE};
    struct seq_pair s = staged_pair_new(&t, 1, KVC_KEYS_BEFORE_ROPE, KVC_PAIRS_HALF_SPLIT, 0);
    float here[2 * 64] = {0}, bad[2 * 64] = {1, INFINITY};
    void *bases[4] = {here, NULL, NULL, NULL};
    kvc_blocks to = {.struct_bytes = sizeof(to), .bases = bases, .block_tokens = 1, .dtype = KVC_F32};
    struct gpu_memory m = gpu_pair_take(&t, bad, sizeof(bad));
    void *there = (void *) (uintptr_t) m.at;
    kvc_seq *none = NULL;

    CU_ASSERT_EQUAL(kvc_seq_new_with(t.gpu_model, &o, &none), -EOPNOTSUPP);
    CU_ASSERT_EQUAL_FATAL(staged_append(&t, &s, KVC_F32, 5), 0);
    CU_ASSERT_EQUAL(kvc_seq_attend(s.gpu, 0, there, 1, there), -EOPNOTSUPP);
    CU_ASSERT_TRUE(says(&t, "kvc_seq_read_blocks()"));
    CU_ASSERT_EQUAL(kvc_seq_append(s.gpu, 0, KVC_F32, here, here, 1), -EINVAL);
    CU_ASSERT_TRUE(says(&t, "k is not memory of the GPU"));
    CU_ASSERT_EQUAL(kvc_seq_append(s.gpu, 0, KVC_F32, there, there, 1), -EINVAL);
    CU_ASSERT_TRUE(says(&t, "layer 0, KV head 0, K of new token 0 is not finite"));
    CU_ASSERT_EQUAL(kvc_seq_read_blocks(s.gpu, 0, 1, &to), -EINVAL);
    CU_ASSERT_TRUE(says(&t, "is not memory of the GPU"));
    CU_ASSERT_EQUAL(kvc_seq_replay(s.gpu, 1), -EOPNOTSUPP);
    CU_ASSERT_EQUAL(kvc_seq_length(s.gpu), 5);
    CU_ASSERT_EQUAL_FATAL(staged_append(&t, &s, KVC_BF16, 100), 0);
    CU_ASSERT_TRUE(staged_is_alike(&t, &s));
    gpu_pair_give(&t, &m);
    gpu_pair_free(&t);
}

/* Pages of an exact table have the GPU's own bytes. */
static void test_exact(void)
{
    struct gpu_pair_shape shape = small;
    struct gpu_pair t;
    struct seq_pair s;
    kvc_seq *none = NULL;

    shape.exact = KVC_EXACT_BF16 + KVC_EXACT_AFTER_ROPE;
    t = gpu_pair_new(&shape);
    s = staged_pair_new(&t, 3, KVC_KEYS_AFTER_ROPE, KVC_PAIRS_HALF_SPLIT, KVC_SEQ_PUBLISH_ALL);
    CU_ASSERT_EQUAL_FATAL(staged_append(&t, &s, KVC_BF16, 1), 0);
    CU_ASSERT_EQUAL_FATAL(staged_append(&t, &s, KVC_BF16, 300), 0);
    CU_ASSERT_EQUAL(staged_append(&t, &s, KVC_F16, 1), -EINVAL);
    staged_commit(&s);
    CU_ASSERT_EQUAL(seq_n_packed(s.gpu), 301 / CHUNK_TOKENS);
    CU_ASSERT_TRUE(staged_pages_alike(&s));
    for (unsigned i = 0; i < 6; i++)
        CU_ASSERT_TRUE(staged_blocks_alike(&t, &s, i, 301 - i));
    gpu_pair_free(&t);

    shape.exact = KVC_EXACT_F32;
    shape.pages = KVC_GPU_PAGES_DEVICE;
    shape.ring_bytes = 0;
    t = gpu_pair_new(&shape);
    CU_ASSERT_EQUAL(kvc_seq_new(t.gpu_model, NULL, 0, &none), -EOPNOTSUPP);
    CU_ASSERT_TRUE(says(&t, "exact table"));
    gpu_pair_free(&t);
}

/* A table for pages on the GPU needs its kernels. */
static void test_pages_on_the_gpu(void)
{
    struct gpu_pair_shape shape = small;
    struct gpu_pair t;
    kvc_seq *s = NULL;

    shape.pages = KVC_GPU_PAGES_DEVICE;
    shape.ring_bytes = 0;
    t = gpu_pair_new(&shape);
    CU_ASSERT_EQUAL(kvc_seq_new(t.gpu_model, NULL, 0, &s), -EOPNOTSUPP);
    CU_ASSERT_TRUE(says(&t, "kvcobra solve --trellis 0"));
    gpu_pair_free(&t);
}

const char test_suite[] = "sequences on a GPU with codes that no kernel knows";
const struct test_case test_cases[] = {
    TEST(test_who_encodes),
    TEST(test_long_prompt),
    TEST(test_batch_of_both_kinds),
    TEST(test_refused),
    TEST(test_exact),
    TEST(test_pages_on_the_gpu),
    TEST_END,
};
