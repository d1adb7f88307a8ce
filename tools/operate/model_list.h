/* The output of `kvcobra model list`: the models of a daemon, from its tables and its aliases. */
#pragma once

#include <stddef.h>

#include "client/kvcobra-operator.h"

/* A model that has tables, or of which another digest is an alias. */
struct model_list_row {
    uint8_t digest[KVC_DIGEST_BYTES];
    const kvc_table_info *active; /* borrowed; NULL: no table is active */
    size_t n_tables;              /* retired and rejected ones are not counted */
    uint64_t pages;
    char *name; /* as the provenance of a table has it; NULL: unknown */
};

struct model_list {
    struct model_list_row *rows;
    size_t n_rows;
    kvc_table_info *tables;
    kvc_model_alias_info *aliases;
    size_t n_tables, n_aliases;
};

/* @l: all zeros. Return: an exit code; if it is not COMMAND_OK, a sentence was printed. */
int model_list_get(kvc_client *c, struct model_list *l);
void model_list_deinit(struct model_list *l);

/* Finds the names, for which a table of each model is fetched: a model without a readable table has none. */
void model_list_find_names(kvc_client *c, struct model_list *l);

/* Return: an exit code. */
int model_list_print_json(const struct model_list *l);
int model_list_print_text(const struct model_list *l);
