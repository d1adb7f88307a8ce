/* See gpu_pair.h. */
#include "alloc/table/table_exact.h"
#include "client/kvcobra-gpu.h"
#include "tests/unit/client/gpu_pair.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/half.h"
#include "base/splitmix64.h"
#include "client/connection/client.h"
#include "client/gpu/gpu_memory.h"
#include "client/sequence/seq.h"
#include "client/sequence/seq_pages.h"
#include "client/sequence/seq_tail.h"
#include "tests/lib/random_table.h"
#include "tests/lib/test.h"
#include "tests/unit/gpu/attend_oracle.h"

/* ---- clients ---- */

static kvc_model_id id_of(const struct geometry *g, const struct gpu_pair_shape *shape)
{
    kvc_model_id id = {
        .struct_bytes = sizeof(id),
        .geometry = {.struct_bytes = sizeof(kvc_geometry),
                     .n_layers = g->n_layers,
                     .n_heads = g->n_heads,
                     .n_kv_heads = g->n_kv_heads,
                     .head_dim = g->d,
                     .n_rot = g->n_rot,
                     .attn_scale = g->attn_scale,
                     .rope_freq = g->freq},
        .first_kv_head = shape->first_head,
        .n_kv_heads_here = shape->n_heads_here,
    };

    memcpy(id.model_digest, random_table_model_digest, sizeof(id.model_digest));
    return id;
}

/* A table of the shape, malloc'ed. */
static void *make_table(const struct geometry *g, const struct gpu_pair_shape *shape, size_t *ret_n_bytes)
{
    struct exact_form form;
    void *bytes;
    int r;

    if (exact_form_unpack(shape->exact, &form)) {
        r = table_exact_build(g, random_table_model_digest, &form, &bytes, ret_n_bytes, NULL);
        assert(r == 0);
        return bytes;
    }

    r = shape->state_bits > 0
            ? random_table_bytes_trellis(g, 1, shape->bpd, shape->v_from, shape->state_bits, &bytes,
                                         ret_n_bytes)
            : random_table_bytes_sinks(g, 1, shape->bpd, shape->v_from, shape->n_sink, &bytes, ret_n_bytes);

    assert(r == 0);
    return bytes;
}

static int open_gpu(struct gpu_pair *t, const struct gpu_pair_shape *shape, const kvc_model_id *id,
                    const void *bytes, size_t n_bytes)
{
    const kvc_gpu_options o = {
        .struct_bytes = sizeof(o), .pages = shape->pages, .ring_bytes = shape->ring_bytes};
    int r = kvc_client_new(&t->gpu);

    assert(r == 0);
    r = kvc_client_set_gpu(t->gpu, &o);
    if (r == 0)
        r = kvc_model_open_table(t->gpu, id, bytes, n_bytes, &t->gpu_model);
    if (r < 0) {
        printf("    %s\n", kvc_last_error(t->gpu));
        CU_ASSERT_NOT_EQUAL(strcmp(kvc_last_error(t->gpu), "no error"), 0);
        t->gpu = kvc_client_free(t->gpu);
    }
    return r;
}

void gpu_pair_open(struct gpu_pair *t, const struct gpu_pair_shape *shape, int *ret_err)
{
    struct geometry g = random_table_geometry(shape->n_layers, shape->n_heads, shape->n_kv_heads, shape->d);
    kvc_model_id id;
    size_t n_bytes;
    void *bytes;
    int r;

    g.n_rot = shape->n_rot > 0 ? shape->n_rot : g.n_rot;
    id = id_of(&g, shape);
    *t = (struct gpu_pair){.g = g, .n_heads = shape->n_heads_here > 0 ? shape->n_heads_here : g.n_kv_heads};
    bytes = make_table(&g, shape, &n_bytes);
    r = kvc_client_new(&t->cpu);
    assert(r == 0);
    r = kvc_model_open_table(t->cpu, &id, bytes, n_bytes, &t->cpu_model);
    assert(r == 0);
    *ret_err = open_gpu(t, shape, &id, bytes, n_bytes);
    free(bytes);
}

struct gpu_pair gpu_pair_new(const struct gpu_pair_shape *shape)
{
    struct gpu_pair t;
    int r;

    gpu_pair_open(&t, shape, &r);
    assert(r == 0);
    return t;
}

struct gpu_pair gpu_pair_other(const struct gpu_pair *t, const struct gpu_pair_shape *shape)
{
    kvc_model_id id = id_of(&t->g, shape);
    struct gpu_pair other = *t;
    size_t n_bytes;
    void *bytes = make_table(&t->g, shape, &n_bytes);
    int r = kvc_model_open_table(t->cpu, &id, bytes, n_bytes, &other.cpu_model);

    assert(r == 0);
    r = kvc_model_open_table(t->gpu, &id, bytes, n_bytes, &other.gpu_model);
    assert(r == 0);
    free(bytes);
    return other;
}

void gpu_pair_free(struct gpu_pair *t)
{
    t->cpu = kvc_client_free(t->cpu);
    t->gpu = kvc_client_free(t->gpu);
}

struct seq_pair seq_pair_new(const struct gpu_pair *t, uint64_t text)
{
    struct seq_pair s = {.text = text};
    int r = kvc_seq_new(t->cpu_model, NULL, 0, &s.cpu);

    assert(r == 0);
    r = kvc_seq_new(t->gpu_model, NULL, 0, &s.gpu);
    if (r < 0)
        printf("    %s\n", kvc_last_error(t->gpu));
    assert(r == 0);
    return s;
}

struct seq_pair seq_pair_fork(const struct seq_pair *s, uint64_t text)
{
    struct seq_pair f = {.text = text};
    int r = kvc_seq_fork(s->cpu, &f.cpu);

    assert(r == 0);
    r = kvc_seq_fork(s->gpu, &f.gpu);
    if (r < 0)
        printf("    %s\n", kvc_last_error(s->gpu->model->client));
    assert(r == 0);
    return f;
}

void seq_pair_free(struct seq_pair *s)
{
    s->cpu = kvc_seq_free(s->cpu);
    s->gpu = kvc_seq_free(s->gpu);
}

/* ---- device memory ---- */

struct gpu_memory gpu_pair_take(const struct gpu_pair *t, const void *from, size_t bytes)
{
    struct gpu_memory m = {0};
    struct errmsg e = {""};
    int r = gpu_alloc(t->gpu->gpu, bytes, &m, &e);

    if (r == 0 && from)
        r = gpu_write(t->gpu->gpu, m.at, from, bytes, &e);
    if (r < 0)
        printf("    %s\n", e.text);
    assert(r == 0);
    return m;
}

void gpu_pair_give(const struct gpu_pair *t, struct gpu_memory *m)
{
    gpu_free(t->gpu->gpu, m);
}

static void fetch(const struct gpu_pair *t, void *to, cu_ptr from, size_t bytes)
{
    struct errmsg e = {""};
    int r = gpu_read(t->gpu->gpu, to, from, bytes, &e);

    if (r < 0)
        printf("    %s\n", e.text);
    assert(r == 0);
}

/* ---- appending ---- */

/* A number in about N(0, 1) that depends only on its coordinates (splitmix64 of them, summed: Irwin-Hall). */
static float number(uint64_t text, uint64_t place, uint64_t position, uint64_t i)
{
    uint64_t x = text * 0x9e3779b97f4a7c15u + place * 0xbf58476d1ce4e5b9u + position * 0x94d049bb133111ebu +
                 i * 0xd6e8feb86659fd93u;
    double sum = 0;

    for (unsigned n = 0; n < 4; n++) {
        x = splitmix64_mix(x);
        sum += (double) (x >> 11) * 0x1p-53;
    }
    return (float) ((sum - 2.0) * 1.7320508075688772);
}

float *gpu_pair_input(const struct gpu_pair *t, uint64_t text, uint32_t layer, unsigned kind, size_t first,
                      size_t n)
{
    size_t width = (size_t) t->n_heads * t->g.d * (kind == 2 ? geometry_group(&t->g) : 1);
    float *x = malloc(n * width * sizeof(*x) + 1);

    assert(x);
    for (size_t p = 0; p < n; p++)
        for (size_t i = 0; i < width; i++)
            x[p * width + i] = number(text, 3 * layer + kind, first + p, i);
    return x;
}

/* The same numbers in another type, in place of the binary32 ones. */
static size_t convert(float *x, size_t n, enum kvc_dtype dtype)
{
    uint16_t *half = (uint16_t *) x;

    if (dtype == KVC_F32)
        return n * sizeof(*x);
    for (size_t i = 0; i < n; i++) {
        float value = x[i];
        uint32_t bits;

        memcpy(&bits, &value, sizeof(bits));
        half[i] = dtype == KVC_F16 ? f32_to_f16(value) : (uint16_t) (bits >> 16);
    }
    return n * sizeof(*half);
}

int seq_pair_append_layer(const struct gpu_pair *t, struct seq_pair *s, uint32_t layer, enum kvc_dtype dtype,
                          size_t n)
{
    size_t first = s->cpu->layers[layer].length, numbers = n * t->n_heads * t->g.d;
    float *x[2];
    struct gpu_memory m[2];
    int on_cpu, on_gpu;

    for (unsigned side = 0; side < 2; side++) {
        x[side] = gpu_pair_input(t, s->text, layer, side, first, n);
        m[side] = gpu_pair_take(t, x[side], convert(x[side], numbers, dtype));
    }
    on_cpu = kvc_seq_append(s->cpu, layer, dtype, x[0], x[1], n);
    on_gpu = kvc_seq_append(s->gpu, layer, dtype, (const void *) (uintptr_t) m[0].at,
                            (const void *) (uintptr_t) m[1].at, n);
    CU_ASSERT_EQUAL(on_cpu, on_gpu);
    for (unsigned side = 0; side < 2; side++) {
        gpu_pair_give(t, &m[side]);
        free(x[side]);
    }
    return on_gpu;
}

int seq_pair_append(const struct gpu_pair *t, struct seq_pair *s, enum kvc_dtype dtype, size_t n)
{
    int r = 0;

    for (uint32_t layer = 0; r == 0 && layer < t->g.n_layers; layer++)
        r = seq_pair_append_layer(t, s, layer, dtype, n);
    return r;
}

/* ---- attention ---- */

/* Compares the GPU's output of one KV head with attention in binary64 over the CPU's pages and rows; the
 * bound is that of kernel_attend_check.h. */
static bool head_is_right(const struct gpu_pair *t, const struct seq_pair *s, uint32_t layer, uint32_t head,
                          const float *q, float *out, size_t n_q, uint32_t window)
{
    const struct kvc_seq *seq = s->cpu;
    const struct layer *l = &seq->layers[layer];
    size_t packed = l->n_packed * CHUNK_TOKENS, group = geometry_group(&t->g), d = t->g.d,
           stride = t->n_heads * group * d;
    const struct attend_args a = {
        .layout = &seq->table->layout,
        .layer = layer,
        .head = head,
        .payloads = seq_payloads(s->cpu),
        .n_pages = l->n_packed,
        .n_sink = seq->table->table->n_sink,
        .exact_k = l->rows[SIDE_K] + seq_tail_row(seq, head, 0),
        .exact_v = l->rows[SIDE_V] + seq_tail_row(seq, head, 0),
        .exact_stride = d,
        .exact_first = packed,
        .n_exact = l->length - packed,
        .q = q + head * group * d,
        .q_stride = stride,
        .q_first = l->length - n_q,
        .n_q = n_q,
        .out = out + head * group * d,
        .out_stride = stride,
        .window = window,
    };
    struct oracle_report r = oracle_packed(&a, NULL);
    double limit = r.tolerance + 6 * (r.tolerance_half - r.tolerance);

    if (!(r.error <= limit)) /* false for NaN */
        printf("    layer %u head %u, %zu tokens, %zu packed, %zu queries, window %u: %g > %g\n", layer, head,
               l->length, packed, n_q, window, r.error, limit);
    return r.error <= limit;
}

bool gpu_pair_attend(const struct gpu_pair *t, struct seq_pair *seqs, const size_t *n_q, size_t n,
                     uint32_t layer, uint32_t window)
{
    const kvc_attend_options o = {.struct_bytes = sizeof(o), .window = window, .exact_rope = n % 2};
    size_t width = (size_t) t->n_heads * geometry_group(&t->g) * t->g.d;
    kvc_attend_item *items = calloc(n, sizeof(*items));
    struct gpu_memory *m = calloc(2 * n, sizeof(*m));
    float **q = calloc(n, sizeof(*q));
    bool right = true;
    int r;

    assert(items && m && q);
    for (size_t i = 0; i < n; i++) {
        q[i] = gpu_pair_input(t, seqs[i].text, layer, 2, seqs[i].cpu->layers[layer].length - n_q[i], n_q[i]);
        m[2 * i] = gpu_pair_take(t, q[i], n_q[i] * width * sizeof(float) + 1);
        m[2 * i + 1] = gpu_pair_take(t, NULL, n_q[i] * width * sizeof(float) + 1);
        items[i] = (kvc_attend_item){.struct_bytes = sizeof(kvc_attend_item),
                                     .seq = seqs[i].gpu,
                                     .q = (const float *) (uintptr_t) m[2 * i].at,
                                     .n_q = n_q[i],
                                     .out = (float *) (uintptr_t) m[2 * i + 1].at};
    }
    r = n == 1 && window == 0 ? kvc_seq_attend(seqs[0].gpu, layer, items[0].q, n_q[0], items[0].out)
                              : kvc_seq_attend_batch(items, n, layer, &o);
    CU_ASSERT_EQUAL(r, 0);
    if (r < 0)
        printf("    %s\n", kvc_last_error(t->gpu));
    for (size_t i = 0; r == 0 && i < n; i++) {
        float *out = malloc(n_q[i] * width * sizeof(*out) + 1);

        assert(out);
        fetch(t, out, m[2 * i + 1].at, n_q[i] * width * sizeof(*out));
        for (uint32_t head = 0; n_q[i] > 0 && head < t->n_heads; head++)
            right = head_is_right(t, &seqs[i], layer, head, q[i], out, n_q[i], window) && right;
        free(out);
    }
    for (size_t i = 0; i < n; i++) {
        gpu_pair_give(t, &m[2 * i]);
        gpu_pair_give(t, &m[2 * i + 1]);
        free(q[i]);
    }
    free(items);
    free(m);
    free(q);
    return r == 0 && right;
}

/* ---- comparing ---- */

bool seq_pair_reads_alike(const struct gpu_pair *t, const struct seq_pair *s, uint32_t layer,
                          enum kvc_side side, size_t first, size_t n)
{
    size_t bytes = n * t->n_heads * t->g.d * sizeof(float);
    float *want = malloc(bytes + 1), *got = malloc(bytes + 1);
    struct gpu_memory out = gpu_pair_take(t, NULL, bytes + 1);
    bool alike;

    assert(want && got);
    alike = kvc_seq_read(s->cpu, layer, side, first, n, want) == 0 &&
            kvc_seq_read(s->gpu, layer, side, first, n, (float *) (uintptr_t) out.at) == 0;
    if (alike && n > 0)
        fetch(t, got, out.at, bytes);
    alike = alike && (n == 0 || memcmp(want, got, bytes) == 0);
    for (size_t i = 0; !alike && i < bytes / sizeof(float); i++)
        if (memcmp(want + i, got + i, sizeof(*got)) != 0) {
            printf("    layer %u side %d: position %zu of %zu reads %g, not %g\n", layer, (int) side,
                   first + i / ((size_t) t->n_heads * t->g.d), kvc_seq_length(s->cpu), got[i], want[i]);
            break;
        }
    gpu_pair_give(t, &out);
    free(want);
    free(got);
    return alike;
}

/* The bytes of page @chunk of a sequence that has packed it in all layers. */
static bool page_is_alike(const struct gpu_pair *t, const struct seq_pair *s, size_t chunk)
{
    size_t bytes = s->cpu->table->layout.payload_bytes[chunk == 0 ? PAGE_FIRST : PAGE_REST];
    uint8_t *got = malloc(bytes);
    bool alike;

    assert(got);
    fetch(t, got, (cu_ptr) (uintptr_t) page_payload(s->gpu->pages[chunk]), bytes);
    alike = memcmp(got, page_payload(s->cpu->pages[chunk]), bytes) == 0;
    if (!alike)
        printf("    page %zu has other bytes\n", chunk);
    free(got);
    return alike;
}

bool seq_pair_usage_is_alike(const struct seq_pair *s)
{
    kvc_usage want = {.struct_bytes = sizeof(want)}, got = {.struct_bytes = sizeof(got)};

    CU_ASSERT_EQUAL(kvc_seq_get_usage(s->cpu, &want), 0);
    CU_ASSERT_EQUAL(kvc_seq_get_usage(s->gpu, &got), 0);
    for (size_t i = s->gpu->n_pages; i < s->cpu->n_pages; i++) /* claimed to encode a chunk ahead */
        want.padding_bytes -= s->cpu->table->layout.slot_bytes[s->cpu->pages[i]->class];
    return memcmp(&want, &got, offsetof(kvc_usage, coded)) == 0; /* a GPU does not count codes */
}

bool seq_pair_is_alike(const struct gpu_pair *t, const struct seq_pair *s)
{
    size_t n_packed = seq_n_packed(s->cpu), length = kvc_seq_length(s->cpu);
    bool alike =
        kvc_seq_length(s->gpu) == length && seq_n_packed(s->gpu) == n_packed && seq_pair_usage_is_alike(s);

    for (uint32_t layer = 0; alike && layer < t->g.n_layers; layer++) {
        alike = s->cpu->layers[layer].length == s->gpu->layers[layer].length &&
                s->cpu->layers[layer].n_packed == s->gpu->layers[layer].n_packed;
        for (unsigned side = 0; alike && side < 2; side++)
            alike = seq_pair_reads_alike(t, s, layer, (enum kvc_side) side, 0, length);
    }
    for (size_t i = 0; alike && i < n_packed; i++)
        alike = page_is_alike(t, s, i);
    if (!alike)
        printf("    %zu and %zu tokens, %zu and %zu chunks packed\n", length, kvc_seq_length(s->gpu),
               n_packed, seq_n_packed(s->gpu));
    return alike;
}
