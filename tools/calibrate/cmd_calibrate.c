/*
 * kvcobra calibrate: runs texts through the exact model and writes the statistics that tables of any budget
 * are solved from.
 */
#include <cblas.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "alloc/moments/moments.h"
#include "alloc/stats/stats.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tools/calibrate/calibrate_arguments.h"
#include "tools/calibrate/calibrate_corpus.h"
#include "tools/calibrate/calibrate_quick.h"
#include "tools/calibrate/calibration.h"
#include "tools/calibrate/checkpoint.h"
#include "tools/command/clock.h"
#include "tools/command/command.h"
#include "tools/command/human.h"
#include "tools/command/interrupt.h"
#include "tools/command/output_path.h"
#include "tools/command/progress.h"
#include "tools/command/report.h"
#include "tools/command/usage.h"
#include "tools/engine/engine.h"

/* A run of the command, from model to file. */
struct cmd_calibrate_run {
    const struct calibrate_arguments *a;
    struct engine *en;
    kvc_model_id id;
    kvc_stats_options so;
    kvc_alloc *alloc; /* owns the statistics */
    kvc_stats *stats; /* one of the two */
    struct moments *moments;
    struct corpus corpus;
    struct calibration cal;
    char *checkpoint; /* path */
    char *table;      /* path, with --quick; else NULL */
    kvc_solve_report report;
    uint8_t plan[DIGEST_BYTES];
};

static void cmd_calibrate_run_deinit(struct cmd_calibrate_run *r)
{
    (void) engine_free(r->en);
    (void) kvc_alloc_free(r->alloc);
    (void) moments_free(r->moments);
    corpus_deinit(&r->corpus);
    free(r->checkpoint);
    free(r->table);
}

static int cmd_calibrate_check_window(const struct cmd_calibrate_run *r, struct errmsg *e)
{
    const struct engine_info *info = engine_info(r->en);
    uint32_t limit =
        info->window_tokens && info->window_tokens < info->n_context ? info->window_tokens : info->n_context;

    if (r->a->window > limit)
        return fail(e, -EINVAL, "%s reads at most %u tokens; --window %zu is too long", r->a->model, limit,
                    r->a->window);
    if (r->a->window <= r->a->n_sink)
        return fail(e, -EINVAL,
                    "--window %zu is too short: the first %u tokens of a window stay exact (--sinks)",
                    r->a->window, r->a->n_sink);

    return 0;
}

static int cmd_calibrate_fail(const struct cmd_calibrate_run *r, int err, struct errmsg *e)
{
    return fail(e, err, "%s", kvc_alloc_error(r->alloc));
}

static void cmd_calibrate_make_stats_options(struct cmd_calibrate_run *r)
{
    engine_model_id(r->en, &r->id);
    r->so = (kvc_stats_options){
        .struct_bytes = sizeof(r->so),
        .geometry = r->id.geometry,
        .model_name = engine_info(r->en)->name,
        .n_sink = r->a->n_sink,
        .n_samples = r->a->n_samples,
        .seed = r->a->seed,
    };
    memcpy(r->so.model_digest, r->id.model_digest, sizeof(r->so.model_digest));
    if (r->a->attention)
        r->so.metrics |= KVC_WITH_ATTENTION;
    if (r->a->output_metric)
        r->so.metrics |= KVC_WITH_OUTPUT;
}

static uint64_t cmd_calibrate_larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* OpenBLAS 0.3.21 does not recognise newer processors, and reads the environment before main(). */
static void cmd_calibrate_hint_at_kernels(const struct cmd_calibrate_run *r)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
        strcmp(openblas_get_corename(), "Haswell") == 0)
        command_note(&r->a->common, "OpenBLAS uses kernels for older processors: OPENBLAS_CORETYPE=SkylakeX "
                                    "in the environment makes this faster and changes the last digits");
#else
    (void) r;
#endif
}

/* What the statistics take in the end: a corpus of fewer tokens than samples fills a part of them. */
static int cmd_calibrate_estimate(const struct cmd_calibrate_run *r, size_t tokens, kvc_stats_estimate *ret,
                                  uint32_t *ret_n_samples, struct errmsg *e)
{
    kvc_stats_options so = r->so;
    int err;

    *ret = (kvc_stats_estimate){.struct_bytes = sizeof(*ret)};
    err = kvc_stats_get_estimate(r->alloc, &so, r->a->window, ret);
    if (err < 0)
        return cmd_calibrate_fail(r, err, e);

    *ret_n_samples = ret->n_samples;
    if (tokens >= ret->n_samples)
        return 0;

    so.n_samples = (uint32_t) tokens;
    err = kvc_stats_get_estimate(r->alloc, &so, r->a->window, ret);
    return err < 0 ? cmd_calibrate_fail(r, err, e) : 0;
}

static int cmd_calibrate_announce(const struct cmd_calibrate_run *r, const struct corpus_options *own,
                                  struct errmsg *e)
{
    const struct calibrate_arguments *a = r->a;
    size_t tokens = corpus_tokens(&r->corpus) + own->n_tokens;
    char stats[HUMAN_BYTES], more[HUMAN_BYTES];
    kvc_stats_estimate estimate;
    uint64_t beside, kept;
    uint32_t n_samples = 0;
    int err = cmd_calibrate_estimate(r, tokens, &estimate, &n_samples, e);

    if (err < 0)
        return err;

    beside = calibration_windows_bytes(r->en, a->window, a->fisher) + estimate.window_bytes;
    kept = a->moments_only ? moments_bytes(engine_geometry(r->en), false) : estimate.stats_bytes;
    if (!a->moments_only && a->fisher)
        kept += estimate.gradients_bytes;
    if (!a->moments_only)
        beside = cmd_calibrate_larger(beside, calibration_kl_bytes(kept));

    if (calibrate_arguments_want_depth(a))
        beside = cmd_calibrate_larger(beside, calibration_depth_bytes(r->en, a->window));
    if (own->n_tokens > 0)
        beside = cmd_calibrate_larger(beside, corpus_model_bytes(r->en, own));
    if (!a->moments_only && n_samples < KVC_SAMPLES_DEFAULT && a->n_samples == 0)
        command_note(
            &a->common,
            "the vectors of %u tokens are stored, %s; --samples %d stores as many as for smaller models",
            n_samples, human_bytes(STATS_SAMPLES_BYTES, stats), KVC_SAMPLES_DEFAULT);
    command_note(&a->common,
                 "the %s need %s of memory and about as much on disk; calibrating needs up to %s more "
                 "memory, beside the model",
                 a->moments_only ? "moments" : "statistics", human_bytes(kept, stats),
                 human_bytes(beside, more));
    return 0;
}

/* ---- corpus ---- */

/* Reports sources that do not stay apart. */
static void cmd_calibrate_note_small_sources(const struct cmd_calibrate_run *r)
{
    const struct corpus *c = &r->corpus;
    size_t n = 0, tokens = 0;

    for (uint32_t i = 0; i < c->n_sources; i++)
        if (c->sources[i].windows > 0 && !corpus_is_apart(c, i)) {
            n++;
            tokens += c->sources[i].tokens;
        }
    if (n > 0)
        command_note(&r->a->common,
                     "at most %d sources stay apart in statistics: the %zu smallest texts, %zu tokens, are "
                     "added up as one",
                     STATS_DOMAINS_MAX, n, tokens);
}

/* Texts first: their errors are reported before the long work. */
static int cmd_calibrate_make_corpus(struct cmd_calibrate_run *r, struct errmsg *e)
{
    struct corpus_options own;
    int err = calibrate_corpus_read(r->en, r->a, &r->corpus, e);

    if (err < 0)
        return err;

    own = calibrate_corpus_own(r->a, &r->corpus);
    err = cmd_calibrate_announce(r, &own, e);
    if (err < 0)
        return err;

    cmd_calibrate_hint_at_kernels(r);
    return calibrate_corpus_write(r->en, r->a, &own, &r->corpus, e);
}

/* ---- statistics ---- */

static int cmd_calibrate_new_stats(struct cmd_calibrate_run *r, struct errmsg *e)
{
    int err = kvc_stats_new(r->alloc, &r->so, &r->stats);

    for (size_t i = 0; err == 0 && i < r->corpus.n_sources; i++) {
        const struct stats_source *from = &r->corpus.sources[i];
        kvc_stats_source source = {
            .struct_bytes = sizeof(source),
            .bytes = from->bytes,
            .tokens = from->tokens,
            .windows = from->windows,
            .window = from->window,
            .kind = from->kind,
        };

        if (from->windows == 0) /* a text that is not used */
            continue;

        memcpy(source.digest, from->digest, sizeof(source.digest));
        err = kvc_stats_add_source(r->stats, &source);
    }

    return err < 0 ? cmd_calibrate_fail(r, err, e) : 0;
}

static int cmd_calibrate_new_sums(struct cmd_calibrate_run *r, struct errmsg *e)
{
    struct moments_options mo = {.geometry = *engine_geometry(r->en), .n_sink = r->so.n_sink};

    if (!r->a->moments_only)
        return cmd_calibrate_new_stats(r, e);

    memcpy(mo.model_digest, r->so.model_digest, sizeof(mo.model_digest));
    (void) snprintf(mo.model_name, sizeof(mo.model_name), "%s", r->so.model_name);
    return moments_new(&mo, &r->moments, e);
}

/* Starts with empty sums, or with those of the checkpoint. */
static int cmd_calibrate_begin(struct cmd_calibrate_run *r, struct progress *p, struct errmsg *e)
{
    kvc_stats *stats = NULL;
    struct moments *moments = NULL;
    int err = cmd_calibrate_new_sums(r, e);

    if (err < 0)
        return err;

    r->cal = (struct calibration){
        .en = r->en,
        .alloc = r->alloc,
        .stats = r->stats,
        .moments = r->moments,
        .corpus = &r->corpus,
        .gradients = r->a->fisher,
        .seed = r->a->seed,
        .progress = p,
        .stop = interrupt_seen,
    };
    checkpoint_plan(&r->cal, calibrate_arguments_want_depth(r->a), r->plan);
    if (!r->a->resume)
        return 0;

    err = checkpoint_load(r->checkpoint, &r->cal, r->plan, &stats, &moments, e);
    if (err < 0)
        return err;

    (void) kvc_stats_free(r->stats);
    (void) moments_free(r->moments);
    r->cal.stats = r->stats = stats;
    r->cal.moments = r->moments = moments;
    return 0;
}

static int cmd_calibrate_save(const struct cmd_calibrate_run *r, struct errmsg *e)
{
    int err = r->stats ? kvc_stats_save(r->stats, r->a->output) : moments_save(r->moments, r->a->output, e);

    if (err < 0 && r->stats)
        return cmd_calibrate_fail(r, err, e);
    if (err == 0)
        (void) unlink(r->checkpoint); /* of an earlier, interrupted run, if any */
    return err;
}

/* Saves the checkpoint and reports how to continue. */
static int cmd_calibrate_stop(const struct cmd_calibrate_run *r, struct errmsg *e)
{
    int err = checkpoint_save(r->checkpoint, &r->cal, r->plan, e);

    if (err < 0)
        return err;

    return fail(
        e, -EINTR,
        "interrupted after %zu of %zu windows; %s holds them, and the same command with --resume continues",
        r->cal.n_done, r->corpus.n_windows, r->checkpoint);
}

/* The statistics are whole and saved; they are saved again if the KL can be measured. */
static int cmd_calibrate_measure_kl(struct cmd_calibrate_run *r, struct errmsg *e)
{
    struct errmsg why = {"interrupted"};
    int err = calibration_measure_kl(&r->cal, r->a->common.quiet, &why);

    if (err == 0)
        return cmd_calibrate_save(r, e);

    command_note(&r->a->common, "solves of these statistics cannot say what KL to expect: %s", why.text);
    return 0;
}

static int cmd_calibrate_measure(struct cmd_calibrate_run *r, struct errmsg *e)
{
    const struct calibrate_arguments *a = r->a;
    _cleanup_(progress_end) struct progress p = {0};
    int err;

    progress_start(&p, "calibrating", "tokens", (double) corpus_tokens(&r->corpus), a->common.quiet);
    progress_say(&p, PROGRESS_SAY_SECONDS);
    err = cmd_calibrate_begin(r, &p, e);
    if (err < 0)
        return err;

    cmd_calibrate_note_small_sources(r);
    progress_resume(&p, (double) corpus_start(&r->corpus, r->cal.n_done));
    interrupt_watch();
    err = calibration_add_windows(&r->cal, e);
    if (err == 0 && calibrate_arguments_want_depth(a)) {
        progress_end(&p);
        progress_start(&p, "measuring depth weights", NULL, 1, a->common.quiet);
        progress_say(&p, PROGRESS_SAY_SECONDS);
        err = calibration_measure_depth(&r->cal, e);
    }

    if (err == CALIBRATION_STOPPED)
        return cmd_calibrate_stop(r, e);

    progress_end(&p);
    err = err < 0 ? err : cmd_calibrate_save(r, e);
    return err < 0 || !r->stats || a->quick ? err : cmd_calibrate_measure_kl(r, e);
}

static int cmd_calibrate_write_statistics(struct cmd_calibrate_run *r, struct errmsg *e)
{
    const struct engine_options eo = {0};
    int err = kvc_alloc_new(&r->alloc);

    if (err < 0)
        return fail(e, err, "out of memory");

    err = output_check(r->a->output, &r->a->model, 1, e);
    if (err < 0)
        return err;

    err = output_check(r->a->output, r->a->texts, r->a->n_texts, e);
    if (err == 0 && r->a->quick)
        err = calibrate_quick_check(r->a, &r->table, e);
    if (err < 0)
        return err;

    err = engine_open(r->a->model, &eo, &r->en, e);
    if (err < 0)
        return err;

    r->checkpoint = checkpoint_path(r->a->output);
    if (!r->checkpoint)
        return fail(e, -ENOMEM, "out of memory for the name of a file");

    err = cmd_calibrate_check_window(r, e);
    if (err < 0)
        return err;

    cmd_calibrate_make_stats_options(r);
    err = cmd_calibrate_make_corpus(r, e);
    if (err == 0)
        err = cmd_calibrate_measure(r, e);
    return err < 0 || !r->table ? err : calibrate_quick_solve(r->a, r->alloc, r->table, &r->report, e);
}

/* ---- result ---- */

static int cmd_calibrate_print_result(const struct cmd_calibrate_run *r, double seconds)
{
    const struct calibrate_arguments *a = r->a;
    kvc_stats_info info = {.struct_bytes = sizeof(info)};
    uint64_t tokens;
    struct stat st = {0};
    char bytes[HUMAN_BYTES], took[HUMAN_BYTES], peak[HUMAN_BYTES];

    if (r->stats && kvc_stats_get_info(r->stats, &info) < 0)
        return command_fail("%s", kvc_alloc_error(r->alloc));

    tokens = r->stats ? info.tokens : moments_count(r->moments, 0, 0);
    (void) stat(a->output, &st); /* on failure the size is 0 */
    if (a->common.json) {
        json_t *j = json_pack("{s:s, s:I, s:I, s:I, s:I, s:b, s:b, s:b, s:I, s:f}", "statistics", a->output,
                              "tokens", (json_int_t) tokens, "windows", (json_int_t) r->corpus.n_windows,
                              "samples", (json_int_t) info.samples, "bytes", (json_int_t) st.st_size,
                              "moments", (int) a->moments_only, "depth_weights", (int) info.depth,
                              "gradients", (int) info.gradients, "peak_bytes",
                              (json_int_t) usage_peak_bytes(), "seconds", seconds);

        return report_json(r->table ? calibrate_quick_json(j, r->table, &r->report) : j);
    }

    printf("%s: %ju tokens of %zu windows, ", a->output, (uintmax_t) tokens, r->corpus.n_windows);
    if (a->moments_only)
        printf("moments only");
    else
        printf("vectors of %ju%s%s", (uintmax_t) info.samples, info.depth ? ", depth weights measured" : "",
               info.gradients ? ", gradients" : "");
    printf("; %s\n%s, peak memory %s with the pages of the model\n",
           human_bytes((uint64_t) st.st_size, bytes), human_seconds(seconds, took),
           human_bytes(usage_peak_bytes(), peak));
    if (r->table)
        calibrate_quick_print(a, r->table, &r->report);
    return COMMAND_OK;
}

static int cmd_calibrate_run(int argc, char **argv)
{
    struct calibrate_arguments a;
    _cleanup_(cmd_calibrate_run_deinit) struct cmd_calibrate_run r = {.a = &a};
    double begun = clock_seconds();
    struct errmsg e = {""};
    int code;

    calibrate_arguments_default(&a);
    command_parse(&calibrate_argp, argc, argv, &a);
    code = cmd_calibrate_write_statistics(&r, &e) < 0
               ? command_fail("%s", e.text)
               : cmd_calibrate_print_result(&r, clock_seconds() - begun);
    calibrate_arguments_deinit(&a);
    return code;
}

COMMAND(cmd_calibrate) = {
    .name = "calibrate",
    .summary = "measure which directions of a model's cache matter",
    .run = cmd_calibrate_run,
    .rank = 20,
    .related = "merge solve",
};
