/*
 * Log lines for the operator on standard error: one line per event, with a short name and fields, as logfmt
 * or JSON (log_line.h). Under systemd each line starts with its syslog priority, which the journal reads;
 * otherwise it has the time. Requests for pages log nothing. The newest lines are kept for operators
 * (log_history.h).
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <syslog.h> /* LOG_ERR .. LOG_DEBUG */

#include "daemon/loop/log_line.h"

void log_open(int max_level);

extern const char *const log_level_names[]; /* by LOG_EMERG .. LOG_DEBUG; ends with NULL */

extern const char *const log_format_names[]; /* by enum log_format; ends with NULL */
void log_set_format(enum log_format format);

/* @event: a fixed name. @fmt: "key=value key=value"; a value that may have blanks is quoted, as
 * message=\"%s\". A key stands in a line once. */
__attribute__((format(printf, 3, 4))) void log_event(int level, const char *event, const char *fmt, ...);

/* Lines about the clients of one tenant: at most LOG_LINES_PER_SECOND are logged. */
#define LOG_LINES_PER_SECOND 40 /* a session opens and closes: 20 sessions */
struct log_limit {
    const char *tenant; /* borrowed */
    int64_t second;     /* of the lines counted in n */
    uint32_t n;
    uint64_t n_dropped;
};

/*
 * As log_event(), for events that clients can cause at will. Lines above the limit are dropped. The next line
 * after them is preceded by one with their number.
 */
__attribute__((format(printf, 4, 5))) void log_client_event(struct log_limit *l, int level, const char *event,
                                                            const char *fmt, ...);

/* For events that clients can cause at will: whether the @n_times-th one is logged: 1st, 2nd, 4th, 8th ... */
static inline bool log_is_due(uint64_t n_times)
{
    return (n_times & (n_times - 1)) == 0;
}
