/* The output of `kvcobra model list`: the models of a daemon, from its tables and its aliases. */
#pragma once

#include <stddef.h>

#include "tools/command/operator_tables.h"

/* A model that has tables, or of which another digest is an alias. */
struct model_list_row {
    uint8_t digest[KVC_DIGEST_BYTES];
    const Kvcobra__TableInfo *active; /* borrowed; NULL: no table is active */
    size_t n_tables;                  /* retired and rejected ones are not counted */
    uint64_t pages;
    char *name; /* as the provenance of a table has it; NULL: unknown */
};

struct model_list {
    struct model_list_row *rows;
    size_t n_rows;
    Kvcobra__ListTablesReply *tables;
    Kvcobra__ListAliasesReply *aliases;
};

/* The aliases of a daemon, with their digests. Free as operator_message_freep(). Return: an exit code. */
int model_list_get_aliases(kvc_client *c, Kvcobra__ListAliasesReply **ret);

/* @l: all zeros. Return: an exit code; if it is not COMMAND_OK, a sentence was printed. */
int model_list_get(kvc_client *c, struct model_list *l);
void model_list_deinit(struct model_list *l);

/* Finds the names, for which a table of each model is fetched: a model without a readable table has none. */
void model_list_find_names(kvc_client *c, struct model_list *l);

/* Return: an exit code. */
int model_list_print_json(const struct model_list *l);
int model_list_print_text(const struct model_list *l);
