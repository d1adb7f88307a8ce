/* Values that are permitted and will hurt: a pool above the machine's memory, arenas above quotas. */
#include "daemon/config/config_warnings.h"

#include <stdio.h>
#include <string.h>

#include "base/errmsg.h"
#include "daemon/config/config.h"
#include "daemon/config/config_keys.h"
#include "tests/lib/test.h"

const char test_suite[] = "config_warnings";

static void collect(void *ctx, const char *event, const char *sentence)
{
    char *all = ctx;

    CU_ASSERT(sentence[0] != '\0');
    (void) strcat(strcat(all, event), " ");
}

/* The events of these settings on a machine with 16 GiB. */
static const char *events(const char *pool, const char *arena)
{
    static char all[256];
    struct config c;

    all[0] = '\0';
    config_init(&c);
    c.extent_bytes = c.quota_bytes = 0;
    CU_ASSERT(config_set(&c, "pool-bytes", pool, NULL) == 0 &&
              config_set(&c, "arena-bytes", arena, NULL) == 0);
    config_fill_derived(&c);
    CU_ASSERT_EQUAL(config_check(&c, NULL), 0);
    config_warnings(&c, UINT64_C(16) << 30, collect, all);
    config_deinit(&c);
    return all;
}

static void test_memory(void)
{
    CU_ASSERT_STRING_EQUAL(events("4G", "64M"), "");
    CU_ASSERT_STRING_EQUAL(events("16G", "64M"), "");
    CU_ASSERT_STRING_EQUAL(events("17G", "64M"), "pool-exceeds-memory ");
}

static void test_arenas(void)
{
    CU_ASSERT_STRING_EQUAL(events("512M", "64M"), "");
    CU_ASSERT_STRING_EQUAL(events("320M", "64M"), ""); /* the fifth arena would leave no room for a page */
    CU_ASSERT_STRING_EQUAL(events("256M", "64M"), "few-clients ");
    CU_ASSERT_STRING_EQUAL(events("512M", "1G"), "arena-exceeds-pool ");
    CU_ASSERT_STRING_EQUAL(events("4M", "1M"), "few-extents few-clients ");
}

static void test_unknown_memory(void)
{
    char all[64] = "";
    struct config c;

    config_init(&c);
    c.pool_bytes = UINT64_C(1) << 50;
    config_warnings(&c, 0, collect, all);
    CU_ASSERT_STRING_EQUAL(all, "");
    CU_ASSERT_EQUAL(config_clients_per_tenant(&c), 63);
    config_deinit(&c);
}

const struct test_case test_cases[] = {TEST(test_memory), TEST(test_arenas), TEST(test_unknown_memory),
                                       TEST_END};
