/* First tokens of a real model from each tier, for `kvcobra bench tier --model`: by `kvcobra generate`. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct errmsg;
struct tier_results;

struct tier_model_options {
    const char *daemon, *folder; /* path of kvcobrad; folder on the disk */
    bool has_cluster;
    uint32_t depth;
    const char *model, *table, *prompt_file;
};

/* Fills the model's part of *x. Return: 0; errno with a sentence. */
int tier_model_measure(const struct tier_model_options *o, struct tier_results *x, struct errmsg *e);
