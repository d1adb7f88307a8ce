/*
 * Calls that sequences on a GPU refuse, like sequences of the CPU or because a GPU does not support them, and
 * inputs that only kernels can check. On the stand-in driver; with TEST_GPU=1 on the real one.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/kvcobra-gpu.h"
#include "client/connection/client.h"
#include "client/sequence/seq.h"
#include "client/gpu/seq_gpu.h"
#include "client/kvcobra-eval.h"
#include "tests/lib/test.h"
#include "tests/unit/client/gpu_pair.h"

static const struct gpu_pair_shape small = {
    .n_layers = 2, .n_heads = 4, .n_kv_heads = 2, .d = 64, .n_sink = 4, .bpd = 3, .v_from = PREDICT_HEAD};

/* ---- refused calls ---- */

static bool says(const struct gpu_pair *t, const char *part)
{
    bool found = strstr(kvc_last_error(t->gpu), part) != NULL;

    if (!found)
        printf("    \"%s\" does not say \"%s\"\n", kvc_last_error(t->gpu), part);
    return found;
}

/* The arguments that the CPU refuses, with its errnos. */
static void test_arguments(void)
{
    struct gpu_pair t = gpu_pair_new(&small);
    struct seq_pair s = seq_pair_new(&t, 1), other;
    struct gpu_pair u = gpu_pair_new(&small);
    struct gpu_memory x = gpu_pair_take(&t, NULL, 4096);
    float *p = (float *) (uintptr_t) x.at;
    size_t kept;

    other = seq_pair_new(&u, 1);
    CU_ASSERT_EQUAL_FATAL(seq_pair_append(&t, &s, KVC_F32, 3), 0);
    CU_ASSERT_EQUAL(kvc_seq_append(s.gpu, 2, KVC_F32, p, p, 1), -EINVAL);
    CU_ASSERT_EQUAL(kvc_seq_append(s.gpu, 0, (enum kvc_dtype) 9, p, p, 1), -EINVAL);
    CU_ASSERT_EQUAL(kvc_seq_append(s.gpu, 0, KVC_F32, NULL, p, 1), -EINVAL);
    CU_ASSERT_EQUAL(kvc_seq_append(s.gpu, 0, KVC_F32, p, p, KVC_APPEND_TOKENS_MAX + 1), -EINVAL);
    CU_ASSERT_EQUAL(kvc_seq_append(s.gpu, 0, KVC_F32, NULL, NULL, 0), 0);
    CU_ASSERT_EQUAL(kvc_seq_attend(s.gpu, 0, p, 4, p), -EINVAL);
    CU_ASSERT_TRUE(says(&t, "append before attending"));
    CU_ASSERT_EQUAL(kvc_seq_attend(s.gpu, 0, NULL, 1, p), -EINVAL);
    CU_ASSERT_EQUAL(kvc_seq_attend(s.gpu, 7, p, 1, p), -EINVAL);
    CU_ASSERT_EQUAL(kvc_seq_attend(s.gpu, 0, NULL, 0, NULL), 0);
    CU_ASSERT_EQUAL(
        kvc_seq_attend_batch(
            (kvc_attend_item[]){
                {.struct_bytes = sizeof(kvc_attend_item), .seq = s.gpu, .q = p, .n_q = 1, .out = p},
                {.struct_bytes = sizeof(kvc_attend_item), .seq = other.gpu, .q = p, .n_q = 1, .out = p}},
            2, 0, NULL),
        -EINVAL);
    CU_ASSERT_EQUAL(
        kvc_seq_attend_batch(
            (kvc_attend_item[]){
                {.struct_bytes = sizeof(kvc_attend_item), .seq = s.gpu, .q = p, .n_q = 1, .out = p},
                {.struct_bytes = sizeof(kvc_attend_item), .seq = s.cpu, .q = p, .n_q = 1, .out = p}},
            2, 0, NULL),
        -EINVAL);
    CU_ASSERT_EQUAL(kvc_seq_read(s.gpu, 0, KVC_K, 2, 2, p), -EINVAL);
    CU_ASSERT_EQUAL(kvc_seq_read(s.gpu, 0, KVC_K, 0, 1, NULL), -EINVAL);
    CU_ASSERT_EQUAL(kvc_seq_truncate(s.gpu, 0, NULL), -EINVAL);
    CU_ASSERT_EQUAL(kvc_seq_fork(s.gpu, NULL), -EINVAL);
    CU_ASSERT_EQUAL(kvc_seq_replay(NULL, 1), -EINVAL);
    CU_ASSERT_EQUAL(kvc_seq_replay(s.gpu, KVC_APPEND_TOKENS_MAX + 1), -EINVAL);
    CU_ASSERT_EQUAL(kvc_seq_replay(s.cpu, 1), -EOPNOTSUPP);
    CU_ASSERT_TRUE(seq_pair_is_alike(&t, &s));
    CU_ASSERT_EQUAL(kvc_seq_truncate(s.gpu, 0, &kept), 0);
    gpu_pair_give(&t, &x);
    gpu_pair_free(&u);
    gpu_pair_free(&t);
}

static void run_nothing(void *ctx, void (*task)(void *arg, size_t i, unsigned worker), void *arg, size_t n)
{
    (void) ctx;
    (void) task;
    (void) arg;
    (void) n;
}

/* Forms of vectors that kernels on a GPU do not read: refused before anything is queued. */
static void test_forms(void)
{
    struct gpu_pair t = gpu_pair_new(&small);
    struct seq_pair s = seq_pair_new(&t, 1);
    struct gpu_memory x = gpu_pair_take(&t, NULL, 4096);
    void *p = (void *) (uintptr_t) x.at, *const bases[4] = {p};
    const kvc_blocks blocks = {.struct_bytes = sizeof(blocks), .bases = bases};
    const kvc_seq_options rotated = {.struct_bytes = sizeof(rotated), .keys = KVC_KEYS_AFTER_ROPE};
    kvc_append_item gaps = {
        .struct_bytes = sizeof(gaps), .seq = s.gpu, .k = p, .v = p, .n_new = 2, .v_token_stride = 130};
    kvc_attend_item q = {
        .struct_bytes = sizeof(q), .seq = s.gpu, .q = p, .n_q = 1, .out = p, .dtype = KVC_BF16};
    kvc_seq *made = NULL;

    CU_ASSERT_EQUAL_FATAL(seq_pair_append(&t, &s, KVC_F32, 3), 0);
    CU_ASSERT_EQUAL(kvc_seq_append_batch(&gaps, 1, 0, KVC_F32), -EOPNOTSUPP);
    CU_ASSERT_TRUE(says(&t, "token stride 130"));
    CU_ASSERT_EQUAL(kvc_seq_attend_batch(&q, 1, 0, NULL), -EOPNOTSUPP);
    CU_ASSERT_TRUE(says(&t, "number type 2"));
    q.dtype = KVC_F32;
    q.out_head_stride = 65;
    q.out_token_stride = 300;
    CU_ASSERT_EQUAL(kvc_seq_attend_batch(&q, 1, 0, NULL), -EOPNOTSUPP);
    CU_ASSERT_EQUAL(kvc_seq_read_blocks(s.gpu, 0, 1, &blocks), -EOPNOTSUPP);
    CU_ASSERT_TRUE(says(&t, "kvc_seq_read()"));
    CU_ASSERT_EQUAL(kvc_seq_new_with(t.gpu_model, &rotated, &made), -EOPNOTSUPP);
    CU_ASSERT_PTR_NULL(made);
    CU_ASSERT_TRUE(seq_pair_is_alike(&t, &s));
    gpu_pair_give(&t, &x);
    gpu_pair_free(&t);
}

/* Features of the CPU alone are refused with a sentence, not ignored. */
static void test_cpu_only(void)
{
    struct gpu_pair t = gpu_pair_new(&small);
    const kvc_eval_options eval = {.struct_bytes = sizeof(eval)};
    const kvc_report_options report = {.struct_bytes = sizeof(report), .share_ppm = 10};
    const kvc_executor executor = {.struct_bytes = sizeof(executor), .run = run_nothing, .n_workers = 2};
    kvc_model_info info = {.struct_bytes = sizeof(info)};
    kvc_seq *s = NULL;

    CU_ASSERT_EQUAL(kvc_seq_new_eval(t.gpu_model, &eval, &s), -EOPNOTSUPP);
    CU_ASSERT_TRUE(says(&t, "CPU"));
    CU_ASSERT_PTR_NULL(s);
    CU_ASSERT_EQUAL(kvc_model_report(t.gpu_model, &report), -EOPNOTSUPP);
    CU_ASSERT_TRUE(says(&t, "CPU"));
    CU_ASSERT_EQUAL(kvc_client_set_executor(t.gpu, &executor), -EOPNOTSUPP);
    CU_ASSERT_TRUE(says(&t, "GPU"));
    CU_ASSERT_EQUAL(kvc_model_get_info(t.gpu_model, &info), 0);
    CU_ASSERT_EQUAL(strncmp(info.kernel, "cuda kvc_attend", 15), 0);
    gpu_pair_free(&t);
}

/* Positions have 32 bits: the last token that fits, and one more. */
static void test_longest_sequence(void)
{
    struct gpu_pair t = gpu_pair_new(&small);
    struct seq_pair s = seq_pair_new(&t, 1);
    struct gpu_memory x = gpu_pair_take(&t, NULL, 4096);
    const void *p = (const void *) (uintptr_t) x.at;

    s.gpu->layers[0].length = SEQ_GPU_TOKENS_MAX;
    s.gpu->layers[0].n_packed = SEQ_GPU_TOKENS_MAX / CHUNK_TOKENS;
    CU_ASSERT_EQUAL(kvc_seq_append(s.gpu, 0, KVC_F32, p, p, 1), -EFBIG);
    CU_ASSERT_TRUE(says(&t, "2147483648"));
    s.gpu->layers[0].length = s.gpu->layers[0].n_packed = 0;
    gpu_pair_give(&t, &x);
    gpu_pair_free(&t);
}

/* ---- errors that kernels find ---- */

/* An input that is NaN, infinite or beyond binary16: the next call that waits finds it, then every call
 * returns the error until the sequence is cut. */
static void test_not_finite(void)
{
    static const float bad[] = {NAN, INFINITY, -INFINITY, 1e6f};
    struct gpu_pair t = gpu_pair_new(&small);
    size_t n = (size_t) t.n_heads * t.g.d, kept = 0, length = 70;
    struct seq_pair s = seq_pair_new(&t, 1);

    CU_ASSERT_EQUAL_FATAL(seq_pair_append(&t, &s, KVC_F32, 70), 0);
    for (unsigned i = 0; i < 4; i++) {
        float *x = gpu_pair_input(&t, 1, 0, 0, 70, 1);
        struct gpu_memory good = gpu_pair_take(&t, x, n * sizeof(*x)), wrong;
        const void *k = (const void *) (uintptr_t) good.at, *v;

        CU_ASSERT_EQUAL(kvc_client_synchronize(t.gpu), 0);
        x[n - 1] = bad[i];
        wrong = gpu_pair_take(&t, x, n * sizeof(*x));
        v = (const void *) (uintptr_t) wrong.at;
        CU_ASSERT_EQUAL(kvc_seq_append(s.gpu, 0, KVC_F32, k, k, 1), 0);
        CU_ASSERT_EQUAL(kvc_seq_append(s.gpu, 1, KVC_F32, k, v, 1), 0);
        CU_ASSERT_EQUAL(kvc_seq_length(s.gpu), length + 1);
        CU_ASSERT_EQUAL(kvc_client_synchronize(t.gpu), -EINVAL);
        CU_ASSERT_TRUE(says(&t, "70"));
        CU_ASSERT_EQUAL(kvc_seq_append(s.gpu, 0, KVC_F32, k, k, 1), -EINVAL);
        CU_ASSERT_EQUAL(kvc_seq_replay(s.gpu, 1), -EINVAL);
        CU_ASSERT_EQUAL(kvc_seq_truncate(s.gpu, length + 1, &kept), 0); /* not deep enough */
        CU_ASSERT_EQUAL(kvc_seq_append(s.gpu, 0, KVC_F32, k, k, 1), -EINVAL);
        CU_ASSERT_EQUAL(kvc_seq_truncate(s.gpu, length, &kept), 0);
        CU_ASSERT_EQUAL(kept, length);
        CU_ASSERT_TRUE(seq_pair_is_alike(&t, &s));
        gpu_pair_give(&t, &good);
        gpu_pair_give(&t, &wrong);
        free(x);
    }
    CU_ASSERT_EQUAL_FATAL(seq_pair_append(&t, &s, KVC_F32, 70), 0);
    CU_ASSERT_EQUAL(kvc_client_synchronize(t.gpu), 0);
    CU_ASSERT_TRUE(seq_pair_is_alike(&t, &s));
    gpu_pair_free(&t);
}

/* A fork made before the flag was read has the same fault. */
static void test_fork_of_not_finite(void)
{
    struct gpu_pair t = gpu_pair_new(&small);
    size_t n = (size_t) t.n_heads * t.g.d;
    struct seq_pair s = seq_pair_new(&t, 1);
    float *x = gpu_pair_input(&t, 1, 0, 0, 0, 1);
    struct gpu_memory m;
    kvc_seq *f = NULL;

    x[3] = NAN;
    m = gpu_pair_take(&t, x, n * sizeof(*x));
    for (uint32_t layer = 0; layer < 2; layer++)
        CU_ASSERT_EQUAL(
            kvc_seq_append(s.gpu, layer, KVC_F32, (void *) (uintptr_t) m.at, (void *) (uintptr_t) m.at, 1),
            0);
    CU_ASSERT_EQUAL_FATAL(kvc_seq_fork(s.gpu, &f), 0);
    s.gpu = kvc_seq_free(s.gpu);
    CU_ASSERT_EQUAL(kvc_client_synchronize(t.gpu), -EINVAL);
    CU_ASSERT_EQUAL(kvc_seq_fork(f, &s.gpu), -EINVAL);
    gpu_pair_give(&t, &m);
    free(x);
    gpu_pair_free(&t);
}

const char test_suite[] = "misuse of sequences on a GPU";
/* A client chooses its GPU once. */
static void test_another_gpu(void)
{
    struct gpu_pair t = gpu_pair_new(&small);
    const kvc_gpu_options o = {.struct_bytes = sizeof(o)};

    CU_ASSERT_EQUAL(kvc_client_set_gpu(t.gpu, &o), -EBUSY);
    CU_ASSERT_TRUE(says(&t, "already: use a client per GPU"));
    CU_ASSERT_EQUAL(kvc_client_set_gpu(t.gpu, NULL), -EINVAL);
    gpu_pair_free(&t);
}

const struct test_case test_cases[] = {
    TEST(test_another_gpu),      TEST(test_arguments),  TEST(test_cpu_only),           TEST(test_forms),
    TEST(test_longest_sequence), TEST(test_not_finite), TEST(test_fork_of_not_finite), TEST_END,
};
