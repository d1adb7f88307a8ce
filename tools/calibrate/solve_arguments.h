/*
 * The command line of `kvcobra solve`, and its translation to the options of the solver. cmd_solve.c and
 * solve_sweep.c use it.
 */
#pragma once

#include <argp.h>
#include <stdbool.h>
#include <stdint.h>

#include "alloc/solve.h"
#include "tools/command/command.h"

struct stats;

/* Values as typed; solve_arguments_apply() adds the defaults of the method. */
struct solve_arguments {
    struct common_options common;
    const char *statistics, *output;
    const char *metric_from, *levels_from; /* or NULL */
    double bpd, k_bpd, v_bpd;              /* after parsing: as in struct solve_options */
    double total_bpd, step;                /* of a sweep: K and V together; increment of K */
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
    const char *paper_option, *c2_option; /* the last typed option of these methods, for error sentences */
    uint64_t seed;
};
void solve_arguments_default(struct solve_arguments *a);

extern const struct argp solve_argp; /* its input is a struct solve_arguments */

/* The solver's options. The default metric is the first that the statistics have of fisher, output,
 * attention, mse. Moments allow no measured curves and no fitted levels. */
void solve_arguments_apply(const struct solve_arguments *a, const struct stats *s, struct solve_options *ret);
