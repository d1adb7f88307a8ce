/* Tests of daemon/tables/state_folder.c. */
#include "daemon/tables/state_folder.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/errmsg.h"
#include "tests/lib/test.h"

const char test_suite[] = "state_folder";

static char folder[] = "/tmp/kvcobra-state-XXXXXX", state[sizeof(folder) + 8];

static void make_folder(void)
{
    memcpy(folder + sizeof(folder) - 7, "XXXXXX", 6);
    assert(mkdtemp(folder));
    (void) snprintf(state, sizeof(state), "%s/state", folder);
}

static void remove_folder(void)
{
    static const char *const names[] = {"state/lock", "state/secret", "state", "moved/lock", "moved", ""};
    char path[128];

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        (void) snprintf(path, sizeof(path), "%s/%s", folder, names[i]);
        (void) remove(path);
    }
}

static const char *path_of(const char *name)
{
    static char path[128];

    (void) snprintf(path, sizeof(path), "%s/%s", folder, name);
    return path;
}

static void test_lock(void)
{
    struct errmsg e = {""};
    struct state_folder first = {.path = NULL}, second = {.path = NULL};
    struct stat st;

    make_folder();
    CU_ASSERT_EQUAL_FATAL(state_folder_open(state, &first, &e), 0);
    CU_ASSERT_EQUAL(stat(state, &st), 0);
    CU_ASSERT_EQUAL(st.st_mode & 0777, 0700);
    CU_ASSERT_EQUAL(state_folder_open(state, &second, &e), -EADDRINUSE);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "another kvcobrad uses the state folder"));
    CU_ASSERT_PTR_NULL(second.path);
    CU_ASSERT_EQUAL(unlink(path_of("state/lock")), 0); /* the folder is locked, not its file */
    CU_ASSERT_EQUAL(state_folder_open(state, &second, &e), -EADDRINUSE);
    state_folder_close(&first);
    CU_ASSERT_EQUAL(state_folder_open(state, &second, &e), 0);
    state_folder_close(&second);
    remove_folder();
    CU_ASSERT_EQUAL(state_folder_open(state, &second, &e), -ENOENT); /* its parent does not exist */
}

/* An earlier version locks the file only. */
static void test_lock_of_an_earlier_version(void)
{
    struct errmsg e = {""};
    struct state_folder f = {.path = NULL};
    int fd;

    make_folder();
    CU_ASSERT_EQUAL_FATAL(mkdir(state, 0700), 0);
    fd = open(path_of("state/lock"), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    CU_ASSERT_EQUAL_FATAL(flock(fd, LOCK_EX | LOCK_NB), 0);
    CU_ASSERT_EQUAL(state_folder_open(state, &f, &e), -EADDRINUSE);
    (void) close(fd);
    remove_folder();
}

static void test_replaced(void)
{
    struct errmsg e = {""};
    struct state_folder f = {.path = NULL}, other = {.path = NULL};
    char moved[sizeof(folder) + 8];

    make_folder();
    (void) snprintf(moved, sizeof(moved), "%s/moved", folder);
    CU_ASSERT_EQUAL_FATAL(state_folder_open(state, &f, &e), 0);
    CU_ASSERT_EQUAL(state_folder_check(&f, &e), 0);
    CU_ASSERT_EQUAL(state_folder_check(NULL, &e), 0);
    CU_ASSERT_EQUAL(rename(state, moved), 0);
    CU_ASSERT_EQUAL(state_folder_check(&f, &e), -ENOENT);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "is not there"));
    CU_ASSERT_EQUAL(state_folder_open(state, &other, &e), 0); /* another daemon has it now */
    CU_ASSERT_EQUAL(state_folder_check(&f, &e), -ESTALE);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "was replaced by another one"));
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "restart kvcobrad"));
    CU_ASSERT_EQUAL(state_folder_check(&other, &e), 0);
    state_folder_close(&other);
    state_folder_close(&f);
    remove_folder();
}

static void test_rights(void)
{
    struct errmsg e = {""};
    struct state_folder f = {.path = NULL};

    make_folder();
    CU_ASSERT_EQUAL_FATAL(mkdir(state, 0700), 0);
    CU_ASSERT_EQUAL(chmod(state, 0777), 0);
    CU_ASSERT_EQUAL(state_folder_open(state, &f, &e), -EPERM);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "other users may write to"));
    CU_ASSERT_EQUAL(chmod(state, 0755), 0);
    CU_ASSERT_EQUAL(state_folder_open(state, &f, &e), 0);
    state_folder_close(&f);
    if (geteuid() == 0) {
        CU_ASSERT_EQUAL(chown(state, 4321, (gid_t) -1), 0);
        CU_ASSERT_EQUAL(state_folder_open(state, &f, &e), -EPERM);
        CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "belongs to user 4321"));
    }
    remove_folder();
}

static void test_secret(void)
{
    uint8_t a[32] = {0}, b[32] = {0}, c[32] = {0};
    struct errmsg e = {""};
    struct state_folder lock = {.path = NULL};
    const char *path;
    FILE *f;

    make_folder();
    CU_ASSERT_EQUAL_FATAL(state_folder_open(state, &lock, &e), 0);
    CU_ASSERT_EQUAL(state_folder_secret(state, a, &e), 0);
    CU_ASSERT_EQUAL(state_folder_secret(state, b, &e), 0);
    CU_ASSERT_EQUAL(memcmp(a, b, sizeof(a)), 0);
    CU_ASSERT_EQUAL(state_folder_secret(NULL, c, &e), 0); /* without a folder it is new */
    CU_ASSERT_NOT_EQUAL(memcmp(a, c, sizeof(a)), 0);

    path = path_of("state/secret");
    f = fopen(path, "w");
    assert(f && fputs("short", f) >= 0 && fclose(f) == 0);
    CU_ASSERT_EQUAL(state_folder_secret(state, b, &e), -EBADMSG);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "instead of 32"));
    state_folder_close(&lock);
    remove_folder();
}

/* The file is as secret as a key file. */
static void test_rights_of_the_secret(void)
{
    uint8_t a[32], b[32];
    struct errmsg e = {""};
    const char *path;

    make_folder();
    CU_ASSERT_EQUAL_FATAL(mkdir(state, 0700), 0);
    CU_ASSERT_EQUAL(state_folder_secret(state, a, &e), 0);
    path = path_of("state/secret");
    for (unsigned mode = 01; mode <= 0040; mode *= 2) {
        CU_ASSERT_EQUAL(chmod(path, 0600 | mode), 0);
        CU_ASSERT_EQUAL(state_folder_secret(state, b, &e), -EPERM);
        CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "chmod 0600 it"));
    }
    CU_ASSERT_EQUAL(chmod(path, 0400), 0);
    CU_ASSERT_EQUAL(state_folder_secret(state, b, &e), 0);
    CU_ASSERT_EQUAL(memcmp(a, b, sizeof(a)), 0);
    if (geteuid() == 0) {
        CU_ASSERT_EQUAL(chown(path, 4321, (gid_t) -1), 0);
        CU_ASSERT_EQUAL(state_folder_secret(state, b, &e), -EPERM);
        CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "belongs to user 4321"));
    }
    remove_folder();
}

const struct test_case test_cases[] = {
    TEST(test_lock),
    TEST(test_lock_of_an_earlier_version),
    TEST(test_replaced),
    TEST(test_rights),
    TEST(test_secret),
    TEST(test_rights_of_the_secret),
    TEST_END,
};
