/*
 * From statistics to a table: the methods, metrics and curves of DESIGN section 3. The commands `calibrate`,
 * `solve` and `recalibrate` call this; the steps inside are declared in solve_internal.h.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "alloc/bits/solve_paper.h"
#include "alloc/solve/solve_names.h"
#include "alloc/table/table.h"

struct stats;
struct errmsg;

#define SOLVE_LOADING_MAX 2.0

struct solve_options {
    double bpd;          /* code bits per number, K and V together */
    double k_bpd, v_bpd; /* both > 0: separate budgets, @bpd ignored */
    enum method method;
    enum metric metric;
    enum curve curve;
    enum quantiser quantiser;        /* bands: QUANT_LLOYD_MAX; paper and dp: QUANT_UNIFORM_MIDTREAD */
    bool fit_levels;                 /* bands with QUANT_LLOYD_MAX */
    const struct table *levels_from; /* bands: take the levels of this table; borrowed; or NULL */
    /* bands, by side; DESIGN 3.3: levels and thresholds are as many times those of least squared error */
    double loading[2], loading_narrow[2]; /* of widths from 2 on, and of width 1 */
    double contrast[2];                   /* how much of the shrinkage of what is decoded is undone, 0..1 */
    uint32_t
        trellis_states; /* bands with QUANT_LLOYD_MAX: of widths up to 4; 64, 128 or 256; 0: scalar levels */
    bool half_matrices; /* bands: of a table with trellises, in binary16 */
    bool blocks;        /* bands: fast and slow RoPE planes of keys have bases of their own */
    enum prediction v_from;     /* bands: the K codes that predict values */
    enum decoder decoder;       /* bands: the encoder's inverse, or least squares on the codes as stored */
    bool leave_out;             /* bands: fit to sources that were left out, if there are several */
    uint32_t without;           /* 0, or number + 1 of a source that the solve does not use */
    bool depth_weights;         /* if the statistics hold them; for METRIC_ATTENTION only */
    double temper;              /* bands: M^temper at the trace of M; 0: metric_power() */
    double floor_bpd, ceil_bpd; /* per head-side; 0, 8 */
    uint64_t seed;              /* signs of rotations */
    uint32_t n_threads;         /* 0: as many as the process may use processors */
    struct paper_options paper; /* paper: all but bpd; dp: B_min, rank_step, b_min, b_max; bands: not used */
    void (*progress)(void *ctx, const char *what, double fraction);
    void *progress_ctx;
};
void solve_options_default(struct solve_options *o, double bpd); /* METHOD_BANDS with its default options */
/* The default options of @method. */
void solve_options_for(struct solve_options *o, enum method method, double bpd);

/* Loading 1 and contrast 0: the least squared error, instead of the least KL. */
void solve_options_least_squares(struct solve_options *o);

/* The loading of codes of @b bits. */
double solve_loading(const struct solve_options *o, unsigned side, unsigned b);

/* Whether there is a trellis of @states states. */
static inline bool solve_trellis_exists(double states)
{
    return states == 64 || states == 128 || states == 256;
}

/* Distortion at a budget, by the curves of a solve. */
struct solve_point {
    double bpd, distortion, equal; /* equal: with @bpd for every head-side */
};
#define SOLVE_POINTS 4 /* 1.5, 2, 3 and 4 bits per number */

struct solve_report {             /* measured on the finished table; `kvcobra solve` prints it */
    double bpd_code, bpd_nominal; /* nominal: sum r b without padding (what the paper charges) */
    double k_bpd, v_bpd;
    double distortion, distortion_k, distortion_v;
    double distortion_estimated; /* by the curves, before the table was built */
    bool measured;               /* the statistics have samples; else distortions and errors are 0 */
    /* |x - decoded|^2 / |x - mean|^2, mean over layers; live errors are compared with these */
    double error_k, error_v;
    double saturated[2]; /* by side: share of the coordinates beyond levels_saturation_limits() */
    /* expected of a source that the table was not fitted to; only if sources were left out */
    struct {
        bool expected;
        double distortion;
        double error[2]; /* by side, as error_k and error_v */
        double saturated[2];
    } unseen;
    /* of one source of the tokens, if it is too large for leaving sources out; else 0 */
    double largest_share;
    /* of other text, or of the statistics' own if no source was left out: nats per token, by
     * stats_kl_per_distortion(); 0: not measured, or of options whose distortion means something else */
    double expected_kl;
    uint32_t reduced;           /* bit i: source i of the statistics is odd (solver.h) and counts less */
    double left_out_distortion; /* of the source solve_options.without, measured */
};

/**
 * solve_table() - allocate and build
 * @ret_bytes: malloc'ed table file image
 * Return: 0; -EINVAL: options that exclude each other, or a metric that the statistics lack, named; -ERANGE:
 * budget cannot be met (the sentence names the smallest possible); -EAGAIN: the threads that @o asks for
 * could not be started; -ENOMEM.
 */
int solve_table(const struct stats *s, const struct solve_options *o, void **ret_bytes, size_t *ret_n_bytes,
                struct solve_report *ret_report, struct errmsg *e);

/**
 * solve_distortion() - distortion of the sampled vectors by a table, by layer and side
 * @o: metric and depth weights; with the options of the solve that gave @t, the sums are those of its report
 * @ret_distortion: [n_layers, 2] by layer and side, summed over heads
 *
 * The distortion is the mean over tokens of e'Me, squared error in the metric, times the head's depth weight.
 *
 * Return: 0; -EINVAL: another geometry, options that the statistics cannot serve, no sampled tokens; -ENOMEM.
 */
int solve_distortion(const struct stats *s, const struct table *t, const struct solve_options *o,
                     double *ret_distortion, struct errmsg *e);

/* The same for each head: @ret_distortion [head_side_count()], by head_side_index(). */
int solve_distortion_heads(const struct stats *s, const struct table *t, const struct solve_options *o,
                           double *ret_distortion, struct errmsg *e);

/**
 * solve_options_read() - options a table was solved with, from its provenance
 * @ret:            without progress
 * @ret_statistics: SHA-256 of the statistics that it was solved from
 *
 * Return: 0; -ENODATA: the table was not solved by this program, codes one layer only, or has unknown
 * options; the sentence names the first one.
 */
int solve_options_read(const char *provenance, struct solve_options *ret,
                       uint8_t ret_statistics[static DIGEST_BYTES], struct errmsg *e);
