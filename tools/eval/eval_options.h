/* The parsed command line of `kvcobra eval`, for all eval_*.c. eval_arguments.c has its options. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tools/command/command.h"

struct eval_extension;

enum {
    EVAL_TABLES_MAX = 32,
    EVAL_ADDED_MAX = 64,
    EVAL_SUBJECTS_MAX = EVAL_TABLES_MAX + EVAL_ADDED_MAX,
    EVAL_SINKS_OF_TABLE = -1,
    EVAL_TEXTS_MAX = 64,
    EVAL_RECENTS_MAX = 4,
};

struct eval_options {
    struct common_options common;
    const struct eval_extension *extension; /* NULL: none */
    void *extra;                            /* the extension's own options */
    size_t n_added;                         /* rows that it adds beside those of tables */
    bool is_other;                          /* it measures in place of `eval` */
    bool without_text;                      /* that needs no text */
    const char *model;
    const char *text; /* the first of @texts */
    const char *texts[EVAL_TEXTS_MAX];
    size_t n_texts;
    const char *tables[EVAL_TABLES_MAX];
    size_t n_tables;
    size_t n_tokens, window; /* 0: the measurement's own default */
    int32_t n_recent;        /* the first of @recents */
    int32_t recents[EVAL_RECENTS_MAX];
    size_t n_recents;
    int32_t n_sink;
    bool budgets;                          /* compare the tables' budgets with the first table's */
    uint32_t sides, first_layer, n_layers; /* as in kvc_eval_options */
    bool quartiles;
    const char *quartile_statistics; /* of the solve of the table, for its distortion; or NULL */
    bool hits;
    size_t n_generated; /* tokens of --generate; 0: not given */
};

/*
 * Help text, options, and which of them exclude each other. As command_parse(). @o: with its extension,
 * n_recent = -1 and n_sink = EVAL_SINKS_OF_TABLE.
 */
void eval_arguments_read(int argc, char **argv, struct eval_options *o);

/* Whether the measurement of several texts or recent windows was asked for. */
bool eval_has_texts(const struct eval_options *o);
