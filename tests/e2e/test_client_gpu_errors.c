/* Errors of clients on a GPU: each has a code and a sentence, and everything else continues. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/kvcobra-gpu.h"
#include "client/connection/client.h"
#include "client/gpu/gpu.h"
#include "client/gpu/gpu_memory.h"
#include "gpu/cuda/abi.h"
#include "tests/e2e/client_gpu_fixture.h"
#include "tests/lib/random_table.h"
#include "tests/lib/test.h"

/* A number that is not finite ends the publishing of this sequence only, until a truncation removes it. */
static bool bad_numbers(const struct scene *sc, int from_parent, int to_parent)
{
    struct embedded m = gpu_scene_client(sc);
    uint32_t *tokens = scene_tokens(0, GPU_PROMPT);
    size_t floats = m.n_heads * m.g.d, n = 0, kept = 0;
    float *bad = calloc(floats, sizeof(*bad));
    kvc_seq *s = NULL, *other = NULL;
    struct gpu_memory k = {0};
    struct errmsg e = {""};

    (void) from_parent;
    (void) to_parent;
    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m.model, NULL, 0, &s), 0);
    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m.model, NULL, 0, &other), 0);
    CU_ASSERT_EQUAL(gpu_append(&m, s, 0, 0, GPU_PROMPT - 1), 0);
    CU_ASSERT_EQUAL(kvc_client_synchronize(m.client), 0);
    bad[7] = (float) NAN;
    CU_ASSERT_EQUAL_FATAL(gpu_alloc(m.client->gpu, floats * sizeof(*bad), &k, &e), 0);
    CU_ASSERT_EQUAL(gpu_write(m.client->gpu, k.at, bad, floats * sizeof(*bad), &e), 0);
    for (uint32_t layer = 0; layer < m.g.n_layers; layer++) /* the call returns when the work is queued */
        CU_ASSERT_EQUAL(
            kvc_seq_append(s, layer, KVC_F32, (void *) (uintptr_t) k.at, (void *) (uintptr_t) k.at, 1), 0);
    CU_ASSERT_EQUAL(kvc_seq_commit(s, tokens, GPU_PROMPT, &n), -EINVAL);
    CU_ASSERT_PTR_NOT_NULL(strstr(kvc_last_error(m.client), "511"));
    CU_ASSERT_EQUAL(kvc_client_synchronize(m.client), -EINVAL);
    CU_ASSERT_EQUAL(kvc_seq_match(other, tokens, GPU_PROMPT, &n), 0);
    CU_ASSERT_EQUAL(n, 0); /* no page was published */
    CU_ASSERT_EQUAL(gpu_publish(&m, other, 1, 0, GPU_PROMPT, GPU_PROMPT, &n), 0);
    CU_ASSERT_EQUAL(n, GPU_SHARED);
    CU_ASSERT_EQUAL(kvc_seq_truncate(s, GPU_PROMPT - 1, &kept), 0);
    CU_ASSERT_EQUAL(kept, GPU_PROMPT - 1);
    CU_ASSERT_EQUAL(gpu_append(&m, s, 0, GPU_PROMPT - 1, 1), 0);
    CU_ASSERT_EQUAL(kvc_seq_commit(s, tokens, GPU_PROMPT, &n), 0);
    CU_ASSERT_EQUAL(n, GPU_SHARED);
    CU_ASSERT(gpu_is_like_cpu(sc, &m, s, 0, GPU_SHARED));
    gpu_free(m.client->gpu, &k);
    free(bad);
    free(tokens);
    embedded_free(&m);
    return true;
}

static void test_bad_numbers(void)
{
    gpu_scene_run(bad_numbers);
}

/* The pool takes the pages for which it has room; the others stay private and are right. */
static bool full_pool(const struct scene *sc, int from_parent, int to_parent)
{
    struct embedded m = gpu_scene_client(sc);
    kvc_seq *seqs[64] = {NULL};
    size_t n = 0, i, last = 0;
    uint32_t *tokens;
    int r = 0;

    (void) from_parent;
    (void) to_parent;
    for (i = 0; i < 64 && r == 0; i++) {
        CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m.model, NULL, 0, &seqs[i]), 0);
        n = 0;
        CU_ASSERT_EQUAL_FATAL(gpu_append(&m, seqs[i], (uint32_t) i, 0, GPU_PROMPT), 0);
        tokens = scene_tokens((uint32_t) i, GPU_PROMPT);
        r = kvc_seq_commit(seqs[i], tokens, GPU_PROMPT, &n);
        free(tokens);
        last = i;
    }
    CU_ASSERT(r == -ENOSPC || r == -ENOMEM);
    CU_ASSERT(last > 1);
    CU_ASSERT(gpu_is_like_cpu(sc, &m, seqs[last], (uint32_t) last, GPU_SHARED));
    CU_ASSERT(gpu_is_like_cpu(sc, &m, seqs[last - 1], (uint32_t) last - 1, GPU_SHARED));
    embedded_free(&m);
    return true;
}

static void test_full_pool(void)
{
    gpu_scene_run(full_pool);
}

/*
 * Lowers the limit to the open descriptors, so that no new one is possible until the limit is raised again.
 */
static struct rlimit no_descriptors(void)
{
    struct rlimit before, now;
    int lowest = dup(0);

    CU_ASSERT_EQUAL_FATAL(getrlimit(RLIMIT_NOFILE, &before), 0);
    (void) close(lowest);
    now = (struct rlimit){.rlim_cur = (rlim_t) lowest, .rlim_max = before.rlim_max};
    CU_ASSERT_EQUAL_FATAL(setrlimit(RLIMIT_NOFILE, &now), 0);
    CU_ASSERT_EQUAL(dup(0), -1);
    return before;
}

/*
 * Without a descriptor neither publishing nor matching maps an extent. No page stays reserved or held, and
 * the connection stays.
 */
static bool out_of_descriptors(const struct scene *sc, int from_parent, int to_parent)
{
    struct embedded m = gpu_scene_client(sc), other = gpu_scene_client(sc);
    uint32_t *tokens = scene_tokens(0, GPU_PROMPT);
    kvc_client_info i = {.struct_bytes = sizeof(i)};
    kvc_seq *s = NULL, *found = NULL;
    struct rlimit before;
    size_t n = 7;

    (void) from_parent;
    (void) to_parent;
    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m.model, NULL, 0, &s), 0);
    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(other.model, NULL, 0, &found), 0);
    CU_ASSERT_EQUAL(gpu_append(&m, s, 0, 0, GPU_PROMPT), 0);
    before = no_descriptors();
    CU_ASSERT_EQUAL(kvc_seq_commit(s, tokens, GPU_PROMPT, &n), -EMFILE);
    CU_ASSERT_PTR_NOT_NULL(strstr(kvc_last_error(m.client), "RLIMIT_NOFILE"));
    CU_ASSERT_EQUAL(n, 7);
    CU_ASSERT_EQUAL(setrlimit(RLIMIT_NOFILE, &before), 0);
    CU_ASSERT(gpu_is_like_cpu(sc, &m, s, 0, GPU_SHARED));
    CU_ASSERT_EQUAL(kvc_seq_commit(s, tokens, GPU_PROMPT, &n), 0);
    CU_ASSERT_EQUAL(n, GPU_SHARED);
    n = 7;
    before = no_descriptors();
    CU_ASSERT_EQUAL(kvc_seq_match(found, tokens, GPU_PROMPT, &n), -EMFILE);
    CU_ASSERT_EQUAL(n, 7);
    CU_ASSERT_EQUAL(setrlimit(RLIMIT_NOFILE, &before), 0);
    CU_ASSERT_EQUAL(kvc_seq_match(found, tokens, GPU_PROMPT, &n), 0);
    CU_ASSERT_EQUAL(n, GPU_SHARED);
    CU_ASSERT_EQUAL(kvc_client_get_info(other.client, &i), 0);
    CU_ASSERT(i.connected && i.n_reconnects == 0);
    free(tokens);
    embedded_free(&m);
    embedded_free(&other);
    return true;
}

static void test_out_of_descriptors(void)
{
    gpu_scene_run(out_of_descriptors);
}

/* ---- loss ---- */

/*
 * The device is lost while pages are held: every call returns it as an error, freeing
 * works, other clients continue.
 */
static bool loses_gpu(const struct scene *sc, int from_parent, int to_parent)
{
    struct embedded m;
    uint32_t *tokens = scene_tokens(0, GPU_PROMPT);
    kvc_client_info i = {.struct_bytes = sizeof(i)};
    char setting[64], first[ERRMSG_BYTES];
    kvc_seq *s = NULL, *other = NULL;
    size_t n = 0;

    (void) from_parent;
    (void) to_parent;
    (void) snprintf(setting, sizeof(setting), "cuMemcpyDtoDAsync_v2:1:%d", CU_ILLEGAL_ADDRESS);
    CU_ASSERT_EQUAL(setenv("STANDIN_FAIL", setting, 1), 0);
    m = gpu_scene_client(sc);
    CU_ASSERT_EQUAL(unsetenv("STANDIN_FAIL"), 0);
    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m.model, NULL, 0, &s), 0);
    CU_ASSERT_EQUAL(gpu_append(&m, s, 0, 0, GPU_PROMPT), 0);
    CU_ASSERT_EQUAL(kvc_seq_commit(s, tokens, GPU_PROMPT, &n), -EIO);
    (void) snprintf(first, sizeof(first), "%s", kvc_last_error(m.client));
    CU_ASSERT_PTR_NOT_NULL(strstr(first, "GPU"));
    CU_ASSERT_EQUAL(kvc_seq_commit(s, tokens, GPU_PROMPT, &n), -EIO);
    CU_ASSERT_EQUAL(kvc_seq_attend(s, 0, NULL, 1, NULL), -EIO);
    CU_ASSERT_EQUAL(kvc_client_synchronize(m.client), -EIO);
    CU_ASSERT_PTR_NOT_NULL(strstr(kvc_last_error(m.client), "has lost its GPU"));
    CU_ASSERT_EQUAL(kvc_seq_new(m.model, NULL, 0, &other), -EIO);
    CU_ASSERT_EQUAL(kvc_client_get_info(m.client, &i), -EIO);
    s = kvc_seq_free(s);
    embedded_free(&m);
    free(tokens);
    return true;
}

static void test_gpu_is_lost(void)
{
    if (gpu_is_real()) {
        test_skip("a real GPU cannot be made to fail");
        return;
    }
    gpu_scene_run(loses_gpu);
}

/* ---- refused calls ---- */

static bool misuse(const struct scene *sc, int from_parent, int to_parent)
{
    kvc_gpu_options o = {.struct_bytes = sizeof(o)};
    struct embedded cpu = scene_client(sc), gpu = gpu_scene_client(sc);
    kvc_client *unknown = NULL;
    pid_t child;
    int r;

    (void) from_parent;
    (void) to_parent;
    CU_ASSERT_EQUAL(kvc_client_set_gpu(cpu.client, &o), -EBUSY);
    CU_ASSERT_EQUAL(kvc_client_set_gpu(gpu.client, &o), -EBUSY);
    CU_ASSERT_EQUAL(kvc_client_set_gpu(gpu.client, NULL), -EINVAL);
    CU_ASSERT_EQUAL(kvc_client_set_stream(cpu.client, NULL), -EINVAL);
    CU_ASSERT_EQUAL(kvc_client_synchronize(cpu.client), -EINVAL);
    CU_ASSERT_EQUAL(kvc_client_synchronize(NULL), -EINVAL);
    CU_ASSERT_EQUAL_FATAL(kvc_client_new(&unknown), 0);
    o.uuid = "GPU-01234567-0123-0123-0123-0123456789ab";
    CU_ASSERT_EQUAL(kvc_client_set_gpu(unknown, &o), -ENODEV);
    o.struct_bytes = 3;
    CU_ASSERT_EQUAL(kvc_client_set_gpu(unknown, &o), -EINVAL);
    CU_ASSERT_EQUAL(kvc_client_connect(unknown, sc->daemon.socket), 0); /* it stays a client of the CPU */
    unknown = kvc_client_free(unknown);
    child = fork();
    if (child == 0) { /* the driver does not survive a fork, so no call may use it */
        r = kvc_client_synchronize(gpu.client) == -ECHILD &&
            kvc_client_set_stream(gpu.client, NULL) == -ECHILD;
        (void) kvc_client_free(gpu.client);
        _exit(r ? 0 : 1);
    }
    CU_ASSERT_EQUAL(waitpid(child, &r, 0), child);
    CU_ASSERT(WIFEXITED(r) && WEXITSTATUS(r) == 0);
    CU_ASSERT_EQUAL(kvc_client_synchronize(gpu.client), 0);
    embedded_free(&cpu);
    embedded_free(&gpu);
    return true;
}

static void test_misuse(void)
{
    gpu_scene_run(misuse);
}

/* A daemon without GPUs: the error has a sentence, and the client's sequences stay private on its GPU. */
static bool no_pool_there(const struct scene *sc, int from_parent, int to_parent)
{
    struct embedded m = gpu_scene_private(sc);
    kvc_seq *s = NULL;
    size_t n = 1;

    (void) from_parent;
    (void) to_parent;
    CU_ASSERT_EQUAL(kvc_client_connect(m.client, sc->daemon.socket), -ENODEV);
    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m.model, NULL, 0, &s), 0);
    CU_ASSERT_EQUAL(gpu_publish(&m, s, 0, 0, GPU_PROMPT, 200, &n), 0);
    CU_ASSERT_EQUAL(n, 0);
    CU_ASSERT(gpu_is_like_cpu(sc, &m, s, 0, GPU_SHARED));
    embedded_free(&m);
    return true;
}

static void test_daemon_without_gpus(void)
{
    struct scene sc;
    struct child c;

    scene_start(&sc, random_table_geometry(2, 4, 2, 64), 3, 1, NULL);
    c = child_start(no_pool_there, &sc);
    CU_ASSERT(child_end(&c));
    scene_end(&sc);
}

const char test_suite[] = "client_gpu_errors";
const struct test_case test_cases[] = {
    TEST(test_bad_numbers),
    TEST(test_full_pool),
    TEST(test_out_of_descriptors),
    TEST(test_gpu_is_lost),
    TEST(test_misuse),
    TEST(test_daemon_without_gpus),
    TEST_END,
};
