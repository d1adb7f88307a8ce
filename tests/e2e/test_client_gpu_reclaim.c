/*
 * A borrower on a GPU fills its pool and holds it; the daemon reclaims the guarantee of another user. The
 * borrower's library copies pages to private memory, unmaps the extent, and computes the same bits. Needs
 * root, to become another user.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/e2e/client_gpu_fixture.h"
#include "tests/e2e/other_user_fixture.h"
#include "tests/lib/random_table.h"
#include "tests/lib/test.h"

/* Becomes the lender, whose commits are refused until the borrower has given the memory back. */
static bool run_lender(const struct scene *sc, int from_parent, int to_parent)
{
    struct embedded m;
    kvc_seq *s = NULL;
    uint32_t *tokens = scene_tokens(1, 128);
    size_t n = 0;

    gpu_driver_load();
    other_user_become(OTHER_USER_UID);
    m = gpu_scene_client(sc);
    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m.model, NULL, 0, &s), 0);
    CU_ASSERT_EQUAL_FATAL(gpu_append(&m, s, 1, 0, 128), 0);
    CU_ASSERT_EQUAL(kvc_seq_commit(s, tokens, 128, &n), -EAGAIN);
    CU_ASSERT_PTR_NOT_NULL(strstr(kvc_last_error(m.client), "bytes of its guarantee that others borrowed"));
    pipe_signal(to_parent);
    CU_ASSERT_FATAL(pipe_wait(from_parent));
    CU_ASSERT_EQUAL(kvc_seq_commit(s, tokens, 128, &n), 0);
    CU_ASSERT_EQUAL(n, 64);
    CU_ASSERT(gpu_is_like_cpu(sc, &m, s, 1, 64));
    pipe_signal(to_parent);
    CU_ASSERT(pipe_wait(from_parent));
    free(tokens);
    embedded_free(&m);
    return true;
}

/* Appends and commits until the pool is full, waits for the lender, and gives the memory back. */
static bool run_borrower(const struct scene *sc, int from_parent, int to_parent)
{
    struct embedded m = gpu_scene_client(sc);
    uint32_t *tokens = scene_tokens(0, 3000);
    kvc_seq *s = NULL, *other = NULL;
    unsigned long inodes[16];
    size_t at = 0, n = 0, packed, mapped;
    int r = 0;

    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m.model, NULL, 0, &s), 0);
    while (r == 0 && at < 2900) {
        CU_ASSERT_EQUAL_FATAL(gpu_append(&m, s, 0, at, 128), 0);
        at += 128;
        r = kvc_seq_commit(s, tokens, at, &n);
    }
    CU_ASSERT_EQUAL(r, -ENOSPC);
    CU_ASSERT_EQUAL(kvc_seq_commit(s, tokens, at, &n), -ENOSPC);
    packed = at - 64;
    mapped = gpu_inodes(getpid(), inodes, 16);
    CU_ASSERT_EQUAL(mapped, 3);
    pipe_signal(to_parent);
    CU_ASSERT_FATAL(pipe_wait(from_parent));
    /* during the reclaim no page is found, and none is published */
    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m.model, NULL, 0, &other), 0);
    CU_ASSERT_EQUAL(kvc_seq_match(other, tokens, 600, &n), 0);
    CU_ASSERT_EQUAL(n, 0);
    /* the match gave an extent back: its memory is free */
    CU_ASSERT_EQUAL(gpu_inodes(getpid(), inodes, 16), mapped - 1);
    CU_ASSERT(gpu_is_like_cpu(sc, &m, s, 0, packed));
    pipe_signal(to_parent);
    CU_ASSERT_FATAL(pipe_wait(from_parent)); /* the lender's commit succeeded */
    CU_ASSERT(gpu_is_like_cpu(sc, &m, s, 0, packed));
    /* the reclaim is over, so it tries to publish, and the pool is full */
    CU_ASSERT_EQUAL(kvc_seq_commit(s, tokens, at, &n), -ENOSPC);
    free(tokens);
    embedded_free(&m);
    return true;
}

static void test_borrower_gives_back(void)
{
    char mover[256];
    const char *path = getenv("KVC_MOVER");
    const char *const args[] = {
        "--pool-bytes=4M",
        "--extent-bytes=1M",
        "--span-bytes=64K",
        "--arena-bytes=2M",
        "--lendable=100",
        "--socket-mode=0666",
        "--gpu=first",
        "--gpu-pool-bytes=768K",
        "--gpu-extent-bytes=256K",
        "--gpu-span-bytes=64K",
        "--gpu-quota-bytes=16M",
        mover,
        NULL,
    };
    struct scene sc;
    struct child borrower, lender;
    Kvcobra__SetQuotaReply q;

    if (!other_user_is_possible())
        return;

    CU_ASSERT_PTR_NOT_NULL_FATAL(path);
    (void) snprintf(mover, sizeof(mover), "--mover=%s", path);
    scene_start(&sc, random_table_geometry(2, 2, 2, 128), 4, 1, args);
    CU_ASSERT_EQUAL_FATAL(chmod(sc.daemon.folder, 0711), 0);
    CU_ASSERT_EQUAL_FATAL(
        operator_set_quota(sc.control, "uid-65534@gpu0", OPERATOR_QUOTA_KEEP, 256 << 10, &q, NULL), 0);
    borrower = child_start(run_borrower, &sc);
    CU_ASSERT_FATAL(pipe_wait(borrower.from));
    lender = child_start(run_lender, &sc);
    CU_ASSERT_FATAL(pipe_wait(lender.from));
    pipe_signal(borrower.to);
    CU_ASSERT_FATAL(pipe_wait(borrower.from));
    pipe_signal(lender.to);
    CU_ASSERT_FATAL(pipe_wait(lender.from));
    pipe_signal(borrower.to);
    CU_ASSERT(child_end(&borrower));
    pipe_signal(lender.to);
    CU_ASSERT(child_end(&lender));
    scene_end(&sc);
}

const char test_suite[] = "client_gpu_reclaim";
const struct test_case test_cases[] = {TEST(test_borrower_gives_back), TEST_END};
