/* Encoding, decoding and extents; see bench_rows.h. */
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "gpu/cuda/plan.h"
#include "tests/gpu/bench_rows.h"
#include "tests/gpu/bench_subject.h"
#include "tools/clock.h"

/* ---- vectors to codes and back ----------------------------------------------------------------------------------- */

struct coding {
    struct bench_gpu *g;
    const struct page_layout *layout;
    struct plan_encode encoding;
    struct plan_decode decoding[2]; /* keys, values */
    unsigned n_pages;
    bool decode;
};

static int call_coding(const void *arg, size_t i, struct errmsg *e)
{
    const struct coding *c = arg;
    int r;

    (void) i;
    if (!c->decode)
        return cuda_encode(c->g->kernels, c->layout, &c->encoding, c->n_pages, NULL, e);
    r = cuda_decode(c->g->kernels, c->layout, &c->decoding[0], c->n_pages, NULL, e);
    return r < 0 ? r : cuda_decode(c->g->kernels, c->layout, &c->decoding[1], c->n_pages, NULL, e);
}

static int put_encoding(const struct bench_pools *p, const struct subject *s, struct coding *c, struct errmsg *e)
{
    size_t piece = (size_t) CHUNK_TOKENS * s->layout.shard.n_heads * s->synthetic.table.geometry.d * sizeof(uint16_t);
    _cleanup_(freep) struct plan_chunk *chunks = calloc(c->n_pages, sizeof(*chunks));
    uint32_t zero = 0;
    cu_ptr list, flag;
    int r;

    if (!chunks)
        return fail(e, -ENOMEM, "out of memory");
    for (size_t i = 0; i < c->n_pages; i++)
        chunks[i] = (struct plan_chunk) {
            .payload = (uint8_t *) (uintptr_t) (p->packed + i * s->slot),
            .k = (const void *) (uintptr_t) (p->k + i * piece), .v = (const void *) (uintptr_t) (p->v + i * piece),
        };
    if ((r = bench_gpu_put(c->g, chunks, c->n_pages * sizeof(*chunks), &list, e)) < 0 ||
        (r = bench_gpu_put(c->g, &zero, sizeof(zero), &flag, e)) < 0)
        return r;
    c->encoding = (struct plan_encode) {
        .table = (const struct plan_table *) (uintptr_t) s->table, .chunks = (const struct plan_chunk *) (uintptr_t) list,
        .dtype = PLAN_F16, .not_finite = (uint32_t *) (uintptr_t) flag,
    };
    return 0;
}

static int put_decoding(const struct bench_pools *p, const struct subject *s, struct coding *c, struct errmsg *e)
{
    size_t floats = (size_t) c->n_pages * CHUNK_TOKENS * s->layout.shard.n_heads * s->synthetic.table.geometry.d;
    _cleanup_(freep) const uint8_t **pages = calloc(c->n_pages, sizeof(*pages));
    cu_ptr list, out;
    int r;

    if (!pages)
        return fail(e, -ENOMEM, "out of memory");
    for (size_t i = 0; i < c->n_pages; i++)
        pages[i] = (const uint8_t *) (uintptr_t) (p->packed + i * s->slot);
    if ((r = bench_gpu_put(c->g, pages, c->n_pages * sizeof(*pages), &list, e)) < 0 ||
        (r = bench_gpu_put(c->g, NULL, floats * sizeof(float), &out, e)) < 0)
        return r;
    for (uint32_t side = 0; side < 2; side++)
        c->decoding[side] = (struct plan_decode) {
            .table = (const struct plan_table *) (uintptr_t) s->table, .payloads = (const uint8_t *const *) (uintptr_t) list,
            .side = side, .out = (float *) (uintptr_t) out,
        };
    return 0;
}

static int measure(const struct bench_options *o, const struct coding *c, struct timing *ret, struct errmsg *e)
{
    _cleanup_(freep) double *samples = calloc(o->samples, sizeof(*samples));
    double warm;
    int r;

    if (!samples)
        return fail(e, -ENOMEM, "out of memory");
    r = bench_gpu_time(c->g, call_coding, c, 1, &warm, e);
    for (size_t i = 0; i < o->samples && r == 0; i++)
        r = bench_gpu_time(c->g, call_coding, c, 1, &samples[i], e);
    if (r == 0)
        *ret = timing_of(samples, o->samples);
    return r;
}

int bench_codec_row(struct bench_gpu *g, const struct bench_options *o, const struct bench_pools *p, const char *name,
                    const struct synthetic_shape *shape, size_t tokens, struct codec_row *ret_row, struct errmsg *e)
{
    size_t vectors = tokens * shape->n_kv_heads * shape->d * sizeof(uint16_t), before = g->n_allocations;
    struct codec_row row = {
        .name = name, .v_from_k = shape->v_from_k, .tokens = tokens, .vector_bytes = 2 * vectors,
        .packed_bytes = tokens * shape->n_kv_heads * (shape->k_coords + shape->v_coords) / 2,
    };
    struct coding c = { .g = g, .n_pages = (unsigned) (tokens / CHUNK_TOKENS) };
    struct subject s;
    int r = subject_init(g, shape, &s, e);

    c.layout = &s.layout;
    if (r == 0 && (vectors > p->f16_bytes || c.n_pages * s.slot > p->packed_bytes))
        r = fail(e, -ENOMEM, "%zu tokens to encode do not fit into the bench's caches", tokens);
    if (r == 0)
        r = put_encoding(p, &s, &c, e);
    if (r == 0)
        r = measure(o, &c, &row.encode, e);
    c.decode = true;
    if (r == 0)
        r = put_decoding(p, &s, &c, e);
    if (r == 0)
        r = measure(o, &c, &row.decode, e);
    bench_gpu_release(g, before);
    subject_deinit(&s);
    if (r == 0)
        *ret_row = row;
    return r;
}

/* ---- extents ----------------------------------------------------------------------------------------------------- */

/* One life of an extent: seconds of creating and exporting, of importing and mapping, of unmapping. */
static int live(struct bench_gpu *g, size_t bytes, double *ret_create, double *ret_import, double *ret_unmap, struct errmsg *e)
{
    struct cuda_extent *x;
    double at[4];
    int fd, r;

    at[0] = clock_seconds();
    r = cuda_extent_new(g->space, bytes, &fd, e);
    at[1] = clock_seconds();
    if (r == 0)
        r = cuda_extent_import(g->space, fd, bytes, CU_ACCESS_READ_WRITE, &x, e);
    at[2] = clock_seconds();
    if (r < 0)
        return r;
    (void) cuda_extent_free(x);
    at[3] = clock_seconds();
    *ret_create = at[1] - at[0];
    *ret_import = at[2] - at[1];
    *ret_unmap = at[3] - at[2];
    return 0;
}

int bench_extent_row(struct bench_gpu *g, const struct bench_options *o, size_t bytes, struct extent_row *ret_row,
                     struct errmsg *e)
{
    _cleanup_(freep) double *samples = calloc(3 * o->samples, sizeof(*samples));
    int r = 0;

    if (!samples)
        return fail(e, -ENOMEM, "out of memory");
    for (size_t i = 0; i < o->samples && r == 0; i++)
        r = live(g, bytes, &samples[i], &samples[o->samples + i], &samples[2 * o->samples + i], e);
    if (r == 0)
        *ret_row = (struct extent_row) {
            .bytes = bytes, .create = timing_of(samples, o->samples), .import = timing_of(samples + o->samples, o->samples),
            .unmap = timing_of(samples + 2 * o->samples, o->samples),
        };
    return r;
}
