/* See sequence_pair.h. */
#include "tests/unit/gpu/cuda/sequence_pair.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/half.h"
#include "tests/lib/test.h"

enum { UNTOUCHED = 0xa5 }; /* bytes of pages that were never written */

static void *need(size_t n, size_t bytes)
{
    void *p = calloc(n + 1, bytes);

    assert(p);
    return p;
}

static size_t row_floats(const struct sequence_pair *s)
{
    return (size_t) s->shape.n_kv_heads * s->shape.d;
}

static uint32_t n_chunks(const struct sequence_pair *s)
{
    return s->shape.tokens_max / CHUNK_TOKENS + 1;
}

static size_t payload_bytes(const struct sequence_pair *s, uint32_t chunk)
{
    return s->layout.payload_bytes[chunk == 0 ? PAGE_FIRST : PAGE_REST];
}

static const struct codec *codec_of(const struct sequence_pair *s, uint32_t head, enum side side)
{
    return table_codec(&s->memory.table, SEQUENCE_PAIR_LAYER, head, side);
}

static uint8_t *untouched(size_t bytes)
{
    return memset(need(bytes, 1), UNTOUCHED, bytes);
}

static void put_pages(struct sequence_pair *s)
{
    size_t bytes = payload_bytes(s, 0);
    uint8_t *fill = untouched(bytes);

    s->slots = need(n_chunks(s), sizeof(*s->slots));
    for (uint32_t i = 0; i < n_chunks(s); i++)
        s->slots[i] = gpu_fixture_put(s->gpu, fill, bytes);
    s->payloads = gpu_fixture_put(s->gpu, s->slots, n_chunks(s) * sizeof(*s->slots));
    free(fill);
}

/* Puts what belongs to one sequence alone; its table and counts exist already. */
static void put_sequence(struct sequence_pair *s)
{
    size_t tail = (size_t) s->shape.n_kv_heads * s->shape.tail_rows * s->shape.d * sizeof(uint16_t);
    struct gpu_fixture *d = s->gpu;
    uint32_t zero = 0;

    assert(chunk_work_init(&s->work, &s->memory.table.geometry, s->layout.shard) == 0);
    s->pages = need(n_chunks(s), sizeof(*s->pages));
    put_pages(s);
    s->flag = gpu_fixture_put(d, &zero, sizeof(zero));
    s->mirror = (struct device_seq){
        .payloads = (uint8_t *const *) (uintptr_t) s->payloads,
        .n_claimed = n_chunks(s),
        .exact_ld = s->shape.tail_rows,
        .exact_k = (uint16_t *) (uintptr_t) gpu_fixture_put(d, NULL, tail),
        .exact_v = (uint16_t *) (uintptr_t) gpu_fixture_put(d, NULL, tail),
        .faults = (uint32_t *) (uintptr_t) s->flag,
    };
    s->seq = gpu_fixture_put(d, &s->mirror, sizeof(s->mirror));
    for (unsigned side = SIDE_K; side <= SIDE_V; side++) {
        s->x[side] = need(s->shape.tokens_max * row_floats(s), sizeof(float));
        s->rows[side] = need(s->shape.tokens_max * row_floats(s), sizeof(uint16_t));
        s->new_rows[side] = gpu_fixture_put(d, NULL, s->shape.tokens_max * row_floats(s) * sizeof(float));
    }
}

void sequence_pair_init(struct sequence_pair *s, struct gpu_fixture *d,
                        const struct sequence_pair_shape *shape)
{
    struct memory_table_options o = {
        .geometry = memory_table_geometry(SEQUENCE_PAIR_LAYERS, shape->group * shape->n_kv_heads,
                                          shape->n_kv_heads, shape->d, shape->d),
        .n_sink = shape->n_sink,
        .v_from = shape->v_from,
        .bits = shape->bits,
    };
    uint32_t zeros[4] = {0};

    *s = (struct sequence_pair){.shape = *shape, .gpu = d};
    memory_table_init(&s->memory, &o);
    assert(page_layout_init(&s->layout, &s->memory.table, (struct shard){0, shape->n_kv_heads}) == 0);
    s->table = gpu_fixture_put_table(d, &s->layout);
    s->saturated = gpu_fixture_put(d, zeros, 2 * sizeof(unsigned long long));
    s->counts = s->own_counts;
    put_sequence(s);
}

void sequence_pair_init_beside(struct sequence_pair *s, const struct sequence_pair *first, uint32_t tail_rows)
{
    *s = (struct sequence_pair){
        .shape = first->shape, .gpu = first->gpu, .memory = first->memory, .is_beside = true};
    s->shape.tail_rows = tail_rows;
    assert(page_layout_init(&s->layout, &first->memory.table, first->layout.shard) == 0);
    s->table = first->table;
    s->saturated = first->saturated;
    s->counts = first->counts;
    put_sequence(s);
}

void sequence_pair_deinit(struct sequence_pair *s)
{
    for (uint32_t i = 0; i < s->n_packed; i++)
        free(s->pages[i]);
    free(s->pages);
    free(s->slots);
    for (unsigned side = SIDE_K; side <= SIDE_V; side++) {
        free(s->x[side]);
        free(s->rows[side]);
    }
    chunk_work_deinit(&s->work);
    page_layout_deinit(&s->layout);
    if (!s->is_beside)
        memory_table_deinit(&s->memory);
}

/* ---- on the CPU ---- */

static uint16_t *row_of(struct sequence_pair *s, enum side side, uint32_t head, uint32_t token)
{
    return s->rows[side] + ((size_t) head * s->shape.tokens_max + token) * s->shape.d;
}

static void pack_head(struct sequence_pair *s, uint32_t head, enum side side, uint32_t chunk, float *x)
{
    const struct codec *c = codec_of(s, head, side);
    uint32_t d = s->shape.d, n_sink = chunk == 0 ? s->shape.n_sink : 0;
    const uint16_t *rows = row_of(s, side, head, chunk * CHUNK_TOKENS);

    memcpy(s->pages[chunk] + page_sink_off(&s->layout, SEQUENCE_PAIR_LAYER, head, side), rows,
           (size_t) n_sink * d * sizeof(*rows));
    for (uint32_t t = 0; t < CHUNK_TOKENS; t++)
        for (uint32_t i = 0; i < d; i++)
            x[t * d + i] = t < n_sink ? c->enc_mean[i] : c->mean[i] + f16_to_f32(rows[t * d + i]);
    assert(chunk_encode(&s->layout, SEQUENCE_PAIR_LAYER, head, side, x, d, s->pages[chunk], &s->counts[side],
                        &s->work) == 0);
}

static void step_mirror(struct device_seq *m, const struct launch_append *a)
{
    const struct launch_append_item *item = &a->items[0];
    struct append_step step =
        append_step(m->n_pages, m->n_exact, m->first_row, m->exact_ld, item->n_new, item->n_pack, a->given);

    m->n_pages += step.n_pack;
    m->n_exact = step.n_exact;
    m->first_row = step.first_row;
}

void sequence_pair_append_on_cpu(struct sequence_pair *s, const struct launch_append *a)
{
    uint32_t d = s->shape.d, n_packed = s->n_packed, n_new = a->items[0].n_new;
    float *x = need((size_t) CHUNK_TOKENS * d, sizeof(*x));

    for (; s->n_packed < n_packed + a->items[0].n_pack; s->n_packed++) {
        if (CHUNK_TOKENS * (s->n_packed + (a->given ? 1 : 2)) > s->length + (a->given ? 0 : 1))
            break;
        s->pages[s->n_packed] = untouched(payload_bytes(s, s->n_packed));
        for (unsigned side = SIDE_K; side <= SIDE_V; side++)
            for (uint32_t h = 0; h < s->shape.n_kv_heads; h++)
                pack_head(s, h, (enum side) side, s->n_packed, x);
    }
    free(x);
    for (unsigned side = SIDE_K; side <= SIDE_V; side++)
        for (uint32_t t = s->length; t < s->length + n_new; t++)
            for (uint32_t h = 0; h < s->shape.n_kv_heads; h++)
                for (uint32_t i = 0; i < d; i++)
                    row_of(s, (enum side) side, h, t)[i] =
                        f32_to_f16(s->x[side][t * row_floats(s) + h * d + i] -
                                   codec_of(s, h, (enum side) side)->mean[i]);
    s->length += n_new;
    step_mirror(&s->mirror, a);
}

void sequence_pair_read_on_cpu(struct sequence_pair *s, enum side side, uint32_t first, uint32_t n,
                               float *ret)
{
    uint32_t d = s->shape.d;
    float *x = need((size_t) CHUNK_TOKENS * d, sizeof(*x));

    for (uint32_t h = 0; h < s->shape.n_kv_heads; h++)
        for (uint32_t t = first; t < first + n; t++) {
            uint32_t chunk = t / CHUNK_TOKENS;
            float *to = ret + (t - first) * row_floats(s) + h * d;

            if (chunk < s->n_packed && (t == first || t % CHUNK_TOKENS == 0))
                chunk_decode(&s->layout, s->pages[chunk], SEQUENCE_PAIR_LAYER, h, side, x, d, &s->work);
            if (chunk < s->n_packed && t >= s->shape.n_sink)
                memcpy(to, x + t % CHUNK_TOKENS * d, d * sizeof(*to));
            else
                for (uint32_t i = 0; i < d; i++)
                    to[i] = codec_of(s, h, side)->mean[i] + f16_to_f32(row_of(s, side, h, t)[i]);
        }
    free(x);
}

/* ---- on both sides ---- */

/* Draws @n numbers about the means, as @dtype; the same in binary32 go to @ret. */
static void draw(const struct sequence_pair *s, size_t n, float *ret, void *ret_as_dtype)
{
    for (size_t i = 0; i < n; i++) {
        float x = (float) (2 * test_rand_normal());
        uint16_t half = s->shape.dtype == LAUNCH_F16 ? f32_to_f16(x) : f32_to_bf16(x);

        ret[i] = x;
        if (s->shape.dtype == LAUNCH_F16)
            ret[i] = f16_to_f32(half);
        else if (s->shape.dtype == LAUNCH_BF16)
            ret[i] = bf16_to_f32(half);
        if (s->shape.dtype == LAUNCH_F32)
            memcpy((float *) ret_as_dtype + i, &x, sizeof(x));
        else
            memcpy((uint16_t *) ret_as_dtype + i, &half, sizeof(half));
    }
}

void sequence_pair_draw(struct sequence_pair *s, uint32_t n_new, int n_pack, struct launch_append *ret)
{
    size_t n = n_new * row_floats(s),
           bytes = n * (s->shape.dtype == LAUNCH_F32 ? sizeof(float) : sizeof(uint16_t));
    void *as_dtype = need(n, sizeof(float));

    assert(s->length + n_new <= s->shape.tokens_max);
    for (unsigned side = SIDE_K; side <= SIDE_V && n > 0; side++) {
        draw(s, n, s->x[side] + s->length * row_floats(s), as_dtype);
        gpu_fixture_set(s->gpu, s->new_rows[side], as_dtype, bytes);
    }
    free(as_dtype);
    if (n_pack < 0)
        n_pack = (int) append_step(s->mirror.n_pages, s->mirror.n_exact, s->mirror.first_row,
                                   s->mirror.exact_ld, n_new, n_chunks(s), 0)
                     .n_pack;
    *ret = (struct launch_append){
        .table = (const struct device_table *) (uintptr_t) s->table,
        .dtype = s->shape.dtype,
        .layer = SEQUENCE_PAIR_LAYER,
        .saturated = (unsigned long long *) (uintptr_t) s->saturated,
        .items = {{.seq = (struct device_seq *) (uintptr_t) s->seq,
                   .k = (const void *) (uintptr_t) s->new_rows[SIDE_K],
                   .v = (const void *) (uintptr_t) s->new_rows[SIDE_V],
                   .n_new = n_new,
                   .n_pack = (uint32_t) n_pack}},
    };
}

void sequence_pair_append(struct sequence_pair *s, uint32_t n_new, int n_pack, cu_stream stream)
{
    struct launch_append a;

    sequence_pair_draw(s, n_new, n_pack, &a);
    gpu_fixture_ok(s->gpu, cuda_append(s->gpu->kernels, &s->layout, &a, 1, stream, &s->gpu->e));
    sequence_pair_append_on_cpu(s, &a);
}

static bool differs(const char *what)
{
    printf("    %s: not the same\n", what);
    return false;
}

static bool compare_tails(struct sequence_pair *s)
{
    uint32_t ld = s->mirror.exact_ld, first = s->n_packed * CHUNK_TOKENS, d = s->shape.d;
    size_t bytes = (size_t) s->shape.n_kv_heads * ld * d * sizeof(uint16_t);
    uint16_t *got = need(bytes, 1);
    bool same = true;

    for (unsigned side = SIDE_K; side <= SIDE_V; side++) {
        gpu_fixture_get(s->gpu, got, (cu_ptr) (uintptr_t) (side ? s->mirror.exact_v : s->mirror.exact_k),
                        bytes);
        for (uint32_t h = 0; h < s->shape.n_kv_heads; h++)
            same = same &&
                   memcmp(got + ((size_t) h * ld + s->mirror.first_row) * d,
                          row_of(s, (enum side) side, h, first), (s->length - first) * d * sizeof(*got)) == 0;
    }
    free(got);
    return same || differs("rows of the tail");
}

static bool compare_pages(struct sequence_pair *s)
{
    uint8_t *got = need(payload_bytes(s, 0), 1);
    bool same = true;

    for (uint32_t i = 0; i < n_chunks(s); i++) {
        gpu_fixture_get(s->gpu, got, s->slots[i], payload_bytes(s, i));
        for (size_t at = 0; i >= s->n_packed && at < payload_bytes(s, i); at++)
            same = same && got[at] == UNTOUCHED;
        same = same && (i >= s->n_packed || memcmp(got, s->pages[i], payload_bytes(s, i)) == 0);
    }
    free(got);
    return same || differs("pages");
}

bool sequence_pair_compare(struct sequence_pair *s)
{
    unsigned long long saturated[2];
    struct device_seq got;
    bool same;

    gpu_fixture_get(s->gpu, &got, s->seq, sizeof(got));
    gpu_fixture_get(s->gpu, saturated, s->saturated, sizeof(saturated));
    same = memcmp(&got, &s->mirror, sizeof(got)) == 0 || differs("lengths and the host's mirror");
    same = ((got.n_pages == s->n_packed && CHUNK_TOKENS * got.n_pages + got.n_exact == s->length) ||
            differs("lengths")) &&
           same;
    same = ((saturated[0] == s->counts[0].saturated && saturated[1] == s->counts[1].saturated) ||
            differs("saturated")) &&
           same;
    same = same && compare_tails(s) && compare_pages(s);
    if (!same)
        printf("    d %u heads %u bits %d v_from %d dtype %d sinks %u, %u tokens\n", s->shape.d,
               s->shape.n_kv_heads, s->shape.bits, s->shape.v_from, s->shape.dtype, s->shape.n_sink,
               s->length);
    return same;
}

bool sequence_pair_compare_reading(struct sequence_pair *s, enum side side, uint32_t first, uint32_t n)
{
    size_t bytes = n * row_floats(s) * sizeof(float);
    float *expected = need(bytes, 1), *got = need(bytes, 1);
    struct launch_read r = {
        .table = (const struct device_table *) (uintptr_t) s->table,
        .seq = (const struct device_seq *) (uintptr_t) s->seq,
        .layer = SEQUENCE_PAIR_LAYER,
        .side = side,
        .first = first,
        .n = n,
    };
    cu_ptr out = gpu_fixture_put(s->gpu, NULL, bytes + 1);
    bool same;

    r.out = (float *) (uintptr_t) out;
    gpu_fixture_ok(s->gpu, cuda_read(s->gpu->kernels, &s->layout, &r, NULL, &s->gpu->e));
    gpu_fixture_get(s->gpu, got, out, bytes);
    sequence_pair_read_on_cpu(s, side, first, n, expected);
    same = memcmp(expected, got, bytes) == 0;
    if (!same)
        printf("    reading side %d, %u from %u of %u: not the same\n", side, n, first, s->length);
    free(expected);
    free(got);
    return same;
}
