/*
 * What sequences on a GPU with pages in host memory refuse, and what their calls do when the driver refuses:
 * nothing changes, or the GPU is lost; the sentence says why.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/connection/client.h"
#include "client/gpu/gpu_memory.h"
#include "client/gpu/gpu_ring.h"
#include "client/sequence/seq.h"
#include "tests/lib/test.h"
#include "tests/standin/graph.h"
#include "tests/standin/libcuda.h"
#include "tests/unit/client/staged_pair.h"

static const struct gpu_pair_shape small = {.n_layers = 2,
                                            .n_heads = 4,
                                            .n_kv_heads = 2,
                                            .d = 64,
                                            .n_sink = 4,
                                            .bpd = 3,
                                            .v_from = PREDICT_HEAD,
                                            .pages = KVC_GPU_PAGES_HOST};

/* ---- refused calls ---- */

static bool says(const struct gpu_pair *t, const char *part)
{
    bool found = strstr(kvc_last_error(t->gpu), part) != NULL;

    if (!found)
        printf("    \"%s\" does not say \"%s\"\n", kvc_last_error(t->gpu), part);
    return found;
}

static void test_options(void)
{
    static const struct {
        kvc_gpu_options o;
        const char *says;
    } wrong[] = {
        {{.struct_bytes = sizeof(kvc_gpu_options), .pages = 2}, "pages is 2"},
        {{.struct_bytes = sizeof(kvc_gpu_options), .unused = 1}, "unused is 1"},
        {{.struct_bytes = sizeof(kvc_gpu_options), .ring_bytes = 1 << 20}, "only pages in host memory"},
        {{.struct_bytes = sizeof(kvc_gpu_options), .pages = 1, .ring_bytes = (1 << 20) - 1},
         "at least 1048576"},
        {{.struct_bytes = sizeof(kvc_gpu_options), .pages = 1, .ring_bytes = ((size_t) 16 << 30) + 1},
         "at most"},
    };
    struct gpu_pair_shape large = small;
    struct gpu_pair t = {0};
    kvc_seq *s = NULL;

    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        CU_ASSERT_EQUAL_FATAL(kvc_client_new(&t.gpu), 0);
        CU_ASSERT_EQUAL(kvc_client_set_gpu(t.gpu, &wrong[i].o), -EINVAL);
        CU_ASSERT_TRUE(says(&t, wrong[i].says));
        CU_ASSERT_PTR_NULL(t.gpu->gpu);
        t.gpu = kvc_client_free(t.gpu);
    }
    large.n_layers = 64; /* a page of 800 KiB */
    large.ring_bytes = (size_t) 1 << 20;
    t = gpu_pair_new(&large);
    CU_ASSERT_EQUAL(kvc_seq_new(t.gpu_model, NULL, 0, &s), -EINVAL);
    CU_ASSERT_TRUE(says(&t, "ring_bytes is 1048576: two pages of this table need"));
    CU_ASSERT_EQUAL(kvc_client_set_threads(t.gpu, 2), 0);
    gpu_pair_free(&t);
}

static void test_refused(void)
{
    struct gpu_pair t = gpu_pair_new(&small);
    const kvc_seq_options o = {.struct_bytes = sizeof(o), .flags = KVC_SEQ_REPEATABLE};
    struct seq_pair s = staged_pair_new(&t, 1, KVC_KEYS_BEFORE_ROPE, KVC_PAIRS_HALF_SPLIT, 0);
    float here[2 * 64];
    void *bases[4] = {here, NULL, NULL, NULL};
    kvc_blocks to = {.struct_bytes = sizeof(to), .bases = bases, .block_tokens = 1, .dtype = KVC_F32};
    kvc_seq *none = NULL;

    CU_ASSERT_EQUAL(kvc_seq_new_with(t.gpu_model, &o, &none), -EOPNOTSUPP);
    CU_ASSERT_TRUE(says(&t, "KVC_SEQ_REPEATABLE"));
    CU_ASSERT_EQUAL_FATAL(staged_append(&t, &s, KVC_F32, 5), 0);
    CU_ASSERT_EQUAL(kvc_seq_attend(s.gpu, 0, here, 1, here), -EOPNOTSUPP);
    CU_ASSERT_TRUE(says(&t, "kvc_seq_read_blocks()"));
    CU_ASSERT_EQUAL(kvc_seq_append(s.gpu, 0, KVC_F32, here, here, 1), -EINVAL);
    CU_ASSERT_TRUE(says(&t, "k is not memory of the GPU"));
    CU_ASSERT_EQUAL(kvc_seq_read_blocks(s.gpu, 0, 1, &to), -EINVAL);
    CU_ASSERT_TRUE(says(&t, "is not memory of the GPU"));
    CU_ASSERT_EQUAL(kvc_seq_replay(s.gpu, 1), -EOPNOTSUPP);
    CU_ASSERT_EQUAL(kvc_seq_length(s.gpu), 5);
    CU_ASSERT_TRUE(staged_is_alike(&t, &s));
    gpu_pair_free(&t);
}

/* A number that is not finite is found when the client waits, and goes with the tokens. */
static void test_not_finite(void)
{
    struct gpu_pair t = gpu_pair_new(&small);
    struct seq_pair s = staged_pair_new(&t, 1, KVC_KEYS_BEFORE_ROPE, KVC_PAIRS_HALF_SPLIT, 0);
    float bad[128] = {1, 2, 1e30f};
    struct gpu_memory m;
    size_t kept;

    CU_ASSERT_EQUAL_FATAL(staged_append(&t, &s, KVC_F32, 100), 0);
    CU_ASSERT_EQUAL(kvc_client_synchronize(t.gpu), 0);
    m = gpu_pair_take(&t, bad, sizeof(bad));
    for (uint32_t layer = 0; layer < 2; layer++)
        CU_ASSERT_EQUAL(
            kvc_seq_append(s.gpu, layer, KVC_F32, (void *) (uintptr_t) m.at, (void *) (uintptr_t) m.at, 1),
            0);
    CU_ASSERT_EQUAL(kvc_client_synchronize(t.gpu), -EINVAL);
    CU_ASSERT_TRUE(says(&t, "from token 100 on") && !strstr(kvc_last_error(t.gpu), "graph"));
    CU_ASSERT_EQUAL(kvc_seq_commit(s.gpu, (uint32_t[101]){0}, 101, NULL), -EINVAL);
    CU_ASSERT_EQUAL(kvc_seq_truncate(s.gpu, 100, &kept), 0);
    CU_ASSERT_EQUAL(kvc_client_synchronize(t.gpu), 0);
    CU_ASSERT_EQUAL_FATAL(staged_append(&t, &s, KVC_F32, 70), 0);
    staged_commit(&s);
    CU_ASSERT_TRUE(staged_is_alike(&t, &s));
    gpu_pair_give(&t, &m);
    gpu_pair_free(&t);
}

const char test_suite[] = "refusals with pages in host memory";
const struct test_case test_cases[] = {
    TEST(test_options),
    TEST(test_refused),
    TEST(test_not_finite),
    TEST_END,
};
