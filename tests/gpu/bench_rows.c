/* Measures single rows of the bench; see bench_rows.h. */
#include "tests/gpu/bench_rows.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "base/half.h"
#include "gpu/cuda/device_table.h"
#include "tests/gpu/bench_subject.h"
#include "tools/command/clock.h"

enum {
    SETS_MAX = 64,  /* caches that calls use in rotation */
    CANDIDATES = 3, /* numbers of splits that are tried */
    F16_BLOCKS = 2, /* of the baseline on a multiprocessor: what the first candidate fills */
    SAMPLES_MIN = 3,
    PATTERN_BYTES = 16 << 20,
};

#define MIB ((size_t) 1 << 20)
#define MEMORY_SHARE 0.8   /* of the GPU's memory, for caches */
#define CALLS_SECONDS 1e-3 /* of work between two events, if calls are shorter */

static size_t smaller(size_t x, size_t y)
{
    return x < y ? x : y;
}

/* ---- caches ---- */

/* Bytes of one side of one cache, per layer: [batch][heads][tokens][d] binary16. */
static size_t f16_side_bytes(const struct attend_synthetic_shape *shape, size_t batch, size_t tokens)
{
    return batch * shape->n_kv_heads * tokens * shape->d * sizeof(uint16_t);
}

static size_t code_bytes(const struct attend_synthetic_shape *shape, size_t batch, size_t tokens)
{
    return batch * shape->n_kv_heads * tokens * (shape->k_coords + shape->v_coords) / 2; /* 4 bits each */
}

/* Page slots are larger than their codes by at most this factor; pools have space for it. */
static size_t pool_bytes(const struct attend_synthetic_shape *shape, size_t batch, size_t tokens)
{
    return code_bytes(shape, batch, tokens) + batch * (tokens / CHUNK_TOKENS) * BENCH_SLOT_ALIGN;
}

/* Number of caches of @one bytes that calls use in rotation. */
static size_t sets_of_bytes(const struct bench_options *o, size_t one)
{
    return smaller((o->cold_mib * MIB + one - 1) / one + (o->cold_mib == 0), SETS_MAX);
}

static size_t sets_of(const struct bench_options *o, const struct attend_synthetic_shape *shape, size_t batch,
                      size_t tokens)
{
    return sets_of_bytes(o, code_bytes(shape, batch, tokens));
}

/* Bytes of a page of all layers; 0: there is no such table, or no memory for its layout. */
static size_t slot_of(const struct table *of_file)
{
    struct page_layout layout;
    size_t slot;

    if (!of_file || page_layout_init(&layout, of_file, (struct shard){0, of_file->geometry.n_kv_heads}) < 0)
        return 0;
    slot = layout.payload_bytes[PAGE_FIRST] + BENCH_SLOT_ALIGN;
    page_layout_deinit(&layout);
    return slot;
}

int bench_pools_init(struct bench_gpu *g, const struct bench_options *o, const struct table *of_file,
                     struct bench_pools *ret_pools, struct errmsg *e)
{
    const struct attend_synthetic_shape smallest = {BENCH_D, o->n_kv_heads, BENCH_GROUP, 32, 32, false, 0, 0};
    const struct attend_synthetic_shape largest = {BENCH_D, o->n_kv_heads, BENCH_GROUP, 128,
                                                   128,     false,         0,           0};
    _cleanup_(freep) uint16_t *pattern = malloc(PATTERN_BYTES);
    struct bench_pools p = {0};
    size_t slot = slot_of(of_file);
    uint64_t seed = 7;
    int r;

    if (!pattern)
        return fail(e, -ENOMEM, "out of memory");

    for (size_t i = 0; i < o->n_batches * o->n_tokens; i++) {
        size_t batch = o->batches[i % o->n_batches], tokens = o->tokens[i / o->n_batches];
        size_t f16 = sets_of(o, &smallest, batch, tokens) * f16_side_bytes(&largest, batch, tokens);
        size_t packed =
            sets_of(o, &largest, batch, tokens) * pool_bytes(&largest, batch, tokens) + o->cold_mib * 2 * MIB;

        packed =
            packed > batch * (tokens / CHUNK_TOKENS) * slot ? packed : batch * (tokens / CHUNK_TOKENS) * slot;
        if ((double) (2 * f16 + packed) > MEMORY_SHARE * (double) g->device.bytes)
            continue;
        p.f16_bytes = f16 > p.f16_bytes ? f16 : p.f16_bytes;
        p.packed_bytes = packed > p.packed_bytes ? packed : p.packed_bytes;
    }
    if (p.f16_bytes == 0)
        return fail(e, -ENOMEM, "no cache of the requested sizes fits into the GPU's %zu MiB",
                    g->device.bytes / MIB);

    for (size_t i = 0; i < PATTERN_BYTES / sizeof(*pattern); i++) { /* numbers in -1..1, codes of any value */
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        pattern[i] = f32_to_f16((float) (seed >> 40) * 0x1p-23f - 1);
    }
    if ((r = bench_gpu_put(g, NULL, p.packed_bytes, &p.packed, e)) < 0 ||
        (r = bench_gpu_put(g, NULL, p.f16_bytes, &p.k, e)) < 0 ||
        (r = bench_gpu_put(g, NULL, p.f16_bytes, &p.v, e)) < 0 ||
        (r = bench_gpu_fill(g, p.k, p.f16_bytes, pattern, PATTERN_BYTES, e)) < 0 ||
        (r = bench_gpu_fill(g, p.v, p.f16_bytes, pattern, PATTERN_BYTES, e)) < 0 ||
        (r = bench_gpu_fill(g, p.packed, p.packed_bytes, pattern, PATTERN_BYTES, e)) < 0)
        return r;
    *ret_pools = p;
    return 0;
}

/* ---- contenders ---- */

/* One kind of attention to be measured: its parameters, and what differs between the caches that calls
 * use. */
struct contender {
    struct bench_gpu *g;
    const struct page_layout *layout; /* packed; NULL: binary16 */
    bool of_layers;                   /* packed: caches are layers of the same pages */
    struct launch_attend packed;
    struct f16_attend f16;
    unsigned n_splits, batch;
    size_t n_sets;
    cu_ptr seqs[SETS_MAX]; /* packed: [batch] struct device_seq each */
    size_t f16_side_bytes; /* of one cache */
};

static int call_contender(const void *arg, size_t i, struct errmsg *e)
{
    const struct contender *w = arg;
    size_t set = i % w->n_sets;

    if (w->layout) {
        struct launch_attend a = w->packed;

        a.layer = w->of_layers ? (uint32_t) set : 0;
        for (unsigned n = 0; n < w->batch; n++)
            a.items[n].seq = (const struct device_seq *) (uintptr_t) w->seqs[w->of_layers ? 0 : set] + n;
        return cuda_attend(w->g->kernels, w->layout, &a, w->batch, NULL, e);
    } else {
        struct f16_attend a = w->f16;

        a.k += set * w->f16_side_bytes / sizeof(*a.k);
        a.v += set * w->f16_side_bytes / sizeof(*a.v);
        return cuda_f16_attend(w->g->f16, &a, w->batch, NULL, e);
    }
}

/* Common to all contenders: queries and outputs of a call. */
struct rows {
    cu_ptr q, out;
    size_t n_floats;
};

static int put_rows(struct bench_gpu *g, const struct attend_synthetic_shape *shape, size_t batch,
                    struct rows *ret, struct errmsg *e)
{
    size_t n = batch * shape->n_kv_heads * shape->group * shape->d;
    _cleanup_(freep) float *q = malloc(n * sizeof(*q));
    struct rows rows = {.n_floats = n};
    int r;

    if (!q)
        return fail(e, -ENOMEM, "out of memory");

    for (size_t i = 0; i < n; i++)
        q[i] = (float) ((double) (i * 7919 % 2003) / 1001 - 1);
    if ((r = bench_gpu_put(g, q, n * sizeof(*q), &rows.q, e)) < 0 ||
        (r = bench_gpu_put(g, NULL, n * sizeof(*q), &rows.out, e)) < 0)
        return r;
    *ret = rows;
    return 0;
}

/* Makes sequences with the pages of cache @set, by device addresses. */
static int put_sequences(struct bench_gpu *g, const struct bench_pools *p, const struct subject *s,
                         size_t batch, size_t tokens, size_t set, cu_ptr *ret_seqs, struct errmsg *e)
{
    size_t n_pages = tokens / CHUNK_TOKENS;
    _cleanup_(freep) const uint8_t **pages = calloc(batch * n_pages, sizeof(*pages));
    _cleanup_(freep) struct device_seq *seqs = calloc(batch, sizeof(*seqs));
    cu_ptr list;
    int r;

    if (!pages || !seqs)
        return fail(e, -ENOMEM, "out of memory");

    for (size_t i = 0; i < batch * n_pages; i++)
        pages[i] = (const uint8_t *) (uintptr_t) (p->packed + (set * batch * n_pages + i) * s->slot);
    r = bench_gpu_put(g, pages, batch * n_pages * sizeof(*pages), &list, e);
    if (r < 0)
        return r;

    for (size_t i = 0; i < batch; i++)
        seqs[i] = (struct device_seq){
            .payloads = (uint8_t *const *) (uintptr_t) (list + i * n_pages * sizeof(*pages)),
            .n_pages = (uint32_t) n_pages,
        };
    return bench_gpu_put(g, seqs, batch * sizeof(*seqs), ret_seqs, e);
}

static int put_packed(const struct bench_pools *p, const struct subject *s, const struct rows *rows,
                      size_t tokens, struct contender *w, struct errmsg *e)
{
    const struct geometry *geometry = &s->layout.table->geometry;
    size_t partial = LAUNCH_PARTIAL_FLOATS(device_table_columns_max(&s->layout), geometry->d) * sizeof(float);
    size_t row = (size_t) geometry->n_kv_heads * geometry_group(geometry) * geometry->d;
    cu_ptr partials;
    int r = bench_gpu_put(w->g, NULL, w->batch * geometry->n_kv_heads * w->n_splits * partial, &partials, e);

    w->packed = (struct launch_attend){
        .table = (const struct device_table *) (uintptr_t) s->table,
        .partials = (float *) (uintptr_t) partials,
        .n_splits = w->n_splits,
        .n_q = 1,
    };
    for (unsigned i = 0; i < w->batch; i++)
        w->packed.items[i] = (struct launch_attend_item){
            .q = (const float *) (uintptr_t) rows->q + i * row,
            .out = (float *) (uintptr_t) rows->out + i * row,
            .n_q = 1,
        };
    for (size_t i = 0; i < (w->of_layers ? 1 : w->n_sets) && r == 0; i++)
        r = put_sequences(w->g, p, s, w->batch, tokens, i, &w->seqs[i], e);
    return r;
}

static int put_f16(const struct bench_pools *p, const struct attend_synthetic_shape *shape,
                   const struct rows *rows, size_t tokens, struct contender *w, struct errmsg *e)
{
    cu_ptr partials;
    int r = bench_gpu_put(w->g, NULL,
                          (size_t) w->batch * shape->n_kv_heads * w->n_splits * F16_WARPS *
                              F16_PARTIAL_FLOATS(shape->d) * sizeof(float),
                          &partials, e);

    w->f16 = (struct f16_attend){
        .d = shape->d,
        .group = shape->group,
        .n_kv_heads = shape->n_kv_heads,
        .n_keys = (uint32_t) tokens,
        .ld = (uint32_t) tokens,
        .n_splits = w->n_splits,
        .scale = 1 / sqrtf((float) shape->d),
        .q = (const float *) (uintptr_t) rows->q,
        .out = (float *) (uintptr_t) rows->out,
        .partials = (float *) (uintptr_t) partials,
        .k = (const uint16_t *) (uintptr_t) p->k,
        .v = (const uint16_t *) (uintptr_t) p->v,
    };
    return r;
}

/* ---- attention ---- */

/* Splits that make @i + 1 times twice as many blocks as the GPU runs at once, and at most one per tile. */
static unsigned splits_of(const struct contender *w, size_t n_heads, size_t n_tiles, unsigned i)
{
    size_t blocks = w->layout ? cuda_attend_blocks(w->g->kernels, w->layout, 1) : F16_BLOCKS;
    size_t n = ((size_t) w->g->n_multiprocessors * blocks << i) / n_heads;

    return (unsigned) smaller(n > 0 ? n : 1, n_tiles);
}

/* Seconds of a call with caches as cold as @seconds allow. */
static int time_cold(const struct contender *w, double seconds, double *ret_seconds, struct errmsg *e)
{
    double one;
    int r = bench_gpu_time(w->g, call_contender, w, 1, &one, e); /* warms up */

    if (r == 0)
        r = bench_gpu_time(w->g, call_contender, w, one * (double) w->n_sets < seconds ? w->n_sets : 1,
                           ret_seconds, e);
    return r;
}

/* Measures the same kind with each candidate; @ret_best is the fastest. */
static int choose_splits(const struct bench_options *o, const struct bench_pools *p, const struct subject *s,
                         const struct attend_synthetic_shape *shape, const struct rows *rows, size_t tokens,
                         const struct contender *contender, struct contender *ret_best, struct errmsg *e)
{
    double best = INFINITY, begun = clock_seconds();

    for (unsigned i = 0; i < CANDIDATES && (i == 0 || clock_seconds() - begun < o->seconds); i++) {
        struct contender w = *contender;
        double seconds;
        int r;

        w.n_splits = splits_of(&w, (size_t) w.batch * shape->n_kv_heads, tokens / CHUNK_TOKENS, i);
        if (i > 0 && w.n_splits == ret_best->n_splits)
            continue;
        r = w.layout ? put_packed(p, s, rows, tokens, &w, e) : put_f16(p, shape, rows, tokens, &w, e);
        if (r == 0)
            r = time_cold(&w, o->seconds / CANDIDATES, &seconds, e);
        if (r < 0)
            return r;
        if (seconds < best) {
            best = seconds;
            *ret_best = w;
        }
    }
    return 0;
}

static size_t calls_for(double seconds)
{
    return seconds >= CALLS_SECONDS ? 1 : smaller((size_t) (CALLS_SECONDS / (seconds + 1e-9)) + 1, SETS_MAX);
}

static int check_finite(struct bench_gpu *g, const struct rows *rows, struct errmsg *e)
{
    _cleanup_(freep) float *out = malloc(rows->n_floats * sizeof(*out));
    int r;

    if (!out)
        return fail(e, -ENOMEM, "out of memory");

    r = bench_gpu_get(g, out, rows->out, rows->n_floats * sizeof(*out), e);
    for (size_t i = 0; i < rows->n_floats && r == 0; i++)
        if (!isfinite(out[i]))
            r = fail(e, -EBADMSG, "a measured kernel gave an output that is not finite");
    return r;
}

/* Measures packed, then binary16, and repeats. */
static int measure_alternately(const struct bench_options *o, const struct contender contenders[2],
                               const struct rows *rows, struct attend_row *row, struct errmsg *e)
{
    _cleanup_(freep) double *samples = calloc(3 * o->samples, sizeof(*samples));
    double begun = clock_seconds(), seconds;
    size_t n, calls[2];

    if (!samples)
        return fail(e, -ENOMEM, "out of memory");

    for (int i = 0; i < 2; i++) {
        int r = bench_gpu_time(contenders[i].g, call_contender, &contenders[i], 1, &seconds, e);

        if (r == 0)
            r = check_finite(contenders[i].g, rows, e);
        if (r < 0)
            return r;

        calls[i] = calls_for(seconds);
    }
    for (n = 0; n < o->samples && (n < SAMPLES_MIN || clock_seconds() - begun < o->seconds); n++) {
        for (size_t i = 0; i < 2; i++) {
            int r = bench_gpu_time(contenders[i].g, call_contender, &contenders[i], calls[i],
                                   &samples[i * o->samples + n], e);

            if (r < 0)
                return r;
        }
        samples[2 * o->samples + n] = samples[o->samples + n] / samples[n];
    }
    row->packed = timing_of(samples, n);
    row->f16 = timing_of(samples + o->samples, n);
    row->ratio = timing_of(samples + 2 * o->samples, n);
    return 0;
}

static int measure_attention(struct bench_gpu *g, const struct bench_options *o, const struct bench_pools *p,
                             const struct source *source, const struct subject *s, struct attend_row *row,
                             struct errmsg *e)
{
    const struct attend_synthetic_shape *shape = &source->shape;
    size_t side = f16_side_bytes(shape, row->batch, row->tokens),
           pages = row->batch * (row->tokens / CHUNK_TOKENS);
    struct contender contender = {.g = g,
                                  .batch = (unsigned) row->batch,
                                  .of_layers = source->of_file != NULL,
                                  .f16_side_bytes = side},
                     best[2];
    struct rows rows = {0};
    int r;

    row->packed_bytes = pages * subject_page_bytes(s);
    row->f16_bytes = 2 * side;
    row->kernel = cuda_attend_name(g->kernels, &s->layout, 1);
    contender.n_sets = sets_of_bytes(o, row->packed_bytes);
    if (contender.of_layers)
        contender.n_sets = smaller(contender.n_sets, subject_layers(s));
    row->fits = (contender.of_layers ? 1 : contender.n_sets) * pages * s->slot <= p->packed_bytes &&
                contender.n_sets * side <= p->f16_bytes;
    if (!row->fits)
        return 0;

    r = put_rows(g, shape, row->batch, &rows, e);
    for (int i = 0; i < 2 && r == 0; i++) {
        contender.layout = i == 0 ? &s->layout : NULL;
        r = choose_splits(o, p, s, shape, &rows, row->tokens, &contender, &best[i], e);
    }
    if (r < 0)
        return r;

    row->packed_splits = best[0].n_splits;
    row->f16_splits = best[1].n_splits;
    return measure_alternately(o, best, &rows, row, e);
}

int bench_attend_row(struct bench_gpu *g, const struct bench_options *o, const struct bench_pools *p,
                     const struct source *source, size_t batch, size_t tokens, struct attend_row *ret_row,
                     struct errmsg *e)
{
    struct attend_row row = {.name = source->name,
                             .v_from_k = source->shape.v_from_k,
                             .must = source->must,
                             .aim = source->aim,
                             .batch = batch,
                             .tokens = tokens};
    size_t before = g->n_allocations;
    struct subject s;
    int r = subject_init(g, source, &s, e);

    if (r == 0)
        r = measure_attention(g, o, p, source, &s, &row, e);
    bench_gpu_release(g, before);
    subject_deinit(&s);
    if (r == 0)
        *ret_row = row;
    return r;
}
