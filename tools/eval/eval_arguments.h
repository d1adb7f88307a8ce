/* The command line of `kvcobra eval`: help text, options, and which of them exclude each other. */
#pragma once

#include <stdbool.h>

struct eval_options;

/* As command_parse(). @o: with its extension, n_recent = -1 and n_sink = EVAL_SINKS_OF_TABLE. */
void eval_arguments_read(int argc, char **argv, struct eval_options *o);

/* Whether the measurement of several texts or recent windows was asked for. */
bool eval_has_texts(const struct eval_options *o);
