/*
 * bench_transfer: what pages in host memory cost on a GPU, beside copying the same vectors in 16 bits. A
 * client without a daemon encodes a prompt of all layers into pages on the heap, and decodes them into blocks
 * on the GPU; the copies that it is compared with run between the GPU and pinned memory, in the same process,
 * in turn. tests/gpu/run.sh puts the table into its report.
 */
#include <argp.h>
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "base/splitmix64.h"
#include "client/connection/client.h"
#include "client/gpu/gpu.h"
#include "client/gpu/gpu_memory.h"
#include "client/gpu/seq_staged.h"
#include "client/kvcobra-gpu.h"
#include "client/sequence/seq.h"
#include "lab/bench/bench_service_device.h"
#include "tests/lib/random_table.h"
#include "tools/bench/timing.h"
#include "tools/command/clock.h"
#include "tools/command/report.h"

enum { OPT_TOKENS = 1, OPT_LAYERS, OPT_HEADS, OPT_SAMPLES, OPT_THREADS, OPT_RING, OPT_JSON };
enum { SAMPLES_MAX = 100, N_TABLES = 2, BLOCK_TOKENS = 16, DIM = 128, PINNED_BYTES = 256 << 20 };

/* ENCODE: until the stream has ended; ENCODE_COPY: until all pages have their bytes in host memory, which
 * begins in ENCODE. COPY_OUT, COPY_IN: 16-bit numbers to and from pinned memory. DECODE: from pages on the
 * heap. */
enum what { ENCODE, ENCODE_COPY, COPY_OUT, DECODE, COPY_IN, KINDS };

static const char *const keys[KINDS] = {"encode", "encode_copy", "copy_out", "decode", "copy_in"};
static const char *const names[KINDS] = {"encode", "encode, copy to pages",
                                         "copy of 16 bits to pinned memory", "decode from pages into blocks",
                                         "copy of 16 bits from pinned memory"};

struct row {
    double bpd;
    size_t vector_bytes, page_bytes; /* of the prompt: in 16 bits, and in pages */
    double seconds[KINDS][SAMPLES_MAX];
};

struct bench {
    size_t tokens, layers, kv_heads, samples, threads, ring_mib;
    bool json;
    const char *json_file;
    char device[96];
    bool is_standin;
    struct row rows[N_TABLES];
};

/* What one table is measured with. */
struct run {
    const struct bench *bench;
    struct errmsg *e;
    kvc_client *client;
    kvc_model *model;
    struct gpu *gpu;
    struct gpu_memory vectors; /* [tokens][kv_heads][DIM] bfloat16, of every layer and side */
    struct gpu_memory cache;   /* [layers][2] of blocks */
    void **bases;              /* of the cache */
    int64_t *blocks;           /* in random order */
    uint32_t *ids;             /* of tokens */
    void *pinned;
};

static const char doc[] = "Time encoding a prompt on the first GPU into pages in host memory, and decoding "
                          "them into blocks, beside "
                          "copies of the same vectors in 16 bits between the GPU and pinned memory.\vA ratio "
                          "above 1: faster than the "
                          "copy. No daemon is needed.";

static const struct argp_option options[] = {
    {"tokens", OPT_TOKENS, "N", 0, "Tokens of the prompt, a multiple of 64 (default 8192)", 0},
    {"layers", OPT_LAYERS, "N", 0, "Layers of the model (default 32)", 0},
    {"kv-heads", OPT_HEADS, "N", 0, "KV heads of the model, of 128 dimensions (default 8)", 0},
    {"samples", OPT_SAMPLES, "N", 0, "Measurements, up to 100 (default 10)", 0},
    {"threads", OPT_THREADS, "N", 0, "Threads that copy pages to and from pinned memory (default 4)", 0},
    {"ring-mib", OPT_RING, "N", 0, "Pinned memory of the client (default 64)", 0},
    {"json", OPT_JSON, "FILE", OPTION_ARG_OPTIONAL, "Print JSON, or write it to FILE and print the table", 0},
    {0},
};

static size_t number(struct argp_state *state, const char *arg, size_t high)
{
    char *end;
    unsigned long long n;

    errno = 0;
    n = strtoull(arg, &end, 10);
    if (errno != 0 || *arg < '0' || *arg > '9' || *end != '\0' || n < 1 || n > high)
        argp_error(state, "'%s' is not a number from 1 to %zu", arg, high);
    return (size_t) n;
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct bench *b = state->input;

    switch (key) {
    case OPT_TOKENS:
        b->tokens = number(state, arg, 65536);
        if (b->tokens % CHUNK_TOKENS != 0)
            argp_error(state, "%zu tokens are no multiple of %d", b->tokens, CHUNK_TOKENS);
        return 0;
    case OPT_LAYERS:
        b->layers = number(state, arg, 128);
        return 0;
    case OPT_HEADS:
        b->kv_heads = number(state, arg, 32);
        return 0;
    case OPT_SAMPLES:
        b->samples = number(state, arg, SAMPLES_MAX);
        return 0;
    case OPT_THREADS:
        b->threads = number(state, arg, 64);
        return 0;
    case OPT_RING:
        b->ring_mib = number(state, arg, 16384);
        return 0;
    case OPT_JSON:
        b->json = true;
        b->json_file = arg;
        return 0;
    case ARGP_KEY_ARG:
        argp_error(state, "'%s' is one argument too many", arg);
        return 0;
    }
    return ARGP_ERR_UNKNOWN;
}

/* ---- one table ---- */

static int client_failed(struct run *x, int r)
{
    return r < 0 ? fail(x->e, r, "%s", kvc_last_error(x->client)) : 0;
}

static int open_model(struct run *x, double bpd)
{
    const struct bench *b = x->bench;
    struct geometry g = random_table_geometry((uint32_t) b->layers, (uint32_t) (4 * b->kv_heads),
                                              (uint32_t) b->kv_heads, DIM);
    const kvc_gpu_options o = {
        .struct_bytes = sizeof(o), .pages = KVC_GPU_PAGES_HOST, .ring_bytes = b->ring_mib << 20};
    kvc_model_id id = {
        .struct_bytes = sizeof(id),
        .geometry = {.struct_bytes = sizeof(kvc_geometry),
                     .n_layers = g.n_layers,
                     .n_heads = g.n_heads,
                     .n_kv_heads = g.n_kv_heads,
                     .head_dim = g.d,
                     .n_rot = g.n_rot,
                     .attn_scale = g.attn_scale,
                     .rope_freq = g.freq},
    };
    _cleanup_(freep) void *bytes = NULL;
    size_t n_bytes;
    int r = random_table_bytes(&g, 1, bpd, PREDICT_HEAD, &bytes, &n_bytes);

    if (r < 0)
        return fail(x->e, r, "cannot make a table of %g bits: %s", bpd, strerror(-r));

    memcpy(id.model_digest, random_table_model_digest, sizeof(id.model_digest));
    r = kvc_client_new(&x->client);
    if (r < 0)
        return fail(x->e, r, "out of memory");

    r = kvc_client_set_gpu(x->client, &o);
    if (r == 0)
        r = kvc_client_set_threads(x->client, (unsigned) b->threads);
    if (r == 0)
        r = kvc_model_open_table(x->client, &id, bytes, n_bytes, &x->model);
    x->gpu = x->client->gpu;
    return client_failed(x, r);
}

/* One layer of vectors, of about the size that keys and values have, used for all of them. */
static int put_vectors(struct run *x)
{
    size_t n = x->bench->tokens * x->bench->kv_heads * DIM;
    _cleanup_(freep) uint16_t *numbers = malloc(n * sizeof(*numbers));
    uint64_t state = 1;
    int r;

    if (!numbers)
        return fail(x->e, -ENOMEM, "out of memory");

    for (size_t i = 0; i < n; i++) {
        float value = (float) ((double) (int64_t) splitmix64_next(&state) * 0x1.8p-62); /* [-3, 3) */
        uint32_t bits;

        memcpy(&bits, &value, sizeof(bits));
        numbers[i] = (uint16_t) (bits >> 16);
    }
    r = gpu_alloc(x->gpu, n * sizeof(*numbers), &x->vectors, x->e);
    return r < 0 ? r : gpu_write(x->gpu, x->vectors.at, numbers, n * sizeof(*numbers), x->e);
}

/* A cache of an engine, whose blocks the prompt has in random order. */
static int make_cache(struct run *x)
{
    const struct bench *b = x->bench;
    size_t side = b->tokens * b->kv_heads * DIM * sizeof(uint16_t), n_blocks = b->tokens / BLOCK_TOKENS;
    uint64_t state = 2;
    int r = gpu_alloc(x->gpu, 2 * b->layers * side, &x->cache, x->e);

    if (r < 0)
        return r;

    x->bases = calloc(2 * b->layers, sizeof(*x->bases));
    x->blocks = calloc(n_blocks, sizeof(*x->blocks));
    x->ids = calloc(b->tokens, sizeof(*x->ids));
    if (!x->bases || !x->blocks || !x->ids)
        return fail(x->e, -ENOMEM, "out of memory");

    for (size_t i = 0; i < 2 * b->layers; i++)
        x->bases[i] = (void *) (uintptr_t) (x->cache.at + i * side);
    for (size_t i = 0; i < n_blocks; i++) {
        size_t at = splitmix64_next(&state) % (i + 1);

        x->blocks[i] = x->blocks[at];
        x->blocks[at] = (int64_t) i;
    }
    return 0;
}

static int pin_memory(struct run *x)
{
    int r = gpu_enter(x->gpu, x->e);

    if (r < 0)
        return r;
    r = gpu_cu_result(x->gpu, x->gpu->driver->host_alloc(&x->pinned, PINNED_BYTES, 0), x->e,
                      "cannot pin memory");
    cuda_space_leave(x->gpu->space);
    return r;
}

static void close_run(struct run *x)
{
    if (x->gpu) {
        gpu_free(x->gpu, &x->vectors);
        gpu_free(x->gpu, &x->cache);
        if (x->pinned && gpu_enter(x->gpu, NULL) == 0) {
            (void) x->gpu->driver->host_free(x->pinned);
            cuda_space_leave(x->gpu->space);
        }
    }
    x->client = kvc_client_free(x->client);
    free(x->bases);
    free(x->blocks);
    free(x->ids);
}

/* ---- measurements ---- */

static int new_sequence(struct run *x, kvc_seq **ret)
{
    const kvc_seq_options o = {
        .struct_bytes = sizeof(o), .keys = KVC_KEYS_AFTER_ROPE, .flags = KVC_SEQ_PUBLISH_ALL};

    return client_failed(x, kvc_seq_new_with(x->model, &o, ret));
}

static int encode(struct run *x, kvc_seq *s, struct row *row, size_t i)
{
    const void *at = (const void *) (uintptr_t) x->vectors.at;
    double began = clock_seconds();
    int r = 0;

    for (uint32_t layer = 0; r == 0 && layer < x->bench->layers; layer++)
        r = kvc_seq_append(s, layer, KVC_BF16, at, at, x->bench->tokens);
    if (r == 0) /* packs what appends left in the tail */
        r = kvc_seq_commit(s, x->ids, x->bench->tokens, NULL);
    if (r == 0)
        r = kvc_client_synchronize(x->client);
    row->seconds[ENCODE][i] = clock_seconds() - began;
    if (r == 0)
        r = seq_staged_finish(s);
    row->seconds[ENCODE_COPY][i] = clock_seconds() - began;
    return client_failed(x, r);
}

static int decode(struct run *x, kvc_seq *s, struct row *row, size_t i)
{
    const kvc_blocks to = {.struct_bytes = sizeof(to),
                           .bases = x->bases,
                           .block_tokens = BLOCK_TOKENS,
                           .blocks = x->blocks,
                           .dtype = KVC_BF16};
    double began = clock_seconds();
    int r = kvc_seq_read_blocks(s, 0, x->bench->tokens, &to);

    if (r == 0)
        r = kvc_client_synchronize(x->client);
    row->seconds[DECODE][i] = clock_seconds() - began;
    return client_failed(x, r);
}

/* As many bytes as the vectors have in 16 bits, a layer and side at a time. */
static int copy(struct run *x, enum what what, struct row *row, size_t i)
{
    const struct cuda_driver *d = x->gpu->driver;
    size_t side = row->vector_bytes / x->bench->layers / 2, place = 0;
    cu_result result = CU_SUCCESS;
    double began;
    int r = gpu_enter(x->gpu, x->e);

    if (r < 0)
        return r;
    began = clock_seconds();
    for (size_t k = 0; result == CU_SUCCESS && k < 2 * x->bench->layers; k++) {
        cu_ptr at = x->cache.at + k * side;
        char *host;

        place = place + side <= PINNED_BYTES ? place : 0;
        host = (char *) x->pinned + place;
        result = what == COPY_OUT ? d->copy_to_host_async(host, at, side, x->gpu->stream)
                                  : d->copy_to_device_async(at, host, side, x->gpu->stream);
        place += side;
    }
    if (result == CU_SUCCESS)
        result = d->stream_synchronize(x->gpu->stream);
    row->seconds[what][i] = clock_seconds() - began;
    cuda_space_leave(x->gpu->space);
    return gpu_cu_result(x->gpu, result, x->e, "a copy failed");
}

/* The first round warms up: memory of pages and the ring is touched, the table is checked. */
static int measure_rounds(struct run *x, struct row *row)
{
    int r = 0;

    for (size_t i = 0; r == 0 && i <= x->bench->samples; i++) {
        size_t at = i > 0 ? i - 1 : 0;
        kvc_seq *s = NULL;

        r = new_sequence(x, &s);
        if (r == 0)
            r = encode(x, s, row, at);
        if (r == 0)
            r = copy(x, COPY_OUT, row, at);
        if (r == 0)
            r = decode(x, s, row, at);
        if (r == 0)
            r = copy(x, COPY_IN, row, at);
        if (r == 0)
            row->page_bytes = seq_n_packed(s) * s->table->layout.payload_bytes[PAGE_REST];
        (void) kvc_seq_free(s);
    }
    return r;
}

static int measure(struct bench *b, struct row *row, struct errmsg *e)
{
    struct run x = {.bench = b, .e = e};
    int r = open_model(&x, row->bpd);

    row->vector_bytes = 2 * b->layers * b->tokens * b->kv_heads * DIM * sizeof(uint16_t);
    if (r == 0 && row->vector_bytes / b->layers / 2 > PINNED_BYTES)
        r = fail(e, -EINVAL, "a side of a layer has more than %d bytes: measure fewer tokens or heads",
                 PINNED_BYTES);
    if (r == 0)
        r = put_vectors(&x);
    if (r == 0)
        r = make_cache(&x);
    if (r == 0)
        r = pin_memory(&x);
    if (r == 0) {
        (void) snprintf(b->device, sizeof(b->device), "%s", x.gpu->device.name);
        b->is_standin = strstr(b->device, "stand-in") != NULL;
        r = measure_rounds(&x, row);
    }
    close_run(&x);
    return r;
}

/* ---- results ---- */

/* How many times faster than the copy; of each round. */
static struct timing ratio_of(const struct bench *b, const struct row *row, enum what what, enum what copy)
{
    double ratios[SAMPLES_MAX];

    for (size_t i = 0; i < b->samples; i++)
        ratios[i] = row->seconds[copy][i] / row->seconds[what][i];
    return timing_of(ratios, b->samples);
}

static int print_text(struct bench *b)
{
    _cleanup_(report_freep) struct report *r =
        report_new("<milliseconds\t>bits\t>min\t>median\t>p99\t>GB/s of 16 bits\t>ratio");

    printf("%s; %zu tokens, %zu layers, %zu KV heads of %d, %zu samples, %zu threads\n%s\n", b->device,
           b->tokens, b->layers, b->kv_heads, DIM, b->samples, b->threads,
           b->is_standin ? BENCH_STANDIN_NOTE "\n" : "");
    for (size_t k = 0; k < N_TABLES; k++) {
        const struct row *row = &b->rows[k];
        const struct timing ratios[KINDS] = {[ENCODE] = ratio_of(b, row, ENCODE, COPY_OUT),
                                             [ENCODE_COPY] = ratio_of(b, row, ENCODE_COPY, COPY_OUT),
                                             [DECODE] = ratio_of(b, row, DECODE, COPY_IN)};

        for (unsigned i = 0; i < KINDS; i++) {
            double seconds[SAMPLES_MAX];
            struct timing t;

            memcpy(seconds, row->seconds[i], sizeof(seconds));
            t = timing_of(seconds, b->samples);
            report_row(r,
                       ratios[i].median > 0 ? "%s\t%g\t%.3f\t%.3f\t%.3f\t%.1f\t%.2f"
                                            : "%s\t%g\t%.3f\t%.3f\t%.3f\t%.1f",
                       names[i], row->bpd, t.min * 1e3, t.median * 1e3, t.p99 * 1e3,
                       (double) row->vector_bytes / t.median * 1e-9, ratios[i].median);
        }
    }
    report_print(r, stdout);
    return 0;
}

static json_t *row_json(const struct bench *b, const struct row *row)
{
    json_t *us = json_object();

    for (unsigned i = 0; i < KINDS; i++) {
        double seconds[SAMPLES_MAX];

        memcpy(seconds, row->seconds[i], sizeof(seconds));
        (void) json_object_set_new(us, keys[i], timing_json(timing_of(seconds, b->samples), 1e6));
    }
    return json_pack("{s:f, s:I, s:I, s:o, s:{s:o, s:o, s:o}}", "bits", row->bpd, "vector_bytes",
                     (json_int_t) row->vector_bytes, "page_bytes", (json_int_t) row->page_bytes, "us", us,
                     "ratio", "encode", timing_json(ratio_of(b, row, ENCODE, COPY_OUT), 1), "encode_copy",
                     timing_json(ratio_of(b, row, ENCODE_COPY, COPY_OUT), 1), "decode",
                     timing_json(ratio_of(b, row, DECODE, COPY_IN), 1));
}

static json_t *bench_json(const struct bench *b)
{
    json_t *rows = json_array();

    for (size_t k = 0; k < N_TABLES; k++)
        (void) json_array_append_new(rows, row_json(b, &b->rows[k]));
    return json_pack("{s:s, s:b, s:I, s:I, s:I, s:I, s:I, s:o}", "device", b->device, "stand_in",
                     b->is_standin, "tokens", (json_int_t) b->tokens, "layers", (json_int_t) b->layers,
                     "kv_heads", (json_int_t) b->kv_heads, "samples", (json_int_t) b->samples, "threads",
                     (json_int_t) b->threads, "rows", rows);
}

static int show(struct bench *b, struct errmsg *e)
{
    json_t *json;
    int r;

    if (!b->json)
        return print_text(b);

    json = bench_json(b);
    if (!json)
        return fail(e, -ENOMEM, "out of memory");
    if (!b->json_file)
        return report_json(json) == 0 ? 0 : fail(e, -EIO, "cannot print the results");

    r = json_dump_file(json, b->json_file, JSON_INDENT(2));
    json_decref(json);
    return r < 0 ? fail(e, -EIO, "cannot write the results to %s", b->json_file) : print_text(b);
}

int main(int argc, char **argv)
{
    const struct argp argp = {options, parse, NULL, doc, NULL, NULL, NULL};
    struct bench b = {.tokens = 8192,
                      .layers = 32,
                      .kv_heads = 8,
                      .samples = 10,
                      .threads = 4,
                      .ring_mib = 64,
                      .rows = {{.bpd = 3}, {.bpd = 4}}};
    struct errmsg e = {""};
    int r = 0;

    (void) argp_parse(&argp, argc, argv, 0, NULL, &b);
    for (size_t i = 0; r == 0 && i < N_TABLES; i++)
        r = measure(&b, &b.rows[i], &e);
    if (r == 0)
        r = show(&b, &e);
    if (r < 0)
        (void) fprintf(stderr, "bench_transfer: %s\n", e.text[0] ? e.text : strerror(-r));
    return r == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
