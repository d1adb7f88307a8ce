/* The text format of Prometheus; see metrics_text.h. */
#include "daemon/operator/metrics_text.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "daemon/loop/metrics.h"

/* Makes room for @n bytes more. False: memory is short or the text is too long; later calls fail too. */
static bool metrics_text_reserve(struct metrics_text *t, size_t n)
{
    size_t room = t->room ? t->room : 16384;
    char *data;

    if (t->failed || n > METRICS_TEXT_BYTES_MAX - t->n) {
        t->failed = true;
        return false;
    }

    while (room - t->n < n)
        room *= 2;
    if (room == t->room)
        return true;

    data = realloc(t->data, room);
    if (!data) {
        t->failed = true;
        return false;
    }

    t->data = data;
    t->room = room;
    return true;
}

static void metrics_text_add(struct metrics_text *t, const char *bytes, size_t n)
{
    if (!metrics_text_reserve(t, n))
        return;

    memcpy(t->data + t->n, bytes, n);
    t->n += n;
}

static void metrics_text_add_string(struct metrics_text *t, const char *text)
{
    metrics_text_add(t, text, strlen(text));
}

/* A byte that is not UTF-8 becomes U+FFFD. */
static void metrics_text_add_escaped(struct metrics_text *t, const char *value)
{
    size_t left = strlen(value);

    while (left > 0) {
        size_t n = utf8_length(value, left);

        if (*value == '\\' || *value == '"')
            metrics_text_add(t, "\\", 1);
        if (*value == '\n')
            metrics_text_add_string(t, "\\n");
        else if (n == 0)
            metrics_text_add_string(t, "\xef\xbf\xbd");
        else
            metrics_text_add(t, value, n);

        n = n > 0 ? n : 1;
        value += n;
        left -= n;
    }
}

static void metrics_text_add_labels(struct metrics_text *t, const struct metric_label *labels)
{
    if (!labels || !labels[0].name)
        return;
    for (size_t i = 0; labels[i].name; i++) {
        metrics_text_add_string(t, i == 0 ? "{" : ",");
        metrics_text_add_string(t, labels[i].name);
        metrics_text_add_string(t, "=\"");
        metrics_text_add_escaped(t, labels[i].value);
        metrics_text_add_string(t, "\"");
    }
    metrics_text_add_string(t, "}");
}

void metrics_family(struct metrics_text *t, const char *name, const char *type, const char *help)
{
    metrics_text_add_string(t, "# HELP ");
    metrics_text_add_string(t, name);
    metrics_text_add_string(t, " ");
    metrics_text_add_string(t, help);
    metrics_text_add_string(t, "\n# TYPE ");
    metrics_text_add_string(t, name);
    metrics_text_add_string(t, " ");
    metrics_text_add_string(t, type);
    metrics_text_add_string(t, "\n");
}

static void metrics_text_add_number(struct metrics_text *t, const char *text)
{
    metrics_text_add_string(t, " ");
    metrics_text_add_string(t, text);
    metrics_text_add_string(t, "\n");
}

void metrics_sample(struct metrics_text *t, const char *name, const struct metric_label *labels,
                    uint64_t value)
{
    char text[32];

    (void) snprintf(text, sizeof(text), "%" PRIu64, value);
    metrics_text_add_string(t, name);
    metrics_text_add_labels(t, labels);
    metrics_text_add_number(t, text);
}

void metrics_sample_real(struct metrics_text *t, const char *name, const struct metric_label *labels,
                         double value)
{
    char text[32];

    if (isnan(value))
        (void) snprintf(text, sizeof(text), "NaN");
    else if (isinf(value))
        (void) snprintf(text, sizeof(text), value > 0 ? "+Inf" : "-Inf");
    else
        (void) snprintf(text, sizeof(text), "%.9g", value);
    metrics_text_add_string(t, name);
    metrics_text_add_labels(t, labels);
    metrics_text_add_number(t, text);
}

void metrics_histogram(struct metrics_text *t, const char *name, struct metric_label label,
                       const struct metrics_latency *l)
{
    char le[32], full[128];
    const struct metric_label with_le[] = {label, {"le", le}, {NULL, NULL}};
    const struct metric_label *without_le = (const struct metric_label[]){label, {NULL, NULL}};
    uint64_t n = 0;

    (void) snprintf(full, sizeof(full), "%s_bucket", name);
    for (unsigned b = 0; b < METRICS_BUCKETS; b++) { /* counts become cumulative */
        n += l->counts[b];
        if (b < METRICS_BUCKETS - 1)
            (void) snprintf(le, sizeof(le), "%.9g", metrics_bucket_us[b] * 1e-6);
        else
            (void) snprintf(le, sizeof(le), "+Inf");
        metrics_sample(t, full, with_le, n);
    }

    (void) snprintf(full, sizeof(full), "%s_sum", name);
    metrics_sample_real(t, full, without_le, (double) l->sum_ns * 1e-9);
    (void) snprintf(full, sizeof(full), "%s_count", name);
    metrics_sample(t, full, without_le, n);
}

char *metrics_text_take(struct metrics_text *t, size_t *ret_n)
{
    char *data = t->data;

    if (t->failed) {
        free(data);
        data = NULL;
    }
    *ret_n = data ? t->n : 0;
    *t = (struct metrics_text){0};
    return data;
}
