/*
 * Clients on a GPU that register memory of their own with the daemon: pages of two processes in it, memory
 * that the daemon refuses, a second client in the owner's process, and readers when the owner ends. The pool
 * has extents of 2 MiB and none is preallocated, so pages lie in external memory first.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/kvcobra-gpu.h"
#include "client/connection/client.h"
#include "client/gpu/gpu.h"
#include "client/gpu/gpu_memory.h"
#include "client/sequence/seq.h"
#include "tests/e2e/client_gpu_fixture.h"
#include "tests/e2e/relay_fixture.h"
#include "tests/lib/random_table.h"
#include "tests/lib/test.h"
#include "tests/lib/wait.h"

enum { EXTENT = GPU_EXTERNAL_BYTES, PROMPT = GPU_PROMPT, SHARED = GPU_SHARED };

static void begin(struct scene *sc, const char *lend)
{
    struct gpu_args a;

    gpu_args_external(&a, lend);
    scene_start(sc, random_table_geometry(2, 4, 2, 64), 3, 1, a.args);
}

static bool expect(const struct embedded *m, int r, int want, const char *word)
{
    if (r == want && strstr(kvc_last_error(m->client), word))
        return true;
    printf("    %d instead of %d, or no \"%s\" in: %s\n", r, want, word, kvc_last_error(m->client));
    return false;
}

static uint32_t lent_extents(struct scene *sc)
{
    kvc_status *s = scene_status(sc);
    uint32_t n = 0;

    for (size_t i = 0; i < s->n_devices; i++)
        n += s->devices[i].lent_extents;
    s = kvc_status_free(s);
    return n;
}

static bool nothing_lent(const kvc_status *s)
{
    bool nothing = s->leases == 0 && s->sessions == 0;

    for (size_t i = 0; i < s->n_devices; i++)
        nothing = nothing && s->devices[i].lent_extents == 0 && s->devices[i].held_bytes == 0;
    return nothing;
}

/* ---- two processes, the memory of one ---- */

static void report(const struct embedded *m, kvc_seq *s, int to_parent)
{
    float *out = gpu_attend(m, s, 0);

    pipe_send(to_parent, out, scene_attend_floats(m) * sizeof(*out));
    free(out);
}

static bool lender(const struct scene *sc, int from_parent, int to_parent)
{
    struct embedded m = gpu_scene_client(sc);
    unsigned char first[4096], zeros[sizeof(first)] = {0};
    void *memory = gpu_engine_memory(&m, EXTENT);
    kvc_seq *s = NULL;
    size_t n = 0;

    CU_ASSERT_EQUAL_FATAL(kvc_client_lend(m.client, memory, EXTENT), 0);
    CU_ASSERT_EQUAL(gpu_read(m.client->gpu, first, (cu_ptr) (uintptr_t) memory + EXTENT - sizeof(first),
                             sizeof(first), NULL),
                    0);
    /* the earlier contents must not reach other clients */
    CU_ASSERT_EQUAL(memcmp(first, zeros, sizeof(first)), 0);
    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m.model, NULL, 0, &s), 0);
    CU_ASSERT_EQUAL_FATAL(gpu_publish(&m, s, 0, 0, PROMPT, 200, &n), 0);
    CU_ASSERT_EQUAL(n, SHARED);
    CU_ASSERT_EQUAL(gpu_n_extents(&m), 0); /* no extent of the daemon */
    for (size_t i = 0; i < SHARED / 64; i++)
        CU_ASSERT(s->pages[i]->device - (cu_ptr) (uintptr_t) memory < EXTENT);
    CU_ASSERT(gpu_is_like_cpu(sc, &m, s, 0, SHARED));
    report(&m, s, to_parent);
    if (pipe_wait(from_parent))
        embedded_free(&m); /* the engine may free the memory then */
    return true;
}

static bool reader(const struct scene *sc, int from_parent, int to_parent)
{
    struct embedded m = gpu_scene_client(sc);
    uint32_t *tokens = scene_tokens(0, PROMPT);
    kvc_seq *s = NULL, *own = NULL;
    size_t n = 0;

    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m.model, NULL, 0, &s), 0);
    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m.model, NULL, 0, &own), 0);
    CU_ASSERT_EQUAL_FATAL(kvc_seq_match(s, tokens, PROMPT, &n), 0);
    CU_ASSERT_EQUAL_FATAL(n, SHARED);
    CU_ASSERT(gpu_is_like_cpu(sc, &m, s, 0, SHARED)); /* not computed here */
    CU_ASSERT_EQUAL(gpu_append(&m, s, 0, SHARED, PROMPT - SHARED), 0);
    report(&m, s, to_parent);
    CU_ASSERT_EQUAL(gpu_publish(&m, own, 1, 0, PROMPT, PROMPT, &n), 0); /* into the external memory */
    CU_ASSERT_EQUAL(n, SHARED);
    CU_ASSERT_EQUAL(gpu_n_extents(&m), 0);
    CU_ASSERT(gpu_is_like_cpu(sc, &m, own, 1, SHARED));
    pipe_signal(to_parent);
    (void) pipe_wait(from_parent); /* the owner has ended */
    s = kvc_seq_free(s);
    CU_ASSERT_EQUAL(kvc_seq_truncate(own, 0, &n), 0);
    CU_ASSERT_EQUAL(gpu_append(&m, own, 2, 0, PROMPT), 0); /* the client works */
    CU_ASSERT(gpu_is_like_cpu(sc, &m, own, 2, 0));         /* appended as one piece, so all of it is exact */
    free(tokens);
    embedded_free(&m);
    return true;
}

/* Finds no page of the process that has ended, and publishes the text again. */
static bool newcomer(const struct scene *sc, int from_parent, int to_parent)
{
    struct embedded m = gpu_scene_client(sc);
    uint32_t *tokens = scene_tokens(0, PROMPT);
    kvc_seq *s = NULL;
    size_t n = 7;
    int r = -EAGAIN;

    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m.model, NULL, 0, &s), 0);
    CU_ASSERT_EQUAL(kvc_seq_match(s, tokens, PROMPT, &n), 0);
    CU_ASSERT_EQUAL(n, 0);
    CU_ASSERT_EQUAL(gpu_append(&m, s, 0, 0, PROMPT), 0);
    /* another process holds the pages of the external memory */
    CU_ASSERT_EQUAL(kvc_seq_commit(s, tokens, PROMPT, &n), -EAGAIN);
    pipe_signal(to_parent);
    CU_ASSERT(pipe_wait(from_parent));
    for (struct wait w = wait_begin(); r == -EAGAIN && wait_again(&w);) /* an extent is being created */
        r = kvc_seq_commit(s, tokens, PROMPT, &n);
    CU_ASSERT_EQUAL(n, SHARED);
    CU_ASSERT_EQUAL(gpu_n_extents(&m), 1);
    CU_ASSERT(gpu_is_like_cpu(sc, &m, s, 0, SHARED));
    free(tokens);
    embedded_free(&m);
    return true;
}

/* @die: the owner is killed; else it frees its client. Other processes hold pages in its memory. */
static void owner_ends(bool die)
{
    struct scene sc;
    struct child a, b, c;
    float *of_a, *of_b;
    size_t bytes;

    begin(&sc, "--gpu-lend=yes");
    bytes = (size_t) sc.g.n_layers * sc.g.n_heads * sc.g.d * sizeof(float);
    of_a = malloc(bytes);
    of_b = malloc(bytes);
    a = child_start(lender, &sc);
    pipe_receive(a.from, of_a, bytes);
    CU_ASSERT_EQUAL(lent_extents(&sc), 1);
    b = child_start(reader, &sc);
    pipe_receive(b.from, of_b, bytes);
    CU_ASSERT_EQUAL(memcmp(of_a, of_b, bytes), 0); /* the same codes, the same exact tail, the same kernel */
    CU_ASSERT_FATAL(pipe_wait(b.from));
    if (die) {
        child_kill(&a);
    } else {
        pipe_signal(a.to);
        CU_ASSERT(child_end(&a));
    }
    c = child_start(newcomer, &sc);
    CU_ASSERT_FATAL(pipe_wait(c.from));
    CU_ASSERT_EQUAL(lent_extents(&sc), 1); /* listed until no process holds pages there */
    pipe_signal(b.to);
    CU_ASSERT(child_end(&b));
    pipe_signal(c.to);
    CU_ASSERT(child_end(&c));
    CU_ASSERT(scene_wait(&sc, nothing_lent));
    free(of_a);
    free(of_b);
    scene_end(&sc);
}

static void test_owner_frees_its_client(void)
{
    owner_ends(false);
}

static void test_owner_is_killed(void)
{
    owner_ends(true);
}

/* ---- memory that is refused ---- */

static bool is_refused(const struct scene *sc, int from_parent, int to_parent)
{
    struct embedded m = gpu_scene_client(sc), alone = gpu_scene_private(sc), cpu = scene_private(sc);
    struct gpu *g = m.client->gpu;
    struct cuda_extent *mapped = NULL;
    void *vmm;
    unsigned char *memory = gpu_engine_memory(&m, EXTENT), *large = gpu_engine_memory(&m, 2 * EXTENT);
    unsigned char *small = gpu_engine_memory(&m, EXTENT / 2);
    int fd = -1;

    (void) from_parent;
    (void) to_parent;
    CU_ASSERT_EQUAL(kvc_client_lend(NULL, memory, EXTENT), -EINVAL);
    CU_ASSERT(expect(&cpu, kvc_client_lend(cpu.client, memory, EXTENT), -EINVAL, "no GPU"));
    CU_ASSERT(expect(&alone, kvc_client_lend(alone.client, memory, EXTENT), -ENOTCONN, "kvc_client_connect"));
    CU_ASSERT(expect(&m, kvc_client_lend(m.client, NULL, EXTENT), -EINVAL, "NULL"));
    CU_ASSERT(expect(&m, kvc_client_lend(m.client, memory, EXTENT - 4096), -EINVAL, "2097152"));
    CU_ASSERT(expect(&m, kvc_client_lend(m.client, large, 2 * EXTENT), -EINVAL, "2097152"));
    CU_ASSERT(expect(&m, kvc_client_lend(m.client, large, EXTENT), -EINVAL, "whole"));
    CU_ASSERT(expect(&m, kvc_client_lend(m.client, large + EXTENT, EXTENT), -EINVAL, "at offset"));
    CU_ASSERT(expect(&m, kvc_client_lend(m.client, small, EXTENT), -EINVAL, "whole"));
    CU_ASSERT(expect(&m, kvc_client_lend(m.client, &m, EXTENT), -EINVAL, "no GPU memory"));
    CU_ASSERT_EQUAL_FATAL(cuda_extent_new(g->space, EXTENT, &fd, NULL), 0);
    CU_ASSERT_EQUAL_FATAL(cuda_extent_import(g->space, fd, EXTENT, CU_ACCESS_READ_WRITE, &mapped, NULL), 0);
    vmm = (void *) (uintptr_t) cuda_extent_address(mapped);
    CU_ASSERT(expect(&m, kvc_client_lend(m.client, vmm, EXTENT), -EINVAL, "cudaMalloc"));
    mapped = cuda_extent_free(mapped);
    CU_ASSERT_EQUAL(kvc_client_lend(m.client, memory, EXTENT), 0);
    CU_ASSERT(expect(&m, kvc_client_lend(m.client, memory, EXTENT), -EEXIST, "already"));
    for (unsigned i = 1; i < 4; i++)
        CU_ASSERT_EQUAL(kvc_client_lend(m.client, gpu_engine_memory(&m, EXTENT), EXTENT), 0);
    memory = gpu_engine_memory(&m, EXTENT);
    CU_ASSERT(expect(&m, kvc_client_lend(m.client, memory, EXTENT), -ENOSPC, "--gpu-pool-bytes"));
    /* -ENOSPC, not -EEXIST: it was never registered */
    CU_ASSERT(expect(&m, kvc_client_lend(m.client, memory, EXTENT), -ENOSPC, "--gpu-pool-bytes"));
    embedded_free(&m);
    embedded_free(&alone);
    embedded_free(&cpu);
    return true;
}

/*
 * A driver without the attribute, and one without the handles: the error has a sentence,
 * and the client works.
 */
static bool is_unsupported(const struct scene *sc, int from_parent, int to_parent)
{
    static const char *const calls[] = {"cuPointerGetAttribute:1:1", "cuIpcGetMemHandle:1:801",
                                        "cuMemGetAddressRange_v2:1:1"};

    (void) from_parent;
    (void) to_parent;
    for (size_t i = 0; i < 3; i++) {
        struct embedded m;
        kvc_seq *s = NULL;
        size_t n = 0;

        CU_ASSERT_EQUAL(setenv("STANDIN_FAIL", calls[i], 1), 0);
        m = gpu_scene_client(sc);
        CU_ASSERT(expect(&m, kvc_client_lend(m.client, gpu_engine_memory(&m, EXTENT), EXTENT),
                         i == 1 ? -EOPNOTSUPP : -EINVAL, "GPU memory"));
        CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m.model, NULL, 0, &s), 0);
        CU_ASSERT_EQUAL(gpu_publish(&m, s, 0, 0, PROMPT, PROMPT, &n), 0);
        CU_ASSERT_EQUAL(n, SHARED);
        embedded_free(&m);
    }
    return true;
}

static bool is_not_taken(const struct scene *sc, int from_parent, int to_parent)
{
    struct embedded m = gpu_scene_client(sc);

    (void) from_parent;
    (void) to_parent;
    CU_ASSERT(expect(&m, kvc_client_lend(m.client, gpu_engine_memory(&m, EXTENT), EXTENT), -EOPNOTSUPP,
                     "gpu-lend"));
    embedded_free(&m);
    return true;
}

static void in_child(const char *option, bool (*run)(const struct scene *sc, int from_parent, int to_parent))
{
    struct scene sc;
    struct child c;

    begin(&sc, option);
    c = child_start(run, &sc);
    CU_ASSERT(child_end(&c));
    CU_ASSERT(scene_wait(&sc, nothing_lent));
    scene_end(&sc);
}

static void test_refusals(void)
{
    in_child("--gpu-lend=yes", is_refused);
}

static void test_drivers_without_handles(void)
{
    if (gpu_is_real()) /* it has all pages */
        return;
    in_child("--gpu-lend=yes", is_unsupported);
}

static void test_daemon_without_external_memory(void)
{
    in_child("--gpu-lend=no", is_not_taken);
}

/* ---- two clients of one process ---- */

/*
 * The driver cannot open a handle in the process that made it: the other client there
 * works without these pages.
 */
static bool neighbours(const struct scene *sc, int from_parent, int to_parent)
{
    struct embedded m = gpu_scene_client(sc), other = gpu_scene_client(sc);
    uint32_t *tokens = scene_tokens(0, PROMPT);
    kvc_client_info i = {.struct_bytes = sizeof(i)};
    kvc_seq *s = NULL, *t = NULL, *u = NULL;
    size_t n = 7;

    (void) from_parent;
    (void) to_parent;
    CU_ASSERT_EQUAL_FATAL(kvc_client_lend(m.client, gpu_engine_memory(&m, EXTENT), EXTENT), 0);
    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m.model, NULL, 0, &s), 0);
    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(other.model, NULL, 0, &t), 0);
    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(other.model, NULL, 0, &u), 0);
    CU_ASSERT_EQUAL(gpu_publish(&m, s, 0, 0, PROMPT, PROMPT, &n), 0);
    CU_ASSERT_EQUAL(n, SHARED);
    CU_ASSERT_EQUAL(kvc_seq_match(t, tokens, PROMPT, &n), 0); /* a miss */
    CU_ASSERT_EQUAL(n, 0);
    CU_ASSERT_EQUAL(gpu_append(&other, t, 0, 0, PROMPT), 0);
    CU_ASSERT(
        expect(&other, kvc_seq_commit(t, tokens, PROMPT, &n), -EXDEV, "another client of this process"));
    CU_ASSERT(gpu_is_like_cpu(sc, &other, t, 0, SHARED));
    CU_ASSERT_EQUAL(gpu_publish(&other, u, 1, 0, PROMPT, PROMPT, &n), 0); /* elsewhere */
    CU_ASSERT_EQUAL(n, SHARED);
    CU_ASSERT_EQUAL(gpu_n_extents(&other), 1);
    CU_ASSERT(gpu_is_like_cpu(sc, &other, u, 1, SHARED));
    CU_ASSERT_EQUAL(kvc_client_get_info(other.client, &i), 0);
    CU_ASSERT(i.connected && i.n_reconnects == 0);
    free(tokens);
    embedded_free(&m);
    embedded_free(&other);
    return true;
}

static void test_two_clients_of_a_process(void)
{
    in_child("--gpu-lend=yes", neighbours);
}

/* ---- a daemon that is wrong about a client's own memory ---- */

static void add_bytes(void *ctx, Kvcobra__Request__BodyCase about, Kvcobra__Reply *m)
{
    (void) ctx;
    if (about == KVCOBRA__REQUEST__BODY_GET_EXTENT && m->err == 0)
        m->get_extent->bytes += EXTENT;
}

/* The client uses its own memory by the address: with another size it would write beyond the end. */
static bool misled(const struct scene *sc, int from_parent, int to_parent)
{
    struct scene behind = *sc;
    uint32_t *tokens = scene_tokens(0, PROMPT);
    kvc_seq *s = NULL;
    struct embedded m;
    struct relay relay;
    size_t n = 7;

    (void) from_parent;
    (void) to_parent;
    relay_start(&relay, sc->daemon.socket, NULL, add_bytes, NULL);
    (void) strcpy(behind.daemon.socket, relay.path);
    m = gpu_scene_client(&behind);
    CU_ASSERT_EQUAL_FATAL(kvc_client_lend(m.client, gpu_engine_memory(&m, EXTENT), EXTENT), 0);
    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m.model, NULL, 0, &s), 0);
    CU_ASSERT_EQUAL(gpu_append(&m, s, 0, 0, PROMPT), 0);
    CU_ASSERT(expect(&m, kvc_seq_commit(s, tokens, PROMPT, &n), -EPROTO, "in memory of this client"));
    CU_ASSERT_EQUAL(n, 7);
    CU_ASSERT(gpu_is_like_cpu(sc, &m, s, 0, SHARED));
    embedded_free(&m);
    relay_stop(&relay);
    free(tokens);
    return true;
}

static void test_own_memory_of_another_size(void)
{
    in_child("--gpu-lend=yes", misled);
}

const char test_suite[] = "client_gpu_external_memory";
const struct test_case test_cases[] = {
    TEST(test_owner_frees_its_client),
    TEST(test_owner_is_killed),
    TEST(test_refusals),
    TEST(test_drivers_without_handles),
    TEST(test_daemon_without_external_memory),
    TEST(test_two_clients_of_a_process),
    TEST(test_own_memory_of_another_size),
    TEST_END,
};
