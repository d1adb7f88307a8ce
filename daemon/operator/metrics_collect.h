/*
 * The page of metrics: reads the server and writes every family of the table of metrics (metrics_table.h) as
 * text. Parts of the page have files of their own.
 *
 * Used by metrics_http.c for each GET /metrics, on the loop's thread. It only reads. Label values are
 * bounded: clients cannot choose how many series there are.
 */
#pragma once

#include <stddef.h>

struct metrics_text;
struct server;

/* Maximum of series per family. If there are more tenants or tables, the last series is "(others)". */
#define METRICS_SERIES_MAX 1024

/* Returns the page, which the caller frees; NULL: memory is short, or it exceeds METRICS_TEXT_BYTES_MAX. */
char *metrics_collect(const struct server *s, size_t *ret_n);

/* ---- parts of the page, for metrics_collect.c ---- */

/* Pools of all devices. */
void metrics_devices_collect_pools(const struct server *s, struct metrics_text *t);

/* GPUs and the process kvcobra-mover; writes nothing if no GPU is configured. */
void metrics_devices_collect_gpus(const struct server *s, struct metrics_text *t);

/* Hits and capacity (store/advice.h): devices, and tenants that have advice of their own. */
void metrics_advice_collect(const struct server *s, struct metrics_text *t);

/* The disk tier and the cluster tier; writes nothing without a disk tier. */
void metrics_tier_collect(const struct server *s, struct metrics_text *t);
