/* The reader of configuration files: what it hands over, the line of an error, files that it refuses. */
#include "daemon/config/ini_file.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/errmsg.h"
#include "tests/lib/test.h"

const char test_suite[] = "ini_file";

static char path[] = "/tmp/kvcobra-test-XXXXXX";

/* What the reader handed over: "section|key|value\n" for each setting, "section|\n" where one begins. */
struct seen {
    char text[4096];
    int stops_with; /* the key "stop" ends the reading with this error */
};

static int take(void *ctx, const char *section, const char *key, const char *value, struct errmsg *e)
{
    struct seen *s = ctx;
    size_t n = strlen(s->text);

    if (key && strcmp(key, "bad") == 0)
        return fail(e, -EINVAL, "bad is refused");
    if (!key && strcmp(section, "bad") == 0)
        return fail(e, -EINVAL, "a bad section");
    if (key && strcmp(key, "stop") == 0)
        return fail(e, s->stops_with, "stopped");
    if (key)
        (void) snprintf(s->text + n, sizeof(s->text) - n, "%s|%s|%.200s\n", section, key, value);
    else
        (void) snprintf(s->text + n, sizeof(s->text) - n, "%s|\n", section);
    return 0;
}

static int read_bytes(const char *bytes, size_t n, struct seen *s, FILE *errors, struct errmsg *e)
{
    const struct ini_handler handler = {take, s};
    FILE *f = fopen(path, "we");

    CU_ASSERT_FATAL(f != NULL && fwrite(bytes, 1, n, f) == n && fclose(f) == 0);
    s->text[0] = '\0';
    *e = (struct errmsg){""};
    return ini_file_read(path, &handler, errors, "x --check-config", e);
}

static int read_text(const char *text, struct seen *s, struct errmsg *e)
{
    return read_bytes(text, strlen(text), s, NULL, e);
}

static int make_path(void)
{
    int fd;

    (void) strcpy(path, "/tmp/kvcobra-test-XXXXXX");
    fd = mkstemp(path);
    return fd < 0 ? -errno : close(fd);
}

static void test_accepted(void)
{
    static const struct {
        const char *text, *seen;
    } cases[] = {
        {"", ""},
        {"\n  \n\t\n", ""},
        {"a=1\nb = 2\nc\t=\t3  \nd=4", "|a|1\n|b|2\n|c|3\n|d|4\n"},
        {"a = 1\r\nb = 2\r\n", "|a|1\n|b|2\n"},
        {"\xef\xbb\xbf"
         "a = 1\n",
         "|a|1\n"},
        {"a = x=y\n", "|a|x=y\n"},
        /* comments */
        {"# a = 1\n  ; b = 2\n#\n", ""},
        {"a = x # y\nb = x ; y\nc = x\t#y\nd = x#y;z\n", "|a|x\n|b|x\n|c|x\n|d|x#y;z\n"},
        {"a =#x\nb =;x\n", "|a|#x\n|b|;x\n"},
        {"a = /disk/state # fast disk, not slow # disk\n", "|a|/disk/state\n"},
        /* quotation marks */
        {"a = \"x # y ; z \"\nb = \"\" # empty\nc = \"say \"\"x\"\"\"\nd = x \"y\"\n",
         "|a|x # y ; z \n|b|\n|c|say \"x\"\n|d|x \"y\"\n"},
        /* values of several lines */
        {"a = 1,\n  2 # two\n\n  b = 3\n", "|a|1, 2\n|b|3\n"},
        {"a =\n  1\n # between\n  2\n", "|a|1 2\n"},
        {"a = 1\n  # between\nb = 2\n", "|a|1\n|b|2\n"},
        {"a = 1\n  b = 2\n", "|a|1 b = 2\n"},
        /* sections, whose keys may be indented */
        {"[s]\n  a = 1\n  b = 2\n    3\n[ t ] # t\nc = 4\n", "s|\ns|a|1\ns|b|2 3\n t |\n t |c|4\n"},
        {"a = 1\n  [s]\nb = 2\n", "|a|1\ns|\ns|b|2\n"},
    };
    struct errmsg e;
    struct seen s;

    CU_ASSERT_EQUAL_FATAL(make_path(), 0);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        CU_ASSERT_EQUAL(read_text(cases[i].text, &s, &e), 0);
        CU_ASSERT_STRING_EQUAL(s.text, cases[i].seen);
        CU_ASSERT_STRING_EQUAL(e.text, "");
    }
    (void) unlink(path);
}

static void test_refused(void)
{
    static const struct {
        const char *text, *sentence, *seen;
    } cases[] = {
        {"a = 1\nb\nc = 2\n", "line 2: the line is not \"key = value\"", "|a|1\n|c|2\n"},
        {"= 1\n", "line 1: the line is not", ""},
        {"a =\n", "line 1: a has no value", ""},
        {"a = # nothing\n", "line 1: a has no value", ""},
        {"a = ; nothing\nb = 1\n", "line 1: a has no value", "|b|1\n"},
        {"\nbad = 1\n", "line 2: bad is refused", ""},
        {"bad = 1,\n  2,\n  # three\n  4\na = 1\n", "lines 1 to 4: bad is refused", "|a|1\n"},
        {"# 1\nbad = 1\n\nbad\n", "line 2: bad is refused (and 1 more error: x --check-config prints it)",
         ""},
        {"[s\na = 1\n[t]\nb = 2\n", "line 1: the bracket ] behind the section [s is missing", "t|\nt|b|2\n"},
        {"[s] rest\na = 1\n", "line 1: there is text behind the section [s]", ""},
        {"[s]# rest\n", "line 1: there is text behind the section [s]", ""},
        {"[bad]\na = 1\n[t]\n", "line 1: a bad section", "t|\n"},
        {"a = \"x\n", "line 1: a: the closing quotation mark is missing", ""},
        {"a = \"x\" y\n", "line 1: a: there is text behind the closing quotation mark", ""},
        {"a = \"x\"\n  y\n", "line 2: a: a value in quotation marks has one line", ""},
    };
    struct errmsg e;
    struct seen s;

    CU_ASSERT_EQUAL_FATAL(make_path(), 0);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        CU_ASSERT_EQUAL(read_text(cases[i].text, &s, &e), -EINVAL);
        CU_ASSERT_PTR_NOT_NULL(strstr(e.text, cases[i].sentence));
        CU_ASSERT_PTR_NOT_NULL(strstr(e.text, path));
        CU_ASSERT_STRING_EQUAL(s.text, cases[i].seen);
    }
    (void) unlink(path);
}

/* A comment or a value of any length is one line, and the lines behind it keep their numbers. */
static void test_long_lines(void)
{
    static char text[70000];
    struct errmsg e;
    struct seen s;

    CU_ASSERT_EQUAL_FATAL(make_path(), 0);
    for (size_t n = 190; n < 60000; n += n < 210 ? 1 : 9999) {
        memset(text, '#', n);
        (void) strcpy(text + n, "a = 1\nbad = 1\n");
        CU_ASSERT_EQUAL(read_text(text, &s, &e), -EINVAL);
        CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "line 2: bad"));
        CU_ASSERT_STRING_EQUAL(s.text, "");

        (void) strcpy(text, "a = ");
        memset(text + 4, 'x', n);
        (void) strcpy(text + 4 + n, "\nb = 1\n");
        CU_ASSERT_EQUAL(read_text(text, &s, &e), 0);
        CU_ASSERT_PTR_NOT_NULL(strstr(s.text, "xxxx\n|b|1\n"));
        CU_ASSERT_PTR_NULL(strstr(strstr(s.text, "|a|") + 3, "|a|"));
    }
    (void) unlink(path);
}

static void test_bytes(void)
{
    static const char utf16[] = "a\0 \0=\0 \0001\0\n\0";
    struct errmsg e;
    struct seen s;

    CU_ASSERT_EQUAL_FATAL(make_path(), 0);
    CU_ASSERT_EQUAL(read_bytes(utf16, sizeof(utf16) - 1, &s, NULL, &e), -EINVAL);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "line 1: the line has a byte 0"));
    CU_ASSERT_EQUAL(read_bytes("a = 1\nb = \0 2\nc = 3\n", 20, &s, NULL, &e), -EINVAL);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "line 2: the line has a byte 0"));
    (void) unlink(path);
}

static void test_all_errors(void)
{
    char *text = NULL;
    size_t n;
    FILE *errors = open_memstream(&text, &n);
    struct errmsg e;
    struct seen s;
    const char lines[] = "bad = 1\n\nnonsense\n[x\n[t]\nbad = 2\n";

    CU_ASSERT_PTR_NOT_NULL_FATAL(errors);
    CU_ASSERT_EQUAL_FATAL(make_path(), 0);
    CU_ASSERT_EQUAL(read_bytes(lines, strlen(lines), &s, errors, &e), -EINVAL);
    CU_ASSERT_EQUAL_FATAL(fclose(errors), 0);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "line 1: bad is refused (and 3 more errors"));
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "line 1: bad is refused\n"));
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "line 3: the line is not"));
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "line 4: the bracket"));
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "line 6: bad is refused\n"));
    free(text);
    (void) unlink(path);
}

/* An error that is none of the file ends the reading; others do not. */
static void test_error_that_ends(void)
{
    struct seen s = {.stops_with = -EAGAIN};
    struct errmsg e;

    CU_ASSERT_EQUAL_FATAL(make_path(), 0);
    CU_ASSERT_EQUAL(read_text("stop = 1\na = 1\n", &s, &e), -EAGAIN);
    CU_ASSERT_STRING_EQUAL(s.text, "");
    s.stops_with = -EPERM;
    CU_ASSERT_EQUAL(read_text("stop = 1\na = 1\n", &s, &e), -EPERM);
    CU_ASSERT_STRING_EQUAL(s.text, "|a|1\n");
    (void) unlink(path);
}

/* A pipe without a writer must not hold up the start, a check or a reload. */
static void test_files(void)
{
    struct seen s = {.text = ""};
    const struct ini_handler handler = {take, &s};
    struct errmsg e = {""};

    CU_ASSERT_EQUAL_FATAL(make_path(), 0);
    (void) unlink(path);
    CU_ASSERT_EQUAL(ini_file_read(path, &handler, NULL, "x", &e), -ENOENT);
    CU_ASSERT_EQUAL_FATAL(mkfifo(path, 0600), 0);
    CU_ASSERT_EQUAL(ini_file_read(path, &handler, NULL, "x", &e), -EINVAL);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "is a pipe"));
    (void) unlink(path);
    CU_ASSERT_EQUAL(ini_file_read("/tmp", &handler, NULL, "x", &e), -EISDIR);
    CU_ASSERT_EQUAL(ini_file_read("/dev/zero", &handler, NULL, "x", &e), -EINVAL);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "is a device"));
    CU_ASSERT_EQUAL(ini_file_read("/dev/null", &handler, NULL, "x", &e), 0);
    CU_ASSERT_STRING_EQUAL(s.text, "");
}

static void test_file_size(void)
{
    struct errmsg e;
    struct seen s;

    CU_ASSERT_EQUAL_FATAL(make_path(), 0);
    for (unsigned i = 0; i < 2; i++) {
        const struct ini_handler handler = {take, &s};
        static char line[INI_FILE_BYTES_MAX + 1];
        FILE *f = fopen(path, "we");
        size_t n = INI_FILE_BYTES_MAX + i;

        memset(line, '#', sizeof(line));
        CU_ASSERT_FATAL(f != NULL && fwrite(line, 1, n, f) == n && fclose(f) == 0);
        CU_ASSERT_EQUAL(ini_file_read(path, &handler, NULL, "x", &e), i == 0 ? 0 : -EFBIG);
    }
    (void) unlink(path);
}

const struct test_case test_cases[] = {
    TEST(test_accepted), TEST(test_refused),    TEST(test_long_lines),
    TEST(test_bytes),    TEST(test_all_errors), TEST(test_error_that_ends),
    TEST(test_files),    TEST(test_file_size),  TEST_END,
};
