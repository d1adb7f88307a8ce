/*
 * From statistics to a table: the methods, metrics and curves of DESIGN section 3.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "alloc/quant.h"
#include "alloc/solve_paper.h"
#include "alloc/table.h"

struct stats;
struct errmsg;

enum method { METHOD_BANDS = 0, METHOD_PAPER_MSE = 1, METHOD_PAPER_KL = 2, METHOD_DP = 3 };
enum metric { METRIC_MSE = 0, METRIC_QUERY = 1, METRIC_ATTENTION = 2, METRIC_FISHER = 3, METRIC_OUTPUT = 4 };
enum decoder { DECODER_INVERSE = 0, DECODER_LEAST_SQUARES = 1 };
enum curve { CURVE_MEASURED = 0, CURVE_GAUSSIAN = 1, CURVE_BENNETT = 2 };

struct solve_options {
    double bpd;          /* total code bits per number; or: */
    double k_bpd, v_bpd; /* both > 0: budgets apart, @bpd ignored */
    enum method method;
    enum metric metric;
    enum curve curve;
    enum quantiser quantiser;        /* bands: QUANT_LLOYD_MAX; paper and dp: QUANT_UNIFORM_MIDTREAD */
    bool fit_levels;                 /* bands with QUANT_LLOYD_MAX */
    const struct table *levels_from; /* bands: keep the levels of this table; borrowed; NULL: do not */
    enum prediction v_from;          /* bands: what values are predicted from */
    enum decoder decoder; /* bands: the encoder's inverse, or fitted to what the codes turned out to be */
    bool depth_weights;   /* if the statistics carry them; they are of `attention` */
    double temper;        /* bands: M^temper at the trace of M; 0: metric_power() */
    double floor_bpd, ceil_bpd; /* per head-side; 0, 8 */
    uint64_t seed;              /* signs of rotations */
    struct paper_options paper; /* paper: all but bpd; dp: B_min, rank_step, b_min, b_max; bands: not used */
    void (*progress)(void *ctx, const char *what, double fraction);
    void *progress_ctx;
};
void solve_options_default(struct solve_options *o, double bpd); /* METHOD_BANDS and what goes with it */
/* The options that define @method, so that only what a user changes needs setting. */
void solve_options_for(struct solve_options *o, enum method method, double bpd);

struct solve_report {             /* printed by the command, recomputed at the end from the table itself */
    double bpd_code, bpd_nominal; /* nominal: sum r b without padding (what the paper charges) */
    double k_bpd, v_bpd;
    double distortion, distortion_k, distortion_v;
    double distortion_estimated; /* what the solver believed */
    bool judged;                 /* there were samples; else the errors below mean nothing */
    double error_k,
        error_v; /* |x - decoded|^2 by |x - mean|^2, mean over layers: what live errors compare with */
};

/**
 * solve_table() - allocate and build
 * @ret_bytes: malloc'ed table file image
 * Return: 0; -EINVAL: options that exclude each other, or a metric that the statistics lack, named; -ERANGE:
 * budget cannot be met (the sentence says the smallest possible); -ENOMEM.
 */
int solve_table(const struct stats *s, const struct solve_options *o, void **ret_bytes, size_t *ret_n_bytes,
                struct solve_report *ret_report, struct errmsg *e);

/**
 * solve_harm() - what a table does to the sampled vectors, layer by layer
 * @o:        metric and weights that harm is counted in; those the table was solved with give its report's
 * sums
 * @ret_harm: [n_layers, 2] by layer and side, summed over heads
 *
 * Return: 0; -EINVAL: another geometry, options that the statistics cannot serve, no sampled tokens; -ENOMEM.
 */
int solve_harm(const struct stats *s, const struct table *t, const struct solve_options *o, double *ret_harm,
               struct errmsg *e);

/* The same head by head: @ret_harm [head_side_count()], by head_side_index(). */
int solve_harm_heads(const struct stats *s, const struct table *t, const struct solve_options *o,
                     double *ret_harm, struct errmsg *e);

/**
 * solve_options_read() - how a table was solved, from its provenance
 * @ret:            without progress
 * @ret_statistics: SHA-256 of the statistics that it was solved from
 *
 * Return: 0; -ENODATA: a table that other means made, or of one layer, or with options unknown here; the
 * first of them is named.
 */
int solve_options_read(const char *provenance, struct solve_options *ret,
                       uint8_t ret_statistics[static DIGEST_BYTES], struct errmsg *e);

/* Names as the command line spells them; -EINVAL if unknown. */
int solve_method_from_name(const char *name, enum method *ret);
int solve_metric_from_name(const char *name, enum metric *ret);
int solve_curve_from_name(const char *name, enum curve *ret);
const char *solve_method_name(enum method m);
const char *solve_metric_name(enum metric m);
const char *solve_curve_name(enum curve c);
int solve_decoder_from_name(const char *name, enum decoder *ret);
const char *solve_decoder_name(enum decoder d);
int solve_prediction_from_name(const char *name, enum prediction *ret);
const char *solve_prediction_name(enum prediction p);
int solve_quantiser_from_name(const char *name, enum quantiser *ret);
const char *solve_quantiser_name(enum quantiser q);
