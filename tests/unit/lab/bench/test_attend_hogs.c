/* Threads that read memory: they use processor time while they exist, and end. */
#include "lab/bench/attend_hogs.h"

#include <time.h>

#include "tests/lib/test.h"

static double process_seconds(void)
{
    struct timespec ts;

    assert(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts) == 0);
    return (double) ts.tv_sec + (double) ts.tv_nsec * 1e-9;
}

static void test_read_until_freed(void)
{
    struct attend_hogs *h = NULL;
    struct timespec pause = {.tv_nsec = 1000 * 1000};
    double start;

    CU_ASSERT_FATAL(attend_hogs_new(2, &h) == 0);
    start = process_seconds(); /* this thread sleeps: the time is that of the others */
    for (int i = 0; i < 60000 && process_seconds() < start + 0.1; i++)
        (void) nanosleep(&pause, NULL);
    CU_ASSERT(process_seconds() >= start + 0.1);
    CU_ASSERT_PTR_NULL(attend_hogs_free(h));
    start = process_seconds();
    (void) nanosleep(&pause, NULL);
    CU_ASSERT(process_seconds() < start + 0.1);
}

static void test_none(void)
{
    struct attend_hogs *h = NULL;

    CU_ASSERT(attend_hogs_new(0, &h) == 0);
    CU_ASSERT_PTR_NULL(attend_hogs_free(h));
    CU_ASSERT_PTR_NULL(attend_hogs_free(NULL));
}

const char test_suite[] = "attend_hogs";
const struct test_case test_cases[] = {TEST(test_read_until_freed), TEST(test_none), TEST_END};
