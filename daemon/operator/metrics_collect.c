/* From the daemon's accounts to metric families; see metrics_collect.h. */
#include "daemon/operator/metrics_collect.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/digest.h"
#include "daemon/requests/conn.h"
#include "daemon/tables/fit.h"
#include "daemon/loop/metrics.h"
#include "daemon/operator/metrics_devices.h"
#include "daemon/operator/metrics_text.h"
#include "daemon/requests/state.h"
#include "daemon/session/orphans.h"
#include "daemon/session/session.h"
#include "daemon/store/space.h"
#include "daemon/operator/status.h"
#include "daemon/loop/work.h"
#include "proto/wire.h"

/* ---- the process ---- */

static void collect_process(const struct server *s, struct metrics_text *t)
{
    bool kept = s->supervisor.keeps && !s->supervisor.failed;
    uint64_t n_damaged = 0;
    const struct metric_label info[] = {
        {"version", KVCOBRA_VERSION},
        {"event_backend", ev_backend_name(s->ev)},
        {"restart", kept ? "kept" : "volatile"},
        {NULL, NULL},
    };

    for (uint32_t i = 0; i < s->devices.n; i++)
        n_damaged += s->devices.list[i].store.n_damaged;
    metrics_family(t, "kvcobra_info", "gauge", "Always 1; labels say what runs.");
    metrics_sample(t, "kvcobra_info", info, 1);
    metrics_family(t, "kvcobra_uptime_seconds", "gauge", "Since this process started.");
    metrics_sample_real(t, "kvcobra_uptime_seconds", NULL,
                        (double) (ev_now_ms(s->ev) - s->started_ms) * 1e-3);
    metrics_one(t, "kvcobra_restarts_total", "counter",
                "Starts that went on with the pool of an earlier process.",
                s->persist.journal.head->n_starts - 1);
    metrics_one(t, "kvcobra_connections", "gauge", "Open connections, operators' with them.", s->n_conns);
    metrics_one(t, "kvcobra_sessions", "gauge",
                "Client processes, with those that disconnected and still hold pages.", s->sessions.n);
    metrics_one(t, "kvcobra_draining", "gauge", "1: nothing new comes in.", s->draining);
    metrics_one(t, "kvcobra_refused_packets_total", "counter",
                "Packets that did not decode; their connections were closed.", s->refused_packets);
    metrics_one(t, "kvcobra_refused_connections_total", "counter", "Connections beyond a limit.",
                s->refused_connections);
    metrics_one(t, "kvcobra_damaged_pages_total", "counter", "Pages whose checksum changed over a restart.",
                n_damaged);
}

static void collect_leases(const struct server *s, struct metrics_text *t)
{
    uint64_t n_leases = 0, n_held = 0, n_ownerless = 0;

    for (uint32_t i = 0; i < s->sessions.n_max; i++) {
        n_ownerless += orphans_holds(&s->sessions, i);
        if (s->sessions.list[i]) {
            n_leases += s->sessions.list[i]->leases.n_granted;
            n_held += s->sessions.list[i]->leases.n_held;
        }
    }
    metrics_one(t, "kvcobra_leases", "gauge", "Leases that are granted.", n_leases);
    metrics_one(t, "kvcobra_holds", "gauge", "Pages named by leases, granted or not, once per lease.",
                n_held + n_ownerless);
    metrics_one(t, "kvcobra_ownerless_holds", "gauge",
                "Of them, not given back to a session after a restart: until its process exits.",
                n_ownerless);
}

/* ---- requests ---- */

static void collect_requests(const struct server *s, struct metrics_text *t)
{
    const ProtobufCMessageDescriptor *d = &kvcobra__request__descriptor;

    metrics_family(t, "kvcobra_request_seconds", "histogram", "From a packet to its reply, by message.");
    for (unsigned i = 0; i < d->n_fields; i++)
        if (d->fields[i].flags & PROTOBUF_C_FIELD_FLAG_ONEOF && d->fields[i].id < METRICS_TYPES_MAX)
            metrics_histogram(t, "kvcobra_request_seconds",
                              (struct metric_label){"message", d->fields[i].name},
                              &s->metrics.requests[d->fields[i].id]);
    metrics_histogram(t, "kvcobra_request_seconds", (struct metric_label){"message", "unknown"},
                      &s->metrics.requests[0]);
    metrics_family(t, "kvcobra_errors_total", "counter", "Replies that say why not, by errno.");
    for (int i = 1; i < METRICS_ERRNO_MAX; i++) {
        const char *name = strerrorname_np(i);

        if (s->metrics.errors[i] > 0)
            metrics_sample(t, "kvcobra_errors_total",
                           (const struct metric_label[]){{"errno", name ? name : "other"}, {NULL, NULL}},
                           s->metrics.errors[i]);
    }
}

/* How well the tables fit what the daemon itself encodes; what clients encode they report themselves. */
static void collect_raw(const struct server *s, struct metrics_text *t)
{
    static const char *const sides[] = {"K", "V"};

    metrics_family(t, "kvcobra_raw_coordinates_total", "counter", "Coordinates that APPEND_RAW quantised.");
    for (unsigned i = 0; i < 2; i++)
        metrics_sample(t, "kvcobra_raw_coordinates_total",
                       (const struct metric_label[]){{"side", sides[i]}, {NULL, NULL}}, s->raw_coords[i]);
    metrics_family(t, "kvcobra_raw_saturated_total", "counter",
                   "Of them, far beyond the last threshold: drift.");
    for (unsigned i = 0; i < 2; i++)
        metrics_sample(t, "kvcobra_raw_saturated_total",
                       (const struct metric_label[]){{"side", sides[i]}, {NULL, NULL}}, s->raw_saturated[i]);
}

/* ---- tenants ---- */

struct tenant_row {
    const char *name;
    uint64_t quota, guarantee, used, held, arena, pages, sessions, hits, misses, evictions,
        misses_by[METRICS_REASONS_MAX];
};

struct tenant_rows {
    struct tenant_row *rows;
    size_t n;
};

static void metrics_collect_add_tenant(struct tenant_row *to, const struct tenant *t)
{
    to->quota += t->quota_bytes;
    to->guarantee += t->guarantee_bytes;
    to->used += tenant_used_bytes(t);
    to->held += t->held_bytes;
    to->arena += t->arena_bytes;
    to->pages += t->n_pages;
    to->sessions += t->n_sessions;
    to->hits += t->hits;
    to->misses += t->misses;
    to->evictions += t->evictions;
    for (unsigned i = 0; i < METRICS_REASONS_MAX; i++)
        to->misses_by[i] += t->misses_by[i];
}

/* The first METRICS_SERIES_MAX - 1 that came have rows of their own, so that a row means the same tenant for
 * ever. */
static struct tenant_rows metrics_collect_gather_tenants(const struct server *s)
{
    struct tenant_rows all = {calloc(METRICS_SERIES_MAX, sizeof(*all.rows)), 0};

    for (const struct tenant *t = NULL; all.rows && (t = devices_next_tenant(&s->devices, t));) {
        size_t i = t->number < METRICS_SERIES_MAX - 1 ? t->number : METRICS_SERIES_MAX - 1;

        all.rows[i].name = i < METRICS_SERIES_MAX - 1 ? t->name : "(others)";
        metrics_collect_add_tenant(&all.rows[i], t);
        all.n = i >= all.n ? i + 1 : all.n;
    }
    return all;
}

static void metrics_collect_tenant_family(struct metrics_text *t, const struct tenant_rows *all,
                                          const char *name, const char *type, const char *help, size_t field)
{
    metrics_family(t, name, type, help);
    for (size_t i = 0; i < all->n; i++)
        if (all->rows[i].name)
            metrics_sample(t, name,
                           (const struct metric_label[]){{"tenant", all->rows[i].name}, {NULL, NULL}},
                           *(const uint64_t *) ((const char *) &all->rows[i] + field));
}

/* One count per sequence, of its first missing chunk. */
static void metrics_collect_miss_family(struct metrics_text *t, const struct tenant_rows *all)
{
    static const struct {
        unsigned number;
        const char *name;
    } reasons[] = {
        {KVCOBRA__MISS_REASON__MISS_UNKNOWN, "unknown"},
        {KVCOBRA__MISS_REASON__MISS_EVICTED, "evicted"},
        {KVCOBRA__MISS_REASON__MISS_OTHER_TABLE, "other_table"},
        {KVCOBRA__MISS_REASON__MISS_RETIRED_TABLE, "retired_table"},
    };

    metrics_family(t, "kvcobra_tenant_sequence_misses_total", "counter",
                   "Why sequences' first missing chunks were missing.");
    for (size_t i = 0; i < all->n; i++)
        for (size_t k = 0; all->rows[i].name && k < sizeof(reasons) / sizeof(reasons[0]); k++)
            metrics_sample(t, "kvcobra_tenant_sequence_misses_total",
                           (const struct metric_label[]){
                               {"tenant", all->rows[i].name}, {"reason", reasons[k].name}, {NULL, NULL}},
                           all->rows[i].misses_by[reasons[k].number]);
}

static void collect_tenants(const struct server *s, struct metrics_text *t)
{
    static const struct {
        const char *name, *type, *help;
        size_t field;
    } families[] = {
        {"kvcobra_tenant_quota_bytes", "gauge", "Most that pages and arenas may take.",
         offsetof(struct tenant_row, quota)},
        {"kvcobra_tenant_guarantee_bytes", "gauge", "Of the pool, that nobody else can keep.",
         offsetof(struct tenant_row, guarantee)},
        {"kvcobra_tenant_used_bytes", "gauge", "Pages and arenas.", offsetof(struct tenant_row, used)},
        {"kvcobra_tenant_held_bytes", "gauge", "Pages that are held or reserved.",
         offsetof(struct tenant_row, held)},
        {"kvcobra_tenant_arena_bytes", "gauge", "What its processes write pages in.",
         offsetof(struct tenant_row, arena)},
        {"kvcobra_tenant_pages", "gauge", "Committed pages.", offsetof(struct tenant_row, pages)},
        {"kvcobra_tenant_sessions", "gauge", "Client processes.", offsetof(struct tenant_row, sessions)},
        {"kvcobra_tenant_hits_total", "counter", "Chunks found, as its clients report them.",
         offsetof(struct tenant_row, hits)},
        {"kvcobra_tenant_misses_total", "counter", "Chunks not found, as its clients report them.",
         offsetof(struct tenant_row, misses)},
        {"kvcobra_tenant_evictions_total", "counter", "Pages that had to leave.",
         offsetof(struct tenant_row, evictions)},
    };
    struct tenant_rows all = metrics_collect_gather_tenants(s);

    if (!all.rows)
        t->failed = true;
    for (size_t i = 0; i < sizeof(families) / sizeof(families[0]); i++)
        metrics_collect_tenant_family(t, &all, families[i].name, families[i].type, families[i].help,
                                      families[i].field);
    metrics_collect_miss_family(t, &all);
    free(all.rows);
}

/* ---- tables ---- */

static void metrics_collect_states(const struct server *s, struct metrics_text *t)
{
    uint64_t n[TABLE_REJECTED + 1] = {0};

    for (const struct table_entry *x = s->tables.entries; x; x = x->next)
        n[x->state]++;
    metrics_family(t, "kvcobra_tables", "gauge", "Tables by state.");
    for (unsigned i = TABLE_STAGED; i <= TABLE_REJECTED; i++)
        metrics_sample(
            t, "kvcobra_tables",
            (const struct metric_label[]){{"state", table_state_name((enum table_state) i)}, {NULL, NULL}},
            n[i]);
}

struct table_row {
    char name[DIGEST_HEX_BYTES];
    uint64_t pages, page_bytes, held, leased, evictions, tokens, tokens_free, refs;
};

/* All shards of a table together: clients choose shards, and must not choose how many rows there are. */
static void metrics_collect_add_table(const struct server *s, struct table_row *to,
                                      const struct table_entry *x)
{
    for (const struct space *sp = x->spaces; sp; sp = sp->next) {
        to->pages += sp->n_pages;
        to->page_bytes += sp->n_pages * sp->layout.page_bytes[PAGE_REST];
        to->held += sp->n_busy;
        to->leased += sp->n_leased;
        to->evictions += sp->n_evictions;
        to->tokens += sp->n_pages * CHUNK_TOKENS;
        to->tokens_free += status_tokens_free(s, sp);
    }
    to->refs += x->n_refs;
}

static void metrics_collect_table_family(struct metrics_text *t, const struct table_row *rows, size_t n,
                                         const char *name, const char *type, const char *help, size_t field)
{
    metrics_family(t, name, type, help);
    for (size_t i = 0; i < n; i++)
        metrics_sample(t, name, (const struct metric_label[]){{"table", rows[i].name}, {NULL, NULL}},
                       *(const uint64_t *) ((const char *) &rows[i] + field));
}

static void collect_tables(const struct server *s, struct metrics_text *t)
{
    static const struct {
        const char *name, *type, *help;
        size_t field;
    } families[] = {
        {"kvcobra_table_pages", "gauge", "Committed pages.", offsetof(struct table_row, pages)},
        {"kvcobra_table_page_bytes", "gauge", "Bytes of them, slots' rounding left out.",
         offsetof(struct table_row, page_bytes)},
        {"kvcobra_table_busy_pages", "gauge", "Pages held or reserved.", offsetof(struct table_row, held)},
        {"kvcobra_table_tokens", "gauge", "Tokens in pages.", offsetof(struct table_row, tokens)},
        {"kvcobra_table_free_tokens", "gauge",
         "Tokens that one tenant could still add; shards share this room.",
         offsetof(struct table_row, tokens_free)},
        {"kvcobra_table_references", "gauge", "References that sessions have.",
         offsetof(struct table_row, refs)},
        {"kvcobra_table_leased_pages_total", "counter", "Pages that leases were granted on.",
         offsetof(struct table_row, leased)},
        {"kvcobra_table_evictions_total", "counter", "Pages that had to leave.",
         offsetof(struct table_row, evictions)},
    };
    struct table_row *rows = calloc(METRICS_SERIES_MAX, sizeof(*rows));
    size_t n = 0;

    if (!rows)
        t->failed = true;
    for (const struct table_entry *x = s->tables.entries; x && rows; x = x->next) {
        size_t i = n < METRICS_SERIES_MAX - 1 ? n : METRICS_SERIES_MAX - 1;

        if (!x->spaces && !x->table)
            continue; /* retired or rejected: counted by state, nothing else to say */
        if (i < METRICS_SERIES_MAX - 1)
            digest_hex(x->digest, rows[i].name);
        else
            (void) strcpy(rows[i].name, "(others)");
        rows[i].name[i < METRICS_SERIES_MAX - 1 ? 12 : 8] = '\0';
        metrics_collect_add_table(s, &rows[i], x);
        n = i + 1;
    }
    for (size_t i = 0; i < sizeof(families) / sizeof(families[0]); i++)
        metrics_collect_table_family(t, rows, n, families[i].name, families[i].type, families[i].help,
                                     families[i].field);
    free(rows);
}

/* ---- drift: what clients report of the fit ---- */

enum { FIT_CODED, FIT_SATURATED, FIT_TOKENS, FIT_ERROR, FIT_SHADOW_ERROR, FIT_SHADOW_ACTIVE, N_FIT };

static double metrics_collect_fit_value(const Kvcobra__Fit *f, unsigned what, unsigned side)
{
    switch (what) {
    case FIT_CODED:
        return (double) (side ? f->coded_v : f->coded_k);
    case FIT_SATURATED:
        return (double) (side ? f->saturated_v : f->saturated_k);
    case FIT_TOKENS:
        return (double) f->tokens;
    case FIT_ERROR:
        return side ? f->error_v : f->error_k;
    case FIT_SHADOW_ERROR:
        return side ? f->shadow_error_v : f->shadow_error_k;
    default:
        return side ? f->active_error_v : f->active_error_k;
    }
}

static void collect_fit(const struct server *s, struct metrics_text *t)
{
    static const char *const sides[] = {"K", "V"};
    static const struct {
        const char *name, *type, *help;
    } families[N_FIT] = {
        [FIT_CODED] = {"kvcobra_fit_coordinates_total", "counter",
                       "Coordinates that reporting clients quantised."},
        [FIT_SATURATED] = {"kvcobra_fit_saturated_total", "counter",
                           "Of them, far beyond the last threshold: drift."},
        [FIT_TOKENS] = {"kvcobra_fit_tokens_total", "counter", "Tokens that errors were measured on."},
        [FIT_ERROR] = {"kvcobra_fit_error", "gauge",
                       "Mean squared error on live vectors, in relation to their spread."},
        [FIT_SHADOW_ERROR] = {"kvcobra_shadow_error", "gauge", "The same of a table in shadow."},
        [FIT_SHADOW_ACTIVE] = {"kvcobra_shadow_active_error", "gauge",
                               "Of the active table, on the tokens of the shadow."},
    };

    size_t n_expected = 0;

    for (unsigned what = 0; what < N_FIT; what++) {
        size_t n = 0;

        metrics_family(t, families[what].name, families[what].type, families[what].help);
        for (const struct table_entry *x = s->tables.entries; x && n < METRICS_SERIES_MAX; x = x->next) {
            char name[DIGEST_HEX_BYTES];
            Kvcobra__Fit f;

            fit_fill(x->fit, &f);
            if (f.reports == 0 || (what >= FIT_SHADOW_ERROR && f.shadow_tokens == 0))
                continue;
            n++;
            digest_hex(x->digest, name);
            name[12] = '\0';
            for (unsigned side = 0; side < 2; side++)
                metrics_sample_real(
                    t, families[what].name,
                    (const struct metric_label[]){{"table", name}, {"side", sides[side]}, {NULL, NULL}},
                    metrics_collect_fit_value(&f, what, side));
        }
    }
    metrics_family(t, "kvcobra_fit_expected_error", "gauge",
                   "What kvcobra_fit_error was on the vectors a table was solved from.");
    for (const struct table_entry *x = s->tables.entries; x && n_expected < METRICS_SERIES_MAX; x = x->next) {
        char name[DIGEST_HEX_BYTES];

        if (!x->has_expected || !x->table)
            continue;
        n_expected++;
        digest_hex(x->digest, name);
        name[12] = '\0';
        for (unsigned side = 0; side < 2; side++)
            metrics_sample_real(
                t, "kvcobra_fit_expected_error",
                (const struct metric_label[]){{"table", name}, {"side", sides[side]}, {NULL, NULL}},
                x->expected[side]);
    }
    metrics_family(t, "kvcobra_reports_total", "counter", "Reports of clients that were counted.");
    metrics_sample(t, "kvcobra_reports_total", NULL, s->reports);
    metrics_family(t, "kvcobra_refused_reports_total", "counter",
                   "Reports with numbers that cannot be, or too much of them.");
    metrics_sample(t, "kvcobra_refused_reports_total", NULL, s->refused_reports);
}

static void collect_work(const struct server *s, struct metrics_text *t)
{
    struct work_metrics f;

    work_metrics(s->work, &f);
    metrics_one(t, "kvcobra_work_threads", "gauge", "Threads that copy, check and code.", f.n_threads);
    metrics_one(t, "kvcobra_work_waiting", "gauge", "Requests that wait for one.", f.n_waiting);
    metrics_one(t, "kvcobra_work_done_total", "counter", "Requests that threads worked on.", f.n_done);
    metrics_one(t, "kvcobra_work_refused_total", "counter", "Requests that found the line full.",
                f.n_refused);
    metrics_one(t, "kvcobra_work_expired_total", "counter", "Requests whose deadline passed in the line.",
                f.n_expired);
}

char *metrics_collect(const struct server *s, size_t *ret_n)
{
    struct metrics_text t = {0};

    collect_process(s, &t);
    metrics_collect_pools(s, &t);
    metrics_collect_gpus(s, &t);
    collect_leases(s, &t);
    collect_requests(s, &t);
    collect_raw(s, &t);
    collect_tenants(s, &t);
    metrics_collect_states(s, &t);
    collect_tables(s, &t);
    collect_fit(s, &t);
    collect_work(s, &t);
    return metrics_text_take(&t, ret_n);
}
