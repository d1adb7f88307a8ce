/* Append, attend and read of private sequences, against inputs, the codec and attention in binary64. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/table/table.h"
#include "base/half.h"
#include "gpu/codec.h"
#include "tests/lib/random_table.h"
#include "tests/lib/test.h"
#include "tests/unit/client/embedded.h"

static void check_attention(const struct embedded *m, kvc_seq *s, uint32_t text, size_t n_q)
{
    size_t length = kvc_seq_length(s), width = (size_t) m->n_heads * geometry_group(&m->g) * m->g.d;

    for (uint32_t layer = 0; layer < m->g.n_layers; layer++) {
        float *k = embedded_read(m, s, layer, KVC_K, length), *v = embedded_read(m, s, layer, KVC_V, length);
        float *q = embedded_queries(m, text, layer, length - n_q, n_q),
              *out = malloc(n_q * width * sizeof(*out));
        double *want = embedded_attention(m, k, v, q, length - n_q, n_q), e;

        CU_ASSERT_EQUAL_FATAL(kvc_seq_attend(s, layer, q, n_q, out), 0);
        e = nmse(out, want, n_q * width);
        if (!(e <= embedded_nmse_max(m)))
            printf("    layer %u, length %zu, %zu queries: nmse %g\n", layer, length, n_q, e);
        CU_ASSERT(e <= embedded_nmse_max(m));
        free(k);
        free(v);
        free(q);
        free(out);
        free(want);
    }
}

/* A part of a prompt, then token by token across chunk boundaries. */
static void run_shape(struct embedded m)
{
    kvc_seq *s = NULL;

    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m.model, NULL, 0, &s), 0);
    CU_ASSERT_EQUAL(kvc_seq_length(s), 0);
    for (size_t at = 0, n, piece = 0; at < 330; at += n) {
        static const size_t pieces[] = {3, 150, 30};

        n = piece < 3 ? pieces[piece++] : 1;
        CU_ASSERT_EQUAL_FATAL(embedded_append(&m, s, 0, at, n), 0);
        CU_ASSERT_EQUAL(kvc_seq_length(s), at + n);
        if (n > 1 || at % 37 == 0 || at % 64 < 2 || at % 64 > 62)
            check_attention(&m, s, 0, n < 5 ? n : 5);
    }
    embedded_free(&m); /* frees the sequence too */
}

static void test_shapes(void)
{
    run_shape(embedded_new(2, 9, 3, 64, 3, 0, 0));
    run_shape(embedded_new(2, 2, 2, 32, 2, 0, 0));
    run_shape(embedded_new(2, 4, 1, 80, 4, 0, 0));
    run_shape(embedded_new(2, 8, 4, 128, 2.5, 1, 2));
    run_shape(embedded_new_predicting(2, 6, 3, 64, 2, 0, 0, PREDICT_LAYER));
    run_shape(embedded_new_predicting(2, 4, 2, 80, 3, 0, 0, PREDICT_NONE));
}

/*
 * Results of kvc_seq_read() by position: sinks and tail are binary16 of x - mean; a packed token is the
 * codec's result for its row of the tail.
 */
static void check_rows(const struct embedded *m, const struct table *t, kvc_seq *s, uint32_t layer,
                       size_t n_packed)
{
    size_t length = kvc_seq_length(s), width = (size_t) m->n_heads * m->g.d;
    float *in[2], *got[2], *row[2] = {malloc(width * sizeof(float)), malloc(width * sizeof(float))};

    for (unsigned side = 0; side < 2; side++) {
        in[side] = embedded_input(m, 0, layer, side, 0, length);
        got[side] = embedded_read(m, s, layer, side, length);
    }
    for (size_t p = 0; p < length; p++) {
        for (size_t i = 0; i < 2 * width; i++) {
            size_t side = i / width, x = i % width;
            float mean = table_codec(t, layer, m->first_head + (uint32_t) (x / m->g.d), (enum side) side)
                             ->mean[x % m->g.d];

            row[side][x] = mean + f16_to_f32(f32_to_f16(in[side][p * width + x] - mean));
        }
        if (p >= RANDOM_TABLE_SINKS && p < 64 * n_packed)
            embedded_round_trip(m, t, layer, row[0], row[1], row[0], row[1]);
        for (unsigned side = 0; side < 2; side++)
            if (memcmp(row[side], got[side] + p * width, width * sizeof(float)) != 0) {
                printf("    layer %u side %u position %zu of %zu\n", layer, side, p, length);
                CU_FAIL("row differs");
            }
    }
    for (unsigned side = 0; side < 2; side++) {
        free(in[side]);
        free(got[side]);
        free(row[side]);
    }
}

static void run_rows(struct embedded m)
{
    struct table *t = NULL;
    kvc_seq *s = NULL;

    CU_ASSERT_EQUAL_FATAL(table_parse(m.bytes, m.n_bytes, &t, NULL), 0);
    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m.model, NULL, 0, &s), 0);
    for (size_t at = 0, n; at < 260; at += n) {
        size_t n_packed;

        n = at == 0 ? 130 : 1;
        CU_ASSERT_EQUAL_FATAL(embedded_append(&m, s, 0, at, n), 0);
        /* before storing n tokens at length L, every chunk with 64 (c + 2) <= L + 1 was packed; one token at
         * a time that leaves 64 to 127 exact ones */
        n_packed = at == 0 ? 0 : (at + 1) / 64 - 1;
        CU_ASSERT(n > 1 || (at + n - 64 * n_packed >= 64 && at + n - 64 * n_packed <= 127));
        if (at == 0 || at == 130 || at == 190 || at == 191 || at == 192 || at == 259)
            for (uint32_t layer = 0; layer < 2; layer++)
                check_rows(&m, t, s, layer, n_packed);
    }
    (void) table_unref(t);
    kvc_seq_free(s);
    embedded_free(&m);
}

static void test_rows(void)
{
    run_rows(embedded_new(2, 6, 3, 64, 2, 1, 2));
    run_rows(embedded_new_predicting(2, 6, 3, 64, 2, 0, 0, PREDICT_LAYER));
}

/* Values that are predicted from the keys of all heads cannot be encoded by a
 * client that has some of them. */
static void test_shard_lacks_heads(void)
{
    struct embedded m = embedded_new_predicting(1, 4, 2, 64, 2, 0, 0, PREDICT_LAYER);
    struct embedded part = {.g = m.g, .first_head = 1, .n_heads = 1};
    kvc_model_id id = embedded_id(&part);
    kvc_model *model = NULL;

    CU_ASSERT_EQUAL(kvc_model_open_table(m.client, &id, m.bytes, m.n_bytes, &model), -EINVAL);
    CU_ASSERT_PTR_NULL(model);
    CU_ASSERT_PTR_NOT_NULL(strstr(kvc_last_error(m.client), "all 2 KV heads"));
    embedded_free(&m);
}

/* Numbers that binary32, binary16 and bfloat16 all have give the same sequence in each type. */
static void test_number_types(void)
{
    struct embedded m = embedded_new(1, 2, 1, 64, 3, 0, 0);
    size_t n = 40 * 64;
    float *x = malloc(n * sizeof(*x)), *want = NULL;
    uint16_t *half = malloc(n * sizeof(*half)), *brain = malloc(n * sizeof(*brain));

    for (size_t i = 0; i < n; i++) {
        x[i] = (float) ((int) test_rand_below(255) - 127) / 64.0f; /* 7 bits: exact in both */
        half[i] = f32_to_f16(x[i]);
        brain[i] = f32_to_bf16(x[i]);
    }
    for (unsigned type = KVC_F32; type <= KVC_BF16; type++) {
        const void *const inputs[] = {[KVC_F32] = x, [KVC_F16] = half, [KVC_BF16] = brain},
                          *in = inputs[type];
        kvc_seq *s = NULL;
        float *got;

        CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m.model, NULL, 0, &s), 0);
        CU_ASSERT_EQUAL(kvc_seq_append(s, 0, type, in, in, 40), 0);
        got = embedded_read(&m, s, 0, KVC_V, 40);
        if (want) {
            CU_ASSERT_EQUAL(memcmp(got, want, n * sizeof(*got)), 0);
            free(got);
        } else {
            want = got;
        }
    }
    free(want);
    free(x);
    free(half);
    free(brain);
    embedded_free(&m);
}

/* NaN, infinity and numbers that binary16 cannot hold: the error names them, and no layer changes. */
static void test_bad_numbers(void)
{
    struct embedded m = embedded_new(2, 4, 2, 32, 3, 0, 0);
    static const float bad[] = {NAN, INFINITY, -INFINITY, 1e9f};
    kvc_seq *s = NULL;

    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m.model, NULL, 0, &s), 0);
    CU_ASSERT_EQUAL_FATAL(embedded_append(&m, s, 0, 0, 127), 0);
    for (unsigned i = 0; i < 4; i++)
        for (unsigned side = 0; side < 2; side++) {
            float *k = embedded_input(&m, 0, 0, KVC_K, 127, 3), *v = embedded_input(&m, 0, 0, KVC_V, 127, 3);
            float *before = embedded_read(&m, s, 0, KVC_K, 127), *after;

            (side ? v : k)[2 * 64 + 32 + 5] = bad[i]; /* token 2, head 1 */
            CU_ASSERT_EQUAL(kvc_seq_append(s, 0, KVC_F32, k, v, 3), -EINVAL);
            CU_ASSERT_PTR_NOT_NULL(strstr(kvc_last_error(m.client), "layer 0, KV head 1"));
            CU_ASSERT_PTR_NOT_NULL(
                strstr(kvc_last_error(m.client), side ? "V of new token 2" : "K of new token 2"));
            CU_ASSERT_EQUAL(kvc_seq_length(s), 127);
            after = embedded_read(&m, s, 0, KVC_K, 127);
            CU_ASSERT_EQUAL(memcmp(before, after, 127 * 64 * sizeof(float)), 0);
            free(k);
            free(v);
            free(before);
            free(after);
        }
    CU_ASSERT_EQUAL(embedded_append(&m, s, 0, 127, 80), 0);
    check_attention(&m, s, 0, 2);
    embedded_free(&m);
}

/* Layers run one after another: a layer that is ahead attends to its own tokens,
 * the length is the shortest's. */
static void test_layers_within_a_step(void)
{
    struct embedded m = embedded_new(3, 2, 2, 32, 3, 0, 0);
    float *k = embedded_input(&m, 0, 0, KVC_K, 0, 200), *q = embedded_queries(&m, 0, 0, 0, 200);
    float *out = malloc(200 * 64 * sizeof(*out));
    kvc_seq *s = NULL;

    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m.model, NULL, 0, &s), 0);
    CU_ASSERT_EQUAL(kvc_seq_append(s, 1, KVC_F32, k, k, 200), 0);
    CU_ASSERT_EQUAL(kvc_seq_length(s), 0);
    CU_ASSERT_EQUAL(kvc_seq_attend(s, 1, q, 200, out), 0);
    CU_ASSERT_EQUAL(kvc_seq_attend(s, 0, q, 1, out), -EINVAL);
    CU_ASSERT_EQUAL(kvc_seq_append(s, 0, KVC_F32, k, k, 200), 0);
    CU_ASSERT_EQUAL(kvc_seq_append(s, 2, KVC_F32, k, k, 200), 0);
    CU_ASSERT_EQUAL(kvc_seq_length(s), 200);
    check_attention(&m, s, 0, 3);
    free(k);
    free(q);
    free(out);
    embedded_free(&m);
}

const struct test_case test_cases[] = {
    TEST(test_shapes),
    TEST(test_rows),
    TEST(test_shard_lacks_heads),
    TEST(test_number_types),
    TEST(test_bad_numbers),
    TEST(test_layers_within_a_step),
    TEST_END,
};
const char test_suite[] = "append";
