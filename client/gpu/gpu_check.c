/*
 * Compares the results of a GPU with those of the CPU for one table: every kernel that the table selects
 * runs once on a short made-up sequence, before a real sequence uses the table. Otherwise an error of a
 * compiler or driver, defective memory or a kernel that is wrong on this device would change a model's
 * output without any error report. See gpu_check.h.
 *
 * Packed codes, rows, decoded vectors and checksums must equal the CPU's to the bit, attention within
 * TOLERANCE. Each step uses only results that were found right before, so the error names the first kernel
 * that is wrong: a write of words, appends, then reading and attention with the lengths that they left.
 */
#include "client/gpu/gpu_check.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "client/gpu/gpu_check_case.h"
#include "client/gpu/gpu_memory.h"
#include "gpu/cuda/device_table.h"
#include "proto/page.h"

/*
 * The largest error of a row of output that is accepted: |o - o_CPU| / |o_CPU - mean|, Euclidean norms.
 *
 *   roundings   queries, keys and K's dec are rounded to binary16, on average by 2^-12 of a number;
 *               some kernels round up to 12 more times (tests/unit/gpu/cuda says which): 15 in all
 *   scores      sums of many products with a spread of 1.5 (gpu_check_case.c). 15 independent roundings
 *               change them by sqrt(15) 1.5 2^-12 = 2^-9.5
 *   weights     change by the same fraction, beside their own rounding
 *   o - mean    a weighted sum of independent vectors: changes by 2^-9.4 of its size
 *
 * Ten times that is accepted. Wrong kernels exceed it: a key too many or too few among some hundred changes
 * about a tenth of o - mean, a wrong level of all keys more.
 */
#define TOLERANCE 0x1p-6
#define MEAN_ROUNDING 0x1p-20 /* for a mean that is far larger than o - mean: sums are binary32 */

enum { READ_FIRST = 2, READ_TOKENS = CHECK_TOKENS - READ_FIRST }; /* from a sink to the newest */

/* The words that the host writes for kernels, and the words in which kernels return results. */
struct gpu_check_words {
    struct device_seq appended, attended;
    const uint8_t *payloads[CHECK_PAGES];
    const uint8_t *summed[2]; /* new rows by side, to make checksums of */
    uint32_t faults, crc32c[2], unused;
};

_Static_assert(sizeof(struct gpu_check_words) % sizeof(uint32_t) == 0, "cuda_write_words() takes words");

enum gpu_check_part {
    WORDS,
    NEW_K,
    NEW_V,
    TAIL_K,
    TAIL_V,
    PAGE_0,
    PAGE_1,
    QUERIES,
    OUT,
    READ,
    PARTIALS,
    N_PARTS
};

struct gpu_check_state {
    struct gpu *gpu;
    const struct device_table *table;
    struct errmsg *e;
    struct gpu_check_case input;
    struct gpu_check_words words;
    struct gpu_memory memory;
    size_t at[N_PARTS + 1]; /* of memory */
    void *fetched;          /* [fetched_bytes] */
    size_t fetched_bytes;
};

static void gpu_check_deinit(struct gpu_check_state *c)
{
    gpu_free_now(c->gpu, &c->memory);
    gpu_check_case_deinit(&c->input);
    free(c->fetched);
}

static cu_ptr gpu_check_part(const struct gpu_check_state *c, enum gpu_check_part p)
{
    return c->memory.at + c->at[p];
}

static void *gpu_check_pointer(cu_ptr at)
{
    return (void *) (uintptr_t) at;
}

/* ---- errors ---- */

int gpu_check_refuse(const struct gpu *g, struct errmsg *e, const char *kernel, const char *fmt, ...)
{
    struct errmsg what;
    va_list ap;

    va_start(ap, fmt);
    (void) vsnprintf(what.text, sizeof(what.text), fmt, ap);
    va_end(ap);
    return fail(e, -EOPNOTSUPP,
                "%s, %s, computes wrongly: %s: %.160s; this table is refused there: report this with the "
                "driver's version, and use a client of the CPU",
                g->device.name, g->uuid, kernel, what.text);
}

size_t gpu_check_count_other(const void *a, const void *b, size_t bytes)
{
    const uint8_t *x = a, *y = b;
    size_t n = 0;

    for (size_t i = 0; i < bytes; i++)
        n += x[i] != y[i];
    return n;
}

/* ---- memory ---- */

static uint32_t gpu_check_n_tiles(const struct gpu_check_state *c)
{
    return LAUNCH_TILES(c->input.group, c->input.n_q);
}

static size_t gpu_check_queries_bytes(const struct gpu_check_case *s)
{
    return s->n_q * s->group * gpu_check_case_width(s) * sizeof(float);
}

static void gpu_check_lay_out(struct gpu_check_state *c)
{
    const struct gpu_check_case *s = &c->input;
    size_t width = gpu_check_case_width(s), queries = gpu_check_queries_bytes(s);
    size_t tail = CHECK_ROWS * width * sizeof(uint16_t);
    size_t partial =
        LAUNCH_PARTIAL_FLOATS((size_t) device_table_columns_max(s->layout), s->d) * sizeof(float);
    const size_t bytes[N_PARTS] = {
        [WORDS] = sizeof(struct gpu_check_words),
        [NEW_K] = s->new_bytes,
        [NEW_V] = s->new_bytes,
        [TAIL_K] = tail,
        [TAIL_V] = tail,
        [PAGE_0] = s->layout->payload_bytes[PAGE_FIRST],
        [PAGE_1] = s->layout->payload_bytes[PAGE_REST],
        [QUERIES] = queries,
        [OUT] = queries,
        [READ] = READ_TOKENS * width * sizeof(float),
        [PARTIALS] = 2 * gpu_check_n_tiles(c) * s->n_heads * partial, /* of two splits */
    };

    for (unsigned p = 0; p < N_PARTS; p++) {
        c->at[p + 1] = c->at[p] + (bytes[p] + 255) / 256 * 256;
        c->fetched_bytes = bytes[p] > c->fetched_bytes && p != PARTIALS ? bytes[p] : c->fetched_bytes;
    }
}

/* New rows and queries; all other bytes are NaN until a kernel writes them. */
static int gpu_check_fill(struct gpu_check_state *c)
{
    struct gpu *g = c->gpu;
    int r = gpu_enter(g, c->e);

    if (r < 0)
        return r;

    r = gpu_cu_result(g, g->driver->fill_async(c->memory.at, 0xff, c->at[N_PARTS], g->stream), c->e,
                      "cannot write GPU memory");
    cuda_space_leave(g->space);
    if (r == 0)
        r = gpu_write(g, gpu_check_part(c, NEW_K), c->input.new_rows[SIDE_K], c->input.new_bytes, c->e);
    if (r == 0)
        r = gpu_write(g, gpu_check_part(c, NEW_V), c->input.new_rows[SIDE_V], c->input.new_bytes, c->e);
    if (r == 0)
        r = gpu_write(g, gpu_check_part(c, QUERIES), c->input.q, gpu_check_queries_bytes(&c->input), c->e);
    return r;
}

static int gpu_check_init(struct gpu_check_state *c, const struct page_layout *l)
{
    int r = gpu_check_case_init(&c->input, l);

    if (r < 0)
        return fail(c->e, r, "out of memory for checking the GPU");
    gpu_check_lay_out(c);
    c->fetched = malloc(c->fetched_bytes);
    if (!c->fetched)
        return fail(c->e, -ENOMEM, "out of memory for checking the GPU");
    r = gpu_alloc(c->gpu, c->at[N_PARTS], &c->memory, c->e);
    return r < 0 ? r : gpu_check_fill(c);
}

/* ---- comparing ---- */

static int gpu_check_fetch(struct gpu_check_state *c, cu_ptr from, size_t bytes)
{
    return gpu_read(c->gpu, c->fetched, from, bytes, c->e);
}

/* Compares device memory that a kernel wrote with the CPU's result. */
static int gpu_check_compare(struct gpu_check_state *c, const char *kernel, const char *what, uint32_t head,
                             cu_ptr at, const void *want, size_t bytes)
{
    int r = bytes > 0 ? gpu_check_fetch(c, at, bytes) : 0;
    size_t n = r == 0 ? gpu_check_count_other(c->fetched, want, bytes) : 0;

    if (n > 0)
        r = gpu_check_refuse(c->gpu, c->e, kernel, "%zu of %zu bytes of %s, layer %u, KV head %u", n, bytes,
                             what, c->input.layer, c->input.layout->shard.first_head + head);
    return r;
}

/* ---- steps ---- */

static int gpu_check_write_words(struct gpu_check_state *c)
{
    cu_ptr at = gpu_check_part(c, WORDS);
    struct gpu *g = c->gpu;
    struct gpu_check_words *t = &c->words;
    int r;

    *t = (struct gpu_check_words){
        .summed = {gpu_check_pointer(gpu_check_part(c, NEW_K)), gpu_check_pointer(gpu_check_part(c, NEW_V))}};
    for (unsigned i = 0; i < CHECK_PAGES; i++)
        t->payloads[i] = gpu_check_pointer(gpu_check_part(c, i == 0 ? PAGE_0 : PAGE_1));
    t->appended = (struct device_seq){
        .payloads = gpu_check_pointer(at + offsetof(struct gpu_check_words, payloads)),
        .n_claimed = CHECK_PACKED,
        .exact_ld = CHECK_ROWS,
        .exact_k = gpu_check_pointer(gpu_check_part(c, TAIL_K)),
        .exact_v = gpu_check_pointer(gpu_check_part(c, TAIL_V)),
        .faults = gpu_check_pointer(at + offsetof(struct gpu_check_words, faults)),
    };
    t->attended = t->appended;
    t->attended.n_claimed = t->attended.n_pages = CHECK_PAGES;
    t->attended.n_exact = CHECK_EXACT;
    r = gpu_result(g, cuda_write_words(g->kernels, at, t, sizeof(*t), g->stream, c->e), c->e);
    if (r == 0)
        r = gpu_check_fetch(c, at, sizeof(*t));
    if (r == 0 && memcmp(c->fetched, t, sizeof(*t)) != 0)
        r = gpu_check_refuse(c->gpu, c->e, "kvc_write_words", "%zu of %zu bytes",
                             gpu_check_count_other(c->fetched, t, sizeof(*t)), sizeof(*t));
    return r;
}

static int gpu_check_run_appends(struct gpu_check_state *c)
{
    struct gpu *g = c->gpu;
    int r = 0;

    for (unsigned p = 0; r == 0 && p < CHECK_PIECES; p++) {
        bool packs = p + 1 == CHECK_PIECES;
        struct launch_append a = {
            .table = c->table,
            .dtype = (enum launch_dtype) c->input.pieces[p].dtype,
            .layer = c->input.layer,
            .given = packs,
            .items = {{.seq = gpu_check_pointer(gpu_check_part(c, WORDS) +
                                                offsetof(struct gpu_check_words, appended)),
                       .k = gpu_check_pointer(gpu_check_part(c, NEW_K) + c->input.pieces[p].at),
                       .v = gpu_check_pointer(gpu_check_part(c, NEW_V) + c->input.pieces[p].at),
                       .n_new = c->input.pieces[p].n_new,
                       .n_pack = packs ? CHECK_PACKED : 0}},
        };

        r = gpu_result(g, cuda_append(g->kernels, c->input.layout, &a, 1, g->stream, c->e), c->e);
    }

    return r;
}

/* Rows of the tail: exact ones at the front of the buffer, then older ones that were not overwritten. */
static int gpu_check_compare_rows(struct gpu_check_state *c, uint32_t head, enum side side)
{
    const struct gpu_check_case *s = &c->input;
    size_t row_bytes = s->d * sizeof(uint16_t), old = s->pieces[0].n_new + s->pieces[1].n_new;
    cu_ptr at = gpu_check_part(c, side == SIDE_K ? TAIL_K : TAIL_V) + head * CHECK_ROWS * row_bytes;
    const uint16_t *want = s->rows[side] + (size_t) head * CHECK_TOKENS * s->d;
    int r = gpu_check_compare(c, "kvc_append_rows", "rows", head, at,
                              want + CHECK_PACKED * CHUNK_TOKENS * s->d, CHECK_EXACT * row_bytes);

    return r < 0 ? r
                 : gpu_check_compare(c, "kvc_append_rows", "rows", head, at + CHECK_EXACT * row_bytes,
                                     want + CHECK_EXACT * s->d, (old - CHECK_EXACT) * row_bytes);
}

static int gpu_check_compare_packed(struct gpu_check_state *c, uint32_t head, enum side side)
{
    const struct page_layout *l = c->input.layout;
    const char *kernel = side == SIDE_K ? "kvc_pack_keys" : "kvc_pack_values";
    size_t first = page_block_off(l, c->input.layer, head), end = page_block_off(l, c->input.layer, head + 1);
    size_t middle =
        first + page_v_off(table_codec(l->table, c->input.layer, l->shard.first_head + head, SIDE_K));
    size_t from = side == SIDE_K ? first : middle, to = side == SIDE_K ? middle : end;
    size_t sinks = page_sink_off(l, c->input.layer, head, side);
    int r = gpu_check_compare(c, kernel, "sinks", head, gpu_check_part(c, PAGE_0) + sinks,
                              c->input.pages[0] + sinks,
                              (size_t) l->table->n_sink * c->input.d * sizeof(uint16_t));

    for (unsigned i = 0; r == 0 && i < CHECK_PACKED; i++)
        r = gpu_check_compare(c, kernel, "codes", head, gpu_check_part(c, i == 0 ? PAGE_0 : PAGE_1) + from,
                              c->input.pages[i] + from, to - from);
    return r;
}

/* For every head and side that is used. Keys of all heads first: values depend on them. */
static int gpu_check_for_used(struct gpu_check_state *c,
                              int (*compare_head)(struct gpu_check_state *c, uint32_t head, enum side side))
{
    int r = 0;

    for (unsigned side = SIDE_K; side <= SIDE_V; side++)
        for (uint32_t h = 0; r == 0 && h < c->input.n_heads; h++)
            if (gpu_check_case_uses(&c->input, h, (enum side) side))
                r = compare_head(c, h, (enum side) side);
    return r;
}

static int gpu_check_appends(struct gpu_check_state *c)
{
    struct device_seq *want = &c->words.appended;
    int r = gpu_check_run_appends(c);

    if (r == 0)
        r = gpu_check_fetch(c, gpu_check_part(c, WORDS), sizeof(c->words));
    if (r < 0)
        return r;

    want->n_pages = CHECK_PACKED;
    want->n_exact = CHECK_EXACT;
    if (memcmp(c->fetched, &c->words, sizeof(c->words)) != 0)
        return gpu_check_refuse(c->gpu, c->e, "kvc_append_rows", "%zu bytes of lengths and faults",
                                gpu_check_count_other(c->fetched, &c->words, sizeof(c->words)));

    r = gpu_check_for_used(c, gpu_check_compare_rows);
    return r < 0 ? r : gpu_check_for_used(c, gpu_check_compare_packed);
}

static int gpu_check_compare_read(struct gpu_check_state *c, uint32_t head, enum side side)
{
    size_t width = gpu_check_case_width(&c->input), row_bytes = c->input.d * sizeof(float), n = 0;
    _cleanup_(freep) float *want = malloc(READ_TOKENS * row_bytes);

    if (!want)
        return fail(c->e, -ENOMEM, "out of memory for checking the GPU");

    gpu_check_case_read(&c->input, head, side, READ_FIRST, READ_TOKENS, want);
    for (size_t t = 0; t < READ_TOKENS; t++)
        n += gpu_check_count_other((const float *) c->fetched + t * width + head * c->input.d,
                                   want + t * c->input.d, row_bytes);
    if (n == 0)
        return 0;

    return gpu_check_refuse(
        c->gpu, c->e, "kvc_read", "%zu of %zu bytes of decoded vectors, layer %u, KV head %u", n,
        READ_TOKENS * row_bytes, c->input.layer, c->input.layout->shard.first_head + head);
}

static int gpu_check_read(struct gpu_check_state *c, enum side side)
{
    struct launch_read plan = {
        .table = c->table,
        .seq = gpu_check_pointer(gpu_check_part(c, WORDS) + offsetof(struct gpu_check_words, appended)),
        .layer = c->input.layer,
        .side = side,
        .first = READ_FIRST,
        .n = READ_TOKENS,
        .out = gpu_check_pointer(gpu_check_part(c, READ)),
    };
    struct gpu *g = c->gpu;
    int r = gpu_result(g, cuda_read(g->kernels, c->input.layout, &plan, g->stream, c->e), c->e);

    if (r == 0)
        r = gpu_check_fetch(c, gpu_check_part(c, READ),
                            READ_TOKENS * gpu_check_case_width(&c->input) * sizeof(float));
    for (uint32_t i = 0; r == 0 && i < c->input.n_checked; i++)
        r = gpu_check_compare_read(c, c->input.heads[i], side);
    return r;
}

static int gpu_check_crc(struct gpu_check_state *c)
{
    cu_ptr at = gpu_check_part(c, WORDS);
    struct launch_crc plan = {.payloads = gpu_check_pointer(at + offsetof(struct gpu_check_words, summed)),
                              .bytes = c->input.new_bytes,
                              .n = 2,
                              .crc32c = gpu_check_pointer(at + offsetof(struct gpu_check_words, crc32c))};
    struct gpu *g = c->gpu;
    int r = gpu_result(g, cuda_crc(g->kernels, &plan, g->stream, c->e), c->e);
    const uint32_t *got = c->fetched;

    if (r == 0)
        r = gpu_check_fetch(c, at + offsetof(struct gpu_check_words, crc32c), sizeof(c->words.crc32c));
    for (unsigned side = SIDE_K; r == 0 && side <= SIDE_V; side++) {
        uint32_t want = crc32c(c->input.new_rows[side], c->input.new_bytes);

        if (got[side] != want)
            r = gpu_check_refuse(c->gpu, c->e, "kvc_crc", "the checksum of %zu bytes is %08x, not %08x",
                                 c->input.new_bytes, got[side], want);
    }

    return r;
}

/* ---- attention ---- */

/* Relative error of one row, which TOLERANCE limits. */
static double gpu_check_row_error(const float *got, const float *want, const float *mean, size_t d)
{
    double error = 0, size = 0, whole = 0;

    for (size_t i = 0; i < d; i++) {
        error += ((double) got[i] - want[i]) * ((double) got[i] - want[i]);
        size += ((double) want[i] - mean[i]) * ((double) want[i] - mean[i]);
        whole += (double) want[i] * want[i];
    }
    return error == 0 ? 0 : sqrt(error) / (sqrt(size) + MEAN_ROUNDING / TOLERANCE * sqrt(whole));
}

static int gpu_check_compare_attention(struct gpu_check_state *c, const char *kernel, uint32_t head,
                                       uint32_t n_q, uint32_t window)
{
    struct gpu_check_case *s = &c->input;
    const struct page_layout *l = s->layout;
    const float *mean = table_codec(l->table, s->layer, l->shard.first_head + head, SIDE_V)->mean,
                *got = c->fetched;
    _cleanup_(freep) float *want = malloc((size_t) n_q * s->group * s->d * sizeof(*want));
    double largest = 0;

    if (!want || gpu_check_case_attend(s, head, n_q, window, want) < 0)
        return fail(c->e, -ENOMEM, "out of memory for checking the GPU");

    for (uint32_t row = 0; row < n_q * s->group; row++) {
        size_t at = (size_t) (row / s->group * s->n_heads + head) * s->group + row % s->group;
        double error = gpu_check_row_error(got + at * s->d, want + (size_t) row * s->d, mean, s->d);

        if (!(error <= largest)) /* also not a number */
            largest = error;
    }

    if (largest <= TOLERANCE)
        return 0;

    return gpu_check_refuse(
        c->gpu, c->e, kernel,
        "attention of layer %u, KV head %u, %u queries, is off by %.3g of its size, more than %.3g", s->layer,
        l->shard.first_head + head, n_q, largest, TOLERANCE);
}

static int gpu_check_attend(struct gpu_check_state *c, uint32_t n_q, uint32_t n_splits, uint32_t window)
{
    struct launch_attend plan = {
        .table = c->table,
        .partials = gpu_check_pointer(gpu_check_part(c, PARTIALS)),
        .layer = c->input.layer,
        .n_splits = n_splits,
        .n_q = n_q,
        .window = window,
        .items = {{.seq = gpu_check_pointer(gpu_check_part(c, WORDS) +
                                            offsetof(struct gpu_check_words, attended)),
                   .q = gpu_check_pointer(gpu_check_part(c, QUERIES)),
                   .out = gpu_check_pointer(gpu_check_part(c, OUT)),
                   .n_q = n_q}},
    };
    struct gpu *g = c->gpu;
    struct errmsg kernels;
    int r = gpu_result(g, cuda_attend(g->kernels, c->input.layout, &plan, 1, g->stream, c->e), c->e);

    (void) snprintf(kernels.text, sizeof(kernels.text), "%s or kvc_merge",
                    cuda_attend_name(g->kernels, c->input.layout, n_q));
    if (r == 0)
        r = gpu_check_fetch(c, gpu_check_part(c, OUT),
                            n_q * c->input.group * gpu_check_case_width(&c->input) * sizeof(float));
    for (uint32_t i = 0; r == 0 && i < c->input.n_checked; i++)
        r = gpu_check_compare_attention(c, kernels.text, c->input.heads[i], n_q, window);
    return r;
}

/*
 * Checks one query over all pages in one split. Then, with a window of which one split has only the
 * sinks, checks a prompt of more than a tile, and the largest call of every other kernel that some
 * smaller number of queries selects.
 */
static int gpu_check_attention(struct gpu_check_state *c)
{
    const struct cuda_kernels *k = c->gpu->kernels;
    const struct page_layout *l = c->input.layout;
    const char *first = cuda_attend_name(k, l, 1), *last = cuda_attend_name(k, l, c->input.n_q);
    int r = gpu_check_attend(c, 1, 1, 0);

    for (uint32_t n_q = 2; r == 0 && n_q < c->input.n_q; n_q++) {
        const char *name = cuda_attend_name(k, l, n_q);

        if (name != first && name != last && name != cuda_attend_name(k, l, n_q + 1))
            r = gpu_check_attend(c, n_q, 2, CHECK_WINDOW);
    }

    return r < 0 ? r : gpu_check_attend(c, c->input.n_q, 2, CHECK_WINDOW);
}

/* ---- the check ---- */

int gpu_check_table(struct gpu *g, const struct page_layout *l, cu_ptr table, struct errmsg *e)
{
    _cleanup_(gpu_check_deinit) struct gpu_check_state c = {
        .gpu = g, .table = gpu_check_pointer(table), .e = e};
    int r = gpu_check_not_capturing(g, e);

    if (r == 0)
        r = gpu_check_init(&c, l);
    if (r == 0)
        r = gpu_check_write_words(&c);
    if (r == 0)
        r = gpu_check_appends(&c);
    for (unsigned side = SIDE_K; r == 0 && side <= SIDE_V; side++)
        r = gpu_check_read(&c, (enum side) side);
    if (r == 0)
        r = gpu_check_crc(&c);
    return r < 0 ? r : gpu_check_attention(&c);
}
