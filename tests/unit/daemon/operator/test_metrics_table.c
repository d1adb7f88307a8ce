/* The table of metrics: complete rows, names by the rules of Prometheus, and every field of STATUS in it. */
#include "daemon/operator/metrics_table.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/operator/metrics_text.h"
#include "tests/lib/test.h"

const char test_suite[] = "metrics_table";

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), n_end = strlen(end);

    return n >= n_end && strcmp(text + n - n_end, end) == 0;
}

/* ---- rows ---- */

static void check_help(const struct metrics_row *m)
{
    static const char *const pronouns[] = {"It ", "Its ", "Them ", "They ", "Of ", "The same", "That "};
    size_t n = strlen(m->help);

    CU_ASSERT_FATAL(n > 10);
    CU_ASSERT_EQUAL(m->help[n - 1], '.');
    CU_ASSERT_PTR_NULL(strchr(m->help, '\n'));
    CU_ASSERT_PTR_NULL(strchr(m->help, '\\'));
    for (size_t i = 0; i < sizeof(pronouns) / sizeof(pronouns[0]); i++) /* HELP is read alone */
        CU_ASSERT_NOT_EQUAL(strncmp(m->help, pronouns[i], strlen(pronouns[i])), 0);
}

static void test_rows(void)
{
    for (unsigned i = 0; i < METRICS_N; i++) {
        const struct metrics_row *m = &metrics_table[i];

        CU_ASSERT_FATAL(m->name && m->type && m->unit && m->labels && m->help);
        CU_ASSERT(m->unit[0] != '\0');
        check_help(m);
        if (m->name[0] == '\0')
            continue;
        CU_ASSERT_EQUAL(strncmp(m->name, "kvcobra_", 8), 0);
        CU_ASSERT(strcmp(m->type, "counter") == 0 || strcmp(m->type, "gauge") == 0 ||
                  strcmp(m->type, "histogram") == 0);
        CU_ASSERT_EQUAL(strcmp(m->type, "counter") == 0, ends_with(m->name, "_total"));
        CU_ASSERT_EQUAL(strcmp(m->unit, "bytes") == 0,
                        ends_with(m->name, "_bytes") || ends_with(m->name, "_bytes_total"));
        CU_ASSERT_EQUAL(strcmp(m->unit, "seconds") == 0 || strcmp(m->unit, "milliseconds") == 0,
                        ends_with(m->name, "_seconds"));
        for (unsigned k = 0; k < i; k++)
            CU_ASSERT_STRING_NOT_EQUAL(m->name, metrics_table[k].name);
    }
}

/* ---- fields of STATUS ---- */

#define FIELD(how, field, ...) #field,
static const char *const totals[] = {
#define STATUS_TOTAL FIELD
#include "proto/status_fields.def"
    NULL};
static const char *const devices[] = {
#define STATUS_DEVICE FIELD
#include "proto/status_fields.def"
    NULL};
static const char *const tenants[] = {
#define STATUS_TENANT FIELD
#include "proto/status_fields.def"
    NULL};
static const char *const spaces[] = {
#define STATUS_SPACE FIELD
#include "proto/status_fields.def"
    NULL};

static const char *const advice[] = {
#define STATUS_ADVICE FIELD
#include "proto/status_fields.def"
    NULL};

static void check_message(const ProtobufCMessageDescriptor *d, const char *const *rows)
{
    unsigned n = 0;

    while (rows[n])
        n++;
    CU_ASSERT_EQUAL(n, d->n_fields);
    for (unsigned i = 0; i < d->n_fields; i++) {
        unsigned found = 0;

        for (unsigned k = 0; k < n; k++)
            found += strcmp(rows[k], d->fields[i].name) == 0;
        if (found != 1)
            printf("    %s.%s stands in %u rows of proto/status_fields.def\n", d->short_name,
                   d->fields[i].name, found);
        CU_ASSERT_EQUAL(found, 1);
    }
}

static void test_fields(void)
{
    check_message(&kvcobra__status_reply__descriptor, totals);
    check_message(&kvcobra__device_status__descriptor, devices);
    check_message(&kvcobra__tenant_status__descriptor, tenants);
    check_message(&kvcobra__space_status__descriptor, spaces);
    check_message(&kvcobra__advice__descriptor, advice);
}

/* ---- values ---- */

static void test_values(void)
{
    Kvcobra__TenantStatus a = KVCOBRA__TENANT_STATUS__INIT, b = KVCOBRA__TENANT_STATUS__INIT;
    uint64_t values[METRIC_SPACE_FIRST - METRIC_TENANT_FIRST] = {0};

    a.pages = 3;
    a.hits = UINT64_C(1) << 40;
    a.isolated = 1;
    b.pages = 4;
    metrics_table_add_tenant(&a, values);
    metrics_table_add_tenant(&b, values);
    CU_ASSERT_EQUAL(values[METRIC_TENANT_pages - METRIC_TENANT_FIRST], 7);
    CU_ASSERT_EQUAL(values[METRIC_TENANT_hits - METRIC_TENANT_FIRST], UINT64_C(1) << 40);
    CU_ASSERT_EQUAL(values[METRIC_TENANT_isolated - METRIC_TENANT_FIRST], 1);
    CU_ASSERT_EQUAL(values[METRIC_TENANT_quota_bytes - METRIC_TENANT_FIRST], 0);
    CU_ASSERT_EQUAL(values[METRIC_TENANT_name - METRIC_TENANT_FIRST], 0);
}

static char *rows_text(const char *const *names)
{
    static const uint64_t values[] = {1, 2}; /* one family, two rows */
    struct metrics_text t = {0};
    char *text, *copy;
    size_t n;

    metrics_table_rows(&t, METRIC_GPU_FIRST, METRIC_GPU_FIRST + 1, names, values, names ? 2 : 1);
    text = metrics_text_take(&t, &n);
    CU_ASSERT_PTR_NOT_NULL_FATAL(text);
    copy = strndup(text, n);
    free(text);
    CU_ASSERT_PTR_NOT_NULL_FATAL(copy);
    return copy;
}

static void test_samples(void)
{
    static const char *const names[] = {NULL, "gpu0"};
    struct metrics_text t = {0};
    char *text = rows_text(NULL);
    size_t n;

    CU_ASSERT_PTR_NOT_NULL(
        strstr(text, "# TYPE kvcobra_gpu_spare_extents gauge\nkvcobra_gpu_spare_extents 1\n"));
    free(text);

    metrics_table_one(&t, METRIC_TOTAL_uptime_ms, 1500); /* milliseconds are exported as seconds */
    text = metrics_text_take(&t, &n);
    CU_ASSERT_PTR_NOT_NULL_FATAL(text);
    CU_ASSERT(n > 27 && memcmp(text + n - 27, "kvcobra_uptime_seconds 1.5\n", 27) == 0);
    free(text);

    text = rows_text(names);
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "kvcobra_gpu_spare_extents{device=\"gpu0\"} 2\n"));
    CU_ASSERT_PTR_NULL(strstr(text, "kvcobra_gpu_spare_extents 1\n"));
    free(text);
}

const struct test_case test_cases[] = {
    TEST(test_rows), TEST(test_fields), TEST(test_values), TEST(test_samples), TEST_END,
};
