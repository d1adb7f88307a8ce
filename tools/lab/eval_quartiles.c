/* See eval_quartiles.h. */
#include "tools/lab/eval_quartiles.h"

#include <errno.h>
#include <stdlib.h>

#include "alloc/solve.h"
#include "alloc/stats.h"
#include "alloc/table.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tools/lab/eval_post_rope.h"

int quartile_harm(const char *table, const char *statistics, uint32_t sides,
                  double ret_harm[static EVAL_PARTS], struct errmsg *e)
{
    _cleanup_(stats_freep) struct stats *s = NULL;
    _cleanup_(table_unrefp) struct table *t = NULL;
    _cleanup_(freep) double *harm = NULL;
    double sums[EVAL_PARTS] = {0};
    struct solve_options o;
    int r = stats_load(statistics, &s, e);

    if (r == 0)
        r = table_load(table, &t, e);
    if (r == 0)
        r = table_statistics(t, table, s, statistics, &o, e);
    if (r < 0)
        return r;
    harm = calloc((size_t) t->geometry.n_layers * 2, sizeof(*harm));
    if (!harm)
        return fail(e, -ENOMEM, "out of memory for judging the table");
    r = solve_distortion(s, t, &o, harm, e);
    for (uint32_t i = 0; r == 0 && i < 2 * t->geometry.n_layers; i++)
        if (sides == 0 || sides >> i % 2 & 1)
            sums[EVAL_PARTS * (i / 2) / t->geometry.n_layers] += harm[i];
    for (uint32_t part = 0; r == 0 && part < EVAL_PARTS; part++)
        ret_harm[part] = sums[part];
    return r;
}
