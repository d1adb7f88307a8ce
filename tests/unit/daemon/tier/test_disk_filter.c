/* Tests of daemon/tier/disk_filter.c. */
#include "daemon/tier/disk_filter.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/errmsg.h"
#include "tests/lib/test.h"

const char test_suite[] = "disk_filter";

static struct chunk_key make_key(uint64_t n)
{
    struct chunk_key k;
    uint64_t words[2] = {n * UINT64_C(0x9e3779b97f4a7c15), n * UINT64_C(0xd1342543de82ef95)};

    memcpy(k.bytes, words, sizeof(words));
    return k;
}

static struct disk_filter *make_filter(const char *tenant, uint64_t n_keys)
{
    struct disk_filter *x = NULL;

    CU_ASSERT_EQUAL_FATAL(disk_filter_new(tenant, n_keys, &x, NULL), 0);
    return x;
}

static void put_new(struct disk_filters *f, const char *tenant, uint64_t n_keys)
{
    disk_filters_put(f, make_filter(tenant, n_keys));
}

/* Filters of a tier that is ready, for two tenants at most; "a" and "b" want one. */
static void begin(struct disk_filters *f)
{
    disk_filters_init(f, 2);
    disk_filters_begin(f);
    CU_ASSERT_FALSE(disk_filters_want(f, "a", 1000)); /* none has pages, so there is nothing to look for */
    CU_ASSERT_FALSE(disk_filters_want(f, "b", 1000));
}

static void test_tenants_apart(void)
{
    struct disk_filters f;
    struct chunk_key one = make_key(1), two = make_key(2);

    begin(&f);
    CU_ASSERT_TRUE(disk_filters_is_worn(&f, "a"));
    disk_filters_add(&f, "a", &one); /* there is none yet: without effect */
    CU_ASSERT_FALSE(disk_filters_has(&f, "a", &one));
    put_new(&f, "a", 100);
    put_new(&f, "b", 100);
    CU_ASSERT_FALSE(disk_filters_is_worn(&f, "a"));
    disk_filters_add(&f, "a", &one);
    disk_filters_add(&f, "b", &two);
    CU_ASSERT_TRUE(disk_filters_has(&f, "a", &one));
    CU_ASSERT_FALSE(disk_filters_has(&f, "a", &two));
    CU_ASSERT_FALSE(disk_filters_has(&f, "b", &one));
    disk_filters_drop(&f, "a");
    CU_ASSERT_FALSE(disk_filters_has(&f, "a", &one));
    CU_ASSERT_TRUE(disk_filters_has(&f, "b", &two));
    disk_filters_end(&f);
    CU_ASSERT_FALSE(disk_filters_has(&f, "b", &two));
    disk_filters_deinit(&f);
}

/* Until the thread has looked for a tenant's pages, the tier may have any; while it is off, it has none. */
static void test_unknown(void)
{
    char tenant[TIER_TENANT_BYTES] = "";
    struct chunk_key one = make_key(1);
    struct disk_filters f;

    disk_filters_init(&f, 2);
    CU_ASSERT_FALSE(disk_filters_next(&f, tenant));
    CU_ASSERT_TRUE(disk_filters_want(&f, "a", 1));
    CU_ASSERT_FALSE(disk_filters_want(&f, "a", 2));
    CU_ASSERT_FALSE(disk_filters_is_unknown(&f, "a") || disk_filters_has(&f, "a", &one));
    disk_filters_begin(&f);
    CU_ASSERT_TRUE(disk_filters_is_unknown(&f, "a") && disk_filters_has(&f, "a", &one));
    CU_ASSERT_FALSE(disk_filters_is_worn(&f, "a")); /* the thread makes it when it looks */
    CU_ASSERT_TRUE_FATAL(disk_filters_next(&f, tenant));
    CU_ASSERT_STRING_EQUAL(tenant, "a");
    put_new(&f, "a", 100);
    CU_ASSERT_FALSE(disk_filters_next(&f, tenant));
    CU_ASSERT_FALSE(disk_filters_is_unknown(&f, "a") || disk_filters_has(&f, "a", &one));
    disk_filters_end(&f);
    CU_ASSERT_FALSE(disk_filters_has(&f, "a", &one));
    disk_filters_begin(&f);
    CU_ASSERT_TRUE(disk_filters_next(&f, tenant));
    disk_filters_deinit(&f);
}

/* Many tenants may have pages: those with sessions get memory objects, no more than the limit. */
static void test_limit(void)
{
    struct chunk_key one = make_key(1);
    struct disk_filters f;

    begin(&f);
    put_new(&f, "unwanted", 100);
    CU_ASSERT_EQUAL(disk_filters_object(&f, "unwanted"), 0);
    CU_ASSERT_FALSE(disk_filters_is_worn(&f, "unwanted") || disk_filters_has(&f, "unwanted", &one));
    put_new(&f, "a", 100);
    put_new(&f, "b", 100);
    CU_ASSERT_FALSE(disk_filters_want(&f, "c", 1000)); /* "a" and "b" have sessions at this time, too */
    CU_ASSERT_FALSE(disk_filters_want(&f, "b", 2000));
    CU_ASSERT_EQUAL(f.n, 2);
    disk_filters_note_tenant(&f, "c");
    disk_filters_note_tenant(&f, "c");
    CU_ASSERT_TRUE(disk_filters_want(&f, "c", 2000));
    CU_ASSERT_TRUE(disk_filters_is_unknown(&f, "c") && disk_filters_has(&f, "c", &one));
    disk_filters_drop(&f, "c");
    CU_ASSERT_FALSE(disk_filters_is_unknown(&f, "c") || disk_filters_has(&f, "c", &one));
    CU_ASSERT_EQUAL(f.n, 2);
    CU_ASSERT_EQUAL(disk_filters_object(&f, "a"), 0);
    CU_ASSERT_NOT_EQUAL(disk_filters_object(&f, "b"), 0);
    disk_filters_expire(&f, 2000);
    CU_ASSERT_EQUAL(f.n, 2);
    disk_filters_expire(&f, 2001);
    CU_ASSERT(f.n == 0 && f.n_unknown == 0 && !f.list);
    disk_filters_deinit(&f);
}

/* A client maps the object, cannot write it, and learns that it was replaced. */
static void test_client(void)
{
    struct disk_filters f;
    struct disk_filter *newer;
    struct chunk_key one = make_key(1), two = make_key(2);
    struct bloom_reader r;
    uint64_t object = 0, next = 0;
    size_t bytes = 0;
    void *at;
    int fd = -1;

    begin(&f);
    CU_ASSERT_EQUAL(disk_filters_open(&f, "a", &fd, &bytes, &object), -ENOENT);
    put_new(&f, "a", 100);
    CU_ASSERT_EQUAL_FATAL(disk_filters_open(&f, "a", &fd, &bytes, &object), 0);
    CU_ASSERT(mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED);
    at = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
    CU_ASSERT_FATAL(at != MAP_FAILED);
    (void) close(fd);
    CU_ASSERT_EQUAL_FATAL(bloom_reader_init(&r, at, bytes, NULL), 0);
    CU_ASSERT_EQUAL(bloom_lookup(&r, &one), BLOOM_NO);
    disk_filters_add(&f, "a", &one);
    CU_ASSERT_EQUAL(bloom_lookup(&r, &one), BLOOM_PROBABLY);

    newer = make_filter("a", 100);
    disk_filter_add(newer, &two);
    CU_ASSERT_EQUAL(bloom_lookup(&r, &one),
                    BLOOM_PROBABLY); /* the old one answers until the new one is put */
    CU_ASSERT_TRUE(disk_filters_has(&f, "a", &one));
    disk_filters_put(&f, newer);
    CU_ASSERT_EQUAL(bloom_lookup(&r, &one), BLOOM_MOVED);
    CU_ASSERT_FALSE(disk_filters_has(&f, "a", &one));
    CU_ASSERT_TRUE(disk_filters_has(&f, "a", &two));
    CU_ASSERT_EQUAL_FATAL(disk_filters_open(&f, "a", &fd, &bytes, &next), 0);
    CU_ASSERT(next > object);
    (void) close(fd);
    disk_filters_deinit(&f);
    CU_ASSERT_EQUAL(munmap(at, bytes), 0);
}

static void test_worn(void)
{
    struct disk_filters f;

    begin(&f);
    put_new(&f, "a", 3000);
    for (uint64_t i = 0; i < 2100; i++) {
        struct chunk_key k = make_key(i);

        disk_filters_add(&f, "a", &k);
    }
    disk_filters_removed(&f, "a", 1050);
    CU_ASSERT_FALSE(disk_filters_is_worn(&f, "a")); /* half of the keys are gone, not more */
    disk_filters_removed(&f, "a", 1);
    CU_ASSERT_TRUE(disk_filters_is_worn(&f, "a"));

    put_new(&f, "a", 1);
    for (uint64_t i = 0; i < bloom_capacity(&f.list->next->writer); i++) {
        struct chunk_key k = make_key(i);

        CU_ASSERT_FALSE_FATAL(disk_filters_is_worn(&f, "a"));
        disk_filters_add(&f, "a", &k);
    }
    CU_ASSERT_TRUE(disk_filters_is_worn(&f, "a"));
    disk_filters_deinit(&f);
}

const struct test_case test_cases[] = {
    TEST(test_tenants_apart), TEST(test_client), TEST(test_worn),
    TEST(test_unknown),       TEST(test_limit),  TEST_END,
};
