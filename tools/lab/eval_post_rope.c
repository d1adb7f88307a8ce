/* See eval_post_rope.h. */
#include "tools/lab/eval_post_rope.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/solve.h"
#include "alloc/stats.h"
#include "alloc/stats_rotate.h"
#include "alloc/table.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tools/command/progress.h"

int post_rope_options(const struct table *t, const char *table, const struct stats *s, const char *statistics,
                      struct solve_options *ret, struct errmsg *e)
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

int post_rope_table(const char *table, const char *statistics, struct progress *p, void **ret_bytes,
                    size_t *ret_n_bytes, struct errmsg *e)
{
    _cleanup_(stats_freep) struct stats *s = NULL;
    _cleanup_(stats_freep) struct stats *rotated = NULL;
    _cleanup_(table_unrefp) struct table *t = NULL;
    struct solve_options o;
    struct solve_report report;
    int r = stats_load(statistics, &s, e);

    if (r < 0)
        return r;

    r = table_load(table, &t, e);
    if (r < 0)
        return r;

    r = post_rope_options(t, table, s, statistics, &o, e);
    if (r < 0)
        return r;

    r = stats_rotated(s, &rotated, e);
    if (r < 0)
        return r;

    o.progress = progress_callback;
    o.progress_ctx = p;
    return solve_table(rotated, &o, ret_bytes, ret_n_bytes, &report, e);
}
