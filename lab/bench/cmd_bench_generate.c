/*
 * kvcobra-lab bench generate: decode steps of a model with the exact and the compressed cache, alternating,
 * at several context lengths; with a daemon, also the first token of a second process.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/stream_file.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "lab/bench/bench.h"
#include "lab/bench/bench_generate.h"
#include "tools/bench/machine.h"
#include "tools/command/client_model.h"
#include "tools/command/document.h"
#include "tools/command/option.h"
#include "tools/command/progress.h"
#include "tools/command/report.h"
#include "tools/engine/engine.h"

enum {
    OPT_TABLE = 1,
    OPT_TEXT,
    OPT_CONTEXTS,
    OPT_STEPS,
    OPT_THREADS,
    OPT_SHARE,
    OPT_SOCKET,
    OPT_PROMPT_BYTES,
    OPT_REPEAT
};

#define TEXT_BYTES_MAX ((size_t) 1 << 30)

struct bench_generate_options {
    struct common_options common;
    const char *model, *table, *text, *socket;
    size_t contexts[CONTEXTS_MAX], n_contexts, n_steps, prompt_bytes, repeat;
    unsigned n_threads;
    bool named; /* the user chose the contexts */
};

static const char doc[] =
    "Time decode steps of a model at growing context lengths, with an exact (binary32) and a compressed "
    "cache, alternating in one process.\vThe report also has the time of encoding compared with reading the "
    "text, and with --share the time to the first token of a process whose prompt is published, and of one "
    "that computes it.\n\n"
    "Example:\n\n"
    "  kvcobra-lab bench generate model.gguf --table 3.table --text manual.txt";

static const struct argp_option options[] = {
    {"table", OPT_TABLE, "FILE", 0, "Allocation table of the compressed cache", 1},
    {"text", OPT_TEXT, "FILE", 0, "The text to read", 1},
    {"contexts", OPT_CONTEXTS, "N,N...", 0,
     "Ascending context lengths in tokens (default 1024,4096,8192, limited by the model and the text)", 1},
    {"steps", OPT_STEPS, "N", 0, "Timed decode steps per context and cache (default 64)", 1},
    {"threads", OPT_THREADS, "N", 0, "Threads (default: all processors)", 1},
    {"share", OPT_SHARE, NULL, 0,
     "Also time first tokens through a daemon, which needs an active table of the model", 2},
    {"socket", OPT_SOCKET, "PATH", 0,
     "--share with the daemon at this socket (default: as kvcobra generate finds it)", 2},
    {"prompt-bytes", OPT_PROMPT_BYTES, "N", 0, "With --share: bytes of the prompt (default 8000)", 2},
    {"repeat", OPT_REPEAT, "N", 0, "With --share: pairs of processes (default 5)", 2},
    {0},
};

static const size_t default_contexts[] = {1024, 4096, 8192};

/* "1024,4096": ascending numbers. */
static void bench_generate_parse_contexts(struct bench_generate_options *o, const struct argp_state *state,
                                          char *arg)
{
    char *rest = NULL;

    o->n_contexts = 0;
    for (char *item = strtok_r(arg, ",", &rest); item; item = strtok_r(NULL, ",", &rest)) {
        size_t n = (size_t) option_uint(state, "--contexts", item, 2, (uint64_t) 1 << 24);

        if (o->n_contexts == CONTEXTS_MAX)
            argp_error(state, "--contexts takes at most %d lengths", CONTEXTS_MAX);
        if (o->n_contexts > 0 && n <= o->contexts[o->n_contexts - 1])
            argp_error(state, "--contexts takes ascending lengths; %s is not above the previous one", item);
        o->contexts[o->n_contexts++] = n;
    }

    if (o->n_contexts == 0)
        argp_error(state, "--contexts takes at least one length");
}

static void bench_generate_check(const struct bench_generate_options *o, const struct argp_state *state)
{
    if (!o->model)
        argp_error(state, "a MODEL is needed");
    if (o->text && stream_file_is_standard(o->text))
        argp_error(state, "the text is read twice: name a file");
    if (!o->table || !o->text)
        argp_error(state, "%s is needed", o->table ? "--text" : "--table");
    for (size_t i = 0, before = 0; i < o->n_contexts; before = o->contexts[i++])
        if (o->contexts[i] - before <= o->n_steps + 1)
            argp_error(state, "%zu steps do not fit between the contexts %zu and %zu", o->n_steps, before,
                       o->contexts[i]);
}

static error_t bench_generate_parse(int key, char *arg, struct argp_state *state)
{
    struct bench_generate_options *o = state->input;

    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &o->common;
        return 0;
    case OPT_TABLE:
        o->table = arg;
        return 0;
    case OPT_TEXT:
        o->text = arg;
        return 0;
    case OPT_CONTEXTS:
        bench_generate_parse_contexts(o, state, arg);
        return 0;
    case OPT_STEPS:
        o->n_steps = (size_t) option_uint(state, "--steps", arg, 1, 100000);
        return 0;
    case OPT_THREADS:
        o->n_threads = (unsigned) option_uint(state, "--threads", arg, 1, 256);
        return 0;
    case OPT_SHARE:
        if (!o->socket)
            o->socket = ""; /* found by the library */
        return 0;
    case OPT_SOCKET:
        o->socket = arg;
        return 0;
    case OPT_PROMPT_BYTES:
        o->prompt_bytes = (size_t) option_uint(state, "--prompt-bytes", arg, 1, TEXT_BYTES_MAX);
        return 0;
    case OPT_REPEAT:
        o->repeat = (size_t) option_uint(state, "--repeat", arg, 1, 1000);
        return 0;
    case ARGP_KEY_ARG:
        if (o->model)
            argp_error(state, "one MODEL only; '%s' is one argument too many", arg);
        o->model = arg;
        return 0;
    case ARGP_KEY_END:
        o->named = o->n_contexts > 0;
        if (!o->named) {
            memcpy(o->contexts, default_contexts, sizeof(default_contexts));
            o->n_contexts = sizeof(default_contexts) / sizeof(default_contexts[0]);
        }

        bench_generate_check(o, state);
        return 0;
    }

    return ARGP_ERR_UNKNOWN;
}

static const struct argp argp = {options, bench_generate_parse, "MODEL", doc, common_children, NULL, NULL};

/* ---- measurement ---- */

struct results {
    struct context_result contexts[CONTEXTS_MAX];
    size_t n_contexts;
    struct prefill_result prefill;
    struct first_token_result first;
    char kernel[64];
};

/* Given lengths must fit; default lengths that do not fit are dropped. */
static int bench_generate_fit_contexts(struct bench_generate_options *o, const struct engine *en,
                                       const struct document *text, struct errmsg *e)
{
    size_t most = engine_info(en)->n_context;

    if (text->n_tokens < most)
        most = text->n_tokens;
    if (o->named && o->contexts[o->n_contexts - 1] > most)
        return fail(e, -EINVAL, "a context of %zu tokens is too long: the model reads %u, the text has %zu",
                    o->contexts[o->n_contexts - 1], engine_info(en)->n_context, text->n_tokens);

    while (o->n_contexts > 0 && o->contexts[o->n_contexts - 1] > most)
        o->n_contexts--;
    if (o->n_contexts == 0)
        return fail(e, -EINVAL, "the text has %zu tokens; give shorter lengths with --contexts",
                    text->n_tokens);

    return 0;
}

static int bench_generate_measure_contexts(struct bench_generate_options *o, struct results *ret,
                                           struct errmsg *e)
{
    const struct engine_options eo = {.n_threads = o->n_threads};
    _cleanup_(engine_freep) struct engine *en = NULL;
    _cleanup_(document_deinit) struct document text = {0};
    _cleanup_(kvc_client_freep) kvc_client *c = NULL;
    kvc_model_info info = {.struct_bytes = sizeof(info)};
    struct progress p;
    kvc_model *m;
    int r;

    r = engine_open(o->model, &eo, &en, e);
    if (r < 0)
        return r;

    r = document_load(en, o->text, &text, e);
    if (r < 0)
        return r;

    r = bench_generate_fit_contexts(o, en, &text, e);
    if (r < 0)
        return r;

    r = client_open(NULL, &c, e);
    if (r < 0)
        return r;

    r = model_open(c, en, o->table, &m, e);
    if (r < 0)
        return r;

    r = kvc_model_get_info(m, &info);
    if (r < 0)
        return fail(e, r, "%s", kvc_last_error(c));

    (void) snprintf(ret->kernel, sizeof(ret->kernel), "%s", info.kernel);
    ret->n_contexts = o->n_contexts;
    progress_start(&p, "reading", "tokens", (double) o->contexts[o->n_contexts - 1], o->common.quiet);
    r = bench_contexts(en, c, m, text.tokens, o->contexts, o->n_contexts, o->n_steps, &p, ret->contexts,
                       &ret->prefill, e);
    progress_end(&p);
    return r;
}

static int bench_generate_measure_first_token(const struct bench_generate_options *o, struct results *ret,
                                              struct errmsg *e)
{
    _cleanup_(freep) void *text = NULL;
    size_t bytes;
    int r = stream_file_read(o->text, TEXT_BYTES_MAX, &text, &bytes, e);

    if (r < 0)
        return r;
    if (bytes < o->prompt_bytes)
        return fail(e, -EINVAL, "%s has %zu bytes, fewer than --prompt-bytes %zu", o->text, bytes,
                    o->prompt_bytes);

    return bench_first_token(o->model, o->socket, text, o->prompt_bytes, o->repeat, &ret->first, e);
}

/* ---- output ---- */

static int bench_generate_print_text(const struct bench_generate_options *o, const struct results *x,
                                     const char *cpu)
{
    _cleanup_(report_freep) struct report *t = report_new(
        ">context\t>exact ms\t>p99\t>packed ms\t>p99\t>exact t/s\t>packed t/s\t>ratio\t>min\t>p99\t>append");

    printf("CPU %s, %s, kernel %s; %zu steps at each context, medians\n\n", cpu, COMPILER, x->kernel,
           o->n_steps);
    for (size_t i = 0; i < x->n_contexts; i++) {
        const struct context_result *c = &x->contexts[i];

        report_row(t, "%zu\t%.2f\t%.2f\t%.2f\t%.2f\t%.1f\t%.1f\t%.2f\t%.2f\t%.2f\t%.2f %%", c->n_tokens,
                   c->exact.median * 1e3, c->exact.p99 * 1e3, c->packed.median * 1e3, c->packed.p99 * 1e3,
                   1 / c->exact.median, 1 / c->packed.median, c->ratio.median, c->ratio.min, c->ratio.p99,
                   c->append_share * 100);
    }

    report_print(t, stdout);

    puts("\nratio: exact over packed, step by step; above 1, packed is faster. append: share of the packed "
         "steps' time.");
    printf("Reading %zu tokens took %.2f s; encoding them took %.2f s more: %.2f %%.\n", x->prefill.n_tokens,
           x->prefill.model_seconds, x->prefill.append_seconds,
           x->prefill.append_seconds / x->prefill.model_seconds * 100);
    if (o->socket)
        printf("First token of a prompt of %zu tokens: %.2f s; of a second process, which finds %zu of them "
               "published, %.2f s: %.1f times faster (%.1f to %.1f, %zu pairs).\n",
               x->first.n_prompt, x->first.cold.median, x->first.n_matched, x->first.warm.median,
               x->first.ratio.median, x->first.ratio.min, x->first.ratio.p99, o->repeat);
    return COMMAND_OK;
}

static json_t *bench_generate_context_json(const struct context_result *c)
{
    return json_pack("{s:I, s:o, s:o, s:o, s:f}", "tokens", (json_int_t) c->n_tokens, "exact_s",
                     timing_json(c->exact, 1), "packed_s", timing_json(c->packed, 1), "ratio",
                     timing_json(c->ratio, 1), "append_share", c->append_share);
}

static json_t *bench_generate_first_token_json(const struct bench_generate_options *o,
                                               const struct first_token_result *f)
{
    if (!o->socket)
        return json_null();

    return json_pack("{s:I, s:I, s:I, s:o, s:o, s:o}", "prompt_tokens", (json_int_t) f->n_prompt,
                     "matched_tokens", (json_int_t) f->n_matched, "pairs", (json_int_t) o->repeat, "cold_s",
                     timing_json(f->cold, 1), "warm_s", timing_json(f->warm, 1), "ratio",
                     timing_json(f->ratio, 1));
}

static int bench_generate_print_json(const struct bench_generate_options *o, const struct results *x,
                                     const char *cpu)
{
    json_t *rows = json_array();

    for (size_t i = 0; i < x->n_contexts; i++)
        if (json_array_append_new(rows, bench_generate_context_json(&x->contexts[i])) < 0) {
            json_decref(rows);
            return report_json(NULL);
        }
    return report_json(json_pack("{s:s, s:s, s:s, s:I, s:o, s:{s:I, s:f, s:f}, s:o}", "cpu", cpu, "compiler",
                                 COMPILER, "kernel", x->kernel, "steps", (json_int_t) o->n_steps, "contexts",
                                 rows, "prefill", "tokens", (json_int_t) x->prefill.n_tokens, "model_s",
                                 x->prefill.model_seconds, "append_s", x->prefill.append_seconds,
                                 "first_token", bench_generate_first_token_json(o, &x->first)));
}

static int bench_generate_run(int argc, char **argv)
{
    struct bench_generate_options o = {.n_steps = 64, .prompt_bytes = 8000, .repeat = 5};
    struct results x = {0};
    struct errmsg e = {""};
    char cpu[MACHINE_CPU_NAME_BYTES];
    int r;

    command_parse(&argp, argc, argv, &o);
    r = bench_generate_measure_contexts(&o, &x, &e);
    if (r == 0 && o.socket)
        r = bench_generate_measure_first_token(&o, &x, &e);
    if (r < 0)
        return command_fail("%s", e.text[0] ? e.text : strerror(-r));

    machine_cpu_name(cpu);
    return o.common.json ? bench_generate_print_json(&o, &x, cpu) : bench_generate_print_text(&o, &x, cpu);
}

const struct command bench_generate = {
    .name = "generate",
    .summary = "decode steps with an exact and a compressed cache",
    .run = bench_generate_run,
};
