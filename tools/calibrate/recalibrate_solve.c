/* The new table of kvcobra recalibrate. See recalibrate.h. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/moments/moments.h"
#include "alloc/refit/refit.h"
#include "alloc/solve/metric.h"
#include "alloc/stats/stats.h"
#include "base/atomic_file.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tools/calibrate/moments_distortion.h"
#include "tools/calibrate/recalibrate.h"

enum { DRAWN_TOKENS = 2048 };

struct recalibrate_candidate {
    void *bytes;
    size_t n_bytes;
    double distortion[2];
};

static void recalibrate_candidate_deinit(struct recalibrate_candidate *c)
{
    free(c->bytes);
}

/* The best available metric; alloc/README.md has the measurements behind this order. */
static enum metric recalibrate_best_metric(const struct stats *s)
{
    static const enum metric in_order[] = {METRIC_FISHER, METRIC_OUTPUT, METRIC_ATTENTION, METRIC_QUERY};

    for (size_t i = 0; i < sizeof(in_order) / sizeof(in_order[0]); i++)
        if (metric_available(s, in_order[i], NULL) == 0)
            return in_order[i];
    return METRIC_MSE;
}

/*
 * The options that the active table was solved with, as far as its provenance has them and moments allow
 * them. *ret_same_metric: the metric is that of the active table. Return: 0; -EINVAL: --stats lacks the
 * metric.
 */
static int recalibrate_choose_options(const struct recalibration *x, struct solve_options *o,
                                      bool *ret_same_metric, struct errmsg *e)
{
    uint8_t ignored[DIGEST_BYTES];

    if (solve_options_read(x->parsed->provenance, o, ignored, NULL) < 0 || o->method != METHOD_BANDS) {
        solve_options_default(o, x->parsed->bpd_code);
        o->metric = recalibrate_best_metric(x->stats);
    }

    *ret_same_metric = x->metric_stats || o->metric == METRIC_MSE;
    if (!x->metric_stats) {
        o->metric = METRIC_MSE;
        o->depth_weights = false;
        o->temper = 0;
    }

    o->curve = CURVE_GAUSSIAN;
    o->fit_levels = false;
    o->leave_out = false;
    o->without = 0;
    o->levels_from = x->parsed;
    o->v_from = x->parsed->v_from == PREDICT_NONE ? PREDICT_NONE : PREDICT_HEAD;
    o->decoder = DECODER_INVERSE; /* fitting needs vectors */
    return metric_available(x->stats, o->metric, e);
}

/* Makes a table in one way and measures it. */
static int recalibrate_make(const struct recalibration *x, const struct solve_options *o,
                            enum recalibrate_stage stage, struct recalibrate_candidate *ret, struct errmsg *e)
{
    struct refit_report refitted;
    struct solve_report solved;
    int r;

    if (stage == STAGE_REFIT)
        r = refit_table(x->parsed, x->moments, x->moved, &ret->bytes, &ret->n_bytes, &refitted, e);
    else
        r = solve_table(x->stats, o, &ret->bytes, &ret->n_bytes, &solved, e);
    if (r < 0)
        return r;

    return moments_distortion(x->moments, x->stats, o, ret->bytes, ret->n_bytes, DRAWN_TOKENS,
                              ret->distortion, e);
}

static int recalibrate_keep(struct recalibration *x, struct recalibrate_candidate *c,
                            enum recalibrate_stage stage, struct errmsg *e)
{
    _cleanup_(table_unrefp) struct table *t = NULL;
    int r = table_parse(c->bytes, c->n_bytes, &t, e);

    if (r == 0 && x->o->output)
        r = atomic_file_write(x->o->output, c->bytes, c->n_bytes, e);
    if (r < 0)
        return r;

    x->candidate = take_ptr(c->bytes);
    x->n_candidate = c->n_bytes;
    x->stage = stage;
    memcpy(x->distortion_new, c->distortion, sizeof(x->distortion_new));
    memcpy(x->digest, t->digest, sizeof(x->digest));
    x->already = memcmp(x->digest, x->active, sizeof(x->digest)) == 0;
    return 0;
}

/* The same moments a second time would move the other half of the way. */
static int recalibrate_keep_active(struct recalibration *x, struct errmsg *e)
{
    _cleanup_(recalibrate_candidate_deinit) struct recalibrate_candidate active = {
        .bytes = malloc(x->n_table),
        .n_bytes = x->n_table,
        .distortion = {x->distortion_active[0], x->distortion_active[1]},
    };

    if (!active.bytes)
        return fail(e, -ENOMEM, "out of memory for the active table");

    memcpy(active.bytes, x->table, x->n_table);
    return recalibrate_keep(x, &active, STAGE_REFIT, e);
}

int recalibrate_solve(struct recalibration *x, struct errmsg *e)
{
    _cleanup_(recalibrate_candidate_deinit) struct recalibrate_candidate refitted = {NULL}, solved = {NULL};
    enum recalibrate_stage stage = x->o->stage;
    bool same_metric;
    struct solve_options o;
    int r = recalibrate_choose_options(x, &o, &same_metric, e);

    if (r < 0)
        return r;

    x->moved = x->tokens < RECALIBRATE_WHOLE_TOKENS ? 0.5 : 1;
    if (x->moved < 1 && stage == STAGE_SOLVE)
        return fail(
            e, -EINVAL,
            "--stage solve makes all of a table from the moments, for which %ju tokens of traffic are "
            "too few: %u are needed; --stage refit moves half way",
            (uintmax_t) x->tokens, RECALIBRATE_WHOLE_TOKENS);
    if (x->moved < 1)
        stage = STAGE_REFIT;
    /* Without the metric of the active table a solve would choose other directions: a refit keeps them. */
    if (stage == STAGE_AUTO && !same_metric)
        stage = STAGE_REFIT;
    x->metric = o.metric;
    r = moments_distortion(x->moments, x->stats, &o, x->table, x->n_table, DRAWN_TOKENS, x->distortion_active,
                           e);
    if (r == 0 && x->moved < 1 && refit_was_from(x->parsed, x->moments))
        return recalibrate_keep_active(x, e);
    if (r == 0 && stage != STAGE_SOLVE)
        r = recalibrate_make(x, &o, STAGE_REFIT, &refitted, e);
    if (r == 0 && stage != STAGE_REFIT)
        r = recalibrate_make(x, &o, STAGE_SOLVE, &solved, e);
    if (r < 0)
        return r;

    if (!solved.bytes || (refitted.bytes && refitted.distortion[0] + refitted.distortion[1] <=
                                                solved.distortion[0] + solved.distortion[1]))
        return recalibrate_keep(x, &refitted, STAGE_REFIT, e);
    return recalibrate_keep(x, &solved, STAGE_SOLVE, e);
}
