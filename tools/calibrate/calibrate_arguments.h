/*
 * The command line of `kvcobra calibrate`: options with their defaults and checks. cmd_calibrate.c parses
 * with calibrate_argp and reads the struct.
 */
#pragma once

#include <argp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tools/command/command.h"

#define CALIBRATE_WINDOW_MIN 64

struct calibrate_arguments {
    struct common_options common;
    const char *model, *output;
    const char **texts; /* [n_texts] into argv */
    size_t n_texts;
    bool lines; /* each line is a document */
    size_t n_tokens, window;
    size_t n_generate;  /* tokens that the model generates; 0 with texts: own_share decides */
    unsigned own_share; /* with texts: percent of all tokens that the model writes */
    bool has_tokens, has_window, has_share, has_bpd; /* the options were given */
    bool quick;                                      /* also make a table, of @bpd */
    double bpd;
    char *quick_output; /* output, if it was not given; owned */
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

/* Whether depth weights are measured: the attention metric needs them. */
bool calibrate_arguments_want_depth(const struct calibrate_arguments *a);
