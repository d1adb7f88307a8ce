/* See model_list.h. */
#include "tools/operate/model_list.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/table.h"
#include "base/cleanup.h"
#include "base/digest.h"
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

static bool model_list_is_usable(const kvc_table_info *t)
{
    return t->state != KVC_TABLE_RETIRED && t->state != KVC_TABLE_REJECTED;
}

int model_list_get(kvc_client *c, struct model_list *l)
{
    if (kvc_table_list(c, sizeof(*l->tables), &l->tables, &l->n_tables) < 0 ||
        kvc_model_alias_list(c, sizeof(*l->aliases), &l->aliases, &l->n_aliases) < 0)
        return operator_fail(c);

    l->rows = calloc(l->n_tables + l->n_aliases + 1, sizeof(*l->rows));
    if (!l->rows)
        return command_fail("out of memory");

    for (size_t i = 0; i < l->n_tables; i++) {
        const kvc_table_info *t = &l->tables[i];
        struct model_list_row *row;

        if (!model_list_is_usable(t))
            continue;

        row = model_list_row_of(l, t->model_digest);
        row->n_tables++;
        row->pages += t->pages;
        if (t->state == KVC_TABLE_ACTIVE)
            row->active = t;
    }

    for (size_t i = 0; i < l->n_aliases; i++)
        (void) model_list_row_of(l, l->aliases[i].model);
    return COMMAND_OK;
}

void model_list_deinit(struct model_list *l)
{
    for (size_t i = 0; i < l->n_rows; i++)
        free(l->rows[i].name);
    free(l->rows);
    free(l->tables);
    free(l->aliases);
    *l = (struct model_list){.rows = NULL};
}

/* ---- names ---- */

/* NULL: the table has retired meanwhile, or its provenance names no model. */
static char *model_list_name_in(kvc_client *c, const kvc_table_info *info)
{
    _cleanup_(table_unrefp) struct table *t = NULL;
    _cleanup_(freep) void *bytes = NULL;
    const char *name;
    char *copy;
    json_t *json;
    size_t n;

    if (kvc_table_fetch(c, info->digest, &bytes, &n) < 0 || table_parse(bytes, n, &t, NULL) < 0)
        return NULL;

    json = json_loads(t->provenance, 0, NULL);
    name = json_string_value(json_object_get(json, "model"));
    copy = name ? strdup(name) : NULL;
    json_decref(json);
    return copy;
}

void model_list_find_names(kvc_client *c, struct model_list *l)
{
    for (size_t i = 0; i < l->n_tables; i++) {
        const kvc_table_info *t = &l->tables[i];
        struct model_list_row *row;

        if (!model_list_is_usable(t))
            continue;

        row = model_list_row_of(l, t->model_digest);
        if (!row->name)
            row->name = model_list_name_in(c, t);
    }
}

/* ---- output ---- */

static json_t *model_list_aliases_json(const struct model_list *l, const uint8_t *model)
{
    json_t *aliases = json_array();

    for (size_t i = 0; i < l->n_aliases; i++) {
        char hex[DIGEST_HEX_BYTES];

        if (memcmp(l->aliases[i].model, model, KVC_DIGEST_BYTES) == 0 &&
            json_array_append_new(aliases, json_string(digest_hex(l->aliases[i].alias, hex))) < 0) {
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
                                row->active ? digest_hex(row->active->digest, active) : NULL, "pages",
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
                   row->active ? digest_short(row->active->digest, other) : "none", (uintmax_t) row->pages,
                   row->name ? row->name : "");
        for (size_t j = 0; j < l->n_aliases; j++)
            if (memcmp(l->aliases[j].model, row->digest, KVC_DIGEST_BYTES) == 0)
                report_row(r, "%s\t\t\t\talias of %s", digest_hex(l->aliases[j].alias, digest),
                           digest_short(row->digest, other));
    }

    return report_print(r, stdout) < 0 ? command_fail("out of memory") : COMMAND_OK;
}
