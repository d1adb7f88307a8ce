/* Users and groups by name and number. Every Debian has root and daemon. */
#include "tests/lib/test.h"

#include <errno.h>
#include <string.h>

#include "base/errmsg.h"
#include "daemon/config/id_lookup.h"

const char test_suite[] = "id_lookup";

static void test_numbers_and_names(void)
{
    static const char *const unknown[] = {
        "no-such-user", "4294967295", "4294967296", "99999999999", "-1", "+1", "0x10", "1000x", "", "1-2-3"};
    uint32_t id = 7;
    struct errmsg e;

    CU_ASSERT(id_lookup_user("0", &id, &e) == 0 && id == 0);
    CU_ASSERT(id_lookup_user("4294967294", &id, &e) == 0 && id == UINT32_MAX - 1);
    CU_ASSERT(id_lookup_user("daemon", &id, &e) == 0 && id == 1);
    CU_ASSERT(id_lookup_group("root", &id, &e) == 0 && id == 0);
    id = 7;
    for (size_t i = 0; i < sizeof(unknown) / sizeof(unknown[0]); i++) {
        errmsg_clear(&e);
        CU_ASSERT_EQUAL(id_lookup_user(unknown[i], &id, &e), -EINVAL);
        CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "there is no user"));
        CU_ASSERT_EQUAL(id_lookup_group(unknown[i], &id, &e), -EINVAL);
        CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "there is no group"));
    }
    CU_ASSERT_EQUAL(id, 7);
}

static void test_ranges(void)
{
    static const char *const bad[] = {"2-1", "0-4294967295", "1-", "-1", "99999999999-99999999999"};
    uint32_t first = 7, last = 8;
    struct errmsg e;

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        CU_ASSERT_EQUAL(id_lookup_users(bad[i], &first, &last, &e), -EINVAL);
    CU_ASSERT(first == 7 && last == 8);
    CU_ASSERT(id_lookup_users("100000-165535", &first, &last, &e) == 0 && first == 100000 && last == 165535);
    CU_ASSERT(id_lookup_users("5-5", &first, &last, &e) == 0 && first == 5 && last == 5);
    CU_ASSERT(id_lookup_users("daemon", &first, &last, &e) == 0 && first == 1 && last == 1);
    CU_ASSERT(id_lookup_users("0-4294967294", &first, &last, &e) == 0 && last == UINT32_MAX - 1);
}

const struct test_case test_cases[] = {TEST(test_numbers_and_names), TEST(test_ranges), TEST_END};
