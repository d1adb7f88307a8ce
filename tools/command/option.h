/*
 * Values of command-line options: numbers within a range. A value that is malformed or out of range is a
 * usage error: argp prints the sentence, which names the option, and ends the process.
 */
#pragma once

#include <argp.h>
#include <stdint.h>

/* A whole number within [min, max]. @option: "--tokens", for the sentence. */
uint64_t option_uint(const struct argp_state *state, const char *option, const char *arg, uint64_t min,
                     uint64_t max);

/* A finite number within [min, max]. */
double option_double(const struct argp_state *state, const char *option, const char *arg, double min,
                     double max);
