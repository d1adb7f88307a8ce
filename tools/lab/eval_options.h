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
};

struct eval_options {
    struct common_options common;
    const char *model, *text, *post_rope, *stats;
    const char *tables[EVAL_TABLES_MAX];
    size_t n_tables;
    const struct comparator *comparators[EVAL_COMPARATORS_MAX];
    size_t n_comparators;
    size_t n_tokens, window; /* 0: the measurement's own default */
    int32_t n_recent, n_sink;
    uint32_t sides, first_layer, n_layers; /* as in kvc_eval_options */
    bool quartiles;
    const char *quartile_statistics; /* of the solve of the table, for its distortion; or NULL */
    size_t n_keys;                   /* of --retrieval; 0: not given */
    bool hits;
    size_t n_generated; /* tokens of --generate; 0: not given */
    uint64_t seed;
    bool seed_given;
};
