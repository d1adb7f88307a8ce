/* kvc_model_report() and kvc_model_get_fit() without a daemon: which chunks count, the error, a misfit. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/table/table.h"
#include "tests/lib/random_table.h"
#include "tests/lib/test.h"
#include "tests/unit/client/embedded.h"

enum { TEXT = 512, LAYERS = 2 };

static struct embedded small(void)
{
    return embedded_new_predicting(LAYERS, 4, 2, 64, 3, 0, 0, PREDICT_NONE);
}

static void measure(const struct embedded *m, uint32_t share_ppm)
{
    const kvc_report_options o = {.struct_bytes = sizeof(o), .share_ppm = share_ppm};

    CU_ASSERT_EQUAL_FATAL(kvc_model_report(m->model, &o), 0);
}

static kvc_model_fit fit_of(const struct embedded *m)
{
    kvc_model_fit f = {.struct_bytes = sizeof(f)};

    CU_ASSERT_EQUAL_FATAL(kvc_model_get_fit(m->model, &f), 0);
    return f;
}

/* A sequence of inputs [TEXT, heads, d] by layer and side; all chunks are packed. */
static kvc_seq *packed_from(const struct embedded *m, float *const (*x)[2])
{
    const kvc_seq_options o = {.struct_bytes = sizeof(o), .flags = KVC_SEQ_PUBLISH_ALL};
    uint32_t tokens[TEXT] = {0};
    kvc_seq *s = NULL;

    CU_ASSERT_EQUAL_FATAL(kvc_seq_new_with(m->model, &o, &s), 0);
    for (uint32_t layer = 0; layer < m->g.n_layers; layer++)
        CU_ASSERT_EQUAL_FATAL(kvc_seq_append(s, layer, KVC_F32, x[layer][0], x[layer][1], TEXT), 0);
    CU_ASSERT_EQUAL_FATAL(kvc_seq_commit(s, tokens, TEXT, NULL), 0);
    return s;
}

static kvc_seq *packed(const struct embedded *m)
{
    float *x[LAYERS][2];
    kvc_seq *s;

    for (unsigned i = 0; i < 2 * LAYERS; i++)
        x[i / 2][i % 2] = embedded_input(m, 0, i / 2, i % 2, 0, TEXT);
    s = packed_from(m, (float *const(*)[2]) x);
    for (unsigned i = 0; i < 2 * LAYERS; i++)
        free(x[i / 2][i % 2]);
    return s;
}

/* mean + @size dec z of every head, with z normal: at @size 1 vectors that the table is made for. */
static float *fitting(const struct table *t, uint32_t layer, enum side side, float size)
{
    uint32_t n_heads = t->geometry.n_kv_heads, d = t->geometry.d;
    float *x = malloc((size_t) TEXT * n_heads * d * sizeof(*x)), z[TABLE_RANK_MAX];

    for (size_t i = 0; i < (size_t) TEXT * n_heads; i++) {
        const struct codec *codec = table_codec(t, layer, (uint32_t) (i % n_heads), side);

        for (uint32_t c = 0; c < codec->r; c++)
            z[c] = size * (float) test_rand_normal();
        for (uint32_t j = 0; j < d; j++) {
            x[i * d + j] = codec->mean[j];
            for (uint32_t c = 0; c < codec->r; c++)
                x[i * d + j] += codec->dec[j * codec->r_in + c] * z[c];
        }
    }
    return x;
}

static kvc_seq *packed_fitting(const struct embedded *m, float size)
{
    struct table *t = NULL;
    float *x[LAYERS][2];
    kvc_seq *s;

    CU_ASSERT_EQUAL_FATAL(table_parse(m->bytes, m->n_bytes, &t, NULL), 0);
    for (unsigned i = 0; i < 2 * LAYERS; i++)
        x[i / 2][i % 2] = fitting(t, i / 2, (enum side)(i % 2), size);
    s = packed_from(m, (float *const(*)[2]) x);
    for (unsigned i = 0; i < 2 * LAYERS; i++)
        free(x[i / 2][i % 2]);
    (void) table_unref(t);
    return s;
}

/* The same error from inputs and decoded vectors, of all chunks but the first. */
static double error_of(const struct embedded *m, kvc_seq *s, enum kvc_side side)
{
    size_t d = m->g.d, width = m->n_heads * d;
    struct table *t = NULL;
    double sum = 0;

    CU_ASSERT_EQUAL_FATAL(table_parse(m->bytes, m->n_bytes, &t, NULL), 0);
    for (uint32_t layer = 0; layer < m->g.n_layers; layer++) {
        float *x = embedded_input(m, 0, layer, side, 0, TEXT), *y = embedded_read(m, s, layer, side, TEXT);
        double error = 0, signal = 0;

        for (size_t i = 64 * width; i < TEXT * width; i++) {
            const float *mean = table_codec(t, layer, (uint32_t) (i % width / d), (enum side) side)->mean;
            double e = (double) x[i] - y[i], z = (double) x[i] - mean[i % d];

            error += e * e;
            signal += z * z;
        }
        sum += error / signal / m->g.n_layers;
        free(x);
        free(y);
    }
    (void) table_unref(t);
    return sum;
}

static void test_measures_whole_chunks(void)
{
    struct embedded m = small();
    kvc_model_fit f = fit_of(&m);
    kvc_seq *s;

    CU_ASSERT(f.tokens == 0 && f.error[0] == 0 && f.error[1] == 0 && f.coded[0] == 0);
    kvc_seq_free(packed(&m)); /* measuring is off */
    f = fit_of(&m);
    CU_ASSERT(f.tokens == 0 && f.coded[0] > 0 && f.coded[1] > 0);
    measure(&m, 1000000);
    s = packed(&m);
    f = fit_of(&m);
    CU_ASSERT_EQUAL(f.tokens, TEXT - 64);
    for (unsigned side = 0; side < 2;
         side++) /* rows in the tail are binary16: x is rounded by 2^-12 or less */
        CU_ASSERT_DOUBLE_EQUAL(f.error[side] / error_of(&m, s, side), 1, 1e-3);
    measure(&m, 0);
    kvc_seq_free(packed(&m));
    CU_ASSERT_EQUAL(fit_of(&m).tokens, TEXT - 64); /* the result stays */
    CU_ASSERT_EQUAL(fit_of(&m).error[0], f.error[0]);
    CU_ASSERT_EQUAL(fit_of(&m).coded[0], f.coded[0] / 2 * 3);
    embedded_free(&m);
}

static void test_share(void)
{
    struct embedded m = small();
    uint64_t n;

    measure(&m, 250000);
    for (unsigned i = 0; i < 20; i++)
        kvc_seq_free(packed(&m));
    n = fit_of(&m).tokens / 64;
    CU_ASSERT(n > 10 && n < 70); /* 35 of 140 chunks expected; 5 standard deviations are 26 */
    embedded_free(&m);
}

/* Vectors as the table is made for, and five times as far from its means. */
static void test_a_table_that_does_not_fit(void)
{
    struct embedded good = small(), bad = small();
    kvc_usage u = {.struct_bytes = sizeof(u)};
    kvc_model_fit f, g;
    kvc_seq *s;

    measure(&good, 1000000);
    measure(&bad, 1000000);
    kvc_seq_free(packed_fitting(&good, 1));
    s = packed_fitting(&bad, 5);
    f = fit_of(&bad);
    g = fit_of(&good);
    CU_ASSERT_EQUAL(kvc_seq_get_usage(s, &u), 0);
    for (unsigned side = 0; side < 2; side++) {
        CU_ASSERT(f.error[side] > 2 * g.error[side]);
        CU_ASSERT(f.saturated[side] > f.coded[side] / 100 && g.saturated[side] < g.coded[side] / 100);
        CU_ASSERT(u.saturated[side] == f.saturated[side] && u.coded[side] == f.coded[side]);
    }
    embedded_free(&good);
    embedded_free(&bad);
}

static void test_expected_error(void)
{
    static const char provenance[] = "{\"expected\": {\"error_k\": 0.0125, \"error_v\": 0.25}}";
    struct embedded m = small();
    kvc_model_id id = embedded_id(&m);
    kvc_model_fit f = fit_of(&m);
    size_t n_bytes = 0;
    void *bytes = NULL;

    CU_ASSERT(f.expected_error[0] == 0 && f.expected_error[1] == 0);
    CU_ASSERT_EQUAL_FATAL(random_table_bytes_provenance(&m.g, 1, 3, provenance, &bytes, &n_bytes), 0);
    kvc_model_free(m.model);
    CU_ASSERT_EQUAL_FATAL(kvc_model_open_table(m.client, &id, bytes, n_bytes, &m.model), 0);
    f = fit_of(&m);
    CU_ASSERT(f.expected_error[0] == 0.0125 && f.expected_error[1] == 0.25);
    free(bytes);
    embedded_free(&m);
}

static void test_refused(void)
{
    struct embedded m = small();
    const kvc_report_options moments = {.struct_bytes = sizeof(moments), .share_ppm = 1, .moments = 1},
                             many = {.struct_bytes = sizeof(many), .share_ppm = 1000001};

    CU_ASSERT_EQUAL(kvc_model_report(m.model, &moments), -EOPNOTSUPP);
    CU_ASSERT_PTR_NOT_NULL(strstr(kvc_last_error(m.client), "embedded"));
    CU_ASSERT_EQUAL(kvc_model_report(m.model, &many), -EINVAL);
    CU_ASSERT_EQUAL(kvc_model_get_fit(m.model, NULL), -EINVAL);
    CU_ASSERT_EQUAL(kvc_model_get_fit(NULL, NULL), -EINVAL);
    embedded_free(&m);
}

const struct test_case test_cases[] = {
    TEST(test_measures_whole_chunks), TEST(test_share),   TEST(test_a_table_that_does_not_fit),
    TEST(test_expected_error),        TEST(test_refused), TEST_END,
};
const char test_suite[] = "model_fit";
