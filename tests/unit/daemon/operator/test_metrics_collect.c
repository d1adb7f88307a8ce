/*
 * The page of metrics from a server that exists only as numbers here: each counter has a value of its own,
 * and there are more tenants and tables than rows.
 */
#include "daemon/operator/metrics_collect.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/errmsg.h"
#include "daemon/config/limits.h"
#include "daemon/loop/ev.h"
#include "daemon/loop/metrics.h"
#include "daemon/loop/work.h"
#include "daemon/requests/conn.h"
#include "daemon/requests/raw_gpu.h"
#include "daemon/requests/state.h"
#include "daemon/server_parts.h"
#include "daemon/session/session_types.h"
#include "daemon/store/device.h"
#include "daemon/store/persist.h"
#include "daemon/tables/live_moments.h"
#include "daemon/tables/table_entry.h"
#include "tests/lib/test.h"

const char test_suite[] = "metrics_collect";

enum { N_TENANTS = TENANT_SERIES_MAX + 3, N_TABLES = METRICS_SERIES_MAX + 6 };

static struct server *s;
static struct journal_head head;
static struct account account;
static struct tenant *tenants;
static struct table_entry *tables;
static char *page;

static void begin(size_t n_tenants, size_t n_tables)
{
    struct errmsg e = {""};
    struct device *d;

    s = server_rooms_new(NULL);
    assert(s);
    d = &s->devices->list[0];
    memset(&head, 0, sizeof(head));
    s->persist->journal.head = &head;
    CU_ASSERT_EQUAL_FATAL(ev_new(&s->ev, &e), 0);
    CU_ASSERT_EQUAL_FATAL(work_new(s->ev, 1, 1, &s->work, &e), 0);
    assert(pool_init(&d->store.pool, &s->devices->serials, 1 << 20, 1 << 20, 1 << 20, NULL) == 0);
    (void) strcpy(d->name, "cpu");
    s->devices->n = 1;
    tenants = calloc(n_tenants + 1, sizeof(*tenants));
    tables = calloc(n_tables + 1, sizeof(*tables));
    assert(tenants && tables);
    for (size_t i = 0; i < n_tenants; i++) {
        tenants[i] = (struct tenant){
            .device = d,
            .account = &account,
            .has_series = i < TENANT_SERIES_MAX,
            .next = i + 1 < n_tenants ? &tenants[i + 1] : NULL,
            .counters = {.evictions = 1, .hits = 2, .misses = 3, .misses_by = {4, 5, 6, 7, 8, 9, 10, 11}},
        };
        (void) snprintf(tenants[i].name, sizeof(tenants[i].name), "uid-%zu", i);
    }
    for (size_t i = 0; i < n_tables; i++) {
        tables[i] = (struct table_entry){
            .state = TABLE_ACTIVE,
            .table = (struct table *) &tables[i], /* is not NULL; nothing reads it */
            .n_refs = 2,
            .former_leased = 3,
            .former_evictions = 5,
            .next = i + 1 < n_tables ? &tables[i + 1] : NULL,
        };
        memcpy(tables[i].digest, &i, sizeof(i));
    }
    d->store.tenants = n_tenants ? tenants : NULL;
    s->tables->entries = n_tables ? tables : NULL;
}

static void collect(void)
{
    size_t n = 0;
    char *text = metrics_collect(s, &n); /* without a terminating 0 */

    CU_ASSERT_PTR_NOT_NULL_FATAL(text);
    page = strndup(text, n);
    free(text);
    CU_ASSERT_PTR_NOT_NULL_FATAL(page);
    CU_ASSERT_EQUAL(strlen(page), n);
}

static void end(void)
{
    free(page);
    free(tenants);
    free(tables);
    s->work = work_free(s->work);
    pool_deinit(&s->devices->list[0].store.pool);
    s->ev = ev_free(s->ev);
    free(s);
}

/* Whether the page has the sample @name, labels included, with @value. */
static bool has(const char *name, uint64_t value)
{
    char line[256];

    (void) snprintf(line, sizeof(line), "\n%s %llu\n", name, (unsigned long long) value);
    return strstr(page, line) != NULL;
}

/* Samples of a family. */
static size_t count(const char *family)
{
    char start[128];
    size_t n = 0;

    (void) snprintf(start, sizeof(start), "\n%s{", family);
    for (const char *at = page; (at = strstr(at, start)); at++)
        n++;
    return n;
}

static void test_counters(void)
{
    begin(0, 0);
    s->conns->n_clients = 2;
    s->conns->n_operators = 3;
    s->conns->refused_connections = 7;
    s->conns->refused_packets = 11;
    s->live->n_reports = 13;
    s->live->n_refused = 17;
    s->raw->coords[0] = 19;
    s->raw->coords[1] = 23;
    s->raw->saturated[0] = 29;
    s->raw->saturated[1] = 31;
    s->devices->list[0].store.n_damaged = 37;
    s->devices->forgotten_evictions = 41;
    s->draining = true;
    s->sessions->n = 43;
    head.n_starts = 5;
    s->metrics->errors[1] = 47;
    s->metrics->errors[ENOENT] = 53;
    s->metrics->errors[METRICS_ERRNO_MAX - 1] = 59;
    collect();
    CU_ASSERT(has("kvcobra_connections", 2 + 3) && has("kvcobra_refused_connections_total", 7));
    CU_ASSERT(has("kvcobra_refused_packets_total", 11) && has("kvcobra_reports_total", 13) &&
              has("kvcobra_refused_reports_total", 17));
    CU_ASSERT(has("kvcobra_raw_coordinates_total{side=\"K\"}", 19) &&
              has("kvcobra_raw_coordinates_total{side=\"V\"}", 23));
    CU_ASSERT(has("kvcobra_raw_saturated_total{side=\"K\"}", 29) &&
              has("kvcobra_raw_saturated_total{side=\"V\"}", 31));
    CU_ASSERT(has("kvcobra_damaged_pages_total", 37) && has("kvcobra_restarts_total", 4));
    CU_ASSERT(has("kvcobra_draining", 1) && has("kvcobra_sessions", 43));
    CU_ASSERT(has("kvcobra_errors_total{errno=\"EPERM\"}", 47) &&
              has("kvcobra_errors_total{errno=\"ENOENT\"}", 53) &&
              has("kvcobra_errors_total{errno=\"other\"}", 59));
    CU_ASSERT_EQUAL(count("kvcobra_errors_total"), 3);
    CU_ASSERT_EQUAL(count("kvcobra_tables"), TABLE_REJECTED); /* all states, also without tables */
    CU_ASSERT_EQUAL(count("kvcobra_tenant_pages") + count("kvcobra_table_pages"), 0);
    end();
}

/* limit - 1, limit, and beyond it the rows' sums */
static void test_rows_are_limited(void)
{
    begin(TENANT_SERIES_MAX, METRICS_SERIES_MAX - 1);
    s->devices->forgotten_others.evictions = 1000; /* no row of the others exists */
    collect();
    CU_ASSERT_EQUAL(count("kvcobra_tenant_evictions_total"), TENANT_SERIES_MAX);
    CU_ASSERT_EQUAL(count("kvcobra_table_references"), METRICS_SERIES_MAX - 1);
    CU_ASSERT_PTR_NULL(strstr(page, "(others)"));
    end();

    begin(N_TENANTS, N_TABLES);
    s->devices->forgotten_others.evictions = 1000;
    s->devices->forgotten_others.hits = 2000;
    collect();
    CU_ASSERT_EQUAL(count("kvcobra_tenant_evictions_total"), METRICS_SERIES_MAX);
    CU_ASSERT(has("kvcobra_tenant_evictions_total{tenant=\"uid-0\"}", 1) &&
              has("kvcobra_tenant_evictions_total{tenant=\"(others)\"}", 1000 + 3));
    CU_ASSERT(has("kvcobra_tenant_hits_total{tenant=\"(others)\"}", 2000 + 3 * 2) &&
              has("kvcobra_tenant_misses_total{tenant=\"(others)\"}", 3 * 3));
    CU_ASSERT_EQUAL(count("kvcobra_tenant_sequence_misses_total"), 5 * METRICS_SERIES_MAX);
    CU_ASSERT_EQUAL(count("kvcobra_table_references"), METRICS_SERIES_MAX);
    CU_ASSERT(has("kvcobra_table_references{table=\"000000000000\"}", 2) &&
              has("kvcobra_table_references{table=\"fe0300000000\"}", 2) && /* 1022, the last one by name */
              has("kvcobra_table_references{table=\"(others)\"}", 2 * (N_TABLES - 1023)));
    CU_ASSERT(has("kvcobra_table_leased_pages_total{table=\"(others)\"}", 3 * (N_TABLES - 1023)) &&
              has("kvcobra_table_evictions_total{table=\"(others)\"}", 5 * (N_TABLES - 1023)));
    CU_ASSERT(has("kvcobra_tables{state=\"active\"}", N_TABLES));
    end();
}

const struct test_case test_cases[] = {TEST(test_counters), TEST(test_rows_are_limited), TEST_END};
