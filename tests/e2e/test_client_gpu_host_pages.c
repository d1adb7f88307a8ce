/*
 * Clients on a GPU whose pages are in host memory, beside clients on the CPU: what one publishes, the other
 * finds and reads to the bit, in a daemon that has no pool on a GPU; full arenas, lost daemons and a GPU that
 * is lost in the middle publish nothing wrong.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/connection/client.h"
#include "client/gpu/gpu.h"
#include "client/kvcobra-gpu.h"
#include "client/sequence/seq.h"
#include "tests/e2e/client_gpu_fixture.h"
#include "tests/lib/random_table.h"
#include "tests/lib/test.h"

/* A page of 2 layers, 2 heads and 64 dimensions has 6 KiB. */
static const char *const args[] = {"--pool-bytes=4M",  "--extent-bytes=1M", "--span-bytes=256K",
                                   "--arena-bytes=1M", "--quota-bytes=16M", NULL};

enum { PROMPT = 1000, WHOLE = 960 }; /* whole chunks */

static void run(bool (*child)(const struct scene *sc, int from_parent, int to_parent))
{
    struct scene sc;
    struct child c;

    scene_start(&sc, random_table_geometry(2, 4, 2, 64), 3, 1, args);
    c = child_start(child, &sc);
    CU_ASSERT(child_end(&c));
    CU_ASSERT(scene_wait(&sc, gpu_nothing_held));
    scene_end(&sc);
}

static kvc_seq *sequence(const struct embedded *m)
{
    const kvc_seq_options o = {.struct_bytes = sizeof(o), .flags = KVC_SEQ_PUBLISH_ALL};
    kvc_seq *s = NULL;

    CU_ASSERT_EQUAL_FATAL(kvc_seq_new_with(m->model, &o, &s), 0);
    return s;
}

static size_t match(kvc_seq *s, uint32_t text, size_t n)
{
    uint32_t *tokens = scene_tokens(text, n);
    size_t found = 0;

    CU_ASSERT_EQUAL(kvc_seq_match(s, tokens, n, &found), 0);
    free(tokens);
    return found;
}

/* Reads the first @n tokens of @s on the GPU and of @on_cpu. */
static bool reads_alike(const struct embedded *m, kvc_seq *s, const struct embedded *cpu, kvc_seq *on_cpu,
                        size_t n)
{
    size_t bytes = n * m->n_heads * m->g.d * sizeof(float);
    bool same = true;

    for (uint32_t layer = 0; layer < m->g.n_layers; layer++)
        for (unsigned side = 0; side < 2; side++) {
            float *got = gpu_read_back(m, s, layer, (enum kvc_side) side, n),
                  *want = embedded_read(cpu, on_cpu, layer, (enum kvc_side) side, n);

            same &= memcmp(got, want, bytes) == 0;
            free(got);
            free(want);
        }
    return same;
}

/* Published on the GPU, found on the CPU, continued there, and found on the GPU again. */
static bool both_ways(const struct scene *sc, int from_parent, int to_parent)
{
    struct embedded gpu = gpu_scene_client_with(sc, KVC_GPU_PAGES_HOST), cpu = scene_client(sc);
    kvc_seq *a = sequence(&gpu), *b = sequence(&cpu), *c = sequence(&gpu);
    uint32_t *tokens = scene_tokens(1, 2 * PROMPT);
    size_t published = 0;

    (void) from_parent;
    (void) to_parent;
    CU_ASSERT_EQUAL(gpu_publish(&gpu, a, 1, 0, PROMPT, 300, &published), 0);
    CU_ASSERT_EQUAL(published, WHOLE);
    CU_ASSERT_EQUAL(match(b, 1, PROMPT), WHOLE);
    CU_ASSERT_TRUE(reads_alike(&gpu, a, &cpu, b, WHOLE));
    CU_ASSERT_EQUAL(scene_publish(&cpu, b, 1, WHOLE, 200, 200, &published), 0);
    CU_ASSERT_EQUAL(published, 1152);
    CU_ASSERT_EQUAL(match(c, 1, 1200), 1152);
    CU_ASSERT_TRUE(reads_alike(&gpu, c, &cpu, b, 1152));
    CU_ASSERT_EQUAL(gpu_publish(&gpu, c, 1, 1152, 300, 100, &published), 0);
    CU_ASSERT_EQUAL(published, 1408);
    a = kvc_seq_free(a);
    a = sequence(&gpu);
    CU_ASSERT_EQUAL(match(a, 1, 1452), 1408);
    free(tokens);
    embedded_free(&cpu);
    embedded_free(&gpu);
    return true;
}

static void test_both_ways(void)
{
    run(both_ways);
}

/* A prompt that fills the arena: the append fails as on the CPU, and succeeds after a commit. */
static bool full_arena(const struct scene *sc, int from_parent, int to_parent)
{
    struct embedded gpu = gpu_scene_client_with(sc, KVC_GPU_PAGES_HOST), cpu = scene_client(sc);
    kvc_seq *s = sequence(&gpu), *t = sequence(&cpu);
    size_t n = 0, published = 0;
    uint32_t *tokens = scene_tokens(2, 20000);
    int r = 0;

    (void) from_parent;
    (void) to_parent;
    while (r == 0) {
        r = gpu_append(&gpu, s, 2, n, 512);
        n += r == 0 ? 512 : 0;
    }
    CU_ASSERT_EQUAL(r, -ENOSPC);
    CU_ASSERT_EQUAL(kvc_seq_length(s), n);
    CU_ASSERT_EQUAL(kvc_seq_commit(s, tokens, n, &published), 0);
    CU_ASSERT_EQUAL(published, n);
    CU_ASSERT_EQUAL(gpu_publish(&gpu, s, 2, n, 700, 700, &published), 0);
    CU_ASSERT_EQUAL(published, (n + 700) / 64 * 64);
    CU_ASSERT_EQUAL(match(t, 2, n + 701), published);
    CU_ASSERT_TRUE(reads_alike(&gpu, s, &cpu, t, published));
    free(tokens);
    embedded_free(&cpu);
    embedded_free(&gpu);
    return true;
}

static void test_full_arena(void)
{
    run(full_arena);
}

/* The GPU is lost after pages were packed: the commit fails, and no client finds anything. */
static bool lost_gpu(const struct scene *sc, int from_parent, int to_parent)
{
    struct embedded gpu = gpu_scene_client_with(sc, KVC_GPU_PAGES_HOST), cpu;
    kvc_seq *s = sequence(&gpu);
    uint32_t *tokens = scene_tokens(3, PROMPT);
    size_t published = 77;

    (void) from_parent;
    (void) to_parent;
    CU_ASSERT_EQUAL(gpu_append(&gpu, s, 3, 0, PROMPT), 0);
    CU_ASSERT_EQUAL(gpu_result(gpu.client->gpu, -EIO, NULL), -EIO);
    CU_ASSERT_EQUAL(kvc_seq_commit(s, tokens, PROMPT, &published), -EIO);
    CU_ASSERT_EQUAL(published, 77);
    embedded_free(&gpu);
    cpu = scene_client(sc);
    CU_ASSERT_EQUAL(match(sequence(&cpu), 3, PROMPT), 0);
    free(tokens);
    embedded_free(&cpu);
    return true;
}

static void test_lost_gpu(void)
{
    run(lost_gpu);
}

/* Pages are in the arena when the process is killed. */
static bool encodes_only(const struct scene *sc, int from_parent, int to_parent)
{
    struct embedded gpu = gpu_scene_client_with(sc, KVC_GPU_PAGES_HOST);
    kvc_seq *s = sequence(&gpu);

    CU_ASSERT_EQUAL(gpu_append(&gpu, s, 5, 0, PROMPT), 0);
    CU_ASSERT_EQUAL(kvc_client_synchronize(gpu.client), 0);
    pipe_signal(to_parent);
    (void) pipe_wait(from_parent);
    return false;
}

static bool finds_nothing(const struct scene *sc, int from_parent, int to_parent)
{
    struct embedded gpu = gpu_scene_client_with(sc, KVC_GPU_PAGES_HOST);
    size_t published = 0;

    (void) from_parent;
    (void) to_parent;
    CU_ASSERT_EQUAL(match(sequence(&gpu), 5, PROMPT), 0);
    CU_ASSERT_EQUAL(gpu_publish(&gpu, sequence(&gpu), 5, 0, PROMPT, 300, &published), 0);
    CU_ASSERT_EQUAL(published, WHOLE);
    CU_ASSERT_EQUAL(match(sequence(&gpu), 5, PROMPT), WHOLE);
    embedded_free(&gpu);
    return true;
}

/* Killed between encoding and committing: nothing was published, and its memory comes back. */
static void test_killed(void)
{
    struct scene sc;
    struct child c;

    scene_start(&sc, random_table_geometry(2, 4, 2, 64), 3, 1, args);
    c = child_start(encodes_only, &sc);
    CU_ASSERT_TRUE(pipe_wait(c.from));
    child_kill(&c);
    CU_ASSERT(scene_wait(&sc, gpu_nothing_held));
    c = child_start(finds_nothing, &sc);
    CU_ASSERT(child_end(&c));
    CU_ASSERT(scene_wait(&sc, gpu_nothing_held));
    scene_end(&sc);
}

/* Without its daemon the client goes on: pages that were on their way to the arena arrive in private
 * memory. */
static bool lost_daemon(const struct scene *sc, int from_parent, int to_parent)
{
    struct embedded gpu = gpu_scene_client_with(sc, KVC_GPU_PAGES_HOST), alone = scene_private(sc);
    kvc_seq *s = sequence(&gpu), *t = sequence(&alone);
    size_t published = 77;

    CU_ASSERT_EQUAL(gpu_publish(&gpu, s, 4, 0, 640, 640, &published), 0);
    CU_ASSERT_EQUAL(published, 640);
    CU_ASSERT_EQUAL(gpu_append(&gpu, s, 4, 640, 200), 0); /* pages in the arena, on their way */
    pipe_signal(to_parent);
    CU_ASSERT_TRUE(pipe_wait(from_parent)); /* it is killed */
    CU_ASSERT_EQUAL(gpu_publish(&gpu, s, 4, 840, 200, 200, &published), 0);
    CU_ASSERT_EQUAL(published, 0);
    CU_ASSERT_EQUAL(scene_publish(&alone, t, 4, 0, 1040, 1040, &published), 0);
    CU_ASSERT_TRUE(reads_alike(&gpu, s, &alone, t, 1040));
    embedded_free(&alone);
    embedded_free(&gpu);
    return true;
}

static void test_lost_daemon(void)
{
    struct scene sc;
    struct child c;

    scene_start(&sc, random_table_geometry(2, 4, 2, 64), 3, 1, args);
    c = child_start(lost_daemon, &sc);
    CU_ASSERT_TRUE(pipe_wait(c.from));
    daemon_kill(&sc.daemon);
    pipe_signal(c.to);
    CU_ASSERT(child_end(&c));
    scene_detach(&sc);
}

const char test_suite[] = "clients on a GPU with pages in host memory";
const struct test_case test_cases[] = {
    TEST(test_both_ways), TEST(test_full_arena),  TEST(test_lost_gpu),
    TEST(test_killed),    TEST(test_lost_daemon), TEST_END,
};
