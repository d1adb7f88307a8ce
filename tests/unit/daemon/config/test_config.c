/* Sizes as people write them, and configurations that config_check() refuses with the name of an option. */
#include "tests/lib/test.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/errmsg.h"
#include "daemon/config/config.h"
#include "daemon/config/config_keys.h"
#include "daemon/config/settings.h"

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

/* Values that config_set() did not check: each numeric setting is one above its range. */
static void test_ranges(void)
{
    unsigned n = 0;

    for (size_t i = 0; i < settings_n; i++) {
        const struct setting *k = &settings[i];
        struct errmsg e = {""};
        char option[64];
        struct config c;

        config_init(&c);
        if (!settings_has_range(k) || k->kind != SETTING_U32 || k->max == UINT32_MAX)
            continue;
        *(uint32_t *) ((char *) &c + k->offset) = (uint32_t) k->max + 1;
        (void) snprintf(option, sizeof(option), "--%s %" PRIu64 " is not between", k->name, k->max + 1);
        CU_ASSERT_EQUAL(config_check(&c, &e), -EINVAL);
        if (strcmp(k->name, "tenants") != 0) /* more tenants than the pool has extents is reported first */
            CU_ASSERT_PTR_NOT_NULL(strstr(e.text, option));
        n++;
    }
    CU_ASSERT(n > 10);
}

static void refuses(const struct config *c, const char *option)
{
    struct errmsg e = {""};

    CU_ASSERT_EQUAL(config_check(c, &e), -EINVAL);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, option));
}

/* The settings of a GPU's pool are checked like those of the host's pool, under their own names. */
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
    c = good; /* extents as small as spans: 2^17 and twice 2^16 are the maximum of a journal */
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

/* Keys that end with kvcobrad would make the disk useless. */
static void test_disk_tier(void)
{
    struct config c;
    struct errmsg e;

    config_init(&c);
    c.disk_dir = "/disk";
    refuses(&c, "--key-file");
    c.key_file = "keys";
    CU_ASSERT_EQUAL(config_check(&c, &e), 0);
    c.key_file = NULL;
    c.state_dir = "/state";
    CU_ASSERT_EQUAL(config_check(&c, &e), 0);
    c.state_dir = "/disk";
    refuses(&c, "same folder");
}

/* A secret that the host made is no secret of a fleet, and only named tenants leave the host. */
static void test_cluster_tier(void)
{
    static const char *const bad[] = {"", ",", "uid-1,", "uid-1,,uid-2", "alice", "uid-x", "uid-1 "};
    struct config c;
    struct errmsg e;

    config_init(&c);
    c.state_dir = "/state";
    c.cluster_socket = "/run/c";
    c.cluster_tenants = "uid-1";
    refuses(&c, "needs --key-file");
    c.key_file = "keys";
    CU_ASSERT_EQUAL(config_check(&c, &e), 0);
    c.cluster_tenants = NULL;
    refuses(&c, "needs --cluster-tenants");
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        c.cluster_tenants = bad[i];
        refuses(&c, "--cluster-tenants");
    }
    c.cluster_tenants = "uid-1,uid-23";
    CU_ASSERT_EQUAL(config_check(&c, &e), 0);
    CU_ASSERT(config_has_cluster_tenant(&c, "uid-1") && config_has_cluster_tenant(&c, "uid-23"));
    CU_ASSERT(!config_has_cluster_tenant(&c, "uid-2") && !config_has_cluster_tenant(&c, "uid-1,uid-23"));
    CU_ASSERT(!config_has_cluster_tenant(&c, ""));
    c.cluster_socket = c.socket_path;
    refuses(&c, "another socket");
    c.cluster_socket = NULL;
    c.cluster_tenants = NULL;
    CU_ASSERT(!config_has_cluster_tenant(&c, "uid-1"));
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
    c.arenas_bytes = c.arena_bytes - 1;
    refuses(&c, "--arenas-bytes");
    c.arenas_bytes++;
    CU_ASSERT_EQUAL(config_check(&c, &e), 0);
    c = good;
    c.quota_bytes = c.arena_bytes;
    refuses(&c, "--quota-bytes");
    c.quota_bytes++;
    CU_ASSERT_EQUAL(config_check(&c, &e), 0);
    c = good;
    c.lease_ms = 99;
    refuses(&c, "--lease-ms");
}

/* A pool has 64 extents or more, of whole spans that fill it exactly, unless it has fewer spans. */
static void test_extents_of_small_pools(void)
{
    static const struct {
        uint64_t pool_mib, span_kib, extent_kib;
    } cases[] = {
        {256, 2048, 4096}, {1024, 2048, 16384}, {4096, 2048, 65536},  {8192, 2048, 65536},
        {64, 2048, 2048},  {302, 2048, 2048},   {300, 2048, 4096},    {4094, 2048, 47104},
        {2, 2048, 2048},   {64, 64, 1024},      {1 << 20, 64, 65536},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct config c;
        struct errmsg e;

        config_init(&c);
        c.pool_bytes = cases[i].pool_mib << 20;
        c.span_bytes = cases[i].span_kib << 10;
        c.extent_bytes = 0;
        config_fill_derived(&c);
        CU_ASSERT_EQUAL(c.extent_bytes, cases[i].extent_kib << 10);
        CU_ASSERT(c.extent_bytes % c.span_bytes == 0 && c.pool_bytes % c.extent_bytes == 0);
        CU_ASSERT_EQUAL(config_has_few_extents(&c, &e), c.pool_bytes / c.extent_bytes < 16);
        c.tenants_max = 1;
        CU_ASSERT_FALSE(config_has_few_extents(&c, &e)); /* enough for one */
        config_deinit(&c);
    }
}

static int set(struct config *c, const char *section, const char *key, const char *value)
{
    return tenant_rules_set(&c->tenants, section, key, value, NULL);
}

/* 64 extents: those of the sections, and of all tenants that may come, must fit. */
static void test_tenants(void)
{
    struct config c;
    struct errmsg e;

    config_init(&c);
    c.tenants_max = 4;
    CU_ASSERT_EQUAL(set(&c, "tenant a", "guarantee-bytes", "1984M"), 0); /* 31 */
    refuses(&c, "[tenant a] has neither users nor groups");
    CU_ASSERT_EQUAL(set(&c, "tenant a", "users", "1"), 0);
    CU_ASSERT_EQUAL(set(&c, "tenant b", "groups", "1"), 0);
    CU_ASSERT_EQUAL(set(&c, "tenant b", "guarantee-bytes", "0"), 0);
    CU_ASSERT_EQUAL(config_check(&c, &e), 0);
    c.guarantee_bytes = 16 * c.extent_bytes; /* of two others: b has none */
    CU_ASSERT_EQUAL(config_check(&c, &e), 0);
    c.guarantee_bytes++;
    refuses(&c, "--guarantee-bytes");
    c.guarantee_bytes = 0;
    CU_ASSERT_EQUAL(set(&c, "tenant c", "users", "2"), 0);
    CU_ASSERT_EQUAL(set(&c, "tenant c", "guarantee-bytes", "2113929216"), 0); /* 31.5: 32 */
    CU_ASSERT_EQUAL(config_check(&c, &e), 0);
    CU_ASSERT_EQUAL(set(&c, "tenant d", "users", "3"), 0);
    CU_ASSERT_EQUAL(set(&c, "tenant d", "guarantee-bytes", "1"), 0);
    CU_ASSERT_EQUAL(config_check(&c, &e), 0); /* 64 */
    c.tenants_max = 3;
    refuses(&c, "the file has 4 tenants");
    c.tenants_max = 5;
    CU_ASSERT_EQUAL(set(&c, "tenant e", "users", "4"), 0);
    CU_ASSERT_EQUAL(set(&c, "tenant e", "guarantee-bytes", "1"), 0);
    refuses(&c, "are 65 extents");
    config_deinit(&c);

    config_init(&c);
    CU_ASSERT_EQUAL(set(&c, "tenant a", "users", "1"), 0);
    CU_ASSERT_EQUAL(set(&c, "tenant a", "quota-bytes", "64M"), 0);
    refuses(&c, "[tenant a]: its quota-bytes");
    config_deinit(&c);

    config_init(&c);
    CU_ASSERT_EQUAL(set(&c, "tenant a", "users", "1"), 0);
    CU_ASSERT_EQUAL(set(&c, "tenant a", "gpu-quota-bytes", "64M"), 0);
    CU_ASSERT_EQUAL(config_check(&c, &e), 0);
    CU_ASSERT_EQUAL(set(&c, "tenant a", "gpu-guarantee-bytes", "65M"), 0);
    refuses(&c, "gpu-guarantee-bytes");
    config_deinit(&c);
}

/* Names are resolved with the configuration, not when a client connects. */
static void test_operator_group(void)
{
    struct errmsg e = {""};
    struct config c;

    config_init(&c);
    CU_ASSERT_EQUAL(config_resolve(&c, &e), 0);
    CU_ASSERT_EQUAL(c.operator_gid, (gid_t) -1);
    c.operator_group = "root";
    CU_ASSERT_EQUAL(config_resolve(&c, &e), 0);
    CU_ASSERT_EQUAL(c.operator_gid, 0);
    c.operator_group = "4711";
    CU_ASSERT_EQUAL(config_resolve(&c, &e), 0);
    CU_ASSERT_EQUAL(c.operator_gid, 4711);
    c.operator_group = "no-such-group";
    CU_ASSERT_EQUAL(config_resolve(&c, &e), -EINVAL);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "--operator-group: there is no group \"no-such-group\""));
}

const struct test_case test_cases[] = {
    TEST(test_sizes),
    TEST(test_ranges),
    TEST(test_disk_tier),
    TEST(test_cluster_tier),
    TEST(test_checks),
    TEST(test_gpu_checks),
    TEST(test_tenants),
    TEST(test_operator_group),
    TEST(test_extents_of_small_pools),
    TEST_END,
};
