/* See aliases.h. */
#include "daemon/tables/aliases.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/digest.h"
#include "base/errmsg.h"
#include "daemon/config/config.h"
#include "daemon/loop/log.h"
#include "daemon/tables/tables_files.h"

#define ALIASES_TITLE "kvcobra model aliases 1\n"

enum { ALIASES_FILE_BYTES_MAX = 1 << 20 };

/* ---- look-ups ---- */

static bool aliases_equal(const uint8_t *a, const uint8_t *b)
{
    return memcmp(a, b, DIGEST_BYTES) == 0;
}

/* The index of an alias; n_aliases: it is none. */
static uint32_t aliases_find(const struct tables *ts, const uint8_t *digest)
{
    uint32_t i = 0;

    while (i < ts->n_aliases && !aliases_equal(ts->aliases[i].alias, digest))
        i++;
    return i;
}

const uint8_t *aliases_resolve(const struct tables *ts, const uint8_t *digest)
{
    uint32_t i = aliases_find(ts, digest);

    return i < ts->n_aliases ? ts->aliases[i].model : digest;
}

static bool aliases_has_tables(const struct tables *ts, const uint8_t *model)
{
    for (const struct table_entry *t = ts->entries; t; t = t->next)
        if (t->table && aliases_equal(t->model_digest, model))
            return true;
    return false;
}

static bool aliases_has_aliases(const struct tables *ts, const uint8_t *model)
{
    for (uint32_t i = 0; i < ts->n_aliases; i++)
        if (aliases_equal(ts->aliases[i].model, model))
            return true;
    return false;
}

/* ---- the file ---- */

void aliases_print_all(const void *ctx, FILE *f)
{
    const struct tables *ts = ctx;

    (void) fputs(ALIASES_TITLE, f);
    for (uint32_t i = 0; i < ts->n_aliases; i++) {
        char alias[DIGEST_HEX_BYTES], model[DIGEST_HEX_BYTES];

        (void) fprintf(f, "%s %s\n", digest_hex(ts->aliases[i].alias, alias),
                       digest_hex(ts->aliases[i].model, model));
    }
}

/* ---- changes ---- */

/* Whether the rules of aliases.h allow a new alias. */
static int aliases_check(const struct tables *ts, const uint8_t *alias, const uint8_t *model,
                         struct errmsg *e)
{
    char a[DIGEST_HEX_BYTES], m[DIGEST_HEX_BYTES], other[DIGEST_HEX_BYTES];
    uint32_t i = aliases_find(ts, alias), j = aliases_find(ts, model);

    digest_short(alias, a);
    digest_short(model, m);
    if (aliases_equal(alias, model))
        return fail(e, -EINVAL, "%s cannot be an alias of itself", a);
    if (i < ts->n_aliases)
        return fail(e, -EEXIST, "%s is an alias of %s already: unalias it first", a,
                    digest_short(ts->aliases[i].model, other));
    if (j < ts->n_aliases)
        return fail(e, -EINVAL, "%s is itself an alias of %s: name that one as the model", m,
                    digest_short(ts->aliases[j].model, other));
    if (aliases_has_tables(ts, alias))
        return fail(e, -EBUSY,
                    "model %s has tables of its own, which its clients could no longer use: retire them "
                    "first, or make %s the alias",
                    a, m);
    if (aliases_has_aliases(ts, alias))
        return fail(e, -EBUSY, "%s has aliases of its own: unalias them first", a);
    if (ts->n_aliases == WIRE_ALIASES_MAX)
        return fail(e, -ENOSPC, "this daemon has %d aliases, the maximum: unalias one", WIRE_ALIASES_MAX);
    return 0;
}

static void aliases_append(struct tables *ts, const uint8_t *alias, const uint8_t *model)
{
    struct model_alias *x = &ts->aliases[ts->n_aliases++];

    memcpy(x->alias, alias, DIGEST_BYTES);
    memcpy(x->model, model, DIGEST_BYTES);
}

int aliases_add(struct tables *ts, const uint8_t *alias, const uint8_t *model,
                enum table_outcome *ret_outcome, struct errmsg *e)
{
    uint32_t i = aliases_find(ts, alias);
    int r;

    if (i < ts->n_aliases && aliases_equal(ts->aliases[i].model, model)) {
        *ret_outcome = OUTCOME_ALREADY;
        return 0;
    }

    r = aliases_check(ts, alias, model, e);
    if (r < 0)
        return r;

    aliases_append(ts, alias, model);
    r = state_writer_write(&ts->state, STATE_ALIASES, e);
    if (r < 0) {
        ts->n_aliases--;
        return r;
    }

    *ret_outcome = OUTCOME_APPLIED;
    return 0;
}

int aliases_remove(struct tables *ts, const uint8_t *alias, uint8_t *ret_model, struct errmsg *e)
{
    uint32_t i = aliases_find(ts, alias);
    char hex[DIGEST_HEX_BYTES];
    struct model_alias removed;
    int r;

    if (i == ts->n_aliases)
        return fail(e, -ENOENT, "%s is not an alias", digest_short(alias, hex));

    removed = ts->aliases[i];
    ts->aliases[i] = ts->aliases[--ts->n_aliases];
    ts->aliases[ts->n_aliases] = removed; /* behind the last one, until the next is added */
    r = state_writer_write(&ts->state, STATE_ALIASES, e);
    if (r < 0) {
        ts->aliases[ts->n_aliases++] = ts->aliases[i];
        ts->aliases[i] = removed;
        return r;
    }

    memcpy(ret_model, ts->aliases[ts->n_aliases].model, DIGEST_BYTES);
    return 0;
}

/* ---- at the start ---- */

static int aliases_read_line(struct tables *ts, const char *line, struct errmsg *e)
{
    char alias_hex[DIGEST_HEX_BYTES], model_hex[DIGEST_HEX_BYTES], after;
    uint8_t alias[DIGEST_BYTES], model[DIGEST_BYTES];
    int r;

    if (sscanf(line, "%64s %64s%c", alias_hex, model_hex, &after) != 2 ||
        tables_files_read_digest(alias_hex, alias) < 0 || tables_files_read_digest(model_hex, model) < 0)
        return fail(e, -EBADMSG, "bad line \"%.60s\"", line);

    r = aliases_check(ts, alias, model, e);
    if (r < 0)
        return r;

    aliases_append(ts, alias, model);
    return 0;
}

static int aliases_load_line(void *ctx, const char *path, char *line, struct errmsg *e)
{
    if (aliases_read_line(ctx, line, e) < 0) /* the line breaks a rule */
        log_event(LOG_ERR, "alias-ignored", "path=%s message=\"%s\"", path, e->text);
    return 0;
}

int aliases_load(struct tables *ts, struct errmsg *e)
{
    static const struct tables_text text = {"aliases", ALIASES_TITLE, "aliases", ALIASES_FILE_BYTES_MAX};

    return tables_files_read_lines(ts->config, &text, aliases_load_line, ts, e);
}
