/* See core_file.h. */
#include "base/core_file.h"

#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

enum { LINE_BYTES = 512, GUARD_BYTES = 4096 };

void core_file_limit(void)
{
    struct rlimit limit;

    /* 0 means no limit where cores are piped to a program, and 1 means none; a lower hard limit stays */
    if (getrlimit(RLIMIT_CORE, &limit) == 0 && limit.rlim_max > 1)
        limit.rlim_max = 1;
    limit.rlim_cur = limit.rlim_max;
    (void) setrlimit(RLIMIT_CORE, &limit);
}

void core_file_forbid(void)
{
    (void) prctl(PR_SET_DUMPABLE, 0);
    core_file_limit();
}

/* ---- leaving memory out; all in a signal handler, so without stdio and malloc ---- */

struct area {
    uintptr_t start, end;
    bool is_private, is_writable, is_readable, is_unnamed, is_heap;
};

static const char *core_file_read_hex(const char *at, uintptr_t *ret)
{
    *ret = 0;
    for (;; at++) {
        if (*at >= '0' && *at <= '9')
            *ret = *ret * 16 + (uintptr_t) (*at - '0');
        else if (*at >= 'a' && *at <= 'f')
            *ret = *ret * 16 + (uintptr_t) (*at - 'a' + 10);
        else
            return at;
    }
}

/* A line of /proc/self/maps: "START-END rwxp OFFSET MAJOR:MINOR INODE    NAME". */
static struct area core_file_parse(const char *line)
{
    struct area a;
    const char *at = core_file_read_hex(line, &a.start);

    at = core_file_read_hex(*at ? at + 1 : at, &a.end);
    if (strlen(at) < 6)
        return (struct area){.start = 0};
    a.is_readable = at[1] == 'r';
    a.is_writable = at[2] == 'w';
    a.is_private = at[4] == 'p';
    a.is_unnamed = strchr(at, '/') == NULL && strchr(at, '[') == NULL;
    a.is_heap = strstr(at, "[heap]") != NULL;
    return a;
}

/*
 * @before: the area below it. What the C library allocates is unnamed, too: a thread's stack has a guard page
 * below it, and the static data of a file has the file.
 */
static bool core_file_is_allocated(const struct area *a, const struct area *before)
{
    bool touches = before->end == a->start;
    bool is_stack = touches && !before->is_readable && before->end - before->start == GUARD_BYTES;
    bool is_static = touches && before->is_readable && !before->is_unnamed && !before->is_heap;

    return a->is_private && a->is_writable && (a->is_heap || (a->is_unnamed && !is_stack && !is_static));
}

static void core_file_leave_out(void)
{
    int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    char line[LINE_BYTES] = "";
    struct area before = {.start = 0};
    size_t n = 0;

    for (char c; fd >= 0 && read(fd, &c, 1) == 1;) {
        struct area a;

        if (c != '\n') {
            if (n < sizeof(line) - 1)
                line[n++] = c;
            continue;
        }

        line[n] = '\0';
        n = 0;
        a = core_file_parse(line);
        if (core_file_is_allocated(&a, &before))
            (void) madvise((void *) a.start, a.end - a.start, MADV_DONTDUMP);
        before = a;
    }
    if (fd >= 0)
        (void) close(fd);
}

static void core_file_on_end(int signal_number)
{
    core_file_leave_out();
    (void) signal(signal_number, SIG_DFL);
    (void) raise(signal_number);
}

void core_file_allow(void)
{
    static const int ends[] = {SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGQUIT, SIGSEGV, SIGSYS, SIGTRAP};
    static char stack[1 << 16]; /* of the main thread, whose own may be full */
    const stack_t other = {.ss_sp = stack, .ss_size = sizeof(stack)};
    struct sigaction action = {.sa_handler = core_file_on_end, .sa_flags = SA_ONSTACK};
    struct rlimit limit;

    if (getrlimit(RLIMIT_CORE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        (void) setrlimit(RLIMIT_CORE, &limit);
    }

    (void) sigaltstack(&other, NULL);
    (void) sigfillset(&action.sa_mask);
    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++)
        (void) sigaction(ends[i], &action, NULL);
}
