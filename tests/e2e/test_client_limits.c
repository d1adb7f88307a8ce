/*
 * Arena, pool and quota full: each is one documented error that changes nothing, and
 * the sequence works afterwards.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/e2e/client_fixture.h"
#include "tests/lib/random_table.h"
#include "tests/lib/test.h"
#include "tests/lib/wait.h"

/* 64 tokens x 8 layers x 4 heads x 128 x 2 sides at 4 bpd: pages of a little more than 256 KiB. */
static struct geometry large(void)
{
    return random_table_geometry(8, 4, 4, 128);
}

/*
 * After a refusal, a sequence that is longer than every arena and pool here has the bits of a sequence
 * without a daemon.
 */
static void check_continues(const struct scene *sc, const struct embedded *m, kvc_seq *s, size_t pieces)
{
    struct embedded alone = scene_private(sc);
    kvc_seq *want = NULL;
    size_t length = kvc_seq_length(s);
    float *a, *b;

    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(alone.model, NULL, 0, &want), 0);
    CU_ASSERT_EQUAL(scene_publish(&alone, want, 0, 0, length, pieces, NULL), 0);
    for (size_t at = length; at < length + 640; at += 128) {
        CU_ASSERT_EQUAL_FATAL(embedded_append(m, s, 0, at, 128), 0);
        CU_ASSERT_EQUAL_FATAL(embedded_append(&alone, want, 0, at, 128), 0);
    }
    a = scene_attend(m, s, 0);
    b = scene_attend(&alone, want, 0);
    CU_ASSERT_EQUAL(memcmp(a, b, scene_attend_floats(m) * sizeof(*a)), 0);
    free(a);
    free(b);
    embedded_free(&alone);
}

static void test_arena_full(void)
{
    static const char *const args[] = {"--arena-bytes=1M", "--pool-bytes=64M", NULL};
    struct scene sc;
    struct embedded m;
    kvc_seq *s = NULL;
    uint32_t *tokens = scene_tokens(0, 2000);
    size_t n = 0;

    scene_start(&sc, large(), 4, 1, args);
    m = scene_client(&sc);
    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m.model, NULL, 0, &s), 0);
    CU_ASSERT_EQUAL(embedded_append(&m, s, 0, 0, 512), -ENOSPC); /* seven pages at once never fit */
    CU_ASSERT_PTR_NOT_NULL(strstr(kvc_last_error(m.client), "smaller pieces"));
    CU_ASSERT_EQUAL(kvc_seq_length(s), 0);
    CU_ASSERT_EQUAL(embedded_append(&m, s, 0, 0, 200), 0);         /* needs two pages */
    CU_ASSERT_EQUAL(embedded_append(&m, s, 0, 200, 120), -ENOSPC); /* two more do not fit beside them */
    CU_ASSERT_PTR_NOT_NULL(strstr(kvc_last_error(m.client), "commit and try again"));
    CU_ASSERT_EQUAL(kvc_seq_length(s), 200);
    CU_ASSERT_EQUAL(kvc_seq_commit(s, tokens, 200, &n), 0);
    CU_ASSERT_EQUAL(n, 128);
    CU_ASSERT_EQUAL(embedded_append(&m, s, 0, 200, 120), 0); /* the retry */
    CU_ASSERT_EQUAL(kvc_seq_length(s), 320);
    CU_ASSERT_EQUAL(kvc_seq_commit(s, tokens, 320, &n), 0);
    CU_ASSERT_EQUAL(n, 256);
    CU_ASSERT_EQUAL(scene_publish(&m, s, 0, 320, 1280, 128, &n), 0); /* the arena limits pieces, not texts */
    CU_ASSERT_EQUAL(n, 1536);
    free(tokens);
    embedded_free(&m);
    scene_end(&sc);
}

/*
 * The arena has room for only some sequences of a batch: none of them gets a page or a token. Appended one
 * after the other, some do.
 */
static void test_arena_full_in_a_batch(void)
{
    enum { N = 4, TOKENS = 150 }; /* each sequence needs a page, and the arena has room for three */
    static const char *const args[] = {"--arena-bytes=1M", "--pool-bytes=64M", NULL};
    kvc_append_item items[N];
    unsigned n_taken = 0;
    struct scene sc;
    struct embedded m;

    scene_start(&sc, large(), 4, 1, args);
    m = scene_client(&sc);
    for (uint32_t i = 0; i < N; i++) {
        items[i] = (kvc_append_item){.struct_bytes = sizeof(kvc_append_item),
                                     .seq = NULL,
                                     .k = embedded_input(&m, i, 0, KVC_K, 0, TOKENS),
                                     .v = embedded_input(&m, i, 0, KVC_V, 0, TOKENS),
                                     .n_new = TOKENS};
        CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m.model, NULL, 0, &items[i].seq), 0);
    }
    for (unsigned i = 0; i < 3; i++) { /* the same number is free each time */
        CU_ASSERT_EQUAL(kvc_seq_append_batch(items, N, 0, KVC_F32), -ENOSPC);
        CU_ASSERT_PTR_NOT_NULL(
            strstr(kvc_last_error(m.client), "sequence 3 of the batch: the arena is full"));
    }
    CU_ASSERT_EQUAL(kvc_seq_append_batch(items, N - 1, 0, KVC_F32), 0);
    for (uint32_t i = 0; i < N; i++) {
        int r = kvc_seq_append(items[i].seq, 1, KVC_F32, items[i].k, items[i].v, TOKENS);

        CU_ASSERT(r == 0 || r == -ENOSPC);
        n_taken += r == 0;
        free((void *) items[i].k);
        free((void *) items[i].v);
    }
    CU_ASSERT_EQUAL(n_taken, N - 1);
    embedded_free(&m);
    scene_end(&sc);
}

/* The pool takes some pages and then none, since all are held. */
static void run_full(const char *const *args, int err)
{
    struct scene sc;
    struct embedded m;
    kvc_seq *s = NULL;
    uint32_t *tokens = scene_tokens(0, 4000);
    Kvcobra__StatusReply *status;
    size_t n = 0, at = 0;
    int r = 0;

    scene_start(&sc, large(), 4, 1, args);
    m = scene_client(&sc);
    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m.model, NULL, 0, &s), 0);
    while (r == 0 && at < 3000) {
        r = embedded_append(&m, s, 0, at, 128);
        CU_ASSERT_EQUAL_FATAL(r, 0);
        at += 128;
        r = kvc_seq_commit(s, tokens, at, &n);
    }
    CU_ASSERT_EQUAL(r, err);
    printf("    after %zu of %zu tokens: %s\n", n, at, kvc_last_error(m.client));
    CU_ASSERT_EQUAL(kvc_seq_length(s), at);
    CU_ASSERT_EQUAL(kvc_seq_commit(s, tokens, at, &n), err); /* the same error again */
    CU_ASSERT(strlen(kvc_last_error(m.client)) > 20);
    check_continues(&sc, &m, s, 128);
    status = scene_status(&sc);
    CU_ASSERT_EQUAL(status->sessions, 1); /* the daemon works */
    status = scene_status_free(status);
    free(tokens);
    embedded_free(&m);
    scene_end(&sc);
}

static void test_pool_full(void)
{
    run_full((const char *const[]){"--arena-bytes=2M", "--pool-bytes=4M", "--extent-bytes=4M", NULL},
             -ENOSPC);
}

static void test_quota_full(void)
{
    run_full((const char *const[]){"--arena-bytes=2M", "--quota-bytes=4M", "--pool-bytes=64M", NULL},
             -EDQUOT);
}

/* A pool that cannot hold a single page of this table. */
static void test_page_larger_than_pool(void)
{
    run_full((const char *const[]){"--arena-bytes=2M", "--pool-bytes=128K", "--extent-bytes=128K",
                                   "--span-bytes=64K", "--quota-bytes=4M", NULL},
             -EFBIG);
}

/* Pages that found no room are published later: they wait on the heap and pass through the arena. */
static void test_published_later(void)
{
    static const char *const args[] = {"--arena-bytes=1M", "--pool-bytes=8M", "--extent-bytes=8M", NULL};
    struct scene sc;
    struct embedded m;
    kvc_seq *hog = NULL, *s = NULL, *found = NULL;
    uint32_t *tokens = scene_tokens(1, 800), *others = scene_tokens(0, 4000);
    size_t n = 0, at = 0;
    float *a, *b;

    scene_start(&sc, large(), 4, 1, args);
    m = scene_client(&sc);
    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m.model, NULL, 0, &hog), 0);
    for (int r = 0; r == 0 && at < 3000; at += 128) {
        CU_ASSERT_EQUAL_FATAL(embedded_append(&m, hog, 0, at, 128), 0);
        r = kvc_seq_commit(hog, others, at + 128, &n);
    }
    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m.model, NULL, 0, &s), 0);
    CU_ASSERT_EQUAL(embedded_append(&m, s, 1, 0, 256), 0);
    /* a first page may fit, the others do not */
    CU_ASSERT_EQUAL(kvc_seq_commit(s, tokens, 256, &n), -ENOSPC);
    for (at = 256; at < 768; at += 128)
        CU_ASSERT_EQUAL_FATAL(embedded_append(&m, s, 1, at, 128), 0);
    a = scene_attend(&m, s, 1);
    kvc_seq_free(hog);
    CU_ASSERT_EQUAL(kvc_seq_commit(s, tokens, 768, &n), 0);
    CU_ASSERT_EQUAL(n, 704);
    b = scene_attend(&m, s, 1);
    CU_ASSERT_EQUAL(kvc_seq_length(s), 768);
    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m.model, NULL, 0, &found), 0);
    CU_ASSERT_EQUAL(kvc_seq_match(found, tokens, 768, &n), 0);
    CU_ASSERT_EQUAL(n, 704);
    free(a);
    free(b);
    free(tokens);
    free(others);
    embedded_free(&m);
    scene_end(&sc);
}

/* The daemon says why it refuses a connection. */
static void test_connections_of_a_tenant(void)
{
    static const char *const args[] = {"--connections-per-tenant=2", NULL};
    kvc_client *refused = NULL;
    struct embedded a, b;
    struct scene sc;
    int r;

    scene_start(&sc, large(), 4, 1, args);
    a = scene_client(&sc);
    b = scene_client(&sc);
    CU_ASSERT_EQUAL_FATAL(kvc_client_new(&refused), 0);
    r = kvc_client_connect(refused, sc.daemon.socket);
    CU_ASSERT_EQUAL(r, -EDQUOT);
    CU_ASSERT_PTR_NOT_NULL(strstr(kvc_last_error(refused), "--connections-per-tenant"));
    embedded_free(&b);
    for (struct wait w = wait_begin(); r == -EDQUOT && wait_again(&w);)
        r = kvc_client_connect(refused, sc.daemon.socket);
    CU_ASSERT_EQUAL(r, 0); /* the same handle connects when there is room */
    (void) kvc_client_free(refused);
    embedded_free(&a);
    scene_end(&sc);
}

const struct test_case test_cases[] = {
    TEST(test_arena_full),
    TEST(test_arena_full_in_a_batch),
    TEST(test_pool_full),
    TEST(test_quota_full),
    TEST(test_page_larger_than_pool),
    TEST(test_published_later),
    TEST(test_connections_of_a_tenant),
    TEST_END,
};
const char test_suite[] = "client_limits";
