/* See staged_pair.h. */
#include "tests/unit/client/staged_pair.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/half.h"
#include "client/connection/client.h"
#include "client/gpu/gpu_memory.h"
#include "client/gpu/seq_staged.h"
#include "client/sequence/seq.h"
#include "gpu/dtype.h"
#include "tests/lib/test.h"

/* ---- vectors in a caller's form ---- */

struct form {
    enum kvc_dtype dtype;
    size_t token_stride, head_stride; /* in numbers */
};

static size_t number_bytes(enum kvc_dtype dtype)
{
    return dtype == KVC_F32 ? 4 : 2;
}

/* One of: without gaps, with a gap behind each token, heads first. */
static struct form form_of(const struct gpu_pair *t, enum kvc_dtype dtype, size_t n)
{
    size_t d = t->g.d;

    switch (test_rand_below(3)) {
    case 0:
        return (struct form){dtype, t->n_heads * d, d};
    case 1:
        return (struct form){dtype, t->n_heads * d + 24, d};
    default:
        return (struct form){dtype, d, n * d + 8};
    }
}

static size_t form_bytes(const struct gpu_pair *t, const struct form *f, size_t n)
{
    return ((n - 1) * f->token_stride + (t->n_heads - 1) * f->head_stride + t->g.d) * number_bytes(f->dtype);
}

static void *vectors(const struct gpu_pair *t, const struct seq_pair *s, const struct form *f, uint32_t layer,
                     unsigned side, size_t first, size_t n)
{
    float *x = gpu_pair_input(t, s->text, layer, side, first, n);
    char *ret = calloc(1, form_bytes(t, f, n));

    assert(ret);
    for (size_t token = 0; token < n; token++)
        for (size_t h = 0; h < t->n_heads; h++)
            for (size_t i = 0; i < t->g.d; i++) {
                float value = x[(token * t->n_heads + h) * t->g.d + i];
                char *to = ret + (token * f->token_stride + h * f->head_stride + i) * number_bytes(f->dtype);
                uint16_t half = f->dtype == KVC_F16 ? f32_to_f16(value) : f32_to_bf16(value);

                if (f->dtype == KVC_F32)
                    memcpy(to, &value, sizeof(value));
                else
                    memcpy(to, &half, sizeof(half));
            }
    free(x);
    return ret;
}

/* ---- pairs ---- */

struct seq_pair staged_pair_new(const struct gpu_pair *t, uint64_t text, enum kvc_keys keys,
                                enum kvc_pairs pairs, uint32_t flags)
{
    const kvc_seq_options o = {.struct_bytes = sizeof(o), .keys = keys, .pairs = pairs, .flags = flags};
    struct seq_pair s = {.text = text};
    int r = kvc_seq_new_with(t->cpu_model, &o, &s.cpu);

    assert(r == 0);
    r = kvc_seq_new_with(t->gpu_model, &o, &s.gpu);
    if (r < 0)
        printf("    %s\n", kvc_last_error(t->gpu));
    assert(r == 0);
    return s;
}

int staged_append_layer(const struct gpu_pair *t, struct seq_pair *s, uint32_t layer, enum kvc_dtype dtype,
                        size_t n)
{
    kvc_append_item item = {.struct_bytes = sizeof(item), .n_new = n};
    struct gpu_memory m[2];
    void *x[2];
    int on_cpu, on_gpu;

    for (unsigned side = 0; side < 2; side++) {
        struct form f = form_of(t, dtype, n);

        x[side] = vectors(t, s, &f, layer, side, s->cpu->layers[layer].length, n);
        m[side] = gpu_pair_take(t, x[side], form_bytes(t, &f, n));
        *(side ? &item.v_token_stride : &item.k_token_stride) = f.token_stride;
        *(side ? &item.v_head_stride : &item.k_head_stride) = f.head_stride;
    }
    item.seq = s->cpu;
    item.k = x[0];
    item.v = x[1];
    on_cpu = kvc_seq_append_batch(&item, 1, layer, dtype);
    item.seq = s->gpu;
    item.k = (const void *) (uintptr_t) m[0].at;
    item.v = (const void *) (uintptr_t) m[1].at;
    on_gpu = kvc_seq_append_batch(&item, 1, layer, dtype);
    if (on_gpu != on_cpu)
        printf("    %s\n", kvc_last_error(t->gpu));
    CU_ASSERT_EQUAL(on_cpu, on_gpu);
    for (unsigned side = 0; side < 2; side++) {
        gpu_pair_give(t, &m[side]);
        free(x[side]);
    }
    return on_gpu;
}

int staged_append(const struct gpu_pair *t, struct seq_pair *s, enum kvc_dtype dtype, size_t n)
{
    int r = 0;

    for (uint32_t layer = 0; r == 0 && layer < t->g.n_layers; layer++)
        r = staged_append_layer(t, s, layer, dtype, n);
    return r;
}

void staged_commit(struct seq_pair *s)
{
    size_t n = kvc_seq_length(s->cpu);
    uint32_t *tokens = calloc(n + 1, sizeof(*tokens));

    assert(tokens);
    CU_ASSERT_EQUAL(kvc_seq_commit(s->cpu, tokens, n, NULL), 0);
    CU_ASSERT_EQUAL(kvc_seq_commit(s->gpu, tokens, n, NULL), 0);
    free(tokens);
}

/* The bytes of all packed pages. */
bool staged_pages_alike(struct seq_pair *s)
{
    size_t n = seq_n_packed(s->cpu);
    bool alike = seq_n_packed(s->gpu) == n && (!s->gpu->staged || seq_staged_finish(s->gpu) == 0);

    for (size_t i = 0; alike && i < n; i++) {
        size_t bytes = s->cpu->table->layout.payload_bytes[i == 0 ? PAGE_FIRST : PAGE_REST];

        alike = !s->gpu->pages[i]->staging &&
                memcmp(page_payload(s->gpu->pages[i]), page_payload(s->cpu->pages[i]), bytes) == 0;
        if (!alike)
            printf("    page %zu of %zu has other bytes\n", i, n);
    }
    return alike;
}

/* ---- reading ---- */

/* A cache of blocks in both memories, for one call. */
struct cache {
    kvc_blocks to;
    size_t bytes; /* of one layer and side */
    int64_t *table;
    void **bases[2]; /* of the CPU, of the GPU */
    struct gpu_memory memory;
    char *want, *got;
};

/* Draws distances, number type and order of blocks. */
static struct cache cache_new(const struct gpu_pair *t, size_t first, size_t n, size_t length)
{
    static const size_t sizes[] = {1, 16, 24, 64, 1000};
    size_t row = (size_t) t->n_heads * t->g.d, block = sizes[test_rand_below(5)], n_bases = 2 * t->g.n_layers;
    size_t n_blocks = (length + block - 1) / block + 1;
    struct cache c = {.to = {.struct_bytes = sizeof(kvc_blocks), .block_tokens = block}};

    c.to.dtype = (uint32_t) test_rand_below(3);
    switch (test_rand_below(3)) {
    case 0: /* without gaps */
        break;
    case 1: /* heads first */
        c.to.head_stride = block * t->g.d;
        c.to.token_stride = t->g.d;
        break;
    default: /* dimensions first, tokens are neighbours */
        c.to.dim_stride = block;
        c.to.token_stride = 1;
        c.to.head_stride = block * t->g.d;
    }
    if (test_rand_below(2)) {
        c.table = malloc(n_blocks * sizeof(*c.table));
        assert(c.table);
        for (size_t i = 0; i < n_blocks; i++)
            c.table[i] = (int64_t) (n_blocks - 1 - i);
        c.to.blocks = c.table;
    }
    (void) first;
    (void) n;
    c.bytes = n_blocks * block * row * number_bytes((enum kvc_dtype) c.to.dtype);
    c.bytes = (c.bytes + 255) / 256 * 256;
    c.want = calloc(n_bases, c.bytes);
    c.got = calloc(n_bases, c.bytes);
    c.memory = gpu_pair_take(t, c.want, n_bases * c.bytes);
    for (unsigned i = 0; i < 2; i++) {
        c.bases[i] = calloc(n_bases, sizeof(void *));
        assert(c.want && c.got && c.bases[i]);
        for (size_t k = 0; k < n_bases; k++)
            c.bases[i][k] = i == 0 ? c.want + k * c.bytes : (void *) (uintptr_t) (c.memory.at + k * c.bytes);
    }
    if (test_rand_below(4) == 0) /* a layer and side that is not read */
        c.bases[0][1] = c.bases[1][1] = NULL;
    return c;
}

static void cache_free(const struct gpu_pair *t, struct cache *c)
{
    gpu_pair_give(t, &c->memory);
    free(c->want);
    free(c->got);
    free(c->table);
    free(c->bases[0]);
    free(c->bases[1]);
}

/*
 * Numbers of 16 bits are decoded by matrix instructions: they may differ by one unit in the last place,
 * which is at most 2^-7 (bfloat16) or 2^-10 of a number, or, where a number is far smaller than its terms,
 * by what sums of up to 512 terms of about 8 differ by: 2^-12. A wrong level, token or turn changes most
 * numbers by a tenth. What the CPU decoded has its bits.
 */
static bool numbers_alike(const char *want, const char *got, size_t bytes, enum kvc_dtype dtype, bool exact)
{
    for (size_t i = 0; i < bytes && !exact; i += 2) {
        float x, y;

        dtype_load(dtype, want + i, 0, 1, &x);
        dtype_load(dtype, got + i, 0, 1, &y);
        if (!(fabsf(x - y) <= fabsf(x) * (dtype == KVC_BF16 ? 0x1p-7f : 0x1p-10f) + 0x1p-12f)) {
            printf("    number %zu of type %d is %g, not %g\n", i / 2, (int) dtype, y, x);
            return false;
        }
    }
    return !exact || memcmp(want, got, bytes) == 0;
}

bool staged_blocks_alike(const struct gpu_pair *t, const struct seq_pair *s, size_t first, size_t n)
{
    struct cache c = cache_new(t, first, n, kvc_seq_length(s->cpu));
    size_t bytes = 2 * t->g.n_layers * c.bytes;
    struct errmsg e = {""};
    bool alike;

    c.to.bases = c.bases[0];
    CU_ASSERT_EQUAL(kvc_seq_read_blocks(s->cpu, first, n, &c.to), 0);
    c.to.bases = c.bases[1];
    alike = kvc_seq_read_blocks(s->gpu, first, n, &c.to) == 0;
    if (!alike)
        printf("    %s\n", kvc_last_error(t->gpu));
    alike = alike && gpu_read(t->gpu->gpu, c.got, c.memory.at, bytes, &e) == 0 &&
            numbers_alike(c.want, c.got, bytes, (enum kvc_dtype) c.to.dtype,
                          c.to.dtype == KVC_F32 || !s->gpu->staged);
    if (!alike)
        printf("    positions %zu + %zu, type %u\n", first, n, c.to.dtype);
    cache_free(t, &c);
    return alike;
}

bool staged_is_alike(const struct gpu_pair *t, struct seq_pair *s)
{
    size_t length = kvc_seq_length(s->cpu);
    bool alike = kvc_seq_length(s->gpu) == length && staged_blocks_alike(t, s, 0, length);

    for (uint32_t layer = 0; alike && layer < t->g.n_layers; layer++)
        for (unsigned side = 0; alike && side < 2; side++)
            alike = seq_pair_reads_alike(t, s, layer, (enum kvc_side) side, 0, length);
    alike =
        alike && seq_pair_usage_is_alike(s) && staged_pages_alike(s) && staged_blocks_alike(t, s, 0, length);
    if (!alike)
        printf("    %zu and %zu tokens, %zu and %zu chunks\n", length, kvc_seq_length(s->gpu),
               seq_n_packed(s->cpu), seq_n_packed(s->gpu));
    return alike;
}
