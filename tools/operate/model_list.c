/* See model_list.h. */
#include "tools/operate/model_list.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/table/table.h"
#include "base/cleanup.h"
#include "base/digest.h"
#include "base/errmsg.h"
#include "tools/command/command.h"
#include "tools/command/operator.h"
#include "tools/command/report.h"

/* ---- rows ---- */

static struct model_list_row *model_list_row_of(struct model_list *l, const uint8_t *digest)
{
    struct model_list_row *row;

    for (size_t i = 0; i < l->n_rows; i++)
        if (memcmp(l->rows[i].digest, digest, KVC_DIGEST_BYTES) == 0)
            return &l->rows[i];

    row = &l->rows[l->n_rows++];
    *row = (struct model_list_row){.name = NULL};
    memcpy(row->digest, digest, KVC_DIGEST_BYTES);
    return row;
}

static bool model_list_is_usable(const Kvcobra__TableInfo *t)
{
    return t->state != KVCOBRA__TABLE_STATE__TABLE_RETIRED &&
           t->state != KVCOBRA__TABLE_STATE__TABLE_REJECTED;
}

int model_list_get_aliases(kvc_client *c, Kvcobra__ListAliasesReply **ret)
{
    _cleanup_(operator_message_freep) Kvcobra__ListAliasesReply *got = NULL;
    const Kvcobra__ListAliases list = KVCOBRA__LIST_ALIASES__INIT;
    struct errmsg e = {""};
    int r = operator_call(c, KVCOBRA__REQUEST__BODY_LIST_ALIASES, &list.base, &got, &e);

    for (size_t i = 0; r == 0 && i < got->n_aliases; i++) {
        r = operator_check_is_digest(got->aliases[i]->alias, "an alias", &e);
        if (r == 0)
            r = operator_check_is_digest(got->aliases[i]->model, "the model of an alias", &e);
    }
    if (r < 0)
        return command_fail("%s", e.text);

    *ret = take_ptr(got);
    return COMMAND_OK;
}

int model_list_get(kvc_client *c, struct model_list *l)
{
    struct errmsg e = {""};
    int code;

    if (operator_list_tables(c, &l->tables, &e) < 0)
        return command_fail("%s", e.text);
    code = model_list_get_aliases(c, &l->aliases);
    if (code != COMMAND_OK)
        return code;

    l->rows = calloc(l->tables->n_tables + l->aliases->n_aliases + 1, sizeof(*l->rows));
    if (!l->rows)
        return command_fail("out of memory");

    for (size_t i = 0; i < l->tables->n_tables; i++) {
        const Kvcobra__TableInfo *t = l->tables->tables[i];
        struct model_list_row *row;

        if (!model_list_is_usable(t))
            continue;

        row = model_list_row_of(l, t->model_digest.data);
        row->n_tables++;
        row->pages += t->pages;
        if (t->state == KVCOBRA__TABLE_STATE__TABLE_ACTIVE)
            row->active = t;
    }

    for (size_t i = 0; i < l->aliases->n_aliases; i++)
        (void) model_list_row_of(l, l->aliases->aliases[i]->model.data);
    return COMMAND_OK;
}

void model_list_deinit(struct model_list *l)
{
    for (size_t i = 0; i < l->n_rows; i++)
        free(l->rows[i].name);
    free(l->rows);
    operator_message_freep(&l->tables);
    operator_message_freep(&l->aliases);
    *l = (struct model_list){.rows = NULL};
}

/* ---- names ---- */

/* NULL: the table has retired meanwhile, or its provenance names no model. */
static char *model_list_name_in(kvc_client *c, const Kvcobra__TableInfo *info)
{
    _cleanup_(table_unrefp) struct table *t = NULL;
    _cleanup_(freep) void *bytes = NULL;
    const char *name;
    char *copy;
    json_t *json;
    size_t n;

    if (operator_fetch_table(c, info->digest.data, &bytes, &n, NULL) < 0 ||
        table_parse(bytes, n, &t, NULL) < 0)
        return NULL;

    json = json_loads(t->provenance, 0, NULL);
    name = json_string_value(json_object_get(json, "model"));
    copy = name ? strdup(name) : NULL;
    json_decref(json);
    return copy;
}

void model_list_find_names(kvc_client *c, struct model_list *l)
{
    for (size_t i = 0; i < l->tables->n_tables; i++) {
        const Kvcobra__TableInfo *t = l->tables->tables[i];
        struct model_list_row *row;

        if (!model_list_is_usable(t))
            continue;

        row = model_list_row_of(l, t->model_digest.data);
        if (!row->name)
            row->name = model_list_name_in(c, t);
    }
}

/* ---- output ---- */

static json_t *model_list_aliases_json(const struct model_list *l, const uint8_t *model)
{
    json_t *aliases = json_array();

    for (size_t i = 0; i < l->aliases->n_aliases; i++) {
        char hex[DIGEST_HEX_BYTES];

        if (memcmp(l->aliases->aliases[i]->model.data, model, KVC_DIGEST_BYTES) == 0 &&
            json_array_append_new(aliases, json_string(digest_hex(l->aliases->aliases[i]->alias.data, hex))) <
                0) {
            json_decref(aliases);
            return NULL;
        }
    }
    return aliases;
}

int model_list_print_json(const struct model_list *l)
{
    json_t *all = json_array();

    for (size_t i = 0; i < l->n_rows; i++) {
        const struct model_list_row *row = &l->rows[i];
        char digest[DIGEST_HEX_BYTES], active[DIGEST_HEX_BYTES];
        json_t *one = json_pack("{s:s, s:s?, s:I, s:s?, s:I, s:o}", "digest", digest_hex(row->digest, digest),
                                "name", row->name, "tables", (json_int_t) row->n_tables, "active",
                                row->active ? digest_hex(row->active->digest.data, active) : NULL, "pages",
                                (json_int_t) row->pages, "aliases", model_list_aliases_json(l, row->digest));

        if (json_array_append_new(all, one) < 0) {
            json_decref(all);
            return report_json(NULL);
        }
    }

    return report_json(all);
}

int model_list_print_text(const struct model_list *l)
{
    _cleanup_(report_freep) struct report *r = report_new("<digest\t>tables\t<active table\t>pages\t<name");

    if (l->n_rows == 0) {
        puts("the daemon has no tables and no aliases");
        return COMMAND_OK;
    }

    for (size_t i = 0; i < l->n_rows; i++) {
        const struct model_list_row *row = &l->rows[i];
        char digest[DIGEST_HEX_BYTES], other[DIGEST_HEX_BYTES];

        report_row(r, "%s\t%zu\t%s\t%ju\t%s", digest_hex(row->digest, digest), row->n_tables,
                   row->active ? digest_short(row->active->digest.data, other) : "none",
                   (uintmax_t) row->pages, row->name ? row->name : "");
        for (size_t j = 0; j < l->aliases->n_aliases; j++)
            if (memcmp(l->aliases->aliases[j]->model.data, row->digest, KVC_DIGEST_BYTES) == 0)
                report_row(r, "%s\t\t\t\talias of %s", digest_hex(l->aliases->aliases[j]->alias.data, digest),
                           digest_short(row->digest, other));
    }

    report_print(r, stdout);
    return COMMAND_OK;
}
