/* See tables_stage.h. */
#include "daemon/tables/tables_stage.h"

#include <errno.h>
#include <inttypes.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/digest.h"
#include "daemon/config/config.h"
#include "daemon/loop/log.h"
#include "daemon/tables/aliases.h"
#include "daemon/tables/fit.h"
#include "daemon/tables/table_copy.h"
#include "daemon/tables/tables_files.h"

void tables_stage_deinit(struct staging *s)
{
    s->table = table_unref(s->table);
    closep(&s->copy);
    s->copy = -1;
}

void tables_stage_parse(struct staging *s)
{
    s->err = table_parse(s->bytes, s->n_bytes, &s->table, &s->why);
    if (s->err == 0)
        s->err = table_copy_new(s->table, &s->copy, &s->why);
    if (s->err == -EBADMSG)
        (void) crypto_hash_sha256(s->digest, s->bytes, s->n_bytes);
}

void tables_stage_write(const struct config *c, struct staging *s)
{
    s->err = tables_files_write(c, s->table->digest, s->bytes, s->n_bytes, &s->why);
}

static int tables_stage_reject(struct tables *ts, const struct staging *s, struct table_entry **ret,
                               struct errmsg *e)
{
    struct table_entry *t = table_find(ts, s->digest);
    int r = 0;

    *ret = NULL;
    if (!t)
        r = table_entry_new(ts, s->digest, &t, NULL);
    if (r == 0 && !t->table) { /* the table is refused even if there is no room for an entry */
        t->file_bytes = s->n_bytes;
        (void) snprintf(t->reason, sizeof(t->reason), "%s", s->why.text);
        table_set_state(ts, t, TABLE_REJECTED);
        *ret = t;
    }

    return fail(e, -EBADMSG, "table rejected: %.300s", s->why.text);
}

/* Clients that open an alias get the tables of the model, so a table of the alias would never be used. */
static int tables_stage_check_alias(const struct tables *ts, const struct table *t, struct errmsg *e)
{
    if (aliases_resolve(ts, t->model_digest) == t->model_digest)
        return 0;

    return fail(e, -EBUSY,
                "the model of this table is an alias of another model, whose tables its clients use: unalias "
                "it, or solve a table from statistics of that model");
}

int tables_stage_decide(struct tables *ts, struct staging *s, enum table_outcome *ret_outcome,
                        struct table_entry **ret_entry, struct errmsg *e)
{
    const struct table_model *m;
    struct table_entry *t;
    int r;

    if (s->err == -EBADMSG) {
        *ret_outcome = OUTCOME_APPLIED;
        return tables_stage_reject(ts, s, ret_entry, e);
    }

    if (s->err < 0)
        return fail(e, s->err, "%s", s->why.text);

    t = table_find(ts, s->table->digest);
    m = table_model_find(ts, s->table->model_digest);
    if (t && t->table) {
        *ret_outcome = OUTCOME_ALREADY;
        *ret_entry = t;
        return 0;
    }

    if (table_is_exact(s->table))
        return fail(e, -EINVAL,
                    "it is an exact table, which kvcobrad makes itself for clients that ask for one (setting "
                    "exact): stage calibrated tables");
    r = tables_stage_check_alias(ts, s->table, e);
    if (r < 0)
        return r;

    if (s->revision != 0 && m && s->revision < m->revision)
        return fail(e, -ESTALE, "revision %" PRIu64 " is older than the model's, %" PRIu64, s->revision,
                    m->revision);

    return STAGING_WRITE;
}

int tables_stage_accept(struct tables *ts, struct staging *s, enum table_outcome *ret_outcome,
                        struct table_entry **ret_entry, struct errmsg *e)
{
    char digest[DIGEST_HEX_BYTES];
    int r = s->err;

    if (r < 0) {
        log_event(LOG_ERR, "not-stored", "table=%s message=\"%s\"", digest_short(s->table->digest, digest),
                  s->why.text);
        return fail(e, r, "%s", s->why.text);
    }

    r = tables_stage_check_alias(ts, s->table, e); /* it may have become one while a thread wrote the file */
    if (r == 0)
        r = table_accept(ts, s->table, take_fd(&s->copy), ret_entry, e);
    if (r < 0) {
        if (ts->config->state_dir)
            tables_files_remove(ts->config, s->table->digest);
        return r;
    }

    *ret_outcome = OUTCOME_APPLIED;
    return 0;
}

int tables_stage(struct tables *ts, const void *bytes, size_t n_bytes, uint64_t revision,
                 enum table_outcome *ret_outcome, struct table_entry **ret_entry, struct errmsg *e)
{
    struct staging s = {.bytes = bytes, .n_bytes = n_bytes, .revision = revision, .copy = -1};
    int r;

    tables_stage_parse(&s);
    r = tables_stage_decide(ts, &s, ret_outcome, ret_entry, e);
    if (r == STAGING_WRITE) {
        if (ts->config->state_dir)
            tables_stage_write(ts->config, &s);
        r = tables_stage_accept(ts, &s, ret_outcome, ret_entry, e);
    }

    tables_stage_deinit(&s);
    return r;
}
