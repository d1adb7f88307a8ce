/* See trial.h. */
#include "daemon/tables/trial.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/damage.h"
#include "base/digest.h"
#include "base/errmsg.h"
#include "daemon/config/config.h"
#include "daemon/loop/log.h"
#include "daemon/store/control.h"
#include "daemon/store/device.h"
#include "daemon/store/space.h"
#include "daemon/tables/fit.h"
#include "daemon/tables/tables_files.h"
#include "proto/shared.h"

#define TRIALS_TITLE "kvcobra trials 1\n"
enum { TRIALS_FILE_BYTES_MAX = 1 << 20, CANARY_SHARE_MAX = 255 };

/* ---- publishing ---- */

static bool trial_has_all_of(const struct trials *x, const char *tenant)
{
    for (uint32_t i = 0; i < x->n_tenants; i++)
        if (strcmp(x->tenants[i], tenant) == 0)
            return true;
    return false;
}

int trial_publish_to(struct tenant *tenant, const struct table_model *m, uint32_t *ret_slot, struct errmsg *e)
{
    const struct trials *x = &m->trials;
    struct control_tables c = {.active = m->active->digest, .revision = m->revision};

    if (x->canary && trial_has_all_of(x, tenant->name)) {
        c.active = x->canary->digest;
    } else if (x->canary && x->canary_share > 0) {
        c.canary = x->canary->digest;
        c.canary_share = x->canary_share;
    }

    if (x->shadow && memcmp(x->shadow->digest, c.active, DIGEST_BYTES) != 0) {
        c.shadow = x->shadow->digest;
        c.shadow_ppm = x->shadow_ppm;
    }

    return control_publish(tenant, m->digest, m->active->table->geometry_digest, &c, ret_slot, e);
}

void trial_publish(struct tables *ts, const struct table_model *m)
{
    for (struct tenant *t = NULL; (t = devices_next_tenant(ts->devices, t));) {
        struct errmsg e;

        if (control_find(t, m->digest) >= 0 && trial_publish_to(t, m, NULL, &e) < 0)
            log_event(LOG_ERR, "publish-failed", "tenant=%s message=\"%s\"", t->name, e.text);
    }
}

/* ---- the file ---- */

static void trial_print_model(FILE *f, const struct table_model *m)
{
    const struct trials *x = &m->trials;
    char model[DIGEST_HEX_BYTES], table[DIGEST_HEX_BYTES];

    digest_hex(m->digest, model);
    if (x->shadow) {
        digest_hex(x->shadow->digest, table);
        (void) fprintf(f, "shadow %s %s %" PRIu32 "\n", model, table, x->shadow_ppm);
    }

    if (x->canary) {
        digest_hex(x->canary->digest, table);
        (void) fprintf(f, "canary %s %s %" PRIu32, model, table, x->canary_share);
        for (uint32_t i = 0; i < x->n_tenants; i++)
            (void) fprintf(f, " %s", x->tenants[i]);
        (void) fputc('\n', f);
    }
}

void trial_print_all(const void *ctx, FILE *f)
{
    const struct tables *ts = ctx;

    (void) fputs(TRIALS_TITLE, f);
    for (const struct table_model *m = ts->models; m; m = m->next)
        trial_print_model(f, m);
}

/* The files decide at the next start, so they are written first; if that fails, nothing has changed. */
static int trial_store(struct tables *ts, struct table_model *m, const struct trials *now, uint64_t revision,
                       struct errmsg *e)
{
    struct trials before = m->trials;
    uint64_t old_revision = m->revision;
    int r;

    m->trials = *now;
    m->revision = revision;
    r = state_writer_write(&ts->state, STATE_TRIALS, e);
    if (r == 0) {
        r = state_writer_write(&ts->state, STATE_ACTIVE, e);
        if (r == 0)
            return 0;
    }

    m->trials = before;
    m->revision = old_revision;
    return r;
}

/* ---- changes ---- */

/* Finds the table and its model, if it can be tried. */
static int trial_find(struct tables *ts, const uint8_t *digest, bool ends, struct table_entry **ret,
                      struct table_model **ret_model, struct errmsg *e)
{
    struct table_entry *t = table_find(ts, digest);
    struct table_model *m = t ? table_model_find(ts, t->model_digest) : NULL;

    if (!t)
        return fail(e, -ENOENT, "no such table is staged");
    if (!m)
        return fail(e, -ENODATA, "no table of this model is active: activate one first");
    if (!ends) {
        int r = table_check_calibrated(t, e);

        if (r < 0)
            return r;
    }
    if (!ends && table_model_is_exact(m))
        return fail(
            e, -EBUSY,
            "only an exact table of this model is active, beside which nothing is tried: activate one");
    if (!ends && t->state != TABLE_VERIFIED && t->state != TABLE_SHADOW)
        return fail(e, -EBUSY, "the table is %s: only one that is verified and not in use can be tried",
                    table_state_name(t->state));
    if (!ends) {
        int r = table_check_geometry(m, t, e);

        if (r < 0)
            return r;
    }

    *ret = t;
    *ret_model = m;
    return 0;
}

static enum table_outcome trial_decide(const struct table_model *m, bool same, uint64_t *revision)
{
    if (*revision == 0) {
        *revision = same ? m->revision : m->revision + 1;
        return same ? OUTCOME_ALREADY : OUTCOME_APPLIED;
    }
    if (*revision < m->revision)
        return OUTCOME_STALE;
    if (*revision == m->revision)
        return same ? OUTCOME_ALREADY : OUTCOME_CONFLICT;
    return OUTCOME_APPLIED;
}

static int trial_check_revision(uint64_t revision, struct errmsg *e)
{
    if (revision > REVISION_MAX)
        return fail(e, -ERANGE, "revision %" PRIu64 " does not fit a control word (40 bits)", revision);
    return 0;
}

static void trial_leave_shadow(struct tables *ts, struct table_entry *t)
{
    if (t && t->state == TABLE_SHADOW)
        table_set_state(ts, t, TABLE_VERIFIED);
}

int trial_shadow(struct tables *ts, const uint8_t *digest, uint32_t ppm, uint64_t revision,
                 enum table_outcome *ret_outcome, uint64_t *ret_revision, struct errmsg *e)
{
    struct table_entry *t, *old;
    struct table_model *m;
    struct trials now;
    int r = trial_find(ts, digest, ppm == 0, &t, &m, e);

    if (r < 0)
        return r;
    if (ppm > CONTROL_SHADOW_PPM_MAX)
        return fail(e, -EINVAL, "a share of %" PRIu32 " millionths is more than all", ppm);

    old = m->trials.shadow;
    *ret_outcome = trial_decide(m, ppm > 0 ? old == t && m->trials.shadow_ppm == ppm : old != t, &revision);
    *ret_revision = m->revision;
    if (*ret_outcome != OUTCOME_APPLIED)
        return 0;

    now = m->trials;
    if (ppm > 0 || old == t)
        now.shadow = ppm > 0 ? t : NULL;
    if (now.shadow == t || !now.shadow)
        now.shadow_ppm = now.shadow ? ppm : 0;
    r = trial_check_revision(revision, e);
    if (r == 0)
        r = trial_store(ts, m, &now, revision, e);
    if (r < 0)
        return r;

    *ret_revision = t->revision = m->revision;
    if (old != now.shadow)
        trial_leave_shadow(ts, old);
    if (now.shadow == t) {
        if (old != t)
            fit_forget_shadow(t->fit); /* a new comparison begins */
        table_set_state(ts, t, TABLE_SHADOW);
    }

    trial_publish(ts, m);
    return 0;
}

static int trial_read_tenants(struct trials *x, const char *const *tenants, size_t n, struct errmsg *e)
{
    if (n > TRIAL_TENANTS_MAX)
        return fail(e, -EINVAL, "%zu tenants for a canary, at most %d", n, TRIAL_TENANTS_MAX);

    x->n_tenants = 0;
    for (size_t i = 0; i < n; i++) {
        size_t length = strlen(tenants[i]);

        if (length == 0 || length >= TRIAL_NAME_BYTES || strcspn(tenants[i], " \t\r\n\"") != length)
            return fail(e, -EINVAL, "\"%.63s\" is not the name of a tenant", tenants[i]);

        memcpy(x->tenants[x->n_tenants++], tenants[i], length + 1);
    }

    return 0;
}

static bool trial_same_canary(const struct trials *a, const struct trials *b)
{
    if (a->canary != b->canary || a->canary_share != b->canary_share || a->n_tenants != b->n_tenants)
        return false;

    for (uint32_t i = 0; i < a->n_tenants; i++)
        if (!trial_has_all_of(b, a->tenants[i]))
            return false;
    return true;
}

/* A canary that has references or pages drains like a replaced table. */
static void trial_leave_canary(struct tables *ts, struct table_entry *t, uint64_t now_ms)
{
    if (t->state != TABLE_VERIFIED || (t->n_refs == 0 && table_entry_pages(t) == 0))
        return;

    t->drain_until_ms = now_ms + ts->config->drain_ms;
    table_set_state(ts, t, TABLE_DRAINING);
}

int trial_canary(struct tables *ts, const uint8_t *digest, uint32_t share, const char *const *tenants,
                 size_t n_tenants, uint64_t revision, uint64_t now_ms, enum table_outcome *ret_outcome,
                 uint64_t *ret_revision, struct errmsg *e)
{
    bool ends = share == 0 && n_tenants == 0;
    struct table_entry *t, *old;
    struct table_model *m;
    struct trials now;
    int r = trial_find(ts, digest, ends, &t, &m, e);

    if (r < 0)
        return r;
    if (share > CANARY_SHARE_MAX)
        return fail(e, -EINVAL,
                    "a share of %" PRIu32 "/256 of new sequences: at most %d; activate it for all", share,
                    CANARY_SHARE_MAX);

    old = m->trials.canary;
    now = m->trials;
    r = trial_read_tenants(&now, tenants, n_tenants, e);
    if (r < 0)
        return r;
    if (!ends || old == t) {
        now.canary = ends ? NULL : t;
        now.canary_share = share;
    } else {
        now = m->trials; /* the table is not the canary: no change */
    }

    *ret_outcome = trial_decide(m, trial_same_canary(&now, &m->trials), &revision);
    *ret_revision = m->revision;
    if (*ret_outcome != OUTCOME_APPLIED)
        return 0;

    r = trial_check_revision(revision, e);
    if (r == 0)
        r = trial_store(ts, m, &now, revision, e);
    if (r < 0)
        return r;

    *ret_revision = t->revision = m->revision;
    trial_publish(ts, m);
    if (old && old != now.canary)
        trial_leave_canary(ts, old, now_ms);
    return 0;
}

void trial_end_all(struct tables *ts, const struct table_entry *t)
{
    struct table_model *m = table_model_find(ts, t->model_digest);

    if (!m || (m->trials.shadow != t && m->trials.canary != t))
        return;
    if (m->trials.shadow == t) {
        m->trials.shadow = NULL;
        m->trials.shadow_ppm = 0;
    }

    if (m->trials.canary == t) {
        m->trials.canary = NULL;
        m->trials.canary_share = m->trials.n_tenants = 0;
    }

    /* until it is written, a start would ignore the line: the table is in another state */
    state_writer_write_later(&ts->state, STATE_TRIALS);
    trial_publish(ts, m);
}

/* ---- at the start ---- */

static int trial_read_line(struct tables *ts, char *line)
{
    char *save = NULL, *words[4], *end;
    const char *tenants[TRIAL_TENANTS_MAX + 1];
    uint8_t model[DIGEST_BYTES], digest[DIGEST_BYTES];
    struct table_entry *t;
    struct table_model *m;
    unsigned long share;
    size_t n = 0;

    for (unsigned i = 0; i < 4; i++) {
        words[i] = strtok_r(i == 0 ? line : NULL, " ", &save);
        if (!words[i])
            return -EBADMSG;
    }

    for (char *name = strtok_r(NULL, " ", &save); name && n <= TRIAL_TENANTS_MAX;
         name = strtok_r(NULL, " ", &save))
        tenants[n++] = name;
    share = strtoul(words[3], &end, 10);
    if (*end || tables_files_read_digest(words[1], model) < 0 ||
        tables_files_read_digest(words[2], digest) < 0)
        return -EBADMSG;

    m = table_model_find(ts, model);
    t = table_find(ts, digest);
    if (!m || !t || (t->state != TABLE_VERIFIED && t->state != TABLE_SHADOW) ||
        memcmp(t->model_digest, model, DIGEST_BYTES) != 0)
        return -ESTALE;
    if (strcmp(words[0], "shadow") == 0 && share > 0 && share <= CONTROL_SHADOW_PPM_MAX && n == 0) {
        m->trials.shadow = t;
        m->trials.shadow_ppm = (uint32_t) share;
        table_set_state(ts, t, TABLE_SHADOW);
        return 0;
    }

    if (strcmp(words[0], "canary") == 0 && share <= CANARY_SHARE_MAX && (share > 0 || n > 0)) {
        int r = trial_read_tenants(&m->trials, tenants, n, NULL);

        if (r < 0)
            return r;

        m->trials.canary = t;
        m->trials.canary_share = (uint32_t) share;
        return 0;
    }

    return -EBADMSG;
}

static int trial_load_line(void *ctx, const char *path, char *line, struct errmsg *e)
{
    int r = trial_read_line(ctx, line);

    if (r < 0 && !damage_is_cause(r))
        return fail(e, r, "cannot read the trial of a table in %s: %s", path, strerror(-r));
    if (r < 0)
        log_event(LOG_ERR, "trial-ignored",
                  "path=%s message=\"the table is missing or cannot be tried, or the line is bad\"", path);
    return 0;
}

int trial_load(struct tables *ts, struct errmsg *e)
{
    static const struct tables_text text = {"trials", TRIALS_TITLE, "trials", TRIALS_FILE_BYTES_MAX};

    return tables_files_read_lines(ts->config, &text, trial_load_line, ts, e);
}
