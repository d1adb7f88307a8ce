/*
 * A lender and a borrower of two users. The borrower fills the pool and holds it; the daemon reclaims the
 * lender's guarantee; the borrower's library gives the pages back and computes the same bits. Needs root, to
 * become another user.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/e2e/client_fixture.h"
#include "tests/e2e/other_user_fixture.h"
#include "tests/lib/random_table.h"
#include "tests/lib/test.h"
#include "tests/lib/wait.h"

const char test_suite[] = "client_reclaim";

/*
 * 64 tokens x 8 layers x 4 heads x 128 x 2 sides at 4 bpd: pages of more than 256 KiB, so an extent of 1 MiB
 * has at most three.
 */
static struct geometry large(void)
{
    return random_table_geometry(8, 4, 4, 128);
}

/* Becomes the lender, whose commit is refused: the daemon starts to reclaim its guarantee. */
static struct embedded become_lender(const struct scene *sc, const uint32_t *tokens, kvc_seq **ret)
{
    struct embedded m;
    size_t n = 0;

    other_user_become(OTHER_USER_UID);
    m = scene_client(sc);
    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m.model, NULL, 0, ret), 0);
    CU_ASSERT_EQUAL_FATAL(embedded_append(&m, *ret, 1, 0, 128), 0);
    CU_ASSERT_EQUAL(kvc_seq_commit(*ret, tokens, 128, &n), -EAGAIN);
    CU_ASSERT_PTR_NOT_NULL(strstr(kvc_last_error(m.client), "bytes of its guarantee that others borrowed"));
    return m;
}

/* Becomes the lender; its commit succeeds when the borrower has given memory back. */
static bool lender_until_served(const struct scene *sc, int from_parent, int to_parent)
{
    uint32_t *tokens = scene_tokens(1, 256);
    kvc_seq *s = NULL;
    struct embedded m = become_lender(sc, tokens, &s);
    size_t n = 0;
    int r;

    pipe_signal(to_parent);
    (void) pipe_wait(from_parent);
    r = kvc_seq_commit(s, tokens, 128, &n);
    CU_ASSERT_EQUAL(r, 0);
    CU_ASSERT_EQUAL(n, 64);
    pipe_signal(to_parent);
    (void) pipe_wait(from_parent);
    free(tokens);
    embedded_free(&m);
    return r == 0;
}

/* One refused commit, and no further request. */
static bool lender_refused_once(const struct scene *sc, int from_parent, int to_parent)
{
    uint32_t *tokens = scene_tokens(1, 256);
    kvc_seq *s = NULL;
    struct embedded m = become_lender(sc, tokens, &s);

    pipe_signal(to_parent);
    (void) pipe_wait(from_parent);
    free(tokens);
    embedded_free(&m);
    return true;
}

static const Kvcobra__TenantStatus *tenant(const Kvcobra__StatusReply *s, const char *name)
{
    for (size_t i = 0; i < s->n_tenants; i++)
        if (strcmp(s->tenants[i]->name, name) == 0)
            return s->tenants[i];
    return NULL;
}

static uint64_t reclaimed_bytes(struct scene *sc)
{
    Kvcobra__StatusReply *status = scene_status(sc);
    uint64_t bytes = tenant(status, "uid-0") ? tenant(status, "uid-0")->asked_back_bytes : UINT64_MAX;

    status = scene_status_free(status);
    return bytes;
}

/* Appends and commits until the pool is full. Return: tokens. */
static size_t fill_pool(const struct embedded *m, kvc_seq *s, const uint32_t *tokens)
{
    size_t at = 0, n = 0;
    int r = 0;

    while (r == 0 && at < 3000) {
        CU_ASSERT_EQUAL_FATAL(embedded_append(m, s, 0, at, 128), 0);
        at += 128;
        r = kvc_seq_commit(s, tokens, at, &n);
    }
    CU_ASSERT_EQUAL(r, -ENOSPC);
    /* one extent has the first page, each other one three pages; the last commit was incomplete */
    CU_ASSERT(n >= 8 * 64);
    return at;
}

/* Sets the guarantee of the other user: 1 MiB of the pool. */
static void set_guarantee(struct scene *sc)
{
    Kvcobra__SetQuotaReply q;

    CU_ASSERT_EQUAL(
        operator_set_quota(sc->control, "uid-65534", OPERATOR_QUOTA_KEEP, (4 << 20) + 1, &q, NULL), -ENOSPC);
    CU_ASSERT_EQUAL(operator_set_quota(sc->control, "uid-65534", 1 << 20, 2 << 20, &q, NULL), -EINVAL);
    CU_ASSERT_EQUAL(operator_set_quota(sc->control, "uid-65534x", 1 << 20, 0, &q, NULL), -ENOENT);
    CU_ASSERT_EQUAL_FATAL(
        operator_set_quota(sc->control, "uid-65534", OPERATOR_QUOTA_KEEP, 1 << 20, &q, NULL), 0);
    CU_ASSERT(q.guarantee_bytes == 1 << 20 && q.previous_guarantee_bytes == 0 && q.quota_bytes == 16 << 20);
}

/*
 * While memory is reclaimed the borrower finds nothing and publishes nothing; its next
 * call gives memory back.
 */
static void give_back(struct scene *sc, const struct embedded *m, kvc_seq *s, const uint32_t *tokens,
                      size_t at)
{
    kvc_seq *other = NULL;
    size_t n = 0;

    CU_ASSERT(reclaimed_bytes(sc) > 256 * 1024); /* at least the first page, which is alone in its extent */
    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m->model, NULL, 0, &other), 0);
    CU_ASSERT_EQUAL(kvc_seq_match(other, tokens, 600, &n), 0);
    CU_ASSERT_EQUAL(n, 0);
    CU_ASSERT_EQUAL(reclaimed_bytes(sc), 0); /* the match gave memory back */
    CU_ASSERT_EQUAL(kvc_seq_commit(s, tokens, at, &n), 0);
    CU_ASSERT_EQUAL(n, 0); /* the other pages in the pool follow a private page */
}

static void test_borrower_gives_back(void)
{
    static const char *const args[] = {
        "--arena-bytes=2M", "--pool-bytes=4M",   "--extent-bytes=1M",  "--span-bytes=64K",
        "--lendable=100",   "--quota-bytes=16M", "--socket-mode=0666", NULL};
    struct scene sc;
    struct embedded m;
    struct child lender;
    kvc_seq *s = NULL;
    uint32_t *tokens = scene_tokens(0, 4000);
    float *before, *after;
    size_t at, n = 0;

    if (!other_user_is_possible()) {
        free(tokens);
        return;
    }
    scene_start(&sc, large(), 4, 1, args);
    CU_ASSERT_EQUAL_FATAL(chmod(sc.daemon.folder, 0711), 0);
    set_guarantee(&sc);
    m = scene_client(&sc);
    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m.model, NULL, 0, &s), 0);
    at = fill_pool(&m, s, tokens);
    before = scene_attend(&m, s, 0);
    lender = child_start(lender_until_served, &sc);
    CU_ASSERT(pipe_wait(lender.from));
    give_back(&sc, &m, s, tokens, at);
    pipe_signal(lender.to);
    CU_ASSERT(pipe_wait(lender.from)); /* its commit succeeded */
    after = scene_attend(&m, s, 0);
    CU_ASSERT_EQUAL(memcmp(before, after, scene_attend_floats(&m) * sizeof(*after)), 0);
    /* the reclaim is over, so it tries to publish, and the pool is full */
    CU_ASSERT_EQUAL(kvc_seq_commit(s, tokens, at, &n), -ENOSPC);
    pipe_signal(lender.to);
    CU_ASSERT(child_end(&lender));
    free(before);
    free(after);
    free(tokens);
    embedded_free(&m);
    scene_end(&sc);
}

/*
 * The lender sends no further request: after --lease-ms the reclaim ends, although
 * the borrower holds everything.
 */
static void test_reclaim_ends(void)
{
    static const char *const args[] = {"--arena-bytes=2M",   "--pool-bytes=4M", "--extent-bytes=1M",
                                       "--span-bytes=64K",   "--lendable=100",  "--quota-bytes=16M",
                                       "--socket-mode=0666", "--lease-ms=400",  NULL};
    struct scene sc;
    struct embedded m;
    struct child lender;
    kvc_seq *s = NULL;
    uint32_t *tokens = scene_tokens(0, 4000);
    Kvcobra__SetQuotaReply q;
    float *before, *after;

    if (!other_user_is_possible()) {
        free(tokens);
        return;
    }
    scene_start(&sc, large(), 4, 1, args);
    CU_ASSERT_EQUAL_FATAL(chmod(sc.daemon.folder, 0711), 0);
    CU_ASSERT_EQUAL_FATAL(operator_set_quota(sc.control, "uid-65534", OPERATOR_QUOTA_KEEP, 1 << 20, &q, NULL),
                          0);
    m = scene_client(&sc);
    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m.model, NULL, 0, &s), 0);
    (void) fill_pool(&m, s, tokens);
    before = scene_attend(&m, s, 0);
    lender = child_start(lender_refused_once, &sc);
    CU_ASSERT(pipe_wait(lender.from));
    CU_ASSERT(daemon_logged(&sc.daemon, "event=reclaim lender=uid-65534 borrower=uid-0"));
    for (struct wait w = wait_begin(); reclaimed_bytes(&sc) > 0 && wait_again(&w);)
        ;
    CU_ASSERT_EQUAL(reclaimed_bytes(&sc), 0);
    after = scene_attend(&m, s, 0); /* its pages stayed meanwhile */
    CU_ASSERT_EQUAL(memcmp(before, after, scene_attend_floats(&m) * sizeof(*after)), 0);
    pipe_signal(lender.to);
    CU_ASSERT(child_end(&lender));
    free(before);
    free(after);
    free(tokens);
    embedded_free(&m);
    scene_end(&sc);
}

const struct test_case test_cases[] = {TEST(test_borrower_gives_back), TEST(test_reclaim_ends), TEST_END};
