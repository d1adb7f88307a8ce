/*
 * Log lines for the operator on standard error: one line per event, with a short name and fields to grep for.
 * Under systemd each line starts with its syslog priority, which the journal reads. Requests for pages log
 * nothing.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <syslog.h> /* LOG_ERR .. LOG_DEBUG */

void log_open(int max_level);

/* @event: a fixed name. @fmt: "key=value key=value"; a value with blanks is quoted, as message=\"%s\". */
__attribute__((format(printf, 3, 4))) void log_event(int level, const char *event, const char *fmt, ...);

/* For events that clients can cause at will: whether the @n_times-th one is logged: 1st, 2nd, 4th, 8th ... */
static inline bool log_is_due(uint64_t n_times)
{
    return (n_times & (n_times - 1)) == 0;
}
