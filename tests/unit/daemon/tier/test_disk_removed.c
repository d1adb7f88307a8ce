/* Tests of daemon/tier/disk_removed.c, alone and below a tier. */
#include "daemon/tier/disk_removed.h"

#include <stdlib.h>
#include <string.h>

#include "tests/lib/test.h"
#include "tests/unit/daemon/disk_fixture.h"

const char test_suite[] = "disk_removed";

static void test_order(void)
{
    struct tier_removed *b;
    struct disk_removed q;
    struct chunk_key key;
    bool is_incomplete = true;

    disk_removed_init(&q);
    CU_ASSERT_PTR_NULL(disk_removed_take(&q, &is_incomplete));
    CU_ASSERT_FALSE(is_incomplete);
    for (uint64_t i = 0; i < 3; i++) {
        key = disk_fixture_key(i);
        disk_removed_note(&q, i == 1 ? "b" : "a", &key);
    }
    for (uint64_t i = 0; i < 3; i++) {
        b = disk_removed_take(&q, &is_incomplete);
        key = disk_fixture_key(i);
        CU_ASSERT_FATAL(b && b->n == 1 && !is_incomplete);
        CU_ASSERT_STRING_EQUAL(b->tenant, i == 1 ? "b" : "a");
        CU_ASSERT_EQUAL(memcmp(&b->keys[0], &key, sizeof(key)), 0);
        free(b);
    }
    CU_ASSERT_PTR_NULL(disk_removed_take(&q, &is_incomplete));
    disk_removed_note(&q, "a", &key); /* freed with the queue */
    disk_removed_deinit(&q);
}

/* The queue has a limit; what is above it is reported once, as missing. */
static void test_limit(void)
{
    struct chunk_key key = disk_fixture_key(1);
    struct disk_removed q;
    bool is_incomplete;
    uint32_t n = 0;

    disk_removed_init(&q);
    for (uint32_t i = 0; i < DISK_REMOVED_MAX; i++)
        disk_removed_note(&q, "a", &key);
    free(disk_removed_take(&q, &is_incomplete));
    CU_ASSERT_FALSE(is_incomplete);
    disk_removed_note(&q, "a", &key);
    disk_removed_note(&q, "a", &key);
    for (struct tier_removed *b; (b = disk_removed_take(&q, &is_incomplete)); n++) {
        CU_ASSERT_EQUAL(is_incomplete, n == 0);
        free(b);
    }
    CU_ASSERT_EQUAL(n, DISK_REMOVED_MAX);
    disk_removed_deinit(&q);
}

/* A tier names the pages of each segment that it uses again, and those that it forgets. */
static void test_tier(void)
{
    bool gone[5 * FIXTURE_SLOTS] = {false}, is_incomplete;
    struct tier_removed *b;
    struct disk_fixture f;
    struct fixture_page p;

    disk_fixture_init(&f);
    disk_fixture_open(&f);
    for (uint64_t i = 0; i < 4 * FIXTURE_SLOTS; i++)
        CU_ASSERT_EQUAL(disk_fixture_write(&f, 0, i), 0);
    CU_ASSERT_PTR_NULL(disk_tier_ops.take_removed(f.disk, &is_incomplete));
    CU_ASSERT_EQUAL(disk_fixture_write(&f, 0, 4 * FIXTURE_SLOTS), 0); /* instead of the first segment */
    CU_ASSERT_EQUAL(disk_fixture_begin(&f, &p, TIER_FORGET, 0, FIXTURE_SLOTS), 0); /* of the second one */
    disk_fixture_finish(&p);
    while ((b = disk_tier_ops.take_removed(f.disk, &is_incomplete))) {
        CU_ASSERT_STRING_EQUAL(b->tenant, "tenant-0");
        for (uint32_t k = 0; k < b->n; k++) {
            for (uint64_t i = 0; i < 5 * FIXTURE_SLOTS; i++) {
                struct chunk_key key = disk_fixture_key(i);

                gone[i] |= memcmp(&b->keys[k], &key, sizeof(key)) == 0;
            }
        }
        free(b);
    }
    CU_ASSERT_FALSE(is_incomplete);
    for (uint64_t i = 0; i < 5 * FIXTURE_SLOTS; i++)
        CU_ASSERT_EQUAL(gone[i], i <= FIXTURE_SLOTS);
    disk_fixture_deinit(&f);
}

const struct test_case test_cases[] = {TEST(test_order), TEST(test_limit), TEST(test_tier), TEST_END};
