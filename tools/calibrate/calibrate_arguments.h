/* The command line of `kvcobra calibrate`. */
#pragma once

#include <argp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tools/command/command.h"

struct calibrate_arguments {
    struct common_options common;
    const char *model, *output;
    const char **texts; /* into argv; n_texts of them */
    size_t n_texts;
    bool lines; /* a document per line */
    size_t n_tokens, window;
    size_t n_generate; /* tokens that the model writes; 0: none */
    bool attention, output_metric, fisher;
    bool moments_only, resume;
    bool has_metric;
    uint32_t n_samples; /* 0: stats_samples_default() */
    uint32_t n_sink;
    uint64_t seed;
    bool no_depth;
};

void calibrate_arguments_default(struct calibrate_arguments *a);
void calibrate_arguments_deinit(struct calibrate_arguments *a);

extern const struct argp calibrate_argp; /* its input is a struct calibrate_arguments */

/* Whether depth weights are measured: they are of the attention metric. */
bool calibrate_wants_depth(const struct calibrate_arguments *a);
