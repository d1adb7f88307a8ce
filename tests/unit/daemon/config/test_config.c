/* Sizes as users write them, and which configurations are refused, with the name of the setting. */
#include "tests/lib/test.h"

#include <errno.h>
#include <unistd.h>
#include <stdlib.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/errmsg.h"
#include "daemon/config/config.h"
#include "daemon/config/config_keys.h"
#include "daemon/loop/log.h"

const char test_suite[] = "config";

static void test_sizes(void)
{
    static const struct {
        const char *text;
        int r;
        uint64_t value;
    } cases[] = {
        {"0", 0, 0},
        {"65536", 0, 65536},
        {"64K", 0, 65536},
        {"3M", 0, 3145728},
        {"2G", 0, 2147483648},
        {"1T", 0, 1099511627776},
        {"18446744073709551615", 0, UINT64_MAX},
        {"18446744073709551616", -ERANGE, 7},
        {"17179869184G", -ERANGE, 7},
        {"", -EINVAL, 7},
        {"-1", -EINVAL, 7},
        {" 1", -EINVAL, 7},
        {"1k", -EINVAL, 7},
        {"1KB", -EINVAL, 7},
        {"x", -EINVAL, 7},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint64_t v = 7;

        CU_ASSERT_EQUAL(config_parse_bytes(cases[i].text, &v), cases[i].r);
        CU_ASSERT_EQUAL(v, cases[i].value);
    }
}

/* Every counted setting at its limits and one beyond. */
static void test_limits_of_settings(void)
{
    static const struct {
        const char *name;
        uint64_t min, max;
    } cases[] = {
        {"log-level", 0, 7},
        {"lendable", 0, 100},
        {"guarantee-bytes", 0, UINT64_C(1) << 50},
        {"ghosts", 16, 1u << 24},
        {"lease-ms", 100, 86400000},
        {"handshake-ms", 100, 86400000},
        {"work-threads", 1, 64},
        {"work-queue", 1, 65536},
        {"work-inline-bytes", 0, UINT64_C(1) << 30},
        {"connections", 1, 1u << 20},
        {"connections-per-uid", 1, 1u << 20},
        {"sessions-per-tenant", 1, 1u << 20},
        {"tenants", 1, 1u << 16},
        {"models-per-session", 1, 1u << 16},
        {"leases-per-session", 1, 1u << 20},
        {"reservations-per-session", 1, 1u << 24},
        {"tables", 1, 1u << 16},
        {"gpu-guarantee-bytes", 0, UINT64_C(1) << 50},
        {"gpu-spare-extents", 0, 16},
        {"gpu-reuse-ms", 0, 86400000},
        {"lent-extents-per-session", 1, 1u << 16},
    };
    struct config c;

    config_init(&c);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const uint64_t good[] = {cases[i].min, cases[i].min + 1, cases[i].max - 1, cases[i].max};
        const uint64_t bad[] = {cases[i].max + 1,
                                cases[i].min - 1}; /* the second one wraps where 0 is allowed */
        struct errmsg e;
        char text[32];

        for (size_t k = 0; k < 4; k++) {
            (void) snprintf(text, sizeof(text), "%" PRIu64, good[k]);
            CU_ASSERT_EQUAL(config_set(&c, cases[i].name, text, &e), 0);
        }
        for (size_t k = 0; k < 2; k++) {
            (void) snprintf(text, sizeof(text), "%" PRIu64, bad[k]);
            CU_ASSERT_EQUAL(config_set(&c, cases[i].name, text, &e), -EINVAL);
            CU_ASSERT_PTR_NOT_NULL(strstr(e.text, cases[i].name));
        }
    }
    config_deinit(&c);
}

static void refuses(const struct config *c, const char *option)
{
    struct errmsg e = {""};

    CU_ASSERT_EQUAL(config_check(c, &e), -EINVAL);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, option));
}

/* A pool of a GPU is checked like the host's, under its own names. */
static void test_gpu_checks(void)
{
    static const char two[] =
        "GPU-00000000-0000-0000-0000-000000000001,GPU-00000000-0000-0000-0000-000000000002";
    struct config good, c;
    struct errmsg e;

    config_init(&good);
    c = good;
    c.gpu = "first";
    CU_ASSERT_EQUAL(config_check(&c, &e), 0);
    c.mover_path = NULL;
    refuses(&c, "--mover");
    c.gpu = NULL;
    CU_ASSERT_EQUAL(config_check(&c, &e), 0);
    c = good;
    c.gpu = "the blue one";
    refuses(&c, "--gpu: \"the blue one\"");
    c = good;
    c.gpu_extent_bytes += 4096;
    refuses(&c, "--gpu-extent-bytes");
    c = good;
    c.gpu = "first";
    CU_ASSERT_EQUAL(config_set(&c, "gpu-lend", "maybe", &e), -EINVAL);
    CU_ASSERT_FALSE(c.gpu_lend);
    CU_ASSERT_EQUAL(config_set(&c, "gpu-lend", "yes", &e), 0);
    CU_ASSERT_TRUE(c.gpu_lend);
    CU_ASSERT_EQUAL(config_check(&c, &e), 0);
    c.gpu_span_bytes = 1 << 20; /* whole spans, but an odd number of them */
    c.gpu_extent_bytes = 63 << 20;
    c.gpu_pool_bytes = 16 * c.gpu_extent_bytes;
    refuses(&c, "--gpu-lend");
    CU_ASSERT_EQUAL(config_set(&c, "gpu-lend", "no", &e), 0);
    CU_ASSERT_EQUAL(config_check(&c, &e), 0);
    c = good;
    c.gpu_span_bytes = 0;
    refuses(&c, "--gpu-span-bytes");
    c = good;
    c.gpu_pool_bytes += 4096;
    refuses(&c, "--gpu-pool-bytes");
    c = good; /* 16 extents */
    c.tenants_max = 16;
    c.gpu_guarantee_bytes = c.gpu_extent_bytes;
    CU_ASSERT_EQUAL(config_check(&c, &e), 0);
    c.tenants_max = 17;
    refuses(&c, "--gpu-guarantee-bytes");
    c = good; /* extents as small as spans: the journal lists at most 2^17 and twice 2^16 */
    c.extent_bytes = c.span_bytes = c.gpu_extent_bytes = c.gpu_span_bytes = 4096;
    c.pool_bytes = c.quota_bytes = UINT64_C(4096) << 17;
    c.gpu_pool_bytes = UINT64_C(4096) << 16;
    c.gpu = two;
    CU_ASSERT_EQUAL(config_check(&c, &e), 0);
    c.gpu_pool_bytes += 4096;
    refuses(&c, "--gpu-extent-bytes");
    c.gpu = NULL;
    CU_ASSERT_EQUAL(config_check(&c, &e), 0);
}

static void test_checks(void)
{
    struct config good, c;
    struct errmsg e;

    config_init(&good);
    CU_ASSERT_EQUAL(config_check(&good, &e), 0);
    c = good;
    c.socket_path = NULL;
    refuses(&c, "--socket");
    c.listen_fd = 5;
    CU_ASSERT_EQUAL(config_check(&c, &e), 0);
    c = good;
    c.operator_socket_path = c.socket_path;
    refuses(&c, "same path");
    c = good;
    c.pool_bytes = 0;
    refuses(&c, "--pool-bytes");
    c.pool_bytes = c.extent_bytes + 1;
    refuses(&c, "--pool-bytes");
    c = good; /* 64 extents: 32 tenants with two each, 33 do not fit */
    c.tenants_max = 32;
    c.guarantee_bytes = 2 * c.extent_bytes;
    CU_ASSERT_EQUAL(config_check(&c, &e), 0);
    c.guarantee_bytes--;
    CU_ASSERT_EQUAL(config_check(&c, &e), 0);
    c.guarantee_bytes += 2;
    refuses(&c, "--guarantee-bytes");
    c.guarantee_bytes = 2 * c.extent_bytes;
    c.tenants_max = 33;
    refuses(&c, "--guarantee-bytes");
    c = good;
    c.tenants_max = 1;
    c.quota_bytes = c.arena_bytes + c.extent_bytes;
    c.guarantee_bytes = c.quota_bytes;
    CU_ASSERT_EQUAL(config_check(&c, &e), 0);
    c.guarantee_bytes++;
    refuses(&c, "--guarantee-bytes");
    c = good;
    c.extent_bytes += 4096;
    refuses(&c, "--extent-bytes");
    c = good;
    c.span_bytes = 4095;
    refuses(&c, "--span-bytes");
    c = good;
    c.span_bytes *= 2; /* more slots than a number has bits for */
    refuses(&c, "--span-bytes");
    c = good;
    c.arena_bytes = 100;
    refuses(&c, "--arena-bytes");
    c = good;
    c.quota_bytes = c.arena_bytes;
    refuses(&c, "--quota-bytes");
    c.quota_bytes++;
    CU_ASSERT_EQUAL(config_check(&c, &e), 0);
    c = good;
    c.lease_ms = 99;
    refuses(&c, "--lease-ms");
}

static int set(const char *key, const char *value)
{
    struct config c;
    struct errmsg e = {""};
    int r;

    config_init(&c);
    r = config_set(&c, key, value, &e);
    CU_ASSERT(r == 0 || strstr(e.text, key) != NULL); /* the sentence names the setting */
    config_deinit(&c);
    return r;
}

static void test_values_that_are_refused(void)
{
    CU_ASSERT_EQUAL(set("socket-mode", "0777"), 0);
    CU_ASSERT_EQUAL(set("socket-mode", "1000"), -EINVAL);
    CU_ASSERT_EQUAL(set("socket-mode", "8"), -EINVAL);
    CU_ASSERT_EQUAL(set("keep-pool", "maybe"), -EINVAL);
    CU_ASSERT_EQUAL(set("event-backend", "select"), -EINVAL);
    CU_ASSERT_EQUAL(set("quota-bytes", "0"), -EINVAL);
    CU_ASSERT_EQUAL(set("socket", "name"), -EINVAL);
    CU_ASSERT_EQUAL(set("operator-socket", "none"), 0);
    CU_ASSERT_EQUAL(set("nothing", "1"), -ENOENT);
}

static int load_text(const char *text, struct config *c, struct errmsg *e)
{
    char path[] = "/tmp/kvcobra-test-XXXXXX";
    int fd = mkstemp(path), r;

    assert(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t) strlen(text));
    config_init(c);
    r = config_load(c, path, e);
    (void) close(fd);
    (void) unlink(path);
    return r;
}

static void test_file(void)
{
    static const struct {
        const char *text, *says;
    } wrong[] = {
        {"lease-ms = 1\n", "line 1: lease-ms"},
        {"# x\nlease-ms = 500\nlease-ms = 500\n", "line 3: lease-ms is set a second time"},
        {"lease = 5\n", "line 1: there is no setting \"lease\""},
        {"[daemon]\nlease-ms = 500\n", "no sections"},
        {"lease-ms\n", "line 1"},
    };
    struct errmsg e = {""};
    struct config c;

    CU_ASSERT_EQUAL(load_text("# all\npool-bytes = 128M\nsocket = /run/x.sock\n\nlog-level=7\n", &c, &e), 0);
    CU_ASSERT(c.pool_bytes == 128u << 20 && c.log_level == 7 && strcmp(c.socket_path, "/run/x.sock") == 0);
    config_deinit(&c);
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        CU_ASSERT_EQUAL(load_text(wrong[i].text, &c, &e), -EINVAL);
        CU_ASSERT(strstr(e.text, wrong[i].says) != NULL);
        config_deinit(&c);
    }
    config_init(&c);
    CU_ASSERT_EQUAL(config_load(&c, "/nonexistent/kvcobrad.conf", &e), -ENOENT);
    config_deinit(&c);
}

/* Settings that may change are applied; those that need a restart stay. */
static void test_reload(void)
{
    struct config running, fresh;

    log_open(LOG_EMERG);
    config_init(&running);
    config_init(&fresh);
    CU_ASSERT_EQUAL(config_set(&fresh, "lease-ms", "500", NULL), 0);
    CU_ASSERT_EQUAL(config_set(&fresh, "pool-bytes", "1G", NULL), 0);
    CU_ASSERT_EQUAL(config_set(&fresh, "socket", "/run/other.sock", NULL), 0);
    config_reload(&running, &fresh);
    CU_ASSERT_EQUAL(running.lease_ms, 500);
    CU_ASSERT_EQUAL(running.pool_bytes, UINT64_C(4) << 30);
    CU_ASSERT_STRING_EQUAL(running.socket_path, CONFIG_SOCKET_DEFAULT);
    config_deinit(&fresh);
    config_deinit(&running);
}

const struct test_case test_cases[] = {
    TEST(test_sizes),
    TEST(test_limits_of_settings),
    TEST(test_checks),
    TEST(test_gpu_checks),
    TEST(test_values_that_are_refused),
    TEST(test_file),
    TEST(test_reload),
    TEST_END,
};
