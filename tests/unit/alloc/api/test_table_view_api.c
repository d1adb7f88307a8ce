/* Looking into tables through the public header, and structs of other versions. */
#include <errno.h>

#include "base/cleanup.h"
#include "tests/unit/alloc/api/api_fixture.h"

const char test_suite[] = "table_view_api";

/* A table of 3 bits, with its report. */
static void *make_table(struct api *f, size_t *ret_n, kvc_solve_report *ret_report)
{
    kvc_solve_options o = {.struct_bytes = sizeof(o), .bpd = 3};
    void *bytes = NULL;
    kvc_stats *s;

    api_init(f);
    s = api_stats(f, KVC_WITH_OUTPUT);
    api_add_windows(f, s, 0, 4);
    CU_ASSERT_EQUAL_FATAL(kvc_solve(s, &o, &bytes, ret_n, ret_report), 0);
    return bytes;
}

static void test_view(void)
{
    struct api f;
    kvc_solve_report report = {.struct_bytes = sizeof(report)};
    kvc_table_summary x = {.struct_bytes = sizeof(x)};
    kvc_table_head head = {.struct_bytes = sizeof(head)};
    size_t n = 0, bits[2] = {0};
    _cleanup_(freep) uint8_t *bytes = make_table(&f, &n, &report);
    kvc_table_view *v = NULL;

    CU_ASSERT_EQUAL_FATAL(kvc_table_view_new(f.a, bytes, n, &v), 0);
    CU_ASSERT_EQUAL(kvc_table_view_get_summary(v, &x), 0);
    CU_ASSERT_EQUAL(memcmp(x.table_digest, report.table_digest, sizeof(x.table_digest)), 0);
    CU_ASSERT_EQUAL(x.model_digest[2], 3);
    CU_ASSERT_EQUAL(x.n_layers, API_LAYERS);
    CU_ASSERT_EQUAL(x.n_kv_heads, API_KV_HEADS);
    CU_ASSERT_EQUAL(x.head_dim, API_DIM);
    CU_ASSERT_EQUAL(x.n_sink, 4);
    CU_ASSERT_EQUAL(x.predict, KVC_PREDICT_HEAD);
    CU_ASSERT_PTR_NOT_NULL(strstr(x.provenance, "\"metric\":\"output\""));
    for (uint32_t layer = 0; layer < API_LAYERS; layer++)
        for (uint32_t h = 0; h < API_KV_HEADS; h++)
            for (uint32_t side = KVC_K; side <= KVC_V; side++) {
                uint32_t sum = 0;

                CU_ASSERT_EQUAL(kvc_table_view_get_head(v, layer, h, side, &head), 0);
                for (uint32_t i = 0; i < head.n_bands; i++) {
                    CU_ASSERT(head.bits[i] <= (i ? head.bits[i - 1] : KVC_BITS_MAX));
                    sum += 8u * head.bits[i];
                }
                CU_ASSERT_EQUAL(sum, head.code_bits);
                CU_ASSERT(head.nominal_bits <= head.code_bits);
                CU_ASSERT(head.rank <= API_DIM);
                bits[side] += head.code_bits;
            }
    CU_ASSERT_DOUBLE_EQUAL(x.k_bpd, (double) bits[KVC_K] / (API_LAYERS * API_KV_HEADS * API_DIM), 1e-12);
    CU_ASSERT_DOUBLE_EQUAL(x.bpd_code, (x.k_bpd + x.v_bpd) / 2, 1e-12);
    CU_ASSERT_DOUBLE_EQUAL(x.bpd_code, report.bpd_code, 1e-12);

    EXPECT_REFUSED(&f, kvc_table_view_get_head(v, API_LAYERS, 0, 0, &head), -EINVAL,
                   "the table has 2 layers");
    EXPECT_REFUSED(&f, kvc_table_view_get_head(v, 0, 0, 2, &head), -EINVAL, "side 2");
    CU_ASSERT_PTR_NULL(kvc_table_view_free(v));
    CU_ASSERT_PTR_NULL(kvc_table_view_free(NULL));
    bytes[n / 2] ^= 1;
    EXPECT_REFUSED(&f, kvc_table_view_new(f.a, bytes, n, &v), -EBADMSG, "");
    CU_ASSERT(strlen(kvc_alloc_error(f.a)) > 10);
    EXPECT_REFUSED(&f, kvc_table_view_new(f.a, bytes, 0, &v), -EBADMSG, "");
    api_deinit(&f);
}

/* An older caller gets the members that it has, a newer one zeros behind them. */
static void test_struct_sizes(void)
{
    struct {
        kvc_stats_info now;
        uint64_t later;
    } newer = {.now.struct_bytes = sizeof(newer), .later = 77};
    struct {
        kvc_solve_options now;
        uint64_t later;
    } options = {.now = {.struct_bytes = sizeof(options), .bpd = 3}, .later = 0};
    _cleanup_(freep) void *bytes = NULL;
    size_t n = 0;
    struct api f;
    kvc_stats *s;

    api_init(&f);
    s = api_stats(&f, 0);
    api_add_windows(&f, s, 0, 4);
    CU_ASSERT_EQUAL(kvc_stats_get_info(s, &newer.now), 0);
    CU_ASSERT_EQUAL(newer.now.tokens, 4 * (API_WINDOW - 4));
    CU_ASSERT_EQUAL(newer.later, 0);
    CU_ASSERT_EQUAL(kvc_solve(s, &options.now, &bytes, &n, NULL), 0);
    options.later = 1;
    EXPECT_REFUSED(&f, kvc_solve(s, &options.now, &bytes, &n, NULL), -EINVAL, "update the library");
    api_deinit(&f);
}

static void test_version_and_free(void)
{
    CU_ASSERT(strlen(kvc_alloc_version()) >= 5);
    CU_ASSERT_PTR_NULL(kvc_alloc_free(NULL));
    CU_ASSERT_PTR_NULL(kvc_stats_free(NULL));
    CU_ASSERT_PTR_NOT_NULL(strstr(kvc_alloc_error(NULL), "kvc_alloc_new"));
}

const struct test_case test_cases[] = {
    TEST(test_view),
    TEST(test_struct_sizes),
    TEST(test_version_and_free),
    TEST_END,
};
