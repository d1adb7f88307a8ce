/*
 * The table of metrics: name, type, unit, labels and HELP sentence of everything that kvcobrad exports to
 * Prometheus, each once. Rows come from proto/status_fields.def, whose values STATUS reports too, and from
 * metrics.def, which has the others.
 *
 * metrics_collect.c and metrics_devices.c write samples by a row's
 * number; man/man_page.c writes kvcobrad-metrics(7).
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "proto/kvcobra.pb-c.h"

struct metric_label;
struct metrics_text;

struct metrics_row {
    const char *name;   /* "": a value of STATUS that is not a metric */
    const char *type;   /* counter, gauge, histogram */
    const char *unit;   /* "milliseconds" are exported as seconds */
    const char *labels; /* separated by commas */
    const char *help;
};

/* Numbers of rows: one per line of metrics.def, then one per field of each message of STATUS. */
enum metric_id {
#define METRIC(id, type, unit, labels, name, help) METRIC_##id,
#include "daemon/operator/metrics.def"
    METRIC_TOTAL_FIRST,
    METRIC_TOTAL_BEFORE = METRIC_TOTAL_FIRST - 1,
#define STATUS_MOVER(...)
#define STATUS_TOTAL(how, field, ...) METRIC_TOTAL_##field,
#include "proto/status_fields.def"
    METRIC_MOVER_FIRST,
    METRIC_MOVER_BEFORE = METRIC_MOVER_FIRST - 1,
#define STATUS_MOVER(how, field, ...) METRIC_MOVER_##field,
#include "proto/status_fields.def"
    METRIC_DEVICE_FIRST,
    METRIC_DEVICE_BEFORE = METRIC_DEVICE_FIRST - 1,
#define STATUS_GPU(...)
#define STATUS_DEVICE(how, field, ...) METRIC_DEVICE_##field,
#include "proto/status_fields.def"
    METRIC_GPU_FIRST,
    METRIC_GPU_BEFORE = METRIC_GPU_FIRST - 1,
#define STATUS_GPU(how, field, ...) METRIC_GPU_##field,
#include "proto/status_fields.def"
    METRIC_TENANT_FIRST,
    METRIC_TENANT_BEFORE = METRIC_TENANT_FIRST - 1,
#define STATUS_TENANT(how, field, ...) METRIC_TENANT_##field,
#include "proto/status_fields.def"
    METRIC_SPACE_FIRST,
    METRIC_SPACE_BEFORE = METRIC_SPACE_FIRST - 1,
#define STATUS_SPACE(how, field, ...) METRIC_SPACE_##field,
#include "proto/status_fields.def"
    METRICS_N
};

extern const struct metrics_row metrics_table[METRICS_N];

/* ---- values of STATUS ---- */

/*
 * Add the numbers of a message to @values: [0] belongs to METRIC_TOTAL_FIRST, and so on. Fields that are not
 * numbers count 0.
 */
void metrics_table_add_totals(const Kvcobra__StatusReply *m,
                              uint64_t *values); /* [METRIC_MOVER_FIRST - METRIC_TOTAL_FIRST] */
void metrics_table_add_mover(const Kvcobra__StatusReply *m,
                             uint64_t *values); /* [METRIC_DEVICE_FIRST - METRIC_MOVER_FIRST] */
void metrics_table_add_device(const Kvcobra__DeviceStatus *m,
                              uint64_t *values); /* [METRIC_GPU_FIRST - METRIC_DEVICE_FIRST] */
void metrics_table_add_gpu(const Kvcobra__DeviceStatus *m,
                           uint64_t *values); /* [METRIC_TENANT_FIRST - METRIC_GPU_FIRST] */
void metrics_table_add_tenant(const Kvcobra__TenantStatus *m,
                              uint64_t *values); /* [METRIC_SPACE_FIRST - METRIC_TENANT_FIRST] */
void metrics_table_add_space(const Kvcobra__SpaceStatus *m,
                             uint64_t *values); /* [METRICS_N - METRIC_SPACE_FIRST] */

/* ---- writing ---- */

/* Writes HELP and TYPE; the caller writes the samples next. */
void metrics_table_family(struct metrics_text *t, enum metric_id id);

/* @labels: ends with a NULL name; NULL: none. */
void metrics_table_sample(struct metrics_text *t, enum metric_id id, const struct metric_label *labels,
                          uint64_t value);

/**
 * metrics_table_rows() - the families of one message of STATUS, with a sample per row
 * @first:  number of the message's first metric, such as METRIC_TENANT_FIRST; @end: the number after its last
 * @names:  [n_rows] value of the label, NULL: the row is skipped; or NULL: the samples have no label
 * @values: [n_rows, end - first] as metrics_table_add_tenant() and the like fill them
 */
void metrics_table_rows(struct metrics_text *t, unsigned first, unsigned end, const char *const *names,
                        const uint64_t *values, size_t n_rows);

/* Writes a family of one sample without labels. */
void metrics_table_one(struct metrics_text *t, enum metric_id id, uint64_t value);
