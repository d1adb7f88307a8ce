/* kvcobra solve: distributes a bit budget by the statistics of a calibration; writes an allocation table. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/solve.h"
#include "alloc/stats.h"
#include "alloc/table.h"
#include "base/atomic_file.h"
#include "base/cleanup.h"
#include "base/digest.h"
#include "base/errmsg.h"
#include "tools/calibrate/solve_arguments.h"
#include "tools/calibrate/solve_input.h"
#include "tools/calibrate/solve_sweep.h"
#include "tools/command/clock.h"
#include "tools/command/command.h"
#include "tools/command/human.h"
#include "tools/command/output_path.h"
#include "tools/command/progress.h"
#include "tools/command/report.h"

static void cmd_solve_print_notes(const struct solve_arguments *a, const struct stats *s,
                                  const struct solve_options *o)
{
    if (!a->has_metric && a->method == METHOD_BANDS && o->metric == METRIC_MSE)
        command_note(&a->common, "%s has no queries: solving for squared error (--metric mse)",
                     a->statistics);
    if (o->metric == METRIC_ATTENTION && stats_get_options(s)->want_attention &&
        (!o->depth_weights || !stats_has_depth(s)))
        command_note(
            &a->common,
            "%s: without depth weights metric attention weighs the distortion of all layers equally, which "
            "makes far worse tables (KL 0.80 instead of 0.12 nats per token on SmolLM2-135M at 2 bits per "
            "number): use --metric output, or calibrate with depth weights",
            o->depth_weights ? a->statistics : "--no-depth-weights");
}

/* Distortion of the finished table; null for moments, which have no vectors to measure it on. */
static json_t *cmd_solve_distortion_json(const struct stats *s, double distortion)
{
    return stats_is_moments(s) ? json_null() : json_real(distortion);
}

static int cmd_solve_print_result(const struct solve_arguments *a, const struct stats *s,
                                  const struct solve_options *o, const struct solve_report *r,
                                  const uint8_t *digest, size_t n_bytes, double seconds)
{
    char hex[DIGEST_HEX_BYTES], took[HUMAN_BYTES], size[HUMAN_BYTES];

    if (a->common.json)
        return report_json(json_pack("{s:s, s:s, s:I, s:s, s:s, s:f, s:f, s:f, s:f, s:o, s:o, s:o, s:f, s:f}",
                                     "table", a->output, "digest", digest_hex(digest, hex), "bytes",
                                     (json_int_t) n_bytes, "method", solve_method_name(o->method), "metric",
                                     solve_metric_name(o->metric), "bpd_code", r->bpd_code, "bpd_nominal",
                                     r->bpd_nominal, "k_bpd", r->k_bpd, "v_bpd", r->v_bpd, "distortion",
                                     cmd_solve_distortion_json(s, r->distortion), "distortion_k",
                                     cmd_solve_distortion_json(s, r->distortion_k), "distortion_v",
                                     cmd_solve_distortion_json(s, r->distortion_v), "distortion_estimated",
                                     r->distortion_estimated, "seconds", seconds));

    printf("%s: table %s, %s, in %s\n", a->output, digest_short(digest, hex), human_bytes(n_bytes, size),
           human_seconds(seconds, took));
    printf("bits per number  %.4f stored: keys %.4f, values %.4f", r->bpd_code, r->k_bpd, r->v_bpd);
    if (r->bpd_nominal < r->bpd_code - 1e-9)
        printf("; %.4f without padding", r->bpd_nominal);
    if (stats_is_moments(s)) {
        printf("\ndistortion e'Me  %.6g (%s) estimated; moments hold no vectors to measure it on\n",
               r->distortion_estimated, solve_metric_name(o->metric));
        return COMMAND_OK;
    }

    printf("\ndistortion e'Me  %.6g (%s): keys %.6g, values %.6g; estimated %.6g\n", r->distortion,
           solve_metric_name(o->metric), r->distortion_k, r->distortion_v, r->distortion_estimated);
    return COMMAND_OK;
}

static int cmd_solve_write_table(const struct solve_arguments *a, const struct stats *s,
                                 const struct solve_options *o, struct progress *p, double begun)
{
    _cleanup_(table_unrefp) struct table *table = NULL;
    _cleanup_(freep) void *bytes = NULL;
    struct solve_report report;
    struct errmsg e = {""};
    size_t n_bytes;
    int r = solve_table(s, o, &bytes, &n_bytes, &report, &e);

    if (r == 0)
        r = table_parse(bytes, n_bytes, &table, &e);
    if (r == 0)
        r = atomic_file_write(a->output, bytes, n_bytes, &e);
    progress_end(p);
    if (r < 0)
        return command_fail("%s", e.text);

    return cmd_solve_print_result(a, s, o, &report, table->digest, n_bytes, clock_seconds() - begun);
}

static int cmd_solve_check_output(const struct solve_arguments *a, struct errmsg *e)
{
    const char *const inputs[] = {a->statistics, a->metric_from, a->levels_from};

    return a->sweep ? 0 : output_check(a->output, inputs, sizeof(inputs) / sizeof(inputs[0]), e);
}

static int cmd_solve_run(int argc, char **argv)
{
    _cleanup_(solve_input_deinit) struct solve_input in = {0};
    _cleanup_(progress_end) struct progress p;
    struct solve_arguments a;
    struct solve_options o;
    double begun = clock_seconds();
    struct errmsg e = {""};

    solve_arguments_default(&a);
    progress_start(&p, "reading", NULL, 1, true); /* invisible: command_parse() may end the process */
    command_parse(&solve_argp, argc, argv, &a);
    progress_start(&p, "reading", NULL, 1, a.common.quiet);
    if (cmd_solve_check_output(&a, &e) < 0 || solve_input_load(&a, &in, &e) < 0)
        return command_fail("%s", e.text);

    solve_arguments_apply(&a, in.stats, &o);
    o.levels_from = in.levels;
    o.progress = progress_callback;
    o.progress_ctx = &p;
    cmd_solve_print_notes(&a, in.stats, &o);
    return a.sweep ? solve_sweep(&a, in.stats, &o, &p) : cmd_solve_write_table(&a, in.stats, &o, &p, begun);
}

const struct command cmd_solve = {"solve", "distribute a bit budget: make a table from statistics",
                                  cmd_solve_run};
