/*
 * kvcobra-lab bench engine: what an engine with a cache of its own waits for, with a table of the user:
 * appending and committing a text, and reading one into the engine's blocks. See bench_engine.h.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/atomic_file.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "lab/bench/bench.h"
#include "lab/bench/bench_engine.h"
#include "tools/bench/machine.h"
#include "tools/command/client_model.h"
#include "tools/command/option.h"
#include "tools/command/report.h"

enum { OPT_REPEAT = 1, OPT_THREADS, OPT_TOKENS, THREADS_MAX = 256, TOKENS_MAX = 1 << 18 };

struct bench_engine_options {
    struct common_options common;
    const char *table;
    size_t repeat, threads, tokens;
};

static const char doc[] =
    "Time what an engine with its own cache of bfloat16 vectors, keys after RoPE, waits for: publishing a "
    "text "
    "(append to all layers, commit), and reading it into blocks of 16 tokens (kvc_seq_read_blocks()). The "
    "client is embedded, so that no daemon takes part.\vTABLE is a table file of any model. Processor "
    "time is that of all threads. Ratio: reading over memcpy() of the same bytes. "
    "Minimum, median and 99th percentile over all repetitions; the calls alternate. What is read is checked "
    "before the timing.\n\n"
    "Example:\n\n"
    "  kvcobra-lab bench engine model-3.table";

static const struct argp_option options[] = {
    {"repeat", OPT_REPEAT, "N", 0, "Repetitions (default 20)", 1},
    {"threads", OPT_THREADS, "N", 0, "Threads of the client (default 2)", 1},
    {"tokens", OPT_TOKENS, "N", 0, "Tokens of the text (default 1472)", 1},
    {0},
};

static error_t bench_engine_parse(int key, char *arg, struct argp_state *state)
{
    struct bench_engine_options *o = state->input;

    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &o->common;
        return 0;
    case OPT_REPEAT:
        o->repeat = (size_t) option_uint(state, "--repeat", arg, 1, 100000);
        return 0;
    case OPT_THREADS:
        o->threads = (size_t) option_uint(state, "--threads", arg, 1, THREADS_MAX);
        return 0;
    case OPT_TOKENS:
        o->tokens = (size_t) option_uint(state, "--tokens", arg, 1, TOKENS_MAX);
        return 0;
    case ARGP_KEY_ARG:
        if (o->table)
            argp_error(state, "'%s' is one argument too many", arg);
        o->table = arg;
        return 0;
    case ARGP_KEY_END:
        if (!o->table)
            argp_error(state, "a table file is missing");
        return 0;
    }

    return ARGP_ERR_UNKNOWN;
}

static const struct argp argp = {options, bench_engine_parse, "TABLE", doc, common_children, NULL, NULL};

/* ---- measuring ---- */

static int bench_engine_open(kvc_client *c, const char *path, kvc_model **ret_model, struct errmsg *e)
{
    kvc_model_id id = {.struct_bytes = sizeof(id), .geometry = {.struct_bytes = sizeof(id.geometry)}};
    double freq[KVC_ROPE_FREQ_MAX];
    _cleanup_(freep) void *bytes = NULL;
    size_t n_bytes;
    int r = atomic_file_read(path, TABLE_FILE_BYTES_MAX, &bytes, &n_bytes, e);

    if (r < 0)
        return r;

    r = kvc_table_geometry(c, bytes, n_bytes, id.model_digest, &id.geometry, freq);
    if (r == 0)
        r = kvc_model_open_table(c, &id, bytes, n_bytes, ret_model);
    return r < 0 ? fail(e, r, "%s: %s", path, kvc_last_error(c)) : 0;
}

static int bench_engine_measure(const struct bench_engine_options *o, const struct table *table,
                                struct engine_result *ret, struct errmsg *e)
{
    _cleanup_(kvc_client_freep) kvc_client *c = NULL;
    _cleanup_(engine_cache_deinit) struct engine_cache cache = {0};
    kvc_model *m = NULL;
    int r = client_open(NULL, &c, e);

    if (r < 0)
        return r;

    r = kvc_client_set_threads(c, (unsigned) o->threads);
    if (r < 0)
        return fail(e, r, "%s", kvc_last_error(c));

    r = bench_engine_open(c, o->table, &m, e);
    if (r < 0)
        return r;

    r = engine_cache_init(&cache, table, o->tokens);
    if (r < 0)
        return fail(e, r, "out of memory for the cache of %zu tokens", o->tokens);

    return engine_cache_measure(&cache, c, m, o->repeat, ret, e);
}

/* ---- output ---- */

static int bench_engine_print_text(const struct bench_engine_options *o, const struct table *table,
                                   const struct engine_result *x, const char *cpu)
{
    const struct geometry *g = &table->geometry;
    const struct {
        const char *name;
        struct timing t;
    } rows[] = {{"publish, processor time", x->publish},
                {"read, processor time", x->decode},
                {"read, elapsed", x->read},
                {"memcpy, elapsed", x->copy}};
    _cleanup_(report_freep) struct report *t = report_new("<\t>min\t>median\t>p99");

    printf("CPU %s, %s, %zu threads, %zu repetitions, milliseconds\n", cpu, COMPILER, o->threads, o->repeat);
    printf("%zu tokens, %u layers, %u KV heads of %u dimensions; bfloat16, keys after RoPE, blocks of %d\n\n",
           o->tokens, g->n_layers, g->n_kv_heads, g->d, ENGINE_BLOCK_TOKENS);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        report_row(t, "%s\t%.2f\t%.2f\t%.2f", rows[i].name, rows[i].t.min * 1e3, rows[i].t.median * 1e3,
                   rows[i].t.p99 * 1e3);
    report_row(t, "ratio of read to memcpy\t%.1f\t%.1f\t%.1f", x->ratio.min, x->ratio.median, x->ratio.p99);
    report_print(t, stdout);
    return COMMAND_OK;
}

static int bench_engine_print_json(const struct bench_engine_options *o, const struct table *table,
                                   const struct engine_result *x, const char *cpu)
{
    const struct geometry *g = &table->geometry;

    return report_json(json_pack(
        "{s:s, s:s, s:I, s:I, s:I, s:{s:I, s:I, s:I}, s:o, s:o, s:o, s:o, s:o, s:f}", "cpu", cpu, "compiler",
        COMPILER, "threads", (json_int_t) o->threads, "repetitions", (json_int_t) o->repeat, "tokens",
        (json_int_t) o->tokens, "shape", "layers", (json_int_t) g->n_layers, "kv_heads",
        (json_int_t) g->n_kv_heads, "d", (json_int_t) g->d, "publish_ms", timing_json(x->publish, 1e3),
        "read_processor_ms", timing_json(x->decode, 1e3), "read_ms", timing_json(x->read, 1e3), "memcpy_ms",
        timing_json(x->copy, 1e3), "ratio", timing_json(x->ratio, 1), "error", x->error));
}

static int bench_engine_run(int argc, char **argv)
{
    struct bench_engine_options o = {.repeat = 20, .threads = 2, .tokens = 1472};
    _cleanup_(table_unrefp) struct table *table = NULL;
    char cpu[MACHINE_CPU_NAME_BYTES];
    struct engine_result result;
    struct errmsg e = {0};

    command_parse(&argp, argc, argv, &o);
    if (table_load(o.table, &table, &e) < 0 || bench_engine_measure(&o, table, &result, &e) < 0)
        return command_fail("%s", e.text);

    machine_cpu_name(cpu);
    return o.common.json ? bench_engine_print_json(&o, table, &result, cpu)
                         : bench_engine_print_text(&o, table, &result, cpu);
}

const struct command bench_engine = {
    .name = "engine",
    .summary = "publishing from an engine's cache, and reading into it",
    .run = bench_engine_run,
};
