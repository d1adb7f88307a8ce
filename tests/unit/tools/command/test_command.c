/* Dispatch, suggestions, exit codes and option values; usage errors end the process, so they run in a
 * child. */
#include "tools/command/command.h"
#include "tools/command/option.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/lib/test.h"

static int seen_argc;
static char seen_name[64];

static int run_seen(int argc, char **argv)
{
    seen_argc = argc;
    (void) snprintf(seen_name, sizeof(seen_name), "%s", argv[0]);
    return COMMAND_FAILED;
}

static const struct command cmd_calibrate_here = {.name = "calibrate", .summary = "one", .run = run_seen};
static const struct command cmd_solve_here = {.name = "solve", .summary = "two", .run = run_seen};
static const struct command *const commands_here[] = {&cmd_calibrate_here, &cmd_solve_here, NULL};

/* Runs @run in a child with stderr in @ret_text. Return: its exit status. */
static int in_child(int (*run)(const char *), const char *arg, char *ret_text, size_t room)
{
    int pipe_fds[2], status;
    size_t n = 0;
    ssize_t got;
    pid_t pid;

    (void) fflush(NULL);
    CU_ASSERT_EQUAL_FATAL(pipe(pipe_fds), 0);
    pid = fork();
    if (pid == 0) {
        (void) dup2(pipe_fds[1], STDERR_FILENO);
        (void) close(pipe_fds[0]);
        exit(run(arg));
    }

    (void) close(pipe_fds[1]);
    while (n < room - 1 && (got = read(pipe_fds[0], ret_text + n, room - 1 - n)) > 0)
        n += (size_t) got;
    ret_text[n] = '\0';
    (void) close(pipe_fds[0]);
    CU_ASSERT_EQUAL_FATAL(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void test_dispatch_names_the_command(void)
{
    char program[] = "kvcobra", name[] = "solve", arg[] = "x";
    char *argv[] = {program, name, arg, NULL};

    CU_ASSERT_EQUAL(command_dispatch(commands_here, "kvcobra", 3, argv), COMMAND_FAILED);
    CU_ASSERT_EQUAL(seen_argc, 2);
    CU_ASSERT_STRING_EQUAL(seen_name, "kvcobra solve");
}

/* @arg: what is allocated; NULL: nothing */
static int take_allocated(const char *arg)
{
    return command_allocated((char *) arg) == arg ? COMMAND_OK : COMMAND_USAGE;
}

static void test_no_memory_ends_the_program(void)
{
    char text[512];

    CU_ASSERT_EQUAL(in_child(take_allocated, "memory", text, sizeof(text)), COMMAND_OK);
    CU_ASSERT_STRING_EQUAL(text, "");
    CU_ASSERT_EQUAL(in_child(take_allocated, NULL, text, sizeof(text)), COMMAND_FAILED);
    CU_ASSERT_STRING_EQUAL(text, "kvcobra: out of memory\n");
}

static int dispatch_unknown(const char *name)
{
    char program[] = "kvcobra", copy[64];
    char *argv[] = {program, copy, NULL};

    (void) snprintf(copy, sizeof(copy), "%s", name);
    return command_dispatch(commands_here, "kvcobra", 2, argv);
}

static void test_unknown_suggests_nearest(void)
{
    char text[512];

    CU_ASSERT_EQUAL(in_child(dispatch_unknown, "calibate", text, sizeof(text)), COMMAND_USAGE);
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "did you mean 'kvcobra calibrate'?"));
    CU_ASSERT_EQUAL(in_child(dispatch_unknown, "slove", text, sizeof(text)), COMMAND_USAGE);
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "'kvcobra solve'"));
    CU_ASSERT_EQUAL(in_child(dispatch_unknown, "xyz", text, sizeof(text)), COMMAND_USAGE);
    CU_ASSERT_PTR_NULL(strstr(text, "did you mean")); /* no name is near enough */
    CU_ASSERT_EQUAL(in_child(dispatch_unknown, "", text, sizeof(text)), COMMAND_USAGE);
}

struct values {
    struct common_options common;
    uint64_t n;
    double x;
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct values *v = state->input;

    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &v->common;
        return 0;
    case 'n':
        v->n = option_uint(state, "-n", arg, 2, 100);
        return 0;
    case 'x':
        v->x = option_double(state, "-x", arg, 0, 16);
        return 0;
    case ARGP_KEY_ARG:
        option_unknown(state, arg, "activate, rollback, list");
        return 0;
    }

    return ARGP_ERR_UNKNOWN;
}

static const struct argp_option options_here[] = {
    {"number", 'n', "N", 0, "a number", 0},
    {"real", 'x', "X", 0, "a number", 0},
    {0},
};
static const struct argp argp_here = {options_here, parse, NULL, NULL, common_children, NULL, NULL};

static struct values parse_one(const char *arg)
{
    char program[] = "kvcobra test", copy[64];
    char *argv[] = {program, copy, NULL};
    struct values v = {0};

    (void) snprintf(copy, sizeof(copy), "%s", arg);
    command_parse(&argp_here, 2, argv, &v);
    return v;
}

static int parse_in_child(const char *arg)
{
    (void) parse_one(arg);
    return COMMAND_OK;
}

static void test_values(void)
{
    CU_ASSERT_EQUAL(parse_one("-n2").n, 2);
    CU_ASSERT_EQUAL(parse_one("-n100").n, 100);
    CU_ASSERT_EQUAL(parse_one("-x2.5").x, 2.5);
    CU_ASSERT_TRUE(parse_one("--json").common.json);
    CU_ASSERT_TRUE(parse_one("--quiet").common.quiet);
    CU_ASSERT_FALSE(parse_one("-q").common.json);
}

static void test_bad_values_are_usage_errors(void)
{
    static const char *const bad[] = {
        "-n1",  "-n101", "-n-5", "-n",    "-n2x",      "-n99999999999999999999", "-n 1 2", "-xnan", "-xinf",
        "-x17", "-x-1",  "-x",   "-x1,5", "--unknown",
    };
    char text[1024];

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        CU_ASSERT_EQUAL(in_child(parse_in_child, bad[i], text, sizeof(text)), COMMAND_USAGE);
        CU_ASSERT_PTR_NOT_NULL(strstr(text, "kvcobra test"));
    }

    CU_ASSERT_EQUAL(in_child(parse_in_child, "-n101", text, sizeof(text)), COMMAND_USAGE);
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "-n takes a whole number from 2 to 100, not '101'"));
}

/* One sentence and one hint, as for an unknown command, for errors of argp, of getopt and of a command. */
static void test_usage_errors_are_sentences(void)
{
    static const char hint[] = "Try 'kvcobra test --help'.\n";
    static const struct {
        const char *arg, *sentence;
    } cases[] = {
        {"activat", "'activat' is none of activate, rollback, list; did you mean 'activate'?"},
        {"lits", "'lits' is none of activate, rollback, list; did you mean 'list'?"},
        {"x", "'x' is none of activate, rollback, list"},
        {"", "'' is none of activate, rollback, list"},
        {"--unknown", "unrecognized option '--unknown'"},
        {"--json=4", "option '--json' doesn't allow an argument"},
        {"-n1", "-n takes a whole number from 2 to 100, not '1'"},
    };
    char text[1024], expected[1024];

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        CU_ASSERT_EQUAL(in_child(parse_in_child, cases[i].arg, text, sizeof(text)), COMMAND_USAGE);
        (void) snprintf(expected, sizeof(expected), "kvcobra test: %s\n%s", cases[i].sentence, hint);
        CU_ASSERT_STRING_EQUAL(text, expected);
    }
}

static int parse_then_fail(const char *arg)
{
    (void) parse_one(arg);
    return command_fail("after the command line");
}

static void test_a_right_command_line_changes_nothing(void)
{
    char text[128];

    CU_ASSERT_EQUAL(in_child(parse_then_fail, "-n7", text, sizeof(text)), COMMAND_FAILED);
    CU_ASSERT_STRING_EQUAL(text, "kvcobra: after the command line\n");
}

static int fail_here(const char *arg)
{
    return command_fail("cannot read %s", arg);
}

static void test_fail_is_one_sentence(void)
{
    char text[128];

    CU_ASSERT_EQUAL(in_child(fail_here, "x.table", text, sizeof(text)), COMMAND_FAILED);
    CU_ASSERT_STRING_EQUAL(text, "kvcobra: cannot read x.table\n");
}

const char test_suite[] = "command";
const struct test_case test_cases[] = {
    TEST(test_dispatch_names_the_command),
    TEST(test_unknown_suggests_nearest),
    TEST(test_values),
    TEST(test_bad_values_are_usage_errors),
    TEST(test_usage_errors_are_sentences),
    TEST(test_a_right_command_line_changes_nothing),
    TEST(test_fail_is_one_sentence),
    TEST(test_no_memory_ends_the_program),
    TEST_END,
};
