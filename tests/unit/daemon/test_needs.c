/* System calls that a sandbox forbids, and the limit of file sizes: the start says so. */
#include "daemon/start_check.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/errmsg.h"
#include "daemon/config/config.h"
#include "tests/lib/forbid.h"
#include "tests/lib/test.h"

const char test_suite[] = "needs";

enum { NO_SECCOMP = 77 };

/* Runs the check in a child. @number: a system call that is forbidden, or -1. @limit: of file sizes. */
static int check_in_child(int number, rlim_t limit, int r, const char *word)
{
    int status;
    pid_t pid = fork();

    CU_ASSERT_FATAL(pid >= 0);
    if (pid == 0) {
        const struct rlimit size = {limit > 4096 ? 4096 : limit, limit};
        struct errmsg e = {""};
        struct config c;

        config_init(&c);
        c.extent_bytes = 64 << 20;
        if (setrlimit(RLIMIT_FSIZE, &size) < 0 || (number >= 0 && forbid_call(number) < 0))
            _exit(NO_SECCOMP);
        _exit(needs_check(&c, &e) == r && strstr(e.text, word) ? 0 : 1);
    }
    CU_ASSERT_EQUAL(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void test_forbidden_calls(void)
{
    static const struct {
        int number;
        const char *word;
    } calls[] = {
        {SYS_pidfd_open, "pidfd_open(2)"},        {SYS_memfd_create, "memfd_create(2)"},
        {SYS_fallocate, "fallocate(2)"},          {SYS_madvise, "madvise(2) with MADV_DONTFORK"},
        {SYS_fcntl, "fcntl(2) with F_ADD_SEALS"},
    };

    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
        int status = check_in_child(calls[i].number, RLIM_INFINITY, -EPERM, calls[i].word);

        if (status == NO_SECCOMP) {
            test_skip("this system has no seccomp");
            return;
        }
        CU_ASSERT_EQUAL(status, 0);
    }
}

static void test_limit_of_file_sizes(void)
{
    CU_ASSERT_EQUAL(check_in_child(-1, RLIM_INFINITY, 0, ""), 0); /* a lower soft limit is raised */
    CU_ASSERT_EQUAL(check_in_child(-1, 1 << 20, -EFBIG, "ulimit -f"), 0);
}

const struct test_case test_cases[] = {
    TEST(test_forbidden_calls),
    TEST(test_limit_of_file_sizes),
    TEST_END,
};
