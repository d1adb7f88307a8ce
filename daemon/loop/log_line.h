/*
 * One line of the log from the format of log_event(): fields in the order of the format, with values that a
 * program can read back. Used by log.c, and for the history that operators read (log_history.h).
 *
 * A format is "key=value key=\"value\", what kvcobrad does": conversions of printf may stand in values only.
 * Text after a comma or a colon behind the last value becomes the field "action".
 *
 * JSON is written here, not by jansson as elsewhere: a line has to come without memory, too, since the log
 * says when memory ran out; it is cut at a field, not refused; and both formats have the same escapes.
 */
#pragma once

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

enum log_format {
    LOG_FORMAT_LOGFMT, /* key=value key="value with blanks, \" and \\" */
    LOG_FORMAT_JSON,   /* one object */
};

#define LOG_LINE_BYTES 8192
#define LOG_VALUE_BYTES 1024 /* longer values are cut */

struct log_line {
    enum log_format format;
    size_t n;
    bool is_cut; /* a field did not fit, and is left out */
    char text[LOG_LINE_BYTES];
};

void log_line_begin(struct log_line *l, enum log_format format);

/* @is_number: JSON gets no quotes. */
void log_line_add(struct log_line *l, const char *key, const char *value, bool is_number);
void log_line_add_format(struct log_line *l, const char *fmt, va_list ap);

/* The line without a newline. */
const char *log_line_end(struct log_line *l);
