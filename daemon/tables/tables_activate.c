/* See tables_activate.h. */
#include "daemon/tables/tables_activate.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/errmsg.h"
#include "daemon/config/config.h"
#include "daemon/loop/log.h"
#include "daemon/store/control.h"
#include "daemon/store/space.h"
#include "daemon/store/store.h"
#include "daemon/tables/tables_exact.h"
#include "daemon/tables/trial.h"
#include "proto/protocol.h"

/* ---- activation ---- */

static enum table_outcome tables_activate_compare_revision(const struct table_model *m,
                                                           const struct table_entry *t, uint64_t *revision)
{
    bool same = m && m->active == t;
    uint64_t present = m ? m->revision : 0; /* 0 too if the active table is exact */

    if (*revision == 0) {
        *revision = same ? present : present + 1;
        return same ? OUTCOME_ALREADY : OUTCOME_APPLIED;
    }

    if (*revision < present)
        return OUTCOME_STALE;
    if (*revision == present)
        return same ? OUTCOME_ALREADY : OUTCOME_CONFLICT;
    return OUTCOME_APPLIED;
}

/* The fields that an activation changes, to undo it. */
struct tables_activate_saved {
    enum table_state state;
    uint64_t revision, activated, drain_until_ms;
    bool rolled_back;
};

static struct tables_activate_saved tables_activate_remember(const struct table_entry *t)
{
    return (struct tables_activate_saved){t->state, t->revision, t->activated, t->drain_until_ms,
                                          t->rolled_back};
}

static void tables_activate_undo(struct table_entry *t, const struct tables_activate_saved *b)
{
    t->state = b->state;
    t->revision = b->revision;
    t->activated = b->activated;
    t->drain_until_ms = b->drain_until_ms;
    t->rolled_back = b->rolled_back;
}

/* The change of one model's active table. */
struct tables_activate_switch {
    struct table_model *m; /* NULL: a new model */
    struct table_entry *t, *old;
    uint64_t revision, old_revision;
    struct tables_activate_saved t_saved, old_saved;
};

/* Sets what the file says of the model and of both tables. */
static void tables_activate_set(struct tables *ts, struct tables_activate_switch *w, bool rolling_back,
                                uint64_t now_ms)
{
    struct table_model *m = w->m;

    w->old = m->active;
    w->old_revision = m->revision;
    w->t_saved = tables_activate_remember(w->t);
    if (w->old && w->old != w->t) {
        w->old_saved = tables_activate_remember(w->old);
        w->old->state = TABLE_DRAINING;
        w->old->revision = w->revision;
        w->old->drain_until_ms = now_ms + ts->config->drain_ms;
        w->old->rolled_back = rolling_back;
    }

    w->t->state = TABLE_ACTIVE;
    w->t->revision = w->t->activated = w->revision;
    w->t->rolled_back = false;
    m->active = w->t;
    m->revision = w->revision;
}

static void tables_activate_unset(const struct tables_activate_switch *w)
{
    tables_activate_undo(w->t, &w->t_saved);
    if (w->old && w->old != w->t)
        tables_activate_undo(w->old, &w->old_saved);
    w->m->active = w->old;
    w->m->revision = w->old_revision;
}

/* New sequences of the model use the table from now on; the one that was active drains. */
static void tables_activate_announce(struct tables *ts, const struct tables_activate_switch *w)
{
    w->t->state = w->t_saved.state;
    if (w->old && w->old != w->t)
        w->old->state = w->old_saved.state;
    for (struct space *s = w->t->spaces; s; s = s->next)
        s->leaves_first = false;
    trial_end_all(ts, w->t); /* an active table is not tried */
    table_set_state(ts, w->t, TABLE_ACTIVE);
    trial_publish(ts, w->m);
    if (w->old && w->old != w->t) {
        table_set_state(ts, w->old, TABLE_DRAINING);
        if (table_is_exact(w->old->table))
            tables_exact_replaced(ts);
    }
}

static int tables_activate_add_model(struct tables *ts, struct tables_activate_switch *w, struct errmsg *e)
{
    if (w->revision > REVISION_MAX)
        return fail(e, -ERANGE, "revision %" PRIu64 " does not fit a control word (40 bits)", w->revision);
    return w->m ? 0 : table_model_new(ts, w->t->model_digest, &w->m, e);
}

/* The file decides at the next start, so it is written first; if that fails, nothing has changed. */
static int tables_activate_switch_all(struct tables *ts, struct tables_activate_switch *all, size_t n,
                                      bool rolling_back, uint64_t now_ms, struct errmsg *e)
{
    int r = 0;

    for (size_t i = 0; r == 0 && i < n; i++)
        r = tables_activate_add_model(ts, &all[i], e);
    if (r == 0) {
        for (size_t i = 0; i < n; i++)
            tables_activate_set(ts, &all[i], rolling_back, now_ms);
        r = state_writer_write(&ts->state, STATE_ACTIVE, e);
        for (size_t i = 0; r < 0 && i < n; i++)
            tables_activate_unset(&all[i]);
    }

    for (size_t i = 0; i < n; i++)
        if (r == 0)
            tables_activate_announce(ts, &all[i]);
        else if (all[i].m && !all[i].m->active)
            table_model_drop(ts, all[i].m);
    return r;
}

/* Checks table @i of the set and computes its outcome. */
static int tables_activate_check(struct tables *ts, struct table_activation *set, size_t i,
                                 struct tables_activate_switch *all, struct errmsg *e)
{
    struct table_entry *t = table_find(ts, set[i].digest);
    struct table_model *m;
    int r;

    if (!t)
        return fail(e, -ENOENT, "no such table is staged");
    if (!t->table)
        return fail(e, -EBADMSG, "the table is %s: stage it again", table_state_name(t->state));
    r = table_check_calibrated(t, e);
    if (r < 0)
        return r;
    for (size_t j = 0; j < i; j++)
        if (memcmp(all[j].t->model_digest, t->model_digest, DIGEST_BYTES) == 0)
            return fail(e, -EINVAL, "two of the tables are of one model, which has one active table");

    m = table_model_find(ts, t->model_digest);
    r = table_check_geometry(m, t, e);
    if (r < 0)
        return r;

    all[i] = (struct tables_activate_switch){.m = m, .t = t, .old = m ? m->active : NULL};
    all[i].revision = set[i].revision;
    set[i].outcome = tables_activate_compare_revision(m, t, &all[i].revision);
    return 0;
}

int tables_activate(struct tables *ts, struct table_activation *set, size_t n, uint64_t now_ms,
                    struct errmsg *e)
{
    struct tables_activate_switch all[WIRE_TABLES_MAX], changes[WIRE_TABLES_MAX];
    size_t n_changes = 0;
    bool may_change = true;
    int r = 0;

    for (size_t i = 0; i < n; i++) {
        r = tables_activate_check(ts, set, i, all, e);
        if (r < 0)
            return r;

        may_change = may_change && (set[i].outcome == OUTCOME_APPLIED || set[i].outcome == OUTCOME_ALREADY);
        if (set[i].outcome == OUTCOME_APPLIED)
            changes[n_changes++] = all[i];
    }

    if (may_change && n_changes > 0)
        r = tables_activate_switch_all(ts, changes, n_changes, false, now_ms, e);
    if (r < 0)
        return r;

    for (size_t i = 0; i < n; i++) {
        const struct table_model *m = table_model_find(ts, all[i].t->model_digest);
        bool changed = may_change && set[i].outcome == OUTCOME_APPLIED;

        set[i].revision = m ? m->revision : 0;
        memset(set[i].previous, 0, DIGEST_BYTES);
        if (changed && all[i].old && all[i].old != all[i].t)
            memcpy(set[i].previous, all[i].old->digest, DIGEST_BYTES);
    }

    return 0;
}

/* ---- rollback ---- */

int tables_rollback(struct tables *ts, const uint8_t *digest, uint64_t revision, uint64_t now_ms,
                    enum table_outcome *ret_outcome, uint64_t *ret_revision, uint8_t *ret_active,
                    struct errmsg *e)
{
    struct table_entry *leave = table_find(ts, digest), *to;
    struct table_model *m = leave ? table_model_find(ts, leave->model_digest) : NULL;
    enum table_outcome outcome = OUTCOME_APPLIED;
    int r;

    if (!leave)
        return fail(e, -ENOENT, "no such table");
    if (!m)
        return fail(e, -ENODATA, "no table of this model is active: nothing can be rolled back");
    if (revision != 0 && revision < m->revision)
        outcome = OUTCOME_STALE;
    else if (m->active != leave)
        outcome = OUTCOME_ALREADY;
    else if (revision == m->revision)
        outcome = OUTCOME_CONFLICT;
    if (outcome == OUTCOME_APPLIED) {
        to = table_model_previous(ts, m);
        if (!to)
            return fail(e, -ENODATA, "no earlier table of this model is draining: activate the one you want");

        r = tables_activate_switch_all(
            ts,
            &(struct tables_activate_switch){
                .m = m, .t = to, .revision = revision ? revision : m->revision + 1},
            1, true, now_ms, e);
        if (r < 0)
            return r;
    }

    *ret_outcome = outcome;
    *ret_revision = m->revision;
    memcpy(ret_active, m->active->digest, DIGEST_BYTES);
    return 0;
}
