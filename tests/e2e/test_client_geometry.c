/*
 * Geometries of models whose tables a daemon serves: reading them, and clients whose RoPE frequencies differ
 * in the last bits.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tests/e2e/client_fixture.h"
#include "tests/lib/random_table.h"
#include "tests/lib/test.h"

static struct geometry small(void)
{
    return random_table_geometry(2, 4, 2, 64);
}

/* ---- kvc_client_get_geometry() ---- */

static void test_geometry_of_the_active_table(void)
{
    struct scene sc;
    kvc_client *c = NULL;
    kvc_geometry g = {.struct_bytes = sizeof(g)};
    double freq[KVC_ROPE_FREQ_MAX];
    uint8_t unknown[KVC_DIGEST_BYTES] = {1}, digest[KVC_DIGEST_BYTES];

    scene_start(&sc, small(), 3, 1, NULL);
    for (uint64_t seed = 2; seed < 70; seed++) /* a page of the list has 64 */
        scene_activate(&sc, 1, seed, digest);
    CU_ASSERT_EQUAL_FATAL(kvc_client_new(&c), 0);
    CU_ASSERT_EQUAL(kvc_client_get_geometry(c, random_table_model_digest, &g, freq), -ENOTCONN);
    CU_ASSERT_EQUAL_FATAL(kvc_client_connect(c, sc.daemon.socket), 0);
    CU_ASSERT_EQUAL(kvc_client_get_geometry(c, unknown, &g, freq), -ENODATA);
    CU_ASSERT_PTR_NOT_NULL(strstr(kvc_last_error(c), "0100000000"));
    CU_ASSERT_EQUAL(kvc_client_get_geometry(c, NULL, &g, freq), -EINVAL);
    CU_ASSERT_EQUAL(kvc_client_get_geometry(c, random_table_model_digest, NULL, freq), -EINVAL);
    CU_ASSERT_EQUAL_FATAL(kvc_client_get_geometry(c, random_table_model_digest, &g, freq), 0);
    CU_ASSERT_EQUAL(g.n_layers, 2);
    CU_ASSERT_EQUAL(g.n_heads, 4);
    CU_ASSERT_EQUAL(g.n_kv_heads, 2);
    CU_ASSERT_EQUAL(g.head_dim, 64);
    CU_ASSERT_EQUAL(g.attn_scale, sc.g.attn_scale);
    CU_ASSERT_PTR_EQUAL(g.rope_freq, freq);
    CU_ASSERT_EQUAL(memcmp(freq, sc.g.freq, 32 * sizeof(*freq)), 0);
    kvc_client_free(c);
    scene_end(&sc);
}

/* ---- clients with other frequencies ---- */

/* Connects and opens the model with geometry @g. */
static int connect_as(const struct scene *sc, const struct geometry *g, struct embedded *ret)
{
    kvc_model_id id;

    *ret = (struct embedded){.g = *g, .n_heads = g->n_kv_heads};
    id = embedded_id(ret);
    CU_ASSERT_EQUAL_FATAL(kvc_client_new(&ret->client), 0);
    CU_ASSERT_EQUAL_FATAL(kvc_client_connect(ret->client, sc->daemon.socket), 0);
    return kvc_model_open(ret->client, &id, &ret->model);
}

static void test_rounded_frequencies_share_pages(void)
{
    struct scene sc;
    struct geometry rounded = small();
    struct embedded a, b;
    uint32_t *tokens = scene_tokens(0, 300);
    kvc_seq *s = NULL, *t = NULL;
    float *x, *y;
    size_t n = 0;

    rounded.attn_scale = (float) rounded.attn_scale * (1 + 0x1p-23);
    for (uint32_t i = 0; i < 32; i++)
        rounded.freq[i] = (float) rounded.freq[i];
    scene_start(&sc, small(), 3, 1, NULL);
    CU_ASSERT_EQUAL_FATAL(connect_as(&sc, &rounded, &a), 0);
    b = scene_client(&sc);
    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(a.model, NULL, 0, &s), 0);
    CU_ASSERT_EQUAL(scene_publish(&a, s, 0, 0, 300, 100, &n), 0);
    CU_ASSERT_EQUAL(n, 192);
    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(b.model, NULL, 0, &t), 0);
    CU_ASSERT_EQUAL(kvc_seq_match(t, tokens, 300, &n), 0);
    CU_ASSERT_EQUAL_FATAL(n, 192);
    CU_ASSERT_EQUAL(embedded_append(&b, t, 0, 192, 108), 0);

    /* the same rows are exact in both: equal bits prove that both use the table's frequencies */
    x = scene_attend(&a, s, 0);
    y = scene_attend(&b, t, 0);
    CU_ASSERT_EQUAL(memcmp(x, y, scene_attend_floats(&a) * sizeof(*x)), 0);
    free(x);
    free(y);
    free(tokens);
    embedded_free(&a);
    embedded_free(&b);
    scene_end(&sc);
}

static void test_other_frequencies_are_refused(void)
{
    struct scene sc;
    struct geometry other = small();
    struct embedded m;

    other.freq[7] *= 1.5;
    scene_start(&sc, small(), 3, 1, NULL);
    CU_ASSERT_EQUAL(connect_as(&sc, &other, &m), -EINVAL);
    CU_ASSERT_PTR_NULL(m.model);
    CU_ASSERT_PTR_NOT_NULL(strstr(kvc_last_error(m.client), "plane 7"));
    CU_ASSERT_PTR_NOT_NULL(strstr(kvc_last_error(m.client), "must be the same"));
    embedded_free(&m);
    scene_end(&sc);
}

/* ---- tables with another geometry ---- */

/* A table whose frequencies differ in the last bit is neither activated nor tried. */
static void test_tables_of_a_model_have_one_geometry(void)
{
    struct scene sc;
    struct embedded m;
    struct geometry other = small();
    uint8_t digest[KVC_DIGEST_BYTES];
    uint64_t revision;
    kvc_model_info before = {.struct_bytes = sizeof(before)}, after = before;
    void *bytes = NULL;
    size_t n_bytes;

    other.freq[3] *= 1 + 0x1p-52;
    CU_ASSERT_EQUAL_FATAL(random_table_bytes(&other, 5, 3, PREDICT_HEAD, &bytes, &n_bytes), 0);
    scene_start(&sc, small(), 3, 1, NULL);
    m = scene_client(&sc);
    CU_ASSERT_EQUAL(kvc_model_get_info(m.model, &before), 0);
    CU_ASSERT_EQUAL_FATAL(operator_stage_table(sc.control, bytes, n_bytes, digest, NULL), 0);
    CU_ASSERT_EQUAL(operator_activate_table(sc.control, digest, 0, &revision, NULL), -EINVAL);
    CU_ASSERT_PTR_NOT_NULL(strstr(kvc_last_error(sc.control), "plane 3"));
    CU_ASSERT_EQUAL(operator_shadow_table(sc.control, digest, 1000, 0, &revision, NULL), -EINVAL);
    CU_ASSERT_EQUAL(kvc_model_get_info(m.model, &after), 0);
    CU_ASSERT_EQUAL(memcmp(before.table_digest, after.table_digest, KVC_DIGEST_BYTES), 0);
    CU_ASSERT_EQUAL(before.revision, after.revision);
    free(bytes);
    embedded_free(&m);
    scene_end(&sc);
}

const struct test_case test_cases[] = {
    TEST(test_geometry_of_the_active_table),
    TEST(test_rounded_frequencies_share_pages),
    TEST(test_other_frequencies_are_refused),
    TEST(test_tables_of_a_model_have_one_geometry),
    TEST_END,
};
const char test_suite[] = "client_geometry";
