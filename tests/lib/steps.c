/* See steps.h. */
#include "tests/lib/steps.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/lib/test.h"

enum { NOT_ALLOWED = 3 };

/* The code under test keeps its shared memory from children; here they need it. */
static void steps_share_mappings(void)
{
    FILE *f = fopen("/proc/self/maps", "re");
    char line[512];
    uintptr_t from, to;

    assert(f);
    while (fgets(line, sizeof(line), f))
        if (strstr(line, "/memfd:") && sscanf(line, "%" SCNxPTR "-%" SCNxPTR, &from, &to) == 2)
            assert(madvise((void *) from, to - from, MADV_DOFORK) == 0);
    (void) fclose(f);
}

long steps_run(void (*work)(void), void (*check)(void))
{
    long n = 0;
    int status;
    pid_t pid;

    steps_share_mappings();
    (void) fflush(stdout);
    pid = fork();
    assert(pid >= 0);
    if (pid == 0) {
        if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) < 0)
            _exit(NOT_ALLOWED);
        (void) raise(SIGSTOP);
        work();
        _exit(0);
    }
    for (;;) {
        assert(waitpid(pid, &status, 0) == pid);
        if (!WIFSTOPPED(status))
            break;
        assert(WSTOPSIG(status) == SIGSTOP || WSTOPSIG(status) == SIGTRAP);
        check();
        n++;
        assert(ptrace(PTRACE_SINGLESTEP, pid, NULL, NULL) == 0);
    }
    assert(WIFEXITED(status));
    if (WEXITSTATUS(status) == NOT_ALLOWED)
        return -1;
    assert(WEXITSTATUS(status) == 0);
    return n;
}
