/*
 * Every system call and every allocation of a daemon fails once, in each plausible way: the n-th of one fixed
 * life (life_fixture.h), n = 1, 2, 3 ... until a life ends without the failure. The daemon is
 * kvcobrad_faulty, which checks all its accounts.
 *
 * KVC_FAULTS=all tries each; KVC_FAULTS=K each K-th, with one of its failures in turn. KVC_FAULT_FROM=N
 * begins at the N-th. The last line of each case says what was tried.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/e2e/daemon_fixture.h"
#include "tests/e2e/life_fixture.h"
#include "tests/fault/calls.h"
#include "tests/fault/fault_page.h"
#include "tests/lib/test.h"

const char test_suite[] = "daemon_faults";

enum { NTH_MAX = 100000, VARIANTS_MAX = 16, FAILURES_MAX = 8 };

static char folder[] = "/tmp/kvcobra-faults-XXXXXX", page_path[64];
static struct fault_page *page;

static bool page_has_fired(void)
{
    return atomic_load(&page->fired);
}

static bool nothing_fires(void)
{
    return false;
}

static unsigned step_of(unsigned by_default)
{
    const char *text = getenv("KVC_FAULTS");

    if (!text)
        return by_default;
    return strcmp(text, "all") == 0 ? 1 : (unsigned) atoi(text);
}

static unsigned first_of(void)
{
    const char *text = getenv("KVC_FAULT_FROM");

    return text ? (unsigned) atoi(text) : 1;
}

/* The daemon runs under calls_launch. False: not possible here. */
static bool begin(struct life *l)
{
    const char *program = getenv("KVC_KVCOBRAD"), *launcher = getenv("KVC_CALLS_LAUNCH");

    assert(program && launcher && mkdtemp(folder));
    if (!calls_begin(folder)) {
        test_skip("this kernel does not report system calls to another process");
        return false;
    }
    (void) snprintf(page_path, sizeof(page_path), "%s/memory", folder);
    page = fault_page_new(page_path);
    assert(setenv("KVC_FAULT_PROGRAM", program, 1) == 0 && setenv("KVC_FAULT_FOLDER", folder, 1) == 0);
    assert(setenv("KVC_FAULT_MEMORY", page_path, 1) == 0 && setenv("KVC_KVCOBRAD", launcher, 1) == 0);
    life_begin();
    *l = (struct life){.has_failed = nothing_fires};
    CU_ASSERT_FATAL(life_run(l)); /* without a failure: the numbers to compare with */
    return true;
}

static void end(void)
{
    life_end();
    calls_end();
    page = fault_page_free(page);
    (void) unlink(page_path);
    (void) rmdir(folder);
    assert(setenv("KVC_KVCOBRAD", getenv("KVC_FAULT_PROGRAM"), 1) == 0);
    memcpy(folder + strlen(folder) - 6, "XXXXXX", 6);
}

static void print_counts(const char *what, unsigned nth, unsigned n_lives, unsigned step,
                         const struct life *l)
{
    printf("    %s: %u in one life, every %u-th failed, %u lives, %u starts refused, %u steps repeated\n",
           what, nth - 1, step, n_lives, l->n_starts_failed, l->n_steps_failed);
}

static void test_system_calls(void)
{
    unsigned nth, step = step_of(23), n_lives = 0, n_failures = 0;
    bool reached = true;
    struct life l;

    if (!CALLS_CAN_FAIL) {
        test_skip(CALLS_CANNOT_FAIL_TEXT);
        return;
    }
    if (!begin(&l))
        return;
    l.has_failed = calls_fired;
    for (nth = first_of(); reached && nth < NTH_MAX && n_failures < FAILURES_MAX; nth += step) {
        for (unsigned variant = 0; variant < VARIANTS_MAX; variant++) {
            struct calls_result r;
            bool good;

            /* a part of the failures, in turn, where not all calls fail */
            calls_arm(nth, step == 1 ? variant : nth / step % 3 + variant);
            good = life_run(&l);
            r = calls_disarm();
            n_lives++;
            if (!good) {
                printf("    the daemon's system call %u failed: %s\n", nth, r.what);
                n_failures++;
            }
            reached = r.fired || r.exhausted;
            if (!r.fired || step > 1)
                break;
        }
    }
    print_counts("system calls", nth, n_lives, step, &l);
    CU_ASSERT(n_failures == 0 && !reached && nth < NTH_MAX);
    end();
}

/* SIGKILL before each system call. */
static void test_kills(void)
{
    unsigned nth, step = step_of(19), n_lives = 0, n_failures = 0;
    struct calls_result r = {.fired = true};
    struct life l;

    if (!begin(&l))
        return;
    l.has_failed = calls_fired;
    l.killed = calls_fired_in;
    for (nth = first_of(); r.fired && nth < NTH_MAX && n_failures < FAILURES_MAX; nth += step) {
        bool good;

        calls_arm_kill(nth);
        good = life_run(&l);
        r = calls_disarm();
        n_lives++;
        if (!good) {
            printf("    the daemon was killed at system call %u: %s\n", nth, r.what);
            n_failures++;
        }
    }
    print_counts("kills", nth, n_lives, step, &l);
    CU_ASSERT(n_failures == 0 && !r.fired && nth < NTH_MAX);
    end();
}

static void test_allocations(void)
{
    unsigned nth, step = step_of(29), n_lives = 0, n_failures = 0;
    bool fired = true;
    struct life l;

    if (!begin(&l))
        return;
    l.has_failed = page_has_fired;
    for (nth = first_of(); fired && nth < NTH_MAX && n_failures < FAILURES_MAX; nth += step) {
        fault_page_arm(page, nth);
        if (!life_run(&l)) {
            printf("    the daemon's allocation %u failed, before %#" PRIxPTR "\n", nth,
                   atomic_load(&page->caller));
            n_failures++;
        }
        fired = atomic_load(&page->fired);
        fault_page_arm(page, 0);
        n_lives++;
    }
    print_counts("allocations", nth, n_lives, step, &l);
    CU_ASSERT(n_failures == 0 && !fired && nth < NTH_MAX);
    end();
}

const struct test_case test_cases[] = {TEST(test_system_calls), TEST(test_kills), TEST(test_allocations),
                                       TEST_END};
