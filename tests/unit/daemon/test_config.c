/* Sizes as people write them, and which configurations are refused by name. */
#include "tests/lib/test.h"

#include <errno.h>
#include <string.h>

#include "base/errmsg.h"
#include "daemon/config.h"

const char test_suite[] = "config";

static void test_sizes(void)
{
    static const struct {
        const char *text;
        int r;
        uint64_t value;
    } cases[] = {
        { "0", 0, 0 }, { "65536", 0, 65536 }, { "64K", 0, 65536 }, { "3M", 0, 3145728 }, { "2G", 0, 2147483648 },
        { "1T", 0, 1099511627776 }, { "18446744073709551615", 0, UINT64_MAX },
        { "18446744073709551616", -ERANGE, 7 }, { "17179869184G", -ERANGE, 7 }, { "", -EINVAL, 7 },
        { "-1", -EINVAL, 7 }, { " 1", -EINVAL, 7 }, { "1k", -EINVAL, 7 }, { "1KB", -EINVAL, 7 }, { "x", -EINVAL, 7 },
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint64_t v = 7;

        CU_ASSERT_EQUAL(config_parse_bytes(cases[i].text, &v), cases[i].r);
        CU_ASSERT_EQUAL(v, cases[i].value);
    }
}

static void refuses(const struct config *c, const char *option)
{
    struct errmsg e = { "" };

    CU_ASSERT_EQUAL(config_check(c, &e), -EINVAL);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, option));
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
    c.quota_bytes = c.arena_bytes - 1;
    refuses(&c, "--quota-bytes");
    c.quota_bytes++;
    CU_ASSERT_EQUAL(config_check(&c, &e), 0);
    c = good;
    c.lease_ms = 99;
    refuses(&c, "--lease-ms");
}

const struct test_case test_cases[] = {
    TEST(test_sizes),
    TEST(test_checks),
    TEST_END,
};
