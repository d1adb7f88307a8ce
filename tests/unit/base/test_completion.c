/* What a program offers for the last word of a command line: options, values, arguments by their place. */
#include "base/completion.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/test.h"

const char test_suite[] = "completion";

static const struct argp_option inner_options[] = {
    {"socket", 1, "PATH", 0, "Where the daemon is", 0},
    {0},
};
static const struct argp inner = {.options = inner_options};
static const struct argp_child children[] = {{&inner, 0, NULL, 0}, {0}};

static const struct argp_option options[] = {
    {"output", 'o', "FILE", 0, "The file to write; it must not exist", 0},
    {"out", 0, NULL, OPTION_ALIAS, NULL, 0},
    {"side", 2, "k|v|kv", 0, "Compressed side", 0},
    {"tenant", 3, "TENANT", 0, NULL, 0},
    {"count", 'n', "N", 0, NULL, 0},
    {"level", 4, "N", OPTION_ARG_OPTIONAL, NULL, 0},
    {"verbose", 'v', NULL, 0, NULL, 0},
    {"secret", 5, NULL, OPTION_HIDDEN, NULL, 0},
    {NULL, 0, NULL, 0, "A heading", 0},
    {"last", 6, NULL, 0,
     "A description of more than seventy-two bytes, which is cut between two of its many words", 0},
    {0},
};
static const char arguments[] = "[list]\nstage FILE...\nmove FROM-ID TO-ID\nup|down [SECONDS]";
static const struct argp argp = {.options = options, .args_doc = arguments, .children = children};

static void names(const struct completion *c, const char *kind)
{
    const char *socket = completion_value(c, "socket");
    char word[64];

    if (strcmp(kind, "TENANT") != 0 && !strstr(kind, "-ID")) /* others have no list */
        return;
    (void) snprintf(word, sizeof(word), "%s@%s", kind, socket ? socket : "none");
    completion_offer(c, word, NULL);
}

/* The answer for @words, with blanks between them; the last word is behind the last blank. */
static const char *answer(const char *words)
{
    static char *text;
    char copy[160], *list[20], *at = copy;
    FILE *real = stdout;
    size_t bytes;
    int n = 0;

    (void) snprintf(copy, sizeof(copy), "%s", words);
    while (at)
        list[n++] = strsep(&at, " ");
    free(text);
    text = NULL;
    stdout = open_memstream(&text, &bytes);
    CU_ASSERT_PTR_NOT_NULL_FATAL(stdout);
    completion_print(&argp, n, list, names);
    (void) fclose(stdout);
    stdout = real;
    return text;
}

#define IS(words, want) CU_ASSERT_STRING_EQUAL(answer(words), want)

static void test_options(void)
{
    IS("--o", "--output\tThe file to write\n--out\n");
    IS("--ver", "--verbose\n");
    IS("--so", "--socket\tWhere the daemon is\n"); /* of a child */
    IS("--secret", "");
    IS("--la", "--last\tA description of more than seventy-two bytes, which is cut between two\n");
    IS("--us", "--usage\tPrint a short usage\n");
    CU_ASSERT_PTR_NOT_NULL(strstr(answer("list -"), "--help\t"));
}

static void test_values(void)
{
    IS("--side ", "k\nv\nkv\n");
    IS("--side k", "k\nkv\n");
    IS("--side=k", "k\nkv\n");
    IS("--side = k", "k\nkv\n"); /* as bash has it */
    IS("--side =", "k\nv\nkv\n");
    IS("--output ", ":files\n");
    IS("--out ", ":files\n");
    IS("-o ", ":files\n");
    IS("-vo ", ":files\n");
    IS("--count ", "");
    IS("--tenant ", "TENANT@none\n");
    IS("--socket /a --tenant ", "TENANT@/a\n");
    IS("--socket=/b --tenant T", "TENANT@/b\n");
    IS("--socket = /c --tenant ", "TENANT@/c\n");
    IS("--tenant X --side v", "v\n");
    IS("--verbose=k", "");
    IS("--unknown=k", "");
}

static void test_arguments(void)
{
    IS("", "list\nstage\nmove\nup\ndown\n");
    IS("s", "stage\n");
    IS("list ", "");
    IS("stage ", ":files\n");
    IS("stage a b ", ":files\n");
    IS("move ", "FROM-ID@none\n");
    IS("move a ", "TO-ID@none\n");
    IS("move a b ", "");
    IS("down ", ""); /* a number */
    IS("sideways ", "");
    IS("--side k s", "stage\n"); /* values are no arguments */
    IS("-n 3 --level s", "stage\n");
    IS("-n3 s", "stage\n");
    IS("-- --o", ""); /* no option */
    IS("-- s", "stage\n");
}

const struct test_case test_cases[] = {TEST(test_options), TEST(test_values), TEST(test_arguments), TEST_END};
