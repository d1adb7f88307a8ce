/* Trials of a candidate on live traffic. See recalibrate.h. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tools/calibrate/recalibrate.h"
#include "tools/command/command.h"
#include "tools/command/interrupt.h"

enum { TRIAL_POLL_MS = 500 };

static int recalibrate_read_fit(struct recalibration *x, const uint8_t *digest, Kvcobra__Fit *ret,
                                struct errmsg *e)
{
    _cleanup_(operator_message_freep) Kvcobra__GetFitReply *got = NULL;
    int r = operator_get_fit(x->c, digest, &got, e);

    if (r < 0)
        return r;

    *ret = *got->fit; /* numbers alone */
    return 0;
}

/* One pause of a wait of at most --wait seconds. False: the time is over, or a signal to stop arrived. */
static bool recalibrate_pause(const struct recalibration *x, uint64_t *n_pauses)
{
    const struct timespec pause_time = {0, TRIAL_POLL_MS * 1000000L};

    if (interrupt_seen() || ++*n_pauses > x->o->wait_s * 1000 / TRIAL_POLL_MS)
        return false;

    (void) nanosleep(&pause_time, NULL);
    return true;
}

/* @table: "new" or "active" */
static int recalibrate_fail_late(const struct recalibration *x, const char *table, uint64_t measured,
                                 uint64_t wanted, struct errmsg *e)
{
    if (interrupt_seen())
        return fail(e, -EINTR, "stopped when %ju of %ju tokens of the %s table were measured",
                    (uintmax_t) measured, (uintmax_t) wanted, table);
    return fail(e, -ETIMEDOUT, "%ju of %ju tokens of the %s table were measured within %ju s",
                (uintmax_t) measured, (uintmax_t) wanted, table, (uintmax_t) x->o->wait_s);
}

int recalibrate_shadow(struct recalibration *x, struct errmsg *e)
{
    const struct recalibrate_options *o = x->o;
    uint64_t n_pauses = 0;
    int r = operator_shadow_table(x->c, x->digest, (uint32_t) fmax(1, o->share * 1e4), 0, NULL, e);

    if (r < 0)
        return r;

    command_note(&o->operator.common,
                 "clients encode %g %% of their new chunks with both tables until %ju tokens are measured",
                 o->share, (uintmax_t) o->shadow_tokens);
    do
        r = recalibrate_read_fit(x, x->digest, &x->fit, e);
    while (r == 0 && x->fit.shadow_tokens < o->shadow_tokens && recalibrate_pause(x, &n_pauses));
    (void) operator_shadow_table(x->c, x->digest, 0, 0, NULL, NULL);
    if (r == 0 && x->fit.shadow_tokens < o->shadow_tokens)
        r = recalibrate_fail_late(x, "new", x->fit.shadow_tokens, o->shadow_tokens, e);
    return r;
}

static double recalibrate_error(const Kvcobra__Fit *f)
{
    return f->error_k + f->error_v;
}

/* Mean error, keys plus values, of the tokens that were measured between two reports; there are some. */
static double recalibrate_error_between(const Kvcobra__Fit *before, const Kvcobra__Fit *now)
{
    double old = (double) before->tokens, all = (double) now->tokens;

    return (recalibrate_error(now) * all - recalibrate_error(before) * old) / (all - old);
}

/* 0 if the daemon began anew between the reports */
static uint64_t recalibrate_tokens_between(const Kvcobra__Fit *before, const Kvcobra__Fit *now)
{
    return now->tokens >= before->tokens ? now->tokens - before->tokens : 0;
}

/*
 * Measures both tables over the same time: what was measured before may be of other traffic. Waits until
 * both have enough tokens, since with few of them the outcome is chance.
 */
static int recalibrate_measure_canary(struct recalibration *x, struct errmsg *e)
{
    const uint64_t wanted = x->o->canary_tokens;
    Kvcobra__Fit active_before, active, canary_before, canary;
    uint64_t n_active, n_pauses = 0;
    int r = recalibrate_read_fit(x, x->active, &active_before, e);

    if (r == 0)
        r = recalibrate_read_fit(x, x->digest, &canary_before, e);
    if (r < 0)
        return r;

    do {
        r = recalibrate_read_fit(x, x->active, &active, e);
        if (r == 0)
            r = recalibrate_read_fit(x, x->digest, &canary, e);
        if (r < 0)
            return r;

        x->canary_tokens = recalibrate_tokens_between(&canary_before, &canary);
        n_active = recalibrate_tokens_between(&active_before, &active);
    } while ((x->canary_tokens < wanted || n_active < wanted) && recalibrate_pause(x, &n_pauses));
    if (x->canary_tokens < wanted)
        return recalibrate_fail_late(x, "new", x->canary_tokens, wanted, e);
    if (n_active < wanted)
        return recalibrate_fail_late(x, "active", n_active, wanted, e);

    x->canary_error = recalibrate_error_between(&canary_before, &canary);
    x->canary_active_error = recalibrate_error_between(&active_before, &active);
    return 0;
}

int recalibrate_canary(struct recalibration *x, struct errmsg *e)
{
    const struct recalibrate_options *o = x->o;
    uint32_t share = (uint32_t) fmin(255, fmax(1, round(o->canary_share * 2.56)));
    int r = operator_canary_table(x->c, x->digest, share, NULL, 0, 0, NULL, e);

    if (r < 0)
        return r;

    command_note(&o->operator.common,
                 "%u of 256 new sequences use the new table until %ju tokens of each table are measured",
                 share, (uintmax_t) o->canary_tokens);
    r = recalibrate_measure_canary(x, e);
    if (r == 0 && !(x->canary_error <= x->canary_active_error * (1 + o->margin / 100)))
        r = 1;
    if (r != 0)
        (void) operator_canary_table(x->c, x->digest, 0, NULL, 0, 0, NULL, NULL);
    return r;
}
