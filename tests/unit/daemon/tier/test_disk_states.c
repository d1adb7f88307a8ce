/* Tests of daemon/tier/disk.c and disk_thread.c: a tier that fails, comes back and ends. */
#include "daemon/tier/disk.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <unistd.h>

#include "tests/lib/test.h"
#include "tests/lib/wait.h"
#include "tests/unit/daemon/disk_fixture.h"
#include "tests/unit/daemon/faulty_engine.h"

const char test_suite[] = "disk_states";

static struct disk_fixture f;

/* The tier is off, and its sentence names the cause. */
static void expect_off(const char *why)
{
    struct disk_status s;

    CU_ASSERT_EQUAL(disk_fixture_wait(&f, TIER_READY), TIER_OFF);
    s = disk_fixture_status(&f);
    if (!strstr(s.sentence, why)) {
        (void) fprintf(stderr, "\"%s\" lacks \"%s\"\n", s.sentence, why);
        CU_FAIL("another sentence");
    }
}

static void test_failed_operations(void)
{
    struct chunk_key key = disk_fixture_key(1);
    struct fixture_page p;

    for (unsigned is_write = 0; is_write < 2; is_write++) {
        disk_fixture_init(&f);
        disk_fixture_open(&f);
        for (uint64_t i = 0; i < 3; i++)
            CU_ASSERT_EQUAL(disk_fixture_write(&f, 0, i), 0);
        faulty_set(FAULTY_ERROR, is_write ? ENOSPC : EIO, 0, 1);
        CU_ASSERT_EQUAL(is_write ? disk_fixture_write(&f, 0, 5) : disk_fixture_read(&f, 0, 0), -EIO);
        expect_off(is_write ? "No space left on device" : "Input/output error");
        CU_ASSERT_PTR_NOT_NULL(strstr(disk_fixture_status(&f).sentence, f.folder));
        CU_ASSERT_EQUAL(disk_fixture_begin(&f, &p, TIER_GET, 0, 1), -ENODEV);
        CU_ASSERT_PTR_NULL(disk_tier_ops.take(f.disk, FIXTURE_PAGE_BYTES));
        CU_ASSERT_FALSE(disk_tier_ops.has(f.disk, "tenant-0", &key)); /* clients need not ask for it */

        CU_ASSERT_EQUAL(disk_tier_ops.resume(f.disk), 0);
        CU_ASSERT_EQUAL(disk_fixture_wait(&f, TIER_OFF), TIER_READY);
        CU_ASSERT_EQUAL(disk_tier_ops.resume(f.disk), -EALREADY);
        CU_ASSERT_PTR_NULL(strstr(disk_fixture_status(&f).sentence, "cannot")); /* tmpfs is said */
        CU_ASSERT_EQUAL(disk_fixture_read(&f, 0, 1), 0);
        /* what could not be read is not tried again */
        CU_ASSERT_EQUAL(disk_fixture_read(&f, 0, 0), is_write ? 0 : -ENOENT);
        CU_ASSERT_EQUAL(disk_fixture_write(&f, 0, 6), 0);
        disk_fixture_expect_buffers(&f);
        disk_fixture_deinit(&f);
    }
}

/* Requests that wait and operations that run when the tier goes off. */
static void test_off_under_load(void)
{
    struct fixture_page p[12];
    unsigned n = 0;

    disk_fixture_init(&f);
    disk_fixture_open(&f);
    for (uint64_t i = 0; i < 8; i++)
        CU_ASSERT_EQUAL(disk_fixture_write(&f, 0, i), 0);
    faulty_hold(false);
    faulty_set(FAULTY_ERROR, EIO, 1, 1);
    for (; n < 12; n++)
        CU_ASSERT_EQUAL(disk_fixture_begin(&f, &p[n], TIER_GET, 0, n % 8), 0);
    faulty_wait_held(8);
    faulty_release();
    for (unsigned i = 0; i < n; i++) {
        int r;

        disk_fixture_finish(&p[i]);
        r = disk_fixture_open_page(&p[i]);
        CU_ASSERT(r == 0 || r == -EIO || r == -ENODEV);
    }
    expect_off("Input/output error");
    CU_ASSERT(disk_tier_ops.resume(f.disk) == 0 && disk_fixture_wait(&f, TIER_OFF) == TIER_READY);
    CU_ASSERT_EQUAL(disk_fixture_read(&f, 0, 5), 0);
    disk_fixture_expect_buffers(&f);
    disk_fixture_deinit(&f);
}

static void test_stall(void)
{
    struct fixture_page p;

    disk_fixture_init(&f);
    f.options.stall_ms = 1;
    disk_fixture_open(&f);
    faulty_hold(false);
    CU_ASSERT_EQUAL(disk_fixture_begin(&f, &p, TIER_PUT, 0, 1), 0);
    disk_fixture_finish(&p);
    CU_ASSERT_EQUAL(p.request.result, -ENODEV);
    expect_off("did not answer");
    CU_ASSERT_EQUAL(disk_tier_ops.resume(f.disk), 0); /* waits for the operation */
    CU_ASSERT_EQUAL(disk_fixture_status(&f).state, TIER_OFF);
    faulty_release();
    CU_ASSERT_EQUAL(disk_fixture_wait(&f, TIER_OFF), TIER_READY);
    disk_fixture_deinit(&f);
}

static void test_vanished_folder(void)
{
    char away[80];

    disk_fixture_init(&f);
    f.options.retry_ms = 1; /* the timer brings it back */
    disk_fixture_open(&f);
    CU_ASSERT_EQUAL(disk_fixture_write(&f, 0, 1), 0);
    (void) snprintf(away, sizeof(away), "%s-away", f.folder);
    CU_ASSERT_EQUAL(rename(f.folder, away), 0);
    expect_off("");
    for (struct wait w = wait_begin(); !strstr(disk_fixture_status(&f).sentence, "cannot open the folder") &&
                                       wait_again(&w);) /* it was opened again, without success */
        ;
    expect_off("cannot open the folder");
    CU_ASSERT_EQUAL(rename(away, f.folder), 0);
    CU_ASSERT_EQUAL(disk_fixture_wait(&f, TIER_OFF), TIER_READY);
    CU_ASSERT_EQUAL(disk_fixture_read(&f, 0, 1), 0);
    disk_fixture_deinit(&f);
}

/* A file system that is unmounted while it is in use: the tier does not begin anew below its mount point. */
static void test_unmounted(void)
{
    char records[80];

    disk_fixture_init(&f);
    f.options.retry_ms = 1;
    if (mount("none", f.folder, "tmpfs", 0, "size=4m,mode=0700") < 0) {
        test_skip("only root can mount a file system");
        disk_fixture_deinit(&f);
        return;
    }
    disk_fixture_open(&f);
    if (strstr(disk_fixture_status(&f).sentence, "no direct I/O")) { /* tmpfs has it since Linux 6.6 */
        test_skip("tmpfs has no direct I/O");
        CU_ASSERT_EQUAL(umount(f.folder), 0);
        disk_fixture_deinit(&f);
        return;
    }
    CU_ASSERT_EQUAL(disk_fixture_write(&f, 0, 1), 0);
    CU_ASSERT_EQUAL(umount2(f.folder, MNT_DETACH), 0);
    expect_off("");
    for (struct wait w = wait_begin();
         !strstr(disk_fixture_status(&f).sentence, "mount that one again") && wait_again(&w);)
        ;
    expect_off("on another file system than before");
    (void) snprintf(records, sizeof(records), "%s/records", f.folder);
    CU_ASSERT(access(records, F_OK) < 0);
    CU_ASSERT_EQUAL(disk_tier_ops.resume(f.disk), 0); /* an operator wants the folder that is there */
    CU_ASSERT_EQUAL(disk_fixture_wait(&f, TIER_OFF), TIER_READY);
    CU_ASSERT_EQUAL(disk_fixture_read(&f, 0, 1), -ENOENT);
    CU_ASSERT_EQUAL(access(records, F_OK), 0);
    disk_fixture_deinit(&f);
}

static void test_off_from_the_start(void)
{
    struct errmsg e = {""};
    struct disk *d = NULL;

    disk_fixture_init(&f);
    f.options.folder.path = "/tmp/kvcobra-disk-none";
    disk_fixture_open(&f);
    expect_off("cannot open the folder /tmp/kvcobra-disk-none");
    disk_fixture_close(&f);

    f.options.folder.path = f.folder;
    faulty_refuse();
    disk_fixture_open(&f);
    expect_off("needs an engine");
    faulty_reset();
    CU_ASSERT(disk_tier_ops.resume(f.disk) == 0 && disk_fixture_wait(&f, TIER_OFF) == TIER_READY);
    CU_ASSERT_EQUAL(disk_fixture_write(&f, 0, 1), 0);
    disk_fixture_close(&f);

    f.options.folder.segment_bytes = 3 * 65536;
    CU_ASSERT_EQUAL(disk_new(f.ev, &f.options, &d, &e), -EINVAL);
    f.options.folder.segment_bytes = 0;
    f.options.depth = 0;
    CU_ASSERT_EQUAL(disk_new(f.ev, &f.options, &d, &e), -EINVAL);
    f.options.depth = 1;
    f.options.buffer_bytes = 0;
    CU_ASSERT_EQUAL(disk_new(f.ev, &f.options, &d, &e), -EINVAL);
    CU_ASSERT(d == NULL && e.text[0] != '\0');
    disk_fixture_deinit(&f);
}

/* Without a size of segments: 64 or more, unless they would be smaller than 1 MiB. */
static void test_chosen_segments(void)
{
    static const uint64_t sizes[][2] = {{UINT64_C(1) << 20, 1 << 20},
                                        {UINT64_C(64) << 20, 1 << 20},
                                        {UINT64_C(1) << 30, 1 << 24},
                                        {UINT64_C(1) << 40, 1 << 28}};

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        disk_fixture_init(&f);
        f.options.folder.bytes = sizes[i][0];
        f.options.folder.segment_bytes = 0;
        disk_fixture_open(&f);
        CU_ASSERT_EQUAL(disk_fixture_status(&f).state, TIER_READY);
        CU_ASSERT_EQUAL(disk_fixture_status(&f).segment_bytes, sizes[i][1]);
        disk_fixture_deinit(&f);
    }
}

/* Opens the folder that has segments of FIXTURE_SEGMENT_BYTES with another size of the tier. */
static void reopen(uint64_t bytes, uint64_t segment_bytes)
{
    f.options.folder.bytes = bytes;
    f.options.folder.segment_bytes = segment_bytes;
    disk_fixture_open(&f);
}

/*
 * A folder keeps its segments when the size of the tier changes. Segments that this program would not choose
 * are refused: each could name another tenant.
 */
static void test_segments_of_others(void)
{
    const uint64_t mib = UINT64_C(1) << 20;

    disk_fixture_init(&f);
    reopen(64 * mib, 0);
    CU_ASSERT_EQUAL(disk_fixture_write(&f, 0, 1), 0);
    disk_fixture_close(&f);
    reopen(1024 * mib, 0); /* a new tier would have segments of 16 MiB */
    CU_ASSERT_EQUAL(disk_fixture_read(&f, 0, 1), 0);
    CU_ASSERT_EQUAL(disk_fixture_status(&f).segment_bytes, mib);
    disk_fixture_close(&f);
    reopen(2048 * mib, 0);
    expect_off("set disk-bytes to its earlier value, or remove the folder's files");
    disk_fixture_close(&f);
    reopen(64 * mib, 0);
    CU_ASSERT_EQUAL(disk_fixture_read(&f, 0, 1), 0);
    disk_fixture_deinit(&f);

    disk_fixture_init(&f);
    disk_fixture_open(&f);
    disk_fixture_close(&f);
    reopen(65536 * mib, 0);
    expect_off("kvcobrad makes them of 268435456 for disk-bytes 68719476736");
    disk_fixture_close(&f);
    reopen(mib, 0); /* no tier has segments below 1 MiB */
    expect_off("kvcobrad makes them of 1048576");
    disk_fixture_deinit(&f);
}

/* A file system that becomes full: the tier keeps to the segments that it has, and says so. */
static void test_full_file_system(void)
{
    disk_fixture_init(&f);
    if (mount("none", f.folder, "tmpfs", 0, "size=256k,mode=0700") < 0) {
        test_skip("only root can mount a small file system");
        disk_fixture_deinit(&f);
        return;
    }
    f.options.folder.bytes = 64 * FIXTURE_SEGMENT_BYTES;
    disk_fixture_open(&f);
    if (disk_fixture_status(&f).state == TIER_READY) {
        CU_ASSERT_PTR_NOT_NULL(
            strstr(disk_fixture_status(&f).sentence, "is on tmpfs: its pages take memory"));
        for (uint64_t i = 0; i < 10 * FIXTURE_SLOTS; i++)
            CU_ASSERT_EQUAL(disk_fixture_write(&f, 0, i), 0);
        CU_ASSERT_EQUAL(disk_fixture_read(&f, 0, 10 * FIXTURE_SLOTS - 1), 0);
        CU_ASSERT_EQUAL(disk_fixture_status(&f).state, TIER_READY);
        CU_ASSERT_PTR_NOT_NULL(strstr(disk_fixture_status(&f).sentence, "No space left on device"));
        CU_ASSERT(disk_fixture_status(&f).n_segments_max < 4);
        CU_ASSERT(disk_fixture_status(&f).physical_bytes <= 256 * 1024);
    } else { /* tmpfs has direct I/O since Linux 6.6 */
        CU_ASSERT_PTR_NOT_NULL(strstr(disk_fixture_status(&f).sentence, "no direct I/O"));
    }
    disk_fixture_close(&f);
    CU_ASSERT_EQUAL(umount(f.folder), 0);
    disk_fixture_deinit(&f);
}

/* ---- the end ---- */

static void test_free_with_requests(void)
{
    struct fixture_page p[6];

    disk_fixture_init(&f);
    disk_fixture_open(&f);
    CU_ASSERT_EQUAL(disk_fixture_write(&f, 0, 1), 0);
    faulty_hold(true);
    for (unsigned i = 0; i < 6; i++)
        CU_ASSERT_EQUAL(disk_fixture_begin(&f, &p[i], i % 2 ? TIER_PUT : TIER_GET, 0, i % 2 ? 10 + i : 1), 0);
    disk_fixture_close(&f);
    for (unsigned i = 0; i < 6; i++)
        CU_ASSERT(p[i].is_done && p[i].request.result == -ENODEV && !p[i].request.data);
    disk_fixture_deinit(&f);
}

/* The disk does not answer at the end: the caller does not wait for it. */
static void test_free_without_answer(void)
{
    struct fixture_page p;

    disk_fixture_init(&f);
    disk_fixture_open(&f);
    faulty_hold(false);
    CU_ASSERT_EQUAL(disk_fixture_begin(&f, &p, TIER_PUT, 0, 1), 0);
    faulty_wait_held(1);
    f.disk = disk_free(f.disk, 1);
    CU_ASSERT(p.is_done && p.request.result == -ENODEV);
    faulty_release(); /* the thread ends, closes the folder and frees its memory */
    for (struct wait w = wait_begin(); wait_again(&w);) {
        disk_fixture_open(&f);
        if (disk_fixture_status(&f).state == TIER_READY)
            break;
        CU_ASSERT_PTR_NOT_NULL(strstr(disk_fixture_status(&f).sentence, "another process uses"));
        disk_fixture_close(&f);
    }
    CU_ASSERT_EQUAL(disk_fixture_read(&f, 0, 1), 0); /* it was written after all */
    disk_fixture_deinit(&f);
}

const struct test_case test_cases[] = {
    TEST(test_failed_operations),  TEST(test_off_under_load),      TEST(test_stall),
    TEST(test_vanished_folder),    TEST(test_unmounted),           TEST(test_off_from_the_start),
    TEST(test_chosen_segments),    TEST(test_segments_of_others),  TEST(test_full_file_system),
    TEST(test_free_with_requests), TEST(test_free_without_answer), TEST_END,
};
