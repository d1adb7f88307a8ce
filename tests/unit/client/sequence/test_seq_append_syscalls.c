/* Appending and attending of an embedded client make no system call; tests/e2e/test_client_syscalls.c tests
 * clients of a daemon. */
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/lib/test.h"
#include "tests/unit/client/no_syscalls.h"

static int run(bool make_a_call)
{
    int status = 0;
    pid_t pid = fork();

    if (pid == 0) { /* the client must be made by the child */
        struct embedded m = embedded_new(3, 6, 2, 64, 3, 0, 0);

        decode_without_syscalls(&m, make_a_call);
    }
    CU_ASSERT_EQUAL(waitpid(pid, &status, 0), pid);
    return status;
}

static void test_no_system_calls(void)
{
    int status;

    if (!SYSCALLS_TESTABLE) {
        test_skip("sanitizers make system calls of their own");
        return;
    }
    status = run(false);
    if (WIFEXITED(status) && WEXITSTATUS(status) == SYSCALLS_NO_SECCOMP) {
        test_skip("no seccomp here");
        return;
    }
    CU_ASSERT(WIFEXITED(status) && WEXITSTATUS(status) == SYSCALLS_NONE);
    if (WIFSIGNALED(status))
        printf("    killed by signal %d: a system call\n", WTERMSIG(status));
    status = run(true); /* the filter can fail */
    CU_ASSERT(WIFSIGNALED(status));
}

const struct test_case test_cases[] = {TEST(test_no_system_calls), TEST_END};
const char test_suite[] = "syscalls";
