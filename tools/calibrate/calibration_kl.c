/*
 * The KL of a table over its distortion e'Me: nearly the same number for all budgets of a model, so that a
 * solve can say what KL to expect of its table (alloc/EXPERIMENTS.md, "KL expected of a distortion").
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tools/calibrate/calibration.h"
#include "tools/command/human.h"
#include "tools/command/progress.h"
#include "tools/engine/engine.h"
#include "tools/eval/evaluation.h"
#include "tools/eval/subject.h"

enum {
    KL_WINDOWS = 6,
    KL_TOKENS = 256,    /* of each window, from its beginning */
    KL_TOKENS_MIN = 32, /* shorter ones are mostly exact sinks */
};
#define KL_BPD 3
#define KL_LEAST 1e-7 /* nats: a smaller KL is rounding */

/* Adds the KL of the beginning of a window to *sum, and its tokens to *n. */
static int calibration_kl_add(const struct calibration *cal, struct subject *table, size_t window,
                              struct progress *p, double *sum, size_t *n, struct errmsg *e)
{
    size_t bos = corpus_bos(cal->en) != UINT32_MAX, length = corpus_length(cal->corpus, window) - bos;
    struct evaluation_options o = {.n_tokens = length < KL_TOKENS ? length : KL_TOKENS};
    struct evaluation v = {0};
    int r;

    if (length < KL_TOKENS_MIN)
        return 0;

    o.window = o.n_tokens;
    r = evaluation_run(cal->en, &table, 1, corpus_window(cal->corpus, window) + bos, length, &o, p, &v, e);
    *sum += v.kl;
    *n += v.n_tokens;
    return r;
}

/* Mean KL of a table over windows that lie far apart; 0 if all are too short. Return: as
 * calibration_measure_kl(). */
static int calibration_kl_mean(const struct calibration *cal, const void *bytes, size_t n_bytes,
                               struct progress *p, double *ret, struct errmsg *e)
{
    _cleanup_(subject_freep) struct subject *table = NULL;
    kvc_stats_info info = {.struct_bytes = sizeof(info)};
    size_t n_windows = cal->corpus->n_windows, n_used = n_windows < KL_WINDOWS ? n_windows : KL_WINDOWS;
    size_t n = 0;
    double sum = 0;
    int r = kvc_stats_get_info(cal->stats, &info);

    if (r == 0)
        r = subject_table_new(cal->en, "trial.table", bytes, n_bytes,
                              &(struct subject_options){.n_sink = info.n_sink}, &table, e);
    for (size_t i = 0; r == 0 && i < n_used; i++)
        r = cal->stop && cal->stop() ? CALIBRATION_STOPPED
                                     : calibration_kl_add(cal, table, i * n_windows / n_used, p, &sum, &n, e);
    *ret = n > 0 ? sum / (double) n : 0;
    return r;
}

/* Three digits: the last ones depend on the number of threads. */
static double calibration_kl_round(double x)
{
    char text[32];

    (void) snprintf(text, sizeof(text), "%.3g", x);
    return strtod(text, NULL);
}

uint64_t calibration_kl_bytes(uint64_t stats_bytes)
{
    return 2 * stats_bytes; /* those of a solve; caches of KL_TOKENS are small */
}

/* What programs can still take without swapping; UINT64_MAX: the kernel does not say. */
static uint64_t calibration_kl_available(void)
{
    FILE *f = fopen("/proc/meminfo", "re");
    unsigned long long kib = 0;
    bool found = false;
    char line[128];

    while (f && !found && fgets(line, sizeof(line), f))
        found = sscanf(line, "MemAvailable: %llu kB", &kib) == 1;
    if (f)
        (void) fclose(f);
    return found ? (uint64_t) kib * 1024 : UINT64_MAX;
}

/* A solve that the kernel ends, since memory is short, would look like a calibration that failed. */
static int calibration_kl_check_memory(struct calibration *cal, struct errmsg *e)
{
    kvc_stats_info info = {.struct_bytes = sizeof(info)};
    char need[HUMAN_BYTES], left[HUMAN_BYTES];
    uint64_t available = calibration_kl_available(), bytes;
    int r = kvc_stats_get_info(cal->stats, &info);

    if (r < 0)
        return fail(e, r, "%s", kvc_alloc_error(cal->alloc));

    bytes = calibration_kl_bytes(info.file_bytes);
    return available >= bytes ? 0
                              : fail(e, -ENOMEM, "it takes %s of memory, and %s are left",
                                     human_bytes(bytes, need), human_bytes(available, left));
}

int calibration_measure_kl(struct calibration *cal, bool quiet, struct errmsg *e)
{
    _cleanup_(progress_end) struct progress p = {0};
    _cleanup_(freep) void *bytes = NULL;
    kvc_solve_options o = {
        .struct_bytes = sizeof(o), .bpd = KL_BPD, .progress = progress_callback, .progress_ctx = &p};
    kvc_solve_report report = {.struct_bytes = sizeof(report)};
    size_t n_bytes = 0;
    double kl = 0;
    int r = calibration_kl_check_memory(cal, e);

    if (r < 0)
        return r;

    progress_start(&p, "measuring KL", NULL, 1, quiet);
    progress_say(&p, PROGRESS_SAY_SECONDS);
    r = kvc_solve(cal->stats, &o, &bytes, &n_bytes, &report);
    progress_end(&p);
    if (r < 0)
        return fail(e, r, "%s", kvc_alloc_error(cal->alloc));

    progress_start(&p, "measuring KL", "tokens", 2.0 * KL_WINDOWS * KL_TOKENS, quiet);
    r = calibration_kl_mean(cal, bytes, n_bytes, &p, &kl, e);
    if (r != 0 || kl < KL_LEAST || !(report.distortion > 0))
        return r;

    r = kvc_stats_set_kl_per_distortion(cal->stats, calibration_kl_round(kl / report.distortion));
    return r < 0 ? fail(e, r, "%s", kvc_alloc_error(cal->alloc)) : 0;
}
