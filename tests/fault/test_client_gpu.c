/*
 * Sequences on a GPU while every allocation of the GPU or the host fails once, or the GPU is lost at every
 * launch: an errno and a sentence; the sequence is unchanged or the GPU stays lost; everything can be freed.
 * On the stand-in driver, whose calls fail as STANDIN_FAIL selects.
 */
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/kvcobra-gpu.h"
#include "client/connection/client.h"
#include "client/sequence/seq.h"
#include "tests/fault/fault.h"
#include "tests/lib/test.h"
#include "tests/standin/libcuda.h"
#include "tests/unit/client/gpu_pair.h"

static const struct gpu_pair_shape shape = {
    .n_layers = 2, .n_heads = 2, .n_kv_heads = 1, .d = 32, .n_sink = 4, .bpd = 2, .v_from = PREDICT_HEAD};

enum { PIECE = 150, N_PIECES = 3, KEPT = 260, NTH_MAX = 300 };

/* The same calls on the CPU and then on the GPU. */
struct program {
    struct gpu_pair t;
    struct seq_pair s, f;
    float *x[2][2]; /* by layer and side: the appended vectors */
    struct gpu_memory on_gpu[2][2], q, out;
    size_t kept;
    unsigned n_failed; /* calls that were repeated */
    int first_err;     /* if calls are not repeated: all later calls must return it too */
    bool repeats;
};

static void program_init(struct program *p, bool repeats)
{
    size_t width;

    *p = (struct program){.t = gpu_pair_new(&shape), .repeats = repeats};
    width = (size_t) p->t.n_heads * p->t.g.d;
    for (unsigned i = 0; i < 4; i++) {
        p->x[i / 2][i % 2] = gpu_pair_input(&p->t, 1, i / 2, i % 2, 0, N_PIECES * PIECE);
        p->on_gpu[i / 2][i % 2] =
            gpu_pair_take(&p->t, p->x[i / 2][i % 2], N_PIECES * PIECE * width * sizeof(float));
    }
    p->q = gpu_pair_take(&p->t, NULL, 64 * 2 * width * sizeof(float));
    p->out = gpu_pair_take(&p->t, NULL, 64 * 2 * width * sizeof(float));
    CU_ASSERT_EQUAL(kvc_seq_new(p->t.cpu_model, NULL, 0, &p->s.cpu), 0);
    for (size_t i = 0; i < 2 * N_PIECES; i++)
        CU_ASSERT_EQUAL(kvc_seq_append(p->s.cpu, i % 2, KVC_F32, p->x[i % 2][0] + i / 2 * PIECE * width,
                                       p->x[i % 2][1] + i / 2 * PIECE * width, PIECE),
                        0);
    CU_ASSERT_EQUAL(kvc_seq_fork(p->s.cpu, &p->f.cpu), 0);
    CU_ASSERT_EQUAL(kvc_seq_truncate(p->s.cpu, KEPT, &p->kept), 0);
}

static void program_deinit(struct program *p)
{
    for (unsigned i = 0; i < 4; i++) {
        gpu_pair_give(&p->t, &p->on_gpu[i / 2][i % 2]);
        free(p->x[i / 2][i % 2]);
    }
    gpu_pair_give(&p->t, &p->q);
    gpu_pair_give(&p->t, &p->out);
    gpu_pair_free(&p->t);
}

/* Checks the result of one call. Return: whether the test must repeat the call. */
static bool must_repeat(struct program *p, int r)
{
    if (r == 0) {
        CU_ASSERT_EQUAL(p->first_err, 0);
        return false;
    }
    CU_ASSERT_NOT_EQUAL(strcmp(kvc_last_error(p->t.gpu), "no error"), 0);
    if (p->repeats) {
        CU_ASSERT_EQUAL(r, -ENOMEM);
        CU_ASSERT_EQUAL_FATAL(p->n_failed, 0); /* only one call must fail */
        p->n_failed++;
        return true;
    }
    CU_ASSERT_EQUAL(r, -EIO);
    p->first_err = r;
    return false;
}

static void append_piece(struct program *p, size_t first)
{
    size_t off = first * p->t.n_heads * p->t.g.d;

    for (uint32_t layer = 0; layer < 2; layer++) {
        const float *k = (const float *) (uintptr_t) p->on_gpu[layer][0].at + off;
        const float *v = (const float *) (uintptr_t) p->on_gpu[layer][1].at + off;

        while (must_repeat(p, kvc_seq_append(p->s.gpu, layer, KVC_F32, k, v, PIECE)))
            CU_ASSERT_EQUAL(p->s.gpu->layers[layer].length, first);
    }
}

/* All calls that allocate or launch. */
static void run(struct program *p)
{
    float *q = (float *) (uintptr_t) p->q.at, *out = (float *) (uintptr_t) p->out.at;

    while (must_repeat(p, kvc_seq_new(p->t.gpu_model, NULL, 0, &p->s.gpu)))
        CU_ASSERT_PTR_NULL(p->s.gpu);
    if (!p->s.gpu)
        return;
    for (size_t i = 0; i < N_PIECES; i++)
        append_piece(p, i * PIECE);
    while (must_repeat(p, kvc_seq_attend(p->s.gpu, 0, q, 1, out)))
        ;
    while (must_repeat(p, kvc_seq_attend(p->s.gpu, 1, q, 60, out)))
        ;
    while (must_repeat(p, kvc_seq_fork(p->s.gpu, &p->f.gpu)))
        CU_ASSERT_PTR_NULL(p->f.gpu);
    while (must_repeat(p, kvc_seq_replay(p->s.gpu, 0)))
        ;
    while (must_repeat(p, kvc_seq_read(p->s.gpu, 1, KVC_V, 3, 7, out)))
        ;
    while (must_repeat(p, kvc_client_synchronize(p->t.gpu)))
        ;
    while (must_repeat(p, kvc_seq_truncate(p->s.gpu, KEPT, &p->kept)))
        ;
}

/* The objects that are still open in the stand-in driver; @library keeps it loaded. */
static struct standin_left open_objects(void *library)
{
    void *address = dlsym(library, "standin_left");
    standin_left_call call;

    CU_ASSERT_PTR_NOT_NULL_FATAL(address);
    memcpy(&call, &address, sizeof(call));
    return call();
}

static void expect_nothing_open(void *library)
{
    struct standin_left l = open_objects(library);

    CU_ASSERT_EQUAL(l.allocations, 0);
    CU_ASSERT_EQUAL(l.contexts, 0);
    CU_ASSERT_EQUAL(l.modules, 0);
    CU_ASSERT_EQUAL(l.mappings, 0);
    CU_ASSERT_EQUAL(l.ranges, 0);
    (void) dlclose(library);
}

static void set_failure(const char *call, unsigned nth, int error)
{
    char setting[96];

    (void) snprintf(setting, sizeof(setting), "%s:%u:%d", call, nth, error);
    CU_ASSERT_EQUAL(setenv("STANDIN_FAIL", setting, 1), 0);
}

/*
 * The n-th allocation on the GPU finds no memory; the first six are buffers of the test. The failed call is
 * repeated, and then the GPU's sequences equal the CPU's.
 */
static void test_no_memory_of_the_gpu(void)
{
    unsigned nth = 7;

    if (getenv("TEST_GPU")) {
        test_skip("a real GPU does not fail on demand");
        return;
    }
    for (bool fired = true; fired && nth < NTH_MAX; nth++) {
        void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
        struct program p;

        set_failure("cuMemAlloc_v2", nth, 2);
        program_init(&p, true);
        run(&p);
        CU_ASSERT_TRUE(seq_pair_is_alike(&p.t, &p.s));
        CU_ASSERT_TRUE(seq_pair_is_alike(&p.t, &p.f));
        fired = p.n_failed > 0;
        program_deinit(&p);
        CU_ASSERT_EQUAL(unsetenv("STANDIN_FAIL"), 0);
        expect_nothing_open(library);
    }
    CU_ASSERT_TRUE(nth >= 12 && nth < NTH_MAX); /* flags, plans, tails, addresses, pages, a workspace */
}

/* The same for allocations of the host. */
static void test_no_memory_of_the_host(void)
{
    long before = fault_live_blocks();
    unsigned nth = 1;

    for (bool fired = true; fired && nth < NTH_MAX; nth++) {
        struct program p;

        program_init(&p, true);
        fault_arm(nth);
        run(&p);
        fired = fault_fired();
        fault_arm(0);
        CU_ASSERT_TRUE(seq_pair_is_alike(&p.t, &p.s));
        CU_ASSERT_TRUE(seq_pair_is_alike(&p.t, &p.f));
        program_deinit(&p);
    }
    CU_ASSERT_TRUE(nth >= 12 && nth < NTH_MAX);
    CU_ASSERT_EQUAL(fault_live_blocks(), before);
}

/* The n-th launch and all later ones fail as after a fault of a kernel. */
static void test_lost_at_any_launch(void)
{
    unsigned nth = 1;

    if (getenv("TEST_GPU")) {
        test_skip("a real GPU is not lost on demand");
        return;
    }
    for (bool fired = true; fired && nth < NTH_MAX; nth += 3) {
        void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
        struct program p;
        kvc_seq *s = NULL;

        set_failure("cuLaunchKernel", nth, -CU_LAUNCH_FAILED);
        program_init(&p, false);
        run(&p);
        fired = p.first_err < 0;
        if (fired) {
            CU_ASSERT_EQUAL(kvc_seq_new(p.t.gpu_model, NULL, 0, &s), -EIO);
            CU_ASSERT_PTR_NOT_NULL(strstr(kvc_last_error(p.t.gpu), "lost its GPU"));
            CU_ASSERT_PTR_NULL(s);
        }
        program_deinit(&p);
        CU_ASSERT_EQUAL(unsetenv("STANDIN_FAIL"), 0);
        expect_nothing_open(library);
    }
    CU_ASSERT_TRUE(nth > 20 && nth < NTH_MAX);
}

const char test_suite[] = "client_gpu";
const struct test_case test_cases[] = {
    TEST(test_no_memory_of_the_gpu),
    TEST(test_no_memory_of_the_host),
    TEST(test_lost_at_any_launch),
    TEST_END,
};
