/* Tests of daemon/loop/log.c: lines are read back from a file that replaces standard error. */
#include "daemon/loop/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/lib/test.h"

const char test_suite[] = "log";

static int saved, log_fd;
static char text[65536];

static void begin(void)
{
    (void) fflush(stderr);
    log_fd = memfd_create("log", MFD_CLOEXEC);
    saved = dup(STDERR_FILENO);
    assert(log_fd >= 0 && saved >= 0 && dup2(log_fd, STDERR_FILENO) >= 0);
    (void) unsetenv("JOURNAL_STREAM");
    log_open(LOG_INFO);
}

static const char *end(void)
{
    ssize_t n;

    (void) fflush(stderr);
    assert(dup2(saved, STDERR_FILENO) >= 0);
    n = pread(log_fd, text, sizeof(text) - 1, 0);
    assert(n >= 0);
    text[n] = '\0';
    (void) close(log_fd);
    (void) close(saved);
    return text;
}

static unsigned count(const char *in, const char *what)
{
    unsigned n = 0;

    for (const char *at = in; (at = strstr(at, what)); at++)
        n++;
    return n;
}

static void test_one_line(void)
{
    const char *got;

    begin();
    log_event(LOG_NOTICE, "example", "path=\"%s\"", "a\nevent=forged\x1b[2J\x7f");
    log_event(LOG_DEBUG, "hidden", "x=1");
    got = end();
    /* time=2026-11-23T02:17:06.123456Z level=notice ... */
    CU_ASSERT_PTR_EQUAL(strstr(got, " level=notice "), got + strlen("time=2026-11-23T02:17:06.123456Z"));
    got = strstr(got, " level=");
    CU_ASSERT_STRING_EQUAL(got, " level=notice event=example path=\"a\\nevent=forged\\u001b[2J\\u007f\"\n");
}

/* The limit is per second: in another second lines are logged again, after one with the number dropped. */
static void test_limit(void)
{
    struct log_limit a = {.tenant = "uid-7"}, b = {.tenant = "uid-8"};
    unsigned n_lines;
    const char *got;

    begin();
    for (unsigned i = 0; i < 10 * LOG_LINES_PER_SECOND; i++)
        log_client_event(&a, LOG_INFO, "busy", "i=%u", i);
    log_client_event(&b, LOG_INFO, "calm", "i=0");
    a.second--; /* as if the second had passed */
    log_client_event(&a, LOG_INFO, "later", "i=0");
    got = end();

    n_lines = count(got, "event=busy");
    CU_ASSERT(n_lines >= LOG_LINES_PER_SECOND);     /* at least one second's lines, ... */
    CU_ASSERT(n_lines < 10 * LOG_LINES_PER_SECOND); /* but not all: the loop takes less than ten seconds */
    CU_ASSERT_EQUAL(count(got, "event=calm"), 1);
    CU_ASSERT_EQUAL(count(got, "event=later"), 1);
    CU_ASSERT(count(got, "event=lines-dropped tenant=uid-7 lines=") >= 1);
    CU_ASSERT_EQUAL(a.n_dropped, 0);
}

const struct test_case test_cases[] = {
    TEST(test_one_line),
    TEST(test_limit),
    TEST_END,
};
