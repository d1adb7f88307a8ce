/* Sections [tenant NAME]: the first that names a process decides; bad ones are refused. */
#include "tests/lib/test.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/errmsg.h"
#include "daemon/config/tenant_rules.h"

const char test_suite[] = "tenant_rules";

static int set(struct tenant_rules *r, const char *name, const char *key, const char *value)
{
    struct errmsg e = {""};
    char section[64];
    int k;

    (void) snprintf(section, sizeof(section), "tenant %s", name);
    k = tenant_rules_set(r, section, key, value, &e);
    CU_ASSERT((k < 0) == (e.text[0] != '\0'));
    return k;
}

static const char *match(const struct tenant_rules *r, uid_t uid, gid_t gid, const gid_t *groups, size_t n)
{
    const struct tenant_section *s =
        tenant_rules_match(r, &(struct tenant_peer){.uid = uid, .gid = gid, .groups = groups, .n_groups = n});

    return s ? s->name : "-";
}

static void test_first_match(void)
{
    struct tenant_rules r = {0};
    const gid_t both[] = {99, 30, 20}, other[] = {21, 31};

    CU_ASSERT_EQUAL(set(&r, "a", "users", "1000, 1001 1003"), 0);
    CU_ASSERT_EQUAL(set(&r, "a", "groups", "10"), 0);
    CU_ASSERT_EQUAL(set(&r, "b", "groups", "20,20"), 0);
    CU_ASSERT_EQUAL(set(&r, "b", "users", "2000-2009"), 0);
    CU_ASSERT_EQUAL(set(&r, "c", "groups", "30 10"), 0);
    CU_ASSERT_EQUAL(set(&r, "c", "users", "1001,2009-2010"), 0);
    CU_ASSERT_STRING_EQUAL(match(&r, 1000, 5, NULL, 0), "a");
    CU_ASSERT_STRING_EQUAL(match(&r, 1001, 30, both, 3), "a"); /* user of the first, group of the others */
    CU_ASSERT_STRING_EQUAL(match(&r, 1002, 5, NULL, 0), "-");
    CU_ASSERT_STRING_EQUAL(match(&r, 1999, 5, NULL, 0), "-");
    CU_ASSERT_STRING_EQUAL(match(&r, 2000, 30, NULL, 0), "b");
    CU_ASSERT_STRING_EQUAL(match(&r, 2009, 5, NULL, 0), "b");
    CU_ASSERT_STRING_EQUAL(match(&r, 2010, 5, NULL, 0), "c");
    CU_ASSERT_STRING_EQUAL(match(&r, 2010, 20, NULL, 0),
                           "b"); /* group before user: the section's order decides */
    CU_ASSERT_STRING_EQUAL(match(&r, 2011, 10, NULL, 0), "a");
    CU_ASSERT_STRING_EQUAL(match(&r, 2011, 5, both, 3), "b");
    CU_ASSERT_STRING_EQUAL(match(&r, 2011, 5, both, 2), "c");
    CU_ASSERT_STRING_EQUAL(match(&r, 2011, 5, both, 1), "-");
    CU_ASSERT_STRING_EQUAL(match(&r, 2011, 5, other, 2), "-");
    CU_ASSERT(tenant_rules_has_user(&r, &r.sections[0], 1001) &&
              !tenant_rules_has_user(&r, &r.sections[2], 1001));
    CU_ASSERT(tenant_rules_find(&r, "c") == &r.sections[2] && !tenant_rules_find(&r, "d"));
    tenant_rules_deinit(&r);
    CU_ASSERT_STRING_EQUAL(match(&r, 0, 0, both, 3), "-");
}

static void test_refused(void)
{
    static const struct {
        const char *name, *key, *value;
    } bad[] = {
        {"uid-7", "users", "7"},
        {"a@gpu0", "users", "7"},
        {"", "users", "7"},
        {"a b", "users", "7"},
        {"b", "users", "no-such-user"},
        {"b", "groups", "no-such-group"},
        {"b", "users", "9-8"},
        {"b", "users", "4294967295"},
        {"b", "quota-bytes", "0"},
        {"b", "quota-bytes", "-1"},
        {"b", "quota-bytes", "1X"},
        {"b", "guarantee-bytes", "1025T"},
        {"b", "gpu-users", "7"},
        {"b", "gpu", "x"},
        {"b", "user", "7"},
        {"b", "", "7"},
    };
    struct tenant_rules r = {0};
    struct errmsg e = {""};

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        CU_ASSERT(set(&r, bad[i].name, bad[i].key, bad[i].value) == -EINVAL);
    CU_ASSERT(r.n_users == 0 && r.n_groups == 0);
    CU_ASSERT_EQUAL(tenant_rules_set(&r, "tenants a", "users", "7", &e), -EINVAL);
    CU_ASSERT_EQUAL(tenant_rules_set(&r, "tenant", "users", "7", &e), -EINVAL);
    CU_ASSERT_EQUAL(set(&r, "b", "quota-bytes", "1G"), 0);
    CU_ASSERT_EQUAL(set(&r, "b", "quota-bytes", "1G"), -EINVAL);
    CU_ASSERT_EQUAL(set(&r, "b", "gpu-quota-bytes", "2G"), 0);
    CU_ASSERT_EQUAL(set(&r, "b", "gpu-guarantee-bytes", "1024T"), 0);
    CU_ASSERT_EQUAL(set(&r, "b", "guarantee-bytes", "0"), 0);
    CU_ASSERT_EQUAL(set(&r, "c", "users", "7"), 0);
    CU_ASSERT_EQUAL(set(&r, "b", "users", "7"), -EINVAL); /* a second section of that name */
    CU_ASSERT(r.sections[0].host.quota_bytes == 1u << 30 && r.sections[0].gpu.quota_bytes == UINT64_C(2)
                                                                                                 << 30);
    CU_ASSERT(r.sections[0].host.has_guarantee && r.sections[0].host.guarantee_bytes == 0);
    CU_ASSERT(!r.sections[1].host.has_guarantee && !r.sections[1].gpu.has_quota);
    tenant_rules_deinit(&r);
}

/* One below, at and above the limits of sections and of members. */
static void test_limits(void)
{
    struct tenant_rules r = {0};
    char name[16];

    for (unsigned i = 0; i <= TENANT_SECTIONS_MAX; i++) {
        (void) snprintf(name, sizeof(name), "t%u", i);
        CU_ASSERT_EQUAL(set(&r, name, "users", "1"), i < TENANT_SECTIONS_MAX ? 0 : -EINVAL);
    }
    tenant_rules_deinit(&r);
    for (unsigned i = 0; i <= TENANT_MEMBERS_MAX; i++) {
        (void) snprintf(name, sizeof(name), "%u", (i * 7919) % TENANT_MEMBERS_MAX); /* not in order */
        CU_ASSERT_EQUAL(set(&r, "a", i % 2 ? "users" : "groups", name), i < TENANT_MEMBERS_MAX ? 0 : -EINVAL);
    }
    for (uint32_t i = 1; i < r.n_groups; i++)
        CU_ASSERT(r.groups[i - 1].gid <= r.groups[i].gid);
    tenant_rules_deinit(&r);
}

static void test_print(void)
{
    struct tenant_rules r = {0};
    char *text = NULL;
    size_t bytes;
    FILE *f = open_memstream(&text, &bytes);

    assert(f);
    CU_ASSERT_EQUAL(set(&r, "a", "users", "1000 2000-2009"), 0);
    CU_ASSERT_EQUAL(set(&r, "a", "groups", "5 4"), 0);
    CU_ASSERT_EQUAL(set(&r, "a", "quota-bytes", "1K"), 0);
    CU_ASSERT_EQUAL(set(&r, "b", "groups", "6"), 0);
    CU_ASSERT_EQUAL(set(&r, "b", "gpu-guarantee-bytes", "2K"), 0);
    tenant_rules_print(&r, f);
    assert(fclose(f) == 0);
    CU_ASSERT_STRING_EQUAL(text, "tenant a: users 1000, 2000-2009; groups 4, 5; quota-bytes 1024\n"
                                 "tenant b: groups 6; gpu-guarantee-bytes 2048\n"
                                 "all others: one tenant per user, uid-N\n");
    free(text);
    tenant_rules_deinit(&r);
}

const struct test_case test_cases[] = {
    TEST(test_first_match), TEST(test_refused), TEST(test_limits), TEST(test_print), TEST_END,
};
