/*
 * Clients on a GPU and the daemon's pool there. One process prefills and publishes, another finds the pages
 * and attends to the same memory; one of the two dies, or both publish.
 */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/kvcobra-gpu.h"
#include "client/connection/client.h"
#include "tests/e2e/client_gpu_fixture.h"
#include "tests/lib/test.h"
#include "tests/lib/wait.h"

/* ---- two processes, one memory ---- */

/* Publishes the prompt, attends for its last token, and stays until the parent releases it. */
static bool publisher(const struct scene *sc, int from_parent, int to_parent)
{
    struct embedded m = gpu_scene_client(sc);
    kvc_usage u = {.struct_bytes = sizeof(u)};
    unsigned long inodes[8] = {0};
    kvc_seq *s = NULL;
    size_t published = 0, n;
    float *out;

    m.client->connection.items_per_message = 2; /* several batches, the first of which has the sinks */
    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m.model, NULL, 0, &s), 0);
    CU_ASSERT_EQUAL_FATAL(gpu_publish(&m, s, 0, 0, GPU_PROMPT, 200, &published), 0);
    CU_ASSERT_EQUAL(published, GPU_SHARED);
    CU_ASSERT_EQUAL(kvc_seq_get_usage(s, &u), 0);
    CU_ASSERT_EQUAL(u.shared_bytes, u.code_bytes + u.padding_bytes + u.header_bytes + u.sink_bytes);
    CU_ASSERT(gpu_is_like_cpu(sc, &m, s, 0, GPU_SHARED));
    CU_ASSERT_EQUAL(kvc_client_synchronize(m.client), 0);
    out = gpu_attend(&m, s, 0);
    pipe_send(to_parent, out, scene_attend_floats(&m) * sizeof(*out));
    n = gpu_inodes(getpid(), inodes, 8);
    CU_ASSERT_EQUAL(n, gpu_is_real() ? 0 : 1);
    pipe_send(to_parent, inodes, sizeof(*inodes));
    free(out);
    (void) pipe_wait(from_parent);
    embedded_free(&m);
    return true;
}

/*
 * Finds the prompt, computes the rest of it, and attends for its last token, before and
 * after the publisher's end.
 */
static bool finder(const struct scene *sc, int from_parent, int to_parent)
{
    struct embedded m = gpu_scene_client(sc);
    uint32_t *tokens = scene_tokens(0, GPU_PROMPT);
    unsigned long inodes[8] = {0};
    kvc_seq *s = NULL, *fork = NULL;
    size_t n = 0;
    float *out;

    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m.model, NULL, 0, &s), 0);
    CU_ASSERT_EQUAL_FATAL(kvc_seq_match(s, tokens, 65, &n), 0);
    CU_ASSERT_EQUAL(n, 64);
    CU_ASSERT_EQUAL_FATAL(kvc_seq_match(s, tokens, GPU_PROMPT, &n), 0); /* again: further chunks */
    CU_ASSERT_EQUAL_FATAL(n, GPU_SHARED);
    CU_ASSERT_EQUAL(kvc_seq_length(s), GPU_SHARED);
    CU_ASSERT(gpu_is_like_cpu(sc, &m, s, 0, GPU_SHARED)); /* not computed here */
    CU_ASSERT_EQUAL(gpu_append(&m, s, 0, GPU_SHARED, GPU_PROMPT - GPU_SHARED), 0);
    CU_ASSERT_EQUAL(gpu_inodes(getpid(), inodes, 8), gpu_is_real() ? 0 : 1);
    pipe_send(to_parent, inodes, sizeof(*inodes));
    out = gpu_attend(&m, s, 0);
    pipe_send(to_parent, out, scene_attend_floats(&m) * sizeof(*out));
    free(out);
    CU_ASSERT_EQUAL(kvc_seq_fork(s, &fork), 0);
    CU_ASSERT(pipe_wait(from_parent)); /* the publisher has ended */
    CU_ASSERT(gpu_is_like_cpu(sc, &m, s, 0, GPU_SHARED));
    s = kvc_seq_free(s);
    CU_ASSERT(gpu_is_like_cpu(sc, &m, fork, 0, GPU_SHARED)); /* fork and s hold the pages */
    free(tokens);
    embedded_free(&m);
    return true;
}

/* @die: the publisher is killed while it has leases and a stream. */
static void share(bool die)
{
    struct scene sc;
    struct child a, b;
    unsigned long inode_a, inode_b;
    float *of_a, *of_b;
    size_t bytes;

    gpu_scene_start(&sc, 1);
    bytes = (size_t) sc.g.n_layers * sc.g.n_heads * sc.g.d * sizeof(float);
    of_a = malloc(bytes);
    of_b = malloc(bytes);
    a = child_start(publisher, &sc);
    pipe_receive(a.from, of_a, bytes);
    pipe_receive(a.from, &inode_a, sizeof(inode_a));
    b = child_start(finder, &sc);
    pipe_receive(b.from, &inode_b, sizeof(inode_b));
    pipe_receive(b.from, of_b, bytes);
    CU_ASSERT_EQUAL(memcmp(of_a, of_b, bytes), 0); /* the same codes, the same exact tail, the same kernel */
    CU_ASSERT_EQUAL(inode_a, inode_b);
    if (die) {
        child_kill(&a);
    } else {
        pipe_signal(a.to);
        CU_ASSERT(child_end(&a));
    }
    pipe_signal(b.to);
    CU_ASSERT(child_end(&b));
    /* a killed process: when the driver does not list it and the delay is over */
    CU_ASSERT(scene_wait(&sc, gpu_nothing_held));
    free(of_a);
    free(of_b);
    scene_end(&sc);
}

static void test_shared_prefix(void)
{
    share(false);
}

static void test_publisher_is_killed(void)
{
    share(true);
}

/* Two processes publish the same text: both then use the pages of the first. */
static bool same_text(const struct scene *sc, int from_parent, int to_parent)
{
    struct embedded m = gpu_scene_client(sc);
    kvc_seq *s = NULL, *fork = NULL;
    uint32_t *tokens = scene_tokens(3, GPU_PROMPT);
    size_t n = 0;

    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m.model, NULL, 0, &s), 0);
    CU_ASSERT_EQUAL_FATAL(gpu_append(&m, s, 3, 0, GPU_PROMPT), 0);
    CU_ASSERT_EQUAL(kvc_seq_fork(s, &fork), 0);
    pipe_signal(to_parent);
    CU_ASSERT(pipe_wait(from_parent));
    CU_ASSERT_EQUAL(kvc_seq_commit(s, tokens, GPU_PROMPT, &n), 0);
    CU_ASSERT_EQUAL(n, GPU_SHARED);
    /* its own private pages of the same chunks */
    CU_ASSERT_EQUAL(kvc_seq_commit(fork, tokens, GPU_PROMPT, &n), 0);
    CU_ASSERT_EQUAL(n, GPU_SHARED);
    CU_ASSERT(gpu_is_like_cpu(sc, &m, s, 3, GPU_SHARED));
    CU_ASSERT(gpu_is_like_cpu(sc, &m, fork, 3, GPU_SHARED));
    pipe_signal(to_parent);
    CU_ASSERT(pipe_wait(from_parent));
    free(tokens);
    embedded_free(&m);
    return true;
}

static void test_same_text_twice(void)
{
    struct scene sc;
    struct child c[2];
    Kvcobra__StatusReply *status;

    gpu_scene_start(&sc, 1);
    for (size_t i = 0; i < 2; i++) {
        c[i] = child_start(same_text, &sc);
        CU_ASSERT_FATAL(pipe_wait(c[i].from));
    }
    for (size_t i = 0; i < 2; i++)
        pipe_signal(c[i].to);
    for (size_t i = 0; i < 2; i++)
        CU_ASSERT_FATAL(pipe_wait(c[i].from));
    status = scene_status(&sc);
    CU_ASSERT_EQUAL_FATAL(status->n_spaces, 1);
    CU_ASSERT_EQUAL(status->spaces[0]->pages, GPU_SHARED / KVC_CHUNK_TOKENS);
    status = scene_status_free(status);
    for (size_t i = 0; i < 2; i++) {
        pipe_signal(c[i].to);
        CU_ASSERT(child_end(&c[i]));
    }
    CU_ASSERT(scene_wait(&sc, gpu_nothing_held));
    scene_end(&sc);
}

/*
 * A table is activated while sequences of the earlier table live: these keep their table, and a new sequence
 * gets the kernels of the new table.
 */
static bool over_a_swap(const struct scene *sc, int from_parent, int to_parent)
{
    struct embedded m = gpu_scene_client(sc);
    uint32_t *tokens = scene_tokens(0, 2 * GPU_PROMPT);
    kvc_model_info info = {.struct_bytes = sizeof(info)};
    struct scene now = *sc;
    kvc_seq *old = NULL, *new = NULL, *same_text = NULL;
    size_t n = 0;

    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m.model, NULL, 0, &old), 0);
    CU_ASSERT_EQUAL(gpu_publish(&m, old, 0, 0, GPU_PROMPT, 200, &n), 0);
    pipe_signal(to_parent);
    CU_ASSERT_FATAL(pipe_wait(from_parent)); /* another table is active */
    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m.model, NULL, 0, &new), 0);
    CU_ASSERT_EQUAL(kvc_model_get_info(m.model, &info), 0);
    CU_ASSERT_EQUAL_FATAL(operator_fetch_table(m.client, info.table_digest, &now.bytes, &now.n_bytes, NULL),
                          0);
    CU_ASSERT(now.n_bytes != sc->n_bytes || memcmp(now.bytes, sc->bytes, sc->n_bytes) != 0);
    CU_ASSERT_EQUAL(gpu_publish(&m, new, 1, 0, GPU_PROMPT, 200, &n), 0);
    CU_ASSERT_EQUAL(n, GPU_SHARED);
    CU_ASSERT(gpu_is_like_cpu(&now, &m, new, 1, GPU_SHARED));
    CU_ASSERT_EQUAL(gpu_append(&m, old, 0, GPU_PROMPT, GPU_PROMPT), 0);
    CU_ASSERT_EQUAL(kvc_seq_commit(old, tokens, 2 * GPU_PROMPT, &n), 0);
    CU_ASSERT_EQUAL(n, 2 * GPU_PROMPT - KVC_RECENT_TOKENS);
    CU_ASSERT(gpu_is_like_cpu(sc, &m, old, 0, n));
    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m.model, NULL, 0, &same_text), 0);
    CU_ASSERT_EQUAL(kvc_seq_match(same_text, tokens, GPU_PROMPT, &n), 0);
    CU_ASSERT_EQUAL(n, 0); /* pages of the old table are not the new one's */
    free(now.bytes);
    free(tokens);
    embedded_free(&m);
    return true;
}

static void test_table_swap(void)
{
    uint8_t digest[KVC_DIGEST_BYTES];
    struct scene sc;
    struct child c;

    gpu_scene_start(&sc, 1);
    c = child_start(over_a_swap, &sc);
    CU_ASSERT_FATAL(pipe_wait(c.from));
    scene_activate(&sc, 2, 7, digest);
    pipe_signal(c.to);
    CU_ASSERT(child_end(&c));
    CU_ASSERT(scene_wait(&sc, gpu_nothing_held));
    scene_end(&sc);
}

/*
 * Without preallocated extents a commit waits for each new extent, even in the middle of its
 * pages, and publishes everything.
 */
static bool one_commit(const struct scene *sc, int from_parent, int to_parent)
{
    struct embedded m = gpu_scene_client(sc);
    /* 179 or 89 pages of 12 KiB: more than 2 MiB, more than 1 MiB */
    size_t text = gpu_is_real() ? 11520 : 5760, n = 0;
    uint32_t *tokens = scene_tokens(0, text);
    unsigned long inodes[8];
    kvc_seq *s = NULL;
    int r;

    (void) from_parent;
    (void) to_parent;
    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m.model, NULL, 0, &s), 0);
    CU_ASSERT_EQUAL(gpu_append(&m, s, 0, 0, text), 0);
    r = kvc_seq_commit(s, tokens, text, &n);
    for (struct wait w = wait_begin();
         (r == -EAGAIN || (r == 0 && n < text - KVC_RECENT_TOKENS)) && wait_again(&w);)
        r = kvc_seq_commit(s, tokens, text,
                           &n); /* the library waits for a limited time, and a busy machine may need longer */
    CU_ASSERT_EQUAL(r, 0);
    CU_ASSERT_EQUAL(n, text - KVC_RECENT_TOKENS);
    CU_ASSERT_EQUAL(gpu_inodes(getpid(), inodes, 8), gpu_is_real() ? 0 : 2);
    free(tokens);
    embedded_free(&m);
    return true;
}

static void test_extents_on_demand(void)
{
    struct scene sc;
    struct child c;

    gpu_scene_start(&sc, 0);
    c = child_start(one_commit, &sc);
    CU_ASSERT(child_end(&c));
    scene_end(&sc);
}

const char test_suite[] = "client_gpu";
/* A match without waiting, and one that is cancelled when its reply may have come. */
static bool fetcher(const struct scene *sc, int from_parent, int to_parent)
{
    struct embedded m = gpu_scene_client(sc);
    uint32_t *tokens = scene_tokens(0, GPU_PROMPT);
    kvc_seq *s = NULL, *found = NULL;
    kvc_fetch *f = NULL;
    size_t n = 0;
    int r;

    (void) from_parent;
    (void) to_parent;
    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m.model, NULL, 0, &s), 0);
    CU_ASSERT_EQUAL(gpu_publish(&m, s, 0, 0, GPU_PROMPT, 200, &n), 0);
    CU_ASSERT_EQUAL(n, GPU_SHARED);
    kvc_seq_free(s);
    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m.model, NULL, 0, &found), 0);
    for (unsigned i = 0; i < 2; i++) {
        CU_ASSERT_EQUAL_FATAL(kvc_fetch_start(found, tokens, GPU_PROMPT, 1, &f), 0);
        if (i == 0)
            f = kvc_fetch_free(f);
    }
    do {
        struct pollfd p = {.fd = kvc_fetch_fd(f), .events = POLLIN};

        CU_ASSERT_EQUAL_FATAL(poll(&p, 1, WAIT_LIMIT_S * 1000), 1);
        r = kvc_fetch_result(f, &n);
    } while (r == -EINPROGRESS);
    CU_ASSERT_EQUAL(r, 0);
    CU_ASSERT_EQUAL_FATAL(n, GPU_SHARED);
    kvc_fetch_free(f);
    CU_ASSERT(gpu_is_like_cpu(sc, &m, found, 0, GPU_SHARED));
    CU_ASSERT_EQUAL(gpu_append(&m, found, 0, GPU_SHARED, GPU_PROMPT - GPU_SHARED), 0);
    CU_ASSERT(gpu_is_like_cpu(sc, &m, found, 0, GPU_SHARED));
    free(tokens);
    embedded_free(&m);
    return true;
}

static void test_fetch(void)
{
    gpu_scene_run(fetcher);
}

const struct test_case test_cases[] = {
    TEST(test_shared_prefix),
    TEST(test_publisher_is_killed),
    TEST(test_same_text_twice),
    TEST(test_table_swap),
    TEST(test_extents_on_demand),
    TEST(test_fetch),
    TEST_END,
};
