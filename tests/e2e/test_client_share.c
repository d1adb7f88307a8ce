/* Two processes and one prefix: the same bytes, found without prefill, published once. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/e2e/client_fixture.h"
#include "tests/lib/random_table.h"
#include "tests/lib/test.h"

static const char *const pool[] = {"--pool-bytes=64M", "--extent-bytes=64M", "--arena-bytes=8M", NULL};

static struct geometry small(void)
{
    return random_table_geometry(3, 6, 2, 64);
}

/* ---- publisher and finder ---- */

enum { PROMPT = 512, SHARED = 448 }; /* 64 (c + 2) <= 512: seven chunks */

/* Publishes the prompt, attends for its last token, and stays until the parent releases it. */
static bool publisher(const struct scene *sc, int from_parent, int to_parent)
{
    struct embedded m = scene_client(sc);
    kvc_usage u = {.struct_bytes = sizeof(u)};
    kvc_seq *s = NULL;
    size_t published = 0;
    float *out;

    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m.model, "salt", 4, &s), 0);
    CU_ASSERT_EQUAL_FATAL(scene_publish(&m, s, 0, 0, PROMPT, 200, &published), 0);
    CU_ASSERT_EQUAL(published, SHARED);
    CU_ASSERT_EQUAL(kvc_seq_get_usage(s, &u), 0);
    CU_ASSERT(u.shared_bytes > 0);
    CU_ASSERT_EQUAL(u.shared_bytes, u.code_bytes + u.padding_bytes + u.header_bytes + u.sink_bytes);
    out = scene_attend(&m, s, 0);
    pipe_send(to_parent, out, scene_attend_floats(&m) * sizeof(*out));
    free(out);
    (void) pipe_wait(from_parent);
    embedded_free(&m);
    return true;
}

/* Read-only shared mappings of pool extents. */
static size_t pool_inodes(pid_t pid, unsigned long *inodes, size_t max)
{
    return mapped_inodes(pid, "/memfd:kvcobra-pages", " r--s ", inodes, max);
}

/* A sequence that found the whole pages of the prompt, all of them in the pool. */
static kvc_seq *find_prompt(const struct embedded *m, const uint32_t *tokens)
{
    kvc_usage u = {.struct_bytes = sizeof(u)};
    kvc_seq *s = NULL, *other = NULL;
    size_t n = 0;

    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m->model, "other", 5, &other), 0);
    CU_ASSERT_EQUAL(kvc_seq_match(other, tokens, PROMPT, &n), 0);
    CU_ASSERT_EQUAL(n, 0); /* without the salt the text has other keys */
    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m->model, "salt", 4, &s), 0);
    CU_ASSERT_EQUAL(kvc_seq_match(s, tokens, PROMPT, &n), 0);
    CU_ASSERT_EQUAL_FATAL(n, SHARED);
    CU_ASSERT_EQUAL(kvc_seq_length(s), SHARED);
    CU_ASSERT_EQUAL(kvc_seq_get_usage(s, &u), 0);
    CU_ASSERT_EQUAL(u.shared_bytes, u.code_bytes + u.padding_bytes + u.header_bytes + u.sink_bytes);
    CU_ASSERT_EQUAL(u.tail_bytes, 0);
    return s;
}

static void check_attention(const struct embedded *m, kvc_seq *s, const float *want)
{
    float *got = scene_attend(m, s, 0);

    CU_ASSERT_EQUAL(memcmp(got, want, scene_attend_floats(m) * sizeof(*got)), 0);
    free(got);
}

static void test_shared_prefix(void)
{
    struct scene sc;
    struct child a;
    struct embedded b;
    kvc_seq *s;
    uint32_t *tokens = scene_tokens(0, PROMPT);
    unsigned long mine[8], theirs[8];
    float *want;
    Kvcobra__StatusReply *status;

    scene_start(&sc, small(), 3, 1, pool);
    a = child_start(publisher, &sc);
    b = scene_client(&sc);
    want = malloc(scene_attend_floats(&b) * sizeof(*want));
    pipe_receive(a.from, want, scene_attend_floats(&b) * sizeof(*want));

    s = find_prompt(&b, tokens);
    CU_ASSERT_FATAL(pool_inodes(getpid(), mine, 8) == 1 && pool_inodes(a.pid, theirs, 8) == 1);
    CU_ASSERT_EQUAL(mine[0], theirs[0]);

    /*
     * with the rest of the prompt, both have the same codes and the same exact tail, so attention
     * has the same bits
     */
    CU_ASSERT_EQUAL(embedded_append(&b, s, 0, SHARED, PROMPT - SHARED), 0);
    check_attention(&b, s, want);
    status = scene_status(&sc);
    CU_ASSERT_EQUAL(status->spaces[0]->pages, 7);
    CU_ASSERT_EQUAL(status->tenants[0]->pages, 7);
    status = scene_status_free(status);

    pipe_signal(a.to);
    CU_ASSERT(child_end(&a));
    check_attention(&b, s, want); /* A has ended, its pages stay */
    free(want);
    free(tokens);
    embedded_free(&b);
    scene_end(&sc);
}

/* ---- tokens ---- */

static void test_match_bounds(void)
{
    struct scene sc;
    struct embedded m;
    uint32_t *tokens = scene_tokens(0, PROMPT);
    static const size_t cases[][2] = {
        {0, 0}, {1, 0}, {64, 0}, {65, 64}, {128, 64}, {129, 128}, {448, 384}, {449, 448}, {512, 448},
    };
    kvc_seq *s = NULL;
    size_t n = 0;

    scene_start(&sc, small(), 3, 1, pool);
    m = scene_client(&sc);
    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m.model, NULL, 0, &s), 0);
    CU_ASSERT_EQUAL(scene_publish(&m, s, 0, 0, PROMPT, PROMPT, &n), 0);
    CU_ASSERT_EQUAL(n, SHARED);
    CU_ASSERT_EQUAL(kvc_seq_commit(s, tokens, PROMPT, &n), 0); /* again: no new match */
    CU_ASSERT_EQUAL(n, SHARED);
    tokens[70] ^= 1;
    CU_ASSERT_EQUAL(kvc_seq_commit(s, tokens, PROMPT, &n), -EINVAL); /* not the text that was published */
    for (unsigned i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        kvc_seq *t = NULL;

        tokens[70] ^= 1;
        CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m.model, NULL, 0, &t), 0);
        CU_ASSERT_EQUAL(kvc_seq_match(t, tokens, cases[i][0], &n), 0);
        CU_ASSERT_EQUAL(n, cases[i][1]);
        CU_ASSERT_EQUAL(kvc_seq_length(t), n);
        kvc_seq_free(t);
        tokens[70] ^= 1; /* one token of the second chunk differs: only the first matches */
        CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m.model, NULL, 0, &t), 0);
        CU_ASSERT_EQUAL(kvc_seq_match(t, tokens, cases[i][0], &n), 0);
        CU_ASSERT_EQUAL(n, cases[i][1] < 64 ? cases[i][1] : 64);
        kvc_seq_free(t);
    }
    free(tokens);
    embedded_free(&m);
    scene_end(&sc);
}

/* ---- concurrent publishers ---- */

static bool racer(const struct scene *sc, int from_parent, int to_parent)
{
    struct embedded m = scene_client(sc), alone = scene_private(sc);
    kvc_seq *s = NULL, *want = NULL;
    size_t published = 0;
    float *a, *b;

    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m.model, NULL, 0, &s), 0);
    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(alone.model, NULL, 0, &want), 0);
    pipe_signal(to_parent);
    if (!pipe_wait(from_parent))
        return false;
    CU_ASSERT_EQUAL(scene_publish(&m, s, 7, 0, 1000, 130, &published), 0);
    CU_ASSERT_EQUAL(published, 896);
    CU_ASSERT_EQUAL(scene_publish(&alone, want, 7, 0, 1000, 130, NULL), 0);
    a = scene_attend(&m, s, 7);
    b = scene_attend(&alone, want, 7);
    /* shared or private: the same bits */
    CU_ASSERT_EQUAL(memcmp(a, b, scene_attend_floats(&m) * sizeof(*a)), 0);
    free(a);
    free(b);
    pipe_signal(to_parent);
    (void) pipe_wait(from_parent);
    embedded_free(&alone);
    embedded_free(&m);
    return true;
}

static void test_concurrent_publication(void)
{
    struct scene sc;
    struct child c[3];
    Kvcobra__StatusReply *status;

    scene_start(&sc, small(), 3, 1, pool);
    for (unsigned i = 0; i < 3; i++)
        c[i] = child_start(racer, &sc);
    for (unsigned i = 0; i < 3; i++)
        CU_ASSERT(pipe_wait(c[i].from));
    for (unsigned i = 0; i < 3; i++)
        pipe_signal(c[i].to);
    for (unsigned i = 0; i < 3; i++)
        CU_ASSERT(pipe_wait(c[i].from));
    status = scene_status(&sc);
    CU_ASSERT_EQUAL(status->spaces[0]->pages, 14); /* each chunk once, from the process that was first */
    CU_ASSERT(status->leases > 0);
    status = scene_status_free(status);
    for (unsigned i = 0; i < 3; i++) {
        pipe_signal(c[i].to);
        CU_ASSERT(child_end(&c[i]));
    }
    scene_end(&sc);
}

/* ---- holds of forks ---- */

static bool nothing_held(const Kvcobra__StatusReply *s)
{
    return s->held_pages == 0 && s->leases == 0;
}

static bool two_held(const Kvcobra__StatusReply *s)
{
    return s->held_pages == 2;
}

static void test_releases(void)
{
    struct scene sc;
    struct embedded m;
    kvc_seq *s = NULL, *t = NULL;
    uint32_t *tokens = scene_tokens(0, 600);
    Kvcobra__StatusReply *status;
    uint64_t evicted = 0;
    size_t n = 0;

    scene_start(&sc, small(), 3, 1, pool);
    m = scene_client(&sc);
    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m.model, NULL, 0, &s), 0);
    CU_ASSERT_EQUAL(scene_publish(&m, s, 0, 0, PROMPT, PROMPT, &n), 0);
    CU_ASSERT_EQUAL_FATAL(kvc_seq_fork(s, &t), 0);
    kvc_seq_free(s);
    status = scene_status(&sc);
    CU_ASSERT_EQUAL(status->held_pages, 7); /* the fork holds them */
    status = scene_status_free(status);
    CU_ASSERT_EQUAL(kvc_seq_truncate(t, 150, &n), 0);
    CU_ASSERT_EQUAL(n, 128);
    CU_ASSERT(scene_wait(&sc, two_held)); /* pages that a truncation dropped are released at once */
    evicted = scene_evict(sc.control, NULL);
    CU_ASSERT_EQUAL(evicted, 5);
    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m.model, NULL, 0, &s), 0);
    CU_ASSERT_EQUAL(kvc_seq_match(s, tokens, PROMPT, &n), 0);
    CU_ASSERT_EQUAL(n, 128); /* the two other pages are the right ones */
    kvc_seq_free(s);
    /* the same text again */
    CU_ASSERT_EQUAL(scene_publish(&m, t, 0, 128, PROMPT - 128, PROMPT, &n), 0);
    CU_ASSERT_EQUAL(n, SHARED);
    kvc_seq_free(t);
    CU_ASSERT(scene_wait(&sc, nothing_held));
    status = scene_status(&sc);
    CU_ASSERT_EQUAL(status->spaces[0]->pages, 7);
    status = scene_status_free(status);
    free(tokens);
    embedded_free(&m);
    scene_end(&sc);
}

const struct test_case test_cases[] = {
    TEST(test_shared_prefix),
    TEST(test_match_bounds),
    TEST(test_concurrent_publication),
    TEST(test_releases),
    TEST_END,
};
const char test_suite[] = "client_share";
