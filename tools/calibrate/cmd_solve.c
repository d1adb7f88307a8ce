/* kvcobra solve: distributes a bit budget by the statistics of a calibration; writes an allocation table. */
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/api/handles.h"
#include "alloc/kvcobra-alloc.h"
#include "alloc/solve/solve.h"
#include "alloc/solve/solve_swap.h"
#include "alloc/stats/stats.h"
#include "alloc/table/table.h"
#include "base/atomic_file.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "base/stream_file.h"
#include "tools/calibrate/solve_arguments.h"
#include "tools/calibrate/solve_input.h"
#include "tools/calibrate/solve_result.h"
#include "tools/calibrate/solve_sweep.h"
#include "tools/command/clock.h"
#include "tools/command/command.h"
#include "tools/command/output_path.h"
#include "tools/command/progress.h"
#include "tools/command/report.h"

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

static int cmd_solve_write_table(const struct solve_arguments *a, const struct solve_input *in,
                                 const kvc_solve_options *o, struct solve_result_times *times, double begun)
{
    _cleanup_(solve_result_deinit) struct solve_result x = {0};
    struct errmsg e = {""};
    int r = solve_result_make(a, in, o, &x, &e);

    if (r == 0)
        r = atomic_file_write(a->output, x.bytes, x.n_bytes, &e);
    progress_end(times->progress);
    if (r < 0)
        return command_fail("%s", e.text);

    solve_result_times_end(times);
    x.seconds = clock_seconds() - begun; /* with reading and writing */
    solve_result_print_warnings(a, &x.report);
    if (a->common.json)
        return report_json(solve_result_json(a, &x, times));

    r = solve_result_print(a, &x);
    if (r == COMMAND_OK && a->timing) {
        putchar('\n');
        solve_result_times_print(times);
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
    struct solve_result_times times;
    struct solve_arguments a;
    kvc_solve_options o;
    double begun = clock_seconds();
    struct errmsg e = {""};

    solve_arguments_default(&a);
    progress_start(&p, "reading", NULL, 1, true); /* invisible: command_parse() may end the process */
    command_parse(&solve_argp, argc, argv, &a);
    progress_start(&p, "reading", NULL, 1, a.common.quiet);
    progress_say(&p, PROGRESS_SAY_SECONDS);
    solve_result_times_start(&times, "reading", &p);
    if (a.n_groups > 1)
        return solve_together(&a, &times);
    if (cmd_solve_check_output(&a, &e) < 0 || solve_input_load(&a, &in, &e) < 0)
        return command_fail("%s", e.text);

    solve_arguments_apply(&a, &in, &o);
    o.progress = solve_result_times_callback;
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
