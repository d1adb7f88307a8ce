/* The expected errors in the provenance of a table: read if they are possible, refused if not. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/table_expected.h"
#include "tests/lib/test.h"

static void test_expected(void)
{
    static const char *const bad[] = {
        "",
        "{",
        "{}",
        "[]",
        "{\"expected\":3}",
        "{\"expected\":{\"error_k\":0.5}}",
        "{\"expected\":{\"error_k\":0.5,\"error_v\":\"0.5\"}}",
        "{\"expected\":{\"error_k\":-0.5,\"error_v\":0.5}}",
        "{\"expected\":{\"error_k\":0.5,\"error_v\":16.5}}",
        "{\"expected\":{\"error_k\":1e999,\"error_v\":0.5}}",
    };
    double x[2] = {7, 8};
    char *large = malloc(70000);

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        CU_ASSERT(table_expected_errors(bad[i], x) == -ENODATA && x[0] == 7 && x[1] == 8);
    CU_ASSERT_PTR_NOT_NULL_FATAL(large);
    (void) memset(large, ' ', 69999);
    (void) strcpy(large + 69900, "{\"expected\":{\"error_k\":0.5,\"error_v\":0.25}}");
    CU_ASSERT_EQUAL(table_expected_errors(large, x), -ENODATA);
    free(large);
    CU_ASSERT_EQUAL(
        table_expected_errors("{\"expected\":{\"error_k\":0.1,\"error_v\":0.2,\"unseen_error_k\":0.3,"
                              "\"unseen_error_v\":0.4}}",
                              x),
        0);
    CU_ASSERT(x[0] == 0.3 && x[1] == 0.4); /* of other texts, if the table has them */
    CU_ASSERT_EQUAL(
        table_expected_errors("{\"expected\":{\"error_k\":0.1,\"error_v\":0.2,\"unseen_error_k\":-1,"
                              "\"unseen_error_v\":0.4}}",
                              x),
        0);
    CU_ASSERT(x[0] == 0.1 && x[1] == 0.2);
    CU_ASSERT_EQUAL(table_expected_errors("{\"a\":1,\"expected\":{\"error_k\":0.5,\"error_v\":16}}", x), 0);
    CU_ASSERT(x[0] == 0.5 && x[1] == 16);
}

const struct test_case test_cases[] = {TEST(test_expected), TEST_END};
const char test_suite[] = "table_expected";
