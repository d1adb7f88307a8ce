/* The newest lines of the log by number; the numbers show that lines are missing, too old or too long. */
#include "daemon/loop/log_history.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/test.h"

const char test_suite[] = "log_history";

static struct log_history_line lines[LOG_HISTORY_LINES + 1];
static size_t n_lines;

static uint64_t read_after(uint64_t after, size_t n_max)
{
    uint64_t last;

    for (size_t i = 0; i < n_lines; i++)
        free(lines[i].json);
    n_lines = log_history_read(after, lines, n_max, &last);
    return last;
}

static void test_lines(void)
{
    char text[32], *longer = calloc(1, LOG_HISTORY_LINE_BYTES + 1);
    uint64_t last = read_after(0, 1);

    CU_ASSERT_PTR_NOT_NULL_FATAL(longer);
    log_history_add(5, 7, "{\"a\":1}");
    log_history_add(6, 8, "{\"a\":2}");
    CU_ASSERT_EQUAL(read_after(last, 10), last + 2);
    CU_ASSERT_EQUAL_FATAL(n_lines, 2);
    CU_ASSERT(lines[0].number == last + 1 && lines[0].level == 5 && lines[0].time_us == 7);
    CU_ASSERT_STRING_EQUAL(lines[1].json, "{\"a\":2}");
    (void) read_after(last, 1);
    CU_ASSERT(n_lines == 1 && lines[0].number == last + 1);
    (void) read_after(last + 2, 10);
    CU_ASSERT_EQUAL(n_lines, 0);

    memset(longer, 'x', LOG_HISTORY_LINE_BYTES);
    log_history_add(5, 9, longer);
    longer[LOG_HISTORY_LINE_BYTES - 1] = '\0';
    log_history_add(5, 9, longer);
    CU_ASSERT_EQUAL(read_after(last + 2, 10), last + 4);
    CU_ASSERT(n_lines == 1 && lines[0].number == last + 4);
    free(longer);

    for (unsigned i = 0; i < LOG_HISTORY_LINES + 3; i++) {
        (void) snprintf(text, sizeof(text), "{\"i\":%u}", i);
        log_history_add(5, i, text);
    }
    last = read_after(last, LOG_HISTORY_LINES + 1);
    CU_ASSERT_EQUAL_FATAL(n_lines, LOG_HISTORY_LINES);
    CU_ASSERT_STRING_EQUAL(lines[0].json, "{\"i\":3}");
    CU_ASSERT_EQUAL(lines[LOG_HISTORY_LINES - 1].number, last);
    (void) read_after(UINT64_MAX, 1);
    CU_ASSERT_EQUAL(n_lines, 0);
}

const struct test_case test_cases[] = {TEST(test_lines), TEST_END};
