/*
 * Spaces, retirement, loading; see tables.h. Staging is in tables_stage.c, the active set in
 * tables_activate.c, the state folder in tables_files.c.
 */
#include "daemon/tables/tables.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/atomic_file.h"
#include "base/cleanup.h"
#include "base/damage.h"
#include "base/digest.h"
#include "base/errmsg.h"
#include "base/fd_io.h"
#include "daemon/config/config.h"
#include "daemon/loop/log.h"
#include "daemon/store/control.h"
#include "daemon/store/device.h"
#include "daemon/store/kept.h"
#include "daemon/store/space.h"
#include "daemon/tables/aliases.h"
#include "daemon/tables/fit.h"
#include "daemon/tables/table_copy.h"
#include "daemon/tables/tables_exact.h"
#include "daemon/tables/tables_files.h"
#include "daemon/tables/trial.h"

/* ---- spaces ---- */

int tables_space(struct tables *ts, struct table_entry *t, struct shard shard, struct space **ret_space,
                 struct errmsg *e)
{
    struct space *s = table_find_space(t, shard);
    int r;

    if (s) {
        *ret_space = s;
        return 0;
    }

    if (page_layout_lacks_heads(t->table, shard))
        return fail(e, -EINVAL,
                    "the table predicts values from the keys of all %" PRIu32
                    " KV heads of a layer, a shard of %" PRIu32
                    " is not enough: open the model with all heads, or solve a table with --predict head",
                    t->table->geometry.n_kv_heads, shard.n_heads);

    s = calloc(1, sizeof(*s));
    if (!s)
        return fail(e, -ENOMEM, "out of memory for a table's layout");

    r = page_layout_init(&s->layout, t->table, shard);
    if (r < 0) {
        free(s);
        return fail(e, r, "heads %" PRIu32 "..%" PRIu64 " of a model with %" PRIu32 ": %s", shard.first_head,
                    (uint64_t) shard.first_head + shard.n_heads, t->table->geometry.n_kv_heads, strerror(-r));
    }

    s->id = ts->next_space++;
    s->table = t;
    memcpy(s->table_digest, t->digest, DIGEST_BYTES);
    table_add_space(t, s);
    *ret_space = s;
    return 0;
}

/* ---- after a restart ---- */

static int tables_lost_space(struct tables *ts, struct table_entry *t, struct shard shard,
                             struct space **ret_space, struct errmsg *e)
{
    struct space *s = table_find_space(t, shard);

    if (!s) {
        s = calloc(1, sizeof(*s));
        if (!s)
            return fail(e, -ENOMEM, "out of memory for a lost table's pages");

        s->layout.shard = shard;
        s->id = ts->next_space++;
        s->table = t;
        s->leaves_first = true;
        memcpy(s->table_digest, t->digest, DIGEST_BYTES);
        table_add_space(t, s);
    }

    *ret_space = s;
    return 0;
}

static int tables_lost_entry(struct tables *ts, const uint8_t *digest, struct table_entry **ret,
                             struct errmsg *e)
{
    char hex[DIGEST_HEX_BYTES];
    int r = table_entry_new(ts, digest, ret, e);

    if (r < 0)
        return r;

    digest_hex(digest, hex);
    log_event(LOG_ERR, "table-lost",
              "digest=%s message=\"the table of stored pages is missing: they are dropped when "
              "no lease holds them\"",
              hex);
    table_set_state(ts, *ret, TABLE_DRAINING);
    return 0;
}

int tables_adopt_space(struct tables *ts, const uint8_t *digest, struct shard shard, unsigned page_class,
                       size_t slot_bytes, size_t page_bytes, struct space **ret_space, struct errmsg *e)
{
    struct table_entry *t = table_find(ts, digest);
    struct page_layout *l;
    struct space *s;
    int r = 0;

    if (!t)
        r = tables_lost_entry(ts, digest, &t, e);
    if (r == 0 && t->table)
        r = tables_space(ts, t, shard, &s, e);
    else if (r == 0)
        r = tables_lost_space(ts, t, shard, &s, e);
    if (r < 0)
        return r;

    l = &s->layout;
    for (unsigned class = 0; !t->table && class < 2; class ++) { /* a class without pages: any size matches */
        if (class == page_class || l->slot_bytes[class] == 0) {
            l->slot_bytes[class] = slot_bytes;
            l->page_bytes[class] = page_bytes;
        }
    }

    if (l->slot_bytes[page_class] != slot_bytes || l->page_bytes[page_class] != page_bytes)
        return fail(e, -EBADMSG, "stored pages of %zu bytes, where their table makes pages of %zu",
                    page_bytes, l->page_bytes[page_class]);

    *ret_space = s;
    return 0;
}

void tables_adopt_done(struct tables *ts, uint64_t now_ms)
{
    for (struct table_entry *t = ts->entries; t; t = t->next) {
        if (t->state != TABLE_VERIFIED || table_entry_pages(t) == 0 || table_is_canary(ts, t))
            continue;
        t->drain_until_ms = now_ms + ts->config->drain_ms;
        t->from_before = true;
        table_set_state(ts, t, TABLE_DRAINING);
    }
}

/* ---- retirement ---- */

static bool tables_is_idle(const struct table_entry *t)
{
    if (t->n_refs > 0)
        return false;

    for (const struct space *s = t->spaces; s; s = s->next)
        if (s->n_busy > 0)
            return false;
    return true;
}

static void tables_retire_entry(struct tables *ts, struct table_entry *t)
{
    for (struct space *s = t->spaces; s; s = s->next)
        for (uint32_t i = 0; i < ts->devices->n; i++)
            store_drop_space(&ts->devices->list[i].store, s, GHOST_RETIRED_TABLE);
    for (struct tenant *x = NULL; (x = devices_next_tenant(ts->devices, x));)
        control_count_retired(x, t->model_digest);
    table_set_state(ts, t, TABLE_RETIRED);
    table_free_spaces(t);
    t->table = table_unref(t->table);
    closep(&t->fd);
    t->fd = -1;
    if (ts->retired)
        ts->retired(ts->ctx, t->digest);
    if (ts->config->state_dir)
        tables_files_remove(ts->config, t->digest);
}

/*
 * A table that ROLLBACK would return to waits for the end of its drain time, even if it is idle; so does one
 * that ROLLBACK left, which an operator may activate again.
 */
static bool tables_may_return(const struct tables *ts, const struct table_entry *t, uint64_t now_ms)
{
    const struct table_model *m = table_model_find(ts, t->model_digest);

    if (now_ms >= t->drain_until_ms || !t->table)
        return false;
    if (t->from_before && now_ms < ts->returns_until_ms)
        return true;
    if (table_is_exact(t->table))
        return false;
    /* 0: only its pages survived a restart */
    return t->activated == 0 || t->rolled_back || (m && table_model_previous(ts, m) == t);
}

bool tables_may_ref(const struct tables *ts, const struct table_entry *t, uint64_t now_ms)
{
    return t->state == TABLE_ACTIVE || table_is_canary(ts, t) ||
           (t->state == TABLE_DRAINING && t->from_before && now_ms < t->drain_until_ms);
}

/* Its pages are evicted before all others, and its pins end: a table that is left must not stay for them. */
static void tables_let_leave(struct tables *ts, struct table_entry *t)
{
    for (struct space *s = t->spaces; s; s = s->next) {
        for (uint32_t i = 0; i < ts->devices->n && !s->leaves_first; i++)
            kept_end_space(&ts->devices->list[i].store, s);
        s->leaves_first = true;
    }
}

void tables_retire_idle(struct tables *ts, uint64_t now_ms)
{
    if (ts->n_draining == 0)
        return;

    for (struct table_entry *t = ts->entries; t; t = t->next) {
        if (t->state != TABLE_DRAINING)
            continue;
        if (now_ms >= t->drain_until_ms)
            tables_let_leave(ts, t);
        if (tables_is_idle(t) && !tables_may_return(ts, t, now_ms))
            tables_retire_entry(ts, t);
    }
}

/* The table drains, and may retire at once. Return: 0; -EINPROGRESS, and nothing has changed. */
static int tables_end_drain_time(struct tables *ts, struct table_entry *t, uint64_t now_ms, struct errmsg *e)
{
    uint64_t drain_until_ms = t->drain_until_ms;
    enum table_state state = t->state;
    int r;

    t->drain_until_ms = now_ms;
    t->state = TABLE_DRAINING;
    r = state_writer_write(&ts->state, STATE_ACTIVE, e);
    t->state = state;
    if (r == -EINPROGRESS) {
        t->drain_until_ms = drain_until_ms;
        return r;
    }

    if (r < 0) /* the file keeps the old drain time, which a restart uses again */
        log_event(LOG_WARNING, "not-stored", "what=active-set message=\"%s\", ignoring", e->text);
    table_set_state(ts, t, TABLE_DRAINING);
    return 0;
}

int tables_retire(struct tables *ts, const uint8_t *digest, uint64_t revision, uint64_t now_ms,
                  enum table_outcome *ret_outcome, struct table_entry **ret_entry, struct errmsg *e)
{
    struct table_entry *t = table_find(ts, digest);
    const struct table_model *m = t ? table_model_find(ts, t->model_digest) : NULL;
    int r;

    if (!t)
        return fail(e, -ENOENT, "no such table");
    if (t->state == TABLE_ACTIVE && table_model_is_exact(m)) {
        tables_exact_withdraw(ts, table_model_find(ts, t->model_digest), now_ms);
        tables_retire_idle(ts, now_ms);
        *ret_entry = t;
        *ret_outcome = OUTCOME_APPLIED;
        return 0;
    }
    if (t->state == TABLE_ACTIVE)
        return fail(e, -EBUSY,
                    "the table is active: activate another one, or roll back, before you retire it");

    *ret_entry = t;
    if (revision != 0 && m && revision < m->revision) {
        *ret_outcome = OUTCOME_STALE;
        return 0;
    }

    if (!t->table || (t->state == TABLE_DRAINING && t->drain_until_ms <= now_ms)) {
        *ret_outcome = OUTCOME_ALREADY;
        return 0;
    }

    r = tables_end_drain_time(ts, t, now_ms, e);
    if (r < 0)
        return r;

    tables_retire_idle(ts, now_ms);
    *ret_outcome = OUTCOME_APPLIED;
    return 0;
}

/* ---- start and end ---- */

static int tables_load_file(void *ctx, const char *path, struct errmsg *e)
{
    struct tables *ts = ctx;
    _cleanup_(freep) void *bytes = NULL;
    _cleanup_(table_unrefp) struct table *table = NULL;
    _cleanup_(closep) int copy = -1;
    struct table_entry *t;
    size_t n;
    int r = atomic_file_read(path, ts->config->table_bytes_max, &bytes, &n, e);

    if (r == 0)
        r = table_parse(bytes, n, &table, e);
    if (r == 0) {
        r = table_copy_new(table, &copy, e);
        if (r < 0)
            return r;
        r = table_accept(ts, table, take_fd(&copy), &t, e);
    }
    if (!damage_is_cause(r) && r != -ENOSPC) /* -ENOSPC: more tables than configured */
        return r;

    log_event(LOG_ERR, "table-unreadable", "path=%s message=\"%s\", ignoring", path, e->text);
    return 0;
}

static void tables_load_draining(struct tables *ts, struct table_entry *t, const struct active_line *line)
{
    t->revision = t->activated = line->revision;
    t->rolled_back = line->rolled_back;
    t->drain_until_ms = line->drain_until_ms;
    t->from_before = true;
    table_set_state(ts, t, TABLE_DRAINING);
}

static int tables_load_active(void *ctx, const struct active_line *line, struct errmsg *e)
{
    struct tables *ts = ctx;
    struct table_entry *t = table_find(ts, line->digest);
    char hex[DIGEST_HEX_BYTES];
    struct table_model *m = NULL;
    int r;

    if (line->draining && !t) /* the table has retired since */
        return 0;

    digest_hex(line->digest, hex);
    if (!t || t->state != TABLE_VERIFIED || memcmp(t->model_digest, line->model_digest, DIGEST_BYTES) != 0 ||
        (!line->draining && table_model_find(ts, line->model_digest))) {
        log_event(LOG_ERR, "active-table-missing",
                  "digest=%s message=\"its line in the active set contradicts its file\"", hex);
        return 0;
    }

    if (line->draining) {
        tables_load_draining(ts, t, line);
        return 0;
    }

    r = table_model_new(ts, line->model_digest, &m, e);
    if (r < 0)
        return r;

    m->active = t;
    m->revision = t->revision = t->activated = line->revision;
    table_set_state(ts, t, TABLE_ACTIVE);
    return 0;
}

int tables_init(struct tables *ts, const struct config *config, struct devices *devices, struct errmsg *e)
{
    int r;

    *ts = (struct tables){.config = config, .devices = devices, .next_id = 1, .next_space = 1};
    if (!config->state_dir)
        return 0;

    ts->state.folder = config->state_dir;
    ts->state.open = config->state_folder;
    state_writer_set_printer(&ts->state, STATE_ACTIVE, tables_files_print_active_set, ts);
    state_writer_set_printer(&ts->state, STATE_TRIALS, trial_print_all, ts);
    state_writer_set_printer(&ts->state, STATE_ALIASES, aliases_print_all, ts);
    state_writer_set_printer(&ts->state, STATE_EXACT, tables_exact_print_all, ts);

    r = tables_files_init(config, e);
    if (r < 0)
        return r;

    r = tables_files_load(config, tables_load_file, ts, e);
    if (r == 0)
        r = tables_files_load_active(config, tables_load_active, ts, e);
    if (r == 0)
        r = tables_exact_load(ts, e);
    if (r == 0)
        r = trial_load(ts, e);
    return r == 0 ? aliases_load(ts, e) : r;
}

void tables_deinit(struct tables *ts)
{
    while (ts->entries) {
        struct table_entry *t = ts->entries;

        ts->entries = t->next;
        table_entry_free(t);
    }
    while (ts->models)
        table_model_drop(ts, ts->models);
    *ts = (struct tables){0};
}
