/* See calibrate_quick.h. */
#include "tools/calibrate/calibrate_quick.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/atomic_file.h"
#include "base/cleanup.h"
#include "base/digest.h"
#include "base/errmsg.h"
#include "tools/calibrate/calibrate_arguments.h"
#include "tools/command/output_path.h"
#include "tools/command/progress.h"
#include "tools/command/terminal.h"

/* Bytes of @name without @suffix. */
static size_t calibrate_quick_stem(const char *name, const char *suffix)
{
    size_t n = strlen(name), m = strlen(suffix);

    return n > m && strcmp(name + n - m, suffix) == 0 ? n - m : n;
}

char *calibrate_quick_output(const char *model)
{
    const char *slash = strrchr(model, '/'), *name = slash ? slash + 1 : model;
    char *output;

    return asprintf(&output, "%.*s-quick.stats", (int) calibrate_quick_stem(name, ".gguf"), name) < 0
               ? NULL
               : output;
}

int calibrate_quick_check(const struct calibrate_arguments *a, char **ret_table, struct errmsg *e)
{
    _cleanup_(freep) char *table = NULL;
    const char *const inputs[] = {a->model, a->output};
    int r;

    if (asprintf(&table, "%.*s.table", (int) calibrate_quick_stem(a->output, ".stats"), a->output) < 0) {
        table = NULL;
        return fail(e, -ENOMEM, "out of memory for the name of a file");
    }

    r = output_check(table, inputs, sizeof(inputs) / sizeof(inputs[0]), e);
    if (r == 0)
        r = output_check(table, a->texts, a->n_texts, e);
    if (r < 0)
        return r;

    *ret_table = take_ptr(table);
    return 0;
}

int calibrate_quick_solve(const struct calibrate_arguments *a, kvc_alloc *alloc, const char *table,
                          kvc_solve_report *ret, struct errmsg *e)
{
    _cleanup_(progress_end) struct progress p = {0};
    _cleanup_(freep) void *bytes = NULL;
    kvc_solve_options o = {
        .struct_bytes = sizeof(o), .bpd = a->bpd, .progress = progress_callback, .progress_ctx = &p};
    kvc_stats *stats = NULL; /* read from the file: the table is that of kvcobra solve */
    size_t n_bytes = 0;
    int r = kvc_stats_load(alloc, a->output, NULL, &stats);

    *ret = (kvc_solve_report){.struct_bytes = sizeof(*ret)};
    progress_start(&p, "solving", NULL, 1, a->common.quiet);
    progress_say(&p, PROGRESS_SAY_SECONDS);
    if (r == 0)
        r = kvc_solve(stats, &o, &bytes, &n_bytes, ret);
    if (r < 0)
        (void) fail(e, r, "%s", kvc_alloc_error(alloc));
    (void) kvc_stats_free(stats);
    return r < 0 ? r : atomic_file_write(table, bytes, n_bytes, e);
}

json_t *calibrate_quick_json(json_t *j, const char *table, const kvc_solve_report *report)
{
    _cleanup_(json_decrefp) json_t *more = NULL;
    char hex[DIGEST_HEX_BYTES];

    more = json_pack("{s:s, s:s, s:f, s:f}", "table", table, "digest", digest_hex(report->table_digest, hex),
                     "bpd_code", report->bpd_code, "unseen_distortion", report->unseen_distortion);
    if (!j || !more || json_object_update(j, more) < 0) {
        json_decref(j);
        return NULL;
    }
    return j;
}

void calibrate_quick_print(const struct calibrate_arguments *a, const char *table,
                           const kvc_solve_report *report)
{
    char hex[DIGEST_HEX_BYTES];

    terminal_print(stdout, 2, "%s: table %s, %.4f bits per number\n", table,
                   digest_short(report->table_digest, hex), report->bpd_code);
    terminal_print(stdout, 0,
                   "The table is good for a first trial with any kind of input: it is made of a few short "
                   "texts%s. A better one takes minutes: kvcobra calibrate %s --text FILE -o STATS, with "
                   "FILE like the model's later input, then kvcobra solve STATS --bpd %g -o TABLE. kvcobra "
                   "eval measures both.\n",
                   a->n_texts > 0 ? "" : " that the model wrote", a->model, a->bpd);
}
