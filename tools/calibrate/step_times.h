/*
 * The time that each step of a solve takes, by the names that it reports as progress: `kvcobra solve
 * --timing`. A step that is repeated is one row.
 */
#pragma once

#include <jansson.h>

#include "tools/command/progress.h"

enum { STEP_TIMES_MAX = 24 };

struct step_times {
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
void step_times_start(struct step_times *t, const char *what, struct progress *p);

/* A callback for progress; @ctx: a struct step_times. */
void step_times_callback(void *ctx, const char *what, double fraction);

/* Ends the last step. */
void step_times_end(struct step_times *t);

void step_times_print(const struct step_times *t);

/* [{"step", "seconds", "cpu_seconds"}]; NULL: out of memory. */
json_t *step_times_json(const struct step_times *t);
