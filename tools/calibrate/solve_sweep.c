/* Solving every split; see solve_sweep.h. */
#include "tools/calibrate/solve_sweep.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "alloc/solve/solve_names.h"
#include "base/atomic_file.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tools/calibrate/solve_arguments.h"
#include "tools/calibrate/solve_input.h"
#include "tools/command/command.h"
#include "tools/command/progress.h"
#include "tools/command/report.h"

enum { SPLITS_MAX = 1 + 16 * 20 }; /* --total-bpd up to 16, --step from 0.05 */

struct solve_sweep_split {
    bool free; /* one budget over both sides */
    double k_bpd, v_bpd;
    kvc_solve_report report;
    char name[48];
};

/* Whether the distortions of keys and values may be added: both are then in nats of the whole model. */
static int solve_sweep_one_scale(const struct solve_input *in, const kvc_solve_options *o, bool *ret)
{
    uint32_t metric;
    int r = kvc_solve_get_metric(in->stats, o, &metric);

    if (r < 0)
        return r;

    *ret = metric == KVC_METRIC_FISHER ||
           (metric == KVC_METRIC_ATTENTION && !(o->flags & KVC_SOLVE_NO_DEPTH_WEIGHTS) && in->info.depth);
    return 0;
}

static size_t solve_sweep_list_splits(const struct solve_arguments *a, struct solve_sweep_split *ret)
{
    size_t n = 0;

    if (a->method == KVC_METHOD_BANDS) {
        ret[n] = (struct solve_sweep_split){.free = true};
        (void) snprintf(ret[n].name, sizeof(ret[n].name), "free");
        n++;
    }

    for (unsigned i = 1; n < SPLITS_MAX; i++) {
        double k = i * a->step, v = a->total_bpd - k;

        if (v < a->step * (1 - 1e-9)) /* 0.3 - 2 * 0.1 is 0.1 */
            break;
        if (k > TABLE_BITS_MAX || v > TABLE_BITS_MAX)
            continue;

        ret[n] = (struct solve_sweep_split){.k_bpd = k, .v_bpd = v};
        (void) snprintf(ret[n].name, sizeof(ret[n].name), "k%g-v%g", k, v);
        n++;
    }

    return n;
}

static int solve_sweep_split(const struct solve_arguments *a, const struct solve_input *in,
                             const kvc_solve_options *o, struct solve_sweep_split *x, struct errmsg *e)
{
    _cleanup_(freep) void *bytes = NULL;
    kvc_solve_options own = *o;
    char path[4096];
    size_t n_bytes;
    int r;

    own.bpd = a->total_bpd / 2;
    own.k_bpd = x->k_bpd; /* 0 for the free split */
    own.v_bpd = x->v_bpd;
    x->report.struct_bytes = sizeof(x->report);
    r = kvc_solve(in->stats, &own, &bytes, &n_bytes, &x->report);
    if (r < 0)
        return fail(e, r, "%s", kvc_alloc_error(in->alloc));
    if (!a->output)
        return 0;
    if (snprintf(path, sizeof(path), "%s/%s.table", a->output, x->name) >= (int) sizeof(path))
        return fail(e, -ENAMETOOLONG, "the name of the directory %.40s... is too long", a->output);

    return atomic_file_write(path, bytes, n_bytes, e);
}

static int solve_sweep_print_text(const struct solve_arguments *a, const struct solve_sweep_split *splits,
                                  size_t n, bool added)
{
    _cleanup_(report_freep) struct report *r =
        report_new(added ? "<split\t>K bpd\t>V bpd\t>distortion K\t>distortion V\t>distortion"
                         : "<split\t>K bpd\t>V bpd\t>distortion K\t>distortion V");

    for (size_t i = 0; i < n; i++) {
        const kvc_solve_report *x = &splits[i].report;

        if (added)
            report_row(r, "%s\t%.3f\t%.3f\t%.5g\t%.5g\t%.5g", splits[i].name, x->k_bpd, x->v_bpd,
                       x->distortion_k, x->distortion_v, x->distortion);
        else
            report_row(r, "%s\t%.3f\t%.3f\t%.5g\t%.5g", splits[i].name, x->k_bpd, x->v_bpd, x->distortion_k,
                       x->distortion_v);
    }

    report_print(r, stdout);
    if (!added)
        command_note(&a->common, "this metric has no common scale for keys and values: compare within a "
                                 "column, and compare splits with 'kvcobra eval'");
    return COMMAND_OK;
}

static int solve_sweep_print_json(const struct solve_arguments *a, const struct solve_sweep_split *splits,
                                  size_t n, bool added)
{
    json_t *all = json_array();

    for (size_t i = 0; i < n; i++) {
        const kvc_solve_report *x = &splits[i].report;
        json_t *one = json_pack("{s:s, s:b, s:f, s:f, s:f, s:f, s:f, s:f}", "split", splits[i].name, "free",
                                (int) splits[i].free, "k_bpd", x->k_bpd, "v_bpd", x->v_bpd, "bpd_code",
                                x->bpd_code, "bpd_nominal", x->bpd_nominal, "distortion_k", x->distortion_k,
                                "distortion_v", x->distortion_v);

        if (one && added)
            (void) json_object_set_new(one, "distortion", json_real(x->distortion));
        if (json_array_append_new(all, one) < 0) {
            json_decref(all);
            return report_json(NULL);
        }
    }

    return report_json(json_pack("{s:f, s:s, s:o}", "total_bpd", a->total_bpd, "method",
                                 solve_method_name((enum method) a->method), "splits", all));
}

int solve_sweep(const struct solve_arguments *a, const struct solve_input *in, const kvc_solve_options *o,
                struct progress *p)
{
    _cleanup_(freep) struct solve_sweep_split *splits = calloc(SPLITS_MAX, sizeof(*splits));
    bool added;
    struct errmsg e = {""};
    size_t n;

    if (!splits)
        return command_fail("out of memory");
    if (solve_sweep_one_scale(in, o, &added) < 0)
        return command_fail("%s", kvc_alloc_error(in->alloc));
    if (a->output && mkdir(a->output, 0777) < 0 && errno != EEXIST)
        return command_fail("cannot make the directory %s: %s", a->output, strerror(errno));

    n = solve_sweep_list_splits(a, splits);
    if (n == 0)
        return command_fail("no split of %g in steps of %g gives keys and values at most %d bits each",
                            a->total_bpd, a->step, TABLE_BITS_MAX);

    for (size_t i = 0; i < n; i++)
        if (solve_sweep_split(a, in, o, &splits[i], &e) < 0) {
            progress_end(p);
            return command_fail("split %s: %s", splits[i].name, e.text);
        }
    progress_end(p);
    return a->common.json ? solve_sweep_print_json(a, splits, n, added)
                          : solve_sweep_print_text(a, splits, n, added);
}
