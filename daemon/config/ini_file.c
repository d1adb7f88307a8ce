/* See ini_file.h. */
#include "daemon/config/ini_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/errmsg.h"

static const char blanks[] = " \t\r\f\v";

/* ---- the bytes ---- */

/* A name that leads to /dev/null is an empty file: administrators mask drop-ins so. */
static bool ini_file_is_null(const struct stat *st)
{
    return S_ISCHR(st->st_mode) && st->st_rdev == makedev(1, 3);
}

static const char *ini_file_kind(mode_t mode)
{
    switch (mode & S_IFMT) {
    case S_IFDIR:
        return "a folder";
    case S_IFIFO:
        return "a pipe";
    case S_IFSOCK:
        return "a socket";
    default:
        return "a device";
    }
}

/* Without O_NONBLOCK, opening a pipe would wait for its writer. */
static int ini_file_open(const char *path, int *ret, struct errmsg *e)
{
    _cleanup_(closep) int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    struct stat st;

    if (fd < 0 || fstat(fd, &st) < 0)
        return fail(e, -errno, "cannot read %s: %s", path, strerror(errno));
    if (!S_ISREG(st.st_mode) && !ini_file_is_null(&st))
        return fail(e, S_ISDIR(st.st_mode) ? -EISDIR : -EINVAL,
                    "%s is %s: a configuration is a regular file, or /dev/null for an empty one", path,
                    ini_file_kind(st.st_mode));
    *ret = take_fd(&fd);
    return 0;
}

/* @ret_text: terminated, the caller frees; a file that grows meanwhile counts as far as it was read. */
static int ini_file_load(const char *path, char **ret_text, size_t *ret_bytes, struct errmsg *e)
{
    _cleanup_(closep) int fd = -1;
    _cleanup_(freep) char *text = NULL;
    size_t have = 0;
    ssize_t n;
    int r = ini_file_open(path, &fd, e);

    if (r < 0)
        return r;

    text = malloc(INI_FILE_BYTES_MAX + 1);
    if (!text)
        return fail(e, -ENOMEM, "out of memory while reading %s", path);

    while ((n = read(fd, text + have, INI_FILE_BYTES_MAX + 1 - have)) != 0) {
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return fail(e, -errno, "cannot read %s: %s", path, strerror(errno));
        have += (size_t) n;
        if (have > INI_FILE_BYTES_MAX)
            return fail(e, -EFBIG, "%s has more than %d bytes, the maximum of a configuration", path,
                        INI_FILE_BYTES_MAX);
    }

    text[have] = '\0';
    *ret_text = take_ptr(text);
    *ret_bytes = have;
    return 0;
}

/* ---- one file ---- */

struct ini_reading {
    const char *path;
    const struct ini_handler *handler;
    FILE *errors;
    unsigned line; /* that is being read */
    const char *section;
    bool skips; /* the section was refused: its keys would repeat the error */
    unsigned n_errors;
    int r;               /* of the first error */
    bool ends;           /* an error that is none of the file */
    struct errmsg first; /* with file and line */

    /* the setting that may go on in the next line; NULL: none */
    const char *key;
    size_t indent; /* of the line of the key */
    bool is_quoted;
    unsigned key_line, value_line; /* of the key, and the last one of the value */
    char *value;                   /* has room for the whole file */
    size_t value_bytes;
};

__attribute__((format(printf, 1, 2))) static struct errmsg ini_file_because(const char *fmt, ...)
{
    struct errmsg why;
    va_list ap;

    va_start(ap, fmt);
    (void) vsnprintf(why.text, sizeof(why.text), fmt, ap);
    va_end(ap);
    return why;
}

static void ini_file_refuse(struct ini_reading *f, int r, unsigned line, unsigned last,
                            const struct errmsg *why)
{
    char place[48];

    if (last > line)
        (void) snprintf(place, sizeof(place), "lines %u to %u", line, last);
    else
        (void) snprintf(place, sizeof(place), "line %u", line);

    if (f->n_errors++ == 0) {
        f->r = r;
        errmsg_set(&f->first, "%.120s, %s: %.240s", f->path, place, why->text);
    }
    f->ends = r == -ENOMEM || r == -EAGAIN;
    if (f->errors)
        fprintf(f->errors, "%s, %s: %s\n", f->path, place, why->text);
}

static void ini_file_refuse_line(struct ini_reading *f, struct errmsg why)
{
    ini_file_refuse(f, -EINVAL, f->line, f->line, &why);
}

/* Hands over the setting that was read, if there is one. */
static void ini_file_flush(struct ini_reading *f)
{
    const char *key = take_ptr(f->key);
    struct errmsg why = {""};
    int r = -EINVAL;

    if (!key || f->skips)
        return;

    f->value[f->value_bytes] = '\0';
    if (f->value_bytes == 0 && !f->is_quoted)
        why = ini_file_because("%.60s has no value", key);
    else
        r = f->handler->set(f->handler->ctx, f->section, key, f->value, &why);
    if (r < 0)
        ini_file_refuse(f, r, f->key_line, f->value_line, &why);
}

/* ---- lines ---- */

static bool ini_file_is_blank(char c)
{
    return c != '\0' && strchr(blanks, c);
}

/* Ends @text before the blanks in front of a comment. @is_behind_blank: whether @text is. */
static void ini_file_cut_comment(char *text, bool is_behind_blank)
{
    size_t end = 0;

    for (size_t i = 0; text[i] != '\0'; i++) {
        if ((text[i] == '#' || text[i] == ';') && is_behind_blank)
            break;
        is_behind_blank = ini_file_is_blank(text[i]);
        if (!is_behind_blank)
            end = i + 1;
    }
    text[end] = '\0';
}

/* @text: behind the first quotation mark. Return: whether the value ends as it must. */
static bool ini_file_take_quoted(struct ini_reading *f, char *text)
{
    char *at = text;

    for (; *at != '\0' && (*at != '"' || at[1] == '"'); at++) {
        at += *at == '"'; /* "" is one */
        f->value[f->value_bytes++] = *at;
    }
    if (*at == '\0') {
        ini_file_refuse_line(f, ini_file_because("%.60s: the closing quotation mark is missing", f->key));
        return false;
    }

    at++;
    ini_file_cut_comment(at, false);
    if (*at != '\0')
        ini_file_refuse_line(
            f, ini_file_because("%.60s: there is text behind the closing quotation mark", f->key));
    return *at == '\0';
}

static void ini_file_append(struct ini_reading *f, const char *text)
{
    size_t n = strlen(text);

    if (f->value_bytes > 0)
        f->value[f->value_bytes++] = ' ';
    memcpy(f->value + f->value_bytes, text, n);
    f->value_bytes += n;
    f->value_line = f->line;
}

/* @text: "key = value" without the indentation. */
static void ini_file_take_key(struct ini_reading *f, char *text, size_t indent)
{
    char *equals = strchr(text, '='), *value;
    bool is_behind_blank;

    if (!equals || equals == text) {
        ini_file_refuse_line(f, ini_file_because("the line is not \"key = value\""));
        return;
    }

    value = equals + 1 + strspn(equals + 1, blanks);
    is_behind_blank = value > equals + 1;
    while (equals > text && ini_file_is_blank(equals[-1]))
        equals--;
    *equals = '\0';

    f->key = text;
    f->key_line = f->value_line = f->line;
    f->indent = indent;
    f->value_bytes = 0;
    f->is_quoted = *value == '"';
    if (!f->is_quoted) {
        ini_file_cut_comment(value, is_behind_blank);
        ini_file_append(f, value);
    } else if (!ini_file_take_quoted(f, value + 1)) {
        f->key = NULL;
    }
}

/* @text: "[name]" and perhaps a comment. */
static void ini_file_take_section(struct ini_reading *f, char *text)
{
    char *end = strchr(text, ']');
    struct errmsg why = {""};
    int r;

    f->skips = true;
    if (!end) {
        ini_file_refuse_line(f, ini_file_because("the bracket ] behind the section %.60s is missing", text));
        return;
    }

    *end++ = '\0';
    ini_file_cut_comment(end, false);
    if (*end != '\0') {
        ini_file_refuse_line(f, ini_file_because("there is text behind the section %.60s]", text));
        return;
    }

    r = f->handler->set(f->handler->ctx, text + 1, NULL, "", &why);
    if (r < 0) {
        ini_file_refuse(f, r, f->line, f->line, &why);
        return;
    }
    f->section = text + 1;
    f->skips = false;
}

static void ini_file_take_line(struct ini_reading *f, char *line)
{
    size_t indent = strspn(line, blanks);
    char *text = line + indent;

    if (*text == '#' || *text == ';') /* also between the lines of a value */
        return;
    if (*text == '\0') {
        ini_file_flush(f);
        return;
    }

    if (f->key && indent > f->indent && *text != '[') {
        if (f->is_quoted) {
            ini_file_refuse_line(f,
                                 ini_file_because("%.60s: a value in quotation marks has one line", f->key));
            f->key = NULL;
            return;
        }
        ini_file_cut_comment(text, true);
        ini_file_append(f, text);
        return;
    }

    ini_file_flush(f);
    if (f->ends)
        return;
    if (*text == '[')
        ini_file_take_section(f, text);
    else
        ini_file_take_key(f, text, indent);
}

/* @text: changed. */
static void ini_file_take_lines(struct ini_reading *f, char *text, size_t bytes)
{
    static const char mark[] = "\xef\xbb\xbf"; /* of UTF-8, which some editors write */
    char *end = text + bytes;

    if (strncmp(text, mark, strlen(mark)) == 0)
        text += strlen(mark);

    while (text < end && !f->ends) {
        char *newline = memchr(text, '\n', (size_t) (end - text)), *next = newline ? newline + 1 : end;

        f->line++;
        if (newline)
            *newline = '\0';
        if (memchr(text, '\0', (size_t) ((newline ? newline : end) - text))) {
            ini_file_refuse_line(f, ini_file_because("the line has a byte 0: the file is not text in UTF-8"));
            return; /* each line of UTF-16 would have the same error */
        }
        ini_file_take_line(f, text);
        text = next;
    }
    if (!f->ends)
        ini_file_flush(f);
}

/* @ret_n_errors: of lines, which are printed; untouched if the file could not be read. */
static int ini_file_parse(const char *path, const struct ini_handler *handler, FILE *errors,
                          unsigned *ret_n_errors, const char *command, struct errmsg *e)
{
    _cleanup_(freep) char *text = NULL;
    _cleanup_(freep) char *value = NULL;
    struct ini_reading f = {.path = path, .handler = handler, .errors = errors, .section = ""};
    size_t bytes;
    int r = ini_file_load(path, &text, &bytes, e);

    if (r < 0)
        return r;

    /* a value's lines stand in the file with a line's end each, which becomes a blank */
    value = malloc(bytes + 1);
    if (!value)
        return fail(e, -ENOMEM, "out of memory while reading %s", path);

    f.value = value;
    ini_file_take_lines(&f, text, bytes);
    *ret_n_errors = f.n_errors;
    if (f.n_errors > 1)
        return fail(e, f.r, "%.260s (and %u more error%s: %s prints %s)", f.first.text, f.n_errors - 1,
                    f.n_errors > 2 ? "s" : "", command, f.n_errors > 2 ? "them" : "it");
    return f.n_errors > 0 ? fail(e, f.r, "%s", f.first.text) : 0;
}

int ini_file_read(const char *path, const struct ini_handler *handler, FILE *errors, const char *command,
                  struct errmsg *e)
{
    unsigned n_printed = 0;
    int r = ini_file_parse(path, handler, errors, &n_printed, command, e);

    if (r < 0 && errors && n_printed == 0)
        fprintf(errors, "%s\n", e->text);
    return r;
}
