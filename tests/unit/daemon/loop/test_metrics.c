/* Counting requests, the text format to the letter, hostile label values, addresses. tests/e2e/cli/metrics.sh
 * parses a page. */
#include "daemon/loop/metrics.h"

#include <arpa/inet.h>
#include <errno.h>
#include <math.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/errmsg.h"
#include "daemon/config/loopback.h"
#include "daemon/operator/metrics_http.h"
#include "daemon/operator/metrics_text.h"
#include "tests/lib/test.h"

const char test_suite[] = "metrics";

/* ---- counting ---- */

static void test_buckets(void)
{
    static struct metrics m;

    metrics_note_request(&m, 33, 0, 0);
    metrics_note_request(&m, 33, 10000, 0); /* a bound belongs to its bucket: "le" */
    metrics_note_request(&m, 33, 10001, -EDQUOT);
    metrics_note_request(&m, 33, 1000000000, 0);
    metrics_note_request(&m, 33, 1000000001, -ENOSPC);
    metrics_note_request(&m, 33, UINT64_C(1) << 40, -ENOSPC);
    CU_ASSERT_EQUAL(m.requests[33].counts[0], 2);
    CU_ASSERT_EQUAL(m.requests[33].counts[1], 1);
    CU_ASSERT_EQUAL(m.requests[33].counts[METRICS_BUCKETS - 2], 1);
    CU_ASSERT_EQUAL(m.requests[33].counts[METRICS_BUCKETS - 1], 2);
    CU_ASSERT_EQUAL(m.requests[33].sum_ns, 10000 + 10001 + 2000000001 + (UINT64_C(1) << 40));
    CU_ASSERT_EQUAL(m.errors[EDQUOT], 1);
    CU_ASSERT_EQUAL(m.errors[ENOSPC], 2);
    CU_ASSERT_EQUAL(m.errors[0], 0);
}

/* Types and errnos that do not exist count somewhere, and nowhere outside. */
static void test_bounds(void)
{
    static struct metrics m;

    metrics_note_request(&m, METRICS_TYPES_MAX - 1, 1, -(METRICS_ERRNO_MAX - 1));
    metrics_note_request(&m, METRICS_TYPES_MAX, 1, -METRICS_ERRNO_MAX);
    metrics_note_request(&m, UINT32_MAX, 1, INT32_MIN + 1);
    CU_ASSERT_EQUAL(m.requests[METRICS_TYPES_MAX - 1].counts[0], 1);
    CU_ASSERT_EQUAL(m.requests[0].counts[0], 2);
    CU_ASSERT_EQUAL(m.errors[METRICS_ERRNO_MAX - 1], 3);
}

/* ---- text ---- */

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

/* Whatever a name holds, a line stays one line and valid UTF-8. */
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

/* ---- where ---- */

static void test_addresses(void)
{
    static const struct {
        const char *text;
        int family; /* 0: refused */
    } cases[] = {
        {"127.0.0.1:9110", AF_INET},
        {"127.255.255.254:65535", AF_INET},
        {"[::1]:1", AF_INET6},
        {"0.0.0.0:9110", 0},
        {"128.0.0.1:9110", 0},
        {"126.255.255.255:1", 0},
        {"192.168.1.1:80", 0},
        {"[::]:9110", 0},
        {"[::ffff:127.0.0.1]:9110", 0},
        {"[fe80::1]:9110", 0},
        {"::1:9110", 0},
        {"127.0.0.1", 0},
        {"127.0.0.1:", 0},
        {"127.0.0.1:0", 0},
        {"127.0.0.1:65536", 0},
        {"127.0.0.1:80x", 0},
        {"127.0.0.1:-1", 0},
        {"127.0.0.1: 80", 0},
        {":9110", 0},
        {"", 0},
        {"localhost:9110", 0},
        {"[127.0.0.1]:9110", 0},
        {"[]:1", 0},
        {"1111111111111111111111111111111111111111111111111111111111111111111111:1", 0},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct sockaddr_storage a = {.ss_family = 99};
        socklen_t bytes = 7;
        struct errmsg e = {""};
        int r = loopback_parse(cases[i].text, &a, &bytes, &e);

        if (r != (cases[i].family ? 0 : -EINVAL))
            printf("    %s: %d\n", cases[i].text, r);
        CU_ASSERT_EQUAL(r, cases[i].family ? 0 : -EINVAL);
        CU_ASSERT_EQUAL(a.ss_family, cases[i].family ? cases[i].family : 99);
        CU_ASSERT_EQUAL(e.text[0] == '\0', r == 0);
    }
}

/* Sockets that a supervisor passes: listening, a stream, and not for other machines. */
static void test_passed_sockets(void)
{
    struct sockaddr_in any = {.sin_family = AF_INET}, loop = {.sin_family = AF_INET};
    struct errmsg e = {""};
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    loop.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    CU_ASSERT_FATAL(fd >= 0 && bind(fd, (struct sockaddr *) &any, sizeof(any)) == 0);
    CU_ASSERT_EQUAL(metrics_socket_check(fd, &e), -EINVAL); /* does not listen */
    CU_ASSERT_FATAL(listen(fd, 1) == 0);
    CU_ASSERT_EQUAL(metrics_socket_check(fd, &e), -EINVAL);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "other machines"));
    (void) close(fd);
    CU_ASSERT_EQUAL(metrics_socket_check(fd, &e), -EINVAL);
    fd = socket(AF_INET, SOCK_STREAM, 0);
    CU_ASSERT_FATAL(fd >= 0 && bind(fd, (struct sockaddr *) &loop, sizeof(loop)) == 0 && listen(fd, 1) == 0);
    CU_ASSERT_EQUAL(metrics_socket_check(fd, &e), 0);
    (void) close(fd);
    fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    CU_ASSERT_FATAL(fd >= 0 &&
                    bind(fd, (const struct sockaddr *) &(struct sockaddr_un){.sun_family = AF_UNIX},
                         sizeof(sa_family_t)) == 0 &&
                    listen(fd, 1) == 0);
    CU_ASSERT_EQUAL(metrics_socket_check(fd, &e), -EINVAL);
    (void) close(fd);
}

const struct test_case test_cases[] = {
    TEST(test_buckets),   TEST(test_bounds),         TEST(test_families),
    TEST(test_escapes),   TEST(test_histogram),      TEST(test_too_long),
    TEST(test_addresses), TEST(test_passed_sockets), TEST_END,
};
