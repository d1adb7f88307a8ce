/*
 * Vectors in an engine's form (after RoPE, interleaved pairs, number types, distances) against a second
 * sequence that gets the same vectors in the plain form, which this file computes: rows, pages, attention and
 * everything that is read must be equal to the bit.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/half.h"
#include "client/kvcobra-eval.h"
#include "client/sequence/seq.h"
#include "client/sequence/seq_tail.h"
#include "tests/lib/random_table.h"
#include "tests/lib/test.h"
#include "tests/unit/client/embedded.h"

enum { GUARD = 0x5a, LAYERS = 2 };

/* How an engine's vectors differ from the plain ones. */
struct form {
    enum kvc_keys keys;
    enum kvc_pairs pairs;
    enum kvc_dtype dtype;
    enum layout { ROWS, FUSED, HEAD_MAJOR } layout; /* [t, h, d]; with a gap behind each token; [h, t, d] */
};

enum { N_FORMS = 2 * 2 * 3 * 3 };

static struct form form_of(unsigned i)
{
    return (struct form){.keys = (enum kvc_keys)(i & 1),
                         .pairs = (enum kvc_pairs)(i >> 1 & 1),
                         .dtype = (enum kvc_dtype)(i / 4 % 3),
                         .layout = (enum layout)(i / 12)};
}

static size_t token_stride(const struct form *f, size_t n_tokens, size_t n_heads, size_t d)
{
    (void) n_tokens;
    if (f->layout == HEAD_MAJOR)
        return d;
    return n_heads * d + (f->layout == FUSED ? 24 : 0);
}

static size_t head_stride(const struct form *f, size_t n_tokens, size_t d)
{
    return f->layout == HEAD_MAJOR ? n_tokens * d + 8 : d;
}

static size_t number_bytes(enum kvc_dtype dtype)
{
    return dtype == KVC_F32 ? 4 : 2;
}

static void store_number(enum kvc_dtype dtype, float x, void *to)
{
    uint16_t half = dtype == KVC_F16 ? f32_to_f16(x) : f32_to_bf16(x);

    if (dtype == KVC_F32)
        memcpy(to, &x, sizeof(x));
    else
        memcpy(to, &half, sizeof(half));
}

static float load_number(enum kvc_dtype dtype, const void *from)
{
    uint16_t half;
    float x;

    if (dtype == KVC_F32) {
        memcpy(&x, from, sizeof(x));
        return x;
    }
    memcpy(&half, from, sizeof(half));
    return dtype == KVC_F16 ? f16_to_f32(half) : bf16_to_f32(half);
}

/* x [d] := R(position)^sign x in binary32, the angle in binary64: the definition in gpu/vectors.h. */
static void rotate(const struct geometry *g, size_t position, float sign, float *x)
{
    for (uint32_t i = 0, half = g->n_rot / 2; i < half; i++) {
        double angle = (double) position * g->freq[i];
        float c = (float) cos(angle), s = sign * (float) sin(angle), lo = x[i], hi = x[half + i];

        x[i] = lo * c - hi * s;
        x[half + i] = hi * c + lo * s;
    }
}

/* Number i of the plain order is number place_of(i) of an engine's vector. */
static size_t place_of(const struct geometry *g, enum kvc_pairs pairs, size_t i)
{
    size_t half = g->n_rot / 2;

    if (pairs == KVC_PAIRS_HALF_SPLIT || i >= g->n_rot)
        return i;
    return i < half ? 2 * i : 2 * (i - half) + 1;
}

/* A plain vector at @position to an engine's numbers @to, @stride numbers apart. Values pass with
 * @is_key false. */
static void to_engine(const struct geometry *g, struct form f, bool is_key, size_t position,
                      const float *plain, void *to, size_t stride)
{
    float x[GEOMETRY_DIM_MAX];

    memcpy(x, plain, g->d * sizeof(*x));
    if (is_key && f.keys == KVC_KEYS_AFTER_ROPE)
        rotate(g, position, 1, x);
    for (size_t i = 0; i < g->d; i++)
        store_number(f.dtype, x[i],
                     (char *) to + place_of(g, is_key ? f.pairs : 0, i) * stride * number_bytes(f.dtype));
}

static void from_engine(const struct geometry *g, struct form f, bool is_key, size_t position,
                        const void *from, float *plain)
{
    for (size_t i = 0; i < g->d; i++)
        plain[i] = load_number(f.dtype, (const char *) from +
                                            place_of(g, is_key ? f.pairs : 0, i) * number_bytes(f.dtype));
    if (is_key && f.keys == KVC_KEYS_AFTER_ROPE)
        rotate(g, position, -1, plain);
}

/* Vectors in an engine's form, and the plain vectors that they are. */
struct vectors {
    void *engine;
    float *plain; /* [n, n_heads, d] */
    size_t token_stride, head_stride, bytes;
};

/* Takes over @plain, which becomes what the engine's numbers mean after they were rounded to its type. */
static struct vectors vectors_make(const struct geometry *g, struct form f, bool is_key, size_t first,
                                   size_t n, size_t n_heads, float *plain)
{
    struct vectors v = {.plain = plain,
                        .token_stride = token_stride(&f, n, n_heads, g->d),
                        .head_stride = head_stride(&f, n, g->d)};

    v.bytes = (n * v.token_stride + n_heads * v.head_stride + 1) * number_bytes(f.dtype);
    v.engine = malloc(v.bytes);
    assert(v.engine);
    memset(v.engine, 0xff, v.bytes); /* a NaN in every type: what lies between the vectors is not read */
    for (size_t i = 0; i < n * n_heads; i++) {
        size_t at = i / n_heads * v.token_stride + i % n_heads * v.head_stride;
        char *to = (char *) v.engine + at * number_bytes(f.dtype);

        to_engine(g, f, is_key, first + i / n_heads, plain + i * g->d, to, 1);
        from_engine(g, f, is_key, first + i / n_heads, to, plain + i * g->d);
    }
    return v;
}

static void vectors_free(struct vectors *v)
{
    free(v->engine);
    free(v->plain);
}

/* ---- a sequence in an engine's form, and its plain twin ---- */

struct twins {
    const struct embedded *m;
    struct form form;
    kvc_seq *s, *plain;
};

static struct twins twins_new(const struct embedded *m, struct form f)
{
    const kvc_seq_options o = {.struct_bytes = sizeof(o), .keys = f.keys, .pairs = f.pairs};
    struct twins t = {.m = m, .form = f};

    CU_ASSERT_EQUAL_FATAL(kvc_seq_new_with(m->model, &o, &t.s), 0);
    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m->model, NULL, 0, &t.plain), 0);
    return t;
}

static void twins_free(struct twins *t)
{
    kvc_seq_free(t->s);
    kvc_seq_free(t->plain);
}

static void twins_append(struct twins *t, size_t n)
{
    const struct embedded *m = t->m;
    size_t first = kvc_seq_length(t->s);

    for (uint32_t layer = 0; layer < m->g.n_layers; layer++) {
        struct vectors k = vectors_make(&m->g, t->form, true, first, n, m->n_heads,
                                        embedded_input(m, 0, layer, KVC_K, first, n)),
                       v = vectors_make(&m->g, t->form, false, first, n, m->n_heads,
                                        embedded_input(m, 0, layer, KVC_V, first, n));
        const kvc_append_item item = {
            .struct_bytes = sizeof(item),
            .seq = t->s,
            .k = k.engine,
            .v = v.engine,
            .n_new = n,
            .k_token_stride = t->form.layout == ROWS ? 0 : k.token_stride,
            .k_head_stride = t->form.layout == ROWS ? 0 : k.head_stride,
            .v_token_stride = v.token_stride,
            .v_head_stride = v.head_stride,
        };

        CU_ASSERT_EQUAL_FATAL(kvc_seq_append_batch(&item, 1, layer, t->form.dtype), 0);
        CU_ASSERT_EQUAL_FATAL(kvc_seq_append(t->plain, layer, KVC_F32, k.plain, v.plain, n), 0);
        vectors_free(&k);
        vectors_free(&v);
    }
}

/* Whether both hold the same rows and pages. */
static bool twins_are_equal(const struct twins *t)
{
    const struct embedded *m = t->m;
    bool same = t->s->n_pages == t->plain->n_pages;

    for (uint32_t i = 0; i < 2 * m->g.n_layers; i++) {
        const struct layer *a = &t->s->layers[i / 2], *b = &t->plain->layers[i / 2];

        same = same && a->length == b->length && a->n_packed == b->n_packed;
        for (uint32_t h = 0; same && h < m->n_heads; h++)
            same = memcmp(a->rows[i % 2] + seq_tail_row(t->s, h, 0),
                          b->rows[i % 2] + seq_tail_row(t->plain, h, 0),
                          seq_tail_n_rows(a) * m->g.d * sizeof(uint16_t)) == 0;
    }
    for (size_t p = 0; same && p < seq_n_packed(t->s); p++)
        same = memcmp(page_payload(t->s->pages[p]), page_payload(t->plain->pages[p]),
                      t->s->table->layout.payload_bytes[t->s->pages[p]->class]) == 0;
    return same;
}

/* Attention of the engine's queries equals that of the plain ones, rounded to the engine's type. */
static void twins_attend(const struct twins *t, size_t n_q)
{
    const struct embedded *m = t->m;
    size_t n_heads = (size_t) m->n_heads * geometry_group(&m->g), d = m->g.d, length = kvc_seq_length(t->s);
    float *want = malloc(n_q * n_heads * d * sizeof(*want));

    for (uint32_t layer = 0; layer < m->g.n_layers; layer++) {
        struct vectors q = vectors_make(&m->g, t->form, true, length - n_q, n_q, n_heads,
                                        embedded_queries(m, 0, layer, length - n_q, n_q));
        unsigned char *out = malloc(q.bytes), *expected = malloc(q.bytes);
        const kvc_attend_item item = {.struct_bytes = sizeof(item),
                                      .seq = t->s,
                                      .q = q.engine,
                                      .n_q = n_q,
                                      .out = out,
                                      .q_token_stride = q.token_stride,
                                      .q_head_stride = q.head_stride,
                                      .out_token_stride = q.token_stride,
                                      .out_head_stride = q.head_stride,
                                      .dtype = t->form.dtype};

        memset(out, GUARD, q.bytes);
        memset(expected, GUARD, q.bytes);
        CU_ASSERT_EQUAL_FATAL(kvc_seq_attend(t->plain, layer, q.plain, n_q, want), 0);
        for (size_t i = 0; i < n_q * n_heads; i++)
            to_engine(&m->g, t->form, false, 0, want + i * d,
                      expected + (i / n_heads * q.token_stride + i % n_heads * q.head_stride) *
                                     number_bytes(t->form.dtype),
                      1);
        CU_ASSERT_EQUAL_FATAL(kvc_seq_attend_batch(&item, 1, layer, NULL), 0);
        CU_ASSERT_EQUAL(memcmp(out, expected, q.bytes), 0);
        vectors_free(&q);
        free(out);
        free(expected);
    }
    free(want);
}

/* ---- reading into blocks ---- */

/* A cache of an engine for one layer and side, with the numbers it should get. */
struct cache {
    size_t bytes;
    unsigned char *memory[2 * LAYERS], *expected[2 * LAYERS];
    void *bases[2 * LAYERS];
};

enum { CACHE_BLOCKS = 40, CACHE_TOKENS_MAX = 64 };

static struct cache cache_new(const struct embedded *m)
{
    struct cache c = {.bytes = (size_t) CACHE_BLOCKS * CACHE_TOKENS_MAX * (m->n_heads * m->g.d + 40) * 4};

    for (unsigned i = 0; i < 2 * LAYERS; i++) {
        c.memory[i] = malloc(c.bytes);
        c.expected[i] = malloc(c.bytes);
        assert(c.memory[i] && c.expected[i]);
        memset(c.memory[i], GUARD, c.bytes);
        memset(c.expected[i], GUARD, c.bytes);
        c.bases[i] = c.memory[i] + 64;
    }
    return c;
}

static void cache_free(struct cache *c)
{
    for (unsigned i = 0; i < 2 * LAYERS; i++) {
        free(c->memory[i]);
        free(c->expected[i]);
    }
}

/* Layouts of an engine's blocks: [block, token, head, d] without gaps, [block, head, token, d] with a gap
 * behind each head, and [block, head, d, token]. */
static kvc_blocks blocks_of(const struct embedded *m, unsigned layout, size_t block_tokens)
{
    size_t d = m->g.d, row = m->n_heads * d, tokens = block_tokens ? block_tokens : CACHE_TOKENS_MAX * 4;
    kvc_blocks b = {.struct_bytes = sizeof(b), .block_tokens = block_tokens};

    if (layout == 1) {
        b.token_stride = d;
        b.head_stride = tokens * d + 16;
        b.block_stride = m->n_heads * b.head_stride;
    } else if (layout == 2) {
        b.dim_stride = tokens;
        b.token_stride = 1;
        b.head_stride = tokens * d;
        b.block_stride = tokens * row;
    }
    return b;
}

/* Writes to @c->expected what the call stores, from the plain twin. */
static void cache_expect(const struct twins *t, struct cache *c, const kvc_blocks *b, size_t first, size_t n)
{
    const struct embedded *m = t->m;
    size_t d = m->g.d, row = m->n_heads * d, length = kvc_seq_length(t->s);
    size_t token_step = b->token_stride ? b->token_stride : row;
    size_t head_step = b->head_stride ? b->head_stride : d;
    size_t block_step = b->block_stride ? b->block_stride : b->block_tokens * row;

    for (uint32_t i = 0; i < 2 * m->g.n_layers; i++) {
        float *x = embedded_read(m, t->plain, i / 2, (enum kvc_side)(i % 2), length);

        for (size_t p = first; p < first + n && c->bases[i]; p++)
            for (size_t h = 0; h < m->n_heads; h++) {
                size_t from = b->blocks ? p : p - first;
                size_t block = b->block_tokens ? from / b->block_tokens : 0;
                size_t token = b->block_tokens ? from % b->block_tokens : from;
                size_t at = (b->blocks ? (size_t) b->blocks[block] : block) * block_step +
                            token * token_step + h * head_step;

                to_engine(&m->g, t->form, i % 2 == KVC_K, p, x + p * row + h * d,
                          c->expected[i] + 64 + at * number_bytes(t->form.dtype),
                          b->dim_stride ? b->dim_stride : 1);
            }
        free(x);
    }
}

static void check_blocks(const struct twins *t, kvc_blocks b, size_t first, size_t n, int not_read)
{
    struct cache c = cache_new(t->m);

    if (not_read >= 0)
        c.bases[not_read] = NULL;
    b.bases = c.bases;
    b.dtype = t->form.dtype;
    cache_expect(t, &c, &b, first, n);
    CU_ASSERT_EQUAL_FATAL(kvc_seq_read_blocks(t->s, first, n, &b), 0);
    for (unsigned i = 0; i < 2 * LAYERS; i++)
        CU_ASSERT_EQUAL(memcmp(c.memory[i], c.expected[i], c.bytes), 0);
    cache_free(&c);
}

/* Blocks in an order of their own. */
static void twins_read(const struct twins *t)
{
    static const int64_t blocks[] = {7, 0, 31, 4, 5, 39, 12, 1, 30, 2, 25, 8, 9, 10, 3, 11, 20, 21, 22, 23};
    static const size_t sizes[] = {16, 64, 13};
    size_t length = kvc_seq_length(t->s);

    for (unsigned layout = 0; layout < 3; layout++) {
        for (unsigned i = 0; i < 3; i++) {
            kvc_blocks b = blocks_of(t->m, layout, sizes[i]);

            b.blocks = blocks;
            check_blocks(t, b, 0, length, -1);
            check_blocks(t, b, 61, 70, KVC_V);
            b.blocks = NULL;
            check_blocks(t, b, 3, length - 3, 2 + KVC_K);
        }
        check_blocks(t, blocks_of(t->m, layout, 0), 1, 130, -1);
        check_blocks(t, blocks_of(t->m, layout, 0), length - 1, 1, -1);
    }
}

/* ---- cases ---- */

/* kvc_seq_read() in the engine's form. */
static void twins_read_rows(const struct twins *t)
{
    const struct embedded *m = t->m;
    size_t length = kvc_seq_length(t->s), d = m->g.d;
    struct form f = {.keys = t->form.keys, .pairs = t->form.pairs, .dtype = KVC_F32};
    float want[GEOMETRY_DIM_MAX];

    for (unsigned side = KVC_K; side <= KVC_V; side++) {
        float *got = embedded_read(m, t->s, 1, (enum kvc_side) side, length),
              *plain = embedded_read(m, t->plain, 1, (enum kvc_side) side, length);
        unsigned wrong = 0;

        for (size_t i = 0; i < length * m->n_heads; i++) {
            to_engine(&m->g, f, side == KVC_K, i / m->n_heads, plain + i * d, want, 1);
            wrong += memcmp(got + i * d, want, d * sizeof(*got)) != 0;
        }
        CU_ASSERT_EQUAL(wrong, 0);
        free(got);
        free(plain);
    }
}

static void run_form(const struct embedded *m, struct form f)
{
    static const size_t pieces[] = {150, 1, 43, 1};
    struct twins t = twins_new(m, f);

    for (unsigned i = 0; i < 4; i++) {
        twins_append(&t, pieces[i]);
        CU_ASSERT_TRUE(twins_are_equal(&t));
        twins_attend(&t, i % 2 ? 1 : 7);
    }
    CU_ASSERT(t.s->layers[0].n_packed == 2);
    twins_read(&t);
    twins_read_rows(&t);
    twins_free(&t);
}

static void run_forms(struct embedded m)
{
    for (unsigned i = 0; i < N_FORMS; i++)
        run_form(&m, form_of(i));
    embedded_free(&m);
}

static void test_every_form(void)
{
    run_forms(embedded_new(LAYERS, 6, 3, 64, 3, 0, 0));
}

/* Unrotated dimensions, a number of planes that no vector register divides, a shard. */
static void test_part_of_dimensions(void)
{
    run_forms(embedded_new_rotating(LAYERS, 6, 3, 80, 44, 2, 1, 2, PREDICT_HEAD));
}

static void test_values_from_all_heads(void)
{
    run_forms(embedded_new_rotating(LAYERS, 4, 2, 32, 32, 4, 0, 0, PREDICT_LAYER));
}

/* Pieces of any size leave what one append leaves: angles depend on the position alone. */
static void test_pieces(void)
{
    struct embedded m = embedded_new(LAYERS, 4, 2, 64, 3, 0, 0);
    struct form f = {KVC_KEYS_AFTER_ROPE, KVC_PAIRS_INTERLEAVED, KVC_BF16, FUSED};
    struct twins one = twins_new(&m, f), many = twins_new(&m, f);

    twins_append(&one, 300);
    twins_append(&one, 1);
    for (size_t at = 0, n; at < 300; at += n) {
        n = 1 + (size_t) test_rand_below(70);
        n = n < 300 - at ? n : 300 - at;
        twins_append(&many, n);
    }
    twins_append(&many, 1);
    for (unsigned i = 0; i < 2 * LAYERS; i++) {
        float *a = embedded_read(&m, one.s, i / 2, (enum kvc_side)(i % 2), 301),
              *b = embedded_read(&m, many.s, i / 2, (enum kvc_side)(i % 2), 301);

        CU_ASSERT_EQUAL(memcmp(a, b, 301 * m.n_heads * m.g.d * sizeof(*a)), 0);
        free(a);
        free(b);
    }
    twins_free(&one);
    twins_free(&many);
    embedded_free(&m);
}

static void test_threads(void)
{
    struct embedded m = embedded_new_predicting(LAYERS, 6, 3, 64, 3, 0, 0, PREDICT_LAYER);

    for (unsigned n = 2; n <= 5; n += 3) {
        CU_ASSERT_EQUAL_FATAL(kvc_client_set_threads(m.client, n), 0);
        for (unsigned i = 0; i < N_FORMS; i += 5)
            run_form(&m, form_of(i));
    }
    embedded_free(&m);
}

/* Two sequences at different positions in one call: each has its own angles. */
static void test_batch(void)
{
    struct embedded m = embedded_new(LAYERS, 4, 2, 64, 3, 0, 0);
    struct form f = {KVC_KEYS_AFTER_ROPE, KVC_PAIRS_HALF_SPLIT, KVC_F32, ROWS};
    struct twins a = twins_new(&m, f), b = twins_new(&m, f);
    size_t width = (size_t) m.n_heads * geometry_group(&m.g) * m.g.d;
    float *q = embedded_queries(&m, 0, 0, 0, 5), *out = malloc(10 * width * sizeof(*out)),
          *one = malloc(5 * width * sizeof(*one));
    kvc_attend_item items[] = {
        {.struct_bytes = sizeof(items[0]), .seq = a.s, .q = q, .n_q = 5, .out = out},
        {.struct_bytes = sizeof(items[0]), .seq = b.s, .q = q, .n_q = 5, .out = out + 5 * width}};

    twins_append(&a, 200);
    twins_append(&b, 77);
    CU_ASSERT_EQUAL(kvc_seq_attend_batch(items, 2, 1, NULL), 0);
    CU_ASSERT_EQUAL(kvc_seq_attend(a.s, 1, q, 5, one), 0);
    CU_ASSERT_EQUAL(memcmp(one, out, 5 * width * sizeof(*one)), 0);
    CU_ASSERT_EQUAL(kvc_seq_attend(b.s, 1, q, 5, one), 0);
    CU_ASSERT_EQUAL(memcmp(one, out + 5 * width, 5 * width * sizeof(*one)), 0);
    free(q);
    free(out);
    free(one);
    twins_free(&a);
    twins_free(&b);
    embedded_free(&m);
}

/* An evaluation sequence keeps its input exactly: read_blocks() returns what was appended. */
static void test_evaluation(void)
{
    static const kvc_eval_options eval = {.struct_bytes = sizeof(eval), .n_sink = 200};
    struct embedded m = embedded_new(LAYERS, 4, 2, 64, 3, 0, 0);
    size_t n = 100;

    for (unsigned i = 0; i < N_FORMS; i += 4) {
        struct twins t = {.m = &m, .form = form_of(i)};

        CU_ASSERT_EQUAL_FATAL(kvc_seq_new_eval(m.model, &eval, &t.s), 0);
        CU_ASSERT_EQUAL_FATAL(kvc_seq_new_eval(m.model, &eval, &t.plain), 0);
        twins_append(&t, n);
        twins_attend(&t, 9);
        check_blocks(&t, blocks_of(&m, 2, 16), 2, n - 2, -1);
        twins_free(&t);
    }
    embedded_free(&m);
}

/* The way back that this file and the library compute is RoPE's inverse: in binary64 the difference from the
 * plain key is at most that of the roundings. Two angles and four products and sums of binary32, on the way
 * there and back: 8 roundings of 2^-24 of the pair's length, at most 2^-21. */
static void test_way_back(void)
{
    struct geometry g = random_table_geometry(1, 1, 1, 64);

    for (size_t position = 1; position <= 1 << 20; position = position * 3 + 1) {
        float x[GEOMETRY_DIM_MAX], back[GEOMETRY_DIM_MAX];

        for (uint32_t i = 0; i < g.d; i++)
            back[i] = x[i] = (float) test_rand_normal();
        rotate(&g, position, 1, back);
        rotate(&g, position, -1, back);
        for (uint32_t i = 0; i < g.n_rot; i++) {
            float other = x[(i + g.n_rot / 2) % g.n_rot];

            CU_ASSERT(fabsf(back[i] - x[i]) <= 0x1p-21f * hypotf(x[i], other));
        }
    }
}

const struct test_case test_cases[] = {
    TEST(test_every_form),
    TEST(test_part_of_dimensions),
    TEST(test_values_from_all_heads),
    TEST(test_pieces),
    TEST(test_threads),
    TEST(test_batch),
    TEST(test_evaluation),

    TEST(test_way_back),
    TEST_END,
};
const char test_suite[] = "form";
