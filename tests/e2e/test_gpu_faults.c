/*
 * A pool on a GPU after a start without memory for the sessions or leases that it found (kvcobrad_faulty):
 * reserved and held slots stay until their process has certainly ended. The last case has a mover that cannot
 * map the extents.
 */
#include "tests/lib/test.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/e2e/gpu_service_fixture.h"
#include "tests/e2e/supervisor_fixture.h"
#include "tests/lib/random_table.h"

const char test_suite[] = "gpu_faults";

enum { HELD = 6 };

static struct raw_slot slots[HELD + 1]; /* the last one is reserved only */

static struct gpu_client opened(void)
{
    struct gpu_client a = gpu_client_new();

    CU_ASSERT_EQUAL_FATAL(gpu_open(&a, GPU_UUID), 0);
    return a;
}

static void restart(const char *fault)
{
    assert(fault ? setenv("KVC_TEST_FAULT", fault, 1) == 0 : unsetenv("KVC_TEST_FAULT") == 0);
    supervisor_kill();
    CU_ASSERT_FATAL(supervisor_again());
}

/* Starts a client with held pages and a reserved slot, then restarts the daemon with @fault. */
static struct gpu_client begin(const char *fault)
{
    struct gpu_client a;

    gpu_list_process(0);
    raw_geometry = random_table_geometry(2, 4, 2, 32);
    raw_table = raw_make_table(1);
    supervisor_begin(gpu_args(NULL));
    raw_activate_table(raw_table);
    a = opened();
    for (unsigned i = 0; i < HELD; i++)
        slots[i] = gpu_publish(&a, 1 + i, NULL);
    slots[HELD] = gpu_reserve_soon(&a, 1 + HELD);
    CU_ASSERT_EQUAL(gpu_fill(&a, 1 + HELD, &slots[HELD]), 0);
    restart(fault);
    gpu_disconnect(&a);
    CU_ASSERT_EQUAL(gpu_status().held_bytes, (HELD + 1) * GPU_PAGE_BYTES);
    return a;
}

static void finish(void)
{
    supervisor_finish();
    raw_table = table_unref(raw_table);
}

/* Publishes more pages than fit the pool, and checks that none of the slots is given to another client. */
static void publish_more_than_fits(void)
{
    static uint64_t n = 1000;
    struct gpu_client b = opened();

    for (uint64_t end = n + 5 * GPU_SLOTS_PER_EXTENT; n < end; n++) {
        struct raw_slot s;
        uint64_t lease;

        s = gpu_publish(&b, n, &lease);
        for (unsigned i = 0; i <= HELD; i++)
            CU_ASSERT_TRUE_FATAL(s.slot != slots[i].slot);
        CU_ASSERT_EQUAL(gpu_release(&b, lease), 0);
    }
    CU_ASSERT_TRUE(gpu_client_end(&b));
}

static void test_no_session_and_the_process_ends(void)
{
    struct gpu_client a = begin("sessions");

    publish_more_than_fits();
    CU_ASSERT_EQUAL(gpu_status().retired_extents, 0);
    gpu_client_kill(&a);
    gpu_wait_for_held(0);
    CU_ASSERT_TRUE(daemon_logged(&raw_daemon, "event=memory-retired"));
    CU_ASSERT_NOT_EQUAL(supervisor_stored("kvc-gpu-"), 0);
    for (unsigned i = 0; i <= HELD; i++) { /* the slots' extent was freed */
        struct gpu_client b = opened();

        CU_ASSERT_EQUAL(gpu_get_extent(&b, slots[i].extent), -ENOENT);
        CU_ASSERT_TRUE(gpu_client_end(&b));
    }
    restart(NULL);
    CU_ASSERT_EQUAL(gpu_status().held_bytes, 0);
    finish();
}

static void test_no_session_and_a_later_start_has_it(void)
{
    struct gpu_client a = begin("sessions");

    publish_more_than_fits();
    restart("sessions");
    publish_more_than_fits();
    restart(NULL);
    CU_ASSERT_EQUAL(gpu_status().held_bytes, (HELD + 1) * GPU_PAGE_BYTES);
    CU_ASSERT_EQUAL(gpu_resume(&a), 0);
    CU_ASSERT_EQUAL(gpu_commit(&a, 1 + HELD, &slots[HELD], NULL), 0);
    for (unsigned i = 0; i <= HELD; i++)
        CU_ASSERT_TRUE(gpu_reads(&a, 1 + i, &slots[i]));
    CU_ASSERT_EQUAL(gpu_bye(&a), 0);
    CU_ASSERT_EQUAL(gpu_status().held_bytes, 0);
    CU_ASSERT_TRUE(gpu_client_end(&a));
    finish();
}

/*
 * Half of the holds could not be restored to their session, which was: they too wait until the driver no
 * longer lists the process.
 */
static void test_some_leases_are_missing(void)
{
    struct gpu_client a = begin("leases");

    publish_more_than_fits();
    gpu_list_process(a.pid);
    gpu_client_kill(&a);
    gpu_wait_for_quarantined(HELD + 1);
    gpu_stays_quarantined(HELD + 1);
    publish_more_than_fits();
    CU_ASSERT_EQUAL(gpu_status().held_bytes, (HELD + 1) * GPU_PAGE_BYTES);
    gpu_list_process(0);
    gpu_wait_for_held(0);
    CU_ASSERT_EQUAL(gpu_status().retired_extents, 0);
    finish();
}

/* Pages whose checksums cannot be computed are not granted, and an operator can evict them. */
static void test_pages_without_checksums(void)
{
    struct gpu_client a = begin(NULL), b;

    CU_ASSERT_EQUAL(gpu_resume(&a), 0);
    CU_ASSERT_TRUE(gpu_client_end(&a));
    assert(setenv("STANDIN_FAIL", "cuMemImportFromShareableHandle:1:-304", 1) == 0);
    restart(NULL);
    assert(unsetenv("STANDIN_FAIL") == 0);
    b = opened();
    for (unsigned i = 0; i < HELD; i++)
        CU_ASSERT_EQUAL(gpu_lease(&b, 1 + i, &slots[i], NULL), -EAGAIN);
    CU_ASSERT_EQUAL(gpu_status().pages, HELD);
    CU_ASSERT_EQUAL(raw_evict(""), 0);
    CU_ASSERT_EQUAL(gpu_status().pages, 0);
    CU_ASSERT_EQUAL(gpu_lease(&b, 1, &slots[0], NULL), -ENODATA);
    CU_ASSERT_TRUE(gpu_client_end(&b));
    restart(NULL); /* without the fault */
    b = opened();
    slots[0] = gpu_publish(&b, 1, NULL);
    CU_ASSERT_TRUE(gpu_reads(&b, 1, &slots[0]));
    CU_ASSERT_TRUE(gpu_client_end(&b));
    finish();
}

const struct test_case test_cases[] = {
    TEST(test_no_session_and_the_process_ends),
    TEST(test_no_session_and_a_later_start_has_it),
    TEST(test_some_leases_are_missing),
    TEST(test_pages_without_checksums),
    TEST_END,
};
