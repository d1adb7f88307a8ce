/* The command line of `kvcobra eval`: help text, options, and which of them exclude each other. */
#pragma once

#include <argp.h>
#include <stdbool.h>

struct eval_options;

/* For command_parse(); its input is a struct eval_options with n_recent = -1 and n_sink =
 * EVAL_SINKS_OF_TABLE. */
extern const struct argp eval_argp;

/* Whether the measurement of several texts or recent windows was asked for. */
bool eval_has_texts(const struct eval_options *o);
