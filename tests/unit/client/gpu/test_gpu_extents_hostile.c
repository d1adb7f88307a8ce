/*
 * A daemon that sends wrong places in GPU memory: pages and slots must lie inside extents of the device,
 * otherwise they are refused with an errno and a sentence, no memory is written, and none stays mapped.
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
#include "client/sequence/seq_ops.h"
#include "client/gpu/seq_gpu.h"
#include "tests/lib/test.h"
#include "tests/standin/libcuda.h"
#include "tests/unit/client/hostile_peer.h"

static const struct {
    const char *name;
    int connect, match, commit; /* what the library returns */
    bool is_private;            /* the page stays private, also if the commit succeeds */
} cases[GPU_END - GPU_CORRECT] = {
    [GPU_CORRECT - GPU_CORRECT] = {"correct replies", 0, 0, 0},
    [GPU_NO_DEVICE - GPU_CORRECT] = {"no device in the reply", -EOPNOTSUPP},
    [GPU_OTHER_DEVICE - GPU_CORRECT] = {"another device", -EPROTO},
    [GPU_ON_HOST - GPU_CORRECT] = {"extent in the host's memory", 0, -EBADMSG, -EBADMSG},
    [GPU_FRACTION - GPU_CORRECT] = {"extent with a fraction of a granule", 0, -EPROTO, -EPROTO},
    [GPU_SHORT - GPU_CORRECT] = {"extent of half its bytes", 0, -EBADMSG, -EBADMSG},
    [GPU_NO_DESCRIPTOR - GPU_CORRECT] = {"extent without a descriptor", 0, -EPROTO, -EPROTO},
    [GPU_LEASE_OFFSET - GPU_CORRECT] = {"page beyond its extent", 0, -EPROTO, 0},
    [GPU_LEASE_UNALIGNED - GPU_CORRECT] = {"page between slots", 0, -EPROTO, 0},
    [GPU_LEASE_BYTES - GPU_CORRECT] = {"page of another size", 0, -EPROTO, 0},
    [GPU_SLOT_OFFSET - GPU_CORRECT] = {"slot over the end of its extent", 0, 0, -EPROTO},
    [GPU_SLOT_UNALIGNED - GPU_CORRECT] = {"slot at a place between slots", 0, 0, -EPROTO},
    [GPU_SLOT_BYTES - GPU_CORRECT] = {"slot of another size", 0, 0, -EPROTO},
    [GPU_COMMIT_FEW - GPU_CORRECT] = {"no result for the page", 0, 0, -EPROTO},
    [GPU_GONE - GPU_CORRECT] = {"connection closed between RESERVE and COMMIT", 0, 0, 0, true},
};

static void expect(const struct peer *p, const char *what, kvc_client *c, int r, int want)
{
    if (r != want)
        printf("    %s: %s gives %d: %s\n", cases[p->wrong - GPU_CORRECT].name, what, r, kvc_last_error(c));
    CU_ASSERT_EQUAL(r, want);
    CU_ASSERT(r == 0 || strlen(kvc_last_error(c)) > 10);
}

static void check_match(const struct peer *p, kvc_client *c, kvc_model *model)
{
    kvc_seq *s = NULL;
    size_t n = 7;
    int r;

    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(model, NULL, 0, &s), 0);
    r = kvc_seq_match(s, peer_tokens, 65, &n);
    expect(p, "match", c, r, cases[p->wrong - GPU_CORRECT].match);
    if (r < 0) {
        CU_ASSERT_EQUAL(n, 7);
    } else {
        CU_ASSERT_EQUAL(n, 64);
    }
    CU_ASSERT_EQUAL(kvc_seq_length(s), r < 0 || n == 0 ? 0 : 64);
    kvc_seq_free(s);
}

/* One chunk of another text is published, with its bytes in the slot; or it stays private. */
static void check_commit(const struct peer *p, const struct embedded *m, kvc_client *c, kvc_model *model)
{
    uint32_t tokens[129] = {9, 9, 9};
    size_t bytes = 129 * (size_t) m->g.d * sizeof(float), payload_bytes = p->page_bytes - PAGE_HEADER_BYTES,
           n = 7;
    float *x = embedded_input(m, 5, 0, KVC_K, 0, 129);
    uint8_t *before = malloc(payload_bytes), *after = malloc(payload_bytes);
    bool is_private = cases[p->wrong - GPU_CORRECT].is_private;
    struct gpu_memory on = {0};
    kvc_seq *s = NULL;
    int r;

    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(model, NULL, 0, &s), 0);
    CU_ASSERT_EQUAL_FATAL(gpu_alloc(c->gpu, bytes, &on, &c->error), 0);
    CU_ASSERT_EQUAL(gpu_write(c->gpu, on.at, x, bytes, &c->error), 0);
    CU_ASSERT_EQUAL(
        kvc_seq_append(s, 0, KVC_F32, (void *) (uintptr_t) on.at, (void *) (uintptr_t) on.at, 129), 0);
    CU_ASSERT_EQUAL(s->ops->pack(s, 0, 1), 0);
    CU_ASSERT_EQUAL(
        gpu_read(c->gpu, before, (cu_ptr) (uintptr_t) page_payload(s->pages[0]), payload_bytes, &c->error),
        0);
    r = kvc_seq_commit(s, tokens, 129, &n);
    expect(p, "commit", c, r, cases[p->wrong - GPU_CORRECT].commit);
    if (r < 0) {
        CU_ASSERT_EQUAL(n, 7);
    } else {
        CU_ASSERT_EQUAL(n, is_private ? 0 : 64);
    }
    CU_ASSERT_EQUAL(page_is_shared(s->pages[0]), r == 0 && !is_private);
    CU_ASSERT_EQUAL(
        gpu_read(c->gpu, after, (cu_ptr) (uintptr_t) page_payload(s->pages[0]), payload_bytes, &c->error), 0);
    CU_ASSERT_EQUAL(memcmp(before, after, payload_bytes), 0);
    /* a commit without a chunk to publish does not wait: later inputs are not checked */
    if (page_is_shared(s->pages[0])) {
        CU_ASSERT_EQUAL(s->gpu->sound.n_sound, 129);
        CU_ASSERT_EQUAL(
            kvc_seq_append(s, 0, KVC_F32, (void *) (uintptr_t) on.at, (void *) (uintptr_t) on.at, 1), 0);
        CU_ASSERT_EQUAL(kvc_seq_commit(s, tokens, 129, &n), 0);
        CU_ASSERT_EQUAL(n, 64);
        CU_ASSERT_EQUAL(s->gpu->sound.n_sound, 129);
        CU_ASSERT_EQUAL(kvc_client_synchronize(c), 0);
        CU_ASSERT_EQUAL(s->gpu->sound.n_sound, 130);
    }
    gpu_free(c->gpu, &on);
    kvc_seq_free(s);
    free(before);
    free(after);
    free(x);
}

static void check_reply(const struct embedded *m, const char *path, int listener, struct peer *p)
{
    const kvc_gpu_options o = {.struct_bytes = sizeof(o)};
    kvc_model_id id = embedded_id(m);
    kvc_client *c = NULL;
    kvc_model *model = NULL;
    struct standin_left left;
    int r, status = 0;
    pid_t pid = fork();

    if (pid == 0)
        peer_serve(listener, p);
    CU_ASSERT_EQUAL_FATAL(kvc_client_new(&c), 0);
    CU_ASSERT_EQUAL_FATAL(kvc_client_set_gpu(c, &o), 0);
    r = kvc_client_connect(c, path);
    expect(p, "connect", c, r, cases[p->wrong - GPU_CORRECT].connect);
    if (r == 0) {
        CU_ASSERT_EQUAL_FATAL(kvc_model_open(c, &id, &model), 0);
        check_match(p, c, model);
        check_commit(p, m, c, model);
    }
    kvc_client_free(c);
    (void) kill(pid, SIGTERM);
    (void) waitpid(pid, &status, 0);
    left = standin_look();
    CU_ASSERT(left.handles == 0 && left.mappings == 0 && left.ranges == 0 && left.allocations == 0 &&
              left.contexts == 0);
}

static void test_lies(void)
{
    struct embedded m = embedded_new(1, 2, 1, 32, 3, 0, 0);
    void *driver = dlopen(
        "libcuda.so.1",
        RTLD_NOW | RTLD_LOCAL); /* the stand-in stays loaded, so that its counts go on between clients */
    char dir[] = "/tmp/kvcobra-test-XXXXXX", path[64];
    int listener = peer_listen(dir, path, sizeof(path));

    for (unsigned wrong = GPU_CORRECT; wrong < GPU_END; wrong++) {
        struct peer *p = calloc(1, sizeof(*p));

        CU_ASSERT_PTR_NOT_NULL_FATAL(p);
        peer_init(p, &m, (enum wrong_reply) wrong);
        check_reply(&m, path, listener, p);
        free(p);
    }
    peer_unlisten(listener, dir, path);
    embedded_free(&m);
    (void) dlclose(driver);
}

const char test_suite[] = "wrong replies about a GPU";
const struct test_case test_cases[] = {TEST(test_lies), TEST_END};
