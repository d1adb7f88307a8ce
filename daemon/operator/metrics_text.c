/* The text format; see metrics_text.h. */
#include "daemon/operator/metrics_text.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "daemon/loop/metrics.h"

static void metrics_text_add(struct metrics_text *t, const char *bytes, size_t n)
{
    size_t room = t->room ? t->room : 16384;
    char *data;

    if (t->failed)
        return;
    if (n > METRICS_TEXT_BYTES_MAX - t->n) {
        t->failed = true;
        return;
    }
    while (room - t->n < n)
        room *= 2;
    if (room != t->room) {
        data = realloc(t->data, room);
        if (!data) {
            t->failed = true;
            return;
        }
        t->data = data;
        t->room = room;
    }
    memcpy(t->data + t->n, bytes, n);
    t->n += n;
}

static void add_text(struct metrics_text *t, const char *text)
{
    metrics_text_add(t, text, strlen(text));
}

/* Bytes of the well-formed UTF-8 sequence at @p, which ends with NUL; 0 if there is none. */
static size_t metrics_text_utf8_bytes(const unsigned char *p)
{
    size_t n = p[0] < 0x80                   ? 1
               : p[0] >= 0xc2 && p[0] < 0xe0 ? 2
               : p[0] >= 0xe0 && p[0] < 0xf0 ? 3
               : p[0] >= 0xf0 && p[0] < 0xf5 ? 4
                                             : 0;

    for (size_t i = 1; i < n; i++)
        if ((p[i] & 0xc0) != 0x80)
            return 0;
    if ((n == 3 && p[0] == 0xe0 && p[1] < 0xa0) || (n == 3 && p[0] == 0xed && p[1] >= 0xa0) ||
        (n == 4 && p[0] == 0xf0 && p[1] < 0x90) || (n == 4 && p[0] == 0xf4 && p[1] >= 0x90))
        return 0; /* longer than necessary, a surrogate, beyond U+10FFFF */
    return n;
}

static void metrics_text_add_escaped(struct metrics_text *t, const char *value)
{
    for (const char *p = value; *p;) {
        size_t n = metrics_text_utf8_bytes((const unsigned char *) p);

        if (*p == '\\' || *p == '"')
            metrics_text_add(t, "\\", 1);
        if (*p == '\n')
            add_text(t, "\\n");
        else if (n == 0)
            add_text(t, "\xef\xbf\xbd");
        else
            metrics_text_add(t, p, n);
        p += n ? n : 1;
    }
}

static void metrics_text_add_labels(struct metrics_text *t, const struct metric_label *labels)
{
    if (!labels || !labels[0].name)
        return;
    for (size_t i = 0; labels[i].name; i++) {
        add_text(t, i == 0 ? "{" : ",");
        add_text(t, labels[i].name);
        add_text(t, "=\"");
        metrics_text_add_escaped(t, labels[i].value);
        add_text(t, "\"");
    }
    add_text(t, "}");
}

void metrics_family(struct metrics_text *t, const char *name, const char *type, const char *help)
{
    add_text(t, "# HELP ");
    add_text(t, name);
    add_text(t, " ");
    add_text(t, help);
    add_text(t, "\n# TYPE ");
    add_text(t, name);
    add_text(t, " ");
    add_text(t, type);
    add_text(t, "\n");
}

static void metrics_text_add_number(struct metrics_text *t, const char *text)
{
    add_text(t, " ");
    add_text(t, text);
    add_text(t, "\n");
}

void metrics_sample(struct metrics_text *t, const char *name, const struct metric_label *labels,
                    uint64_t value)
{
    char text[32];

    (void) snprintf(text, sizeof(text), "%" PRIu64, value);
    add_text(t, name);
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
    add_text(t, name);
    metrics_text_add_labels(t, labels);
    metrics_text_add_number(t, text);
}

void metrics_one(struct metrics_text *t, const char *name, const char *type, const char *help, uint64_t value)
{
    metrics_family(t, name, type, help);
    metrics_sample(t, name, NULL, value);
}

void metrics_histogram(struct metrics_text *t, const char *name, struct metric_label label,
                       const struct metrics_latency *l)
{
    char le[32], full[128];
    const struct metric_label with_le[] = {label, {"le", le}, {NULL, NULL}};
    const struct metric_label *without_le = (const struct metric_label[]){label, {NULL, NULL}};
    uint64_t n = 0;

    (void) snprintf(full, sizeof(full), "%s_bucket", name);
    for (unsigned b = 0; b < METRICS_BUCKETS; b++) { /* cumulative, where we count each observation once */
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
