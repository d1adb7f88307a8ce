/* What the laboratory adds to `eval`: its options, for the files of this folder. lab_eval.c fills them. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tools/eval/eval_options.h"

struct comparator;

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
