/* The command line of `kvcobra solve`: what was typed, and the solver's options that it means. */
#pragma once

#include <argp.h>
#include <stdbool.h>
#include <stdint.h>

#include "alloc/solve.h"
#include "tools/command/command.h"

struct stats;

/* What was typed; the method's own defaults fill the rest once it is known. */
struct solve_arguments {
    struct common_options common;
    const char *statistics, *output;
    const char *metric_from, *levels_from; /* or NULL */
    double bpd, k_bpd, v_bpd;              /* after parsing: as struct solve_options wants them */
    double total_bpd, step;                /* of a sweep: K and V together, and what K goes up by */
    bool sweep, k_only;
    enum method method;
    enum metric metric;
    enum curve curve;
    enum quantiser quantiser;
    enum prediction predict;
    enum decoder decoder;
    struct paper_options paper;
    double floor_bpd, ceil_bpd, temper;
    bool has_metric, has_curve, has_quantiser, has_predict, has_decoder, no_levels, no_depth;
    const char *paper_option, *c2_option; /* the last one typed that only these have */
    uint64_t seed;
};
void solve_arguments_default(struct solve_arguments *a);

extern const struct argp solve_argp; /* its input is a struct solve_arguments */

/* The solver's options; budgets as typed. The metric is by default the
 * best that the statistics have: fisher, output, attention, mse. Moments allow no measured curves and no
 * fitted levels. */
void solve_arguments_apply(const struct solve_arguments *a, const struct stats *s, struct solve_options *ret);
