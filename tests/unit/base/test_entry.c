/* What main() does first, in children: closed standard descriptors, limits, output that cannot be written. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/entry.h"
#include "base/memory_file.h"
#include "tests/lib/test.h"

const char test_suite[] = "entry";

enum { TEXT_BYTES = 1024 };

struct end {
    int status;            /* of waitpid() */
    char said[TEXT_BYTES]; /* on standard error */
};

/* Runs @run in a child whose standard error is a file. The child exits with what @run returns. */
static struct end entry_child(int (*run)(void))
{
    _cleanup_(closep) int fd = memory_file_open("stderr");
    struct end end = {0};
    pid_t pid;
    ssize_t n;

    CU_ASSERT_FATAL(fd > STDERR_FILENO);
    (void) fflush(NULL);
    pid = fork();
    CU_ASSERT_FATAL(pid >= 0);
    if (pid == 0) {
        (void) dup2(fd, STDERR_FILENO);
        exit(run());
    }

    CU_ASSERT_EQUAL(waitpid(pid, &end.status, 0), pid);
    n = pread(fd, end.said, sizeof(end.said) - 1, 0);
    CU_ASSERT(n >= 0);
    return end;
}

static int close_all(void)
{
    char byte;

    for (int fd = 0; fd <= STDERR_FILENO; fd++)
        (void) close(fd);
    entry_prepare(ENTRY_PIPES_KILL);
    for (int fd = 0; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0)
            _exit(10 + fd);
    if (read(STDIN_FILENO, &byte, 1) != -1 || errno != EBADF)
        _exit(20);
    if (write(STDOUT_FILENO, "x", 1) != -1 || errno != EBADF)
        _exit(21);
    _exit(write(STDERR_FILENO, "x", 1) == 1 ? 0 : 22);
}

static void test_closed_descriptors_are_opened(void)
{
    CU_ASSERT_EQUAL(entry_child(close_all).status, 0);
}

/* Those that are open stay as they are. */
static int keep_all(void)
{
    int pair[2];
    char byte = 0;

    if (pipe(pair) < 0)
        return 10;
    (void) dup2(pair[0], STDIN_FILENO);
    (void) dup2(pair[1], STDOUT_FILENO);
    entry_prepare(ENTRY_PIPES_KILL);
    return write(STDOUT_FILENO, "x", 1) == 1 && read(STDIN_FILENO, &byte, 1) == 1 && byte == 'x' ? 0 : 11;
}

static void test_open_descriptors_stay(void)
{
    CU_ASSERT_EQUAL(entry_child(keep_all).status, 0);
}

static int print_to_closed(void)
{
    (void) close(STDOUT_FILENO);
    entry_prepare(ENTRY_PIPES_KILL);
    printf("text\n");
    return 0;
}

static int print_nothing(void)
{
    (void) close(STDOUT_FILENO);
    entry_prepare(ENTRY_PIPES_KILL);
    return 0;
}

static int print_to_full(void)
{
    entry_prepare(ENTRY_PIPES_KILL);
    if (!freopen("/dev/full", "w", stdout))
        return 10;
    printf("text\n");
    return 0;
}

static void test_output_that_cannot_be_written(void)
{
    struct end end = entry_child(print_to_closed);

    CU_ASSERT(WIFEXITED(end.status) && WEXITSTATUS(end.status) == EXIT_FAILURE);
    CU_ASSERT_PTR_NOT_NULL(strstr(end.said, "cannot write to standard output: Bad file descriptor\n"));
    end = entry_child(print_to_full);
    CU_ASSERT(WIFEXITED(end.status) && WEXITSTATUS(end.status) == EXIT_FAILURE);
    CU_ASSERT_PTR_NOT_NULL(strstr(end.said, "cannot write to standard output: No space left on device\n"));
    end = entry_child(print_nothing); /* nothing is missing */
    CU_ASSERT_EQUAL(end.status, 0);
    CU_ASSERT_STRING_EQUAL(end.said, "");
}

/* Whether the format stays; entry_prepare() runs in a child. */
static int keeps_format(void)
{
    entry_prepare(ENTRY_PIPES_KILL);
    return getenv("ARGP_HELP_FMT") ? 0 : 7;
}

static void test_help_formats(void)
{
    static const struct {
        const char *format;
        bool stays;
    } cases[] = {
        {"rmargin=1", false},
        {"rmargin=31", false},
        {"rmargin=32", true},
        {"rmargin=79", true},
        {"rmargin=99999999999", false},
        {"rmargin=-1", false},
        {"opt-doc-col=40,rmargin=42", false},
        {"opt-doc-col=78", false},
        {"usage-indent=79,rmargin=79", false},
        {"opt-doc-col=40", true},
        {"dup-args,no-dup-args-note", true},
        {"", true},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct end end;

        (void) setenv("ARGP_HELP_FMT", cases[i].format, 1);
        end = entry_child(keeps_format);
        CU_ASSERT(WIFEXITED(end.status) && WEXITSTATUS(end.status) == (cases[i].stays ? 0 : 7));
    }
    (void) unsetenv("ARGP_HELP_FMT");
}

static int exceed_file_size(void)
{
    const struct rlimit limit = {4096, 4096};
    int fd = memory_file_open("file");

    entry_prepare(ENTRY_PIPES_KILL);
    if (fd < 0 || setrlimit(RLIMIT_FSIZE, &limit) < 0)
        return 10;
    return ftruncate(fd, 8192) == -1 && errno == EFBIG ? 0 : 11;
}

static void test_file_size_is_an_error(void)
{
    CU_ASSERT_EQUAL(entry_child(exceed_file_size).status, 0);
}

static int exceed_cpu(void)
{
    entry_prepare(ENTRY_PIPES_FAIL);
    return raise(SIGXCPU);
}

static void test_cpu_limit_is_a_sentence(void)
{
    struct end end = entry_child(exceed_cpu);

    CU_ASSERT(WIFSIGNALED(end.status) && WTERMSIG(end.status) == SIGXCPU);
    CU_ASSERT_PTR_NOT_NULL(strstr(end.said, ": the limit of processor time (RLIMIT_CPU) is reached"));
}

static int write_to_closed_pipe(enum entry_pipes pipes)
{
    int pair[2];

    entry_prepare(pipes);
    if (pipe(pair) < 0)
        return 10;
    (void) close(pair[0]);
    return write(pair[1], "x", 1) == -1 && errno == EPIPE ? 0 : 11;
}

static int service_writes(void)
{
    return write_to_closed_pipe(ENTRY_PIPES_FAIL);
}

static int command_writes(void)
{
    return write_to_closed_pipe(ENTRY_PIPES_KILL);
}

static void test_closed_pipes(void)
{
    struct end end = entry_child(command_writes);

    CU_ASSERT_EQUAL(entry_child(service_writes).status, 0);
    CU_ASSERT(WIFSIGNALED(end.status) && WTERMSIG(end.status) == SIGPIPE);
}

const struct test_case test_cases[] = {
    TEST(test_closed_descriptors_are_opened),
    TEST(test_open_descriptors_stay),
    TEST(test_output_that_cannot_be_written),
    TEST(test_file_size_is_an_error),
    TEST(test_cpu_limit_is_a_sentence),
    TEST(test_closed_pipes),
    TEST(test_help_formats),
    TEST_END,
};
