/* What `kvcobra eval` says of one table, and how it is printed. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "alloc/table_account.h"
#include "client/kvcobra.h"
#include "tools/lab/eval_options.h"
#include "tools/lab/evaluation.h"

#define EVAL_PARTS 4 /* quartiles of the layers */

/* What is known at the end and printed. */
struct eval_result {
    struct evaluation sum;
    kvc_usage usage; /* sums over windows; whole cache */
    kvc_model_info table;
    struct table_account account;
    char model_name[128];
    uint32_t n_sink;
    struct evaluation parts[EVAL_PARTS]; /* with these layers coded alone; with @quartiles */
    uint32_t part_layers[EVAL_PARTS];
    double part_distortion[EVAL_PARTS]; /* with @quartile_statistics: of the sides that are coded */
    struct evaluation post_rope;        /* the same solve on rotated keys; with @post_rope */
};

/* "k", "v" or "kv" of the bits in kvc_eval_options; 0 is both. */
const char *eval_side_name(uint32_t sides);

/* Return: an exit code of command.h. */
int eval_print(const struct eval_options *o, const struct eval_result *res);
