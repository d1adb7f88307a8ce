/* The result of `kvcobra eval` for one table, and its printing as text or JSON. eval_table.c fills it. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "alloc/table/table_account.h"
#include "client/kvcobra.h"
#include "tools/eval/eval_options.h"
#include "tools/eval/evaluation.h"

#define EVAL_PARTS 4 /* quartiles of the layers */

/* All printed numbers. */
struct eval_result {
    struct evaluation sum;
    kvc_usage usage; /* sums over windows; whole cache */
    kvc_model_info table;
    struct table_account account;
    char model_name[128];
    uint32_t n_sink;
    struct evaluation parts[EVAL_PARTS]; /* with @quartiles: with these layers compressed alone */
    uint32_t part_layers[EVAL_PARTS];
    double part_distortion[EVAL_PARTS]; /* with @quartile_statistics: e'Me of the compressed sides */
};

/* "k", "v" or "kv" for the bits of kvc_eval_options; 0: both. */
const char *eval_side_name(uint32_t sides);

/* Return: an exit code of command.h. */
int eval_print(const struct eval_options *o, const struct eval_result *res);
