/* Loading the input of solve; see solve_input.h. */
#include "tools/calibrate/solve_input.h"

#include <errno.h>
#include <stdlib.h>

#include "alloc/moments.h"
#include "alloc/stats.h"
#include "alloc/stats_moments.h"
#include "alloc/table.h"
#include "base/atomic_file.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tools/calibrate/solve_arguments.h"

#define INPUT_BYTES_MAX ((size_t) 64 << 30)

static int solve_input_load_moments(const char *path, const char *metric_from, const void *bytes, size_t n,
                                    struct stats **ret, struct errmsg *e)
{
    _cleanup_(moments_freep) struct moments *m = NULL;
    _cleanup_(stats_freep) struct stats *metric = NULL;
    struct errmsg why = {""};
    int r = moments_parse(bytes, n, &m, &why);

    if (r < 0)
        return fail(e, r, "%.120s: %.240s", path, why.text);
    if (metric_from) {
        r = stats_load(metric_from, &metric, e);
        if (r < 0)
            return r;
    }

    r = stats_from_moments(m, metric, ret, &why);
    return r < 0 ? fail(e, r, "%.120s: %.240s", path, why.text) : 0;
}

int solve_input_load_statistics(const char *path, const char *metric_from, struct stats **ret,
                                struct errmsg *e)
{
    _cleanup_(freep) void *bytes = NULL;
    struct errmsg why = {""};
    size_t n;
    int r = atomic_file_read(path, INPUT_BYTES_MAX, &bytes, &n, e);

    if (r < 0)
        return r;
    if (moments_recognise(bytes, n))
        return solve_input_load_moments(path, metric_from, bytes, n, ret, e);
    if (metric_from)
        return fail(e, -EINVAL,
                    "--metric-from is for moments, and %s holds statistics with their own metrics", path);

    r = stats_parse(bytes, n, ret, &why);
    return r < 0 ? fail(e, r, "%.120s: %.240s", path, why.text) : 0;
}

int solve_input_load(const struct solve_arguments *a, struct solve_input *ret, struct errmsg *e)
{
    _cleanup_(solve_input_deinit) struct solve_input in = {0};
    int r = solve_input_load_statistics(a->statistics, a->metric_from, &in.stats, e);

    if (r == 0 && a->levels_from)
        r = table_load(a->levels_from, &in.levels, e);
    if (r < 0)
        return r;
    if (a->sweep && stats_is_moments(in.stats))
        return fail(e, -EINVAL, "--sweep measures tables on sampled vectors, and %s holds moments only",
                    a->statistics);

    *ret = in;
    in = (struct solve_input){0};
    return 0;
}

void solve_input_deinit(struct solve_input *in)
{
    (void) stats_free(in->stats);
    (void) table_unref(in->levels);
    *in = (struct solve_input){0};
}
