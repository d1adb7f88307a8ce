/* Statistics at their limits: a rotation of a part of the head, windows behind the first, blocks of rows that
 * are not full, the largest number of texts, measurements of depth without distortion. */
#include <errno.h>
#include <math.h>
#include <sodium.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "alloc/stats/stats_format.h"
#include "alloc/stats/stats_internal.h"
#include "base/stream_file.h"
#include "tests/unit/alloc/plane_energy.h"
#include "tests/unit/alloc/shapes.h"

enum { LAYERS = 2, HEADS = 4, KV_HEADS = 2, D = 32, WIDTH = KV_HEADS * D };

static struct stats *make_stats(void)
{
    struct geometry g = shape(LAYERS, HEADS, KV_HEADS, D, D);
    struct stats_options o;
    struct stats *s = NULL;
    struct errmsg e = {""};

    stats_options_default(&o, &g);
    o.n_samples = 4;
    o.want_attention = false;
    CU_ASSERT_EQUAL_FATAL(stats_new(&o, &s, &e), 0);
    return s;
}

/*
 * The first eight planes rotate; dimensions 16 .. 31 do not, and are paired 16 with 24, 17 with 25 and so on.
 * Numbers of tokens around the 256 rows of one product.
 */
static void test_plane_energy_of_a_partial_rotation(void)
{
    static const size_t lengths[] = {40, 4 + 255, 4 + 256, 4 + 257, 4 + 511};
    struct geometry g = shape(LAYERS, HEADS, KV_HEADS, D, D / 2);

    for (size_t i = 0; i < sizeof(lengths) / sizeof(*lengths); i++) {
        size_t n = lengths[i];
        double key[D / 2], want[D / 2] = {0};
        struct stats_options o;
        struct stats *s = NULL;
        struct shape_data x;
        struct errmsg e = {""};

        stats_options_default(&o, &g);
        o.n_samples = 4;
        o.want_attention = false;
        CU_ASSERT_EQUAL_FATAL(stats_new(&o, &s, &e), 0);
        shape_data_init(&x, &g, n);
        shape_data_draw(&x, &g);
        for (uint32_t l = 0; l < LAYERS; l++) {
            CU_ASSERT_EQUAL_FATAL(stats_add_layer(s, 0, 0, l, n, NULL, x.k, x.v, NULL, &e), 0);
        }
        for (size_t t = 4; t < n; t++) /* without the sinks */
            for (size_t p = 0; p < D / 2; p++) {
                size_t c = p < 8 ? p : p + 8;
                double lo = x.k[t * WIDTH + c], hi = x.k[t * WIDTH + c + 8];

                want[p] += (lo * lo + hi * hi) / (double) (n - 4);
            }
        plane_energy(s, 0, 0, key, NULL);
        for (size_t p = 0; p < D / 2; p++)
            CU_ASSERT_DOUBLE_EQUAL(key[p], want[p], 1e-5 * want[p]);
        shape_data_deinit(&x);
        (void) stats_free(s);
    }
}

/* Sinks are the first tokens of a document, not of each window of it. */
static void test_only_the_first_window_has_sinks(void)
{
    struct stats *s = make_stats();
    struct geometry g = s->o.geometry;
    struct shape_data x;
    struct errmsg e = {""};

    shape_data_init(&x, &g, 40);
    shape_data_draw(&x, &g);
    for (uint32_t l = 0; l < LAYERS; l++)
        CU_ASSERT_EQUAL(stats_add_layer(s, 0, 0, l, 40, NULL, x.k, x.v, NULL, &e), 0);
    CU_ASSERT_EQUAL(stats_tokens(s), 36);
    for (uint32_t l = 0; l < LAYERS; l++) {

        CU_ASSERT_EQUAL(stats_add_layer(s, 0, 40, l, 20, NULL, x.k, x.v, NULL, &e), 0);
    }
    CU_ASSERT_EQUAL(stats_tokens(s), 36 + 20);
    shape_data_deinit(&x);
    (void) stats_free(s);
}

/* The largest number of texts: merging reaches it, and not more. */
static void test_merge_to_the_largest_number_of_texts(void)
{
    struct stats *a = make_stats(), *b = make_stats(), *read_back = NULL;
    struct errmsg e = {""};
    char path[64];

    for (uint32_t i = 0; i < STATS_SOURCES_MAX; i++) {
        struct stats_source source = {.tokens = 1};

        memcpy(source.digest, &i, sizeof(i));
        CU_ASSERT_EQUAL_FATAL(stats_add_source(i % 2 ? a : b, &source, &e), 0);
    }
    CU_ASSERT_EQUAL(stats_merge(a, b, &e), 0);
    CU_ASSERT_EQUAL(a->n_sources, STATS_SOURCES_MAX);
    CU_ASSERT_NOT_EQUAL(stats_merge(a, b, &e), 0);

    /* their file is read back */
    (void) snprintf(path, sizeof(path), "/tmp/kvcobra-test-%ld.stats", (long) getpid());
    CU_ASSERT_EQUAL_FATAL(stats_save(a, path, &e), 0);
    CU_ASSERT_EQUAL_FATAL(stats_load(path, &read_back, &e), 0);
    CU_ASSERT_EQUAL(read_back->n_sources, STATS_SOURCES_MAX);
    (void) unlink(path);
    (void) stats_free(read_back);
    (void) stats_free(a);
    (void) stats_free(b);
}

/* A measurement without distortion is one; a negative or infinite one is not. */
static void test_depth_measurements(void)
{
    struct stats *s = make_stats();
    double kl = 7, distortion = 7;

    CU_ASSERT_EQUAL(stats_set_depth(s, 0, SIDE_K, 0.5, 0), 0);
    CU_ASSERT_EQUAL(stats_get_depth(s, 0, SIDE_K, &kl, &distortion), 0);
    CU_ASSERT(kl == 0.5 && distortion == 0);
    CU_ASSERT_EQUAL(stats_set_depth(s, 0, SIDE_K, 0.5, -1e-9), -EINVAL);
    CU_ASSERT_EQUAL(stats_set_depth(s, 0, SIDE_K, 0.5, INFINITY), -EINVAL);
    CU_ASSERT_EQUAL(stats_set_depth(s, LAYERS, SIDE_K, 0.5, 1), -EINVAL);
    CU_ASSERT_EQUAL(stats_get_depth(s, 0, SIDE_V, &kl, &distortion), -ENODATA);
    (void) stats_free(s);
}

/* Merging gives the mean by tokens, and what was measured alone stays. */
static void test_kl_per_distortion(void)
{
    static const double refused[] = {-1, -1e-300, NAN, INFINITY, 1.1 * STATS_KL_MAX};
    struct stats *a = make_stats(), *b = make_stats();
    struct errmsg e = {""};

    CU_ASSERT_EQUAL(stats_kl_per_distortion(a), 0);
    for (size_t i = 0; i < sizeof(refused) / sizeof(*refused); i++)
        CU_ASSERT_EQUAL(stats_set_kl_per_distortion(a, refused[i], &e), -EINVAL);
    CU_ASSERT_EQUAL(stats_kl_per_distortion(a), 0);
    CU_ASSERT_EQUAL(stats_set_kl_per_distortion(a, -0.0, &e), 0);
    CU_ASSERT_FALSE(signbit(stats_kl_per_distortion(a)));
    CU_ASSERT_EQUAL(stats_set_kl_per_distortion(b, 0.004, &e), 0);
    a->n_tokens = 30;
    b->n_tokens = 10;
    CU_ASSERT_EQUAL(stats_merge(a, b, &e), 0);
    CU_ASSERT_EQUAL(stats_kl_per_distortion(a), 0.004);
    CU_ASSERT_EQUAL(stats_set_kl_per_distortion(a, 0.002, &e), 0);
    CU_ASSERT_EQUAL(stats_merge(a, b, &e), 0); /* 40 and 10 tokens */
    CU_ASSERT_DOUBLE_EQUAL(stats_kl_per_distortion(a), 0.0024, 1e-12);
    (void) stats_free(a);
    (void) stats_free(b);
}

/* It is kept in the file; a file with another number than stats_set_kl_per_distortion() takes is refused. */
static void test_kl_per_distortion_in_a_file(void)
{
    static const double refused[] = {-1, -0.0, NAN, INFINITY, 1.1 * STATS_KL_MAX};
    struct stats *s = make_stats(), *back = NULL;
    struct errmsg e = {""};
    uint8_t *bytes, digest[DIGEST_BYTES];
    void *read_bytes;
    char path[64];
    size_t n;

    (void) snprintf(path, sizeof(path), "/tmp/kvcobra-test-%ld.stats", (long) getpid());
    CU_ASSERT_EQUAL(stats_set_kl_per_distortion(s, 0.00309, &e), 0);
    CU_ASSERT_EQUAL_FATAL(stats_save(s, path, &e), 0);
    CU_ASSERT_EQUAL_FATAL(stream_file_read(path, 1 << 20, &read_bytes, &n, &e), 0);
    bytes = read_bytes;
    CU_ASSERT_EQUAL_FATAL(stats_parse(bytes, n, &back, &e), 0);
    CU_ASSERT_EQUAL(stats_kl_per_distortion(back), 0.00309);
    CU_ASSERT_EQUAL(stats_set_kl_per_distortion(back, 1, &e), 0); /* which has another digest */
    CU_ASSERT_EQUAL(stats_digest(back, digest, &e), 0);
    CU_ASSERT_NOT_EQUAL(memcmp(digest, bytes + n - DIGEST_BYTES, DIGEST_BYTES), 0);
    back = stats_free(back);
    for (size_t i = 0; i < sizeof(refused) / sizeof(*refused); i++) {
        memcpy(bytes + offsetof(struct stats_header, kl_per_distortion), &refused[i], sizeof(refused[i]));
        (void) crypto_hash_sha256(bytes + n - DIGEST_BYTES, bytes, n - DIGEST_BYTES);
        CU_ASSERT_EQUAL(stats_parse(bytes, n, &back, &e), -EBADMSG);
        CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "per distortion"));
    }
    (void) unlink(path);
    free(bytes);
    (void) stats_free(s);
}

/* 2^48 tokens, also of two statistics together. */
static void test_tokens(void)
{
    struct stats *a = make_stats(), *b = make_stats();
    struct errmsg e = {""};

    a->n_tokens = STATS_TOKENS_MAX - 5;
    b->n_tokens = 6;
    CU_ASSERT_EQUAL(stats_merge(a, b, &e), -EINVAL);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "more than 2^48 tokens"));
    b->n_tokens = 5;
    CU_ASSERT_EQUAL(stats_merge(a, b, &e), 0);
    CU_ASSERT_EQUAL(stats_tokens(a), STATS_TOKENS_MAX);
    (void) stats_free(a);
    (void) stats_free(b);
}

const char test_suite[] = "stats_limits";
const struct test_case test_cases[] = {
    TEST(test_plane_energy_of_a_partial_rotation),
    TEST(test_only_the_first_window_has_sinks),
    TEST(test_merge_to_the_largest_number_of_texts),
    TEST(test_depth_measurements),
    TEST(test_kl_per_distortion),
    TEST(test_kl_per_distortion_in_a_file),
    TEST(test_tokens),
    TEST_END,
};
