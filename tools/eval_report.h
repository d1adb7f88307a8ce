/* The options and results of `kvcobra eval`, and how results are printed. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "alloc/table_account.h"
#include "client/kvcobra.h"
#include "tools/command.h"
#include "tools/evaluation.h"

#define EVAL_PARTS 4 /* quartiles of the layers */

struct eval_options {
    struct common_options common;
    const char *model, *table, *text, *post_rope;
    size_t n_tokens, window;
    int32_t n_recent, n_sink;
    uint32_t sides, first_layer, n_layers; /* as in kvc_eval_options */
    bool quartiles;
    const char *quartile_statistics; /* what the table was made of, to count its harm by; or NULL */
};

/* What is known at the end and printed. */
struct eval_result {
    struct evaluation sum;
    kvc_model_info table;
    struct table_account account;
    char model_name[128];
    uint32_t n_sink;
    struct evaluation parts[EVAL_PARTS]; /* with these layers coded alone; with @quartiles */
    uint32_t part_layers[EVAL_PARTS];
    double part_harm[EVAL_PARTS];        /* with @quartile_statistics: of the sides that are coded */
    struct evaluation post_rope;         /* the same solve on rotated keys; with @post_rope */
};

/* "k", "v" or "kv" of the bits in kvc_eval_options; 0 is both. */
const char *eval_side_name(uint32_t sides);

/* Return: an exit code of command.h. */
int eval_print(const struct eval_options *o, const struct eval_result *res);
