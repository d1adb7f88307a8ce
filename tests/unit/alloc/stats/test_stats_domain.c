/* Sources that stay apart: their moments, their number, merging, seeds, the file, bad sources. */
#include <errno.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "alloc/stats/stats_format.h"
#include "alloc/stats/stats_internal.h"
#include "tests/unit/alloc/shapes.h"

enum { D = 32, WINDOW = 40, SINKS = 4 };

static struct stats *make_stats(uint64_t seed, uint32_t n_samples)
{
    struct geometry g = shape(1, 1, 1, D, D);
    struct stats_options o;
    struct stats *s = NULL;
    struct errmsg e = {""};

    stats_options_default(&o, &g);
    o.n_samples = n_samples;
    o.want_attention = false;
    o.seed = seed;
    CU_ASSERT_EQUAL_FATAL(stats_new(&o, &s, &e), 0);
    return s;
}

static void begin(struct stats *s, uint8_t source)
{
    const uint8_t digest[DIGEST_BYTES] = {source};
    struct errmsg e = {""};

    CU_ASSERT_EQUAL(stats_begin_source(s, SOURCE_TEXT, digest, &e), 0);
}

/* A window around the mean @centre. */
static void add_window(struct stats *s, uint64_t document, size_t n, float centre)
{
    struct geometry g = s->o.geometry;
    struct errmsg e = {""};
    struct shape_data x;

    shape_data_init(&x, &g, n);
    shape_data_draw(&x, &g);
    for (size_t i = 0; i < n * D; i++) {
        x.k[i] += centre;
        x.v[i] -= centre;
    }
    CU_ASSERT_EQUAL(stats_add_layer(s, document, 0, 0, n, NULL, x.k, x.v, NULL, &e), 0);
    shape_data_deinit(&x);
}

/* Two sources in turn: each has its mean and its tokens, and the sum has those of both. */
static void test_apart(void)
{
    struct stats *s = make_stats(0, 1000);
    struct stats_domain_info info;

    for (uint64_t i = 0; i < 6; i++) {
        begin(s, i % 2 ? 9 : 3);
        add_window(s, i, WINDOW, i % 2 ? 50.0f : -10.0f);
    }
    CU_ASSERT_EQUAL_FATAL(stats_domains(s), 2);
    for (uint32_t i = 0; i < 2; i++) {
        stats_domain_info(s, i, &info);
        CU_ASSERT_EQUAL(info.digest[0], i ? 9 : 3);
        CU_ASSERT_EQUAL(info.n_tokens, 3 * (WINDOW - SINKS));
        CU_ASSERT_EQUAL(info.n_samples, 3 * (WINDOW - SINKS));
        CU_ASSERT(fabs(s->domains[i].mean[0] - (i ? 50 : -10)) < 2);
        CU_ASSERT(s->domains[i].scatter[0] / (double) info.n_tokens < 4);
    }
    CU_ASSERT_DOUBLE_EQUAL(s->mean[0], (s->domains[0].mean[0] + s->domains[1].mean[0]) / 2, 1e-9);
    CU_ASSERT(s->scatter[0] / (double) s->n_tokens > 800); /* 30^2 between the sources */
    (void) stats_free(s);
}

/* Eight sources stay apart; the ninth makes the smallest one the rest, and so do all later ones. */
static void test_too_many(void)
{
    struct stats *s = make_stats(0, 2000);
    size_t n = 0;

    for (uint8_t i = 0; i < 12; i++) {
        begin(s, (uint8_t) (20 - i));
        add_window(s, i, i == 4 ? 20 : WINDOW, (float) i);
    }
    CU_ASSERT_EQUAL_FATAL(stats_domains(s), STATS_DOMAINS_MAX);
    CU_ASSERT_EQUAL(s->domains[7].kind, SOURCE_REST);
    CU_ASSERT_EQUAL(s->domains[7].n_tokens, 20 - SINKS + 4 * (WINDOW - SINKS));
    for (size_t i = 0; i < s->n_held; i++) {
        bool rest = s->ids[i].document == 4 || s->ids[i].document >= 8;

        CU_ASSERT_EQUAL(s->domain_of[i] == 7, rest);
        if (!rest) /* the sample's number is that of its own source */
            CU_ASSERT_EQUAL(s->domains[s->domain_of[i]].digest[0], 20 - s->ids[i].document);
        n += rest;
    }
    CU_ASSERT_EQUAL(n, s->domains[7].n_tokens);
    (void) stats_free(s);
}

/* The same source in two statistics is one; others stay apart. Seeds may differ. */
static void test_merge(void)
{
    struct stats *a = make_stats(1, 60), *b = make_stats(2, 60);
    struct errmsg e = {""};

    begin(a, 5);
    add_window(a, 1, WINDOW, 0);
    begin(b, 5);
    add_window(b, 2, WINDOW, 0);
    begin(b, 4);
    add_window(b, 3, WINDOW, 9);
    CU_ASSERT_EQUAL_FATAL(stats_merge(a, b, &e), 0);
    CU_ASSERT_EQUAL_FATAL(stats_domains(a), 2);
    CU_ASSERT(a->domains[0].digest[0] == 4 && a->domains[0].n_tokens == WINDOW - SINKS);
    CU_ASSERT(a->domains[1].digest[0] == 5 && a->domains[1].n_tokens == 2 * (WINDOW - SINKS));
    CU_ASSERT(a->mixed_seeds);
    for (size_t i = 0; i < a->n_held; i++)
        CU_ASSERT_EQUAL(a->domain_of[i], a->ids[i].document == 3 ? 0 : 1);
    CU_ASSERT_EQUAL(stats_merge(a, b, &e), -EINVAL); /* tokens are in both */
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "was added before"));
    (void) stats_free(a);
    (void) stats_free(b);
}

/* The same token under two seeds has two hashes, and is found all the same. */
static void test_same_token_under_two_seeds(void)
{
    struct stats *a = make_stats(1, 60), *b = make_stats(2, 60);
    struct errmsg e = {""};

    add_window(a, 1, WINDOW, 0);
    add_window(b, 1, WINDOW, 0);
    CU_ASSERT_EQUAL(stats_merge(a, b, &e), -EINVAL);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "of document 1 was added before"));
    CU_ASSERT_EQUAL(stats_tokens(a), WINDOW - SINKS);
    (void) stats_free(a);
    (void) stats_free(b);
}

/* A file keeps sources, their samples and the mark of mixed seeds. */
static void test_file(void)
{
    char path[] = "/tmp/kvc-test-domain-XXXXXX";
    struct stats *s = make_stats(1, 60), *other = make_stats(2, 60), *back = NULL;
    uint8_t want[DIGEST_BYTES], got[DIGEST_BYTES];
    struct errmsg e = {""};
    int fd = mkstemp(path);

    CU_ASSERT_FATAL(fd >= 0);
    (void) close(fd);
    begin(s, 200);
    add_window(s, 1, WINDOW, 0);
    begin(s, 100);
    add_window(s, 2, WINDOW, 5);
    begin(other, 150);
    add_window(other, 3, WINDOW, 7);
    CU_ASSERT_EQUAL(stats_merge(s, other, &e), 0);
    CU_ASSERT_EQUAL_FATAL(stats_save(s, path, &e), 0);
    CU_ASSERT_EQUAL_FATAL(stats_load(path, &back, &e), 0);
    CU_ASSERT_EQUAL(stats_digest(s, want, &e) | stats_digest(back, got, &e), 0);
    CU_ASSERT_EQUAL(memcmp(want, got, sizeof(want)), 0);
    CU_ASSERT_EQUAL_FATAL(stats_domains(back), 3);
    CU_ASSERT(back->mixed_seeds);
    CU_ASSERT_EQUAL(memcmp(back->mean, s->mean, 2 * D * sizeof(double)), 0);
    for (size_t i = 0; i < back->n_held; i++) {
        static const uint8_t digests[] = {0, 200, 100, 150};

        CU_ASSERT_EQUAL(back->domains[back->domain_of[i]].digest[0], digests[back->ids[i].document]);
    }
    (void) unlink(path);
    (void) stats_free(s);
    (void) stats_free(other);
    (void) stats_free(back);
}

/* A vector far outside the first window's deviation is stored with its own precision, and the ones before it
 * stay what they were, up to the precision of the new scale. */
static void test_scale_grows(void)
{
    struct stats *s = make_stats(0, 1000);
    struct geometry g = s->o.geometry;
    struct errmsg e = {""};
    struct shape_data x;
    float *k;

    shape_data_init(&x, &g, WINDOW); /* constant: the deviation is 0 */
    CU_ASSERT_EQUAL(stats_add_layer(s, 0, 0, 0, WINDOW, NULL, x.k, x.v, NULL, &e), 0);
    for (size_t i = 0; i < WINDOW * D; i++)
        x.k[i] = 1e-6f * (float) (i % 17);
    CU_ASSERT_EQUAL(stats_add_layer(s, 1, 0, 0, WINDOW, NULL, x.k, x.v, NULL, &e), 0);
    k = stats_sample_load(s, 0);
    for (size_t i = 0; i < s->n_held * D; i++) {
        size_t t = i / D;
        double want = s->ids[t].document == 1 ? (double) x.k[s->ids[t].position * D + i % D] : 0;

        CU_ASSERT_DOUBLE_EQUAL(k[i], want, 0x1p-10 * want);
    }
    free(k);
    for (size_t i = 0; i < WINDOW * D; i++)
        x.k[i] = (i % 2 ? 3e38f : -3e38f);
    CU_ASSERT_EQUAL(stats_add_layer(s, 2, 0, 0, WINDOW, NULL, x.k, x.v, NULL, &e), 0);
    k = stats_sample_load(s, 0);
    for (size_t i = 0; i < s->n_held * D; i++)
        if (s->ids[i / D].document == 2)
            CU_ASSERT(fabs((double) k[i]) > 2.99e38 && isfinite(k[i]));
    free(k);
    shape_data_deinit(&x);
    (void) stats_free(s);
}

/* A window that is refused leaves no source without tokens, which no reader would accept. */
static void test_refused_window(void)
{
    struct stats *s = make_stats(0, 60), *back = NULL;
    struct geometry g = s->o.geometry;
    char path[] = "/tmp/kvc-test-domain-XXXXXX";
    struct errmsg e = {""};
    struct shape_data x;
    int fd = mkstemp(path);

    CU_ASSERT_FATAL(fd >= 0);
    (void) close(fd);
    begin(s, 1);
    add_window(s, 7, WINDOW, 0);
    begin(s, 2);
    shape_data_init(&x, &g, WINDOW);
    CU_ASSERT_EQUAL(stats_add_layer(s, 7, 0, 0, WINDOW, NULL, x.k, x.v, NULL, &e), -EINVAL);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "was added before"));
    shape_data_deinit(&x);
    CU_ASSERT_EQUAL(stats_domains(s), 1);
    CU_ASSERT_EQUAL_FATAL(stats_save(s, path, &e), 0);
    CU_ASSERT_EQUAL(stats_load(path, &back, &e), 0);
    add_window(s, 8, WINDOW, 0);
    CU_ASSERT_EQUAL_FATAL(stats_domains(s), 2);
    for (size_t i = 0; i < s->n_held; i++)
        CU_ASSERT_EQUAL(s->domain_of[i], s->ids[i].document == 7 ? 0 : 1);
    (void) unlink(path);
    (void) stats_free(s);
    (void) stats_free(back);
}

static void test_refuses(void)
{
    struct stats *s = make_stats(0, 8);
    const uint8_t digest[DIGEST_BYTES] = {1};
    struct errmsg e = {""};

    CU_ASSERT_EQUAL(stats_begin_source(s, SOURCE_REST + 1, digest, &e), -EINVAL);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "unknown kind 4"));
    CU_ASSERT_EQUAL(stats_domains(s), 0);
    add_window(s, 0, SINKS, 0); /* sinks alone make no source */
    CU_ASSERT_EQUAL(stats_domains(s), 0);
    (void) stats_free(s);
}

/* A file of version 2 is refused with a sentence that says how to make a new one. */
static void test_old_version(void)
{
    uint8_t bytes[1024] = STATS_MAGIC;
    struct stats *s = NULL;
    struct errmsg e = {""};

    bytes[8] = 2;
    CU_ASSERT_EQUAL(stats_parse(bytes, sizeof(bytes), &s, &e), -EBADMSG);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "has version 2"));
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "kvcobra calibrate MODEL --text FILE -o STATS"));
    CU_ASSERT_PTR_NULL(s);
}

const struct test_case test_cases[] = {
    TEST(test_apart),          TEST(test_too_many),
    TEST(test_merge),          TEST(test_same_token_under_two_seeds),
    TEST(test_file),           TEST(test_scale_grows),
    TEST(test_refused_window), TEST(test_refuses),
    TEST(test_old_version),    TEST_END,
};
const char test_suite[] = "stats_domain";
