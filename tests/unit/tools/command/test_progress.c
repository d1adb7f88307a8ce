/* The text of the progress line. Without a terminal nothing is printed, or lines that were asked for. */
#include "tools/command/progress.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "tests/lib/test.h"

static void expect_line(const char *unit, double total, double done, double seconds, const char *want)
{
    struct progress p;
    char line[128];

    progress_start(&p, "reading", unit, total, true);
    progress_format(&p, done, seconds, line, sizeof(line));
    CU_ASSERT_STRING_EQUAL(line, want);
}

static void test_line(void)
{
    /* half of 200 in 10 s: 10 per second, 10 s left */
    expect_line("tokens", 200, 100, 10, "reading  [##########..........]  50%  10 tokens/s  10 s left");
    expect_line("tokens", 200, 0, 10, "reading  [....................]   0%  0.0 tokens/s");
    expect_line("tokens", 200, 200, 10, "reading  [####################] 100%  20 tokens/s");
    /* 199 of 200: neither the bar nor the percentage may be complete */
    expect_line("tokens", 200, 199, 398, "reading  [###################.]  99%  0.5 tokens/s  2.00 s left");
    expect_line(NULL, 1, 0.25, 30, "reading  [#####...............]  25%  1 min 30 s left");
    expect_line("tokens", 0, 50, 5, "reading  50 tokens  10 tokens/s"); /* total unknown */
    expect_line("tokens", 200, 300, 10, "reading  [####################] 100%  30 tokens/s");
}

static void test_line_never_overruns(void)
{
    struct progress p;
    char line[16];

    progress_start(&p, "a name much longer than the line it stands in", "tokens", 10, true);
    progress_format(&p, 5, 5, line, sizeof(line));
    CU_ASSERT_EQUAL(strlen(line), sizeof(line) - 1);
}

/* 60 columns: the bar is shortened first, so that the rate and the time left stay. */
static void test_narrow(void)
{
    struct progress p;
    char line[60];

    progress_start(&p, "measuring depth weights", "tokens", 200, true);
    progress_format(&p, 100, 10, line, sizeof(line));
    CU_ASSERT_STRING_EQUAL(line, "measuring depth weights  [#..]  50%  10 tokens/s  10 s left");
    CU_ASSERT_EQUAL(strlen(line), sizeof(line) - 1);
}

/* 150 of 200 were done by an earlier run: the 25 of this one took 10 s, and the other 25 take 10 s. */
static void test_resumed(void)
{
    struct progress p;
    char line[128];

    progress_start(&p, "reading", "tokens", 200, true);
    progress_resume(&p, 150);
    progress_format(&p, 150, 0, line, sizeof(line));
    CU_ASSERT_STRING_EQUAL(line, "reading  [###############.....]  75%");
    progress_format(&p, 175, 10, line, sizeof(line));
    CU_ASSERT_STRING_EQUAL(line, "reading  [#################...]  87%  2.5 tokens/s  10 s left");
}

/* stderr is a file here, as under cron or in a pipe: no byte may be written. */
static void test_silent_without_terminal(void)
{
    _cleanup_(closep) int saved = dup(STDERR_FILENO), file = -1;
    FILE *f = tmpfile();
    struct progress p;
    long bytes;

    CU_ASSERT_PTR_NOT_NULL_FATAL(f);
    file = dup(fileno(f));
    (void) dup2(file, STDERR_FILENO);
    progress_start(&p, "work", "tokens", 10, false);
    p.begun -= 60; /* long enough to show */
    progress_update(&p, 5);
    progress_callback(&p, "other work", 0.5);
    progress_end(&p);
    (void) fflush(stderr);
    (void) dup2(saved, STDERR_FILENO);
    (void) fseek(f, 0, SEEK_END);
    bytes = ftell(f);
    (void) fclose(f);
    CU_ASSERT_FALSE(p.visible);
    CU_ASSERT_EQUAL(bytes, 0);
}

static void test_rename_restarts_the_rate(void)
{
    struct progress p;
    double step;

    progress_start(&p, "one", NULL, 1, true);
    p.step = step = p.step - 5;
    progress_rename(&p, "one");
    CU_ASSERT_EQUAL(p.step, step);
    progress_rename(&p, "two");
    CU_ASSERT_STRING_EQUAL(p.what, "two");
    CU_ASSERT(p.step >= step + 5);
}

/* Lines of stderr for three updates, the second one @between seconds after the first. */
static void print_to_file(bool quiet, double between, char *ret, size_t room)
{
    _cleanup_(closep) int saved = dup(STDERR_FILENO), file = -1;
    FILE *f = tmpfile();
    struct progress p;
    size_t n;

    CU_ASSERT_PTR_NOT_NULL_FATAL(f);
    file = dup(fileno(f));
    (void) dup2(file, STDERR_FILENO);
    progress_start(&p, "work", NULL, 1, quiet);
    progress_say(&p, 10);
    progress_update(&p, 0.1); /* too early */
    p.begun -= 60;
    progress_update(&p, 0.25);
    p.last_drawn -= between;
    progress_rename(&p, "other work");
    progress_update(&p, 0.5);
    progress_end(&p);
    progress_update(&p, 0.75);
    (void) fflush(stderr);
    (void) dup2(saved, STDERR_FILENO);
    rewind(f);
    n = fread(ret, 1, room - 1, f);
    ret[n] = '\0';
    (void) fclose(f);
}

static void test_said_without_terminal(void)
{
    char text[512];
    const char *second;

    print_to_file(false, 11, text, sizeof(text));
    CU_ASSERT_EQUAL(strncmp(text, "kvcobra: work  [#####...............]  25%", 42), 0);
    second = strchr(text, '\n');
    CU_ASSERT_PTR_NOT_NULL_FATAL(second);
    CU_ASSERT_EQUAL(strncmp(second + 1, "kvcobra: other work  [##########..........]  50%", 48), 0);
    CU_ASSERT_PTR_EQUAL(strrchr(text, '\n'), text + strlen(text) - 1);

    print_to_file(false, 5, text, sizeof(text));
    CU_ASSERT_PTR_EQUAL(strchr(text, '\n'), text + strlen(text) - 1); /* one line */
    print_to_file(true, 11, text, sizeof(text));
    CU_ASSERT_STRING_EQUAL(text, "");
}

const char test_suite[] = "progress";
const struct test_case test_cases[] = {
    TEST(test_line),
    TEST(test_line_never_overruns),
    TEST(test_narrow),
    TEST(test_resumed),
    TEST(test_silent_without_terminal),
    TEST(test_said_without_terminal),
    TEST(test_rename_restarts_the_rate),
    TEST_END,
};
