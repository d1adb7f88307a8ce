/* Loading the input of solve; see solve_input.h. */
#include "tools/calibrate/solve_input.h"

#include <errno.h>
#include <stdlib.h>

#include "alloc/table/table.h"
#include "base/atomic_file.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tools/calibrate/solve_arguments.h"

static int solve_input_fail(const struct solve_input *in, int err, struct errmsg *e)
{
    return fail(e, err, "%s", kvc_alloc_error(in->alloc));
}

static int solve_input_load_stats(struct solve_input *in, const struct solve_arguments *a, struct errmsg *e)
{
    kvc_stats *metric = NULL;
    int r = a->metric_from ? kvc_stats_load(in->alloc, a->metric_from, NULL, &metric) : 0;

    if (r == 0)
        r = kvc_stats_load(in->alloc, a->statistics, metric, &in->stats);
    in->info = (kvc_stats_info){.struct_bytes = sizeof(in->info)};
    if (r == 0)
        r = kvc_stats_get_info(in->stats, &in->info);
    if (r < 0)
        r = solve_input_fail(in, r, e);

    (void) kvc_stats_free(metric);
    return r;
}

static int solve_input_load_levels(struct solve_input *in, const char *path, struct errmsg *e)
{
    kvc_table_view *view = NULL;
    int r = atomic_file_read(path, TABLE_FILE_BYTES_MAX, &in->levels, &in->n_levels, e);

    if (r < 0)
        return r;

    r = kvc_table_view_new(in->alloc, in->levels, in->n_levels, &view);
    (void) kvc_table_view_free(view);
    return r < 0 ? fail(e, r, "%.120s: %.240s", path, kvc_alloc_error(in->alloc)) : 0;
}

int solve_input_load(const struct solve_arguments *a, struct solve_input *ret, struct errmsg *e)
{
    _cleanup_(solve_input_deinit) struct solve_input in = {0};
    int r = kvc_alloc_new(&in.alloc);

    if (r < 0)
        return fail(e, r, "out of memory");

    r = solve_input_load_stats(&in, a, e);
    if (r == 0 && a->levels_from)
        r = solve_input_load_levels(&in, a->levels_from, e);
    if (r < 0)
        return r;
    if (a->sweep && in.info.moments)
        return fail(e, -EINVAL, "--sweep measures tables on sampled vectors, and %s holds moments only",
                    a->statistics);

    *ret = in;
    in = (struct solve_input){0};
    return 0;
}

void solve_input_deinit(struct solve_input *in)
{
    (void) kvc_alloc_free(in->alloc); /* and the statistics */
    free(in->levels);
    *in = (struct solve_input){0};
}
