/*
 * Writes the text format of Prometheus (version 0.0.4): families with HELP and TYPE, samples with escaped
 * labels. metrics_table.c writes through it; no function here depends on a single metric.
 *
 * After a failure (out of memory, too long) calls do nothing, and metrics_text_take() returns NULL.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct metrics_latency;

#define METRICS_TEXT_BYTES_MAX ((size_t) 16 << 20)

struct metrics_text {
    char *data;
    size_t n, room;
    bool failed;
};

struct metric_label {
    const char *name;  /* NULL ends a list */
    const char *value; /* any bytes: escaped; a byte that is not UTF-8 becomes U+FFFD */
};

/* @type: "counter", "gauge", "histogram". The next calls must write the samples of the family. */
void metrics_family(struct metrics_text *t, const char *name, const char *type, const char *help);

/* @labels: ends with a NULL name; NULL: none. */
void metrics_sample(struct metrics_text *t, const char *name, const struct metric_label *labels,
                    uint64_t value);
void metrics_sample_real(struct metrics_text *t, const char *name, const struct metric_label *labels,
                         double value);

/* _bucket, _sum and _count of a histogram in seconds, with one label. */
void metrics_histogram(struct metrics_text *t, const char *name, struct metric_label label,
                       const struct metrics_latency *l);

/* Returns the text, [*ret_n], which the caller frees; NULL after a failure. @t is empty afterwards. */
char *metrics_text_take(struct metrics_text *t, size_t *ret_n);
