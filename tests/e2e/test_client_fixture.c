/*
 * A child that fails or dies ends at once, and its parent notices it at once, not at the test's time limit.
 */
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/e2e/client_fixture.h"
#include "tests/lib/test.h"

const char test_suite[] = "client_fixture";

static bool fails_fatally(const struct scene *sc, int from_parent, int to_parent)
{
    (void) sc;
    (void) from_parent;
    CU_ASSERT_FATAL(getpid() == 0);
    pipe_signal(to_parent);
    return true;
}

static bool fails(const struct scene *sc, int from_parent, int to_parent)
{
    (void) sc;
    (void) from_parent;
    CU_ASSERT(getpid() == 0);
    pipe_signal(to_parent);
    return true;
}

static bool dies(const struct scene *sc, int from_parent, int to_parent)
{
    (void) sc;
    (void) from_parent;
    (void) to_parent;
    (void) raise(SIGKILL);
    return true;
}

static bool waits(const struct scene *sc, int from_parent, int to_parent)
{
    (void) sc;
    pipe_signal(to_parent);
    return pipe_wait(from_parent);
}

static void test_fatal_assertion_ends_the_child(void)
{
    struct child c = child_start(fails_fatally, NULL);

    CU_ASSERT(!pipe_wait(c.from));
    CU_ASSERT(!child_end(&c));
}

static void test_failed_assertion_fails_the_child(void)
{
    struct child c = child_start(fails, NULL);

    CU_ASSERT(pipe_wait(c.from));
    CU_ASSERT(!child_end(&c));
}

/* The same while a later child runs, which must not hold the pipe of the dead one. */
static void test_death_is_noticed(void)
{
    struct child other, c = child_start(dies, NULL);

    other = child_start(waits, NULL);
    CU_ASSERT(pipe_wait(other.from));
    CU_ASSERT(!pipe_wait(c.from));
    CU_ASSERT(!child_end(&c));
    pipe_signal(other.to);
    CU_ASSERT(child_end(&other));
}

const struct test_case test_cases[] = {TEST(test_fatal_assertion_ends_the_child),
                                       TEST(test_failed_assertion_fails_the_child),
                                       TEST(test_death_is_noticed), TEST_END};
