/* See log_line.h. */
#include "daemon/loop/log_line.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"

enum { KEY_BYTES = 48, SPEC_BYTES = 24 };

/* ---- writing fields ---- */

void log_line_begin(struct log_line *l, enum log_format format)
{
    l->format = format;
    l->n = 0;
    l->is_cut = false;
    l->text[0] = '\0';
}

static bool log_line_needs_quotes(const char *value)
{
    for (const char *c = value; *c; c++)
        if ((unsigned char) *c <= ' ' || (unsigned char) *c >= 0x7f || strchr("\"=\\", *c))
            return true;
    return *value == '\0';
}

/* Escapes of JSON, which readers of logfmt know too. Return: bytes of @to. */
static size_t log_line_escape(const char *value, char *to, size_t room)
{
    size_t n = strlen(value), at = 0;

    for (size_t i = 0; i < n && room - at > 8;) {
        unsigned char c = (unsigned char) value[i];
        size_t length = utf8_length(value + i, n - i);

        if (c == '"' || c == '\\')
            at += (size_t) snprintf(to + at, room - at, "\\%c", c);
        else if (c == '\n' || c == '\t')
            at += (size_t) snprintf(to + at, room - at, "\\%c", c == '\n' ? 'n' : 't');
        else if (c < 0x20 || c == 0x7f)
            at += (size_t) snprintf(to + at, room - at, "\\u%04x", c);
        else if (length == 0)
            to[at++] = '?';
        else
            memcpy(to + at, value + i, length);
        if (length > 0 && c >= 0x20 && c != 0x7f && c != '"' && c != '\\')
            at += length;
        i += length > 0 ? length : 1;
    }
    to[at] = '\0';
    return at;
}

void log_line_add(struct log_line *l, const char *key, const char *value, bool is_number)
{
    char escaped[6 * LOG_VALUE_BYTES + 1];
    bool json = l->format == LOG_FORMAT_JSON, quotes = json ? !is_number : log_line_needs_quotes(value);
    const char *before = json ? "," : " ", *q = json ? "\"" : "";
    int n;

    if (l->n == 0)
        before = json ? "{" : "";
    (void) log_line_escape(value, escaped, sizeof(escaped));
    n = snprintf(l->text + l->n, sizeof(l->text) - 32 - l->n, "%s%s%s%s%s%s%s%s", before, q, key, q,
                 json ? ":" : "=", quotes ? "\"" : "", quotes ? escaped : value, quotes ? "\"" : "");
    if (n < 0 || l->n + (size_t) n >= sizeof(l->text) - 32) {
        l->text[l->n] = '\0';
        l->is_cut = true;
        return;
    }
    l->n += (size_t) n;
}

const char *log_line_end(struct log_line *l)
{
    if (l->is_cut) {
        (void) snprintf(l->text + l->n, sizeof(l->text) - l->n,
                        l->format == LOG_FORMAT_JSON ? "%s\"cut\":true" : "%scut=true",
                        l->n > 0 && l->format == LOG_FORMAT_JSON ? "," : " ");
        l->n += strlen(l->text + l->n);
        l->is_cut = false;
    }
    if (l->format == LOG_FORMAT_JSON)
        (void) snprintf(l->text + l->n, sizeof(l->text) - l->n, "%s", l->n > 0 ? "}" : "{}");
    return l->text;
}

/* ---- conversions ---- */

struct log_line_arguments {
    va_list ap; /* in a struct, so that functions can share it */
};

/* Copies the conversion at *@fmt, which begins with '%', to @spec, and moves *@fmt behind it. */
static char log_line_take_spec(const char **fmt, char spec[static SPEC_BYTES])
{
    size_t n = strspn(*fmt + 1, "-+ #0123456789.*hlzjt") + 2;

    n = n < SPEC_BYTES ? n : SPEC_BYTES - 1;
    memcpy(spec, *fmt, n);
    spec[n] = '\0';
    *fmt += n;
    return spec[n - 1];
}

/* A conversion of a literal format, of which the compiler checked the types at log_event(). */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"

static int log_line_print_signed(struct log_line_arguments *a, const char *spec, char *to, size_t room)
{
    if (strstr(spec, "ll") || strchr(spec, 'j'))
        return snprintf(to, room, spec, va_arg(a->ap, long long));
    if (strpbrk(spec, "lzt"))
        return snprintf(to, room, spec, va_arg(a->ap, long));
    return snprintf(to, room, spec, va_arg(a->ap, int));
}

static int log_line_print_unsigned(struct log_line_arguments *a, const char *spec, char *to, size_t room)
{
    if (strstr(spec, "ll") || strchr(spec, 'j'))
        return snprintf(to, room, spec, va_arg(a->ap, unsigned long long));
    if (strpbrk(spec, "lzt"))
        return snprintf(to, room, spec, va_arg(a->ap, unsigned long));
    return snprintf(to, room, spec, va_arg(a->ap, unsigned));
}

static int log_line_print_text(struct log_line_arguments *a, const char *spec, char *to, size_t room)
{
    const char *text;
    int width;

    if (!strchr(spec, '*')) {
        text = va_arg(a->ap, const char *);
        return snprintf(to, room, spec, text ? text : "(null)");
    }

    width = va_arg(a->ap, int);
    text = va_arg(a->ap, const char *);
    return snprintf(to, room, spec, width, text ? text : "(null)");
}

/* Expands the conversion at *@fmt. Return: bytes of @to. */
static size_t log_line_expand(const char **fmt, struct log_line_arguments *a, char *to, size_t room,
                              bool *ret_is_number)
{
    char spec[SPEC_BYTES], kind = log_line_take_spec(fmt, spec);
    int n = 0;

    *ret_is_number = strchr("diu", kind) != NULL;
    if (kind == 'd' || kind == 'i')
        n = log_line_print_signed(a, spec, to, room);
    else if (strchr("uxXo", kind))
        n = log_line_print_unsigned(a, spec, to, room);
    else if (kind == 's')
        n = log_line_print_text(a, spec, to, room);
    else if (strchr("feg", kind))
        n = snprintf(to, room, spec, va_arg(a->ap, double));
    else if (kind == 'c')
        n = snprintf(to, room, spec, va_arg(a->ap, int));
    else if (kind == '%')
        n = snprintf(to, room, "%%");

    n = n > 0 ? n : 0;
    return (size_t) n < room ? (size_t) n : room - 1;
}
#pragma GCC diagnostic pop

/* ---- fields of a format ---- */

/* Expands the format up to one of @ends. Return: whether the text is a number. */
static bool log_line_take_value(const char **fmt, const char *ends, struct log_line_arguments *a,
                                char value[static LOG_VALUE_BYTES])
{
    bool is_number = false;
    unsigned n_parts = 0;
    size_t n = 0;

    for (; **fmt && !strchr(ends, **fmt); n_parts++) {
        bool part_is_number = false;

        if (**fmt == '%')
            n += log_line_expand(fmt, a, value + n, LOG_VALUE_BYTES - n, &part_is_number);
        else if (n + 1 < LOG_VALUE_BYTES)
            value[n++] = *(*fmt)++;
        else
            (*fmt)++;
        is_number = part_is_number;
    }
    value[n] = '\0';
    return is_number && n_parts == 1;
}

void log_line_add_format(struct log_line *l, const char *fmt, va_list ap)
{
    struct log_line_arguments a;
    char value[LOG_VALUE_BYTES] = "", key[KEY_BYTES];

    va_copy(a.ap, ap);
    while (fmt += strspn(fmt, " "), *fmt) {
        size_t n = strcspn(fmt, "= ");
        bool is_number, quoted;

        if (*fmt == ',' || *fmt == ':' || fmt[n] != '=' || n >= sizeof(key)) {
            fmt += strspn(fmt, ",: ");
            (void) log_line_take_value(&fmt, "", &a, value);
            log_line_add(l, "action", value, false);
            break;
        }

        memcpy(key, fmt, n);
        key[n] = '\0';
        fmt += n + 1;
        quoted = *fmt == '"';
        fmt += quoted;
        is_number = log_line_take_value(&fmt, quoted ? "\"" : " ,", &a, value);
        fmt += quoted && *fmt == '"';
        log_line_add(l, key, value, is_number && !quoted);
    }
    va_end(a.ap);
}
