/* One budget for the groups of layers of a model; see solve_result.h. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "alloc/api/handles.h"
#include "alloc/solve/solve.h"
#include "alloc/solve/solve_groups.h"
#include "alloc/table/table.h"
#include "base/atomic_file.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tools/calibrate/solve_input.h"
#include "tools/calibrate/solve_result.h"
#include "tools/command/command.h"
#include "tools/command/output_path.h"
#include "tools/command/progress.h"
#include "tools/command/report.h"

struct solve_together_group {
    struct solve_arguments a; /* its own file, table and budget */
    char output[4096];
    kvc_stats_info info; /* without strings */
    struct solve_group bands;
    struct solve_result solved;
};

struct solve_together_groups {
    struct solve_together_group *all;
    size_t n;
    struct solve_result_times *times;
    bool one_scale; /* their distortions may be added */
};

static void solve_together_groups_deinit(struct solve_together_groups *g)
{
    for (size_t i = 0; i < g->n; i++) {
        solve_group_deinit(&g->all[i].bands);
        solve_result_deinit(&g->all[i].solved);
    }
    free(g->all);
}

/* "tables/m.full.table" of "stats/m.full.stats". */
static int solve_together_name(struct solve_together_groups *g, const struct solve_arguments *a, size_t i,
                               struct errmsg *e)
{
    struct solve_together_group *one = &g->all[i];
    const char *slash = strrchr(a->groups[i], '/'), *name = slash ? slash + 1 : a->groups[i],
               *ending = strrchr(name, '.');
    int length = ending && strcmp(ending, ".stats") == 0 ? (int) (ending - name) : (int) strlen(name);

    one->a = *a;
    one->a.statistics = a->groups[i];
    one->a.output = one->output;
    if (snprintf(one->output, sizeof(one->output), "%s/%.*s.table", a->output, length, name) >=
        (int) sizeof(one->output))
        return fail(e, -ENAMETOOLONG, "the name of the folder %.40s... is too long", a->output);

    for (size_t j = 0; j < i; j++)
        if (strcmp(g->all[j].output, one->output) == 0)
            return fail(e, -EINVAL, "the tables of %s and %s would have one name, %s", a->groups[j],
                        a->groups[i], one->output);
    return output_check(one->output, a->groups, a->n_groups, e);
}

static int solve_together_load(struct solve_together_groups *g, struct solve_together_group *one,
                               struct solve_input *in, kvc_solve_options *o, struct errmsg *e)
{
    int r = solve_input_load(&one->a, in, e);

    if (r < 0)
        return r;

    solve_arguments_apply(&one->a, in, o);
    o->progress = solve_result_times_callback;
    o->progress_ctx = g->times;
    return 0;
}

/* Group @i must be of the model and the texts of the first, and of layers of its own. */
static int solve_together_compare(const struct solve_together_groups *g, const struct solve_input *in,
                                  size_t i, const char *first_name, struct errmsg *e)
{
    const struct solve_together_group *one = &g->all[i];

    if (strcmp(in->info.model_name, first_name) != 0)
        return fail(e, -EINVAL, "%s is of the model %s, and %s of %s: they are no groups of one model",
                    one->a.statistics, in->info.model_name, g->all[0].a.statistics, first_name);
    if (in->info.tokens != g->all[0].info.tokens)
        return fail(
            e, -EINVAL,
            "%s has %llu tokens, and %s has %llu: groups share a budget if one calibration wrote them",
            one->a.statistics, (unsigned long long) in->info.tokens, g->all[0].a.statistics,
            (unsigned long long) g->all[0].info.tokens);
    for (size_t j = 0; j < i; j++)
        if (memcmp(in->info.model_digest, g->all[j].info.model_digest, sizeof(in->info.model_digest)) == 0)
            return fail(e, -EINVAL, "%s and %s are of the same layers", one->a.statistics,
                        g->all[j].a.statistics);
    return 0;
}

/* Reads the bands of every group, one after another: statistics may be large. */
static int solve_together_collect(struct solve_together_groups *g, struct errmsg *e)
{
    char first_name[128] = "";
    int r = 0;

    g->one_scale = true;
    for (size_t i = 0; r == 0 && i < g->n; i++) {
        _cleanup_(solve_input_deinit) struct solve_input in = {0};
        _cleanup_(table_unrefp) struct table *levels = NULL;
        struct solve_together_group *one = &g->all[i];
        struct solve_options options;
        kvc_solve_options o;

        r = solve_together_load(g, one, &in, &o, e);
        if (r < 0)
            return r;

        one->info = in.info;
        one->info.model_name = NULL;
        if (i == 0)
            (void) snprintf(first_name, sizeof(first_name), "%s", in.info.model_name);
        r = solve_together_compare(g, &in, i, first_name, e);
        if (r == 0)
            r = solve_api_read(in.stats, &o, &options, &levels, e);
        if (r == 0)
            r = solve_group_collect(in.stats->sums, &options, &one->bands, e);
        g->one_scale &= r == 0 && (options.metric == METRIC_FISHER || options.metric == METRIC_OUTPUT);
    }

    return r;
}

/* Sets the shares of the groups from the windows that were typed. Return: 0; -EINVAL with a sentence. */
static int solve_together_share(struct solve_together_groups *g, const char *windows, struct errmsg *e)
{
    const char *at = windows;

    for (size_t i = 0; windows && i < g->n; i++) {
        char *end;
        unsigned long long window = strtoull(at, &end, 10);

        if (*at < '0' || *at > '9' || window > UINT32_MAX || *end != (i + 1 < g->n ? ',' : '\0'))
            return fail(e, -EINVAL,
                        "--windows %s: %zu numbers of tokens with commas are needed, one per file", windows,
                        g->n);

        g->all[i].bands.share = solve_group_share((uint32_t) window);
        at = end + 1;
    }
    return 0;
}

static int solve_together_divide(struct solve_together_groups *g, const struct solve_arguments *a,
                                 struct errmsg *e)
{
    struct solve_group bands[SOLVE_GROUPS_MAX];
    double bpd[SOLVE_GROUPS_MAX];
    int r;

    if (!g->one_scale && a->windows)
        return fail(e, -EINVAL,
                    "--windows divides one budget, for which the statistics need metric fisher or output");
    if (!g->one_scale) {
        command_note(&a->common,
                     "the statistics have no metric whose errors compare between groups (fisher or "
                     "output): each group gets %g bits per number",
                     a->bpd);
        return 0;
    }

    r = solve_together_share(g, a->windows, e);
    if (r < 0)
        return r;

    for (size_t i = 0; i < g->n; i++)
        bands[i] = g->all[i].bands;
    r = solve_groups_divide(bands, g->n, a->bpd, bpd, e);
    for (size_t i = 0; r == 0 && i < g->n; i++)
        g->all[i].a.bpd = bpd[i];
    return r;
}

static int solve_together_solve(struct solve_together_groups *g, struct errmsg *e)
{
    for (size_t i = 0; i < g->n; i++) {
        _cleanup_(solve_input_deinit) struct solve_input in = {0};
        struct solve_together_group *one = &g->all[i];
        struct errmsg why = {""};
        kvc_solve_options o;
        int r = solve_together_load(g, one, &in, &o, e);

        if (r < 0)
            return r;

        r = solve_result_make(&one->a, &in, &o, &one->solved, &why);
        if (r < 0)
            return fail(e, r, "%s: %s", one->a.statistics, why.text);
    }

    return 0;
}

static int solve_together_print(const struct solve_together_groups *g, const struct solve_arguments *a)
{
    json_t *tables = json_array();
    int r = COMMAND_OK;

    for (size_t i = 0; i < g->n && r == COMMAND_OK; i++) {
        const struct solve_together_group *one = &g->all[i];

        solve_result_print_warnings(&one->a, &one->solved.report);
        if (!a->common.json)
            r = solve_result_print(&one->a, &one->solved);
        else if (json_array_append_new(tables, solve_result_json(&one->a, &one->solved, g->times)) < 0)
            r = report_json(NULL);
    }

    if (r == COMMAND_OK && a->common.json)
        return report_json(json_pack("{s:f, s:o}", "bpd", a->bpd, "tables", tables));

    json_decref(tables);
    return r;
}

/* All tables are solved before the first is written. */
int solve_together(const struct solve_arguments *a, struct solve_result_times *times)
{
    _cleanup_(solve_together_groups_deinit) struct solve_together_groups g = {
        .all = calloc(a->n_groups, sizeof(*g.all)), .n = a->n_groups, .times = times};
    struct errmsg e = {""};
    int r = 0;

    if (!g.all) {
        g.n = 0;
        return command_fail("out of memory");
    }
    if (mkdir(a->output, 0777) < 0 && errno != EEXIST)
        return command_fail("cannot make the folder %s: %s", a->output, strerror(errno));

    for (size_t i = 0; r == 0 && i < g.n; i++)
        r = solve_together_name(&g, a, i, &e);
    if (r == 0)
        r = solve_together_collect(&g, &e);
    if (r == 0)
        r = solve_together_divide(&g, a, &e);
    if (r == 0)
        r = solve_together_solve(&g, &e);
    for (size_t i = 0; r == 0 && i < g.n; i++)
        r = atomic_file_write(g.all[i].output, g.all[i].solved.bytes, g.all[i].solved.n_bytes, &e);
    progress_end(times->progress);
    return r < 0 ? command_fail("%s", e.text) : solve_together_print(&g, a);
}
