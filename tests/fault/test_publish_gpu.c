/*
 * Publishing from a GPU while every allocation of the host or call of the driver fails once, or the GPU
 * is lost in it: an errno and a sentence, a later commit publishes, all objects of the driver are freed.
 * The daemon is tests/unit/client/hostile_peer.c with correct replies, the driver the stand-in, whose
 * calls fail as STANDIN_FAIL selects.
 */
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/kvcobra-gpu.h"
#include "client/connection/client.h"
#include "client/gpu/gpu.h"
#include "client/gpu/gpu_memory.h"
#include "client/sequence/seq.h"
#include "tests/fault/fault.h"
#include "tests/lib/test.h"
#include "tests/standin/libcuda.h"
#include "tests/unit/client/hostile_peer.h"

enum { TEXT = 129, NTH_MAX = 200 }; /* one chunk is published */

/* A daemon that serves one connection, and the vectors that its client appends. */
struct daemon_case {
    struct embedded m;
    struct peer *peer;
    pid_t pid;
    char dir[32], path[64];
    float *x;
    size_t bytes;
};

static void daemon_case_init(struct daemon_case *w)
{
    int listener;

    *w = (struct daemon_case){.m = embedded_new(1, 2, 1, 32, 3, 0, 0), .dir = "/tmp/kvcobra-test-XXXXXX"};
    w->bytes = TEXT * (size_t) w->m.g.d * sizeof(float);
    w->x = embedded_input(&w->m, 5, 0, KVC_K, 0, TEXT);
    w->peer = calloc(1, sizeof(*w->peer));
    CU_ASSERT_PTR_NOT_NULL_FATAL(w->peer);
    peer_init(w->peer, &w->m, GPU_CORRECT);
    listener = peer_listen(w->dir, w->path, sizeof(w->path));
    w->pid = fork();
    if (w->pid == 0)
        peer_serve(listener, w->peer);
    (void) close(listener); /* connecting again fails at once */
}

static void daemon_case_deinit(struct daemon_case *w)
{
    int status;

    (void) kill(w->pid, SIGTERM);
    (void) waitpid(w->pid, &status, 0);
    (void) unlink(w->path);
    (void) rmdir(w->dir);
    free(w->peer);
    free(w->x);
    embedded_free(&w->m);
}

/* Prepares a new client up to a sequence with a chunk to publish. */
static int get_ready(const struct daemon_case *w, kvc_client *c, struct gpu_memory *on, kvc_seq **ret)
{
    const kvc_gpu_options o = {.struct_bytes = sizeof(o)};
    kvc_model_id id = embedded_id(&w->m);
    kvc_model *model = NULL;
    kvc_seq *s = NULL;
    int r = kvc_client_set_gpu(c, &o);

    if (r == 0)
        r = kvc_client_connect(c, w->path);
    if (r == 0)
        r = kvc_model_open(c, &id, &model);
    if (r == 0)
        r = kvc_seq_new(model, NULL, 0, &s);
    if (r == 0)
        r = gpu_alloc(c->gpu, w->bytes, on, &c->error);
    if (r == 0)
        r = gpu_write(c->gpu, on->at, w->x, w->bytes, &c->error);
    if (r == 0)
        r = kvc_seq_append(s, 0, KVC_F32, (void *) (uintptr_t) on->at, (void *) (uintptr_t) on->at, TEXT);
    CU_ASSERT(r == 0 || strlen(kvc_last_error(c)) > 10);
    *ret = s;
    return r;
}

/*
 * Commits twice.
 * Return: the first error. The second commit publishes what failed in the first, unless the GPU is lost; a
 * connection that was closed for lack of memory leaves the page private.
 */
static int publish(kvc_client *c, kvc_seq *s)
{
    static const uint32_t tokens[TEXT] = {9, 9, 9};
    int first = 0;

    for (unsigned i = 0; i < 2; i++) {
        size_t n = 7;
        int r = kvc_seq_commit(s, tokens, TEXT, &n);

        CU_ASSERT(r == 0 || strlen(kvc_last_error(c)) > 10);
        if (r < 0) {
            CU_ASSERT_EQUAL(n, 7);
        } else {
            CU_ASSERT_EQUAL(n, connection_is_open(&c->connection) ? 64 : 0);
        }
        CU_ASSERT(first == 0 || r == (first == -EIO ? -EIO : 0));
        first = first < 0 ? first : r;
    }
    return first;
}

/* Creates, uses and frees a client; @nth > 0: that allocation of the host fails. Return: the first error. */
static int live(const struct daemon_case *w, unsigned nth)
{
    struct gpu_memory on = {0};
    kvc_client *c = NULL;
    kvc_seq *s = NULL;
    int r;

    CU_ASSERT_EQUAL_FATAL(kvc_client_new(&c), 0);
    fault_arm(nth);
    r = get_ready(w, c, &on, &s);
    if (r == 0)
        r = publish(c, s);
    if (c->gpu)
        gpu_free(c->gpu, &on);
    kvc_client_free(c);
    return r;
}

static void expect_nothing_left(const char *call, unsigned nth)
{
    struct standin_left l = standin_look();

    if (l.handles + l.mappings + l.ranges + l.allocations + l.contexts + l.modules != 0)
        printf("    %s %u: an object is still open\n", call, nth);
    CU_ASSERT(l.handles == 0 && l.mappings == 0 && l.ranges == 0 && l.allocations == 0 && l.contexts == 0 &&
              l.modules == 0);
}

/* ---- the driver ---- */

static int live_with(const char *call, unsigned nth, int error)
{
    struct daemon_case w;
    char setting[96];
    int r;

    daemon_case_init(&w);
    (void) snprintf(setting, sizeof(setting), "%s:%u:%d", call, nth, error);
    CU_ASSERT_EQUAL(setenv("STANDIN_FAIL", setting, 1), 0);
    r = live(&w, 0);
    CU_ASSERT_EQUAL(unsetenv("STANDIN_FAIL"), 0);
    daemon_case_deinit(&w);
    expect_nothing_left(call, nth);
    CU_ASSERT(r == 0 || r == (error == CU_OUT_OF_MEMORY ? -ENOMEM : -EIO));
    return r;
}

static void test_failing_driver(void)
{
    static const char *const calls[] = {
        "cuMemAddressReserve",
        "cuMemImportFromShareableHandle",
        "cuMemMap",
        "cuMemSetAccess",
        "cuMemAlloc_v2",
        "cuMemcpyDtoDAsync_v2",
        "cuMemcpyHtoDAsync_v2",
        "cuMemcpyDtoH_v2",
        "cuLaunchKernel",
        "cuStreamSynchronize",
    };
    void *driver = dlopen(
        "libcuda.so.1",
        RTLD_NOW | RTLD_LOCAL); /* the stand-in stays loaded, so that its counts go on between clients */

    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++)
        for (unsigned lost = 0; lost < 2; lost++) {
            unsigned nth = 1;

            while (nth < NTH_MAX &&
                   live_with(calls[i], nth, lost ? CU_ILLEGAL_ADDRESS : CU_OUT_OF_MEMORY) < 0)
                nth++;
            if (nth == 1)
                printf("    %s never failed\n", calls[i]);
            CU_ASSERT(nth > 1 && nth < NTH_MAX);
        }
    (void) dlclose(driver);
}

/* ---- memory of the host ---- */

static void test_no_memory_of_the_host(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    unsigned nth = 1, n_failed = 0;

    for (bool fired = true; fired && nth < NTH_MAX; nth++) {
        struct daemon_case w;
        int r;

        daemon_case_init(&w);
        r = live(&w, nth);
        fired = fault_fired();
        fault_arm(0);
        daemon_case_deinit(&w);
        /* without memory for a reply the connection is closed; during the greeting
         * connecting fails (-EPROTO) */
        if (r < 0 && r != -ENOMEM && r != -ENOTCONN && r != -EPROTO)
            printf("    allocation %u: %s\n", nth, strerror(-r));
        CU_ASSERT(r == 0 || r == -ENOMEM || r == -ENOTCONN || r == -EPROTO);
        expect_nothing_left("allocation", nth);
        n_failed += r < 0;
    }
    CU_ASSERT(nth < NTH_MAX && n_failed >= 20);
    (void) dlclose(driver);
}

const char test_suite[] = "publishing on a GPU while calls fail";
const struct test_case test_cases[] = {TEST(test_failing_driver), TEST(test_no_memory_of_the_host), TEST_END};
