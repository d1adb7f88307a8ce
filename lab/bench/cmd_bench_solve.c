/*
 * kvcobra-lab bench solve: the time of the solvers for a large model, 256 heads of dimension 128. Spectra are
 * synthetic and seeded, curves are computed with some noise (measuring real curves belongs to calibration).
 * All results are checked before the timing.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/bits/solve_bands.h"
#include "alloc/bits/solve_dp.h"
#include "alloc/bits/solve_paper.h"
#include "alloc/quantiser/levels_normal.h"
#include "base/cleanup.h"
#include "base/splitmix64.h"
#include "lab/bench/bench.h"
#include "tools/bench/machine.h"
#include "tools/bench/timing.h"
#include "tools/command/clock.h"
#include "tools/command/option.h"
#include "tools/command/report.h"

enum {
    OPT_REPEAT = 1,
    N_HEADS = 256,
    DIM = 128,
    BAND = 8,
    N_BANDS = 2 * N_HEADS * DIM / BAND, /* K and V */
    DP_OPTIONS = DIM / 2 * 7 + 1,       /* of a head: even ranks, 2 to 8 bits, or nothing stored */
    N_SOLVERS = 3,
    N_CASES = 3 * N_SOLVERS, /* budgets x solvers */
};

static const struct {
    const char *name, *json, *problem;
    int sides;
} solvers[N_SOLVERS] = {
    {"C1 and C2", "paper", "256 heads, d = 128", 1},
    {"dp", "dp", "256 heads, d = 128", 1},
    {"bands", "bands", "K and V of 256 heads, d = 128", 2},
};

static const double budgets[3] = {1, 2, 4}; /* bits per number */

struct bench_solve_options {
    struct common_options common;
    size_t repeat;
};

struct bench_solve_input {
    double w[N_HEADS * DIM]; /* descending spectra */
    double curves[N_BANDS * BANDS_OPTIONS];
    uint32_t coords[N_BANDS];
    struct dp_option options[N_HEADS * DP_OPTIONS];
    size_t first[N_HEADS + 1];
};

static const char doc[] =
    "Time the solvers: the paper's C1 and C2 and its exact dynamic programme for 256 heads of dimension 128, "
    "and the bands knapsack for the keys and values of 256 heads, at 1, 2 and 4 bits per number.\vInputs are "
    "synthetic and equal in every run. Results are checked before the timing. Minimum, median and 99th "
    "percentile over all repetitions; the cases alternate.\n\n"
    "Example:\n\n"
    "  kvcobra-lab bench solve --repeat 5";

static const struct argp_option options[] = {
    {"repeat", OPT_REPEAT, "N", 0, "Repetitions of each case (default 30)", 1},
    {0},
};

static error_t bench_solve_parse(int key, char *arg, struct argp_state *state)
{
    struct bench_solve_options *o = state->input;

    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &o->common;
        return 0;
    case OPT_REPEAT:
        o->repeat = (size_t) option_uint(state, "--repeat", arg, 1, 100000);
        return 0;
    }

    return ARGP_ERR_UNKNOWN;
}

static const struct argp argp = {options, bench_solve_parse, NULL, doc, common_children, NULL, NULL};

/* ---- input ---- */

static double bench_solve_next_uniform(uint64_t *s)
{
    return (double) (splitmix64_next(s) >> 11) * 0x1p-53;
}

/* Exponential decay with a rate per head, and energies over a hundredfold range, as for heads of real
 * models. */
static void bench_solve_make_spectrum(uint64_t *seed, double *w)
{
    double energy = exp(4.6 * bench_solve_next_uniform(seed)),
           rate = 0.01 + 0.09 * bench_solve_next_uniform(seed);

    for (unsigned i = 0; i < DIM; i++)
        w[i] = i == 0 ? energy : w[i - 1] * exp(-2 * rate * bench_solve_next_uniform(seed));
}

/* Every (r, b) of every head; 2 % of noise, as in measured curves. */
static int bench_solve_make_options(struct bench_solve_input *in, uint64_t *seed)
{
    double curve[(DIM / 2 + 1) * 7], q[BANDS_OPTIONS];
    struct paper_options o;

    paper_options_default(&o, 1);
    if (dp_options_max(DIM, &o) != DP_OPTIONS)
        return -EINVAL;

    for (unsigned b = 0; b < BANDS_OPTIONS; b++)
        q[b] = paper_bennett(b);
    for (unsigned h = 0; h < N_HEADS; h++) {
        dp_curve(in->w + (size_t) h * DIM, DIM, q, &o, curve);
        for (size_t i = 7; i < sizeof(curve) / sizeof(*curve); i++)
            curve[i] *= 1 + 0.02 * bench_solve_next_uniform(seed);
        in->first[h + 1] = in->first[h] + dp_head_options(curve, DIM, &o, in->options + in->first[h]);
    }

    return 0;
}

static int bench_solve_make_input(struct bench_solve_input *in)
{
    double error[BANDS_OPTIONS] = {1}, w[DIM];
    uint64_t seed = 1;
    int r;

    for (unsigned b = 1; b < BANDS_OPTIONS; b++) {
        struct levels l;

        r = levels_normal(QUANT_LLOYD_MAX, b, &l);
        if (r < 0)
            return r;

        error[b] = levels_normal_mse(&l, b);
    }

    for (unsigned h = 0; h < N_HEADS; h++)
        bench_solve_make_spectrum(&seed, in->w + (size_t) h * DIM);
    for (unsigned i = 0; i < N_BANDS; i++) {
        unsigned band = i % (DIM / BAND);
        double sum = 0;

        if (band == 0)
            bench_solve_make_spectrum(&seed, w);
        for (unsigned k = 0; k < BAND; k++)
            sum += w[band * BAND + k];
        /* a measured curve is not smooth: 2 % of noise makes some bands not convex */
        for (unsigned b = 0; b < BANDS_OPTIONS; b++)
            in->curves[i * BANDS_OPTIONS + b] = sum * error[b] * (1 + 0.02 * bench_solve_next_uniform(&seed));
        in->coords[i] = BAND;
    }

    return bench_solve_make_options(in, &seed);
}

/* ---- cases ---- */

struct bench_solve_output {
    struct paper_choice choice[N_HEADS];
    double B[N_HEADS];
    uint8_t bits[N_BANDS];
    struct bands_result bands;
    uint32_t option[N_HEADS];
    struct dp_result dp;
};

static int bench_solve_run_case(const struct bench_solve_input *in, unsigned k,
                                struct bench_solve_output *out)
{
    double bpd = budgets[k / N_SOLVERS];
    struct paper_options o;

    if (k % N_SOLVERS == 0) {
        paper_options_default(&o, bpd);
        return paper_c2(in->w, N_HEADS, DIM, &o, out->choice, out->B);
    }

    if (k % N_SOLVERS == 1)
        return dp_solve(
            &(struct dp_problem){N_HEADS, in->options, in->first, (uint64_t) (bpd * N_HEADS * DIM)},
            out->option, &out->dp);

    return bands_solve(&(struct bands_problem){.n_bands = N_BANDS,
                                               .distortion = in->curves,
                                               .coords = in->coords,
                                               .budget_bits = (uint64_t) (bpd * 2 * N_HEADS * DIM)},
                       out->bits, &out->bands);
}

/* The budgets of C2 add up, and every (r, b) is the choice of C1 for its budget. */
static bool bench_solve_paper_is_right(const struct bench_solve_input *in, double bpd,
                                       const struct bench_solve_output *out)
{
    double sum = 0;

    for (unsigned h = 0; h < N_HEADS; h++) {
        const struct paper_choice *c = &out->choice[h];
        double D = 0;

        for (unsigned i = 0; i < DIM; i++)
            D += in->w[h * DIM + i] * (i < c->r ? paper_bennett(c->b) : 1);
        if (fabs(D - c->D) > 1e-9 * D || c->r > out->B[h] / 2)
            return false;

        sum += out->B[h];
    }

    return fabs(sum - bpd * DIM * N_HEADS) < 1e-6 * sum;
}

/* Within the budget, with the reported distortion, within 0.1 % of the Lagrangian bound, and no change of a
 * single head is better. */
static bool bench_solve_dp_is_right(const struct bench_solve_input *in, double bpd,
                                    const struct bench_solve_output *out)
{
    uint64_t budget = (uint64_t) (bpd * N_HEADS * DIM), used = 0;
    double sum = 0;

    for (unsigned h = 0; h < N_HEADS; h++) {
        used += in->options[in->first[h] + out->option[h]].cost;
        sum += in->options[in->first[h] + out->option[h]].D;
    }

    for (unsigned h = 0; h < N_HEADS; h++)
        for (size_t i = in->first[h]; i < in->first[h + 1]; i++) {
            const struct dp_option *o = &in->options[i], *now = &in->options[in->first[h] + out->option[h]];

            if (used - now->cost + o->cost <= budget && o->D < now->D)
                return false;
        }
    return used <= budget && used == out->dp.used_bits && fabs(sum - out->dp.D) < 1e-9 * sum &&
           sum >= out->dp.lower_bound * (1 - 1e-9) && sum <= out->dp.lower_bound * 1.001;
}

/* Within the budget, with the reported distortion, and within the largest step of one band of the Lagrangian
 * bound. */
static bool bench_solve_bands_are_right(const struct bench_solve_input *in, double bpd,
                                        const struct bench_solve_output *out)
{
    uint64_t budget = (uint64_t) (bpd * 2 * N_HEADS * DIM), used = 0;
    double sum = 0, bound = -out->bands.multiplier * (double) budget;

    for (unsigned i = 0; i < N_BANDS; i++) {
        const double *curve = in->curves + (size_t) i * BANDS_OPTIONS;
        double best = INFINITY;

        for (unsigned b = 0; b < BANDS_OPTIONS; b++)
            best = fmin(best, curve[b] + out->bands.multiplier * BAND * b);
        bound += best;
        sum += curve[out->bits[i]];
        used += (uint64_t) BAND * out->bits[i];
    }

    return used <= budget && used == out->bands.used_bits && fabs(sum - out->bands.distortion) < 1e-9 * sum &&
           sum <= bound + out->bands.multiplier * 8 * BAND && sum >= bound * (1 - 1e-9);
}

static int bench_solve_check_cases(const struct bench_solve_input *in, struct bench_solve_output *out)
{
    for (unsigned k = 0; k < N_CASES; k++) {
        static bool (*const right[N_SOLVERS])(const struct bench_solve_input *, double,
                                              const struct bench_solve_output *) = {
            bench_solve_paper_is_right,
            bench_solve_dp_is_right,
            bench_solve_bands_are_right,
        };
        double bpd = budgets[k / N_SOLVERS];

        if (bench_solve_run_case(in, k, out) < 0)
            return command_fail("out of memory");
        if (!right[k % N_SOLVERS](in, bpd, out))
            return command_fail("the result of %s at %g bits per number is wrong; nothing was timed",
                                solvers[k % N_SOLVERS].name, bpd);
    }

    return COMMAND_OK;
}

/* ---- timing ---- */

/* @seconds: [N_CASES, repeat]. The cases alternate, so that a busy moment of the machine affects all of
 * them. */
static int bench_solve_time_cases(const struct bench_solve_input *in, struct bench_solve_output *out,
                                  size_t repeat, double *seconds, struct timing ret[N_CASES])
{
    for (size_t i = 0; i < repeat; i++)
        for (unsigned k = 0; k < N_CASES; k++) {
            double start = clock_seconds();

            if (bench_solve_run_case(in, k, out) < 0)
                return command_fail("out of memory");

            seconds[k * repeat + i] = clock_seconds() - start;
        }
    for (unsigned k = 0; k < N_CASES; k++)
        ret[k] = timing_of(seconds + k * repeat, repeat);
    return COMMAND_OK;
}

/* ---- output ---- */

static int bench_solve_print_text(const struct timing *t, size_t repeat, const char *cpu)
{
    _cleanup_(report_freep) struct report *r =
        report_new("<solver\t<problem\t>bpd\t>min ms\t>median ms\t>p99 ms");

    printf("CPU %s, one thread, %s, %zu repetitions, caches warm\n\n", cpu, COMPILER, repeat);
    for (unsigned k = 0; k < N_CASES; k++)
        report_row(r, "%s\t%s\t%g\t%.2f\t%.2f\t%.2f", solvers[k % N_SOLVERS].name,
                   solvers[k % N_SOLVERS].problem, budgets[k / N_SOLVERS], t[k].min * 1e3, t[k].median * 1e3,
                   t[k].p99 * 1e3);
    report_print(r, stdout);
    return COMMAND_OK;
}

static int bench_solve_print_json(const struct timing *t, size_t repeat, const char *cpu)
{
    json_t *all = json_array();

    for (unsigned k = 0; k < N_CASES; k++)
        if (json_array_append_new(all, json_pack("{s:s, s:i, s:i, s:i, s:f, s:f, s:f, s:f}", "solver",
                                                 solvers[k % N_SOLVERS].json, "heads", N_HEADS, "sides",
                                                 solvers[k % N_SOLVERS].sides, "d", DIM, "bpd",
                                                 budgets[k / N_SOLVERS], "min_s", t[k].min, "median_s",
                                                 t[k].median, "p99_s", t[k].p99)) < 0) {
            json_decref(all);
            return report_json(NULL);
        }
    return report_json(json_pack("{s:s, s:s, s:I, s:o}", "cpu", cpu, "compiler", COMPILER, "repetitions",
                                 (json_int_t) repeat, "results", all));
}

static int bench_solve_run(int argc, char **argv)
{
    struct bench_solve_options o = {.repeat = 30};
    _cleanup_(freep) struct bench_solve_input *in = NULL;
    _cleanup_(freep) struct bench_solve_output *out = NULL;
    _cleanup_(freep) double *seconds = NULL;
    struct timing timings[N_CASES];
    char cpu[MACHINE_CPU_NAME_BYTES];
    int r;

    command_parse(&argp, argc, argv, &o);
    in = calloc(1, sizeof(*in));
    out = malloc(sizeof(*out));
    seconds = calloc(o.repeat, N_CASES * sizeof(*seconds));
    if (!in || !out || !seconds || bench_solve_make_input(in) < 0)
        return command_fail("out of memory");

    r = bench_solve_check_cases(in, out);
    if (r != COMMAND_OK)
        return r;

    r = bench_solve_time_cases(in, out, o.repeat, seconds, timings);
    if (r != COMMAND_OK)
        return r;

    machine_cpu_name(cpu);
    return o.common.json ? bench_solve_print_json(timings, o.repeat, cpu)
                         : bench_solve_print_text(timings, o.repeat, cpu);
}

const struct command bench_solve = {
    .name = "solve",
    .summary = "the paper's solvers and the bands knapsack, 256 heads",
    .run = bench_solve_run,
};
