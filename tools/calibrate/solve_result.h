/*
 * What `kvcobra solve` makes and says of it: a table with its report, and the time of each step. cmd_solve.c
 * and solve_together.c use it.
 */
#pragma once

#include <jansson.h>
#include <stddef.h>

#include "alloc/kvcobra-alloc.h"
#include "tools/calibrate/solve_arguments.h"

struct errmsg;
struct progress;
struct solve_input;

/* ---- --timing: the time of each step, by the names that a solve reports as progress ---- */

/* A step that is repeated is one row. */
enum { STEP_TIMES_MAX = 24 };

struct solve_result_times {
    struct progress *progress; /* gets every call too */
    const char *now;           /* the step that runs; strings of progress calls are literals */
    double begun, cpu_begun;
    unsigned n;
    struct {
        const char *what;
        double seconds, cpu_seconds; /* of the clock; of all threads */
    } steps[STEP_TIMES_MAX];
};

/* Begins with the step @what, such as reading. */
void solve_result_times_start(struct solve_result_times *t, const char *what, struct progress *p);

/* Ends the last step. */
void solve_result_times_end(struct solve_result_times *t);

/* A callback for progress; @ctx: a struct solve_result_times. */
void solve_result_times_callback(void *ctx, const char *what, double fraction);

void solve_result_times_print(const struct solve_result_times *t);

/* ---- a table ---- */

/* A finished table. equal: distortion with equal budgets; 0: not asked for, or not measured. */
struct solve_result {
    void *bytes;
    size_t n_bytes;
    kvc_solve_report report;
    double equal, seconds;
};

void solve_result_deinit(struct solve_result *x);

/* Solves; with --equal also for equal budgets. Return: 0; errno with a sentence. */
int solve_result_make(const struct solve_arguments *a, const struct solve_input *in,
                      const kvc_solve_options *o, struct solve_result *ret, struct errmsg *e);

/* The metric that was used, in words of the command. */
const char *solve_result_metric_name(uint32_t metric);

/* Notes about what a user may not expect. */
void solve_result_print_warnings(const struct solve_arguments *a, const kvc_solve_report *report);
int solve_result_print(const struct solve_arguments *a, const struct solve_result *x);

/* NULL: out of memory. */
json_t *solve_result_json(const struct solve_arguments *a, const struct solve_result *x,
                          const struct solve_result_times *times);

/* ---- several statistics: the groups of layers of a model, with one budget (solve_together.c) ---- */

/* Writes a table for each, all or none, and prints them. Return: COMMAND_*. */
int solve_together(const struct solve_arguments *a, struct solve_result_times *times);
