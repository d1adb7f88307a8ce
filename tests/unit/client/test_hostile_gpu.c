/*
 * A daemon that lies about memory on a GPU: what it grants and reserves is inside of extents that are the
 * device's, or it is refused with a code and a sentence, nothing is written, and nothing stays mapped.
 */
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/connection/client.h"
#include "client/sequence/seq.h"
#include "client/gpu/seq_gpu.h"
#include "tests/lib/test.h"
#include "tests/standin/libcuda.h"
#include "tests/unit/client/hostile_peer.h"

static const struct {
    const char *name;
    int connect, match, commit; /* what the library answers */
    bool is_private;            /* though the commit succeeds */
    bool misses;                /* match: 0, and nothing found */
} lies[GPU_END - GPU_TRUTH] = {
    [GPU_TRUTH - GPU_TRUTH] = {"truth", 0, 0, 0},
    [GPU_NO_DEVICE - GPU_TRUTH] = {"knows no devices", -EOPNOTSUPP},
    [GPU_OTHER_DEVICE - GPU_TRUTH] = {"another device", -EPROTO},
    [GPU_ON_HOST - GPU_TRUTH] = {"extent in the host's memory", 0, -EBADMSG, -EBADMSG},
    [GPU_FRACTION - GPU_TRUTH] = {"extent of no whole granules", 0, -EPROTO, -EPROTO},
    [GPU_SHORT - GPU_TRUTH] = {"extent of half its bytes", 0, -EBADMSG, -EBADMSG},
    [GPU_HANDLE_SHORT - GPU_TRUTH] = {"lent memory by 63 bytes", 0, -EPROTO, -EPROTO},
    [GPU_HANDLE_NOBODYS - GPU_TRUTH] = {"lent memory of nobody", 0, 0, -EXDEV, .misses = true},
    [GPU_LEASE_OFFSET - GPU_TRUTH] = {"page beyond its extent", 0, -EPROTO, 0},
    [GPU_LEASE_UNALIGNED - GPU_TRUTH] = {"page between slots", 0, -EPROTO, 0},
    [GPU_LEASE_BYTES - GPU_TRUTH] = {"page of another size", 0, -EPROTO, 0},
    [GPU_SLOT_OFFSET - GPU_TRUTH] = {"slot over the end of its extent", 0, 0, -EPROTO},
    [GPU_SLOT_UNALIGNED - GPU_TRUTH] = {"slot between slots", 0, 0, -EPROTO},
    [GPU_SLOT_BYTES - GPU_TRUTH] = {"slot of another size", 0, 0, -EPROTO},
    [GPU_COMMIT_FEW - GPU_TRUTH] = {"no answer for the page", 0, 0, -EPROTO},
    [GPU_GONE - GPU_TRUTH] = {"hangs up between RESERVE and COMMIT", 0, 0, 0, true},
};

static void expect(const struct peer *p, const char *what, kvc_client *c, int r, int want)
{
    if (r != want)
        printf("    %s: %s gives %d: %s\n", lies[p->lie - GPU_TRUTH].name, what, r, kvc_last_error(c));
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
    expect(p, "match", c, r, lies[p->lie - GPU_TRUTH].match);
    if (r < 0) {
        CU_ASSERT_EQUAL(n, 7);
    } else {
        CU_ASSERT_EQUAL(n, lies[p->lie - GPU_TRUTH].misses ? 0 : 64);
    }
    CU_ASSERT_EQUAL(kvc_seq_length(s), r < 0 || n == 0 ? 0 : 64);
    kvc_seq_free(s);
}

/* One chunk of another text is published, and its bytes are those in the slot; or it stays where it was. */
static void check_commit(const struct peer *p, const struct embedded *m, kvc_client *c, kvc_model *model)
{
    uint32_t tokens[129] = {9, 9, 9};
    size_t bytes = 129 * (size_t) m->g.d * sizeof(float), payload_bytes = p->page_bytes - PAGE_HEADER_BYTES,
           n = 7;
    float *x = embedded_input(m, 5, 0, KVC_K, 0, 129);
    uint8_t *before = malloc(payload_bytes), *after = malloc(payload_bytes);
    bool is_private = lies[p->lie - GPU_TRUTH].is_private;
    struct gpu_memory on = {0};
    kvc_seq *s = NULL;
    int r;

    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(model, NULL, 0, &s), 0);
    CU_ASSERT_EQUAL_FATAL(gpu_alloc(c->gpu, bytes, &on, &c->error), 0);
    CU_ASSERT_EQUAL(gpu_write(c->gpu, on.at, x, bytes, &c->error), 0);
    CU_ASSERT_EQUAL(
        kvc_seq_append(s, 0, KVC_F32, (void *) (uintptr_t) on.at, (void *) (uintptr_t) on.at, 129), 0);
    CU_ASSERT_EQUAL(seq_pack_layer(s, 0, 1), 0);
    CU_ASSERT_EQUAL(
        gpu_read(c->gpu, before, (cu_ptr) (uintptr_t) page_payload(s->pages[0]), payload_bytes, &c->error),
        0);
    r = kvc_seq_commit(s, tokens, 129, &n);
    expect(p, "commit", c, r, lies[p->lie - GPU_TRUTH].commit);
    if (r < 0) {
        CU_ASSERT_EQUAL(n, 7);
    } else {
        CU_ASSERT_EQUAL(n, is_private ? 0 : 64);
    }
    CU_ASSERT_EQUAL(page_is_shared(s->pages[0]), r == 0 && !is_private);
    CU_ASSERT_EQUAL(
        gpu_read(c->gpu, after, (cu_ptr) (uintptr_t) page_payload(s->pages[0]), payload_bytes, &c->error), 0);
    CU_ASSERT_EQUAL(memcmp(before, after, payload_bytes), 0);
    if (page_is_shared(s->pages[0])) { /* with nothing to publish it does not wait: what was appended since
                                          has not been looked at */
        CU_ASSERT_EQUAL(s->gpu->n_sound, 129);
        CU_ASSERT_EQUAL(
            kvc_seq_append(s, 0, KVC_F32, (void *) (uintptr_t) on.at, (void *) (uintptr_t) on.at, 1), 0);
        CU_ASSERT_EQUAL(kvc_seq_commit(s, tokens, 129, &n), 0);
        CU_ASSERT_EQUAL(n, 64);
        CU_ASSERT_EQUAL(s->gpu->n_sound, 129);
        CU_ASSERT_EQUAL(kvc_client_synchronize(c), 0);
        CU_ASSERT_EQUAL(s->gpu->n_sound, 130);
    }
    gpu_free(c->gpu, &on);
    kvc_seq_free(s);
    free(before);
    free(after);
    free(x);
}

static void check_lie(const struct embedded *m, const char *path, int listener, struct peer *p)
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
    expect(p, "connect", c, r, lies[p->lie - GPU_TRUTH].connect);
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
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL); /* with its counts, from client to client */
    char dir[] = "/tmp/kvcobra-test-XXXXXX", path[64];
    int listener = peer_listen(dir, path, sizeof(path));

    for (unsigned lie = GPU_TRUTH; lie < GPU_END; lie++) {
        struct peer *p = calloc(1, sizeof(*p));

        CU_ASSERT_PTR_NOT_NULL_FATAL(p);
        peer_init(p, &m, (enum lie) lie);
        check_lie(&m, path, listener, p);
        free(p);
    }
    peer_unlisten(listener, dir, path);
    embedded_free(&m);
    (void) dlclose(driver);
}

const char test_suite[] = "a daemon that lies about a GPU";
const struct test_case test_cases[] = {TEST(test_lies), TEST_END};
