/* Measures appending, reading and checksums; see bench_rows.h. */
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "gpu/cuda/device_table.h"
#include "tests/gpu/bench_rows.h"
#include "tests/gpu/bench_subject.h"
#include "tools/command/clock.h"

/* ---- appending, reading, checksums ---- */

enum {
    LEFT = 64,                     /* rows that stay in the tail when a piece of a prompt is packed */
    BATCH_TAIL = 2 * CHUNK_TOKENS, /* rows of each tail, as for a client that only decodes */
};

enum what { PREFILL, STEPS, BATCH_STEPS, READ, CRC, KINDS };

/* A sequence of one layer on the GPU, of which @n_pages chunks move from the tail to
 * pages, while as many tokens arrive. */
struct coding {
    struct bench_gpu *g;
    const struct page_layout *layout;
    enum what what;
    unsigned n_pages;
    cu_ptr seq, batch_seqs;
    struct launch_append append, batch;
    unsigned n_batch;                                /* sequences that decode together */
    struct device_seq batch_start[LAUNCH_ITEMS_MAX]; /* batch_seqs before the measured calls */
    struct launch_read read;
    struct launch_crc crc;
};

/* Sets the lengths before the measured calls, by one small launch. */
static int set_lengths(const struct coding *c, uint32_t n_pages, uint32_t n_exact, uint32_t first_row,
                       struct errmsg *e)
{
    const uint32_t lengths[] = {n_pages, n_exact, first_row};

    _Static_assert(offsetof(struct device_seq, first_row) ==
                       offsetof(struct device_seq, n_pages) + 2 * sizeof(uint32_t),
                   "lengths");
    return cuda_write_words(c->g->kernels, c->seq + offsetof(struct device_seq, n_pages), lengths,
                            sizeof(lengths), NULL, e);
}

/* Appends a piece of a prompt: packs the tail, and stores the piece in its place. */
static int call_prefill(const struct coding *c, struct errmsg *e)
{
    struct launch_append a = c->append;
    int r = set_lengths(c, 0, c->n_pages * CHUNK_TOKENS + LEFT, 0, e);

    a.items[0].n_new = c->n_pages * CHUNK_TOKENS;
    a.items[0].n_pack = c->n_pages;
    a.given = 1;
    return r < 0 ? r : cuda_append(c->g->kernels, c->layout, &a, 1, NULL, e);
}

/* Appends 64 tokens one by one. A chunk is packed before one of them, as a host that counts does. */
static int call_steps(const struct coding *c, struct errmsg *e)
{
    struct launch_append a = c->append;
    int r = set_lengths(c, 0, 2 * CHUNK_TOKENS - 1, 0, e);

    a.items[0].n_new = 1;
    for (unsigned i = 0; i < CHUNK_TOKENS && r == 0; i++) {
        a.items[0].n_pack = i == 0;
        r = cuda_append(c->g->kernels, c->layout, &a, 1, NULL, e);
    }
    return r;
}

/* The step of 64 before which sequence @i of a batch packs its chunk: at most one sequence per step. */
static unsigned packing_step(const struct coding *c, unsigned i)
{
    return i * CHUNK_TOKENS / c->n_batch;
}

/* Appends 64 tokens one by one to each sequence of a batch, one step of all sequences per call. Sequences
 * that pack come first, as in a client. */
static int call_batch_steps(const struct coding *c, struct errmsg *e)
{
    int r = cuda_write_words(c->g->kernels, c->batch_seqs, c->batch_start,
                             c->n_batch * sizeof(c->batch_start[0]), NULL, e);

    for (unsigned step = 0, next = 0; step < CHUNK_TOKENS && r == 0; step++) {
        struct launch_append a = c->batch;

        if (next < c->n_batch && packing_step(c, next) == step) {
            struct launch_append_item first = a.items[next];

            a.items[next++] = a.items[0];
            a.items[0] = first;
            a.items[0].n_pack = 1;
        }
        r = cuda_append(c->g->kernels, c->layout, &a, c->n_batch, NULL, e);
    }
    return r;
}

static int call_coding(const void *arg, size_t i, struct errmsg *e)
{
    const struct coding *c = arg;
    struct launch_read read = c->read;
    int r;

    (void) i;
    switch (c->what) {
    case PREFILL:
        return call_prefill(c, e);
    case STEPS:
        return call_steps(c, e);
    case BATCH_STEPS:
        return call_batch_steps(c, e);
    case READ:
        read.side = 1;
        r = cuda_read(c->g->kernels, c->layout, &c->read, NULL, e);
        return r < 0 ? r : cuda_read(c->g->kernels, c->layout, &read, NULL, e);
    default:
        return cuda_crc(c->g->kernels, &c->crc, NULL, e);
    }
}

/* Pages in the pool of the bench; new tokens, and those of the tail after the first call, are the contents
 * of its binary16 caches. */
static int put_coding(const struct bench_pools *p, const struct subject *s, struct coding *c,
                      struct errmsg *e)
{
    size_t tokens = (size_t) c->n_pages * CHUNK_TOKENS,
           row = (size_t) s->layout.shard.n_heads * s->synthetic.table.geometry.d;
    size_t tail = (tokens + 2 * CHUNK_TOKENS) * row * sizeof(uint16_t);
    _cleanup_(freep) uint8_t **pages = calloc(c->n_pages, sizeof(*pages));
    const struct device_table *table = (const struct device_table *) (uintptr_t) s->table;
    struct device_seq seq = {
        .n_claimed = c->n_pages, .n_pages = c->n_pages, .exact_ld = (uint32_t) (tokens + 2 * CHUNK_TOKENS)};
    cu_ptr list, k, v, flag, sums, out;
    uint32_t zero = 0;
    int r;

    if (!pages)
        return fail(e, -ENOMEM, "out of memory");

    for (size_t i = 0; i < c->n_pages; i++)
        pages[i] = (uint8_t *) (uintptr_t) (p->packed + i * s->slot);
    if ((r = bench_gpu_put(c->g, pages, c->n_pages * sizeof(*pages), &list, e)) < 0 ||
        (r = bench_gpu_put(c->g, &zero, sizeof(zero), &flag, e)) < 0 ||
        (r = bench_gpu_put(c->g, NULL, tail, &k, e)) < 0 ||
        (r = bench_gpu_put(c->g, NULL, tail, &v, e)) < 0 ||
        (r = bench_gpu_put(c->g, NULL, c->n_pages * sizeof(uint32_t), &sums, e)) < 0 ||
        (r = bench_gpu_put(c->g, NULL, tokens * row * sizeof(float), &out, e)) < 0)
        return r;
    seq.payloads = (uint8_t *const *) (uintptr_t) list;
    seq.faults = (uint32_t *) (uintptr_t) flag;
    seq.exact_k = (uint16_t *) (uintptr_t) k;
    seq.exact_v = (uint16_t *) (uintptr_t) v;
    r = bench_gpu_put(c->g, &seq, sizeof(seq), &c->seq, e);
    c->append = (struct launch_append){
        .table = table,
        .dtype = LAUNCH_F16,
        .items = {{.seq = (struct device_seq *) (uintptr_t) c->seq,
                   .k = (const void *) (uintptr_t) p->k,
                   .v = (const void *) (uintptr_t) p->v}},
    };
    c->read = (struct launch_read){.table = table,
                                   .seq = (const struct device_seq *) (uintptr_t) c->seq,
                                   .out = (float *) (uintptr_t) out,
                                   .n = (uint32_t) tokens};
    c->crc = (struct launch_crc){.payloads = (const uint8_t *const *) (uintptr_t) list,
                                 .crc32c = (uint32_t *) (uintptr_t) sums,
                                 .bytes = s->layout.payload_bytes[PAGE_REST],
                                 .n = c->n_pages};
    return r;
}

/* Sequences of different lengths with a page and a tail each. */
static int put_batch(const struct bench_pools *p, const struct subject *s, struct coding *c, struct errmsg *e)
{
    size_t row = (size_t) s->layout.shard.n_heads * s->synthetic.table.geometry.d, tail = BATCH_TAIL * row;
    uint8_t *pages[LAUNCH_ITEMS_MAX];
    uint32_t zero = 0;
    cu_ptr memory, list, k, v, flag;
    int r;

    if ((r = bench_gpu_put(c->g, NULL, c->n_batch * s->slot, &memory, e)) < 0 ||
        (r = bench_gpu_put(c->g, NULL, c->n_batch * tail * sizeof(uint16_t), &k, e)) < 0 ||
        (r = bench_gpu_put(c->g, NULL, c->n_batch * tail * sizeof(uint16_t), &v, e)) < 0 ||
        (r = bench_gpu_put(c->g, &zero, sizeof(zero), &flag, e)) < 0)
        return r;
    for (size_t i = 0; i < c->n_batch; i++)
        pages[i] = (uint8_t *) (uintptr_t) (memory + i * s->slot);
    r = bench_gpu_put(c->g, pages, c->n_batch * sizeof(pages[0]), &list, e);
    if (r == 0)
        r = bench_gpu_put(c->g, NULL, sizeof(c->batch_start), &c->batch_seqs, e);
    c->batch = (struct launch_append){.table = c->append.table, .dtype = LAUNCH_F16};
    for (unsigned i = 0; i < c->n_batch && r == 0; i++) {
        c->batch_start[i] = (struct device_seq){
            .payloads = (uint8_t *const *) (uintptr_t) list + i,
            .n_claimed = 1,
            .n_exact = BATCH_TAIL - 1 - packing_step(c, i),
            .exact_ld = BATCH_TAIL,
            .exact_k = (uint16_t *) (uintptr_t) k + i * tail,
            .exact_v = (uint16_t *) (uintptr_t) v + i * tail,
            .faults = (uint32_t *) (uintptr_t) flag,
        };
        c->batch.items[i] = (struct launch_append_item){
            .seq = (struct device_seq *) (uintptr_t) c->batch_seqs + i,
            .n_new = 1,
            .k = (const uint16_t *) (uintptr_t) p->k + i * row,
            .v = (const uint16_t *) (uintptr_t) p->v + i * row,
        };
    }
    return r;
}

static int measure(const struct bench_options *o, const struct coding *c, struct timing *ret,
                   struct errmsg *e)
{
    _cleanup_(freep) double *samples = calloc(o->samples, sizeof(*samples));
    double warm;
    int r;

    if (!samples)
        return fail(e, -ENOMEM, "out of memory");

    r = bench_gpu_time(c->g, call_coding, c, 1, &warm, e);
    for (size_t i = 0; i < o->samples && r == 0; i++)
        r = bench_gpu_time(c->g, call_coding, c, 1, &samples[i], e);
    for (size_t i = 0; i < o->samples && (c->what == STEPS || c->what == BATCH_STEPS); i++)
        samples[i] /= CHUNK_TOKENS;
    if (r == 0)
        *ret = timing_of(samples, o->samples);
    return r;
}

int bench_codec_row(struct bench_gpu *g, const struct bench_options *o, const struct bench_pools *p,
                    const struct source *source, size_t tokens, struct codec_row *ret_row, struct errmsg *e)
{
    const struct attend_synthetic_shape *shape = &source->shape;
    size_t vectors = tokens * shape->n_kv_heads * shape->d * sizeof(uint16_t), before = g->n_allocations;
    struct codec_row row = {
        .name = source->name,
        .v_from_k = shape->v_from_k,
        .tokens = tokens,
        .batch = o->batches[o->n_batches - 1],
        .vector_bytes = 2 * vectors,
        .packed_bytes = tokens * shape->n_kv_heads * (shape->k_coords + shape->v_coords) / 2,
    };
    struct timing *const timings[KINDS] = {[PREFILL] = &row.prefill,
                                           [STEPS] = &row.step,
                                           [BATCH_STEPS] = &row.batch_step,
                                           [READ] = &row.read,
                                           [CRC] = &row.crc};
    struct coding c = {.g = g,
                       .n_pages = (unsigned) (tokens / CHUNK_TOKENS),
                       .n_batch = (unsigned) o->batches[o->n_batches - 1]};
    struct subject s;
    int r = subject_init(g, source, &s, e);

    c.layout = &s.layout;
    if (r == 0 && (vectors > p->f16_bytes || c.n_pages * s.slot > p->packed_bytes))
        r = fail(e, -ENOMEM, "%zu tokens to encode do not fit into the bench's caches", tokens);
    if (r == 0)
        r = put_coding(p, &s, &c, e);
    if (r == 0)
        r = put_batch(p, &s, &c, e);
    for (unsigned i = 0; i < KINDS && r == 0; i++) {
        c.what = (enum what) i;
        r = measure(o, &c, timings[i], e);
        if (r == 0 && c.what == STEPS)
            r = set_lengths(&c, c.n_pages, 0, 0, e); /* everything that was packed is read */
    }
    bench_gpu_release(g, before);
    subject_deinit(&s);
    if (r == 0)
        *ret_row = row;
    return r;
}
