/* The calls of kvcobra-llama.h on embedded sequences, compared with kvc_seq_append() and kvc_seq_read(). */
#include "client/kvcobra-llama.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/llama/llama_state.h"
#include "gpu/dtype.h"
#include "tests/lib/test.h"
#include "tests/unit/client/embedded.h"

const char test_suite[] = "llama_api";

enum { LAYERS = 3, KV_HEADS = 2, DIM = 32, WIDTH = KV_HEADS * DIM, TOKENS = 150 };

static const struct llama_shape shape = {LAYERS, KV_HEADS, DIM};

/* A state made by hand of texts [layer, side] of embedded_input(). */
struct sample {
    uint8_t *state;
    size_t n;
    kvc_llama_layout layout;
    struct llama_state at;
    void *rows[LAYERS][2]; /* [n_tokens, WIDTH] of dtype */
};

static kvc_llama_layout layout_of(uint32_t n_tokens, uint32_t dtype, uint32_t transposed)
{
    return (kvc_llama_layout){.struct_bytes = sizeof(kvc_llama_layout),
                              .n_tokens = n_tokens,
                              .n_streams = 1 + transposed,
                              .dtype = dtype,
                              .v_transposed = transposed};
}

/* Copies number i of token t to its place. */
static void sample_put(struct sample *x, uint32_t layer, int side, size_t t, size_t i)
{
    size_t bytes = dtype_bytes(x->layout.dtype), n = x->layout.n_tokens, at = t * WIDTH + i;
    uint8_t *to = x->state + (side == KVC_K ? x->at.k : x->at.v) + layer * x->at.step;

    if (side == KVC_V && x->layout.v_transposed)
        at = i * n + t;
    memcpy(to + at * bytes, (uint8_t *) x->rows[layer][side] + (t * WIDTH + i) * bytes, bytes);
}

static struct sample sample_new(const struct embedded *m, kvc_llama_layout layout)
{
    struct sample x = {.layout = layout};
    size_t n = layout.n_tokens;
    int r = llama_state_plan(&layout, &shape, &x.at, &x.n, NULL);

    assert(r == 0);
    x.state = malloc(x.n);
    assert(x.state);
    llama_state_write_headers(&x.at, &shape, x.state);
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        for (int side = KVC_K; side <= KVC_V; side++) {
            float *numbers = embedded_input(m, 1, layer, (enum kvc_side) side, 0, n);

            x.rows[layer][side] = malloc(n * WIDTH * sizeof(float));
            assert(x.rows[layer][side]);
            dtype_store(layout.dtype, numbers, n * WIDTH, x.rows[layer][side]);
            free(numbers);
            for (size_t t = 0; t < n; t++)
                for (size_t i = 0; i < WIDTH; i++)
                    sample_put(&x, layer, side, t, i);
        }
    return x;
}

static void sample_free(struct sample *x)
{
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        free(x->rows[layer][KVC_K]);
        free(x->rows[layer][KVC_V]);
    }
    free(x->state);
}

static struct embedded model_new(void)
{
    return embedded_new(LAYERS, 2 * KV_HEADS, KV_HEADS, DIM, 3.0, 0, 0);
}

static kvc_seq *seq_with(const struct embedded *m, uint32_t keys, uint32_t pairs)
{
    const kvc_seq_options o = {.struct_bytes = sizeof(o), .keys = keys, .pairs = pairs};
    kvc_seq *s = NULL;
    int r = kvc_seq_new_with(m->model, &o, &s);

    assert(r == 0);
    return s;
}

/* Tokens [first, end) of the sample by kvc_seq_append(). */
static void append_rows(const struct sample *x, kvc_seq *s, size_t first, size_t end)
{
    size_t skip = first * WIDTH * dtype_bytes(x->layout.dtype);

    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        int r = kvc_seq_append(s, layer, (enum kvc_dtype) x->layout.dtype,
                               (uint8_t *) x->rows[layer][KVC_K] + skip,
                               (uint8_t *) x->rows[layer][KVC_V] + skip, end - first);

        assert(r == 0);
    }
}

static void check_equal(const struct embedded *m, kvc_seq *a, kvc_seq *b)
{
    size_t n = kvc_seq_length(a);

    CU_ASSERT_EQUAL(n, kvc_seq_length(b));
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        for (int side = KVC_K; side <= KVC_V; side++) {
            float *x = embedded_read(m, a, layer, (enum kvc_side) side, n),
                  *y = embedded_read(m, b, layer, (enum kvc_side) side, n);

            CU_ASSERT(memcmp(x, y, n * WIDTH * sizeof(*x)) == 0);
            free(x);
            free(y);
        }
}

static void check_refused(const struct embedded *m, int r, int error, const char *words)
{
    bool found = strstr(kvc_last_error(m->client), words) != NULL;

    CU_ASSERT_EQUAL(r, error);
    CU_ASSERT(found);
    if (!found)
        printf("    \"%s\" is not in \"%s\"\n", words, kvc_last_error(m->client));
}

/* ---- reading ---- */

static void test_read(void)
{
    struct embedded m = model_new();

    for (uint32_t i = 0; i < 3 * 2 * 2; i++) {
        struct sample x = sample_new(&m, layout_of(TOKENS, i % 3, i / 3 % 2));
        kvc_llama_layout layout = {.struct_bytes = sizeof(layout)};
        kvc_seq *a = seq_with(&m, KVC_KEYS_AFTER_ROPE, i / 6), *b = seq_with(&m, KVC_KEYS_AFTER_ROPE, i / 6);

        CU_ASSERT_EQUAL(kvc_llama_state_check(m.model, x.state, x.n, &layout), 0);
        CU_ASSERT(memcmp(&layout, &x.layout, sizeof(layout)) == 0);
        CU_ASSERT_EQUAL(kvc_llama_state_read(a, x.state, x.n, TOKENS), 0);
        append_rows(&x, b, 0, TOKENS);
        check_equal(&m, a, b);
        (void) kvc_seq_free(a);
        (void) kvc_seq_free(b);
        sample_free(&x);
    }
    embedded_free(&m);
}

static void test_read_pieces(void)
{
    static const size_t ends[] = {0, 1, 64, 64, 100, 149, TOKENS};
    struct embedded m = model_new();

    for (uint32_t transposed = 0; transposed < 2; transposed++) {
        struct sample x = sample_new(&m, layout_of(TOKENS, KVC_F16, transposed));
        kvc_seq *a = seq_with(&m, KVC_KEYS_AFTER_ROPE, KVC_PAIRS_INTERLEAVED);
        kvc_seq *b = seq_with(&m, KVC_KEYS_AFTER_ROPE, KVC_PAIRS_INTERLEAVED);

        for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
            append_rows(&x, b, kvc_seq_length(b), ends[i]);
            CU_ASSERT_EQUAL(kvc_llama_state_read(a, x.state, x.n, ends[i]), 0);
            CU_ASSERT_EQUAL(kvc_seq_length(a), ends[i]);
        }
        check_equal(&m, a, b);
        (void) kvc_seq_free(a);
        (void) kvc_seq_free(b);
        sample_free(&x);
    }
    embedded_free(&m);
}

/* A number of the last layer that is not finite: the layers before have stored their tokens already. */
static void test_read_not_finite(void)
{
    struct embedded m = model_new();
    struct sample x = sample_new(&m, layout_of(TOKENS, KVC_F32, 0));
    kvc_seq *a = seq_with(&m, KVC_KEYS_AFTER_ROPE, 0), *b = seq_with(&m, KVC_KEYS_AFTER_ROPE, 0);
    size_t last = x.n - 4;
    float good, bad = NAN;

    CU_ASSERT_EQUAL(kvc_llama_state_read(a, x.state, x.n, 100), 0);
    append_rows(&x, b, 0, 100);
    memcpy(&good, x.state + last, sizeof(good));
    memcpy(x.state + last, &bad, sizeof(bad));
    CU_ASSERT_EQUAL(kvc_llama_state_read(a, x.state, x.n, TOKENS), -EINVAL);
    CU_ASSERT(kvc_last_error(m.client)[0] != '\0');
    CU_ASSERT_EQUAL(kvc_seq_length(a), 100);

    memcpy(x.state + last, &good, sizeof(good));
    CU_ASSERT_EQUAL(kvc_llama_state_read(a, x.state, x.n, TOKENS), 0);
    append_rows(&x, b, 100, TOKENS);
    check_equal(&m, a, b);
    sample_free(&x);
    embedded_free(&m);
}

static void test_read_refused(void)
{
    struct embedded m = model_new();
    struct sample x = sample_new(&m, layout_of(TOKENS, KVC_F16, 0));
    kvc_seq *s = seq_with(&m, KVC_KEYS_AFTER_ROPE, 0), *before = seq_with(&m, KVC_KEYS_BEFORE_ROPE, 0);
    uint8_t *shifted = malloc(x.n + 4);

    assert(shifted);
    memcpy(shifted + 2, x.state, x.n);
    CU_ASSERT_EQUAL(kvc_llama_state_read(NULL, x.state, x.n, 1), -EINVAL);
    check_refused(&m, kvc_llama_state_read(before, x.state, x.n, 1), -EINVAL, "keys before RoPE");
    check_refused(&m, kvc_llama_state_read(s, NULL, x.n, 1), -EINVAL, "aligned to 4 bytes");
    check_refused(&m, kvc_llama_state_read(s, shifted + 2, x.n, 1), -EINVAL, "aligned to 4 bytes");
    check_refused(&m, kvc_llama_state_read(s, x.state, x.n - 1, 1), -EBADMSG, "ends after");
    check_refused(&m, kvc_llama_state_read(s, x.state, x.n, TOKENS + 1), -EINVAL,
                  "151 tokens: the sequence has 0 already, and the state has 150");
    CU_ASSERT_EQUAL(kvc_seq_length(s), 0);

    CU_ASSERT_EQUAL(kvc_llama_state_read(s, x.state, x.n, 70), 0);
    check_refused(&m, kvc_llama_state_read(s, x.state, x.n, 69), -EINVAL, "the sequence has 70 already");
    CU_ASSERT_EQUAL(kvc_seq_append(s, 0, KVC_F16, x.rows[0][0], x.rows[0][1], 1), 0);
    check_refused(&m, kvc_llama_state_read(s, x.state, x.n, 71), -EINVAL, "layers of the sequence differ");
    free(shifted);
    sample_free(&x);
    embedded_free(&m);
}

static void test_check_refused(void)
{
    struct embedded m = model_new(), shard = embedded_new(LAYERS, 4, KV_HEADS, DIM, 3.0, 1, 1);
    struct sample x = sample_new(&m, layout_of(1, KVC_F16, 0));
    kvc_llama_layout layout = {.struct_bytes = sizeof(layout) - 1};

    CU_ASSERT_EQUAL(kvc_llama_state_check(NULL, x.state, x.n, &layout), -EINVAL);
    check_refused(&m, kvc_llama_state_check(m.model, x.state, x.n, NULL), -EINVAL, "ret_layout is NULL");
    check_refused(&m, kvc_llama_state_check(m.model, x.state, x.n, &layout), -EINVAL, "kvc_llama_layout");
    CU_ASSERT_EQUAL(layout.n_tokens, 0);
    layout.struct_bytes = sizeof(layout);
    check_refused(&shard, kvc_llama_state_check(shard.model, x.state, x.n, &layout), -EINVAL,
                  "128 bytes per token, but the model has 32 numbers");
    CU_ASSERT_EQUAL(layout.n_tokens, 0);
    sample_free(&x);
    embedded_free(&m);
    embedded_free(&shard);
}

/* ---- writing ---- */

/* The numbers of @state, which has @layout, are those that kvc_seq_read() returns. */
static void check_written(const struct embedded *m, kvc_seq *s, const uint8_t *state, size_t n,
                          const kvc_llama_layout *layout)
{
    size_t bytes = dtype_bytes(layout->dtype), n_tokens = layout->n_tokens;
    struct sample x = sample_new(m, *layout);

    CU_ASSERT_EQUAL(n, x.n);
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        for (int side = KVC_K; side <= KVC_V; side++) {
            float *read = embedded_read(m, s, layer, (enum kvc_side) side, n_tokens);

            dtype_store(layout->dtype, read, n_tokens * WIDTH, x.rows[layer][side]);
            free(read);
            for (size_t t = 0; t < n_tokens; t++)
                for (size_t i = 0; i < WIDTH; i++)
                    sample_put(&x, layer, side, t, i);
        }
    CU_ASSERT(bytes > 0 && memcmp(state, x.state, n) == 0);
    sample_free(&x);
}

static void test_write(void)
{
    struct embedded m = model_new();

    for (uint32_t i = 0; i < 3 * 2 * 2 * 2; i++) {
        kvc_llama_layout to = layout_of(i / 12 ? TOKENS : 128, i % 3, i / 3 % 2), got = to;
        struct sample x = sample_new(&m, layout_of(TOKENS, KVC_F32, 0));
        kvc_seq *s = seq_with(&m, KVC_KEYS_AFTER_ROPE, i / 6 % 2);
        uint8_t *state;
        size_t n = 0;

        CU_ASSERT_EQUAL(kvc_llama_state_read(s, x.state, x.n, TOKENS), 0);
        CU_ASSERT_EQUAL(kvc_llama_state_bytes(m.model, &to, &n), 0);
        state = malloc(n);
        assert(state);
        memset(state, 0x5a, n);
        CU_ASSERT_EQUAL(kvc_llama_state_write(s, &to, state, n), 0);
        check_written(&m, s, state, n, &to);
        CU_ASSERT_EQUAL(kvc_llama_state_check(m.model, state, n, &got), 0);
        CU_ASSERT(memcmp(&got, &to, sizeof(to)) == 0);
        free(state);
        (void) kvc_seq_free(s);
        sample_free(&x);
    }
    embedded_free(&m);
}

static void test_write_refused(void)
{
    struct embedded m = model_new();
    struct sample x = sample_new(&m, layout_of(TOKENS, KVC_F16, 0));
    kvc_seq *s = seq_with(&m, KVC_KEYS_AFTER_ROPE, 0), *before = seq_with(&m, KVC_KEYS_BEFORE_ROPE, 0);
    kvc_llama_layout to = x.layout, longer = layout_of(TOKENS + 1, KVC_F16, 0),
                     bad = layout_of(0, KVC_F16, 0);
    size_t n = 7;

    CU_ASSERT_EQUAL(kvc_llama_state_read(s, x.state, x.n, TOKENS), 0);
    CU_ASSERT_EQUAL(kvc_llama_state_bytes(NULL, &to, &n), -EINVAL);
    check_refused(&m, kvc_llama_state_bytes(m.model, &to, NULL), -EINVAL, "ret_bytes is NULL");
    check_refused(&m, kvc_llama_state_bytes(m.model, NULL, &n), -EINVAL, "layout of the state is NULL");
    check_refused(&m, kvc_llama_state_bytes(m.model, &bad, &n), -EINVAL, "n_tokens is 0");
    CU_ASSERT_EQUAL(n, 7);

    CU_ASSERT_EQUAL(kvc_llama_state_write(NULL, &to, x.state, x.n), -EINVAL);
    check_refused(&m, kvc_llama_state_write(before, &to, x.state, x.n), -EINVAL, "keys before RoPE");
    check_refused(&m, kvc_llama_state_write(s, &bad, x.state, x.n), -EINVAL, "n_tokens is 0");
    check_refused(&m, kvc_llama_state_write(s, &longer, x.state, x.n), -EINVAL, "a state of 151 tokens");
    check_refused(&m, kvc_llama_state_write(s, &to, NULL, x.n), -EINVAL, "aligned to 4 bytes");
    check_refused(&m, kvc_llama_state_write(s, &to, x.state, x.n - 1), -ENOSPC, "the buffer has");
    to.struct_bytes--;
    check_refused(&m, kvc_llama_state_write(s, &to, x.state, x.n), -EINVAL, "kvc_llama_layout");
    sample_free(&x);
    embedded_free(&m);
}

const struct test_case test_cases[] = {
    TEST(test_read),          TEST(test_read_pieces), TEST(test_read_not_finite), TEST(test_read_refused),
    TEST(test_check_refused), TEST(test_write),       TEST(test_write_refused),   TEST_END,
};
