/* Worker threads run every item once, for jobs of all sizes and any number of threads. */
#include "tests/lib/test.h"

#include "base/errmsg.h"
#include "base/threads.h"
#include "base/worker_thread.h"

#include <errno.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ITEMS_MAX = 64 };

struct job {
    /* not atomic: an item that runs twice, or is unfinished on return, is found here or by TSan */
    unsigned done[ITEMS_MAX];
    unsigned n_workers;
    _Atomic unsigned wrong;
};

static void count(void *ctx, size_t item, unsigned worker)
{
    struct job *j = ctx;

    if (worker >= j->n_workers)
        atomic_fetch_add(&j->wrong, 1);
    j->done[item]++;
}

static void check_jobs(unsigned n_threads, unsigned n_jobs)
{
    struct threads *t = NULL;
    struct errmsg e = {0};

    CU_ASSERT_EQUAL_FATAL(threads_new(n_threads, &t, &e), 0);
    for (unsigned k = 0; k < n_jobs; k++) {
        struct job j = {.n_workers = threads_count(t)};
        size_t n = test_rand_below(ITEMS_MAX + 1);
        unsigned missing = 0;

        threads_run(t, count, &j, n);
        for (size_t i = 0; i < ITEMS_MAX; i++)
            missing += j.done[i] != (i < n);
        CU_ASSERT_EQUAL_FATAL(missing, 0);
        CU_ASSERT_EQUAL_FATAL(j.wrong, 0);
        if (k % 500 == 499) { /* long enough for the workers to sleep */
            const struct timespec pause = {.tv_nsec = 2000000};

            (void) nanosleep(&pause, NULL);
        }
    }

    CU_ASSERT_PTR_NULL(threads_free(t));
}

static void test_jobs(void)
{
    check_jobs(1, 100);
    check_jobs(2, 3000);
    check_jobs(7, 1500);
}

static void test_without(void)
{
    struct job j = {.n_workers = 1};

    CU_ASSERT_EQUAL(threads_count(NULL), 1);
    threads_run(NULL, count, &j, 5);
    CU_ASSERT(j.done[0] == 1 && j.done[4] == 1 && j.done[5] == 0);
    CU_ASSERT_PTR_NULL(threads_free(NULL));
}

static void test_limits(void)
{
    struct threads *t = NULL;
    struct errmsg e = {0};

    CU_ASSERT_EQUAL(threads_new(257, &t, &e), -EINVAL);
    CU_ASSERT_PTR_NULL(t);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "257"));
    CU_ASSERT_EQUAL(threads_new(0, &t, &e), 0);
    CU_ASSERT_EQUAL(threads_count(t), threads_available());
    (void) threads_free(t);
}

/* As many as the process may use, which may be fewer than the machine has. */
static void test_available(void)
{
    cpu_set_t before, one;
    int first = 0;

    CU_ASSERT_EQUAL_FATAL(sched_getaffinity(0, sizeof(before), &before), 0);
    CU_ASSERT_EQUAL(threads_available(), (unsigned) CPU_COUNT(&before));
    while (!CPU_ISSET(first, &before))
        first++;
    CPU_ZERO(&one);
    CPU_SET(first, &one);
    CU_ASSERT_EQUAL(sched_setaffinity(0, sizeof(one), &one), 0);
    CU_ASSERT_EQUAL(threads_available(), 1);
    CU_ASSERT_EQUAL(sched_setaffinity(0, sizeof(before), &before), 0);
}

/* Workers leave signals to the process, and take those that they raise themselves. */
static void test_signals(void)
{
    static const int blocked[] = {SIGTERM, SIGINT, SIGHUP, SIGPIPE, SIGALRM, SIGUSR1},
                     faults[] = {SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS, SIGTRAP};
    sigset_t set;

    worker_signals_fill(&set);
    for (size_t i = 0; i < 6; i++) {
        CU_ASSERT_EQUAL(sigismember(&set, blocked[i]), 1);
        CU_ASSERT_EQUAL(sigismember(&set, faults[i]), 0);
    }
}

const struct test_case test_cases[] = {TEST(test_jobs),      TEST(test_without), TEST(test_limits),
                                       TEST(test_available), TEST(test_signals), TEST_END};
const char test_suite[] = "threads";
