/* bench_attend: packed attention against a plain binary16 kernel on a GPU, both reading caches larger than
 * the cache of the GPU, alternately in one process; also appending, reading, checksums. Times of kernels
 * come from events of the GPU. tests/gpu/run.sh puts the tables of this bench into its report. */
#include <argp.h>
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tests/gpu/bench_rows.h"
#include "tools/command/report.h"

enum {
    OPT_BATCH = 1,
    OPT_TOKENS,
    OPT_HEADS,
    OPT_SAMPLES,
    OPT_SECONDS,
    OPT_COLD,
    OPT_JSON,
    OPT_TABLE,
    OPT_COMPUTE,
    TABLES = 8,
    ATTEND_ROWS = 4 * (TABLES + 1),
    ENCODE_TOKENS = 32768,
};

#define MIB ((size_t) 1 << 20)

/* 4 bits each; every table twice, without and then with prediction. The number of heads comes
 * from the options. */
static const struct source tables[TABLES] = {
    {"K 32, V 128", {BENCH_D, 0, BENCH_GROUP, 32, 128, false, 0, 0}, NULL, 3, 5.5},
    {"K 32, V 128, predicted", {BENCH_D, 0, BENCH_GROUP, 32, 128, true, 0, 0}, NULL, 0, 0},
    {"K 64, V 128", {BENCH_D, 0, BENCH_GROUP, 64, 128, false, 0, 0}, NULL, 2, 4.5},
    {"K 64, V 128, predicted", {BENCH_D, 0, BENCH_GROUP, 64, 128, true, 0, 0}, NULL, 0, 0},
    {"K 128, V 128", {BENCH_D, 0, BENCH_GROUP, 128, 128, false, 0, 0}, NULL, 1.2, 3.2},
    {"K 128, V 128, predicted", {BENCH_D, 0, BENCH_GROUP, 128, 128, true, 0, 0}, NULL, 0, 0},
    {"K 32, V 32", {BENCH_D, 0, BENCH_GROUP, 32, 32, false, 0, 0}, NULL, 4, 9},
    {"K 32, V 32, predicted", {BENCH_D, 0, BENCH_GROUP, 32, 32, true, 0, 0}, NULL, 0, 0},
};

#define PREDICTED_SHARE 0.8 /* target with prediction, relative to the ratio without it */

struct results {
    struct attend_row attend[ATTEND_ROWS];
    struct codec_row codec[TABLES];
    size_t n_attend, n_codec;
};

static const char doc[] =
    "Time attention of one new token on a GPU: packed pages against a plain binary16 kernel, measured "
    "alternately; appending, reading, checksums.\vd = 128, 4 query heads per KV head, codes of 4 bits. A "
    "ratio above 1 means that packed is faster. GB/s are the bytes that a call must read (codes, or binary16 "
    "keys and values) divided by its median time. 'must' and 'aim' are the target ratios on an H200 (with "
    "prediction: 0.8 of the row without it), 'limit' is the ratio of bytes. Appending packs as many tokens "
    "as it stores.";

static const struct argp_option options[] = {
    {"batch", OPT_BATCH, "N", 0, "Sequences (default 1, then 32)", 0},
    {"tokens", OPT_TOKENS, "N", 0, "Tokens of each sequence, whole pages (default 32768, then 131072)", 0},
    {"kv-heads", OPT_HEADS, "N", 0, "KV heads, up to 8 (default 8)", 0},
    {"samples", OPT_SAMPLES, "N", 0, "Largest number of measurements of a row (default 30)", 0},
    {"seconds", OPT_SECONDS, "S", 0,
     "Seconds for the measurements of a row, and for choosing splits (default 2)", 0},
    {"cold-mib", OPT_COLD, "N", 0,
     "MiB of packed pages that calls use in rotation (default 256; 0: one cache)", 0},
    {"compute", OPT_COMPUTE, "N", 0,
     "Use the kernels for compute capability N / 10, such as 80; 0: general kernels only", 0},
    {"table", OPT_TABLE, "FILE", 0, "Also measure this table", 0},
    {"json", OPT_JSON, "FILE", OPTION_ARG_OPTIONAL, "Print JSON, or write it to FILE and print the tables",
     0},
    {0},
};

static size_t number(struct argp_state *state, const char *arg, size_t low, size_t high, size_t step)
{
    char *end;
    unsigned long long n;

    errno = 0;
    n = strtoull(arg, &end, 10);
    if (errno != 0 || *arg < '0' || *arg > '9' || *end != '\0' || n < low || n > high || n % step != 0)
        argp_error(state, "'%s' is not a number from %zu to %zu in steps of %zu", arg, low, high, step);
    return (size_t) n;
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct bench_options *o = state->input;

    switch (key) {
    case OPT_BATCH:
        o->batches[0] = number(state, arg, 1, LAUNCH_ITEMS_MAX, 1);
        o->n_batches = 1;
        return 0;
    case OPT_TOKENS:
        o->tokens[0] = number(state, arg, CHUNK_TOKENS, 1 << 20, CHUNK_TOKENS);
        o->n_tokens = 1;
        return 0;
    case OPT_HEADS:
        o->n_kv_heads = (uint32_t) number(state, arg, 1, BENCH_KV_HEADS_MAX, 1);
        return 0;
    case OPT_SAMPLES:
        o->samples = number(state, arg, 1, 100000, 1);
        return 0;
    case OPT_SECONDS:
        o->seconds = (double) number(state, arg, 0, 3600, 1);
        return 0;
    case OPT_COLD:
        o->cold_mib = number(state, arg, 0, 4096, 1);
        return 0;
    case OPT_COMPUTE:
        o->compute = (int) number(state, arg, 0, 999, 1);
        return 0;
    case OPT_TABLE:
        o->table_file = arg;
        return 0;
    case OPT_JSON:
        o->json = true;
        o->json_file = arg;
        return 0;
    case ARGP_KEY_ARG:
        argp_error(state, "'%s' is one argument too many", arg);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* ---- measuring ---- */

static struct source source_of(const struct bench_options *o, size_t i)
{
    struct source source = tables[i];

    source.shape.n_kv_heads = o->n_kv_heads;
    return source;
}

static int measure_attention(struct bench_gpu *g, const struct bench_options *o,
                             const struct bench_pools *pools, const struct source *of_file,
                             struct results *ret, struct errmsg *e)
{
    size_t n_tables = TABLES + (of_file != NULL);

    for (size_t i = 0; i < n_tables * o->n_batches * o->n_tokens; i++) {
        size_t size = i / n_tables, table = i % n_tables;
        struct source source = table < TABLES ? source_of(o, table) : *of_file;
        struct attend_row *row = &ret->attend[ret->n_attend];
        int r = bench_attend_row(g, o, pools, &source, o->batches[size % o->n_batches],
                                 o->tokens[size / o->n_batches], row, e);

        if (r < 0)
            return r;
        if (table < TABLES && source.shape.v_from_k && row->fits && row[-1].fits) {
            row->share = row->ratio.median / row[-1].ratio.median;
            row->must = PREDICTED_SHARE * row[-1].ratio.median;
        }
        ret->n_attend++;
    }
    return 0;
}

static int measure(struct bench_gpu *g, const struct bench_options *o, const struct source *of_file,
                   struct results *ret, struct errmsg *e)
{
    struct bench_pools pools;
    int r = bench_pools_init(g, o, of_file ? of_file->of_file : NULL, &pools, e);

    if (r == 0)
        r = measure_attention(g, o, &pools, of_file, ret, e);
    for (size_t i = 0; i < TABLES && r == 0; i++) {
        struct source source = source_of(o, i);

        r = bench_codec_row(g, o, &pools, &source,
                            o->tokens[0] < ENCODE_TOKENS ? o->tokens[0] : ENCODE_TOKENS, &ret->codec[i], e);
        ret->n_codec += r == 0;
    }
    return r;
}

/* ---- printing ---- */

static double byte_limit(const struct attend_row *r)
{
    return (double) r->f16_bytes / (double) r->packed_bytes;
}

static void show_attention(struct report *attend, const struct attend_row *r)
{
    char must[16] = "", aim[16] = "";

    if (!r->fits) {
        report_row(attend, "%s\t%zu\t%zu\tdoes not fit", r->name, r->batch, r->tokens);
        return;
    }
    if (r->must > 0)
        (void) snprintf(must, sizeof(must), "%.2f", r->must);
    if (r->aim > 0)
        (void) snprintf(aim, sizeof(aim), "%.2f", r->aim);
    report_row(
        attend, "%s\t%zu\t%zu\t%.1f\t%.0f\t%.1f\t%.0f\t%.2f\t%.2f\t%.2f\t%s\t%s\t%.2f\t%.0f %%\t%u, %u\t%s",
        r->name, r->batch, r->tokens, r->packed.median * 1e6,
        (double) r->packed_bytes / r->packed.median * 1e-9, r->f16.median * 1e6,
        (double) r->f16_bytes / r->f16.median * 1e-9, r->ratio.min, r->ratio.median, r->ratio.p99, must, aim,
        byte_limit(r), 100 * r->ratio.median / byte_limit(r), r->packed_splits, r->f16_splits, r->kernel);
}

static int print_text(const struct bench_gpu *g, const struct results *x)
{
    _cleanup_(report_freep) struct report *attend =
        report_new("<table\t>batch\t>tokens\t>packed us\t>GB/s\t>binary16 us\t>GB/s\t>ratio "
                   "min\t>median\t>p99\t>must\t>aim\t>limit\t>of it\t>splits\t<kernel");
    _cleanup_(report_freep) struct report *codec = report_new(
        "<table\t>tokens\t>append us\t>min\t>p99\t>GB/s of vectors\t>one token us\t>p99\t>batch\t>one each "
        "us\t>p99\t>read us\t>p99\t>GB/s of codes\t>checksum us\t>GB/s");

    printf("%s, %d multiprocessors, %zu MiB\n\n", g->device.name, g->n_multiprocessors,
           g->device.bytes / MIB);
    for (const struct attend_row *r = x->attend; r < x->attend + x->n_attend; r++)
        show_attention(attend, r);
    for (const struct codec_row *r = x->codec; r < x->codec + x->n_codec; r++)
        report_row(
            codec,
            "%s\t%zu\t%.1f\t%.1f\t%.1f\t%.0f\t%.2f\t%.2f\t%zu\t%.2f\t%.2f\t%.1f\t%.1f\t%.0f\t%.1f\t%.0f",
            r->name, r->tokens, r->prefill.median * 1e6, r->prefill.min * 1e6, r->prefill.p99 * 1e6,
            (double) r->vector_bytes / r->prefill.median * 1e-9, r->step.median * 1e6, r->step.p99 * 1e6,
            r->batch, r->batch_step.median * 1e6, r->batch_step.p99 * 1e6, r->read.median * 1e6,
            r->read.p99 * 1e6, (double) r->packed_bytes / r->read.median * 1e-9, r->crc.median * 1e6,
            (double) r->packed_bytes / r->crc.median * 1e-9);
    report_print(attend, stdout);
    putchar('\n');
    report_print(codec, stdout);
    return 0;
}

static json_t *attend_json(const struct attend_row *r)
{
    json_t *row = json_pack("{s:s, s:s, s:f, s:f, s:f, s:b, s:I, s:I, s:b, s:I, s:I}", "table", r->name,
                            "kernel", r->kernel, "must", r->must, "aim", r->aim, "byte_limit", byte_limit(r),
                            "predicted", r->v_from_k, "batch", (json_int_t) r->batch, "tokens",
                            (json_int_t) r->tokens, "fits", r->fits, "packed_bytes",
                            (json_int_t) r->packed_bytes, "f16_bytes", (json_int_t) r->f16_bytes);

    if (row && r->fits &&
        json_object_update_new(
            row, json_pack("{s:f, s:o, s:o, s:o, s:f, s:f, s:i, s:i}", "of_unpredicted", r->share,
                           "packed_us", timing_json(r->packed, 1e6), "f16_us", timing_json(r->f16, 1e6),
                           "ratio", timing_json(r->ratio, 1), "packed_gbps",
                           (double) r->packed_bytes / r->packed.median * 1e-9, "f16_gbps",
                           (double) r->f16_bytes / r->f16.median * 1e-9, "packed_splits",
                           (int) r->packed_splits, "f16_splits", (int) r->f16_splits)) < 0) {
        json_decref(row);
        return NULL;
    }
    return row;
}

static json_t *codec_json(const struct codec_row *r)
{
    return json_pack("{s:s, s:b, s:I, s:I, s:I, s:I, s:o, s:o, s:o, s:o, s:o}", "table", r->name, "predicted",
                     r->v_from_k, "batch", (json_int_t) r->batch, "tokens", (json_int_t) r->tokens,
                     "vector_bytes", (json_int_t) r->vector_bytes, "packed_bytes",
                     (json_int_t) r->packed_bytes, "append_us", timing_json(r->prefill, 1e6), "step_us",
                     timing_json(r->step, 1e6), "batch_step_us", timing_json(r->batch_step, 1e6), "read_us",
                     timing_json(r->read, 1e6), "crc_us", timing_json(r->crc, 1e6));
}

/* NULL: out of memory. */
static json_t *results_json(const struct bench_gpu *g, const struct results *x)
{
    json_t *attend = json_array(), *codec = json_array();
    char uuid[CUDA_UUID_CHARS];
    bool ok = true;

    cuda_uuid_format(&g->device.uuid, uuid);
    for (size_t i = 0; i < x->n_attend; i++)
        ok = json_array_append_new(attend, attend_json(&x->attend[i])) == 0 && ok;
    for (size_t i = 0; i < x->n_codec; i++)
        ok = json_array_append_new(codec, codec_json(&x->codec[i])) == 0 && ok;
    if (!ok) {
        json_decref(attend);
        json_decref(codec);
        return NULL;
    }

    return json_pack("{s:s, s:s, s:i, s:i, s:I, s:o, s:o}", "device", g->device.name, "uuid", uuid, "driver",
                     g->driver->version, "multiprocessors", g->n_multiprocessors, "bytes",
                     (json_int_t) g->device.bytes, "attend", attend, "codec", codec);
}

static int show(const struct bench_gpu *g, const struct bench_options *o, const struct results *x,
                struct errmsg *e)
{
    json_t *json;
    int r;

    if (!o->json)
        return print_text(g, x);

    json = results_json(g, x);
    if (!json)
        return fail(e, -ENOMEM, "out of memory");
    if (!o->json_file)
        return report_json(json) == 0 ? 0 : fail(e, -EIO, "cannot print the results");

    r = json_dump_file(json, o->json_file, JSON_INDENT(2));
    json_decref(json);
    return r < 0 ? fail(e, -EIO, "cannot write the results to %s", o->json_file) : print_text(g, x);
}

int main(int argc, char **argv)
{
    struct bench_options o = {
        .batches = {1, 32},
        .tokens = {32768, 131072},
        .n_batches = 2,
        .n_tokens = 2,
        .n_kv_heads = BENCH_KV_HEADS_MAX,
        .samples = 30,
        .seconds = 2,
        .compute = 999,
        .cold_mib = 256,
    };
    const struct argp argp = {options, parse, NULL, doc, NULL, NULL, NULL};
    _cleanup_(freep) struct results *x = calloc(1, sizeof(*x));
    _cleanup_(table_unrefp) struct table *table = NULL;
    struct source of_file = {.name = "table of a file"};
    struct bench_gpu g;
    struct errmsg e = {""};
    int r;

    (void) argp_parse(&argp, argc, argv, 0, NULL, &o);
    r = x ? bench_gpu_open(&g, &e) : fail(&e, -ENOMEM, "out of memory");
    if (r == 0)
        cuda_kernels_limit(g.kernels, o.compute);
    if (r == 0 && o.table_file)
        r = table_load(o.table_file, &table, &e);
    if (table) {
        of_file.of_file = table;
        of_file.shape = (struct attend_synthetic_shape){table->geometry.d,
                                                        table->geometry.n_kv_heads,
                                                        geometry_group(&table->geometry),
                                                        0,
                                                        0,
                                                        table->v_from != PREDICT_NONE,
                                                        0,
                                                        0};
    }
    if (r == 0)
        r = measure(&g, &o, table ? &of_file : NULL, x, &e);
    if (r == 0)
        r = show(&g, &o, x, &e);
    if (r < 0)
        (void) fprintf(stderr, "bench_attend: %s\n", e.text[0] ? e.text : strerror(-r));
    if (x)
        bench_gpu_close(&g);
    return r == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
