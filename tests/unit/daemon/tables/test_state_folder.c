/* Tests of daemon/tables/state_folder.c. */
#include "daemon/tables/state_folder.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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
    static const char *const names[] = {"state/lock", "state/secret", "state", ""};
    char path[128];

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        (void) snprintf(path, sizeof(path), "%s/%s", folder, names[i]);
        (void) remove(path);
    }
}

static void test_lock(void)
{
    struct errmsg e = {""};
    struct stat st;
    int first = -1, second = -1;

    make_folder();
    CU_ASSERT_EQUAL_FATAL(state_folder_lock(state, &first, &e), 0);
    CU_ASSERT_EQUAL(stat(state, &st), 0);
    CU_ASSERT_EQUAL(st.st_mode & 0777, 0700);
    CU_ASSERT_EQUAL(state_folder_lock(state, &second, &e), -EADDRINUSE);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "another kvcobrad uses the state folder"));
    CU_ASSERT_EQUAL(second, -1);
    (void) close(first);
    CU_ASSERT_EQUAL(state_folder_lock(state, &second, &e), 0);
    (void) close(second);
    remove_folder();
    CU_ASSERT_EQUAL(state_folder_lock(state, &second, &e), -ENOENT); /* its parent does not exist */
}

static void test_secret(void)
{
    uint8_t a[32] = {0}, b[32] = {0}, c[32] = {0};
    struct errmsg e = {""};
    char path[128];
    FILE *f;
    int lock;

    make_folder();
    CU_ASSERT_EQUAL_FATAL(state_folder_lock(state, &lock, &e), 0);
    CU_ASSERT_EQUAL(state_folder_secret(state, a, &e), 0);
    CU_ASSERT_EQUAL(state_folder_secret(state, b, &e), 0);
    CU_ASSERT_EQUAL(memcmp(a, b, sizeof(a)), 0);
    CU_ASSERT_EQUAL(state_folder_secret(NULL, c, &e), 0); /* without a folder it is new */
    CU_ASSERT_NOT_EQUAL(memcmp(a, c, sizeof(a)), 0);

    (void) snprintf(path, sizeof(path), "%s/secret", state);
    f = fopen(path, "w");
    assert(f && fputs("short", f) >= 0 && fclose(f) == 0);
    CU_ASSERT_EQUAL(state_folder_secret(state, b, &e), -EBADMSG);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "instead of 32"));
    (void) close(lock);
    remove_folder();
}

const struct test_case test_cases[] = {
    TEST(test_lock),
    TEST(test_secret),
    TEST_END,
};
