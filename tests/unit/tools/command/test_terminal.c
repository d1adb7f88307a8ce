/* Text wrapped at blanks, never inside a word, and unchanged without a width. */
#include "tools/command/terminal.h"

#include <locale.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "tests/lib/test.h"

const char test_suite[] = "terminal";

static void expect_text(unsigned width, unsigned indent, const char *text, const char *want)
{
    _cleanup_(freep) char *got = NULL;
    size_t bytes;
    FILE *f = open_memstream(&got, &bytes);

    CU_ASSERT_PTR_NOT_NULL_FATAL(f);
    terminal_wrap(f, width, indent, text);
    CU_ASSERT_EQUAL(fclose(f), 0);
    CU_ASSERT_STRING_EQUAL(got, want);
}

static void test_words(void)
{
    expect_text(0, 2, "one two three\n", "one two three\n");
    expect_text(13, 2, "one two three\n", "one two three\n");
    expect_text(12, 2, "one two three\n", "one two\n  three\n");
    expect_text(7, 0, "one two three", "one two\nthree");
    expect_text(7, 2, "a  b\nc d e f g\n", "a  b\nc d e f\n  g\n");
}

static void test_long_words(void)
{
    expect_text(5, 2, "a abcdefghij b\n", "a\n  abcdefghij\n  b\n");
    expect_text(5, 2, "abcdefghij\n", "abcdefghij\n");
    expect_text(5, 2, "", "");
    expect_text(5, 2, "\n\n", "\n\n");
}

/* Two columns per character, three bytes each. */
static void test_wide_characters(void)
{
    if (!setlocale(LC_CTYPE, "C.UTF-8")) {
        test_skip("this machine has no C.UTF-8");
        return;
    }

    expect_text(9, 0, "\u4e2d\u6587 \u4e2d\u6587 x", "\u4e2d\u6587 \u4e2d\u6587\nx");
    expect_text(8, 0, "\u4e2d\u6587 \u4e2d\u6587", "\u4e2d\u6587\n\u4e2d\u6587");
    (void) setlocale(LC_CTYPE, "C");
}

/* A stream without a terminal gets each sentence as one line. */
static void test_no_terminal(void)
{
    FILE *f = tmpfile();
    char line[256] = "";

    CU_ASSERT_PTR_NOT_NULL_FATAL(f);
    CU_ASSERT_EQUAL(terminal_width(f), 0);
    terminal_print(f, 2, "%s %0100d\n", "word", 1);
    rewind(f);
    CU_ASSERT_PTR_NOT_NULL(fgets(line, sizeof(line), f));
    CU_ASSERT_EQUAL(strlen(line), 106);
    (void) fclose(f);
}

const struct test_case test_cases[] = {TEST(test_words), TEST(test_long_words), TEST(test_wide_characters),
                                       TEST(test_no_terminal), TEST_END};
