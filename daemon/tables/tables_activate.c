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
#include "daemon/tables/trial.h"

/* ---- activation ---- */

static enum table_outcome tables_activate_compare_revision(const struct table_model *m,
                                                           const struct table_entry *t, uint64_t *revision)
{
    bool same = m && m->active == t;
    uint64_t present = m ? m->revision : 0;

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

/*
 * The file decides at the next start, so it is written first; if that fails, nothing has changed. The
 * states are set for the file; tables_activate_change_active() announces them.
 */
static int tables_activate_switch_active(struct tables *ts, struct table_model *m, struct table_entry *t,
                                         uint64_t revision, bool rolling_back, uint64_t now_ms,
                                         struct errmsg *e)
{
    struct table_entry *old = m->active;
    struct tables_activate_saved t_saved = tables_activate_remember(t),
                                 old_saved = old ? tables_activate_remember(old) : t_saved;
    uint64_t old_revision = m->revision;
    int r;

    if (old && old != t) {
        old->state = TABLE_DRAINING;
        old->revision = revision;
        old->drain_until_ms = now_ms + ts->config->drain_ms;
        old->rolled_back = rolling_back;
    }

    t->state = TABLE_ACTIVE;
    t->revision = t->activated = revision;
    t->rolled_back = false;
    m->active = t;
    m->revision = revision;
    r = state_writer_write(&ts->state, STATE_ACTIVE, e);
    t->state = t_saved.state;
    if (old && old != t)
        old->state = old_saved.state;
    if (r == 0)
        return 0;

    tables_activate_undo(t, &t_saved);
    if (old && old != t)
        tables_activate_undo(old, &old_saved);
    m->active = old;
    m->revision = old_revision;
    return r;
}

/*
 * New sequences of the model use @t from now on; the table that was active drains. @m: NULL for a new model.
 */
static int tables_activate_change_active(struct tables *ts, struct table_model *m, struct table_entry *t,
                                         uint64_t revision, bool rolling_back, uint64_t now_ms,
                                         struct errmsg *e)
{
    struct table_entry *old = m ? m->active : NULL;
    int r = 0;

    if (revision > REVISION_MAX)
        return fail(e, -ERANGE, "revision %" PRIu64 " does not fit a control word (40 bits)", revision);
    if (!m)
        r = table_model_new(ts, t->model_digest, &m, e);
    if (r == 0)
        r = tables_activate_switch_active(ts, m, t, revision, rolling_back, now_ms, e);
    if (r < 0) {
        if (m && !m->active)
            table_model_drop(ts, m);
        return r;
    }

    for (struct space *s = t->spaces; s; s = s->next)
        s->leaves_first = false;
    trial_end_all(ts, t); /* an active table is not tried */
    table_set_state(ts, t, TABLE_ACTIVE);
    trial_publish(ts, m);
    if (old && old != t)
        table_set_state(ts, old, TABLE_DRAINING);
    return 0;
}

int tables_activate(struct tables *ts, const uint8_t *digest, uint64_t revision, uint64_t now_ms,
                    enum table_outcome *ret_outcome, uint64_t *ret_revision, uint8_t *ret_previous,
                    struct errmsg *e)
{
    struct table_entry *t = table_find(ts, digest), *old;
    struct table_model *m;
    enum table_outcome outcome;
    int r;

    if (!t)
        return fail(e, -ENOENT, "no such table is staged");
    if (!t->table)
        return fail(e, -EBADMSG, "the table is %s: stage it again", table_state_name(t->state));

    m = table_model_find(ts, t->model_digest);
    r = table_check_geometry(m, t, e);
    if (r < 0)
        return r;

    outcome = tables_activate_compare_revision(m, t, &revision);
    old = m ? m->active : NULL;
    if (outcome == OUTCOME_APPLIED) {
        r = tables_activate_change_active(ts, m, t, revision, false, now_ms, e);
        if (r < 0)
            return r;

        m = table_model_find(ts, t->model_digest);
    }

    *ret_outcome = outcome;
    *ret_revision = m->revision;
    memset(ret_previous, 0, DIGEST_BYTES);
    if (old && old != t && outcome == OUTCOME_APPLIED)
        memcpy(ret_previous, old->digest, DIGEST_BYTES);
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

        r = tables_activate_change_active(ts, m, to, revision ? revision : m->revision + 1, true, now_ms, e);
        if (r < 0)
            return r;
    }

    *ret_outcome = outcome;
    *ret_revision = m->revision;
    memcpy(ret_active, m->active->digest, DIGEST_BYTES);
    return 0;
}
