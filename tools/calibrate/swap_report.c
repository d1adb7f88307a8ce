/* See swap_report.h. */
#include "tools/calibrate/swap_report.h"

#include <jansson.h>
#include <stdio.h>

#include "alloc/api/alloc_api.h"
#include "alloc/solve.h"
#include "alloc/solve_swap.h"
#include "alloc/table.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tools/calibrate/solve_arguments.h"
#include "tools/calibrate/solve_input.h"
#include "tools/command/command.h"
#include "tools/command/progress.h"
#include "tools/command/report.h"

/* Layers that are measured, spread over the model: a quarter of those of SmolLM2-135M. */
#define SWAP_REPORT_LAYERS 8

static int swap_report_print_text(const struct solve_arguments *a, const struct swap_row *rows, size_t n)
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

static int swap_report_print_json(const struct solve_arguments *a, const struct swap_row *rows, size_t n)
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

int swap_report(const struct solve_arguments *a, const struct solve_input *in, const kvc_solve_options *o,
                struct progress *p)
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
        r = solve_swap(in->stats->sums, other->sums, &options, SWAP_REPORT_LAYERS, rows, &n, &e);
    progress_end(p);
    if (r < 0)
        return command_fail("%s: %s", a->swap_report, e.text);

    return a->common.json ? swap_report_print_json(a, rows, n) : swap_report_print_text(a, rows, n);
}
