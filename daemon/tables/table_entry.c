/* See table_entry.h. */
#include "daemon/tables/table_entry.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/digest.h"
#include "base/errmsg.h"
#include "daemon/config/config.h"
#include "daemon/loop/log.h"
#include "daemon/store/space.h"
#include "daemon/tables/fit.h"

const char *table_state_name(enum table_state s)
{
    switch (s) {
    case TABLE_STAGED:
        return "staged";
    case TABLE_VERIFIED:
        return "verified";
    case TABLE_SHADOW:
        return "shadow";
    case TABLE_ACTIVE:
        return "active";
    case TABLE_DRAINING:
        return "draining";
    case TABLE_RETIRED:
        return "retired";
    case TABLE_REJECTED:
        return "rejected";
    }

    return "unknown";
}

struct table_entry *table_find(const struct tables *ts, const uint8_t *digest)
{
    for (struct table_entry *t = ts->entries; t; t = t->next)
        if (memcmp(t->digest, digest, DIGEST_BYTES) == 0)
            return t;
    return NULL;
}

struct table_model *table_model_find(const struct tables *ts, const uint8_t *model_digest)
{
    for (struct table_model *m = ts->models; m; m = m->next)
        if (memcmp(m->digest, model_digest, DIGEST_BYTES) == 0)
            return m;
    return NULL;
}

uint64_t table_entry_pages(const struct table_entry *t)
{
    uint64_t n = 0;

    for (const struct space *s = t->spaces; s; s = s->next)
        n += s->n_pages;
    return n;
}

/* ---- spaces ---- */

static struct space **table_shard_place(struct table_entry *t, struct shard shard)
{
    return &t->by_shard[(shard.first_head * 5 + shard.n_heads) % SPACE_PLACES];
}

struct space *table_find_space(const struct table_entry *t, struct shard shard)
{
    struct space *s = *table_shard_place((struct table_entry *) t, shard);

    while (s && (s->layout.shard.first_head != shard.first_head || s->layout.shard.n_heads != shard.n_heads))
        s = s->next_of_shard;
    return s;
}

/* Removes the space that *@link names from both lists. */
static void table_free_space(struct table_entry *t, struct space **link)
{
    struct space *s = *link, **place = table_shard_place(t, s->layout.shard);

    while (*place != s)
        place = &(*place)->next_of_shard;
    *place = s->next_of_shard;
    *link = s->next;
    t->former_leased += s->n_leased;
    t->former_evictions += s->n_evictions;
    page_layout_deinit(&s->layout);
    free(s);
}

void table_free_spaces(struct table_entry *t)
{
    while (t->spaces)
        table_free_space(t, &t->spaces);
}

void table_add_space(struct table_entry *t, struct space *s)
{
    struct space **place = table_shard_place(t, s->layout.shard), **link = &t->spaces;
    unsigned n_unused = 0;

    while (*link) {
        if ((*link)->n_groups == 0 && ++n_unused >= SPACES_UNUSED_MAX)
            table_free_space(t, link);
        else
            link = &(*link)->next;
    }

    s->next_of_shard = *place;
    *place = s;
    s->next = t->spaces;
    t->spaces = s;
}

/* ---- entries ---- */

void table_entry_free(struct table_entry *t)
{
    table_free_spaces(t);
    t->table = table_unref(t->table);
    closep(&t->fd);
    t->fit = fit_free(t->fit);
    free(t);
}

/* Frees the oldest entry that has no table, to make room for a new one. */
static bool table_forget_oldest(struct tables *ts)
{
    for (struct table_entry **link = &ts->entries; *link; link = &(*link)->next) {
        struct table_entry *t = *link;

        if (t->state != TABLE_RETIRED && t->state != TABLE_REJECTED)
            continue;
        *link = t->next;
        ts->n_entries--;
        table_entry_free(t);
        return true;
    }
    return false;
}

void table_forget_rejected(struct tables *ts, struct table_entry *t)
{
    struct table_entry **link = &ts->entries;

    if (t->state != TABLE_REJECTED)
        return;
    while (*link != t)
        link = &(*link)->next;
    *link = t->next;
    ts->n_entries--;
    table_entry_free(t);
}

int table_entry_new(struct tables *ts, const uint8_t *digest, struct table_entry **ret, struct errmsg *e)
{
    struct table_entry **link = &ts->entries, *t;

    if (ts->n_entries >= ts->config->tables_max && !table_forget_oldest(ts))
        return fail(e, -ENOSPC,
                    "there are %" PRIu32 " tables, the maximum, and none is retired: activate fewer models",
                    ts->n_entries);

    t = calloc(1, sizeof(*t));
    if (!t)
        return fail(e, -ENOMEM, "out of memory for a table");

    t->fd = -1;
    t->id = ts->next_id++;
    t->state = TABLE_STAGED;
    memcpy(t->digest, digest, DIGEST_BYTES);
    while (*link)
        link = &(*link)->next;
    *link = t;
    ts->n_entries++;
    *ret = t;
    return 0;
}

void table_set_state(struct tables *ts, struct table_entry *t, enum table_state state)
{
    char hex[DIGEST_HEX_BYTES];

    if (t->state == state)
        return;

    ts->n_draining -= t->state == TABLE_DRAINING;
    ts->n_draining += state == TABLE_DRAINING;
    digest_hex(t->digest, hex);
    log_event(LOG_INFO, "table", "digest=%s state=%s revision=%" PRIu64, hex, table_state_name(state),
              t->revision);
    t->state = state;
}

/* A space without the layout of @table: sizes and shard stay. */
static void table_entry_lose_layout(struct space *s)
{
    struct page_layout lost = {.shard = s->layout.shard};

    for (unsigned class = 0; class < 2; class ++) {
        lost.page_bytes[class] = s->layout.page_bytes[class];
        lost.slot_bytes[class] = s->layout.slot_bytes[class];
    }
    page_layout_deinit(&s->layout);
    s->layout = lost;
}

/* Gives the layout of @table to a space whose pages a restart found without it. */
static int table_entry_find_layout(struct space *s, const struct table *table, struct errmsg *e)
{
    const struct page_layout *lost = &s->layout;
    struct page_layout l;

    if (page_layout_init(&l, table, lost->shard) < 0)
        return fail(e, -EBADMSG, "stored pages name a shard that this table does not have");
    if (lost->page_bytes[PAGE_FIRST] != l.page_bytes[PAGE_FIRST] &&
        lost->page_bytes[PAGE_REST] != l.page_bytes[PAGE_REST]) {
        page_layout_deinit(&l);
        return fail(e, -EBADMSG, "stored pages have other sizes than those of this table");
    }
    s->layout = l;
    return 0;
}

static int table_entry_find_layouts(struct table_entry *t, const struct table *table, struct errmsg *e)
{
    int r = 0;

    for (struct space *s = t->spaces; s && r == 0; s = s->next)
        if (!s->layout.table)
            r = table_entry_find_layout(s, table, e);
    for (struct space *s = t->spaces; s && r < 0; s = s->next)
        if (s->layout.table == table)
            table_entry_lose_layout(s);
    return r;
}

/* Takes over the reference on @table, and @copy. */
static void table_entry_set(struct table_entry *t, struct table *table, int copy)
{
    t->table = table;
    closep(&t->fd);
    t->fd = copy;
    t->bpd_code = table->bpd_code;
    t->file_bytes = table->n_bytes;
    t->has_expected = table_expected_read(table->provenance, &t->expected) == 0;
    t->reason[0] = '\0';
    memcpy(t->model_digest, table->model_digest, DIGEST_BYTES);
}

int table_accept(struct tables *ts, struct table *table, int copy, struct table_entry **ret, struct errmsg *e)
{
    _cleanup_(closep) int owned = copy;
    struct table_entry *t = table_find(ts, table->digest);
    int r = 0;

    if (!t)
        r = table_entry_new(ts, table->digest, &t, e);
    if (r == 0 && !t->table)
        r = table_entry_find_layouts(t, table, e);
    if (r < 0)
        return r;

    table_entry_set(t, table_ref(table), take_fd(&owned));
    table_set_state(ts, t, TABLE_VERIFIED);
    *ret = t;
    return 0;
}

/* ---- models ---- */

int table_model_new(struct tables *ts, const uint8_t *digest, struct table_model **ret, struct errmsg *e)
{
    struct table_model *m = calloc(1, sizeof(*m));

    if (!m)
        return fail(e, -ENOMEM, "out of memory for a model");

    memcpy(m->digest, digest, DIGEST_BYTES);
    m->next = ts->models;
    ts->models = m;
    *ret = m;
    return 0;
}

void table_model_drop(struct tables *ts, struct table_model *m)
{
    struct table_model **link = &ts->models;

    while (*link != m)
        link = &(*link)->next;
    *link = m->next;
    free(m);
}

int table_check_geometry(const struct table_model *m, const struct table_entry *t, struct errmsg *e)
{
    if (!m || !m->active || table_model_is_exact(m)) /* any client may have made an exact one */
        return 0;

    return geometry_check_same(&m->active->table->geometry, &t->table->geometry, 0, e);
}

bool table_model_is_exact(const struct table_model *m)
{
    return m && m->active && table_is_exact(m->active->table);
}

int table_check_calibrated(const struct table_entry *t, struct errmsg *e)
{
    if (!t->table || !table_is_exact(t->table))
        return 0;

    return fail(e, -EINVAL,
                "it is an exact table, which kvcobrad makes for clients while no table of their model is "
                "active (setting exact): operators activate and try calibrated tables only");
}

struct table_entry *table_model_previous(const struct tables *ts, const struct table_model *m)
{
    struct table_entry *best = NULL;

    for (struct table_entry *t = ts->entries; t; t = t->next) {
        if (t->state != TABLE_DRAINING || !t->table || t->activated == 0 || t->rolled_back ||
            memcmp(t->model_digest, m->digest, DIGEST_BYTES) != 0)
            continue;
        if (!best || t->activated > best->activated)
            best = t;
    }
    return best;
}

bool table_is_canary(const struct tables *ts, const struct table_entry *t)
{
    const struct table_model *m = table_model_find(ts, t->model_digest);

    return m && m->trials.canary == t;
}
