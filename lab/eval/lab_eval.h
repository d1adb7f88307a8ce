/* What the laboratory adds to `eval`: its options, which lab_eval.c fills, and its measurements. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tools/eval/eval_options.h"

struct comparator;
struct document;
struct engine;
struct eval_options;

enum { LAB_EVAL_LENGTHS_MAX = 8 };

struct lab_eval {
    const struct comparator *comparators[EVAL_ADDED_MAX];
    size_t n_comparators;
    const char *post_rope, *stats;
    size_t n_keys;                        /* of --retrieval; 0: not given */
    size_t n_together;                    /* of --together; 0: not given */
    size_t lengths[LAB_EVAL_LENGTHS_MAX]; /* of the texts of --retrieval and --ruler */
    size_t n_lengths;
    size_t n_ruler; /* prompts of --ruler; 0: not given */
    uint32_t tasks; /* bits of enum ruler_task; 0: all */
    uint64_t seed;
    bool seed_given;
};

static inline struct lab_eval *lab_eval_of(const struct eval_options *o)
{
    return o->extra;
}

/* ---- measurements, each in the file of its name: they print, and return an exit code of command.h ---- */

/*
 * --post-rope: a table beside one solved in the same way from keys after RoPE. The second one is never
 * written to a file, since only the cache of an evaluation reads it correctly.
 */
int eval_post_rope(struct engine *en, const struct eval_options *o, const struct document *text);

/* --retrieval: keys in long text that the exact model, tables and formats find. */
int eval_retrieval(struct engine *en, const struct eval_options *o, const struct document *text);

/* --ruler: synthetic long-context tasks, paired with the exact model. */
int eval_ruler(struct engine *en, const struct eval_options *o);
