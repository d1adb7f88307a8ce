/* Everything the daemon shows to monitoring, as text; man page kvcobrad-metrics(7) lists the names. */
#pragma once

#include <stddef.h>

struct server;

/* Label values are bounded: beyond so many tenants or tables, the others are summed up as "(others)". */
#define METRICS_SERIES_MAX 1024

/* The whole page, the caller frees; NULL: no memory, or longer than METRICS_TEXT_BYTES_MAX. Loop thread. */
char *metrics_collect(const struct server *s, size_t *ret_n);
