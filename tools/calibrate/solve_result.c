/* What `kvcobra solve` makes and says of it; see solve_result.h. */
#include "tools/calibrate/solve_result.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/solve/solve_names.h"
#include "alloc/stats/stats.h"
#include "base/cleanup.h"
#include "base/digest.h"
#include "base/errmsg.h"
#include "tools/calibrate/solve_input.h"
#include "tools/command/clock.h"
#include "tools/command/command.h"
#include "tools/command/human.h"
#include "tools/command/progress.h"
#include "tools/command/report.h"
#include "tools/command/terminal.h"
#include "tools/command/usage.h"

/* ---- --timing: the time of each step, by the names that a solve reports as progress ---- */

void solve_result_times_start(struct solve_result_times *t, const char *what, struct progress *p)
{
    *t = (struct solve_result_times){
        .progress = p, .now = what, .begun = clock_seconds(), .cpu_begun = usage_cpu_seconds()};
}

void solve_result_times_end(struct solve_result_times *t)
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

void solve_result_times_callback(void *ctx, const char *what, double fraction)
{
    struct solve_result_times *t = ctx;

    if (strcmp(what, t->now) != 0) {
        solve_result_times_end(t);
        t->now = what;
    }
    progress_callback(t->progress, what, fraction);
}

void solve_result_times_print(const struct solve_result_times *t)
{
    _cleanup_(report_freep) struct report *r = report_new("<step\t>seconds\t>processor seconds");

    for (unsigned i = 0; i < t->n; i++)
        report_row(r, "%s\t%.3f\t%.3f", t->steps[i].what, t->steps[i].seconds, t->steps[i].cpu_seconds);
    report_print(r, stdout);
}

/* [{"step", "seconds", "cpu_seconds"}]; NULL: out of memory. */
static json_t *solve_result_times_json(const struct solve_result_times *t)
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

/* ---- a table ---- */

const char *solve_result_metric_name(uint32_t metric)
{
    return solve_metric_name((enum metric)(metric - 1));
}

/* The distortion when every head and side has the same budget, all else as in @o. Return: 0; errno. */
static int solve_result_measure_equal(const struct solve_input *in, const kvc_solve_options *o, double *ret)
{
    _cleanup_(freep) void *bytes = NULL;
    kvc_solve_report report = {.struct_bytes = sizeof(report)};
    kvc_solve_options equal = *o;
    size_t n_bytes;
    int r;

    if (equal.k_bpd > 0)
        equal.bpd = (equal.k_bpd + equal.v_bpd) / 2;
    equal.k_bpd = equal.v_bpd = 0;
    equal.floor_bpd = 0;
    equal.ceil_bpd = equal.bpd; /* the mean as a maximum */
    r = kvc_solve(in->stats, &equal, &bytes, &n_bytes, &report);
    if (r == 0)
        *ret = report.measured ? report.distortion : 0;
    return r;
}

int solve_result_make(const struct solve_arguments *a, const struct solve_input *in,
                      const kvc_solve_options *o, struct solve_result *ret, struct errmsg *e)
{
    double begun = clock_seconds();
    int r;

    *ret = (struct solve_result){.report = {.struct_bytes = sizeof(ret->report)}};
    r = kvc_solve(in->stats, o, &ret->bytes, &ret->n_bytes, &ret->report);
    if (r == 0 && a->equal)
        r = solve_result_measure_equal(in, o, &ret->equal);
    ret->seconds = clock_seconds() - begun;
    return r < 0 ? fail(e, r, "%s", kvc_alloc_error(in->alloc)) : 0;
}

/* Distortion of the finished table; null for moments, which have no vectors to measure it on. */
static json_t *solve_result_distortion_json(const kvc_solve_report *r, double distortion)
{
    return r->measured ? json_real(distortion) : json_null();
}

/* Distortion of other texts; null if it is not known. */
static json_t *solve_result_other_json(double distortion)
{
    return distortion > 0 ? json_real(distortion) : json_null();
}

/* [2, 3]: numbers of the sources, from 1. */
static json_t *solve_result_sources_json(uint64_t sources)
{
    json_t *all = json_array();

    for (unsigned i = 0; i < STATS_DOMAINS_MAX; i++)
        if (sources >> i & 1 && json_array_append_new(all, json_integer(i + 1)) < 0) {
            json_decref(all);
            return NULL;
        }
    return all;
}

void solve_result_deinit(struct solve_result *x)
{
    free(x->bytes);
    x->bytes = NULL;
}

json_t *solve_result_json(const struct solve_arguments *a, const struct solve_result *x,
                          const struct solve_result_times *times)
{
    const kvc_solve_report *r = &x->report;
    char hex[DIGEST_HEX_BYTES];

    return json_pack(
        "{s:s, s:s, s:I, s:s, s:s, s:f, s:f, s:f, s:f, s:o, s:o, s:o, s:f, s:o, s:o, "
        "s:o, s:o, s:o, s:f, s:f, s:I, s:o*}",
        "table", a->output, "digest", digest_hex(r->table_digest, hex), "bytes", (json_int_t) x->n_bytes,
        "method", solve_method_name((enum method) a->method), "metric", solve_result_metric_name(r->metric),
        "bpd_code", r->bpd_code, "bpd_nominal", r->bpd_nominal, "k_bpd", r->k_bpd, "v_bpd", r->v_bpd,
        "distortion", solve_result_distortion_json(r, r->distortion), "distortion_k",
        solve_result_distortion_json(r, r->distortion_k), "distortion_v",
        solve_result_distortion_json(r, r->distortion_v), "distortion_estimated", r->distortion_estimated,
        "unseen_distortion", solve_result_other_json(r->unseen_distortion), "expected_kl",
        solve_result_other_json(r->expected_kl), "without_distortion",
        solve_result_other_json(r->without_distortion), "equal_distortion", solve_result_other_json(x->equal),
        "reduced_sources", solve_result_sources_json(r->reduced_sources), "seconds", x->seconds,
        "cpu_seconds", usage_cpu_seconds(), "peak_bytes", (json_int_t) usage_peak_bytes(), "steps",
        a->timing ? solve_result_times_json(times) : NULL);
}

int solve_result_print(const struct solve_arguments *a, const struct solve_result *x)
{
    const kvc_solve_report *r = &x->report;
    const char *metric = solve_result_metric_name(r->metric);
    char hex[DIGEST_HEX_BYTES], took[HUMAN_BYTES], size[HUMAN_BYTES], peak[HUMAN_BYTES];

    terminal_print(stdout, 2, "%s: table %s, %s, in %s, peak memory %s\n", a->output,
                   digest_short(r->table_digest, hex), human_bytes(x->n_bytes, size),
                   human_seconds(x->seconds, took), human_bytes(usage_peak_bytes(), peak));
    printf("bits per number  %.4f stored: keys %.4f, values %.4f", r->bpd_code, r->k_bpd, r->v_bpd);
    if (r->bpd_nominal < r->bpd_code - 1e-9)
        printf("; %.4f without padding", r->bpd_nominal);
    if (!r->measured) {
        terminal_print(stdout, 2,
                       "\ndistortion e'Me  %.6g (%s) estimated; moments hold no vectors to measure it on\n",
                       r->distortion_estimated, metric);
        return COMMAND_OK;
    }

    terminal_print(stdout, 2, "\ndistortion e'Me  %.6g (%s): keys %.6g, values %.6g; estimated %.6g\n",
                   r->distortion, metric, r->distortion_k, r->distortion_v, r->distortion_estimated);
    if (x->equal > 0)
        terminal_print(stdout, 2, "equal budgets    %.6g: this table has %.0f %% of that\n", x->equal,
                       100 * r->distortion / x->equal);
    if (r->unseen_distortion > 0)
        terminal_print(stdout, 2, "on other texts   %.6g expected, by leaving each source out once\n",
                       r->unseen_distortion);
    if (r->expected_kl > 0)
        terminal_print(
            stdout, 2,
            "KL               about %.2g nats per token on texts like the sources: an estimate; kvcobra eval "
            "measures it\n",
            r->expected_kl);
    if (a->without > 0)
        terminal_print(stdout, 2, "on source %u      %.6g, which the table was not fitted to\n", a->without,
                       r->without_distortion);
    return COMMAND_OK;
}

void solve_result_print_warnings(const struct solve_arguments *a, const kvc_solve_report *report)
{
    for (unsigned i = 0; i < STATS_DOMAINS_MAX; i++)
        if (report->reduced_sources >> i & 1)
            command_note(
                &a->common,
                "%s: source %u varies ten times less or more than most of the text, as one token that "
                "repeats does: it counts as at most 1 %% of the tokens, since more would make the "
                "table worse for all other text",
                a->statistics, i + 1);
    if (report->bpd_code < 1)
        command_note(&a->common,
                     "%s: with %.3f bits per number most of the keys and values are not stored at all: "
                     "'kvcobra eval' measures what the model loses",
                     a->output, report->bpd_code);
    if (report->largest_share > 0)
        command_note(
            &a->common,
            "%s: one source has %.0f %% of the tokens, so the others cannot show what it costs to read "
            "texts that the table was not fitted to: the table is fitted to its own texts",
            a->statistics, 100 * report->largest_share);
}
