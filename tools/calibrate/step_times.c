/* See step_times.h. */
#include "tools/calibrate/step_times.h"

#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "tools/command/clock.h"
#include "tools/command/report.h"
#include "tools/command/usage.h"

void step_times_start(struct step_times *t, const char *what, struct progress *p)
{
    *t = (struct step_times){
        .progress = p, .now = what, .begun = clock_seconds(), .cpu_begun = usage_cpu_seconds()};
}

void step_times_end(struct step_times *t)
{
    double now = clock_seconds(), cpu = usage_cpu_seconds();
    unsigned i = 0;

    while (i < t->n && strcmp(t->steps[i].what, t->now) != 0)
        i++;
    if (i < STEP_TIMES_MAX) {
        if (i == t->n) {
            t->steps[i].what = t->now;
            t->n++;
        }
        t->steps[i].seconds += now - t->begun;
        t->steps[i].cpu_seconds += cpu - t->cpu_begun;
    }

    t->begun = now;
    t->cpu_begun = cpu;
}

void step_times_callback(void *ctx, const char *what, double fraction)
{
    struct step_times *t = ctx;

    if (strcmp(what, t->now) != 0) {
        step_times_end(t);
        t->now = what;
    }
    progress_callback(t->progress, what, fraction);
}

void step_times_print(const struct step_times *t)
{
    _cleanup_(report_freep) struct report *r = report_new("<step\t>seconds\t>processor seconds");

    for (unsigned i = 0; i < t->n; i++)
        report_row(r, "%s\t%.3f\t%.3f", t->steps[i].what, t->steps[i].seconds, t->steps[i].cpu_seconds);
    report_print(r, stdout);
}

json_t *step_times_json(const struct step_times *t)
{
    json_t *all = json_array();

    for (unsigned i = 0; i < t->n; i++)
        if (json_array_append_new(all, json_pack("{s:s, s:f, s:f}", "step", t->steps[i].what, "seconds",
                                                 t->steps[i].seconds, "cpu_seconds",
                                                 t->steps[i].cpu_seconds)) < 0) {
            json_decref(all);
            return NULL;
        }
    return all;
}
