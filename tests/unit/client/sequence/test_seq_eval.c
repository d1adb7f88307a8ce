/* Evaluation sequences: the exactness rule per query, decoded rows from the page's bytes, usage. */
#include <complex.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/table/table.h"
#include "client/kvcobra-eval.h"
#include "gpu/codec.h"
#include "gpu/page_layout.h"
#include "tests/lib/test.h"
#include "tests/unit/client/embedded.h"

static kvc_seq *eval_sequence(const struct embedded *m, uint32_t n_sink, int32_t n_recent)
{
    kvc_eval_options o = {.struct_bytes = sizeof(o), .n_sink = n_sink, .n_recent = n_recent};
    kvc_seq *s = NULL;

    CU_ASSERT_EQUAL_FATAL(kvc_seq_new_eval(m->model, &o, &s), 0);
    return s;
}

/* Decoded rows by the codec alone, one token at a time. */
static void decode_all(const struct embedded *m, const struct table *t, uint32_t layer, const float *k,
                       const float *v, size_t n, float *ret_k, float *ret_v)
{
    size_t width = (size_t) m->n_heads * m->g.d;

    for (size_t i = 0; i < n; i++)
        embedded_round_trip(m, t, layer, k + i * width, v + i * width, ret_k + i * width, ret_v + i * width);
}

/* DESIGN 4: query m sees key n exactly if n < n_sink or n > m - N; N = -1: chunk end + 64 > m + 1. */
static bool is_exact(size_t m, size_t n, uint32_t n_sink, int32_t n_recent)
{
    if (n < n_sink)
        return true;
    if (n_recent < 0)
        return (n / 64 + 1) * 64 + 64 > m + 1;
    return (int64_t) n > (int64_t) m - n_recent;
}

static void check_rule(uint32_t n_sink, int32_t n_recent, enum prediction v_from)
{
    enum { N = 210, PIECE = 77 };
    struct embedded m = embedded_new_predicting(1, 4, 2, 64, 2, 0, 0, v_from);
    size_t width = 2 * 64, q_width = 4 * 64;
    kvc_seq *s = eval_sequence(&m, n_sink, n_recent);
    float *k = embedded_input(&m, 0, 0, KVC_K, 0, N), *v = embedded_input(&m, 0, 0, KVC_V, 0, N);
    float *q = embedded_queries(&m, 0, 0, 0, N), *out = malloc(N * q_width * sizeof(float));
    float *dk = malloc(N * width * sizeof(float)), *dv = malloc(N * width * sizeof(float));
    struct table *t = NULL;

    CU_ASSERT_EQUAL_FATAL(table_parse(m.bytes, m.n_bytes, &t, NULL), 0);
    decode_all(&m, t, 0, k, v, N, dk, dv);
    for (size_t at = 0; at < N; at += PIECE) {
        size_t n = N - at < PIECE ? N - at : PIECE;

        CU_ASSERT_EQUAL_FATAL(kvc_seq_append(s, 0, KVC_F32, k + at * width, v + at * width, n), 0);
        CU_ASSERT_EQUAL_FATAL(kvc_seq_attend(s, 0, q + at * q_width, n, out + at * q_width), 0);
    }
    for (size_t i = 0; i < N;
         i += 13) { /* each query alone, over the exact and decoded keys that the rule gives it */
        float *mk = malloc((i + 1) * width * sizeof(float)), *mv = malloc((i + 1) * width * sizeof(float));
        double *want, e;

        for (size_t p = 0; p <= i; p++) {
            bool exact = is_exact(i, p, n_sink, n_recent);

            memcpy(mk + p * width, (exact ? k : dk) + p * width, width * sizeof(float));
            memcpy(mv + p * width, (exact ? v : dv) + p * width, width * sizeof(float));
        }
        want = embedded_attention(&m, mk, mv, q + i * q_width, i, 1);
        e = nmse(out + i * q_width, want, q_width);
        if (!(e < 1e-8)) /* as in test_seq_append.c */
            printf("    sinks %u recent %d query %zu: nmse %g\n", n_sink, n_recent, i, e);
        CU_ASSERT(e < 1e-8);
        free(mk);
        free(mv);
        free(want);
    }
    /* rows of full chunks are decoded from pages: the same bits as token by token */
    CU_ASSERT_EQUAL(kvc_seq_read(s, 0, KVC_K, 0, N, out), 0);
    CU_ASSERT_EQUAL(memcmp(out, k, n_sink * width * sizeof(float)), 0);
    CU_ASSERT_EQUAL(memcmp(out + n_sink * width, dk + n_sink * width, (N - n_sink) * width * sizeof(float)),
                    0);
    CU_ASSERT_EQUAL(kvc_seq_read(s, 0, KVC_V, 5, N - 5, out), 0);
    CU_ASSERT_EQUAL(memcmp(out, dv + 5 * width, (N - 5) * width * sizeof(float)), 0);
    (void) table_unref(t);
    free(k), free(v), free(q), free(out), free(dk), free(dv);
    embedded_free(&m);
}

static void test_exactness_rule(void)
{
    check_rule(4, 0, PREDICT_HEAD);
    check_rule(4, 0, PREDICT_LAYER);
    check_rule(4, 0, PREDICT_NONE);
    check_rule(4, -1, PREDICT_HEAD);
    check_rule(0, 0, PREDICT_HEAD);
    check_rule(0, 1, PREDICT_HEAD);
    check_rule(5, 70, PREDICT_LAYER);
}

/* Literals: 2 layers, 2 KV heads, d = 32, 256 tokens. */
static void test_usage(void)
{
    struct embedded m = embedded_new(2, 4, 2, 32, 3, 0, 0);
    static const struct {
        int32_t n_recent;
        uint64_t tail, packed;
    } cases[] = {{0, 0, 256}, {-1, 64, 192}, {100, 100, 156}, {1000, 256, 0}};
    kvc_model_info info = {.struct_bytes = sizeof(info)};

    CU_ASSERT_EQUAL(kvc_model_get_info(m.model, &info), 0);
    for (unsigned i = 0; i < 4; i++) {
        kvc_seq *s = eval_sequence(&m, 4, cases[i].n_recent);
        kvc_usage u = {.struct_bytes = sizeof(u)};
        double bits;

        CU_ASSERT_EQUAL(embedded_append(&m, s, 0, 0, 256), 0);
        CU_ASSERT_EQUAL(kvc_seq_get_usage(s, &u), 0);
        CU_ASSERT_EQUAL(u.tokens, 256);
        CU_ASSERT_EQUAL(u.numbers, 256 * 2 * 2 * 32 * 2);
        CU_ASSERT_EQUAL(u.tail_bytes, cases[i].tail * 2 * 2 * 32 * 2 * 2);
        CU_ASSERT_EQUAL(u.sink_bytes, cases[i].packed ? 4 * 2 * 2 * 32 * 2 * 2 : 0);
        CU_ASSERT_EQUAL(u.header_bytes, (cases[i].packed + 63) / 64 * 128);
        CU_ASSERT_EQUAL(u.shared_bytes, 0);
        /* code bits per number, padding coordinates included, equal the table's */
        bits = (double) (u.code_bytes + u.padding_bytes) * 8;
        if (cases[i].n_recent == 0) {
            uint64_t rounding = 4 * ((info.page_bytes + 127) / 128 * 128 - info.page_bytes);

            CU_ASSERT(fabs((bits - 8 * (double) rounding) / (double) u.numbers - info.bpd_code) < 1e-9);
        }
        kvc_seq_free(s);
    }
    embedded_free(&m);
}

static void test_truncate_and_go_on(void)
{
    struct embedded m = embedded_new(2, 2, 2, 32, 3, 0, 0);
    kvc_seq *s = eval_sequence(&m, 4, 0), *want = eval_sequence(&m, 4, 0);
    static const size_t cuts[][2] = {{199, 199}, {192, 192}, {150, 128}, {0, 0}};

    CU_ASSERT_EQUAL(embedded_append(&m, want, 0, 0, 260), 0);
    for (unsigned i = 0; i < 4; i++) {
        size_t n = kvc_seq_length(s), kept = 0;
        float *a, *b;

        CU_ASSERT_EQUAL(embedded_append(&m, s, 0, n, 210 - n), 0);
        CU_ASSERT_EQUAL(kvc_seq_truncate(s, cuts[i][0], &kept), 0);
        CU_ASSERT_EQUAL(kept, cuts[i][1]);
        CU_ASSERT_EQUAL(embedded_append(&m, s, 0, kept, 260 - kept), 0);
        a = embedded_read(&m, s, 1, KVC_V, 260);
        b = embedded_read(&m, want, 1, KVC_V, 260);
        CU_ASSERT_EQUAL(memcmp(a, b, 260 * 64 * sizeof(float)), 0);
        free(a);
        free(b);
        CU_ASSERT_EQUAL(kvc_seq_truncate(s, 130, &kept), 0);
    }
    embedded_free(&m);
}

/* One side, or some layers, from codes: everything else is the input, bit for bit, also for queries. */
static void test_sides_and_layers(void)
{
    enum { N = 150, WIDTH = 2 * 32, Q_WIDTH = 4 * 32 };
    static const struct {
        uint32_t sides, first_layer, n_layers;
    } cases[] = {{1 << KVC_K, 0, 0}, {1 << KVC_V, 0, 0}, {0, 1, 1}, {1 << KVC_K, 0, 1}, {3, 0, 2}};
    struct embedded m = embedded_new(2, 4, 2, 32, 2, 0, 0);
    kvc_seq *all = eval_sequence(&m, 4, 0);

    CU_ASSERT_EQUAL(embedded_append(&m, all, 0, 0, N), 0);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        kvc_eval_options o = {.struct_bytes = sizeof(o),
                              .n_sink = 4,
                              .n_recent = 0,
                              .sides = cases[i].sides,
                              .first_layer = cases[i].first_layer,
                              .n_layers = cases[i].n_layers};
        kvc_seq *s = NULL;

        CU_ASSERT_EQUAL_FATAL(kvc_seq_new_eval(m.model, &o, &s), 0);
        CU_ASSERT_EQUAL(embedded_append(&m, s, 0, 0, N), 0);
        for (uint32_t layer = 0; layer < 2; layer++) {
            float *rows[2], *q = embedded_queries(&m, 0, layer, N - 1, 1), out[Q_WIDTH];
            double *want;

            for (int side = KVC_K; side <= KVC_V; side++) {
                bool coded = (cases[i].sides ? cases[i].sides >> side & 1 : 1) &&
                             layer >= cases[i].first_layer &&
                             (cases[i].n_layers == 0 || layer < cases[i].first_layer + cases[i].n_layers);
                float *x = coded ? embedded_read(&m, all, layer, (enum kvc_side) side, N)
                                 : embedded_input(&m, 0, layer, (enum kvc_side) side, 0, N);

                rows[side] = embedded_read(&m, s, layer, (enum kvc_side) side, N);
                CU_ASSERT_EQUAL(memcmp(rows[side], x, N * WIDTH * sizeof(float)), 0);
                free(x);
            }
            CU_ASSERT_EQUAL(kvc_seq_attend(s, layer, q, 1, out), 0);
            want = embedded_attention(&m, rows[KVC_K], rows[KVC_V], q, N - 1, 1);
            CU_ASSERT(nmse(out, want, Q_WIDTH) < 1e-8); /* as in check_rule() */
            free(rows[KVC_K]), free(rows[KVC_V]), free(q), free(want);
        }
        kvc_seq_free(s);
    }
    embedded_free(&m);
}

/* x [N, heads, d] := R(p)^sign x, written as multiplication of complex numbers. */
static void turn_keys(const struct embedded *m, float *x, size_t n, double sign)
{
    uint32_t half = m->g.n_rot / 2;

    for (size_t p = 0; p < n; p++)
        for (size_t h = 0; h < m->n_heads; h++, x += m->g.d)
            for (uint32_t i = 0; i < half; i++) {
                double complex z = (double) x[i] + I * (double) x[i + half];

                z *= cexp(I * sign * (double) p * m->g.freq[i]);

                x[i] = (float) creal(z);
                x[i + half] = (float) cimag(z);
            }
}

/* Encoding after RoPE encodes rotated keys and rotates the decoded ones back. Values are not affected. */
static void test_post_rope(void)
{
    enum { N = 150, WIDTH = 2 * 64 };
    struct embedded m = embedded_new(1, 4, 2, 64, 3, 0, 0);
    kvc_eval_options o = {.struct_bytes = sizeof(o), .n_sink = 4, .n_recent = 0, .post_rope = 1};
    float *k = embedded_input(&m, 0, 0, KVC_K, 0, N), *v = embedded_input(&m, 0, 0, KVC_V, 0, N), *got, *want;
    static double wide[N * WIDTH];
    kvc_seq *post = NULL, *plain = eval_sequence(&m, 0, 0);

    CU_ASSERT_EQUAL_FATAL(kvc_seq_new_eval(m.model, &o, &post), 0);
    for (size_t at = 0; at < N; at += 50) /* so that chunks fill in pieces */
        CU_ASSERT_EQUAL(kvc_seq_append(post, 0, KVC_F32, k + at * WIDTH, v + at * WIDTH, 50), 0);
    got = embedded_read(&m, post, 0, KVC_K, N);
    CU_ASSERT_EQUAL(memcmp(got, k, 4 * WIDTH * sizeof(float)), 0); /* sinks equal the input */
    turn_keys(&m, k, N, 1);
    CU_ASSERT_EQUAL(kvc_seq_append(plain, 0, KVC_F32, k, v, N), 0);
    want = embedded_read(&m, plain, 0, KVC_K, N);
    turn_keys(&m, want, N, -1);
    for (size_t i = 0; i < N * WIDTH; i++)
        wide[i] = (double) want[i];
    CU_ASSERT(nmse(got + 4 * WIDTH, wide + 4 * WIDTH, (N - 4) * WIDTH) <
              1e-12); /* binary32; another code would differ by 1e-5 */
    free(got), free(want);
    got = embedded_read(&m, post, 0, KVC_V, N);
    want = embedded_read(&m, plain, 0, KVC_V, N);
    CU_ASSERT_EQUAL(memcmp(got + 4 * WIDTH, want + 4 * WIDTH, (N - 4) * WIDTH * sizeof(float)), 0);
    free(got), free(want), free(k), free(v);
    embedded_free(&m);
}

/* The options of their first version, 16 bytes, have the same meaning. */
static void test_older_options(void)
{
    struct embedded m = embedded_new(1, 2, 2, 32, 3, 0, 0);
    kvc_eval_options o = {.struct_bytes = 16, .n_sink = 4, .sides = 77, .first_layer = 99, .post_rope = 55};
    kvc_seq *s = NULL, *want = eval_sequence(&m, 4, 0);
    float *a, *b;

    CU_ASSERT_EQUAL_FATAL(kvc_seq_new_eval(m.model, &o, &s), 0);
    CU_ASSERT_EQUAL(embedded_append(&m, s, 0, 0, 70), 0);
    CU_ASSERT_EQUAL(embedded_append(&m, want, 0, 0, 70), 0);
    a = embedded_read(&m, s, 0, KVC_K, 70);
    b = embedded_read(&m, want, 0, KVC_K, 70);
    CU_ASSERT_EQUAL(memcmp(a, b, 70 * 2 * 32 * sizeof(float)), 0);
    free(a), free(b);
    embedded_free(&m);
}

static void refuse_options(const struct embedded *m, kvc_eval_options o, const char *words)
{
    kvc_seq *s = NULL;

    o.struct_bytes = sizeof(o);
    CU_ASSERT_EQUAL(kvc_seq_new_eval(m->model, &o, &s), -EINVAL);
    CU_ASSERT_PTR_NULL(s);
    CU_ASSERT_PTR_NOT_NULL(strstr(kvc_last_error(m->client), words));
}

static void test_refusals(void)
{
    struct embedded m = embedded_new(1, 2, 2, 32, 3, 0, 0);
    kvc_eval_options o = {.struct_bytes = sizeof(o), .n_sink = 4, .n_recent = -2};
    kvc_seq *s = NULL, *t = NULL;
    uint32_t token = 0;
    size_t n = 0;

    CU_ASSERT_EQUAL(kvc_seq_new_eval(m.model, &o, &s), -EINVAL);
    CU_ASSERT_PTR_NULL_FATAL(s);
    refuse_options(&m, (kvc_eval_options){.sides = 4}, "sides are 4");
    refuse_options(&m, (kvc_eval_options){.first_layer = 1}, "the model has 1");
    refuse_options(&m, (kvc_eval_options){.n_layers = 2}, "the model has 1");
    refuse_options(&m, (kvc_eval_options){.first_layer = UINT32_MAX, .n_layers = 2}, "the model has 1");
    refuse_options(&m, (kvc_eval_options){.post_rope = 2}, "post_rope is 2");
    s = eval_sequence(&m, 4, 0);
    CU_ASSERT_EQUAL(kvc_seq_fork(s, &t), -EINVAL);
    CU_ASSERT_EQUAL(kvc_seq_match(s, &token, 1, &n), -EINVAL);
    CU_ASSERT_EQUAL(kvc_seq_commit(s, &token, 1, &n), -EINVAL);
    {
        float k[64] = {0}, v[64] = {0};

        v[40] = NAN;
        CU_ASSERT_EQUAL(kvc_seq_append(s, 0, KVC_F32, k, v, 1), -EINVAL);
        CU_ASSERT_PTR_NOT_NULL(strstr(kvc_last_error(m.client), "KV head 1, V"));
        CU_ASSERT_EQUAL(kvc_seq_length(s), 0);
    }
    embedded_free(&m);
}

const struct test_case test_cases[] = {
    TEST(test_exactness_rule),     TEST(test_usage),
    TEST(test_truncate_and_go_on), TEST(test_sides_and_layers),
    TEST(test_post_rope),          TEST(test_older_options),
    TEST(test_refusals),           TEST_END,
};
const char test_suite[] = "eval";
