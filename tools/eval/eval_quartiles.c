/* See eval_quartiles.h. */
#include "tools/eval/eval_quartiles.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/solve/solve.h"
#include "alloc/stats/stats.h"
#include "alloc/table/table.h"
#include "base/cleanup.h"
#include "base/errmsg.h"

int eval_solve_options(const struct table *t, const char *table, const struct stats *s,
                       const char *statistics, struct solve_options *ret, struct errmsg *e)
{
    uint8_t made_of[DIGEST_BYTES], digest[DIGEST_BYTES];
    int r = solve_options_read(t->provenance, ret, made_of, e);

    if (r < 0)
        return r;

    r = stats_digest(s, digest, e);
    if (r < 0)
        return r;
    if (memcmp(made_of, digest, sizeof(digest)) != 0)
        return fail(e, -EINVAL, "%s was solved from other statistics than %s", table, statistics);

    return 0;
}

int quartile_distortion(const char *table, const char *statistics, uint32_t sides,
                        double ret_distortion[static EVAL_PARTS], struct errmsg *e)
{
    _cleanup_(stats_freep) struct stats *s = NULL;
    _cleanup_(table_unrefp) struct table *t = NULL;
    _cleanup_(freep) double *distortion = NULL;
    double sums[EVAL_PARTS] = {0};
    struct solve_options o;
    int r = stats_load(statistics, &s, e);

    if (r < 0)
        return r;

    r = table_load(table, &t, e);
    if (r < 0)
        return r;

    r = eval_solve_options(t, table, s, statistics, &o, e);
    if (r < 0)
        return r;

    distortion = calloc((size_t) t->geometry.n_layers * 2, sizeof(*distortion));
    if (!distortion)
        return fail(e, -ENOMEM, "out of memory for the distortion of the table");

    r = solve_distortion(s, t, &o, distortion, e);
    for (uint32_t i = 0; r == 0 && i < 2 * t->geometry.n_layers; i++)
        if (sides == 0 || sides >> i % 2 & 1)
            sums[EVAL_PARTS * (i / 2) / t->geometry.n_layers] += distortion[i];
    for (uint32_t part = 0; r == 0 && part < EVAL_PARTS; part++)
        ret_distortion[part] = sums[part];
    return r;
}
