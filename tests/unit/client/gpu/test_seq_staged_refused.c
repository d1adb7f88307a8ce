/*
 * What sequences on a GPU with pages in host memory refuse, and what their calls do when the driver refuses:
 * nothing changes, or the GPU is lost; the sentence says why.
 */
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/connection/client.h"
#include "client/gpu/gpu_memory.h"
#include "client/gpu/gpu_ring.h"
#include "client/gpu/seq_staged.h"
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

/* The same with codes that no kernel knows (seq_copied.h). */
static const struct gpu_pair_shape unknown = {.n_layers = 2,
                                              .n_heads = 4,
                                              .n_kv_heads = 2,
                                              .d = 64,
                                              .bpd = 3,
                                              .v_from = PREDICT_HEAD,
                                              .pages = KVC_GPU_PAGES_HOST,
                                              .state_bits = 6};

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

/* Only the stand-in refuses on demand. */
static bool skips(void)
{
    if (getenv("TEST_GPU"))
        test_skip("a real driver does not fail on demand");
    return getenv("TEST_GPU") != NULL;
}

/* Memory of another GPU of this process is neither read nor written. */
static void use_other_gpu(const struct gpu_pair_shape *shape)
{
    const kvc_gpu_options o = {.struct_bytes = sizeof(o),
                               .uuid = "GPU-c1c1c1c1-c1c1-c1c1-c1c1-c1c1c1c1c1c1",
                               .pages = KVC_GPU_PAGES_HOST};
    struct gpu_pair t = gpu_pair_new(shape);
    struct seq_pair s = staged_pair_new(&t, 1, KVC_KEYS_BEFORE_ROPE, KVC_PAIRS_HALF_SPLIT, 0);
    struct gpu_memory x = {0};
    void *bases[4] = {NULL};
    kvc_blocks to = {.struct_bytes = sizeof(to), .bases = bases, .block_tokens = 1, .dtype = KVC_F32};
    kvc_client *other = NULL;
    float *p;

    CU_ASSERT_EQUAL_FATAL(kvc_client_new(&other), 0);
    CU_ASSERT_EQUAL_FATAL(kvc_client_set_gpu(other, &o), 0);
    CU_ASSERT_EQUAL_FATAL(gpu_alloc(other->gpu, 4096, &x, NULL), 0);
    p = (float *) (uintptr_t) x.at;
    bases[0] = p;
    CU_ASSERT_EQUAL_FATAL(staged_append(&t, &s, KVC_F32, 5), 0);
    CU_ASSERT_EQUAL(kvc_seq_append(s.gpu, 0, KVC_F32, p, p, 1), -EINVAL);
    CU_ASSERT_TRUE(says(&t, "k is memory of GPU 1, and this client is on GPU 0"));
    CU_ASSERT_EQUAL(kvc_seq_read_blocks(s.gpu, 0, 1, &to), -EINVAL);
    CU_ASSERT_TRUE(says(&t, "a base to read to is memory of GPU 1"));
    CU_ASSERT_TRUE(staged_is_alike(&t, &s));
    gpu_free(other->gpu, &x);
    other = kvc_client_free(other);
    gpu_pair_free(&t);
}

static void test_other_gpu(void)
{
    if (skips())
        return;
    (void) setenv("STANDIN_DEVICES", "2", 1);
    use_other_gpu(&small);
    use_other_gpu(&unknown);
    (void) unsetenv("STANDIN_DEVICES");
}

/* ---- streams ---- */

static cu_stream new_stream(const struct gpu_pair *t)
{
    struct gpu *g = t->gpu->gpu;
    cu_stream stream = NULL;

    CU_ASSERT_EQUAL_FATAL(gpu_enter(g, NULL), 0);
    CU_ASSERT_EQUAL_FATAL(g->driver->stream_create(&stream, CU_STREAM_UNORDERED), CU_SUCCESS);
    cuda_space_leave(g->space);
    CU_ASSERT_EQUAL_FATAL(kvc_client_set_stream(t->gpu, stream), 0);
    return stream;
}

static void destroy_stream(const struct gpu_pair *t, cu_stream stream)
{
    struct gpu *g = t->gpu->gpu;

    CU_ASSERT_EQUAL_FATAL(gpu_enter(g, NULL), 0);
    CU_ASSERT_EQUAL(g->driver->stream_destroy(stream), CU_SUCCESS);
    cuda_space_leave(g->space);
}

/* While a graph is captured nothing can be queued; afterwards everything goes on. */
static void capture(const struct gpu_pair_shape *shape)
{
    struct gpu_pair t = gpu_pair_new(shape);
    struct seq_pair s = staged_pair_new(&t, 1, KVC_KEYS_BEFORE_ROPE, KVC_PAIRS_HALF_SPLIT, 0);
    struct gpu_memory x = gpu_pair_take(&t, NULL, 4096);
    float *p = (float *) (uintptr_t) x.at;
    void *bases[4] = {p, NULL, NULL, NULL};
    kvc_blocks to = {.struct_bytes = sizeof(to), .bases = bases, .dtype = KVC_F32};
    cu_stream stream = new_stream(&t);
    struct graph_calls graphs;
    cu_graph graph = NULL;
    kvc_seq *none = NULL;
    size_t kept;

    CU_ASSERT_TRUE_FATAL(graph_calls_find(t.gpu->gpu->driver->library, &graphs));
    CU_ASSERT_EQUAL_FATAL(staged_append(&t, &s, KVC_F32, 150), 0);
    CU_ASSERT_EQUAL_FATAL(graphs.begin_capture(stream, CU_CAPTURE_RELAXED), CU_SUCCESS);
    CU_ASSERT_EQUAL(kvc_seq_append(s.gpu, 0, KVC_F32, p, p, 1), -EBUSY);
    CU_ASSERT_TRUE(says(&t, "being captured"));
    CU_ASSERT_EQUAL(kvc_seq_read_blocks(s.gpu, 0, 1, &to), -EBUSY);
    CU_ASSERT_EQUAL(kvc_seq_read(s.gpu, 0, KVC_K, 0, 1, p), -EBUSY);
    CU_ASSERT_EQUAL(kvc_seq_commit(s.gpu, (uint32_t[150]){0}, 150, NULL), -EBUSY);
    CU_ASSERT_EQUAL(kvc_seq_fork(s.gpu, &none), -EBUSY);
    CU_ASSERT_EQUAL(kvc_seq_truncate(s.gpu, 100, &kept), -EBUSY);
    CU_ASSERT_EQUAL(kvc_seq_new(t.gpu_model, NULL, 0, &none), -EBUSY);
    CU_ASSERT_EQUAL_FATAL(graphs.end_capture(stream, &graph), CU_SUCCESS);
    CU_ASSERT_EQUAL(graphs.destroy(graph), CU_SUCCESS);
    CU_ASSERT_EQUAL_FATAL(staged_append(&t, &s, KVC_F32, 70), 0);
    staged_commit(&s);
    CU_ASSERT_TRUE(staged_is_alike(&t, &s));
    CU_ASSERT_EQUAL(kvc_client_set_stream(t.gpu, NULL), 0);
    destroy_stream(&t, stream);
    gpu_pair_give(&t, &x);
    gpu_pair_free(&t);
}

static void test_capture(void)
{
    capture(&small);
    capture(&unknown);
}

/* A caller that destroys its stream gets errors from then on, and can free everything. A real driver may end
 * the process instead. */
static void use_destroyed_stream(const struct gpu_pair_shape *shape)
{
    struct gpu_pair t = gpu_pair_new(shape);
    struct seq_pair s = staged_pair_new(&t, 1, KVC_KEYS_BEFORE_ROPE, KVC_PAIRS_HALF_SPLIT, 0);
    struct gpu_memory x = gpu_pair_take(&t, NULL, 4096);
    float *p = (float *) (uintptr_t) x.at;

    destroy_stream(&t, new_stream(&t));
    CU_ASSERT_TRUE(kvc_seq_append(s.gpu, 0, KVC_F32, p, p, 1) < 0);
    CU_ASSERT_TRUE(kvc_client_synchronize(t.gpu) < 0);
    CU_ASSERT_STRING_NOT_EQUAL(kvc_last_error(t.gpu), "no error");
    gpu_pair_give(&t, &x);
    gpu_pair_free(&t);
}

static void test_destroyed_stream(void)
{
    if (skips())
        return;
    use_destroyed_stream(&small);
    use_destroyed_stream(&unknown);
}

/* ---- fork() ---- */

static void use_child(const struct gpu_pair_shape *shape)
{
    struct gpu_pair t = gpu_pair_new(shape);
    struct seq_pair s = staged_pair_new(&t, 1, KVC_KEYS_BEFORE_ROPE, KVC_PAIRS_HALF_SPLIT, 0);
    int status = 0;
    pid_t pid;

    CU_ASSERT_EQUAL_FATAL(staged_append(&t, &s, KVC_F32, 300), 0); /* pages are on their way */
    pid = fork();
    if (pid == 0) {
        bool good = kvc_seq_append(s.gpu, 0, KVC_F32, "", "", 1) == -ECHILD &&
                    kvc_seq_commit(s.gpu, NULL, 0, NULL) == -ECHILD &&
                    kvc_client_synchronize(t.gpu) == -ECHILD;

        (void) kvc_seq_free(s.gpu);
        (void) kvc_client_free(t.gpu);
        _exit(good ? 0 : 1);
    }
    CU_ASSERT_EQUAL_FATAL(waitpid(pid, &status, 0), pid);
    CU_ASSERT_EQUAL(status, 0);
    staged_commit(&s);
    CU_ASSERT_TRUE(staged_is_alike(&t, &s));
    gpu_pair_free(&t);
}

static void test_child(void)
{
    use_child(&small);
    use_child(&unknown);
}

/* ---- errors of the driver ---- */

/* Everything that a client does, up to the first error. */
static int use_all(struct gpu_pair *t)
{
    const kvc_seq_options o = {.struct_bytes = sizeof(o), .keys = KVC_KEYS_AFTER_ROPE};
    struct gpu_memory x = {0};
    kvc_seq *s = NULL, *f = NULL;
    static const float zeros[400 * 2 * 64];
    uint32_t tokens[400] = {0};
    int r = gpu_alloc(t->gpu->gpu, sizeof(zeros), &x, &t->gpu->error);
    float *p = (float *) (uintptr_t) x.at;

    if (r == 0)
        r = gpu_write(t->gpu->gpu, x.at, zeros, sizeof(zeros), &t->gpu->error);
    if (r == 0)
        r = kvc_seq_new_with(t->gpu_model, &o, &s);
    for (unsigned i = 0; r == 0 && i < 4; i++)
        r = kvc_seq_append(s, i % 2, KVC_BF16, p, p, i < 2 ? 300 : 30);
    if (r == 0)
        r = kvc_seq_commit(s, tokens, 330, NULL);
    if (r == 0)
        r = kvc_seq_read(s, 0, KVC_K, 0, 330, p);
    if (r == 0)
        r = kvc_seq_fork(s, &f);
    if (r == 0 && f->staged)
        r = seq_staged_finish(f);
    if (r < 0)
        CU_ASSERT_STRING_NOT_EQUAL(kvc_last_error(t->gpu), "no error");
    gpu_free(t->gpu->gpu, &x);
    f = kvc_seq_free(f);
    s = kvc_seq_free(s);
    return r;
}

static bool nothing_left(void)
{
    struct standin_left l = standin_look();

    return l.allocations == 0 && l.pinned == 0 && l.events == 0 && l.streams == 0 && l.contexts == 0 &&
           l.modules == 0;
}

/* Lets call @nth of @call fail with @error. Return: whether there was such a call. */
static bool fail_nth(const struct gpu_pair_shape *shape, const char *call, unsigned nth, int error, int want)
{
    struct gpu_pair t;
    char setting[64];
    bool failed;
    int r;

    (void) snprintf(setting, sizeof(setting), "%s:%u:%d", call, nth, error);
    (void) setenv("STANDIN_FAIL", setting, 1);
    gpu_pair_open(&t, shape, &r);
    (void) unsetenv("STANDIN_FAIL");
    failed = r < 0;
    if (!failed) {
        r = use_all(&t);
        failed = r < 0;
        if (want == -EIO && failed)
            CU_ASSERT_EQUAL(kvc_client_synchronize(t.gpu), -EIO); /* and every later call */
        if (want != -EIO)
            CU_ASSERT_EQUAL(kvc_client_synchronize(t.gpu), 0);
    }
    if (failed && r != want) {
        printf("    %s returns %d\n", setting, r);
        CU_FAIL("another error");
    }
    gpu_pair_free(&t);
    if (want != -EIO)
        CU_ASSERT_TRUE(nothing_left());
    return failed;
}

/* Every call that can fail does so once, wherever it is made: full memory changes nothing, other errors lose
 * the GPU. */
static void test_driver_errors(void)
{
    static const struct {
        const char *call;
        int error, want;
    } calls[] = {
        {"cuMemAlloc_v2", CU_OUT_OF_MEMORY, -ENOMEM},
        {"cuMemHostAlloc", CU_OUT_OF_MEMORY, -ENOMEM},
        {"cuEventCreate", CU_OUT_OF_MEMORY, -ENOMEM},
        {"cuStreamCreate", CU_OUT_OF_MEMORY, -ENOMEM},
        {"cuMemcpyDtoHAsync_v2", CU_ILLEGAL_ADDRESS, -EIO},
        {"cuMemcpyHtoDAsync_v2", CU_ILLEGAL_ADDRESS, -EIO},
        {"cuEventRecord", CU_ILLEGAL_ADDRESS, -EIO},
        {"cuEventQuery", CU_ILLEGAL_ADDRESS, -EIO},
        {"cuEventSynchronize", CU_ILLEGAL_ADDRESS, -EIO},
        {"cuStreamWaitEvent", CU_ILLEGAL_ADDRESS, -EIO},
        {"cuLaunchKernel", CU_ILLEGAL_ADDRESS, -EIO},
    };
    void *library;

    if (skips())
        return;
    library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL); /* keeps its counts while clients come and go */
    CU_ASSERT_PTR_NOT_NULL_FATAL(library);
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
        bool only_staged = strcmp(calls[i].call, "cuEventQuery") == 0; /* the other kind only waits */

        for (unsigned kind = 0; kind < 2; kind++) {
            const struct gpu_pair_shape *shape = kind ? &unknown : &small;
            unsigned n = 0;

            while (n < 200 && fail_nth(shape, calls[i].call, n + 1, calls[i].error, calls[i].want))
                n++;
            CU_ASSERT_TRUE((n > 0 || (kind > 0 && only_staged)) && n < 200);
        }
    }
    (void) dlclose(library);
}

const char test_suite[] = "refusals with pages in host memory";
const struct test_case test_cases[] = {
    TEST(test_options),          TEST(test_refused),       TEST(test_not_finite),
    TEST(test_other_gpu),        TEST(test_capture),       TEST(test_child),
    TEST(test_destroyed_stream), TEST(test_driver_errors), TEST_END,
};
