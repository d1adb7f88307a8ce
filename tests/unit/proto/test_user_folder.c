/* The folder of a user's own daemon: which one, and what another user may have put there. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "proto/user_folder.h"
#include "tests/lib/test.h"

const char test_suite[] = "user_folder";

static char above[32], path[64];

static void begin(void)
{
    (void) strcpy(above, "/tmp/kvcobra-test-XXXXXX");
    CU_ASSERT_PTR_NOT_NULL_FATAL(mkdtemp(above));
    (void) snprintf(path, sizeof(path), "%s/kvcobra", above);
}

static void end(void)
{
    char command[64];

    (void) snprintf(command, sizeof(command), "rm -r %s", above);
    CU_ASSERT_EQUAL(system(command), 0);
    CU_ASSERT_EQUAL(unsetenv("XDG_RUNTIME_DIR"), 0);
}

static void test_order(void)
{
    char found[USER_FOLDER_BYTES], last[64];

    begin();
    CU_ASSERT_EQUAL(setenv("XDG_RUNTIME_DIR", above, 1), 0);
    user_folder_choose(found);
    CU_ASSERT_STRING_EQUAL(found, path);
    CU_ASSERT_FALSE(user_folder_path(0, found) && strcmp(found, path) != 0);

    /* others may write to it, as to /tmp; it is relative; it is not there */
    CU_ASSERT_EQUAL(chmod(above, 0777), 0);
    CU_ASSERT_FALSE(user_folder_path(0, found));
    CU_ASSERT_EQUAL(chmod(above, 0700), 0);
    CU_ASSERT_TRUE(user_folder_path(0, found));
    CU_ASSERT_EQUAL(setenv("XDG_RUNTIME_DIR", "tmp", 1), 0);
    CU_ASSERT_FALSE(user_folder_path(0, found));
    CU_ASSERT_EQUAL(setenv("XDG_RUNTIME_DIR", path, 1), 0);
    CU_ASSERT_FALSE(user_folder_path(0, found));
    CU_ASSERT_EQUAL(unsetenv("XDG_RUNTIME_DIR"), 0);

    (void) snprintf(last, sizeof(last), "/tmp/kvcobra-%lu", (unsigned long) geteuid());
    CU_ASSERT_TRUE(user_folder_path(2, found));
    CU_ASSERT_STRING_EQUAL(found, last);
    CU_ASSERT_STRING_EQUAL(path + strlen(above), "/kvcobra");
    end();
}

static void test_has(void)
{
    char socket[96];

    begin();
    (void) snprintf(socket, sizeof(socket), "%s/kvcobra.sock", path);
    CU_ASSERT_FALSE(user_folder_has(socket));
    CU_ASSERT_EQUAL(setenv("XDG_RUNTIME_DIR", above, 1), 0);
    CU_ASSERT_TRUE(user_folder_has(socket));
    CU_ASSERT_FALSE(user_folder_has(path)); /* it is the folder, in another one */
    CU_ASSERT_FALSE(user_folder_has("kvcobra.sock"));
    CU_ASSERT_FALSE(user_folder_has("/run/kvcobra/kvcobra.sock"));
    (void) snprintf(socket, sizeof(socket), "/tmp/kvcobra-%lu/operator.sock", (unsigned long) geteuid());
    CU_ASSERT_TRUE(user_folder_has(socket));
    end();
}

/* The sentence names @path and has @words in it. */
static void refused(int err, const char *words)
{
    struct errmsg e = {""};

    CU_ASSERT_FALSE(user_folder_is_private(path));
    CU_ASSERT_EQUAL(user_folder_open(path, &e), err);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, path));
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, words));
}

static void test_open(void)
{
    _cleanup_(closep) int fd = -1;
    struct errmsg e = {""};
    struct stat st;

    begin();
    (void) umask(0);
    fd = user_folder_open(path, &e);
    CU_ASSERT_FATAL(fd >= 0 && fstat(fd, &st) == 0);
    CU_ASSERT_EQUAL(st.st_mode, S_IFDIR | 0700);
    CU_ASSERT_TRUE(user_folder_is_private(path));
    closep(&fd);
    fd = user_folder_open(path, &e); /* again */
    CU_ASSERT(fd >= 0);
    end();
}

static void test_hostile(void)
{
    char elsewhere[64];
    FILE *f;

    begin();
    (void) snprintf(elsewhere, sizeof(elsewhere), "%s/elsewhere", above);
    CU_ASSERT_EQUAL(mkdir(elsewhere, 0700), 0);

    CU_ASSERT_EQUAL(symlink(elsewhere, path), 0);
    refused(-ENOTDIR, "must be a folder of this user"); /* O_DIRECTORY of a link */
    CU_ASSERT_EQUAL(unlink(path), 0);
    CU_ASSERT_EQUAL(symlink("nothing", path), 0);
    refused(-ENOTDIR, "must be a folder of this user");
    CU_ASSERT_EQUAL(unlink(path), 0);

    CU_ASSERT_EQUAL(mkfifo(path, 0600), 0);
    refused(-ENOTDIR, "must be a folder of this user"); /* and the call does not wait for a writer */
    CU_ASSERT_EQUAL(unlink(path), 0);
    f = fopen(path, "we");
    CU_ASSERT_FATAL(f && fclose(f) == 0);
    refused(-ENOTDIR, "must be a folder of this user");
    CU_ASSERT_EQUAL(unlink(path), 0);

    CU_ASSERT_EQUAL(mkdir(path, 0700), 0);
    for (mode_t bit = 1; bit <= 0040; bit <<= 1) {
        CU_ASSERT_EQUAL(chmod(path, 0700 | bit), 0);
        refused(-EPERM, "chmod 0700");
    }
    CU_ASSERT_EQUAL(chmod(path, 0700), 0);
    if (geteuid() == 0) {
        CU_ASSERT_EQUAL(chown(path, 65534, (gid_t) -1), 0);
        refused(-EPERM, "belongs to user 65534");
    }
    end();
}

static void test_no_folder_above(void)
{
    begin();
    (void) snprintf(path, sizeof(path), "%s/none/kvcobra", above);
    refused(-ENOENT, "cannot make the folder");
    end();
}

const struct test_case test_cases[] = {
    TEST(test_order),           TEST(test_has), TEST(test_open), TEST(test_hostile),
    TEST(test_no_folder_above), TEST_END};
