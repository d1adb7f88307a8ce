/* Metric families from the daemon's state; see metrics_collect.h. */
#include "daemon/operator/metrics_collect.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/digest.h"
#include "base/errno_name.h"
#include "daemon/loop/metrics.h"
#include "daemon/operator/metrics_table.h"
#include "daemon/operator/metrics_text.h"
#include "daemon/operator/status.h"
#include "daemon/requests/conn.h"
#include "daemon/requests/raw_gpu.h"
#include "daemon/requests/state.h"
#include "daemon/session/orphans.h"
#include "daemon/session/session.h"
#include "daemon/session/session_types.h"
#include "daemon/store/device.h"
#include "daemon/store/persist.h"
#include "daemon/store/space.h"
#include "daemon/tables/fit.h"
#include "daemon/tables/table_entry.h"
#include "proto/wire.h"

enum {
    N_TOTAL_VALUES = METRIC_MOVER_FIRST - METRIC_TOTAL_FIRST,
    N_TENANT_VALUES = METRIC_SPACE_FIRST - METRIC_TENANT_FIRST,
    N_TABLE_VALUES = METRICS_N - METRIC_SPACE_FIRST,
    TABLE_NAME_CHARS = 12, /* digits of a digest in a label */
};

static const char others[] = "(others)";
static const char *const side_names[] = {"K", "V"};

/* ---- the process ---- */

static void metrics_collect_totals(const struct server *s, struct metrics_text *t)
{
    Kvcobra__StatusReply reply = KVCOBRA__STATUS_REPLY__INIT;
    uint64_t values[N_TOTAL_VALUES] = {0};

    status_fill_totals(s, &reply);
    metrics_table_family(t, METRIC_INFO);
    metrics_table_sample(
        t, METRIC_INFO,
        (const struct metric_label[]){{"version", reply.version}, {"restart", reply.restart}, {NULL, NULL}},
        1);
    metrics_table_add_totals(&reply, values);
    metrics_table_rows(t, METRIC_TOTAL_FIRST, METRIC_MOVER_FIRST, NULL, values, 1);
}

static void metrics_collect_process(const struct server *s, struct metrics_text *t)
{
    uint64_t n_damaged = 0, n_flushed = 0;

    for (uint32_t i = 0; i < s->devices->n; i++) {
        n_damaged += s->devices->list[i].store.n_damaged;
        n_flushed += s->devices->list[i].store.n_flushed;
    }

    metrics_table_one(t, METRIC_RESTARTS, s->persist->journal.head->n_starts - 1);
    metrics_table_one(t, METRIC_CONNECTIONS, s->conns->n_clients + s->conns->n_operators);
    metrics_table_one(t, METRIC_REFUSED_CONNECTIONS, s->conns->refused_connections);
    metrics_table_one(t, METRIC_DAMAGED_PAGES, n_damaged);
    metrics_table_one(t, METRIC_FLUSHED_PAGES, n_flushed);
}

static void metrics_collect_holds(const struct server *s, struct metrics_text *t)
{
    uint64_t n_held = 0, n_orphaned = 0;

    for (uint32_t i = 0; i < s->sessions->n_max; i++) {
        n_orphaned += orphans_holds(s->sessions, i);
        if (s->sessions->list[i])
            n_held += s->sessions->list[i]->leases.n_held;
    }
    metrics_table_one(t, METRIC_HOLDS, n_held + n_orphaned);
    metrics_table_one(t, METRIC_ORPHANED_HOLDS, n_orphaned);
}

/* ---- requests ---- */

static void metrics_collect_latency(const struct server *s, struct metrics_text *t, const char *message,
                                    unsigned type)
{
    metrics_histogram(t, metrics_table[METRIC_REQUEST_SECONDS].name,
                      (struct metric_label){"message", message}, &s->metrics->requests[type]);
}

static void metrics_collect_requests(const struct server *s, struct metrics_text *t)
{
    const ProtobufCMessageDescriptor *d = &kvcobra__request__descriptor;

    metrics_table_family(t, METRIC_REQUEST_SECONDS);
    for (unsigned i = 0; i < d->n_fields; i++)
        if (d->fields[i].flags & PROTOBUF_C_FIELD_FLAG_ONEOF && d->fields[i].id < METRICS_TYPES_MAX)
            metrics_collect_latency(s, t, d->fields[i].name, d->fields[i].id);
    metrics_collect_latency(s, t, "unknown", 0);

    metrics_table_family(t, METRIC_ERRORS);
    for (int i = 1; i < METRICS_ERRNO_MAX; i++) {
        const char *name = errno_name(i);
        const struct metric_label label[] = {{"errno", name ? name : "other"}, {NULL, NULL}};

        if (s->metrics->errors[i] > 0)
            metrics_table_sample(t, METRIC_ERRORS, label, s->metrics->errors[i]);
    }
}

static void metrics_collect_sides(struct metrics_text *t, enum metric_id id, const uint64_t values[static 2])
{
    metrics_table_family(t, id);
    for (unsigned side = 0; side < 2; side++) {
        const struct metric_label label[] = {{"side", side_names[side]}, {NULL, NULL}};

        metrics_table_sample(t, id, label, values[side]);
    }
}

/* ---- tenants ---- */

_Static_assert(TENANT_SERIES_MAX == METRICS_SERIES_MAX - 1, "one series is for the others");

struct metrics_collect_tenants {
    size_t n, n_own;
    const char *names[METRICS_SERIES_MAX]; /* [n]; NULL: no tenant has this row */
    uint64_t values[METRICS_SERIES_MAX][N_TENANT_VALUES];
};

/*
 * A tenant has a row of its own as long as it exists, or never: counters of a row never decrease. Those of a
 * tenant that is forgotten end with its row; the row of the others goes on counting its forgotten tenants.
 */
static void metrics_collect_add_tenant(struct metrics_collect_tenants *all, const struct tenant *t)
{
    size_t i = t->has_series ? all->n_own++ : METRICS_SERIES_MAX - 1;
    Kvcobra__TenantStatus status;

    status_fill_tenant(t, &status);
    metrics_table_add_tenant(&status, all->values[i]);
    all->names[i] = t->has_series ? t->name : others;
    if (i >= all->n)
        all->n = i + 1;
}

static void metrics_collect_add_forgotten(struct metrics_collect_tenants *all,
                                          const struct tenant_counters *forgotten)
{
    Kvcobra__TenantStatus status = KVCOBRA__TENANT_STATUS__INIT;

    if (!all->names[METRICS_SERIES_MAX - 1])
        return;

    status_fill_counters(forgotten, &status);
    metrics_table_add_tenant(&status, all->values[METRICS_SERIES_MAX - 1]);
}

static void metrics_collect_misses(struct metrics_text *t, const struct metrics_collect_tenants *all)
{
    static const struct {
        enum metric_id id;
        const char *reason;
    } fields[] = {
        {METRIC_TENANT_misses_unknown, "unknown"},
        {METRIC_TENANT_misses_evicted, "evicted"},
        {METRIC_TENANT_misses_other_table, "other_table"},
        {METRIC_TENANT_misses_retired_table, "retired_table"},
        {METRIC_TENANT_misses_slow_tier, "slow_tier"},
    };

    metrics_table_family(t, METRIC_TENANT_SEQUENCE_MISSES);
    for (size_t i = 0; i < all->n; i++) {
        for (size_t k = 0; all->names[i] && k < sizeof(fields) / sizeof(fields[0]); k++) {
            const struct metric_label labels[] = {
                {"tenant", all->names[i]}, {"reason", fields[k].reason}, {NULL, NULL}};

            metrics_table_sample(t, METRIC_TENANT_SEQUENCE_MISSES, labels,
                                 all->values[i][fields[k].id - METRIC_TENANT_FIRST]);
        }
    }
}

static void metrics_collect_tenants(const struct server *s, struct metrics_text *t)
{
    _cleanup_(freep) struct metrics_collect_tenants *all = calloc(1, sizeof(*all));

    if (!all) {
        t->failed = true;
        return;
    }

    for (const struct tenant *x = NULL; (x = devices_next_tenant(s->devices, x));)
        metrics_collect_add_tenant(all, x);
    metrics_collect_add_forgotten(all, &s->devices->forgotten_others);
    metrics_table_rows(t, METRIC_TENANT_FIRST, METRIC_SPACE_FIRST, all->names, all->values[0], all->n);
    metrics_collect_misses(t, all);
}

/* ---- tables ---- */

static void metrics_collect_states(const struct server *s, struct metrics_text *t)
{
    uint64_t n[TABLE_REJECTED + 1] = {0};

    for (const struct table_entry *x = s->tables->entries; x; x = x->next)
        n[x->state]++;

    metrics_table_family(t, METRIC_TABLES);
    for (unsigned i = TABLE_STAGED; i <= TABLE_REJECTED; i++) {
        const struct metric_label label[] = {{"state", table_state_name((enum table_state) i)}, {NULL, NULL}};

        metrics_table_sample(t, METRIC_TABLES, label, n[i]);
    }
}

struct metrics_collect_tables {
    size_t n;
    char names[METRICS_SERIES_MAX][DIGEST_HEX_BYTES];
    const char *labels[METRICS_SERIES_MAX]; /* [n] pointers to names */
    uint64_t values[METRICS_SERIES_MAX][N_TABLE_VALUES];
    uint64_t page_bytes[METRICS_SERIES_MAX], references[METRICS_SERIES_MAX];
};

static void metrics_collect_name_table(const struct table_entry *x, char name[static DIGEST_HEX_BYTES])
{
    digest_hex(x->digest, name);
    name[TABLE_NAME_CHARS] = '\0';
}

/* All shards of a table have one row: clients choose shards, but must not choose the number of rows. */
static void metrics_collect_add_table(const struct server *s, struct metrics_collect_tables *all,
                                      const struct table_entry *x)
{
    size_t i = all->n < METRICS_SERIES_MAX - 1 ? all->n : METRICS_SERIES_MAX - 1;
    Kvcobra__SpaceStatus former; /* spaces that were freed */

    if (i < METRICS_SERIES_MAX - 1)
        metrics_collect_name_table(x, all->names[i]);
    else
        (void) snprintf(all->names[i], sizeof(all->names[i]), "%s", others);
    all->labels[i] = all->names[i];
    all->n = i + 1;

    kvcobra__space_status__init(&former);
    former.leased = x->former_leased;
    former.evictions = x->former_evictions;
    metrics_table_add_space(&former, all->values[i]);
    for (const struct space *sp = x->spaces; sp; sp = sp->next) {
        Kvcobra__SpaceStatus status;

        status_fill_space(s, sp, &status);
        metrics_table_add_space(&status, all->values[i]);
        all->page_bytes[i] += status.pages * status.page_bytes;
    }

    all->references[i] += x->n_refs;
}

static void metrics_collect_table_family(struct metrics_text *t, enum metric_id id,
                                         const struct metrics_collect_tables *all, const uint64_t *values)
{
    metrics_table_family(t, id);
    for (size_t i = 0; i < all->n; i++)
        metrics_table_sample(t, id, (const struct metric_label[]){{"table", all->names[i]}, {NULL, NULL}},
                             values[i]);
}

static void metrics_collect_tables(const struct server *s, struct metrics_text *t)
{
    _cleanup_(freep) struct metrics_collect_tables *all = calloc(1, sizeof(*all));

    if (!all) {
        t->failed = true;
        return;
    }

    for (const struct table_entry *x = s->tables->entries; x; x = x->next)
        if (x->spaces || x->table) /* retired and rejected tables are only counted by state */
            metrics_collect_add_table(s, all, x);
    metrics_table_rows(t, METRIC_SPACE_FIRST, METRICS_N, all->labels, all->values[0], all->n);
    metrics_collect_table_family(t, METRIC_TABLE_PAGE_BYTES, all, all->page_bytes);
    metrics_collect_table_family(t, METRIC_TABLE_REFERENCES, all, all->references);
}

/* ---- reported fit ---- */

/* Values of a table for K and V. Return: whether the table has them. */
typedef bool metrics_collect_fit_fn(const struct table_entry *x, const Kvcobra__Fit *f, double ret[static 2]);

static bool metrics_collect_fit_coordinates(const struct table_entry *x, const Kvcobra__Fit *f,
                                            double ret[static 2])
{
    (void) x;
    ret[0] = (double) f->coded_k;
    ret[1] = (double) f->coded_v;
    return f->reports > 0;
}

static bool metrics_collect_fit_saturated(const struct table_entry *x, const Kvcobra__Fit *f,
                                          double ret[static 2])
{
    (void) x;
    ret[0] = (double) f->saturated_k;
    ret[1] = (double) f->saturated_v;
    return f->reports > 0;
}

static bool metrics_collect_fit_tokens(const struct table_entry *x, const Kvcobra__Fit *f,
                                       double ret[static 2])
{
    (void) x;
    ret[0] = (double) f->tokens;
    ret[1] = (double) f->tokens;
    return f->reports > 0;
}

static bool metrics_collect_fit_error(const struct table_entry *x, const Kvcobra__Fit *f,
                                      double ret[static 2])
{
    (void) x;
    ret[0] = f->error_k;
    ret[1] = f->error_v;
    return f->reports > 0;
}

static bool metrics_collect_shadow_error(const struct table_entry *x, const Kvcobra__Fit *f,
                                         double ret[static 2])
{
    (void) x;
    ret[0] = f->shadow_error_k;
    ret[1] = f->shadow_error_v;
    return f->reports > 0 && f->shadow_tokens > 0;
}

static bool metrics_collect_shadow_active(const struct table_entry *x, const Kvcobra__Fit *f,
                                          double ret[static 2])
{
    (void) x;
    ret[0] = f->active_error_k;
    ret[1] = f->active_error_v;
    return f->reports > 0 && f->shadow_tokens > 0;
}

static bool metrics_collect_expected(const struct table_entry *x, const Kvcobra__Fit *f, double ret[static 2])
{
    (void) f;
    memcpy(ret, x->expected.error, sizeof(x->expected.error));
    return x->has_expected && x->table;
}

static bool metrics_collect_expected_saturated(const struct table_entry *x, const Kvcobra__Fit *f,
                                               double ret[static 2])
{
    (void) f;
    memcpy(ret, x->expected.saturated, sizeof(x->expected.saturated));
    return x->has_expected && x->expected.saturated[0] >= 0 && x->table;
}

static void metrics_collect_fit_family(const struct server *s, struct metrics_text *t, enum metric_id id,
                                       metrics_collect_fit_fn *read)
{
    size_t n = 0;

    metrics_table_family(t, id);
    for (const struct table_entry *x = s->tables->entries; x && n < METRICS_SERIES_MAX; x = x->next) {
        char name[DIGEST_HEX_BYTES];
        double values[2];
        Kvcobra__Fit f;

        fit_fill(x->fit, &f);
        if (!read(x, &f, values))
            continue;

        n++;
        metrics_collect_name_table(x, name);
        for (unsigned side = 0; side < 2; side++) {
            const struct metric_label labels[] = {{"table", name}, {"side", side_names[side]}, {NULL, NULL}};

            metrics_sample_real(t, metrics_table[id].name, labels, values[side]);
        }
    }
}

static void metrics_collect_fit(const struct server *s, struct metrics_text *t)
{
    metrics_collect_fit_family(s, t, METRIC_FIT_COORDINATES, metrics_collect_fit_coordinates);
    metrics_collect_fit_family(s, t, METRIC_FIT_SATURATED, metrics_collect_fit_saturated);
    metrics_collect_fit_family(s, t, METRIC_FIT_TOKENS, metrics_collect_fit_tokens);
    metrics_collect_fit_family(s, t, METRIC_FIT_ERROR, metrics_collect_fit_error);
    metrics_collect_fit_family(s, t, METRIC_SHADOW_ERROR, metrics_collect_shadow_error);
    metrics_collect_fit_family(s, t, METRIC_SHADOW_ACTIVE_ERROR, metrics_collect_shadow_active);
    metrics_collect_fit_family(s, t, METRIC_FIT_EXPECTED_ERROR, metrics_collect_expected);
    metrics_collect_fit_family(s, t, METRIC_FIT_EXPECTED_SATURATED, metrics_collect_expected_saturated);
}

/* ---- the page ---- */

char *metrics_collect(const struct server *s, size_t *ret_n)
{
    struct metrics_text t = {0};

    metrics_collect_totals(s, &t);
    metrics_collect_process(s, &t);
    metrics_devices_collect_pools(s, &t);
    metrics_devices_collect_gpus(s, &t);
    metrics_tier_collect(s, &t);
    metrics_collect_holds(s, &t);
    metrics_collect_requests(s, &t);
    metrics_collect_sides(&t, METRIC_RAW_COORDINATES, s->raw->coords);
    metrics_collect_sides(&t, METRIC_RAW_SATURATED, s->raw->saturated);
    metrics_collect_tenants(s, &t);
    metrics_advice_collect(s, &t);
    metrics_collect_states(s, &t);
    metrics_collect_tables(s, &t);
    metrics_collect_fit(s, &t);
    return metrics_text_take(&t, ret_n);
}
