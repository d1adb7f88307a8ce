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

/* --timeout of commands that talk to a daemon, a row of struct argp_option. */
#define OPTION_TIMEOUT(key, group)                                                                           \
    {                                                                                                        \
        "timeout", key, "SECONDS", 0,                                                                        \
            "Fail if the daemon does not accept the connection or answer a request within this time, 0.1 "   \
            "to 3600 (default 12)",                                                                          \
            group                                                                                            \
    }

/* Its value in milliseconds, for kvc_connect_options. */
uint32_t option_timeout_ms(const struct argp_state *state, const char *arg);

/* A usage error: @arg is none of @names, a list such as "list, stage". The nearest one is suggested. */
void option_unknown(const struct argp_state *state, const char *arg, const char *names);

/* A size: a whole number of bytes, or of KiB to TiB with K, M, G or T behind it. */
uint64_t option_bytes(const struct argp_state *state, const char *arg);
