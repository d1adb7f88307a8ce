/*
 * The page of metrics: reads the server and writes every family of the table of
 * metrics (metrics_table.h) as text.
 *
 * Used by metrics_http.c for each GET /metrics, on the loop's thread. It only reads. Label values are
 * bounded: clients cannot choose how many series there are.
 */
#pragma once

#include <stddef.h>

struct server;

/* Maximum of series per family. If there are more tenants or tables, the last series is "(others)". */
#define METRICS_SERIES_MAX 1024

/* Returns the page, which the caller frees; NULL: memory is short, or it exceeds METRICS_TEXT_BYTES_MAX. */
char *metrics_collect(const struct server *s, size_t *ret_n);
