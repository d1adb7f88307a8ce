/* See log_history.h. */
#include "daemon/loop/log_history.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static struct {
    pthread_mutex_t mutex;
    uint64_t last;
    struct log_history_line lines[LOG_HISTORY_LINES]; /* number n at n % LOG_HISTORY_LINES */
} history = {.mutex = PTHREAD_MUTEX_INITIALIZER};

void log_history_add(int level, uint64_t time_us, const char *json)
{
    char *copy = strlen(json) < LOG_HISTORY_LINE_BYTES ? strdup(json) : NULL;
    struct log_history_line *at;

    (void) pthread_mutex_lock(&history.mutex);
    at = &history.lines[++history.last % LOG_HISTORY_LINES];
    free(at->json);
    *at = (struct log_history_line){history.last, time_us, level, copy};
    (void) pthread_mutex_unlock(&history.mutex);
}

size_t log_history_read(uint64_t after, struct log_history_line *ret, size_t n_max, uint64_t *ret_last)
{
    uint64_t oldest;
    size_t n = 0;

    (void) pthread_mutex_lock(&history.mutex);
    oldest = history.last > LOG_HISTORY_LINES ? history.last - LOG_HISTORY_LINES : 0;
    for (uint64_t i = after > oldest ? after : oldest; i < history.last && n < n_max; i++) {
        const struct log_history_line *from = &history.lines[(i + 1) % LOG_HISTORY_LINES];

        ret[n] = *from;
        ret[n].json = from->json ? strdup(from->json) : NULL;
        n += ret[n].json != NULL;
    }
    *ret_last = history.last;
    (void) pthread_mutex_unlock(&history.mutex);
    return n;
}
