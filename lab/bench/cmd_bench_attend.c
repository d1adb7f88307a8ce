/*
 * kvcobra-lab bench attend: the attention of a decode step over packed pages, compared with a tuned binary16
 * cache in the same process (bench_attend_time.c).
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "gpu/cpu.h"
#include "lab/bench/attend_hogs.h"
#include "lab/bench/bench.h"
#include "lab/bench/bench_attend.h"
#include "tools/bench/machine.h"
#include "tools/command/option.h"
#include "tools/command/report.h"

enum {
    OPT_REPEAT = 1,
    OPT_THREADS,
    OPT_TABLE,
    OPT_MIB,
    OPT_TOKENS,
    OPT_HOGS,
    OPT_QUERY_SIZE,
    TOKENS_MAX = 4, /* numbers of tokens in one run */
    HOGS_MAX = 16,
    N_SETS = 4,
    N_SYNTHETIC = 9,
    N_CASES = 10
};

static const struct attend_set sets[N_SETS] = {
    {"AVX2", CPU_AVX2},
    {"AVX2 VNNI", CPU_AVX2 | CPU_AVX_VNNI},
    {"AVX-512 VNNI", CPU_AVX2 | CPU_AVX512 | CPU_VNNI},
    {"AVX-512 VBMI", CPU_AVX2 | CPU_AVX512 | CPU_VNNI | CPU_VBMI}, /* differs for tables with trellises */
};

static const struct {
    const char *name;
    struct attend_synthetic_shape shape;
    uint32_t fast_coords; /* of K's bases in two blocks; 0: one block */
} synthetic[N_SYNTHETIC] = {
    {"d=128, K (32, 4 bits), V (128, 4 bits)", {128, 8, 4, 32, 128, false, 0, 0}, 0},
    {"the same, V predicted", {128, 8, 4, 32, 128, true, 0, 0}, 0},
    {"the same, K in two blocks (8 and 24)", {128, 8, 4, 32, 128, true, 0, 0}, 8},
    {"d=128, K and V (32, 4 bits)", {128, 8, 4, 32, 32, false, 0, 0}, 0},
    {"the same, V predicted", {128, 8, 4, 32, 32, true, 0, 0}, 0},
    {"the same, K in two blocks (8 and 24)", {128, 8, 4, 32, 32, true, 0, 0}, 8},
    {"d=256, 64 of them rotated, g=6, K (64, 2 bits), V (256, 2 bits)",
     {256, 4, 6, 64, 256, false, 64, 2},
     0},
    {"the same, 3 bits", {256, 4, 6, 64, 256, false, 64, 3}, 0},
    {"the same, 4 bits", {256, 4, 6, 64, 256, false, 64, 4}, 0},
};

struct bench_attend_options {
    struct common_options common;
    size_t repeat, threads, mib;
    size_t tokens[TOKENS_MAX], n_tokens;
    double query_size;
    double hogs_rate; /* bytes per second of a thread; 0: no hogs */
    const char *table;
};

static const char doc[] =
    "Time the attention of new tokens over a long context: packed pages, compared with a binary16 cache "
    "of the same keys and values, both with the best loops for each instruction set.\vRatios above 1: packed "
    "is faster. Minimum, median and 99th percentile over all repetitions; the kernels alternate; times are "
    "the processor time of the slowest thread. The caches are larger than those of most processors, so that "
    "binary16 is read from memory. --json also has the difference of both results; the RoPE planes whose "
    "keys are "
    "decoded, of all planes; and the fold bound, which limits the error that the others add to a score, "
    "relative to the scores. Several tokens in one step are "
    "those of speculative decoding. Rows of queries are tokens times query heads per KV head: packed pages "
    "have loops for up to 16 rows, and others for more; binary16 has loops for up to 64.\n\n"
    "The larger the queries, the fewer keys have weight: where pages have none, packed attention skips their "
    "values. Then a line says how many, and what adding all values takes.\n\n"
    "With --hogs other threads read memory meanwhile: as many as it takes to slow binary16 down to RATE, "
    "which is what it would read on a machine with less bandwidth per core.\n\n"
    "Example:\n\n"
    "  kvcobra-lab bench attend --table model-3.table --tokens 1,4";

static const struct argp_option options[] = {
    {"repeat", OPT_REPEAT, "N", 0, "Repetitions of each kernel (default 30)", 1},
    {"threads", OPT_THREADS, "N", 0, "Threads that share the heads (default 2)", 1},
    {"table", OPT_TABLE, "FILE", 0, "Also measure with this allocation table", 1},
    {"mib", OPT_MIB, "N", 0, "Size of the binary16 cache (default 64)", 1},
    {"tokens", OPT_TOKENS, "LIST", 0, "New tokens in one step, 1 to 16, up to 4 numbers (default 1)", 1},
    {"query-size", OPT_QUERY_SIZE, "X", 0, "Multiply the queries by X, 1 to 16 (default 1)", 1},
    {"hogs", OPT_HOGS, "RATE", 0,
     "Slow binary16 down to RATE GB/s per thread, 1 to 1000, by threads that read memory", 1},
    {0},
};

static void bench_attend_read_tokens(const struct argp_state *state, char *list,
                                     struct bench_attend_options *o)
{
    char *rest = NULL;

    o->n_tokens = 0;
    for (char *item = strtok_r(list, ",", &rest); item; item = strtok_r(NULL, ",", &rest)) {
        if (o->n_tokens == TOKENS_MAX)
            argp_error(state, "--tokens takes at most %d numbers", TOKENS_MAX);
        o->tokens[o->n_tokens++] = (size_t) option_uint(state, "--tokens", item, 1, CHUNK_TOKENS / 4);
    }
    if (o->n_tokens == 0)
        argp_error(state, "--tokens needs a number");
}

static error_t bench_attend_parse(int key, char *arg, struct argp_state *state)
{
    struct bench_attend_options *o = state->input;

    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &o->common;
        return 0;
    case OPT_REPEAT:
        o->repeat = (size_t) option_uint(state, "--repeat", arg, 1, 100000);
        return 0;
    case OPT_THREADS:
        o->threads = (size_t) option_uint(state, "--threads", arg, 1, ATTEND_THREADS_MAX);
        return 0;
    case OPT_TABLE:
        o->table = arg;
        return 0;
    case OPT_MIB:
        o->mib = (size_t) option_uint(state, "--mib", arg, 1, 4096);
        return 0;
    case OPT_TOKENS:
        bench_attend_read_tokens(state, arg, o);
        return 0;
    case OPT_QUERY_SIZE:
        o->query_size = option_double(state, "--query-size", arg, 1, 16);
        return 0;
    case OPT_HOGS:
        o->hogs_rate = 1e9 * option_double(state, "--hogs", arg, 1, 1000);
        return 0;
    }

    return ARGP_ERR_UNKNOWN;
}

static const struct argp argp = {options, bench_attend_parse, NULL, doc, common_children, NULL, NULL};

/* ---- less bandwidth ---- */

struct bench_attend_state {
    struct attend_synthetic synthetic[N_SYNTHETIC];
    struct table *table;
    struct attend_case cases[N_CASES];
    struct attend_times results[N_CASES * N_SETS * TOKENS_MAX];
    size_t n_results;
    struct attend_hogs *hogs;
    double rates[HOGS_MAX + 1]; /* of binary16 with 0, 1, ... threads that read memory: bytes/s of a thread */
    size_t n_rates;
};

/* Starts one thread more at a time, until binary16 is as slow as the user wants, or there are HOGS_MAX. */
static int bench_attend_start_hogs(struct bench_attend_state *b, const struct attend_case *c,
                                   const struct bench_attend_options *o)
{
    for (size_t n = 0; n <= HOGS_MAX; n++) {
        int r;

        b->hogs = attend_hogs_free(b->hogs);
        r = attend_hogs_new(n, &b->hogs);
        if (r < 0)
            return command_fail("cannot start %zu threads that read memory: %s", n, strerror(-r));

        r = attend_time_f16_rate(c, o->threads, o->repeat, &b->rates[n]);
        if (r != COMMAND_OK)
            return r;

        b->n_rates = n + 1;
        if (b->rates[n] <= o->hogs_rate)
            return COMMAND_OK;
    }

    return COMMAND_OK;
}

/* ---- output ---- */

static size_t bench_attend_rows(const struct attend_times *r)
{
    return r->n_tokens * geometry_group(&r->c->table->geometry);
}

/* @several: numbers of tokens in this run, so that rows name theirs. A time of 1000 ns and more has no
 * decimals: rows of a slow machine, or of a build with sanitizers, must fit too. */
static void bench_attend_print_row(struct report *t, const struct attend_times *r, bool several)
{
    const double seconds[6] = {r->packed.min, r->packed.median, r->packed.p99,
                               r->f16.min,    r->f16.median,    r->f16.p99};
    char tokens[32] = "", times[6][24];

    if (several)
        (void) snprintf(tokens, sizeof(tokens), " %zu tok", r->n_tokens);
    for (size_t i = 0; i < 6; i++) {
        double ns = seconds[i] / r->n_keys * 1e9;

        (void) snprintf(times[i], sizeof(times[i]), "%.*f", ns < 999.95 ? 1 : 0, ns);
    }
    report_row(t, "%s%s\t%.2f\t%.2f\t%s\t%s\t%s\t%s\t%s\t%s", r->set, tokens, r->f16.min / r->packed.min,
               r->f16.median / r->packed.median, times[0], times[1], times[2], times[3], times[4], times[5]);
}

static void bench_attend_print_skipped(const struct attend_times *r)
{
    double scale = 1e9 / r->n_keys;

    printf("%s, %zu tok: values of %.0f %% of the pages skipped; all values: %.1f, median %.1f, p99 %.1f\n",
           r->set, r->n_tokens, 100 * r->skipped, r->all_values.min * scale, r->all_values.median * scale,
           r->all_values.p99 * scale);
}

/* A table per cache, of what was measured: its rows fit a terminal of 80 columns. */
static void bench_attend_print_case(const struct bench_attend_state *b, const struct attend_case *c,
                                    bool several)
{
    _cleanup_(report_freep) struct report *t =
        report_new("<\t>ratio\t>median\t>packed\t>median\t>p99\t>f16\t>median\t>p99");
    bool any = false;

    for (size_t i = 0; i < b->n_results; i++) {
        if (b->results[i].c != c || !b->results[i].measured)
            continue;
        bench_attend_print_row(t, &b->results[i], several);
        any = true;
    }
    if (!any)
        return;

    printf("\n%s\n", c->name);
    report_print(t, stdout);
    for (size_t i = 0; i < b->n_results; i++)
        if (b->results[i].c == c && b->results[i].skipped > 0)
            bench_attend_print_skipped(&b->results[i]);
}

/* What has no row, and why. */
static void bench_attend_print_missing(const struct bench_attend_state *b)
{
    bool too_many = false;

    for (size_t i = 0; i < b->n_results; i++)
        too_many = too_many || bench_attend_rows(&b->results[i]) > ATTEND_F16_ROWS_MAX;
    if (too_many)
        printf("\nCaches with more than %d rows of queries are left out: binary16 has no loop for them.\n",
               ATTEND_F16_ROWS_MAX);
    for (unsigned set = 0; set < N_SETS; set++)
        if ((sets[set].mask & ~cpu_capabilities()) != 0)
            printf("\n%s is left out: this processor lacks it.\n", sets[set].name);
}

static void bench_attend_print_hogs(const struct bench_attend_state *b, const struct bench_attend_options *o)
{
    double reached = b->rates[b->n_rates - 1];

    printf("binary16 with 0, 1, ... other threads that read memory, GB/s per thread:");
    for (size_t i = 0; i < b->n_rates; i++)
        printf(" %.1f", b->rates[i] / 1e9);
    printf("\n%s\n",
           reached <= o->hogs_rate
               ? "Everything below was measured beside the last number of threads."
               : "That is the most threads this bench starts: binary16 is still faster than --hogs.");
}

static int bench_attend_print_text(const struct bench_attend_state *b, const struct bench_attend_options *o,
                                   const char *cpu)
{
    printf("CPU %s, %s, %zu threads, %zu repetitions, processor time of the slowest thread in ns per key and "
           "KV head\n",
           cpu, COMPILER, o->threads, o->repeat);
    if (b->n_rates > 0)
        bench_attend_print_hogs(b, o);
    for (size_t i = 0; i < N_CASES; i++)
        bench_attend_print_case(b, &b->cases[i], o->n_tokens > 1);
    bench_attend_print_missing(b);
    return COMMAND_OK;
}

static json_t *bench_attend_row_json(const struct attend_times *r)
{
    const struct geometry *g = &r->c->table->geometry;
    json_t *row = json_pack("{s:s, s:s, s:I, s:I, s:b, s:{s:I, s:I, s:I, s:I}, s:I, s:I}", "cache",
                            r->c->name, "instructions", r->set, "tokens", (json_int_t) r->n_tokens, "rows",
                            (json_int_t) bench_attend_rows(r), "measured", r->measured, "shape", "d",
                            (json_int_t) g->d, "group", (json_int_t) geometry_group(g), "kv_heads",
                            (json_int_t) r->c->n_heads, "keys", (json_int_t) r->c->n_pages * CHUNK_TOKENS,
                            "f16_bytes", (json_int_t) attend_case_f16_bytes(r->c), "packed_bytes",
                            (json_int_t) attend_case_packed_bytes(r->c));

    if (row && r->measured &&
        json_object_update_new(
            row,
            json_pack("{s:s, s:s, s:f, s:f, s:o, s:o, s:o, s:f, s:f, s:I, s:I, s:f}", "packed_kernel",
                      r->packed_name, "f16_kernel", r->f16_name, "difference", r->error, "skipped",
                      r->skipped, "all_values_ns", timing_json(r->all_values, 1e9 / r->n_keys), "packed_ns",
                      timing_json(r->packed, 1e9 / r->n_keys), "f16_ns", timing_json(r->f16, 1e9 / r->n_keys),
                      "ratio_min", r->f16.min / r->packed.min, "ratio_median",
                      r->f16.median / r->packed.median, "planes_formed", (json_int_t) r->folding.formed,
                      "planes", (json_int_t) r->folding.planes, "fold_bound", r->folding.bound)) < 0) {
        json_decref(row);
        return NULL;
    }

    return row;
}

static int bench_attend_print_json(const struct bench_attend_state *b, const struct bench_attend_options *o,
                                   const char *cpu)
{
    _cleanup_(json_decrefp) json_t *rows = json_array(), *rates = json_array();

    for (size_t i = 0; i < b->n_results; i++)
        if (json_array_append_new(rows, bench_attend_row_json(&b->results[i])) < 0)
            return command_fail("out of memory");
    for (size_t i = 0; i < b->n_rates; i++)
        if (json_array_append_new(rates, json_real(b->rates[i])) < 0)
            return command_fail("out of memory");
    return report_json(json_pack("{s:s, s:s, s:I, s:I, s:O, s:O}", "cpu", cpu, "compiler", COMPILER,
                                 "threads", (json_int_t) o->threads, "repetitions", (json_int_t) o->repeat,
                                 "f16_bytes_per_second_by_hogs", rates, "rows", rows));
}

/* ---- entry ---- */

static void bench_deinit(struct bench_attend_state *b)
{
    b->hogs = attend_hogs_free(b->hogs);
    for (size_t i = 0; i < N_CASES; i++)
        attend_case_deinit(&b->cases[i]);
    for (size_t i = 0; i < N_SYNTHETIC; i++)
        attend_synthetic_deinit(&b->synthetic[i]);
    b->table = table_unref(b->table);
}

static int bench_attend_measure_case(struct bench_attend_state *b, size_t i, const char *name,
                                     const struct table *table, const struct bench_attend_options *o)
{
    struct attend_case *c = &b->cases[i];
    int r;

    if (attend_case_init(c, name, table, o->mib << 20) < 0)
        return command_fail("out of memory for a cache of %zu MiB", o->mib);

    if (o->hogs_rate > 0 && !b->hogs) {
        r = bench_attend_start_hogs(b, c, o);
        if (r != COMMAND_OK)
            return r;
    }

    for (size_t t = 0; t < o->n_tokens; t++) {
        if (attend_case_set_queries(c, o->tokens[t], o->query_size) < 0)
            return command_fail("out of memory");
        for (unsigned set = 0; set < N_SETS; set++) {
            r = attend_time_set(c, &sets[set], o->threads, o->repeat, &b->results[b->n_results]);
            if (r != COMMAND_OK)
                return r;

            b->n_results++;
        }
    }

    return COMMAND_OK;
}

static int bench_attend_measure_all(struct bench_attend_state *b, const struct bench_attend_options *o)
{
    for (size_t i = 0; i < N_SYNTHETIC; i++) {
        int r;

        if (attend_synthetic_init(&b->synthetic[i], &synthetic[i].shape) < 0)
            return command_fail("out of memory");

        if (synthetic[i].fast_coords > 0)
            attend_synthetic_part(&b->synthetic[i], synthetic[i].fast_coords);
        r = bench_attend_measure_case(b, i, synthetic[i].name, &b->synthetic[i].table, o);
        if (r != COMMAND_OK)
            return r;
    }

    return b->table ? bench_attend_measure_case(b, N_SYNTHETIC, "--table", b->table, o) : COMMAND_OK;
}

static int bench_attend_load(struct bench_attend_state *b, const struct bench_attend_options *o)
{
    struct errmsg e = {0};

    if (o->table && table_load(o->table, &b->table, &e) < 0)
        return command_fail("%s", e.text);
    if (b->table && b->table->geometry.d % 16 != 0)
        return command_fail("%s: the binary16 kernel needs head dimensions that are multiples of 16, not %u",
                            o->table, b->table->geometry.d);
    if (b->table && geometry_group(&b->table->geometry) > ATTEND_F16_ROWS_MAX)
        return command_fail("%s: the binary16 kernel supports up to %d query heads per KV head, not %u",
                            o->table, ATTEND_F16_ROWS_MAX, geometry_group(&b->table->geometry));

    return COMMAND_OK;
}

static int bench_attend_run(int argc, char **argv)
{
    struct bench_attend_options o = {
        .repeat = 30, .threads = 2, .mib = 64, .tokens = {1}, .n_tokens = 1, .query_size = 1};
    _cleanup_(bench_deinit) struct bench_attend_state b = {0};
    char cpu[MACHINE_CPU_NAME_BYTES];
    int r;

    command_parse(&argp, argc, argv, &o);
    r = bench_attend_load(&b, &o);
    if (r == COMMAND_OK)
        r = bench_attend_measure_all(&b, &o);
    if (r != COMMAND_OK)
        return r;

    machine_cpu_name(cpu);
    return o.common.json ? bench_attend_print_json(&b, &o, cpu) : bench_attend_print_text(&b, &o, cpu);
}

const struct command bench_attend = {
    .name = "attend",
    .summary = "attention on packed pages and on binary16",
    .run = bench_attend_run,
};
