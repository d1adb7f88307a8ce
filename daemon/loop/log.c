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
#include <unistd.h>

static struct {
    int max_level;
    bool journal; /* standard error is systemd's journal */
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

void log_open(int max_level)
{
    settings.max_level = max_level;
    settings.journal = log_stderr_is_journal();
}

void log_event(int level, const char *event, const char *fmt, ...)
{
    static const char *const names[] = {"emerg",   "alert",  "crit", "error",
                                        "warning", "notice", "info", "debug"};
    char line[1024];
    int n;
    va_list ap;

    if (level > settings.max_level)
        return;
    if (settings.journal)
        n = snprintf(line, sizeof(line), "<%d>event=%s ", level, event);
    else
        n = snprintf(line, sizeof(line), "kvcobrad: %s: event=%s ", names[level & 7], event);
    va_start(ap, fmt);
    (void) vsnprintf(line + n, sizeof(line) - (size_t) n, fmt, ap);
    va_end(ap);
    for (char *c = line; *c; c++) /* client names may have control characters: one event stays one line */
        if ((unsigned char) *c < 0x20 || *c == 0x7f)
            *c = ' ';
    fprintf(stderr, "%s\n", line);
}
