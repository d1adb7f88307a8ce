/* The parsed command line of `kvcobra eval`, for all eval_*.c. cmd_eval.c fills it. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tools/command/command.h"

struct comparator;

enum {
    EVAL_TABLES_MAX = 32,
    EVAL_COMPARATORS_MAX = 64,
    EVAL_SUBJECTS_MAX = EVAL_TABLES_MAX + EVAL_COMPARATORS_MAX,
    EVAL_SINKS_OF_TABLE = -1,
    EVAL_TEXTS_MAX = 64,
    EVAL_RECENTS_MAX = 4,
    EVAL_LENGTHS_MAX = 8,
};

struct eval_options {
    struct common_options common;
    const char *model, *post_rope, *stats;
    const char *text; /* the first of @texts */
    const char *texts[EVAL_TEXTS_MAX];
    size_t n_texts;
    const char *tables[EVAL_TABLES_MAX];
    size_t n_tables;
    const struct comparator *comparators[EVAL_COMPARATORS_MAX];
    size_t n_comparators;
    size_t n_tokens, window; /* 0: the measurement's own default */
    int32_t n_recent;        /* the first of @recents */
    int32_t recents[EVAL_RECENTS_MAX];
    size_t n_recents;
    int32_t n_sink;
    bool budgets;                          /* compare the tables' budgets with the first table's */
    uint32_t sides, first_layer, n_layers; /* as in kvc_eval_options */
    bool quartiles;
    const char *quartile_statistics;  /* of the solve of the table, for its distortion; or NULL */
    size_t n_keys;                    /* of --retrieval; 0: not given */
    size_t lengths[EVAL_LENGTHS_MAX]; /* of the texts of --retrieval and --ruler */
    size_t n_lengths;
    size_t n_ruler; /* prompts of --ruler; 0: not given */
    uint32_t tasks; /* bits of enum ruler_task; 0: all */
    bool hits;
    size_t n_generated; /* tokens of --generate; 0: not given */
    uint64_t seed;
    bool seed_given;
};
