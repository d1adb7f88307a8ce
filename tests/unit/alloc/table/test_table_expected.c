/* The expected errors in the provenance of a table: read if they are possible, refused if not. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/table/table_expected.h"
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
    struct table_expected x;
    char *large = malloc(70000);

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        CU_ASSERT(table_expected_read(bad[i], &x) == -ENODATA && x.error[0] == 0 && x.saturated[0] == -1);
    CU_ASSERT_PTR_NOT_NULL_FATAL(large);
    (void) memset(large, ' ', 69999);
    (void) strcpy(large + 69900, "{\"expected\":{\"error_k\":0.5,\"error_v\":0.25}}");
    CU_ASSERT_EQUAL(table_expected_read(large, &x), -ENODATA);
    free(large);
    CU_ASSERT_EQUAL(
        table_expected_read("{\"expected\":{\"error_k\":0.1,\"error_v\":0.2,\"unseen_error_k\":0.3,"
                            "\"unseen_error_v\":0.4,\"saturated_k\":0.01,\"saturated_v\":0.02,"
                            "\"unseen_saturated_k\":0.03,\"unseen_saturated_v\":0.04}}",
                            &x),
        0);
    CU_ASSERT(x.error[0] == 0.3 && x.error[1] == 0.4); /* of other texts, if the table has them */
    CU_ASSERT(x.saturated[0] == 0.03 && x.saturated[1] == 0.04);
    CU_ASSERT_EQUAL(
        table_expected_read("{\"expected\":{\"error_k\":0.1,\"error_v\":0.2,\"unseen_error_k\":-1,"
                            "\"unseen_error_v\":0.4,\"saturated_k\":0.01,\"saturated_v\":0.02}}",
                            &x),
        0);
    CU_ASSERT(x.error[0] == 0.1 && x.error[1] == 0.2 && x.saturated[0] == 0.01 && x.saturated[1] == 0.02);
    CU_ASSERT_EQUAL(table_expected_read("{\"a\":1,\"expected\":{\"error_k\":0.5,\"error_v\":16,"
                                        "\"saturated_k\":1.5,\"saturated_v\":0}}",
                                        &x),
                    0);
    CU_ASSERT(x.error[0] == 0.5 && x.error[1] == 16 && x.saturated[0] == -1 && x.saturated[1] == -1);
}

const struct test_case test_cases[] = {TEST(test_expected), TEST_END};
const char test_suite[] = "table_expected";
