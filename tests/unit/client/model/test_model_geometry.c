/* Geometries of table files, and models whose geometry differs a little from the table's. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "client/model/model_types.h"
#include "tests/lib/random_table.h"
#include "tests/lib/test.h"
#include "tests/unit/client/embedded.h"

/* ---- what a file is for ---- */

static void test_table_geometry(void)
{
    struct embedded m = embedded_new(2, 6, 3, 48, 3, 0, 0);
    kvc_geometry g = {.struct_bytes = sizeof(g)};
    uint8_t model_digest[KVC_DIGEST_BYTES];
    double freq[KVC_ROPE_FREQ_MAX];
    kvc_model_id id = {.struct_bytes = sizeof(id)};
    kvc_model *model = NULL;

    CU_ASSERT_EQUAL_FATAL(kvc_table_geometry(m.client, m.bytes, m.n_bytes, model_digest, &g, freq), 0);
    CU_ASSERT_EQUAL(memcmp(model_digest, random_table_model_digest, sizeof(model_digest)), 0);
    CU_ASSERT_EQUAL(g.n_layers, 2);
    CU_ASSERT_EQUAL(g.n_heads, 6);
    CU_ASSERT_EQUAL(g.n_kv_heads, 3);
    CU_ASSERT_EQUAL(g.head_dim, 48);
    CU_ASSERT_EQUAL(g.n_rot, 48);
    CU_ASSERT_EQUAL(g.attn_scale, m.g.attn_scale);
    CU_ASSERT_PTR_EQUAL(g.rope_freq, freq);
    CU_ASSERT_EQUAL(memcmp(freq, m.g.freq, 24 * sizeof(*freq)), 0);
    CU_ASSERT_EQUAL(freq[24], 0);
    CU_ASSERT_EQUAL(freq[KVC_ROPE_FREQ_MAX - 1], 0);

    /* it opens a model as it is */
    id.geometry = g;
    memcpy(id.model_digest, model_digest, sizeof(model_digest));
    CU_ASSERT_EQUAL(kvc_model_open_table(m.client, &id, m.bytes, m.n_bytes, &model), 0);
    embedded_free(&m);
}

static void test_table_geometry_refusals(void)
{
    struct embedded m = embedded_new(1, 2, 1, 32, 3, 0, 0);
    kvc_geometry g = {.struct_bytes = sizeof(g)}, old = {.struct_bytes = sizeof(old) - 8};
    uint8_t digest[KVC_DIGEST_BYTES] = {7};
    double freq[KVC_ROPE_FREQ_MAX] = {9};
    uint8_t *damaged = malloc(m.n_bytes);

    CU_ASSERT_PTR_NOT_NULL_FATAL(damaged);
    memcpy(damaged, m.bytes, m.n_bytes);
    damaged[m.n_bytes / 2] ^= 1;
    CU_ASSERT_EQUAL(kvc_table_geometry(m.client, damaged, m.n_bytes, digest, &g, freq), -EBADMSG);
    CU_ASSERT_EQUAL(kvc_table_geometry(m.client, m.bytes, m.n_bytes - 1, digest, &g, freq), -EBADMSG);
    CU_ASSERT_EQUAL(kvc_table_geometry(m.client, m.bytes, 0, digest, &g, freq), -EBADMSG);
    CU_ASSERT_EQUAL(kvc_table_geometry(NULL, m.bytes, m.n_bytes, digest, &g, freq), -EINVAL);
    CU_ASSERT_EQUAL(kvc_table_geometry(m.client, NULL, m.n_bytes, digest, &g, freq), -EINVAL);
    CU_ASSERT_EQUAL(kvc_table_geometry(m.client, m.bytes, m.n_bytes, NULL, &g, freq), -EINVAL);
    CU_ASSERT_EQUAL(kvc_table_geometry(m.client, m.bytes, m.n_bytes, digest, NULL, freq), -EINVAL);
    CU_ASSERT_EQUAL(kvc_table_geometry(m.client, m.bytes, m.n_bytes, digest, &g, NULL), -EINVAL);
    CU_ASSERT_EQUAL(kvc_table_geometry(m.client, m.bytes, m.n_bytes, digest, &old, freq), -EINVAL);
    CU_ASSERT(digest[0] == 7 && freq[0] == 9 && g.n_layers == 0); /* outputs are untouched */
    CU_ASSERT_EQUAL(kvc_client_get_geometry(m.client, digest, &g, freq), -ENOTCONN);
    free(damaged);
    embedded_free(&m);
}

/* ---- a model that differs from its table ---- */

/* Opens the table of @m for a model with geometry @g. */
static int open_as(const struct embedded *m, const struct geometry *g, uint32_t n_positions, kvc_model **ret)
{
    struct embedded other = *m;
    kvc_model_id id;

    other.g = *g;
    id = embedded_id(&other);
    id.n_positions = n_positions;
    return kvc_model_open_table(m->client, &id, m->bytes, m->n_bytes, ret);
}

static void test_model_gets_the_geometry_of_the_table(void)
{
    struct embedded m = embedded_new(1, 2, 1, 64, 3, 0, 0);
    struct geometry g = m.g;
    kvc_model *model = NULL;
    kvc_seq *s = NULL, *want = NULL;
    float out[2][2 * 64], *q = embedded_queries(&m, 0, 0, 299, 1);

    g.attn_scale = (float) g.attn_scale;
    for (uint32_t i = 0; i < g.n_rot / 2; i++)
        g.freq[i] = powf(10000, -2.0f * (float) i / 64);
    CU_ASSERT_NOT_EQUAL(memcmp(&g, &m.g, sizeof(g)), 0);
    CU_ASSERT_EQUAL_FATAL(open_as(&m, &g, 0, &model), 0);
    CU_ASSERT_EQUAL(memcmp(&model->geometry, &m.g, sizeof(m.g)), 0);

    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(model, NULL, 0, &s), 0);
    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m.model, NULL, 0, &want), 0);
    CU_ASSERT_EQUAL(embedded_append(&m, s, 0, 0, 300), 0);
    CU_ASSERT_EQUAL(embedded_append(&m, want, 0, 0, 300), 0);
    CU_ASSERT_EQUAL(kvc_seq_attend(s, 0, q, 1, out[0]), 0);
    CU_ASSERT_EQUAL(kvc_seq_attend(want, 0, q, 1, out[1]), 0);
    CU_ASSERT_EQUAL(memcmp(out[0], out[1], sizeof(out[0])), 0);
    free(q);
    embedded_free(&m);
}

static void test_positions_decide(void)
{
    struct embedded m = embedded_new(1, 2, 1, 64, 3, 0, 0);
    struct geometry g = m.g;
    kvc_model *model = NULL;

    g.freq[5] += 0x1p-20; /* 2^-8 radians at position 4096, give or take one */
    CU_ASSERT_EQUAL(open_as(&m, &g, 4000, &model), 0);
    CU_ASSERT_EQUAL(open_as(&m, &g, 4200, &model), -EINVAL);
    CU_ASSERT_PTR_NOT_NULL(strstr(kvc_last_error(m.client), "plane 5"));
    CU_ASSERT_PTR_NOT_NULL(strstr(kvc_last_error(m.client), "n_positions is 4200"));
    CU_ASSERT_EQUAL(open_as(&m, &g, 0, &model), -EINVAL); /* 0: 65536 */
    CU_ASSERT_PTR_NOT_NULL(strstr(kvc_last_error(m.client), "n_positions is 65536"));
    embedded_free(&m);
}

static void test_other_models_are_refused(void)
{
    struct embedded m = embedded_new(2, 4, 2, 64, 3, 0, 0);
    struct geometry g = m.g;
    kvc_model_id id = embedded_id(&m);
    kvc_model *model = NULL;

    g.n_layers = 3;
    CU_ASSERT_EQUAL(open_as(&m, &g, 0, &model), -EINVAL);
    CU_ASSERT_PTR_NOT_NULL(strstr(kvc_last_error(m.client), "3 in the model and 2 in the table"));
    memset(id.model_digest, 0xab, sizeof(id.model_digest));
    CU_ASSERT_EQUAL(kvc_model_open_table(m.client, &id, m.bytes, m.n_bytes, &model), -EINVAL);
    CU_ASSERT_PTR_NOT_NULL(
        strstr(kvc_last_error(m.client), "abababababababababababababababababababababababababababababababab"));
    CU_ASSERT_PTR_NOT_NULL(strstr(kvc_last_error(m.client), "61206d6f64656c")); /* "a model" */
    id = embedded_id(&m);
    id.exact = KVC_EXACT_AFTER_ROPE; /* without a number type */
    CU_ASSERT_EQUAL(kvc_model_open_table(m.client, &id, m.bytes, m.n_bytes, &model), -EINVAL);
    CU_ASSERT_PTR_NULL(model);
    embedded_free(&m);
}

const struct test_case test_cases[] = {
    TEST(test_table_geometry),
    TEST(test_table_geometry_refusals),
    TEST(test_model_gets_the_geometry_of_the_table),
    TEST(test_positions_decide),
    TEST(test_other_models_are_refused),
    TEST_END,
};
const char test_suite[] = "model_geometry";
