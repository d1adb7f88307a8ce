/* See log.h. */
#include "daemon/loop/log.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "daemon/loop/log_history.h"

enum {
    TIME_BYTES = 40,
    LOG_HISTORY_LEVEL = LOG_INFO, /* operators can read these lines also if they are not printed */
};

static struct {
    int max_level;
    bool journal; /* standard error is systemd's journal */
    enum log_format format;
} settings = {.max_level = LOG_INFO};

static bool log_stderr_is_journal(void)
{
    const char *stream = getenv("JOURNAL_STREAM"); /* "device:inode" of the stream that systemd set up */
    uint64_t device, inode;
    struct stat st;

    if (!stream || sscanf(stream, "%" SCNu64 ":%" SCNu64, &device, &inode) != 2)
        return false;
    return fstat(STDERR_FILENO, &st) == 0 && st.st_dev == device && st.st_ino == inode;
}

const char *const log_format_names[] = {[LOG_FORMAT_LOGFMT] = "logfmt", [LOG_FORMAT_JSON] = "json", NULL};

void log_open(int max_level)
{
    settings.max_level = max_level;
    settings.journal = log_stderr_is_journal();
}

void log_set_format(enum log_format format)
{
    settings.format = format;
}

/* "2026-11-23T02:17:06.123456Z" */
static void log_format_time(uint64_t time_us, char ret[static TIME_BYTES])
{
    time_t seconds = (time_t) (time_us / 1000000);
    struct tm tm;
    size_t n;

    (void) gmtime_r(&seconds, &tm);
    n = strftime(ret, TIME_BYTES, "%Y-%m-%dT%H:%M:%S", &tm);
    (void) snprintf(ret + n, TIME_BYTES - n, ".%06uZ", (unsigned) (time_us % 1000000));
}

const char *const log_level_names[] = {"emerg",  "alert", "crit",  "error", "warning",
                                       "notice", "info",  "debug", NULL};

/* The journal has time and level of its own; an object of JSON may be read elsewhere, and has them. */
static void log_print(int level, uint64_t time_us, const char *event, const char *fmt, va_list ap)
{
    bool json = settings.format == LOG_FORMAT_JSON;
    struct log_line line;
    char time[TIME_BYTES];

    log_line_begin(&line, settings.format);
    if (json || !settings.journal) {
        log_format_time(time_us, time);
        log_line_add(&line, "time", time, false);
        log_line_add(&line, "level", log_level_names[level & 7], false);
    }
    log_line_add(&line, "event", event, false);
    log_line_add_format(&line, fmt, ap);
    if (settings.journal)
        fprintf(stderr, "<%d>%s\n", level, log_line_end(&line));
    else
        fprintf(stderr, "%s\n", log_line_end(&line));
}

__attribute__((format(printf, 3, 0))) static void log_write(int level, const char *event, const char *fmt,
                                                            va_list ap)
{
    struct log_line line;
    struct timespec now;
    uint64_t time_us;
    va_list again;

    if (level > settings.max_level && level > LOG_HISTORY_LEVEL)
        return;

    (void) clock_gettime(CLOCK_REALTIME, &now); /* cannot fail for this clock */
    time_us = (uint64_t) now.tv_sec * 1000000 + (uint64_t) now.tv_nsec / 1000;
    va_copy(again, ap);
    log_line_begin(&line, LOG_FORMAT_JSON);
    log_line_add(&line, "event", event, false);
    log_line_add_format(&line, fmt, again);
    va_end(again);
    log_history_add(level, time_us, log_line_end(&line));
    if (level <= settings.max_level)
        log_print(level, time_us, event, fmt, ap);
}

void log_event(int level, const char *event, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    log_write(level, event, fmt, ap);
    va_end(ap);
}

void log_client_event(struct log_limit *l, int level, const char *event, const char *fmt, ...)
{
    struct timespec now;
    va_list ap;

    (void) clock_gettime(CLOCK_MONOTONIC, &now); /* cannot fail for this clock */
    if (now.tv_sec != l->second) {
        l->second = now.tv_sec;
        l->n = 0;
    }
    if (l->n >= LOG_LINES_PER_SECOND) {
        l->n_dropped++;
        return;
    }

    l->n++;
    if (l->n_dropped > 0)
        log_event(LOG_NOTICE, "lines-dropped", "tenant=%s lines=%" PRIu64, l->tenant, l->n_dropped);
    l->n_dropped = 0;
    va_start(ap, fmt);
    log_write(level, event, fmt, ap);
    va_end(ap);
}
