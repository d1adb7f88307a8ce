/*
 * The page of metrics: reads the server and writes every family of the table of metrics (metrics_table.h) as
 * text.
 *
 * Used by metrics_http.c for each GET /metrics, on the loop's thread. It only reads. Label values are
 * bounded: clients cannot choose how many series there are.
 */
#pragma once

#include <stddef.h>

struct server;

/* Series per family: beyond so many tenants or tables, the rest are one series named "(others)". */
#define METRICS_SERIES_MAX 1024

/* The page, the caller frees; NULL: out of memory, or longer than METRICS_TEXT_BYTES_MAX. Loop thread. */
char *metrics_collect(const struct server *s, size_t *ret_n);
