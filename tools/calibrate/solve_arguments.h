/*
 * The command line of `kvcobra solve`, and its translation to the options of kvc_solve(). cmd_solve.c and
 * solve_sweep.c use it.
 */
#pragma once

#include <argp.h>
#include <stdbool.h>
#include <stdint.h>

#include "alloc/kvcobra-alloc.h"
#include "tools/command/command.h"

struct solve_input;

enum { SOLVE_GROUPS_MAX = 64 }; /* of layers of a model: as many as an account may have models of */

/* Values as typed. Enumerators are those of kvcobra-alloc.h, 0 for the default. */
struct solve_arguments {
    struct common_options common;
    const char *statistics, *output; /* of several: the first, and a folder */
    const char *groups[SOLVE_GROUPS_MAX];
    size_t n_groups;                       /* all that were typed */
    const char *metric_from, *levels_from; /* or NULL */
    const char *swap_report;               /* statistics of another source, or NULL */
    const char *windows;                   /* of the groups, as typed, or NULL */
    double bpd, k_bpd, v_bpd;              /* after parsing: as in kvc_solve_options */
    double total_bpd, step;                /* of a sweep: K and V together; increment of K */
    bool sweep, k_only;
    uint32_t method, metric, curve, quantiser, predict, decoder;
    kvc_paper_options paper;
    double floor_bpd, ceil_bpd, temper;
    double loading[2], contrast[2]; /* of keys and values, as in kvc_solve_options */
    uint32_t trellis_states;        /* as there */
    bool no_levels, no_depth, own_sources, timing;
    bool single; /* --matrices binary32 */
    bool blocks; /* --frame block */
    bool equal;  /* compare with equal budgets */
    uint32_t without;
    const char *paper_option, *c2_option; /* the last typed option of these methods, for error sentences */
    uint64_t seed;
    uint32_t threads; /* 0: all */
};
void solve_arguments_default(struct solve_arguments *a);

extern const struct argp solve_argp; /* its input is a struct solve_arguments */

/* @ret points into @a and @in. */
void solve_arguments_apply(const struct solve_arguments *a, const struct solve_input *in,
                           kvc_solve_options *ret);
