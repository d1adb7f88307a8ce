/* kvcobra compare through commands_main(). The numbers are tested in
 * tests/unit/alloc/table/test_table_account.c. */
#include "tests/lib/test.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/atomic_file.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tests/lib/random_table.h"
#include "tests/unit/tools/capture.h"

static char dir[] = "/tmp/kvc-compare-XXXXXX";
static char path[3][64];

static void write_table(const char *to, uint32_t n_layers, uint64_t seed, double bpd)
{
    struct geometry g = random_table_geometry(n_layers, 4, 2, 32);
    _cleanup_(freep) void *bytes = NULL;
    struct errmsg e = {""};
    size_t n;

    CU_ASSERT_EQUAL_FATAL(random_table_bytes(&g, seed, bpd, true, &bytes, &n), 0);
    CU_ASSERT_EQUAL_FATAL(atomic_file_write(to, bytes, n, &e), 0);
}

/* 2 and 3 bits for 4 layers, and a table for 3 layers. */
static void begin(void)
{
    (void) memcpy(dir + sizeof(dir) - 7, "XXXXXX", 6);
    CU_ASSERT_PTR_NOT_NULL_FATAL(mkdtemp(dir));
    for (int i = 0; i < 3; i++)
        (void) snprintf(path[i], sizeof(path[i]), "%s/%d.table", dir, i);
    write_table(path[0], 4, 1, 2);
    write_table(path[1], 4, 2, 3);
    write_table(path[2], 3, 1, 2);
}

static void end(void)
{
    for (int i = 0; i < 3; i++)
        (void) unlink(path[i]);
    CU_ASSERT_EQUAL(rmdir(dir), 0);
}

static void test_json(void)
{
    const json_t *k, *a, *b;
    json_t *j;

    begin();
    j = captured_json((const char *const[]){"kvcobra", "compare", path[0], path[1], "--json", NULL});
    CU_ASSERT(json_is_true(json_object_get(j, "same_model")));
    k = json_object_get(j, "K");
    CU_ASSERT_EQUAL(json_integer_value(json_object_get(k, "heads")), 8);
    CU_ASSERT(json_is_null(json_object_get(k, "budget_correlation"))); /* every head has the same budget */
    a = json_object_get(k, "quartile_bpd_a"), b = json_object_get(k, "quartile_bpd_b");
    CU_ASSERT_EQUAL_FATAL(json_array_size(a), 4);
    for (size_t i = 0; i < 4; i++) {
        CU_ASSERT_DOUBLE_EQUAL(json_number_value(json_array_get(a, i)), 2, 1e-12);
        CU_ASSERT_DOUBLE_EQUAL(json_number_value(json_array_get(b, i)), 3, 1e-12);
    }

    json_decref(j);
    j = captured_json((const char *const[]){"kvcobra", "compare", path[0], path[0], "--json", NULL});
    CU_ASSERT_EQUAL(json_double_at(json_object_get(j, "V"), "same_width"), 1);
    CU_ASSERT_EQUAL(json_double_at(json_object_get(j, "V"), "same_half_tiles"), 1);
    CU_ASSERT_EQUAL(json_double_at(json_object_get(j, "V"), "rank_difference"), 0);
    json_decref(j);
    end();
}

static void test_text_and_failures(void)
{
    _cleanup_(freep) char *text = NULL, *shape = NULL, *missing = NULL;

    begin();
    CU_ASSERT_EQUAL(
        captured(STDOUT_FILENO, (const char *const[]){"kvcobra", "compare", path[0], path[1], NULL}, &text),
        COMMAND_OK);
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "budget correlation"));
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "second"));
    CU_ASSERT_EQUAL(
        captured(STDERR_FILENO, (const char *const[]){"kvcobra", "compare", path[0], path[2], NULL}, &shape),
        COMMAND_FAILED);
    CU_ASSERT_PTR_NOT_NULL(strstr(shape, "cannot be compared"));
    CU_ASSERT_EQUAL(
        captured(STDERR_FILENO, (const char *const[]){"kvcobra", "compare", path[0], dir, NULL}, &missing),
        COMMAND_FAILED);
    CU_ASSERT_PTR_NOT_NULL(strstr(missing, dir));
    end();
}

const struct test_case test_cases[] = {TEST(test_json), TEST(test_text_and_failures), TEST_END};
const char test_suite[] = "compare";
