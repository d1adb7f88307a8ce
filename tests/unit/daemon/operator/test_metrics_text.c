/* The text format of Prometheus to the letter, hostile label values, the limit of its length. */
#include "daemon/operator/metrics_text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/loop/metrics.h"
#include "tests/lib/test.h"

const char test_suite[] = "metrics_text";

static void check_text(struct metrics_text *t, const char *want)
{
    size_t n = 0;
    char *got = metrics_text_take(t, &n);

    CU_ASSERT_PTR_NOT_NULL_FATAL(got);
    CU_ASSERT_EQUAL(n, strlen(want));
    if (n != strlen(want) || memcmp(got, want, n) != 0) {
        printf("    got:  %.*s\n    want: %s\n", (int) n, got, want);
        CU_FAIL("text differs");
    }
    free(got);
}

static void test_families(void)
{
    struct metrics_text t = {0};

    metrics_family(&t, "kvcobra_pages", "gauge", "Committed pages.");
    metrics_sample(&t, "kvcobra_pages", NULL, UINT64_MAX);
    metrics_sample(&t, "kvcobra_pages",
                   (const struct metric_label[]){{"tenant", "uid-7"}, {"table", "ab"}, {NULL, NULL}}, 3);
    metrics_sample_real(&t, "kvcobra_pages", NULL, 0.125);
    metrics_sample_real(&t, "kvcobra_pages", NULL, -INFINITY);
    metrics_sample_real(&t, "kvcobra_pages", NULL, NAN);
    check_text(&t, "# HELP kvcobra_pages Committed pages.\n# TYPE kvcobra_pages gauge\n"
                   "kvcobra_pages 18446744073709551615\nkvcobra_pages{tenant=\"uid-7\",table=\"ab\"} 3\n"
                   "kvcobra_pages 0.125\nkvcobra_pages -Inf\nkvcobra_pages NaN\n");
}

/* A sample is one line of valid UTF-8 for every label value. */
static void test_escapes(void)
{
    static const struct {
        const char *name, *want;
    } cases[] = {
        {"plain", "plain"},
        {"", ""},
        {"a\"b", "a\\\"b"},
        {"a\\b", "a\\\\b"},
        {"a\nb", "a\\nb"},
        {"a\"} 1\nkvcobra_pages 2", "a\\\"} 1\\nkvcobra_pages 2"},
        {"gr\xc3\xbc\xc3\x9f", "gr\xc3\xbc\xc3\x9f"},
        {"\xff", "\xef\xbf\xbd"},
        {"\xc3", "\xef\xbf\xbd"},
        {"\xc3(", "\xef\xbf\xbd("},
        {"\xc0\xaf", "\xef\xbf\xbd\xef\xbf\xbd"},
        {"\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
        {"\xf0\x9f\x90\x8d", "\xf0\x9f\x90\x8d"},
        {"\xf0\x9f\x90", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
        {"\xf4\x90\x80\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct metrics_text t = {0};
        char want[128];

        (void) snprintf(want, sizeof(want), "x{l=\"%s\"} 1\n", cases[i].want);
        metrics_sample(&t, "x", (const struct metric_label[]){{"l", cases[i].name}, {NULL, NULL}}, 1);
        check_text(&t, want);
    }
}

static void test_histogram(void)
{
    struct metrics_text t = {0};
    struct metrics_latency l = {.counts = {1, 2}, .sum_ns = 1500};

    l.counts[METRICS_BUCKETS - 1] = 4;
    metrics_histogram(&t, "h", (struct metric_label){"m", "lease"}, &l);
    check_text(&t, "h_bucket{m=\"lease\",le=\"1e-05\"} 1\nh_bucket{m=\"lease\",le=\"2.5e-05\"} 3\n"
                   "h_bucket{m=\"lease\",le=\"5e-05\"} 3\nh_bucket{m=\"lease\",le=\"0.0001\"} 3\n"
                   "h_bucket{m=\"lease\",le=\"0.00025\"} 3\nh_bucket{m=\"lease\",le=\"0.0005\"} 3\n"
                   "h_bucket{m=\"lease\",le=\"0.001\"} 3\nh_bucket{m=\"lease\",le=\"0.0025\"} 3\n"
                   "h_bucket{m=\"lease\",le=\"0.005\"} 3\nh_bucket{m=\"lease\",le=\"0.01\"} 3\n"
                   "h_bucket{m=\"lease\",le=\"0.025\"} 3\nh_bucket{m=\"lease\",le=\"0.1\"} 3\n"
                   "h_bucket{m=\"lease\",le=\"1\"} 3\nh_bucket{m=\"lease\",le=\"+Inf\"} 7\n"
                   "h_sum{m=\"lease\"} 1.5e-06\nh_count{m=\"lease\"} 7\n");
}

static void test_too_long(void)
{
    struct metrics_text t = {0};
    size_t n = 7;
    char name[1001] = "";

    memset(name, 'x', sizeof(name) - 1);
    for (size_t i = 0; i < METRICS_TEXT_BYTES_MAX / 1000; i++) /* a line takes a little more than its name */
        metrics_sample(&t, name, NULL, 1);
    CU_ASSERT(t.failed);
    CU_ASSERT_PTR_NULL(metrics_text_take(&t, &n));
    CU_ASSERT_EQUAL(n, 0);
    metrics_sample(&t, "y", NULL, 1);
    check_text(&t, "y 1\n");
}

const struct test_case test_cases[] = {
    TEST(test_families), TEST(test_escapes), TEST(test_histogram), TEST(test_too_long), TEST_END,
};
