/* Tests of daemon/tier/disk_folder.c. */
#include "daemon/tier/disk_folder.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/errmsg.h"
#include "tests/lib/test.h"

const char test_suite[] = "disk_folder";

enum { SEGMENT_BYTES = 65536 };

static const uint8_t fleet[DISK_FLEET_BYTES] = {1, 2, 3}, other_fleet[DISK_FLEET_BYTES] = {3, 2, 1};
static char folder[64], path[128];
static struct disk_folder_options options;
static struct disk_folder f;
static struct errmsg e;

static const char *name(const char *file)
{
    (void) snprintf(path, sizeof(path), "%s/%s", folder, file);
    return path;
}

static void make_folder(void)
{
    (void) snprintf(folder, sizeof(folder), "/tmp/kvcobra-tier-XXXXXX");
    assert(mkdtemp(folder));
    options = (struct disk_folder_options){
        .path = folder, .fleet = fleet, .bytes = 4 * SEGMENT_BYTES, .segment_bytes = SEGMENT_BYTES};
    e.text[0] = '\0';
}

static void remove_folder(void)
{
    static const char *const files[] = {"records", "records.new", "pages", "other", "lost+found"};

    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++)
        (void) remove(name(files[i]));
    CU_ASSERT_EQUAL(rmdir(folder), 0);
}

static void write_bytes(const char *file, const void *bytes, size_t n, off_t at)
{
    int fd = open(name(file), O_WRONLY | O_CREAT, 0600);

    assert(fd >= 0 && pwrite(fd, bytes, n, at) == (ssize_t) n && close(fd) == 0);
}

static uint64_t physical_bytes_of(const char *file)
{
    struct stat st;

    return stat(name(file), &st) < 0 ? 0 : (uint64_t) st.st_blocks * 512;
}

static off_t bytes_of(const char *file)
{
    struct stat st;

    return stat(name(file), &st) < 0 ? -1 : st.st_size;
}

/* What disk_folder_read() reports. */
static struct {
    unsigned n_segments, n_records;
    struct disk_segment_head heads[8];
    struct disk_record records[64];
    bool skips;
} got;

static bool on_segment(void *ctx, const struct disk_segment_head *h)
{
    (void) ctx;
    got.heads[got.n_segments++] = *h;
    return !got.skips;
}

static void on_record(void *ctx, const struct disk_record *r)
{
    (void) ctx;
    got.records[got.n_records++] = *r;
}

static void read_all(void)
{
    static const struct disk_folder_reader reader = {.on_segment = on_segment, .on_record = on_record};

    got.n_segments = got.n_records = 0;
    CU_ASSERT_EQUAL(disk_folder_read(&f, &reader, &e), 0);
}

static struct disk_segment_head make_head(uint32_t number, uint64_t generation)
{
    struct disk_segment_head h = {
        .number = number, .generation = generation, .slot_bytes = 8192, .n_slots = SEGMENT_BYTES / 8192};

    tier_group_init(&h.group, "a");
    h.group.n_heads = 1;
    h.group.page_bytes = 8000;
    return h;
}

static void test_round_trip(void)
{
    struct disk_segment_head h = make_head(1, 5);
    struct disk_record r = {.key = {{7}}, .generation = 5, .slot = 3}, last = {.generation = 5, .slot = 7};

    make_folder();
    CU_ASSERT_EQUAL_FATAL(disk_folder_open(&options, &f, &e), 0);
    CU_ASSERT(f.n_segments == 0 && f.n_segments_max == 4 && f.segment_bytes == SEGMENT_BYTES);
    CU_ASSERT(f.align >= 512);
    CU_ASSERT_EQUAL(disk_folder_grow(&f, &e), 0);
    CU_ASSERT_EQUAL(disk_folder_grow(&f, &e), 0);
    CU_ASSERT_EQUAL(f.n_segments, 2);
    CU_ASSERT(disk_folder_physical_bytes(&f) >= 2 * SEGMENT_BYTES);
    CU_ASSERT_EQUAL(disk_folder_write_head(&f, &h, &e), 0);
    CU_ASSERT_EQUAL(disk_folder_write_record(&f, 1, &r, &e), 0);
    CU_ASSERT_EQUAL(disk_folder_write_record(&f, 1, &last, &e), 0);
    CU_ASSERT(fsync(f.records_fd) == 0 && physical_bytes_of("records") > 0);
    CU_ASSERT_EQUAL(disk_folder_physical_bytes(&f),
                    physical_bytes_of("records") + physical_bytes_of("pages"));
    disk_folder_deinit(&f);

    options.segment_bytes = 2 * SEGMENT_BYTES; /* the folder keeps its own */
    CU_ASSERT_EQUAL_FATAL(disk_folder_open(&options, &f, &e), 0);
    CU_ASSERT(f.segment_bytes == SEGMENT_BYTES && f.n_segments == 2);
    read_all();
    CU_ASSERT(got.n_segments == 1 && got.heads[0].number == 1 && got.heads[0].generation == 5);
    CU_ASSERT(got.n_records == 2 && got.records[0].slot == 3 && got.records[0].key.bytes[0] == 7);
    CU_ASSERT_EQUAL(got.records[1].slot, 7);
    got.skips = true;
    read_all();
    CU_ASSERT(got.n_segments == 1 && got.n_records == 0);
    got.skips = false;

    CU_ASSERT_EQUAL(disk_folder_clear_record(&f, 1, 3, &e), 0);
    read_all();
    CU_ASSERT_EQUAL(got.n_records, 1);
    h.generation = 6; /* a new life: its first life's records do not count */
    CU_ASSERT_EQUAL(disk_folder_write_head(&f, &h, &e), 0);
    read_all();
    CU_ASSERT(got.n_segments == 1 && got.n_records == 0);
    CU_ASSERT_EQUAL(disk_folder_clear_head(&f, 1, &e), 0);
    read_all();
    CU_ASSERT_EQUAL(got.n_segments, 0);
    disk_folder_deinit(&f);
    CU_ASSERT_STRING_EQUAL(e.text, "");
    remove_folder();
}

static void test_lock(void)
{
    struct disk_folder second;

    make_folder();
    CU_ASSERT_EQUAL_FATAL(disk_folder_open(&options, &f, &e), 0);
    CU_ASSERT_EQUAL(disk_folder_open(&options, &second, &e), -EADDRINUSE);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "another process uses the folder"));
    disk_folder_deinit(&f);
    CU_ASSERT_EQUAL(disk_folder_open(&options, &second, &e), 0);
    disk_folder_deinit(&second);
    remove_folder();
}

/* Opens the folder. Return: the error; nothing is changed then. */
static int refused(const char *why)
{
    off_t records = bytes_of("records"), pages = bytes_of("pages");
    int r = disk_folder_open(&options, &f, &e);

    if (r == 0) {
        disk_folder_deinit(&f);
        return 0;
    }
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, folder));
    if (!strstr(e.text, why)) {
        (void) fprintf(stderr, "\"%s\" lacks \"%s\"\n", e.text, why);
        CU_FAIL("another sentence");
    }
    CU_ASSERT(bytes_of("records") == records && bytes_of("pages") == pages);
    return r;
}

static void test_foreign_folders(void)
{
    const uint32_t version = DISK_VERSION + 1;

    make_folder();
    write_bytes("other", "x", 1, 0);
    CU_ASSERT_EQUAL(refused("a file other"), -EEXIST);
    CU_ASSERT(bytes_of("other") == 1 && bytes_of("records.new") == -1);
    (void) remove(name("other"));
    CU_ASSERT_EQUAL(mkdir(name("lost+found"), 0700), 0); /* a file system of its own */
    write_bytes("records.new", "x", 1, 0);               /* of a start that was killed */
    CU_ASSERT_EQUAL(refused(""), 0);
    CU_ASSERT_EQUAL(bytes_of("records.new"), -1);

    options.fleet = other_fleet;
    CU_ASSERT_EQUAL(refused("another index secret"), -EXDEV);
    options.fleet = fleet;
    CU_ASSERT_EQUAL(refused(""), 0);

    write_bytes("records", &version, 4, 4);
    CU_ASSERT_EQUAL(refused("a newer kvcobrad wrote it: it has version 3"), -EPROTO);
    write_bytes("records", &(uint32_t){DISK_VERSION}, 4, 4);
    write_bytes("records", "x", 1, 1000);
    CU_ASSERT_EQUAL(refused("its head is damaged"), -EBADMSG);
    write_bytes("records", "another file", 12, 0);
    CU_ASSERT_EQUAL(refused("not the file of a disk tier"), -EBADMSG);
    CU_ASSERT_EQUAL(truncate(name("records"), 100), 0);
    CU_ASSERT_EQUAL(refused("cut off"), -EBADMSG);
    (void) remove(name("records"));
    CU_ASSERT_EQUAL(refused("records is missing"), -EEXIST); /* pages without records are not taken over */
    (void) remove(name("lost+found"));
    remove_folder();
}

/* The head of a folder as @version and @page_format wrote it, with its checksum. */
static void write_old_head(uint32_t version, uint32_t page_format)
{
    struct disk_folder_head h = {
        .version = version, .page_format = page_format, .segment_bytes = SEGMENT_BYTES};
    uint8_t bytes[DISK_FOLDER_HEAD_BYTES];

    memcpy(h.fleet, fleet, sizeof(h.fleet));
    disk_folder_head_store(&h, bytes);
    write_bytes("records", bytes, sizeof(bytes), 0);
}

/* Opens a folder with one page of version @version. */
static void open_old(uint32_t version, uint32_t page_format)
{
    struct disk_segment_head h = make_head(0, 5);
    struct disk_record r = {.key = {{7}}, .generation = 5, .slot = 3};

    CU_ASSERT_EQUAL_FATAL(disk_folder_open(&options, &f, &e), 0);
    CU_ASSERT_EQUAL(disk_folder_grow(&f, &e), 0);
    CU_ASSERT_EQUAL(disk_folder_write_head(&f, &h, &e), 0);
    CU_ASSERT_EQUAL(disk_folder_write_record(&f, 0, &r, &e), 0);
    disk_folder_deinit(&f);
    write_old_head(version, page_format);
}

/* What an earlier version of this program wrote is emptied; what is not its own stays as it is. */
static void test_older_folder(void)
{
    static const uint32_t versions[][2] = {{1, 0}, {DISK_VERSION, PAGE_FORMAT_VERSION - 1}};

    for (unsigned i = 0; i < sizeof(versions) / sizeof(versions[0]); i++) {
        make_folder();
        open_old(versions[i][0], versions[i][1]);
        options.fleet = other_fleet;
        CU_ASSERT_EQUAL(refused("another index secret"), -EXDEV);
        options.fleet = fleet;
        CU_ASSERT_EQUAL(disk_folder_look(&options, &e), 0);
        CU_ASSERT_EQUAL(bytes_of("pages"), SEGMENT_BYTES);

        CU_ASSERT_EQUAL_FATAL(disk_folder_open(&options, &f, &e), 0);
        CU_ASSERT_PTR_NOT_NULL(strstr(f.emptied.text, "an earlier kvcobrad wrote the disk tier in"));
        CU_ASSERT(f.n_segments == 0 && bytes_of("pages") == 0);
        read_all();
        CU_ASSERT(got.n_segments == 0 && got.n_records == 0);
        disk_folder_deinit(&f);
        CU_ASSERT_EQUAL_FATAL(disk_folder_open(&options, &f, &e), 0); /* it is of this version now */
        CU_ASSERT_STRING_EQUAL(f.emptied.text, "");
        disk_folder_deinit(&f);
        remove_folder();
    }
}

/* A page format that this version does not know yet. */
static void test_newer_pages(void)
{
    make_folder();
    open_old(DISK_VERSION, PAGE_FORMAT_VERSION + 1);
    CU_ASSERT_EQUAL(refused("a newer kvcobrad wrote it: it has pages in format 2"), -EPROTO);
    CU_ASSERT_EQUAL(bytes_of("pages"), SEGMENT_BYTES);
    remove_folder();
}

static void test_open_to_others(void)
{
    make_folder();
    CU_ASSERT_EQUAL(chmod(folder, 0770), 0);
    CU_ASSERT_EQUAL(refused("chmod 0700"), -EPERM);
    CU_ASSERT_EQUAL(chmod(folder, 0702), 0);
    CU_ASSERT_EQUAL(refused("chmod 0700"), -EPERM);
    CU_ASSERT(chmod(folder, 0755) == 0 && bytes_of("records") == -1);
    if (geteuid() == 0) {
        CU_ASSERT_EQUAL(chown(folder, 1234, (gid_t) -1), 0);
        CU_ASSERT_EQUAL(refused("user 1234"), -EPERM);
        CU_ASSERT_EQUAL(chown(folder, 0, (gid_t) -1), 0);
    }
    CU_ASSERT_EQUAL(refused(""), 0);
    remove_folder();
}

static void test_odd_files(void)
{
    make_folder();
    CU_ASSERT_EQUAL(mkdir(name("records"), 0700), 0);
    CU_ASSERT(refused("records") < 0);
    (void) remove(name("records"));
    CU_ASSERT_EQUAL(symlink("/etc/passwd", name("records")), 0);
    CU_ASSERT_EQUAL(refused("records"), -ELOOP);
    (void) remove(name("records"));
    CU_ASSERT_EQUAL(refused(""), 0);
    (void) remove(name("pages"));
    CU_ASSERT_EQUAL(symlink("other", name("pages")), 0);
    CU_ASSERT(refused("pages") < 0);
    CU_ASSERT_EQUAL(bytes_of("other"), -1);
    options.path = "/tmp/kvcobra-tier-none";
    CU_ASSERT_EQUAL(disk_folder_open(&options, &f, &e),
                    -ENOENT); /* a folder that is missing is not created */
    remove_folder();
}

static void test_sizes(void)
{
    struct disk_segment_head h;

    make_folder();
    options.bytes = SEGMENT_BYTES - 1;
    CU_ASSERT_EQUAL(disk_folder_open(&options, &f, &e), -EINVAL);
    options.bytes = 4 * SEGMENT_BYTES;
    CU_ASSERT_EQUAL_FATAL(disk_folder_open(&options, &f, &e), 0);
    for (uint32_t i = 0; i < 4; i++) {
        h = make_head(i, i + 1);
        CU_ASSERT(disk_folder_grow(&f, &e) == 0 && disk_folder_write_head(&f, &h, &e) == 0);
    }
    disk_folder_deinit(&f);

    options.bytes = 2 * SEGMENT_BYTES; /* a smaller tier: the last segments go */
    CU_ASSERT_EQUAL_FATAL(disk_folder_open(&options, &f, &e), 0);
    CU_ASSERT(f.n_segments == 2 && bytes_of("pages") == 2 * SEGMENT_BYTES);
    read_all();
    CU_ASSERT_EQUAL(got.n_segments, 2);
    disk_folder_deinit(&f);

    options.bytes = 4 * SEGMENT_BYTES; /* and do not come back */
    CU_ASSERT_EQUAL_FATAL(disk_folder_open(&options, &f, &e), 0);
    CU_ASSERT(f.n_segments == 2 && f.n_segments_max == 4);
    CU_ASSERT(disk_folder_grow(&f, &e) == 0 && disk_folder_grow(&f, &e) == 0);
    read_all();
    CU_ASSERT_EQUAL(got.n_segments, 2);
    disk_folder_deinit(&f);

    CU_ASSERT_EQUAL(truncate(name("pages"), 2 * SEGMENT_BYTES - 1), 0); /* cut off by another program */
    CU_ASSERT_EQUAL_FATAL(disk_folder_open(&options, &f, &e), 0);
    CU_ASSERT_EQUAL(f.n_segments, 1);
    disk_folder_deinit(&f);

    (void) remove(name("pages")); /* records without pages end, so that a later segment does not get them */
    CU_ASSERT_EQUAL_FATAL(disk_folder_open(&options, &f, &e), 0);
    CU_ASSERT(f.n_segments == 0 && bytes_of("records") == DISK_FOLDER_HEAD_BYTES);
    disk_folder_deinit(&f);
    remove_folder();
}

/* What the check says of a folder that is open: @why is in the sentence. */
static void expect_check(int r, const char *why)
{
    CU_ASSERT_EQUAL(disk_folder_check(&f, &e), r);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, why));
    if (!strstr(e.text, why))
        printf("    %s\n", e.text);
}

static void test_check(void)
{
    char away[80];

    make_folder();
    CU_ASSERT_EQUAL_FATAL(disk_folder_open(&options, &f, &e), 0);
    CU_ASSERT_EQUAL(disk_folder_check(&f, &e), 0);
    (void) snprintf(away, sizeof(away), "%s-away", folder);
    CU_ASSERT_EQUAL(rename(folder, away), 0);
    expect_check(-ENOENT, "of the disk tier is not there");
    CU_ASSERT_EQUAL(mkdir(folder, 0700), 0);
    expect_check(-ESTALE, "of the disk tier was replaced");
    CU_ASSERT(rmdir(folder) == 0 && rename(away, folder) == 0);
    CU_ASSERT_EQUAL(disk_folder_check(&f, &e), 0);
    CU_ASSERT_EQUAL(remove(name("pages")), 0);
    expect_check(-ENOENT, "/pages is not there");
    write_bytes("pages", "x", 1, 0);
    expect_check(-ESTALE, "/pages was replaced");
    disk_folder_deinit(&f);
    remove_folder();
}

static void test_records_are_compared(void)
{
    static uint8_t copy[DISK_FOLDER_HEAD_BYTES];
    const struct disk_record r = {.slot = 0, .generation = 1};
    uint64_t counter;
    int fd;

    make_folder();
    CU_ASSERT_EQUAL_FATAL(disk_folder_open(&options, &f, &e), 0);
    counter = f.counter;
    CU_ASSERT_EQUAL(disk_folder_check(&f, &e), 0);
    CU_ASSERT_EQUAL(f.counter, counter); /* nothing was written */
    fd = open(name("records"), O_RDONLY | O_CLOEXEC);
    CU_ASSERT(fd >= 0 && pread(fd, copy, sizeof(copy), 0) == sizeof(copy));
    (void) close(fd);
    CU_ASSERT_EQUAL(disk_folder_grow(&f, &e), 0);
    CU_ASSERT_EQUAL(disk_folder_write_record(&f, 0, &r, &e), 0);
    CU_ASSERT_EQUAL(disk_folder_check(&f, &e), 0);
    CU_ASSERT_EQUAL(f.counter, counter + 1);
    CU_ASSERT_EQUAL(disk_folder_check(&f, &e), 0);

    write_bytes("records", copy, sizeof(copy), 0); /* a copy of before, in place */
    expect_check(-ESTALE, "/records was overwritten by another program");
    disk_folder_deinit(&f);
    CU_ASSERT_EQUAL_FATAL(disk_folder_open(&options, &f, &e), 0); /* it is a tier, with fewer pages */
    CU_ASSERT_EQUAL(f.counter, counter + 1);

    CU_ASSERT_EQUAL(disk_folder_write_record(&f, 0, &r, &e), 0);
    CU_ASSERT_EQUAL(disk_folder_check(&f, &e), 0);
    CU_ASSERT_EQUAL(truncate(name("records"), DISK_FOLDER_HEAD_BYTES), 0); /* the counter is as it was */
    expect_check(-ESTALE, "/records was shortened");
    CU_ASSERT_EQUAL(disk_folder_write_record(&f, 0, &r, &e), -ESTALE); /* which would make it as long again */
    CU_ASSERT_EQUAL(bytes_of("records"), DISK_FOLDER_HEAD_BYTES);
    CU_ASSERT_EQUAL(truncate(name("records"), (off_t) f.records_bytes), 0);
    CU_ASSERT_EQUAL(truncate(name("pages"), SEGMENT_BYTES - 1), 0);
    expect_check(-ESTALE, "/pages was shortened");
    CU_ASSERT_EQUAL(truncate(name("pages"), SEGMENT_BYTES), 0);

    CU_ASSERT_EQUAL(remove(name("records")), 0);
    expect_check(-ENOENT, "/records is not there");
    write_bytes("records", copy, sizeof(copy), 0);
    expect_check(-ESTALE, "/records was replaced");
    CU_ASSERT_EQUAL(truncate(name("records"), 0), 0);
    disk_folder_deinit(&f);
    remove_folder();
}

/* The pages alone cannot be read, but an administrator may still have the records. */
static void test_pages_without_records(void)
{
    make_folder();
    CU_ASSERT_EQUAL_FATAL(disk_folder_open(&options, &f, &e), 0);
    disk_folder_deinit(&f);
    CU_ASSERT_EQUAL(remove(name("records")), 0);
    CU_ASSERT_EQUAL(disk_folder_open(&options, &f, &e), -EEXIST);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "/records is missing, but "));
    CU_ASSERT(bytes_of("pages") == 0 && bytes_of("records") == -1);
    CU_ASSERT_EQUAL(remove(name("pages")), 0);
    CU_ASSERT_EQUAL(disk_folder_open(&options, &f, &e), 0);
    disk_folder_deinit(&f);
    remove_folder();
}

/* Rights and owners that change while the tier runs, and those that a start finds. */
static void test_rights_of_all_files(void)
{
    static const char *const files[] = {".", "records", "pages"};

    make_folder();
    CU_ASSERT_EQUAL_FATAL(disk_folder_open(&options, &f, &e), 0);
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        mode_t mode = i == 0 ? 0700 : 0600;

        CU_ASSERT_EQUAL(chmod(name(files[i]), 0777), 0);
        expect_check(-EPERM, i == 0 ? folder : name(files[i]));
        CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "other users may write to"));
        disk_folder_deinit(&f);
        CU_ASSERT_EQUAL(disk_folder_open(&options, &f, &e), -EPERM);
        CU_ASSERT_EQUAL(chmod(name(files[i]), mode), 0);
        CU_ASSERT_EQUAL_FATAL(disk_folder_open(&options, &f, &e), 0);
        if (geteuid() != 0)
            continue;
        CU_ASSERT_EQUAL(chown(name(files[i]), 1234, (gid_t) -1), 0);
        expect_check(-EPERM, "belongs to user 1234");
        CU_ASSERT_EQUAL(chown(name(files[i]), 0, (gid_t) -1), 0);
        CU_ASSERT_EQUAL(disk_folder_check(&f, &e), 0);
    }
    disk_folder_deinit(&f);
    remove_folder();
}

/* The file system is unmounted while its files are open: the folder below the mount point is another one. */
static void test_other_file_system(void)
{
    make_folder();
    CU_ASSERT_EQUAL_FATAL(disk_folder_open(&options, &f, &e), 0);
    options.has_device = true;
    options.device = f.identity.device;
    disk_folder_deinit(&f);
    CU_ASSERT_EQUAL_FATAL(disk_folder_open(&options, &f, &e), 0);
    disk_folder_deinit(&f);
    options.device++;
    CU_ASSERT_EQUAL(disk_folder_open(&options, &f, &e), -ESTALE);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "kvcobra tier resume"));
    options.has_device = false;
    CU_ASSERT_EQUAL(disk_folder_open(&options, &f, &e), 0);
    disk_folder_deinit(&f);
    remove_folder();
}

/* A file system without room, and one that is read-only. */
static void test_small_file_system(void)
{
    make_folder();
    if (mount("none", folder, "tmpfs", 0, "size=256k,mode=0700") < 0) {
        test_skip("only root can mount a small file system");
        remove_folder();
        return;
    }
    options.bytes = 64 * SEGMENT_BYTES;
    if (disk_folder_open(&options, &f, &e) == -EOPNOTSUPP) { /* tmpfs has direct I/O since Linux 6.6 */
        CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "no direct I/O"));
    } else {
        int r = 0;

        for (unsigned i = 0; i < 64 && r == 0; i++)
            r = disk_folder_grow(&f, &e);
        CU_ASSERT_EQUAL(r, -ENOSPC);
        CU_ASSERT(f.n_segments > 0 && f.n_segments < 4);
        CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "cannot allocate 65536 bytes"));
        disk_folder_deinit(&f);
        CU_ASSERT_EQUAL(mount("none", folder, "tmpfs", MS_REMOUNT | MS_RDONLY, NULL), 0);
        CU_ASSERT_EQUAL(refused("records"), -EROFS);
    }
    CU_ASSERT_EQUAL(umount(folder), 0);
    remove_folder();
}

const struct test_case test_cases[] = {
    TEST(test_round_trip),
    TEST(test_lock),
    TEST(test_foreign_folders),
    TEST(test_older_folder),
    TEST(test_newer_pages),
    TEST(test_open_to_others),
    TEST(test_odd_files),
    TEST(test_sizes),
    TEST(test_check),
    TEST(test_records_are_compared),
    TEST(test_pages_without_records),
    TEST(test_rights_of_all_files),
    TEST(test_other_file_system),
    TEST(test_small_file_system),
    TEST_END,
};
