/* kvc_client_new() in a sandbox: the errno says what failed, since no handle has a sentence yet. */
#include <errno.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/kvcobra.h"
#include "tests/lib/forbid.h"
#include "tests/lib/test.h"

const char test_suite[] = "client_api_new";

enum { NO_SECCOMP = 77 };

static void test_forbidden_madvise(void)
{
    kvc_client *c = NULL;
    int status;
    pid_t pid = fork();

    if (pid == 0) {
        if (forbid_call(SYS_madvise) < 0)
            _exit(NO_SECCOMP);
        _exit(kvc_client_new(&c) == -EPERM && !c ? 0 : 1);
    }
    CU_ASSERT_EQUAL(waitpid(pid, &status, 0), pid);
    if (WIFEXITED(status) && WEXITSTATUS(status) == NO_SECCOMP)
        test_skip("this system has no seccomp");
    else
        CU_ASSERT_EQUAL(status, 0);
}

const struct test_case test_cases[] = {TEST(test_forbidden_madvise), TEST_END};
