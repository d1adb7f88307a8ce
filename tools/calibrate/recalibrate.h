/*
 * One run of kvcobra recalibrate: its options and what it knows so far. cmd_recalibrate.c decides,
 * recalibrate_solve.c makes the new table, recalibrate_trial.c tries it on live traffic.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "alloc/solve/solve.h"
#include "tools/command/operator.h"
#include "tools/command/operator_tables.h"
#include "tools/command/tenant_name.h"

struct errmsg;
struct moments;
struct stats;

/*
 * Below so many tokens of traffic a table moves half way only: an hour of one kind of text is not the traffic
 * to come. Text of one kind has its mean and scales after some thousand tokens, a mixture after some ten
 * thousand.
 */
#define RECALIBRATE_WHOLE_TOKENS 50000

/* How a new table is made. */
enum recalibrate_stage {
    STAGE_AUTO,  /* both, where possible; the better one */
    STAGE_REFIT, /* bits and bases stay */
    STAGE_SOLVE, /* everything is new but the levels */
    STAGE_GIVEN, /* not made: --table */
};

struct recalibrate_options {
    struct operator_options operator;
    const char *stats, *model, *output, *table;
    struct operator_tenants tenants;
    enum recalibrate_stage stage;
    double margin, share, canary_share; /* percent */
    uint64_t min_tokens, shadow_tokens, canary_tokens, wait_s;
    bool has_min_tokens; /* the option was given */
    bool dry_run;
};

struct recalibration {
    kvc_client *c;
    const struct recalibrate_options *o;
    struct tenant_names tenants;
    uint8_t active[KVC_DIGEST_BYTES], model[KVC_DIGEST_BYTES], digest[KVC_DIGEST_BYTES];
    uint64_t tokens, revision;
    enum metric metric;
    enum recalibrate_stage stage; /* that made the candidate */
    double distortion_active[2], distortion_new[2];
    Kvcobra__Fit fit;       /* of the shadow */
    uint64_t canary_tokens; /* measured */
    double canary_error, canary_active_error;
    void *table, *candidate;
    size_t n_table, n_candidate;
    struct moments *moments;
    struct stats *metric_stats, *stats;
    struct table *parsed;
    double moved; /* share of the way from the active table to one that fits the moments; 1: all of it */
    bool already; /* the active table is the candidate, or moved towards the same moments before */
};

/* ---- recalibrate_solve.c ---- */

/* Makes the candidate from the active table, moments and statistics of @x, and compares both. Return: 0; a
 * negative errno with a sentence. */
int recalibrate_solve(struct recalibration *x, struct errmsg *e);

/* ---- recalibrate_trial.c ---- */

/* Clients encode new chunks with both tables, until enough tokens are measured, into x->fit. The shadow ends
 * in any case. Return: 0; -ETIMEDOUT; another negative errno with a sentence. */
int recalibrate_shadow(struct recalibration *x, struct errmsg *e);

/* A share of new sequences uses the candidate, until enough tokens of both tables are measured, into
 * x->canary_error and x->canary_active_error. If the candidate is worse by the margin, or on failure, the
 * canary ends. Return: 0: not worse; 1: worse; a negative errno with a sentence. */
int recalibrate_canary(struct recalibration *x, struct errmsg *e);
