/*
 * Appending and attending make no system call in a connected client either: pages are claimed from the arena.
 */
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/e2e/client_fixture.h"
#include "tests/lib/random_table.h"
#include "tests/lib/test.h"
#include "tests/unit/client/no_syscalls.h"

static int run(const struct scene *sc, bool make_a_call)
{
    int status = 0;
    pid_t pid = fork();

    if (pid == 0) {
        struct embedded m = scene_client(sc);

        decode_without_syscalls(&m, make_a_call);
    }
    CU_ASSERT_EQUAL(waitpid(pid, &status, 0), pid);
    return status;
}

static void test_no_system_calls(void)
{
    struct scene sc;
    int status;

    if (!SYSCALLS_TESTABLE) {
        test_skip("sanitizers make system calls of their own");
        return;
    }
    scene_start(&sc, random_table_geometry(3, 6, 2, 64), 3, 1, NULL);
    status = run(&sc, false);
    if (WIFEXITED(status) && WEXITSTATUS(status) == SYSCALLS_NO_SECCOMP) {
        test_skip("this system has no seccomp");
    } else {
        CU_ASSERT(WIFEXITED(status) && WEXITSTATUS(status) == SYSCALLS_NONE);
        status = run(&sc, true);
        CU_ASSERT(WIFSIGNALED(status));
    }
    scene_end(&sc);
}

const struct test_case test_cases[] = {TEST(test_no_system_calls), TEST_END};
const char test_suite[] = "client_syscalls";
