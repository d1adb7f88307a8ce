/* kvcobra solve: distributes a bit budget by the statistics of a calibration; writes an allocation table. */
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/api/handles.h"
#include "alloc/kvcobra-alloc.h"
#include "alloc/solve/solve.h"
#include "alloc/solve/solve_names.h"
#include "alloc/solve/solve_swap.h"
#include "alloc/stats/stats.h"
#include "alloc/table/table.h"
#include "base/atomic_file.h"
#include "base/cleanup.h"
#include "base/digest.h"
#include "base/errmsg.h"
#include "base/stream_file.h"
#include "tools/calibrate/solve_arguments.h"
#include "tools/calibrate/solve_input.h"
#include "tools/calibrate/solve_sweep.h"
#include "tools/command/clock.h"
#include "tools/command/command.h"
#include "tools/command/human.h"
#include "tools/command/output_path.h"
#include "tools/command/progress.h"
#include "tools/command/report.h"
#include "tools/command/terminal.h"
#include "tools/command/usage.h"

/* ---- --timing: the time of each step, by the names that a solve reports as progress ---- */

/* A step that is repeated is one row. */
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
static void cmd_solve_times_start(struct step_times *t, const char *what, struct progress *p)
{
    *t = (struct step_times){
        .progress = p, .now = what, .begun = clock_seconds(), .cpu_begun = usage_cpu_seconds()};
}

/* Ends the last step. */
static void cmd_solve_times_end(struct step_times *t)
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

/* A callback for progress; @ctx: a struct step_times. */
static void cmd_solve_times_callback(void *ctx, const char *what, double fraction)
{
    struct step_times *t = ctx;

    if (strcmp(what, t->now) != 0) {
        cmd_solve_times_end(t);
        t->now = what;
    }
    progress_callback(t->progress, what, fraction);
}

static void cmd_solve_times_print(const struct step_times *t)
{
    _cleanup_(report_freep) struct report *r = report_new("<step\t>seconds\t>processor seconds");

    for (unsigned i = 0; i < t->n; i++)
        report_row(r, "%s\t%.3f\t%.3f", t->steps[i].what, t->steps[i].seconds, t->steps[i].cpu_seconds);
    report_print(r, stdout);
}

/* [{"step", "seconds", "cpu_seconds"}]; NULL: out of memory. */
static json_t *cmd_solve_times_json(const struct step_times *t)
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

/* ---- --swap-report: what of a table does not serve the texts of other statistics ---- */

/* Layers that --swap-report measures, spread over the model: a quarter of those of SmolLM2-135M. */
#define SWAP_LAYERS 8

static int cmd_solve_print_swap_text(const struct solve_arguments *a, const struct swap_row *rows, size_t n)
{
    _cleanup_(report_freep) struct report *r =
        report_new("<taken from the other statistics\t>keys\t>values\t>distortion\t>left");

    for (size_t i = 0; i < n; i++)
        report_row(r, "%s\t%.4g\t%.4g\t%.4g\t%.3f", rows[i].name, rows[i].distortion[SIDE_K],
                   rows[i].distortion[SIDE_V], rows[i].distortion[SIDE_K] + rows[i].distortion[SIDE_V],
                   rows[i].left);
    printf("A table of %s on texts of %s:\n", a->statistics, a->swap_report);
    report_print(r, stdout);
    return COMMAND_OK;
}

static int cmd_solve_print_swap_json(const struct solve_arguments *a, const struct swap_row *rows, size_t n)
{
    json_t *all = json_array();

    for (size_t i = 0; i < n; i++) {
        json_t *one = json_pack("{s:s, s:f, s:f, s:f}", "taken", rows[i].name, "distortion_k",
                                rows[i].distortion[SIDE_K], "distortion_v", rows[i].distortion[SIDE_V],
                                "left", rows[i].left);

        if (json_array_append_new(all, one) < 0) {
            json_decref(all);
            return report_json(NULL);
        }
    }

    return report_json(
        json_pack("{s:s, s:s, s:o}", "statistics", a->statistics, "other", a->swap_report, "rows", all));
}

/* Exchanges one statistic at a time and prints the distortion that is left. @p: started; ended before
 * anything is printed. */
static int cmd_solve_swap(const struct solve_arguments *a, const struct solve_input *in,
                          const kvc_solve_options *o, struct progress *p)
{
    _cleanup_(table_unrefp) struct table *levels = NULL;
    struct swap_row rows[SWAP_ROWS_MAX];
    struct solve_options options;
    struct errmsg e = {""};
    kvc_stats *other = NULL;
    size_t n = 0;
    int r = kvc_stats_load(in->alloc, a->swap_report, NULL, &other);

    if (r < 0)
        return command_fail("%s", kvc_alloc_error(in->alloc));

    r = solve_api_read(in->stats, o, &options, &levels, &e);
    if (r == 0)
        r = solve_swap(in->stats->sums, other->sums, &options, SWAP_LAYERS, rows, &n, &e);
    progress_end(p);
    if (r < 0)
        return command_fail("%s: %s", a->swap_report, e.text);

    return a->common.json ? cmd_solve_print_swap_json(a, rows, n) : cmd_solve_print_swap_text(a, rows, n);
}

/* ---- what a solve says ---- */

/* The metric that will be used, in words of the command. */
static const char *cmd_solve_metric_name(uint32_t metric)
{
    return solve_metric_name((enum metric)(metric - 1));
}

static int cmd_solve_print_notes(const struct solve_arguments *a, const struct solve_input *in,
                                 const kvc_solve_options *o)
{
    bool depth_weights = !(o->flags & KVC_SOLVE_NO_DEPTH_WEIGHTS);
    uint32_t metric;
    int r = kvc_solve_get_metric(in->stats, o, &metric);

    if (r < 0)
        return r;
    if (a->metric == KVC_METRIC_DEFAULT && a->method == KVC_METHOD_BANDS && metric == KVC_METRIC_MSE)
        command_note(&a->common, "%s has no queries: solving for squared error (--metric mse)",
                     a->statistics);
    if (metric == KVC_METRIC_ATTENTION && (in->info.metrics & KVC_WITH_ATTENTION) &&
        (!depth_weights || !in->info.depth))
        command_note(
            &a->common,
            "%s: without depth weights metric attention weighs the distortion of all layers equally, which "
            "makes far worse tables (KL 0.80 instead of 0.12 nats per token on SmolLM2-135M at 2 bits per "
            "number): use --metric output, or calibrate with depth weights",
            depth_weights ? a->statistics : "--no-depth-weights");
    return 0;
}

/* Distortion of the finished table; null for moments, which have no vectors to measure it on. */
static json_t *cmd_solve_distortion_json(const kvc_solve_report *r, double distortion)
{
    return r->measured ? json_real(distortion) : json_null();
}

/* Distortion of other texts; null if it is not known. */
static json_t *cmd_solve_other_json(double distortion)
{
    return distortion > 0 ? json_real(distortion) : json_null();
}

/* [2, 3]: numbers of the sources, from 1. */
static json_t *cmd_solve_sources_json(uint64_t sources)
{
    json_t *all = json_array();

    for (unsigned i = 0; i < STATS_DOMAINS_MAX; i++)
        if (sources >> i & 1 && json_array_append_new(all, json_integer(i + 1)) < 0) {
            json_decref(all);
            return NULL;
        }
    return all;
}

/* @equal: distortion with equal budgets; 0: not asked for, or not measured. */
static int cmd_solve_print_result(const struct solve_arguments *a, const kvc_solve_report *r, double equal,
                                  size_t n_bytes, double seconds, const struct step_times *times)
{
    const char *method = solve_method_name((enum method) a->method),
               *metric = cmd_solve_metric_name(r->metric);
    char hex[DIGEST_HEX_BYTES], took[HUMAN_BYTES], size[HUMAN_BYTES], peak[HUMAN_BYTES];

    if (a->common.json)
        return report_json(json_pack(
            "{s:s, s:s, s:I, s:s, s:s, s:f, s:f, s:f, s:f, s:o, s:o, s:o, s:f, s:o, s:o, "
            "s:o, s:o, s:o, s:f, s:f, s:I, s:o*}",
            "table", a->output, "digest", digest_hex(r->table_digest, hex), "bytes", (json_int_t) n_bytes,
            "method", method, "metric", metric, "bpd_code", r->bpd_code, "bpd_nominal", r->bpd_nominal,
            "k_bpd", r->k_bpd, "v_bpd", r->v_bpd, "distortion", cmd_solve_distortion_json(r, r->distortion),
            "distortion_k", cmd_solve_distortion_json(r, r->distortion_k), "distortion_v",
            cmd_solve_distortion_json(r, r->distortion_v), "distortion_estimated", r->distortion_estimated,
            "unseen_distortion", cmd_solve_other_json(r->unseen_distortion), "expected_kl",
            cmd_solve_other_json(r->expected_kl), "without_distortion",
            cmd_solve_other_json(r->without_distortion), "equal_distortion", cmd_solve_other_json(equal),
            "reduced_sources", cmd_solve_sources_json(r->reduced_sources), "seconds", seconds, "cpu_seconds",
            usage_cpu_seconds(), "peak_bytes", (json_int_t) usage_peak_bytes(), "steps",
            a->timing ? cmd_solve_times_json(times) : NULL));

    terminal_print(stdout, 2, "%s: table %s, %s, in %s, peak memory %s\n", a->output,
                   digest_short(r->table_digest, hex), human_bytes(n_bytes, size),
                   human_seconds(seconds, took), human_bytes(usage_peak_bytes(), peak));
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
    if (equal > 0)
        terminal_print(stdout, 2, "equal budgets    %.6g: this table has %.0f %% of that\n", equal,
                       100 * r->distortion / equal);
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

/* The distortion when every head and side has the same budget, all else as in @o. Return: 0; errno. */
static int cmd_solve_measure_equal(const struct solve_input *in, const kvc_solve_options *o, double *ret)
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

static int cmd_solve_write_table(const struct solve_arguments *a, const struct solve_input *in,
                                 const kvc_solve_options *o, struct step_times *times, double begun)
{
    _cleanup_(freep) void *bytes = NULL;
    kvc_solve_report report = {.struct_bytes = sizeof(report)};
    struct errmsg e = {""};
    double equal = 0;
    size_t n_bytes;
    int r = kvc_solve(in->stats, o, &bytes, &n_bytes, &report);

    if (r == 0 && a->equal)
        r = cmd_solve_measure_equal(in, o, &equal);
    if (r < 0)
        (void) fail(&e, r, "%s", kvc_alloc_error(in->alloc));
    else
        r = atomic_file_write(a->output, bytes, n_bytes, &e);
    progress_end(times->progress);
    if (r < 0)
        return command_fail("%s", e.text);

    cmd_solve_times_end(times);
    for (unsigned i = 0; i < STATS_DOMAINS_MAX; i++)
        if (report.reduced_sources >> i & 1)
            command_note(
                &a->common,
                "%s: source %u varies ten times less or more than most of the text, as one token that "
                "repeats does: it counts as at most 1 %% of the tokens, since more would make the "
                "table worse for all other text",
                a->statistics, i + 1);
    if (report.bpd_code < 1)
        command_note(&a->common,
                     "%s: with %.3f bits per number most of the keys and values are not stored at all: "
                     "'kvcobra eval' measures what the model loses",
                     a->output, report.bpd_code);
    if (report.largest_share > 0)
        command_note(
            &a->common,
            "%s: one source has %.0f %% of the tokens, so the others cannot show what it costs to read "
            "texts that the table was not fitted to: the table is fitted to its own texts",
            a->statistics, 100 * report.largest_share);
    r = cmd_solve_print_result(a, &report, equal, n_bytes, clock_seconds() - begun, times);
    if (r == COMMAND_OK && a->timing && !a->common.json) {
        putchar('\n');
        cmd_solve_times_print(times);
    }
    return r;
}

static int cmd_solve_check_output(const struct solve_arguments *a, struct errmsg *e)
{
    const char *const inputs[] = {a->statistics, a->metric_from, a->levels_from};

    if (a->sweep && a->output && stream_file_is_standard(a->output))
        return fail(e, -EINVAL,
                    "--sweep writes the files of a folder, which is not standard output: give it a name");
    return a->sweep || a->swap_report
               ? 0
               : output_check(a->output, inputs, sizeof(inputs) / sizeof(inputs[0]), e);
}

static int cmd_solve_run(int argc, char **argv)
{
    _cleanup_(solve_input_deinit) struct solve_input in = {0};
    _cleanup_(progress_end) struct progress p = {0};
    struct step_times times;
    struct solve_arguments a;
    kvc_solve_options o;
    double begun = clock_seconds();
    struct errmsg e = {""};

    solve_arguments_default(&a);
    progress_start(&p, "reading", NULL, 1, true); /* invisible: command_parse() may end the process */
    command_parse(&solve_argp, argc, argv, &a);
    progress_start(&p, "reading", NULL, 1, a.common.quiet);
    progress_say(&p, PROGRESS_SAY_SECONDS);
    cmd_solve_times_start(&times, "reading", &p);
    if (cmd_solve_check_output(&a, &e) < 0 || solve_input_load(&a, &in, &e) < 0)
        return command_fail("%s", e.text);

    solve_arguments_apply(&a, &in, &o);
    o.progress = cmd_solve_times_callback;
    o.progress_ctx = &times;
    if (cmd_solve_print_notes(&a, &in, &o) < 0)
        return command_fail("%s", kvc_alloc_error(in.alloc));

    if (a.swap_report)
        return cmd_solve_swap(&a, &in, &o, &p);
    return a.sweep ? solve_sweep(&a, &in, &o, &p) : cmd_solve_write_table(&a, &in, &o, &times, begun);
}

COMMAND(cmd_solve) = {
    .name = "solve",
    .summary = "distribute a bit budget: make a table from statistics",
    .run = cmd_solve_run,
    .rank = 40,
    .related = "calibrate inspect eval table",
};
