/*
 * Tests of the disk tier against a disk that loses, tears, changes and exchanges what it stores: every page
 * that is read is the right one, or a miss.
 */
#include "daemon/tier/disk.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/lib/test.h"
#include "tests/unit/daemon/disk_fixture.h"
#include "tests/unit/daemon/faulty_engine.h"

const char test_suite[] = "disk_damage";

static struct disk_fixture f;

static void open_and_fill(unsigned n_pages)
{
    disk_fixture_open(&f);
    for (uint64_t i = 0; i < n_pages; i++)
        CU_ASSERT_EQUAL(disk_fixture_write(&f, 0, i), 0);
}

static void begin(unsigned n_pages)
{
    disk_fixture_init(&f);
    open_and_fill(n_pages);
}

/* The page does not open. It is reported, and not found again, after a restart neither. */
static void expect_damaged(uint64_t number)
{
    struct fixture_page p;

    CU_ASSERT_EQUAL(disk_fixture_read(&f, 0, number), -EBADMSG);
    CU_ASSERT_EQUAL(disk_fixture_begin(&f, &p, TIER_FORGET, 0, number), 0);
    disk_fixture_finish(&p);
    CU_ASSERT_EQUAL(p.request.result, 0);
    CU_ASSERT_EQUAL(disk_fixture_read(&f, 0, number), -ENOENT);
    disk_fixture_close(&f);
    disk_fixture_open(&f);
    CU_ASSERT_EQUAL(disk_fixture_read(&f, 0, number), -ENOENT);
    CU_ASSERT_EQUAL(disk_fixture_begin(&f, &p, TIER_FORGET, 0, number), 0);
    disk_fixture_finish(&p);
    CU_ASSERT_EQUAL(p.request.result, -ENOENT);
    CU_ASSERT_EQUAL(disk_fixture_write(&f, 0, number), 0); /* and can be written again */
    CU_ASSERT_EQUAL(disk_fixture_read(&f, 0, number), 0);
}

/* A copy of one slot over another one. */
static void copy_slot(const char *folder, unsigned from, unsigned to)
{
    uint8_t bytes[FIXTURE_SLOT_BYTES];
    char path[128];
    int fd;

    (void) snprintf(path, sizeof(path), "%s/pages", folder);
    fd = open(path, O_RDWR);
    assert(fd >= 0 && pread(fd, bytes, sizeof(bytes), (off_t) from * FIXTURE_SLOT_BYTES) == sizeof(bytes));
    assert(pwrite(fd, bytes, sizeof(bytes), (off_t) to * FIXTURE_SLOT_BYTES) == sizeof(bytes) &&
           close(fd) == 0);
}

static void test_flipped_bits(void)
{
    begin(3);
    for (unsigned i = 0; i < 40; i++) { /* anywhere in the sealed page of slot 1 */
        uint64_t at = FIXTURE_SLOT_BYTES + test_rand_below(FIXTURE_PAGE_BYTES + 64);
        uint8_t flip = (uint8_t) (1u << test_rand_below(8));
        int r;

        disk_fixture_damage(&f, at, flip);
        r = disk_fixture_read(&f, 0, 1);
        CU_ASSERT(r == -EBADMSG || r == -ENOKEY);
        disk_fixture_damage(&f, at, flip);
    }
    CU_ASSERT_EQUAL(disk_fixture_read(&f, 0, 1), 0);
    disk_fixture_damage(&f, FIXTURE_SLOT_BYTES + FIXTURE_PAGE_BYTES + 64, 1); /* the padding says nothing */
    CU_ASSERT_EQUAL(disk_fixture_read(&f, 0, 1), 0);
    disk_fixture_damage(&f, FIXTURE_SLOT_BYTES + 4000, 1);
    expect_damaged(1);
    CU_ASSERT_EQUAL(disk_fixture_read(&f, 0, 0), 0);
    CU_ASSERT_EQUAL(disk_fixture_read(&f, 0, 2), 0);
    disk_fixture_deinit(&f);
}

static void test_swapped_slots(void)
{
    begin(3);
    copy_slot(f.folder, 0, 1);
    CU_ASSERT_EQUAL(disk_fixture_read(&f, 0, 0), 0);
    expect_damaged(1);
    disk_fixture_deinit(&f);
}

/* The page of another tenant under the same key. */
static void test_other_tenants_page(void)
{
    begin(1);
    CU_ASSERT_EQUAL(disk_fixture_write(&f, 1, 0), 0); /* in segment 1 */
    copy_slot(f.folder, FIXTURE_SLOTS, 0);
    expect_damaged(0);
    CU_ASSERT_EQUAL(disk_fixture_read(&f, 1, 0), 0);
    disk_fixture_deinit(&f);
}

/* A disk that says that it wrote. */
static void lying_writes(enum faulty_kind kind)
{
    begin(1);
    faulty_set(kind, 0, 0, 1);
    CU_ASSERT_EQUAL(disk_fixture_write(&f, 0, 1), 0);
    CU_ASSERT_EQUAL(disk_fixture_read(&f, 0, 0), 0);
    expect_damaged(1);
    disk_fixture_deinit(&f);
}

static void test_lost_and_torn_writes(void)
{
    lying_writes(FAULTY_LOST);
    lying_writes(FAULTY_TORN);
}

/* The folder of an hour ago comes back under a later file of pages, and the other way round. */
static void stale_file(const char *name)
{
    char path[128], command[400];

    begin(FIXTURE_SLOTS);
    disk_fixture_close(&f);
    (void) snprintf(path, sizeof(path), "%s/%s", f.folder, name);
    (void) snprintf(command, sizeof(command), "cp %s %s-old", path, f.folder);
    assert(system(command) == 0);
    disk_fixture_open(&f);
    f.quota_bytes = FIXTURE_SEGMENT_BYTES; /* the segment is discarded, and begins its second life */
    for (uint64_t i = 0; i < FIXTURE_SLOTS - 2; i++)
        CU_ASSERT_EQUAL(disk_fixture_write(&f, 0, 100 + i), 0);
    CU_ASSERT_EQUAL(disk_fixture_read(&f, 0, 0), -ENOENT);
    disk_fixture_close(&f);
    (void) snprintf(command, sizeof(command), "mv %s-old %s", f.folder, path);
    assert(system(command) == 0);
    disk_fixture_open(&f);
    for (uint64_t i = 0; i < FIXTURE_SLOTS; i++) {
        int r = disk_fixture_read(&f, 0, i);

        /* old pages in slots that were not written again are what they were */
        CU_ASSERT(r == -EBADMSG || r == -ENOENT || (r == 0 && i >= FIXTURE_SLOTS - 2));
        r = disk_fixture_read(&f, 0, 100 + i);
        CU_ASSERT(r == -EBADMSG || r == -ENOENT);
    }
    disk_fixture_deinit(&f);
}

static void test_stale_files(void)
{
    stale_file("records");
    stale_file("pages");
}

/* Random bytes in the file of records: pages are lost, and no wrong one is found. */
static void test_damaged_records(void)
{
    char path[128];
    unsigned n_found = 0, n_lost = 0;

    begin(3 * FIXTURE_SLOTS);
    disk_fixture_close(&f);
    (void) snprintf(path, sizeof(path), "%s/records", f.folder);
    for (unsigned round = 0; round < 60; round++) {
        uint64_t at = 4096 + test_rand_below(3) * 4096 + test_rand_below(256 + FIXTURE_SLOTS * 32);
        uint8_t byte = (uint8_t) test_rand();
        int fd = open(path, O_RDWR);

        assert(fd >= 0 && pwrite(fd, &byte, 1, (off_t) at) == 1 && close(fd) == 0);
        disk_fixture_open(&f);
        CU_ASSERT_EQUAL_FATAL(disk_fixture_status(&f).state, TIER_READY);
        for (uint64_t i = 0; i < 3 * FIXTURE_SLOTS; i++) {
            int r = disk_fixture_read(&f, 0, i);

            CU_ASSERT(r == 0 || r == -ENOENT);
            n_found += r == 0;
            n_lost += r == -ENOENT;
        }
        disk_fixture_close(&f);
    }
    CU_ASSERT(n_found > 0 && n_lost > 0);
    disk_fixture_deinit(&f);
}

/* A page that was sealed with a key that the ring has no longer. */
static void test_removed_key(void)
{
    char path[128];

    begin(1);
    disk_fixture_close(&f);
    (void) snprintf(path, sizeof(path), "%s/pages", f.folder);
    disk_fixture_damage(&f, 8, 3); /* the id becomes 2 */
    disk_fixture_open(&f);
    CU_ASSERT_EQUAL(disk_fixture_read(&f, 0, 0), -ENOKEY);
    disk_fixture_deinit(&f);
}

/* The file of pages is cut off while the tier uses it. */
static void test_shortened_file(void)
{
    char path[128];

    disk_fixture_init(&f);
    f.options.check_ms = UINT64_MAX / 2; /* the read finds it, not the check by the clock */
    open_and_fill(2 * FIXTURE_SLOTS);
    (void) snprintf(path, sizeof(path), "%s/pages", f.folder);
    CU_ASSERT_EQUAL(truncate(path, FIXTURE_SEGMENT_BYTES), 0);
    CU_ASSERT_EQUAL(disk_fixture_read(&f, 0, 0), 0);
    CU_ASSERT_EQUAL(disk_fixture_read(&f, 0, FIXTURE_SLOTS), -EIO);
    CU_ASSERT_EQUAL(disk_fixture_wait(&f, TIER_READY), TIER_OFF);
    CU_ASSERT(disk_tier_ops.resume(f.disk) == 0 && disk_fixture_wait(&f, TIER_OFF) == TIER_READY);
    CU_ASSERT_EQUAL(disk_fixture_read(&f, 0, 0), 0);
    CU_ASSERT_EQUAL(disk_fixture_read(&f, 0, FIXTURE_SLOTS + 1), -ENOENT);
    CU_ASSERT_EQUAL(disk_fixture_write(&f, 0, FIXTURE_SLOTS + 1), 0);
    disk_fixture_deinit(&f);
}

const struct test_case test_cases[] = {
    TEST(test_flipped_bits),         TEST(test_swapped_slots),  TEST(test_other_tenants_page),
    TEST(test_lost_and_torn_writes), TEST(test_stale_files),    TEST(test_damaged_records),
    TEST(test_removed_key),          TEST(test_shortened_file), TEST_END,
};
