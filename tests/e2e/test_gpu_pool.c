/*
 * A pool on a GPU: pages that processes share by descriptors, memory of processes that die, and a
 * device without memory, mover or descriptors. A page of 4224 = 33 * 128 bytes fills its slot, and 31
 * slots fill a span.
 */
#include "tests/lib/test.h"
#include "tests/lib/wait.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "gpu/page_layout.h"
#include "tests/e2e/gpu_service_fixture.h"
#include "tests/e2e/other_user_fixture.h"

const char test_suite[] = "gpu_pool";

static struct gpu_client opened(void)
{
    struct gpu_client a = gpu_client_new();

    CU_ASSERT_EQUAL_FATAL(gpu_open(&a, GPU_UUID), 0);
    return a;
}

static void test_two_processes_share_pages(void)
{
    struct gpu_client a, b;
    struct raw_slot s[3], again;
    uint64_t lease[3], other, newest;

    gpu_start(NULL);
    a = opened();
    b = opened();
    for (unsigned i = 0; i < 3; i++)
        s[i] = gpu_publish(&a, 10 + i, &lease[i]);
    for (unsigned i = 0; i < 3; i++) {
        CU_ASSERT_EQUAL(gpu_lease(&b, 10 + i, &s[i], &other), 0);
        CU_ASSERT_TRUE(gpu_reads(&b, 10 + i, &s[i]));
        CU_ASSERT_FALSE(gpu_reads(&b, 11 + i, &s[i]));
        CU_ASSERT_EQUAL(gpu_release(&b, other), 0);
        CU_ASSERT_EQUAL(gpu_release(&a, lease[i]), 0);
    }
    again = gpu_reserve(&b, 11);
    CU_ASSERT_TRUE(again.exists && again.slot == s[1].slot && again.generation == s[1].generation);
    CU_ASSERT_EQUAL(gpu_commit(&b, 11, &again, &newest), 0); /* takes a lease, publishes nothing */
    CU_ASSERT_EQUAL(gpu_release(&b, newest), 0);
    CU_ASSERT_EQUAL(gpu_get_extent(&b, s[0].extent + 1000), -ENOENT);
    CU_ASSERT_EQUAL(gpu_status().held_bytes, 0);
    CU_ASSERT_EQUAL(gpu_status().pages, 3);
    CU_ASSERT_TRUE(gpu_client_end(&a));
    CU_ASSERT_TRUE(gpu_client_end(&b));
    gpu_stop();
}

static void test_the_first_page_wins(void)
{
    struct gpu_client a, b;
    struct raw_slot of_a, of_b, wrong;
    uint64_t lease;

    gpu_start(NULL);
    a = opened();
    b = opened();
    of_a = gpu_reserve_soon(&a, 5);
    of_b = gpu_reserve_soon(&b, 5);
    CU_ASSERT_TRUE(of_a.err == 0 && of_b.err == 0 && of_a.slot != of_b.slot);
    CU_ASSERT_EQUAL(gpu_fill(&a, 5, &of_a), 0);
    CU_ASSERT_EQUAL(gpu_fill(&b, 5, &of_b), 0);
    wrong = of_b;
    wrong.generation++;
    CU_ASSERT_EQUAL(gpu_commit(&b, 5, &wrong, NULL), -ESTALE);
    CU_ASSERT_EQUAL(gpu_commit(&b, 6, &of_b, NULL), -EINVAL); /* reserved for another key */
    CU_ASSERT_EQUAL(gpu_commit(&a, 5, &of_b, NULL), -ESTALE); /* the reservation of another session */
    CU_ASSERT_EQUAL(gpu_commit(&a, 5, &of_a, NULL), 0);
    CU_ASSERT_EQUAL(gpu_status().held_bytes, 2 * GPU_PAGE_BYTES);
    CU_ASSERT_EQUAL(gpu_commit(&b, 5, &of_b, &lease), 0);
    CU_ASSERT_EQUAL(gpu_status().held_bytes, GPU_PAGE_BYTES); /* b's slot is free; a and b hold a's page */
    CU_ASSERT_TRUE(gpu_reads(&b, 5, &of_a));
    CU_ASSERT_TRUE(gpu_client_end(&a));
    CU_ASSERT_TRUE(gpu_client_end(&b));
    gpu_stop();
}

/* ---- memory of dead processes ---- */

/* Reserves all slots of the pool. Return: the number of slots. */
static unsigned reserve_all(struct gpu_client *a, struct raw_slot *s, unsigned max, int *ret_err)
{
    unsigned n = 0;

    for (*ret_err = 0; n < max; n++) {
        s[n] = gpu_reserve_soon(a, 1000 + n);
        *ret_err = s[n].err;
        if (s[n].err < 0)
            break;
    }
    return n;
}

enum { ALL = 4 * GPU_SLOTS_PER_EXTENT };

static void test_memory_of_a_dead_process_waits_for_the_driver(void)
{
    static struct raw_slot s[ALL + 1];
    struct gpu_client victim, other;
    struct raw_slot reserved, held;
    unsigned n;
    int err;

    gpu_list_process(0);
    gpu_start(NULL);
    other = opened();
    victim = opened();
    held = gpu_publish(&victim, 1, NULL);
    reserved = gpu_reserve_soon(&victim, 2);
    gpu_list_process(victim.pid); /* as if its kernels still ran */
    gpu_client_kill(&victim);
    gpu_wait_for_quarantined(2);
    n = reserve_all(&other, s, ALL + 1, &err);
    CU_ASSERT_EQUAL(n, ALL - 2);
    CU_ASSERT_EQUAL(err, -ENOSPC);
    for (unsigned i = 0; i < n; i++)
        CU_ASSERT_TRUE_FATAL(s[i].slot != reserved.slot && s[i].slot != held.slot);
    gpu_stays_quarantined(2); /* the delay is over, but the driver lists the process */
    CU_ASSERT_EQUAL(gpu_lease(&other, 1, &held, NULL), 0); /* its published page can be leased */
    CU_ASSERT_TRUE(gpu_reads(&other, 1, &held));
    gpu_list_process(0);
    gpu_wait_for_quarantined(0);
    s[n] = gpu_reserve(&other, 2);
    CU_ASSERT_EQUAL(s[n].err, 0);
    CU_ASSERT_EQUAL(s[n].slot, reserved.slot);
    CU_ASSERT_TRUE(s[n].generation > reserved.generation);
    CU_ASSERT_EQUAL(gpu_status().retired_extents, 0);
    CU_ASSERT_TRUE(gpu_client_end(&other));
    gpu_stop();
}

/* Waits until a new reservation on the host has expired, so that --lease-ms has passed since the call. */
static void wait_for_expiry(void)
{
    struct chunk_key key = raw_key(1);
    struct raw_model host = raw_model_open();

    CU_ASSERT_EQUAL_FATAL(raw_reserve(&host, &key, PAGE_REST).err, 0);
    for (struct wait w = wait_begin(); !daemon_logged(&raw_daemon, "event=expired") && wait_again(&w);)
        ;
    CU_ASSERT(daemon_logged(&raw_daemon, "event=expired"));
    raw_close_model(&host);
}

/*
 * The driver does not list the dead process, so its memory waits only for the delay, which is
 * longer than any test.
 */
static void test_memory_of_a_dead_process_waits_for_the_delay(void)
{
    struct gpu_client victim;
    int lists;

    gpu_list_process(0);
    gpu_start((const char *const[]){"--gpu-reuse-ms=600000", "--lease-ms=100", NULL});
    victim = opened();
    (void) gpu_publish(&victim, 1, NULL);
    lists = gpu_watch_list();
    gpu_client_kill(&victim);
    gpu_wait_for_quarantined(1);
    gpu_wait_for_list(lists);
    wait_for_expiry();
    CU_ASSERT_EQUAL(gpu_status().quarantined_slots, 1);
    (void) close(lists);
    raw_stop();
}

/*
 * With @setting the list of processes is unreliable, so the extent takes no new page and is freed
 * with its last page.
 */
static void check_retired(const char *setting)
{
    struct gpu_client victim, other;
    struct raw_slot page, reserved, next;
    uint64_t lease, second;

    assert(setenv(setting, "1", 1) == 0);
    gpu_list_process(0);
    gpu_start(NULL);
    victim = opened();
    CU_ASSERT_TRUE(daemon_logged(&raw_daemon, strcmp(setting, "STANDIN_MPS") == 0 ? "processes=behind-mps"
                                                                                  : "processes=unlisted"));
    other = opened();
    page = gpu_publish(&victim, 1, NULL);
    reserved = gpu_reserve_soon(&victim, 2);
    CU_ASSERT_EQUAL(gpu_lease(&other, 1, &page, &lease), 0);
    CU_ASSERT_TRUE(gpu_reads(&other, 1, &page));
    CU_ASSERT_EQUAL(gpu_status().retired_extents, 0);
    gpu_client_kill(&victim);
    gpu_wait_for_held(1); /* the reservation ended, the hold of `other` did not */
    CU_ASSERT_EQUAL(gpu_status().retired_extents, 1);
    CU_ASSERT_EQUAL(gpu_status().quarantined_slots, 0);
    CU_ASSERT_TRUE(gpu_reads(&other, 1, &page));
    next = gpu_publish(&other, 3, &second);
    CU_ASSERT_NOT_EQUAL(next.extent, reserved.extent);
    gpu_wait_for_extents(2);
    CU_ASSERT_EQUAL(gpu_release(&other, lease), 0);
    gpu_wait_for_extents(1);
    CU_ASSERT_EQUAL(gpu_status().retired_extents, 0);
    CU_ASSERT_EQUAL(gpu_lease(&other, 1, &page, NULL), -ENODATA);
    CU_ASSERT_TRUE(gpu_reads(&other, 1, &page)); /* the client's mapping keeps the memory */
    CU_ASSERT_TRUE(gpu_client_end(&other));
    gpu_stop();
    assert(unsetenv(setting) == 0);
}

static void test_without_a_list_extents_retire(void)
{
    check_retired("STANDIN_NO_LIST");
}

static void test_with_numbers_of_another_namespace_extents_retire(void)
{
    check_retired("STANDIN_OTHER_NAMESPACE");
}

static void test_behind_mps_extents_retire(void)
{
    check_retired("STANDIN_MPS");
}

/* A closed connection is no evidence about the GPU: the process may be writing. */
static void test_reservations_survive_their_connection(void)
{
    struct gpu_client a;
    struct raw_slot first, second, third;
    uint64_t lease;

    gpu_start(NULL);
    a = opened();
    first = gpu_reserve_soon(&a, 1);
    second = gpu_reserve_soon(&a, 2);
    CU_ASSERT_EQUAL(gpu_fill(&a, 1, &first), 0);
    gpu_disconnect(&a);
    CU_ASSERT_EQUAL(gpu_resume(&a), 0);
    CU_ASSERT_EQUAL(gpu_status().held_bytes, 2 * GPU_PAGE_BYTES);
    CU_ASSERT_EQUAL(gpu_commit(&a, 1, &first, &lease), 0); /* the reservation is still valid */
    third = gpu_reserve_soon(&a, 3);
    CU_ASSERT_EQUAL(third.err, 0);
    CU_ASSERT_EQUAL(gpu_keep(&a, lease), 0); /* unnamed reservations of the earlier connection end */
    CU_ASSERT_EQUAL(gpu_status().held_bytes, 2 * GPU_PAGE_BYTES);
    CU_ASSERT_EQUAL(gpu_commit(&a, 2, &second, NULL), -ESTALE);
    CU_ASSERT_EQUAL(gpu_fill(&a, 3, &third), 0);
    CU_ASSERT_EQUAL(gpu_commit(&a, 3, &third, NULL), 0);
    CU_ASSERT_TRUE(gpu_client_end(&a));
    gpu_stop();
}

/*
 * A client that is silent for longer than --lease-ms keeps its reservations on a GPU, but not on the host. So
 * a later reservation on the host that has expired shows that the time is over.
 */
static void test_reservations_survive_silence(void)
{
    struct gpu_client a;
    struct raw_slot s;

    gpu_start((const char *const[]){"--lease-ms=100", NULL});
    a = opened();
    s = gpu_reserve_soon(&a, 1);
    wait_for_expiry();
    CU_ASSERT_EQUAL(gpu_status().held_bytes, GPU_PAGE_BYTES);
    CU_ASSERT_EQUAL(gpu_fill(&a, 1, &s), 0);
    CU_ASSERT_EQUAL(gpu_commit(&a, 1, &s, NULL), 0);
    CU_ASSERT_TRUE(gpu_client_end(&a));
    gpu_stop();
}

static void test_clean_ends_free_at_once(void)
{
    struct gpu_client a, b;
    struct raw_slot s, again;

    gpu_start((const char *const[]){"--gpu-reuse-ms=600000", NULL});
    a = opened();
    b = opened();
    s = gpu_reserve_soon(&a, 1);
    CU_ASSERT_EQUAL(gpu_abort(&a, &s), 0);
    again = gpu_reserve_soon(&b, 2);
    CU_ASSERT_EQUAL(again.slot, s.slot);
    (void) gpu_publish(&a, 3, NULL);
    s = gpu_reserve_soon(&a, 4);
    CU_ASSERT_EQUAL(gpu_bye(&a), 0);
    CU_ASSERT_EQUAL(gpu_status().held_bytes, GPU_PAGE_BYTES); /* b's */
    CU_ASSERT_EQUAL(gpu_status().quarantined_slots, 0);
    again = gpu_reserve_soon(&b, 5);
    CU_ASSERT_EQUAL(again.slot, s.slot);
    CU_ASSERT_TRUE(gpu_client_end(&a));
    CU_ASSERT_TRUE(gpu_client_end(&b));
    gpu_stop();
}

/* ---- two users ---- */

/*
 * Guarantees of two extents each: when one user frees borrowed memory the other gets it back, as new extents.
 */
static void test_lender_gets_its_extents_back(void)
{
    static struct raw_slot s[ALL + 1];
    struct gpu_client borrower, lender;
    struct raw_slot got;
    unsigned n;
    int err;

    if (!other_user_is_possible())
        return;

    gpu_start((const char *const[]){"--gpu-guarantee-bytes=1M", "--tenants=2", "--lendable=100",
                                    "--socket-mode=0666", NULL});
    CU_ASSERT_EQUAL_FATAL(chmod(raw_daemon.folder, 0711), 0);
    borrower = opened();
    n = reserve_all(&borrower, s, ALL + 1, &err);
    CU_ASSERT_EQUAL(n, ALL);
    CU_ASSERT_EQUAL(err, -ENOSPC);
    lender = gpu_client_new_as(OTHER_USER_UID);
    CU_ASSERT_EQUAL_FATAL(gpu_open(&lender, GPU_UUID), 0);
    CU_ASSERT_EQUAL(gpu_reserve(&lender, 1).err, -EAGAIN);
    CU_ASSERT_TRUE(daemon_logged(&raw_daemon, "event=reclaim lender=uid-65534@gpu0 borrower=uid-0@gpu0"));
    /* an extent of another tenant does not exist for it */
    CU_ASSERT_EQUAL(gpu_get_extent(&lender, s[0].extent), -ENOENT);
    for (unsigned i = 0; i < n; i++)
        CU_ASSERT_EQUAL(gpu_abort(&borrower, &s[i]), 0);
    got = gpu_publish(&lender, 1, NULL);
    for (unsigned i = 0; i < n; i++)
        CU_ASSERT_NOT_EQUAL_FATAL(got.extent, s[i].extent);
    CU_ASSERT_EQUAL(gpu_get_extent(&borrower, got.extent), -ENOENT);
    CU_ASSERT_EQUAL(gpu_lease(&borrower, 1, &got, NULL), -ENODATA);
    CU_ASSERT_EQUAL(gpu_lease(&lender, 1, &got, NULL), 0);
    CU_ASSERT_TRUE(gpu_client_end(&borrower));
    CU_ASSERT_TRUE(gpu_client_end(&lender));
    gpu_stop();
}

static void test_quota_of_the_device(void)
{
    struct gpu_client a;
    struct raw_slot s[11];
    unsigned n;
    int err;

    /* ten pages; the arena counts in host memory */
    gpu_start((const char *const[]){"--gpu-quota-bytes=42240", NULL});
    a = opened();
    n = reserve_all(&a, s, 11, &err);
    CU_ASSERT_EQUAL(n, 10);
    CU_ASSERT_EQUAL(err, -EDQUOT);
    CU_ASSERT_EQUAL(gpu_abort(&a, &s[3]), 0);
    CU_ASSERT_EQUAL(gpu_reserve(&a, 77).err, 0);
    CU_ASSERT_TRUE(gpu_client_end(&a));
    gpu_stop();
}

/* ---- missing memory and descriptors ---- */

/*
 * Two extents can be created, then the GPU is full: unheld pages are evicted to make room, held ones are not.
 */
static void test_out_of_gpu_memory(void)
{
    static struct raw_slot s[ALL];
    struct gpu_client a;
    unsigned n;
    int err;

    assert(setenv("STANDIN_FAIL", "cuMemCreate:3:-2", 1) == 0);
    gpu_start(NULL);
    a = opened();
    n = reserve_all(&a, s, ALL, &err);
    CU_ASSERT_EQUAL(n, 2 * GPU_SLOTS_PER_EXTENT);
    CU_ASSERT_EQUAL(err, -ENOSPC);
    CU_ASSERT_TRUE(daemon_logged(&raw_daemon, "event=extent-not-created"));
    CU_ASSERT_EQUAL(gpu_abort(&a, &s[0]), 0);
    for (unsigned i = 0; i < 3; i++) { /* three pages use one slot, one after the other */
        uint64_t lease;

        (void) gpu_publish(&a, 9000 + i, &lease);
        CU_ASSERT_EQUAL(gpu_release(&a, lease), 0);
    }
    CU_ASSERT_EQUAL(gpu_status().pages, 1);
    CU_ASSERT_TRUE(gpu_client_end(&a));
    gpu_stop();
    assert(unsetenv("STANDIN_FAIL") == 0);
}

static void test_mover_killed_repeatedly(void)
{
    static struct raw_slot s[2 * GPU_SLOTS_PER_EXTENT];
    struct gpu_client a, b;
    struct gpu_status f;
    struct raw_slot page;
    int err;

    gpu_start(NULL);
    a = opened();
    b = opened();
    page = gpu_publish(&a, 1, NULL);
    f = gpu_status();
    CU_ASSERT_TRUE_FATAL(f.mover_pid > 0);
    /* the mover has a request for an extent and does not answer */
    CU_ASSERT_EQUAL(kill((pid_t) f.mover_pid, SIGSTOP), 0);
    while ((err = gpu_reserve(&b, 5000 + (uint64_t) ++s[0].slot).err) == 0 && s[0].slot < ALL)
        ;
    CU_ASSERT_EQUAL(err, -EAGAIN);
    CU_ASSERT_EQUAL(kill((pid_t) f.mover_pid, SIGKILL), 0);
    CU_ASSERT_EQUAL(gpu_bye(&b), 0);
    CU_ASSERT_EQUAL(gpu_open(&b, GPU_UUID), 0);
    CU_ASSERT_EQUAL(reserve_all(&b, s, 2 * GPU_SLOTS_PER_EXTENT, &err), 2 * GPU_SLOTS_PER_EXTENT);
    CU_ASSERT_TRUE(gpu_status().mover_restarts >= 1);
    CU_ASSERT_EQUAL(gpu_lease(&b, 1, &page, NULL), 0);
    CU_ASSERT_TRUE(gpu_reads(&b, 1, &page));
    CU_ASSERT_TRUE(gpu_client_end(&a));
    CU_ASSERT_TRUE(gpu_client_end(&b));
    gpu_stop();
}

/* No descriptor is left, for an extent of the mover or for a client. Both succeed later. */
static void test_no_descriptors_left(void)
{
    struct gpu_client a;
    struct rlimit old, none;
    struct raw_slot s;
    uint64_t n = 0;

    gpu_start((const char *const[]){"--gpu-spare-extents=0", NULL});
    a = opened();
    s = gpu_publish(&a, 1, NULL);
    CU_ASSERT_EQUAL(prlimit(raw_daemon.pid, RLIMIT_NOFILE, NULL, &old), 0);
    none = (struct rlimit){3, old.rlim_max}; /* open descriptors stay */
    CU_ASSERT_EQUAL(prlimit(raw_daemon.pid, RLIMIT_NOFILE, &none, NULL), 0);
    do {
        s = gpu_reserve(&a, 100 + n++);
    } while (s.err == 0 && n < ALL);
    CU_ASSERT_EQUAL(n, GPU_SLOTS_PER_EXTENT); /* the other slots of the extent, and one more */
    CU_ASSERT_TRUE(s.err == -EAGAIN || s.err == -EMFILE);
    CU_ASSERT_EQUAL(prlimit(raw_daemon.pid, RLIMIT_NOFILE, &old, NULL), 0);
    s = gpu_reserve_soon(&a, 100 + n);
    CU_ASSERT_EQUAL(s.err, 0);
    CU_ASSERT_EQUAL(gpu_fill(&a, 100 + n, &s), 0);
    CU_ASSERT_EQUAL(gpu_commit(&a, 100 + n, &s, NULL), 0);
    CU_ASSERT_TRUE(gpu_client_end(&a));
    gpu_stop();
}

const struct test_case test_cases[] = {
    TEST(test_two_processes_share_pages),
    TEST(test_the_first_page_wins),
    TEST(test_memory_of_a_dead_process_waits_for_the_driver),
    TEST(test_memory_of_a_dead_process_waits_for_the_delay),
    TEST(test_without_a_list_extents_retire),
    TEST(test_with_numbers_of_another_namespace_extents_retire),
    TEST(test_behind_mps_extents_retire),
    TEST(test_reservations_survive_their_connection),
    TEST(test_reservations_survive_silence),
    TEST(test_clean_ends_free_at_once),
    TEST(test_lender_gets_its_extents_back),
    TEST(test_quota_of_the_device),
    TEST(test_out_of_gpu_memory),
    TEST(test_mover_killed_repeatedly),
    TEST(test_no_descriptors_left),
    TEST_END,
};
