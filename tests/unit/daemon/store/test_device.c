/* Tenants of a device: their limits by the configuration, when they are forgotten, what is counted. */
#include "tests/lib/test.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "base/errmsg.h"
#include "daemon/config/config.h"
#include "daemon/config/config_keys.h"
#include "daemon/loop/log.h"
#include "daemon/store/device.h"

const char test_suite[] = "device";

enum { EXTENT = 256 << 10 };

static struct config c;
static const uint8_t secret[32] = {1};
static struct devices d;
static struct journal j;

static void setup(uint32_t tenants_max)
{
    log_open(LOG_EMERG);
    config_init(&c);
    c.tenants_max = tenants_max;
    c.ghosts_per_tenant = 16;
    assert(journal_new(&j, NULL) == 0);
    d = (struct devices){.accounts.journal = &j, .secret = secret};
    devices_init(&d, &c);
    assert(pool_init(&d.list[0].store.pool, &d.serials, 4 * EXTENT, EXTENT, 64 << 10, NULL) == 0);
}

static void teardown(void)
{
    for (struct tenant *t = d.list[0].store.tenants; t; t = t->next) {
        t->n_refs = 0;
        t->page_bytes = t->arena_bytes = t->awaited_extent = 0;
        t->quota_is_set = t->guarantee_is_set = false;
    }
    (void) devices_forget_idle(&d, 1, 0);
    CU_ASSERT(!d.list[0].store.tenants && d.list[0].store.n_tenants == 0 && d.n_series == 0);
    CU_ASSERT_EQUAL(d.accounts.n, 0);
    devices_deinit(&d);
    journal_deinit(&j);
    config_deinit(&c);
}

/* Return: the tenant, or NULL: there are too many. */
static struct tenant *come(const char *name)
{
    struct account *a;
    struct tenant *t = NULL;
    struct errmsg e = {""};
    int r;

    assert(accounts_get_named(&d.accounts, name, &a, NULL) == 0);
    r = devices_tenant(&d, &d.list[0], a, &t, &e);
    (void) account_unref(a);
    CU_ASSERT(r == 0 ? t != NULL : r == -EDQUOT && !t && e.text[0] != '\0');
    return t;
}

static void test_limits_of_sections(void)
{
    struct tenant *team, *other;

    setup(4);
    CU_ASSERT_EQUAL(tenant_rules_set(&c.tenants, "tenant team", "users", "7", NULL), 0);
    CU_ASSERT_EQUAL(tenant_rules_set(&c.tenants, "tenant team", "quota-bytes", "77M", NULL), 0);
    team = come("team");
    other = come("uid-8");
    CU_ASSERT(team->quota_bytes == 77 << 20 && team->guarantee_bytes == 0);
    CU_ASSERT_EQUAL(other->quota_bytes, c.quota_bytes);
    CU_ASSERT_PTR_EQUAL(come("team"), team);
    CU_ASSERT(memcmp(team->index_key, other->index_key, INDEX_KEY_BYTES) != 0);
    teardown();
}

/* Each thing that a tenant may have keeps it. */
static void test_idle(void)
{
    struct tenant *t;

    setup(4);
    CU_ASSERT_EQUAL(tenant_rules_set(&c.tenants, "tenant team", "guarantee-bytes", "1", NULL), 0);
    t = come("uid-8");
    (void) come("team");
    CU_ASSERT_TRUE(devices_forget_idle(&d, 1000, 500)); /* uid-8 is idle from now on */
    CU_ASSERT_TRUE(devices_forget_idle(&d, 1499, 500));
    t->n_refs = 1;
    CU_ASSERT_FALSE(devices_forget_idle(&d, 5000, 500));
    t->n_refs = 0;
    CU_ASSERT_TRUE(devices_forget_idle(&d, 6000, 500)); /* idle anew */
    t->page_bytes = 1;
    CU_ASSERT_FALSE(devices_forget_idle(&d, 9000, 0));
    t->page_bytes = 0;
    t->arena_bytes = 1;
    CU_ASSERT_FALSE(devices_forget_idle(&d, 9000, 0));
    t->arena_bytes = 0;
    t->awaited_extent = 1;
    CU_ASSERT_FALSE(devices_forget_idle(&d, 9000, 0));
    t->awaited_extent = 0;
    t->quota_is_set = true;
    CU_ASSERT_FALSE(devices_forget_idle(&d, 9000, 0));
    t->quota_is_set = false;
    t->guarantee_is_set = true;
    CU_ASSERT_FALSE(devices_forget_idle(&d, 9000, 0));
    CU_ASSERT_EQUAL(d.list[0].store.n_tenants, 2);
    t->guarantee_is_set = false;
    CU_ASSERT_TRUE(devices_forget_idle(&d, 10000, 500));
    CU_ASSERT_FALSE(devices_forget_idle(&d, 10500, 500));
    CU_ASSERT(!devices_find_tenant(&d, "uid-8") && devices_find_tenant(&d, "team"));
    CU_ASSERT(d.accounts.n == 1 && journal_name_find(&j, "team") == 1);
    tenant_rules_deinit(&c.tenants); /* the section goes: so does its tenant, and its name */
    CU_ASSERT_FALSE(devices_forget_idle(&d, 11000, 0));
    CU_ASSERT(d.accounts.n == 0 && journal_name_find(&j, "team") == 0);
    teardown();
}

/* The oldest idle tenant makes room; none is idle: the newcomer is refused, but not at a restore. */
static void test_place(void)
{
    struct tenant *a, *b;
    uint64_t object;

    setup(2);
    a = come("uid-1");
    b = come("uid-2");
    object = a->index_object;
    b->n_refs = 1;
    CU_ASSERT_PTR_NOT_NULL(come("uid-3"));
    CU_ASSERT(!devices_find_tenant(&d, "uid-1") && devices_find_tenant(&d, "uid-2") == b);
    a = come("uid-1");
    CU_ASSERT(a && !devices_find_tenant(&d, "uid-3") && a->index_object != object);
    a->n_refs = 1;
    CU_ASSERT_PTR_NULL(come("uid-3"));
    d.is_restoring = true;
    CU_ASSERT_PTR_NOT_NULL(come("uid-3"));
    CU_ASSERT_PTR_NOT_NULL(come("uid-4"));
    d.is_restoring = false;
    CU_ASSERT_EQUAL(d.list[0].store.n_tenants, 4);
    teardown();
}

/* Counters of tenants without a series of their own go on; a tenant never changes between the two kinds. */
static void test_series(void)
{
    struct rlimit limit;
    struct tenant *own, *other;
    char name[32];

    assert(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    limit.rlim_cur = limit.rlim_max;
    if (limit.rlim_max < 4096 || setrlimit(RLIMIT_NOFILE, &limit) < 0) {
        test_skip("there are too few descriptors for a thousand tenants");
        return;
    }
    setup(2000);
    own = come("uid-0");
    for (unsigned i = 1; i < TENANT_SERIES_MAX; i++) {
        (void) snprintf(name, sizeof(name), "uid-%u", i);
        CU_ASSERT_TRUE(come(name)->has_series);
    }
    other = come("uid-5000");
    CU_ASSERT(own->has_series && !other->has_series && d.n_series == TENANT_SERIES_MAX);
    own->counters = (struct tenant_counters){.hits = 1, .evictions = 2};
    other->counters = (struct tenant_counters){.hits = 4, .misses = 8, .evictions = 16, .misses_by = {0, 32}};
    other->n_refs = 1;
    CU_ASSERT_FALSE(devices_forget_idle(&d, 1, 0));
    CU_ASSERT(d.n_series == 0 && d.forgotten_evictions == 2 && d.forgotten_others.hits == 0);
    CU_ASSERT_FALSE(other->has_series);
    other->n_refs = 0;
    CU_ASSERT_FALSE(devices_forget_idle(&d, 1, 0));
    CU_ASSERT(d.forgotten_evictions == 18 && d.forgotten_others.hits == 4 && d.forgotten_others.misses == 8);
    CU_ASSERT(d.forgotten_others.evictions == 16 && d.forgotten_others.misses_by[1] == 32);
    CU_ASSERT_TRUE(come("uid-5000")->has_series);
    teardown();
}

/* So many tenants, and no more, have advice; one that is forgotten makes room. */
static void test_advice_is_limited(void)
{
    struct tenant *t;
    char name[32];

    setup(2 * ADVICE_TENANTS_MAX);
    for (unsigned i = 0; i < ADVICE_TENANTS_MAX; i++) {
        (void) snprintf(name, sizeof(name), "uid-%u", i + 1);
        t = come(name);
        CU_ASSERT_TRUE(t->has_advice);
        t->n_refs = i > 0;
    }
    t = come("uid-1000");
    t->n_refs = 1;
    CU_ASSERT(!t->has_advice && d.n_advised == ADVICE_TENANTS_MAX);
    CU_ASSERT_FALSE(devices_forget_idle(&d, 1, 0)); /* uid-1 */
    CU_ASSERT_EQUAL(d.n_advised, ADVICE_TENANTS_MAX - 1);
    CU_ASSERT_FALSE(t->has_advice);
    CU_ASSERT_TRUE(come("uid-1001")->has_advice);
    teardown();
    CU_ASSERT_EQUAL(d.n_advised, 0);
}

const struct test_case test_cases[] = {
    TEST(test_limits_of_sections), TEST(test_idle), TEST(test_place), TEST(test_series),
    TEST(test_advice_is_limited),  TEST_END,
};
