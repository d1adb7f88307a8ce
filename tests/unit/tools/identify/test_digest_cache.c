/* Remembered digests: of exactly the same files, of old files only, in a folder that others cannot write. */
#include "tools/identify/digest_cache.h"
#include "tests/lib/test.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/errmsg.h"

const char test_suite[] = "digest_cache";

enum { NOW = 1000000 };

static char folder[] = "/tmp/kvcobra-digest-cache-XXXXXX", records[64], other_path[64];

static void begin(void)
{
    memcpy(folder + strlen(folder) - 6, "XXXXXX", 6);
    assert(mkdtemp(folder));
    (void) snprintf(records, sizeof(records), "%s/kvcobra", folder);
    (void) snprintf(other_path, sizeof(other_path), "%s/model", folder);
    assert(setenv("XDG_CACHE_HOME", folder, 1) == 0 && mkdir(other_path, 0700) == 0);
}

static void end(void)
{
    char command[128];

    (void) snprintf(command, sizeof(command), "rm -r %s", folder);
    assert(system(command) == 0); /* NOLINT(cert-env33-c): the folder of this test */
}

/* Two files that changed @age seconds ago. */
static struct digest_cache_files files(int64_t age, uint64_t size)
{
    struct digest_cache_files f = {.text = NULL};
    struct stat st = {.st_dev = 1, .st_ino = 2, .st_size = (off_t) size};

    st.st_mtim.tv_sec = 5;
    st.st_ctim.tv_sec = NOW - age;
    assert(digest_cache_add_file(&f, "a", &st, NOW) == 0);
    st.st_ctim.tv_sec = 6;
    assert(digest_cache_add_file(&f, "b", &st, NOW) == 0);
    return f;
}

static bool finds(const char *path, const struct digest_cache_files *f)
{
    _cleanup_(digest_cache_deinit) struct digest_cache c = DIGEST_CACHE_INIT;
    struct digest_cache_entry entry = {.n_tensors = 9};
    struct errmsg e = {""};
    bool found;

    CU_ASSERT_EQUAL_FATAL(digest_cache_open(path, &c, &e), 0);
    found = digest_cache_find(&c, f, &entry);
    CU_ASSERT_EQUAL(entry.n_tensors, found ? 272 : 9);
    CU_ASSERT(!found || (entry.digest[0] == 0xab && entry.digest[31] == 0xcd));
    return found;
}

static void put(const char *path, const struct digest_cache_files *f)
{
    _cleanup_(digest_cache_deinit) struct digest_cache c = DIGEST_CACHE_INIT;
    struct digest_cache_entry entry = {.digest = {[0] = 0xab, [31] = 0xcd}, .n_tensors = 272};
    struct errmsg e = {""};

    CU_ASSERT_EQUAL_FATAL(digest_cache_open(path, &c, &e), 0);
    CU_ASSERT_EQUAL(digest_cache_put(&c, f, &entry), 0);
}

static void test_same_files_only(void)
{
    _cleanup_(digest_cache_files_deinit) struct digest_cache_files f = files(3, 10), larger = files(3, 11);
    _cleanup_(digest_cache_files_deinit) struct digest_cache_files later = files(4, 10),
                                                                   none = {.text = NULL};

    begin();
    CU_ASSERT(!finds(folder, &f));
    put(folder, &f);
    CU_ASSERT(finds(folder, &f));
    CU_ASSERT(!finds(folder, &larger));
    CU_ASSERT(!finds(folder, &later));
    CU_ASSERT(!finds(folder, &none));
    CU_ASSERT(!finds(other_path, &f)); /* records are by path */
    put(folder, &larger);
    CU_ASSERT(finds(folder, &larger) && !finds(folder, &f));
    end();
}

static void test_young_files(void)
{
    begin();
    for (int64_t age = -1; age <= 3; age++) {
        _cleanup_(digest_cache_files_deinit) struct digest_cache_files f = files(age, 10);

        CU_ASSERT_EQUAL(f.young, age < 2);
        put(folder, &f);
        CU_ASSERT_EQUAL(finds(folder, &f), age >= 2);
    }
    end();
}

/* The only record of the folder. */
static int record(int flags)
{
    char command[160], path[128] = "";
    FILE *p;
    int fd;

    (void) snprintf(command, sizeof(command), "ls -d %s/model-id-*", records);
    p = popen(command, "r"); /* NOLINT(cert-env33-c): the folder of this test */
    assert(p && fgets(path, sizeof(path), p) && pclose(p) == 0);
    path[strcspn(path, "\n")] = '\0';
    fd = open(path, flags | O_CLOEXEC);
    assert(fd >= 0);
    return fd;
}

static void test_damaged_records(void)
{
    _cleanup_(digest_cache_files_deinit) struct digest_cache_files f = files(3, 10);
    struct stat st;
    int fd;

    begin();
    put(folder, &f);
    fd = record(O_RDWR);
    CU_ASSERT(fstat(fd, &st) == 0 && (st.st_mode & 07777) == 0600);
    for (off_t n = st.st_size - 1; n >= 0; n--) { /* cut at every byte */
        CU_ASSERT_EQUAL(ftruncate(fd, n), 0);
        CU_ASSERT(!finds(folder, &f));
    }
    put(folder, &f);
    CU_ASSERT_EQUAL(pwrite(fd, "x", 1, st.st_size - 20), 1); /* no digit */
    CU_ASSERT(!finds(folder, &f));
    put(folder, &f);
    CU_ASSERT_EQUAL(pwrite(fd, "x", 1, st.st_size), 1); /* bytes behind the end */
    CU_ASSERT(!finds(folder, &f));
    (void) close(fd);
    end();
}

static void test_rights(void)
{
    _cleanup_(digest_cache_files_deinit) struct digest_cache_files f = files(3, 10);
    struct digest_cache c = DIGEST_CACHE_INIT;
    struct errmsg e = {""};
    int fd;

    begin();
    put(folder, &f);
    fd = record(O_RDWR);
    CU_ASSERT_EQUAL(fchmod(fd, 0640), 0);
    CU_ASSERT_EQUAL(digest_cache_open(folder, &c, &e), -EPERM);
    CU_ASSERT_EQUAL(fchmod(fd, 0600), 0);
    (void) close(fd);
    CU_ASSERT_EQUAL(chmod(records, 0720), 0);
    CU_ASSERT_EQUAL(digest_cache_open(folder, &c, &e), -EPERM);
    CU_ASSERT(strstr(e.text, "0700") != NULL);
    CU_ASSERT(c.fd == -1 && !c.record); /* untouched */
    end();

    /* no place at all is no error */
    e = (struct errmsg){""};
    CU_ASSERT(setenv("XDG_CACHE_HOME", "relative", 1) == 0 && unsetenv("HOME") == 0);
    CU_ASSERT_EQUAL(digest_cache_open("/tmp", &c, &e), -ENOENT);
    CU_ASSERT_STRING_EQUAL(e.text, "");
}

/* A second process gets the lock, and then the digest, when the first one has written it. */
static void test_lock(void)
{
    _cleanup_(digest_cache_files_deinit) struct digest_cache_files f = files(3, 10);
    struct digest_cache_entry entry = {.digest = {[0] = 0xab, [31] = 0xcd}, .n_tensors = 272};
    struct digest_cache c = DIGEST_CACHE_INIT;
    struct errmsg e = {""};
    int status, ready[2];
    char byte;
    pid_t pid;

    begin();
    CU_ASSERT_EQUAL_FATAL(pipe(ready), 0);
    CU_ASSERT_EQUAL_FATAL(digest_cache_open(folder, &c, &e), 0);
    pid = fork();
    assert(pid >= 0);
    if (pid == 0) {
        struct digest_cache mine = DIGEST_CACHE_INIT;

        digest_cache_deinit(&c); /* the lock belongs to the open file, which the parent keeps open */
        _exit(write(ready[1], "x", 1) == 1 && digest_cache_open(folder, &mine, &e) == 0 &&
                      digest_cache_find(&mine, &f, &entry)
                  ? 0
                  : 1);
    }
    CU_ASSERT_EQUAL(read(ready[0], &byte, 1), 1);
    CU_ASSERT_EQUAL(digest_cache_put(&c, &f, &entry), 0);
    digest_cache_deinit(&c);
    CU_ASSERT(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    (void) close(ready[0]);
    (void) close(ready[1]);
    end();
}

const struct test_case test_cases[] = {
    TEST(test_same_files_only), TEST(test_young_files), TEST(test_damaged_records),
    TEST(test_rights),          TEST(test_lock),        TEST_END,
};
