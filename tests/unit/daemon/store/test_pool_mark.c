/* The file that tells the next start that a pool was stored. */
#include "daemon/store/pool_mark.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/lib/test.h"

const char test_suite[] = "pool_mark";

static void test_mark(void)
{
    char folder[] = "/tmp/kvcobra-test-XXXXXX", path[64];
    struct stat first, second;

    CU_ASSERT_FATAL(mkdtemp(folder) != NULL);
    (void) snprintf(path, sizeof(path), "%s/stored-pool", folder);
    CU_ASSERT(!pool_mark_exists(folder));
    pool_mark_set(folder, false);
    CU_ASSERT(!pool_mark_exists(folder));
    pool_mark_set(folder, true);
    CU_ASSERT(pool_mark_exists(folder));
    CU_ASSERT_EQUAL_FATAL(stat(path, &first), 0);
    pool_mark_set(folder, true);
    CU_ASSERT_EQUAL_FATAL(stat(path, &second), 0);
    CU_ASSERT_EQUAL(first.st_ino, second.st_ino); /* not written again */
    pool_mark_set(folder, false);
    CU_ASSERT(!pool_mark_exists(folder));
    CU_ASSERT_EQUAL(rmdir(folder), 0);

    /* without a folder there is no mark; a folder that is gone is a warning */
    pool_mark_set(NULL, true);
    CU_ASSERT(!pool_mark_exists(NULL));
    pool_mark_set(folder, true);
    CU_ASSERT(!pool_mark_exists(folder));
}

const struct test_case test_cases[] = {TEST(test_mark), TEST_END};
