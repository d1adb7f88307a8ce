/* Names of tenants: which the configuration may give, and which are those of single users. */
#include "tests/lib/test.h"

#include <errno.h>
#include <string.h>

#include "base/errmsg.h"
#include "daemon/config/account_name.h"
#include "daemon/config/limits.h"

const char test_suite[] = "account_name";

static void test_names(void)
{
    static const char *const good[] = {"a", "inference", "Team.A_1-x", "uid", "uidx-1", "u-7"};
    static const char *const bad[] = {"",      "1000", "-a",       "a b", "a@gpu0", "a/b",   "a\nb",
                                      ".conf", "_a",   "\xc3\xa4", "a\"", "uid-7",  "uid-x", "uid-"};
    char name[ACCOUNT_NAME_BYTES + 1];
    struct errmsg e;

    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++)
        CU_ASSERT_EQUAL(account_name_check(good[i], NULL), 0);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        errmsg_clear(&e);
        CU_ASSERT_EQUAL(account_name_check(bad[i], &e), -EINVAL);
        CU_ASSERT(e.text[0] != '\0');
    }

    memset(name, 'a', sizeof(name));
    name[ACCOUNT_NAME_BYTES - 1] = '\0';
    CU_ASSERT_EQUAL(account_name_check(name, NULL), 0);
    name[ACCOUNT_NAME_BYTES - 1] = 'a';
    name[ACCOUNT_NAME_BYTES] = '\0';
    CU_ASSERT_EQUAL(account_name_check(name, NULL), -EINVAL);
}

static void test_uids(void)
{
    static const char *const bad[] = {"uid-",
                                      "uid-01",
                                      "uid--1",
                                      "uid-1 ",
                                      "uid- 1",
                                      "uid-1x",
                                      "Uid-1",
                                      "1",
                                      "uid1",
                                      "uid-+1",
                                      "uid-4294967295",
                                      "uid-4294967296",
                                      "uid-1@",
                                      "",
                                      "uid",
                                      "uid-18446744073709551617"};
    uint32_t uid = 5;

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        CU_ASSERT_FALSE(account_name_uid(bad[i], &uid));
    CU_ASSERT_EQUAL(uid, 5);
    CU_ASSERT(account_name_uid("uid-0", &uid) && uid == 0);
    CU_ASSERT(account_name_uid("uid-1000", &uid) && uid == 1000);
    CU_ASSERT(account_name_uid("uid-4294967294", &uid) && uid == UINT32_MAX - 1);
}

const struct test_case test_cases[] = {TEST(test_names), TEST(test_uids), TEST_END};
