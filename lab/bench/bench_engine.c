/* See bench_engine.h. */
#include "lab/bench/bench_engine.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "base/half.h"
#include "base/splitmix64.h"
#include "gpu/chunk.h"
#include "gpu/dtype.h"
#include "gpu/rope.h"
#include "gpu/vectors.h"
#include "tools/command/client_model.h"
#include "tools/command/clock.h"

/* ---- a text ---- */

static size_t bench_engine_n_blocks(const struct engine_cache *e)
{
    return (e->n_tokens + ENGINE_BLOCK_TOKENS - 1) / ENGINE_BLOCK_TOKENS;
}

static size_t bench_engine_row(const struct engine_cache *e)
{
    return (size_t) e->table->geometry.n_kv_heads * e->table->geometry.d;
}

/* Numbers of a layer and side in the engine's blocks, a last one that is not full included. */
static size_t bench_engine_side(const struct engine_cache *e)
{
    return bench_engine_n_blocks(e) * ENGINE_BLOCK_TOKENS * bench_engine_row(e);
}

/* The vectors of one head of a chunk with random codes, at every chunk of the text. */
static void bench_engine_fill_head(struct engine_cache *e, uint32_t i, uint32_t head, const float *rows,
                                   const struct rope_table *angles)
{
    const struct geometry *g = &e->table->geometry;
    uint16_t *to = e->text + i * e->n_tokens * bench_engine_row(e) + (size_t) head * g->d;

    for (size_t at = 0; at < e->n_tokens; at += CHUNK_TOKENS) {
        size_t n = e->n_tokens - at < CHUNK_TOKENS ? e->n_tokens - at : CHUNK_TOKENS;
        struct vector_form f = {.geometry = g, .dtype = DTYPE_BF16};

        if (i % 2 == SIDE_K) {
            f.cos = angles->cos + at * (g->n_rot / 2);
            f.sin = angles->sin + at * (g->n_rot / 2);
        }
        vectors_store(&f, rows, g->d, n, to + at * bench_engine_row(e), bench_engine_row(e), 1);
    }
}

static int bench_engine_fill(struct engine_cache *e)
{
    const struct geometry *g = &e->table->geometry;
    const struct shard all = {0, g->n_kv_heads};
    _cleanup_(chunk_work_deinit) struct chunk_work work = {0};
    _cleanup_(rope_table_deinit) struct rope_table angles = {0};
    _cleanup_(freep) float *rows = malloc((size_t) CHUNK_TOKENS * g->d * sizeof(*rows));
    _cleanup_(freep) uint8_t *payload = NULL;
    _cleanup_(page_layout_deinit) struct page_layout layout = {0};
    uint64_t seed = 1;

    if (page_layout_init(&layout, e->table, all) < 0 || !rows || chunk_work_init(&work, g, all) < 0 ||
        rope_table_cover(&angles, g, 0, e->n_tokens) < 0)
        return -ENOMEM;

    payload = malloc(layout.payload_bytes[PAGE_REST]);
    if (!payload)
        return -ENOMEM;

    for (size_t i = 0; i < layout.payload_bytes[PAGE_REST]; i++) /* all bytes are valid codes */
        payload[i] = (uint8_t) splitmix64_next(&seed);
    for (uint32_t i = 0; i < 2 * g->n_layers; i++)
        for (uint32_t head = 0; head < g->n_kv_heads; head++) {
            chunk_decode(&layout, payload, i / 2, head, (enum side)(i % 2), rows, g->d, &work);
            bench_engine_fill_head(e, i, head, rows, &angles);
        }
    return 0;
}

int engine_cache_init(struct engine_cache *ret, const struct table *table, size_t n_tokens)
{
    struct engine_cache e = {.table = table, .n_tokens = n_tokens};
    size_t n_sides = (size_t) 2 * table->geometry.n_layers;

    e.text = malloc(n_sides * n_tokens * bench_engine_row(&e) * sizeof(*e.text));
    e.blocks = calloc(n_sides, bench_engine_side(&e) * sizeof(*e.blocks));
    e.bases = calloc(n_sides, sizeof(*e.bases));
    e.order = calloc(bench_engine_n_blocks(&e), sizeof(*e.order));
    e.tokens = calloc(n_tokens, sizeof(*e.tokens));
    if (!e.text || !e.blocks || !e.bases || !e.order || !e.tokens || bench_engine_fill(&e) < 0) {
        engine_cache_deinit(&e);
        return -ENOMEM;
    }

    for (size_t i = 0; i < n_sides; i++)
        e.bases[i] = e.blocks + i * bench_engine_side(&e);
    for (size_t i = 0; i < bench_engine_n_blocks(&e); i++) /* from the last block to the first */
        e.order[i] = (int64_t) (bench_engine_n_blocks(&e) - 1 - i);
    *ret = e;
    return 0;
}

void engine_cache_deinit(struct engine_cache *e)
{
    free(e->text);
    free(e->blocks);
    free(e->bases);
    free(e->order);
    free(e->tokens);
    *e = (struct engine_cache){0};
}

/* ---- publishing and reading ---- */

static double bench_engine_processor_seconds(void)
{
    struct timespec ts;

    (void) clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts); /* cannot fail for this clock */
    return (double) ts.tv_sec + (double) ts.tv_nsec * 1e-9;
}

static int bench_engine_publish(const struct engine_cache *e, kvc_model *m, kvc_seq **ret_seq)
{
    const kvc_seq_options o = {
        .struct_bytes = sizeof(o), .keys = KVC_KEYS_AFTER_ROPE, .flags = KVC_SEQ_PUBLISH_ALL};
    size_t side = e->n_tokens * bench_engine_row(e);
    int r = kvc_seq_new_with(m, &o, ret_seq);

    for (uint32_t i = 0; r == 0 && i < e->table->geometry.n_layers; i++)
        r = kvc_seq_append(*ret_seq, i, KVC_BF16, e->text + 2 * i * side, e->text + (2 * i + 1) * side,
                           e->n_tokens);
    return r < 0 ? r : kvc_seq_commit(*ret_seq, e->tokens, e->n_tokens, NULL);
}

static int bench_engine_read(const struct engine_cache *e, kvc_seq *s)
{
    const kvc_blocks to = {.struct_bytes = sizeof(to),
                           .bases = e->bases,
                           .block_tokens = ENGINE_BLOCK_TOKENS,
                           .blocks = e->order,
                           .dtype = KVC_BF16};

    return kvc_seq_read_blocks(s, 0, e->n_tokens, &to);
}

/* ---- checking ---- */

/* Sums over one layer and side. False: a block differs from @rows [n_tokens, KV heads, d]. */
static bool bench_engine_compare(const struct engine_cache *e, uint32_t i, const float *rows, double *wrong,
                                 double *size)
{
    size_t row = bench_engine_row(e);
    bool same = true;

    for (size_t t = 0; t < e->n_tokens; t++) {
        size_t block = (size_t) e->order[t / ENGINE_BLOCK_TOKENS];
        const uint16_t *got =
            (const uint16_t *) e->bases[i] + (block * ENGINE_BLOCK_TOKENS + t % ENGINE_BLOCK_TOKENS) * row;
        const uint16_t *text = e->text + (i * e->n_tokens + t) * row;

        for (size_t x = 0; x < row; x++) {
            double want = (double) bf16_to_f32(text[x]), error = (double) bf16_to_f32(got[x]) - want;

            same = same && got[x] == f32_to_bf16(rows[t * row + x]);
            *wrong += error * error;
            *size += want * want;
        }
    }
    return same;
}

/* A wrong position or rotation changes vectors by their whole size; encoding decoded vectors again, by less
 * than the table's error. */
static int bench_engine_check(const struct engine_cache *cache, kvc_client *c, kvc_seq *s, double *ret_error,
                              struct errmsg *e)
{
    _cleanup_(freep) float *rows = malloc(cache->n_tokens * bench_engine_row(cache) * sizeof(*rows));
    double wrong = 0, size = 0;

    if (!rows)
        return fail(e, -ENOMEM, "out of memory");

    for (uint32_t i = 0; i < 2 * cache->table->geometry.n_layers; i++) {
        int r = kvc_seq_read(s, i / 2, (enum kvc_side)(i % 2), 0, cache->n_tokens, rows);

        if (r < 0)
            return fail(e, r, "%s", kvc_last_error(c));
        if (!bench_engine_compare(cache, i, rows, &wrong, &size))
            return fail(e, -EBADMSG, "layer %u, %s: the blocks differ from kvc_seq_read(); nothing was timed",
                        i / 2, i % 2 == SIDE_K ? "K" : "V");
    }

    *ret_error = wrong / size;
    if (*ret_error >= 0.25)
        return fail(e, -EBADMSG, "the vectors that were read differ from the text by %g; nothing was timed",
                    *ret_error);
    return 0;
}

/* ---- timing ---- */

/* Seconds of one repetition. */
struct seconds {
    double publish, decode, read, copy;
};

static int bench_engine_once(const struct engine_cache *cache, kvc_client *c, kvc_model *m, double *ret_error,
                             struct seconds *ret, struct errmsg *e)
{
    size_t bytes = (size_t) 2 * cache->table->geometry.n_layers * cache->n_tokens * bench_engine_row(cache) *
                   sizeof(uint16_t);
    _cleanup_(kvc_seq_freep) kvc_seq *s = NULL;
    double start = bench_engine_processor_seconds();
    int r = bench_engine_publish(cache, m, &s);

    ret->publish = bench_engine_processor_seconds() - start;
    start = clock_seconds();
    memcpy(cache->blocks, cache->text, bytes);
    ret->copy = clock_seconds() - start;
    ret->decode = bench_engine_processor_seconds();
    start = clock_seconds();
    r = r < 0 ? r : bench_engine_read(cache, s);
    ret->read = clock_seconds() - start;
    ret->decode = bench_engine_processor_seconds() - ret->decode;
    if (r < 0)
        return fail(e, r, "%s", kvc_last_error(c));

    return ret_error ? bench_engine_check(cache, c, s, ret_error, e) : 0;
}

int engine_cache_measure(const struct engine_cache *cache, kvc_client *c, kvc_model *m, size_t repeat,
                         struct engine_result *ret, struct errmsg *e)
{
    _cleanup_(freep) double *samples = calloc(repeat, 5 * sizeof(*samples));
    struct seconds one;
    double error;
    int r;

    if (!samples)
        return fail(e, -ENOMEM, "out of memory");

    r = bench_engine_once(cache, c, m, &error, &one, e);
    for (size_t i = 0; r == 0 && i < repeat; i++) {
        r = bench_engine_once(cache, c, m, NULL, &one, e);
        samples[i] = one.publish;
        samples[repeat + i] = one.read;
        samples[2 * repeat + i] = one.copy;
        samples[3 * repeat + i] = one.read / one.copy;
        samples[4 * repeat + i] = one.decode;
    }
    if (r < 0)
        return r;

    *ret = (struct engine_result){
        .publish = timing_of(samples, repeat),
        .read = timing_of(samples + repeat, repeat),
        .copy = timing_of(samples + 2 * repeat, repeat),
        .ratio = timing_of(samples + 3 * repeat, repeat),
        .decode = timing_of(samples + 4 * repeat, repeat),
        .error = error,
    };
    return 0;
}
