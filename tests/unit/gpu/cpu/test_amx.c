/* Tiles of bytes (gpu/cpu/amx.h): the model of the tests against numbers worked by hand and a plain sum;
 * where the processor has tiles, the instructions against the model. */
#include "tests/unit/gpu/cpu/amx_products.h"

#include <string.h>

#include "gpu/cpu.h"
#include "gpu/cpu/ops.h"
#include "tests/lib/test.h"

/* Row 0 of a is 200 1 255 3 and then zeros, column 0 of b is -1 2 -128 4, or 255 2 128 4 if unsigned. */
static void test_by_hand(void)
{
    static const uint8_t a[4] = {200, 1, 255, 3}, b[4] = {255, 2, 128, 4};
    struct product_data d = {.sums = {{{7}}, {{7}}}};

    memcpy(d.a + 1, a, sizeof(a));
    memcpy(d.b + 1, b, sizeof(b));
    products_model(&d);
    CU_ASSERT_EQUAL(d.sums[0][0][0], 7 + 200 * -1 + 1 * 2 + 255 * -128 + 3 * 4);
    CU_ASSERT_EQUAL(d.sums[1][0][0], 7 + -56 * 255 + 1 * 2 + -1 * 128 + 3 * 4);
    CU_ASSERT_EQUAL(d.sums[0][0][1], 0); /* column 1 of b is zeros */
    CU_ASSERT_EQUAL(d.sums[0][1][0], 0);
}

static void fill(struct product_data *d)
{
    uint8_t *bytes = (uint8_t *) d;

    for (size_t i = 0; i < sizeof(*d); i++)
        bytes[i] = (uint8_t) test_rand();
    for (int i = 0; i < 2 * PRODUCT_ROWS * PRODUCT_COLS;
         i++) /* so that sums fit: products add less than 2^20 */
        d->sums[i % 2][i / 2 / PRODUCT_COLS][i / 2 % PRODUCT_COLS] /= 2;
}

/* sum[m][n] += a[m][k] b'[k][n], where b' [k][n] is byte 4 n + k % 4 of row k / 4. */
static void test_sums(void)
{
    struct product_data d, before;

    fill(&d);
    before = d;
    products_model(&d);
    for (int m = 0; m < PRODUCT_ROWS; m++)
        for (int n = 0; n < PRODUCT_COLS; n++) {
            int us = before.sums[0][m][n], su = before.sums[1][m][n];

            for (int k = 0; k < PRODUCT_BYTES; k++) {
                uint8_t x = d.a[1 + m * PRODUCT_STRIDE + k],
                        y = d.b[1 + k / 4 * PRODUCT_STRIDE + 4 * n + k % 4];

                us += x * (y < 128 ? y : y - 256);
                su += (x < 128 ? x : x - 256) * y;
            }
            CU_ASSERT_EQUAL(d.sums[0][m][n], us);
            CU_ASSERT_EQUAL(d.sums[1][m][n], su);
            CU_ASSERT_EQUAL(d.zeros[m][n], 0);
        }
}

static void test_instructions(void)
{
    unsigned mask = cpu_capabilities();

    if (!(mask & CPU_AMX)) {
        test_skip("this processor has no AMX");
        return;
    }
    if (strcmp(ops_select(mask)->name, "amx") != 0) { /* ops_select() also requests the permission */
        test_skip("the kernel does not permit tiles");
        return;
    }
    for (int i = 0; i < 50; i++) {
        struct product_data native, model;

        fill(&native);
        model = native;
        products_native(&native);
        products_model(&model);
        CU_ASSERT_EQUAL(memcmp(&native, &model, sizeof(native)), 0);
    }
}

/* Without the AVX-512 half of the processor no tiles are selected, whatever the mask is. */
static void test_selection(void)
{
    CU_ASSERT_PTR_EQUAL(ops_select(CPU_AMX), &ops_ref);
    CU_ASSERT_PTR_EQUAL(ops_select(CPU_AVX2 | CPU_AVX512 | CPU_AMX), ops_select(CPU_AVX2 | CPU_AVX512));
    if (!(cpu_capabilities() & CPU_AMX)) /* and the Linux kernel refuses what the processor lacks */
        CU_ASSERT_STRING_EQUAL(ops_select(CPU_AVX2 | CPU_AVX512 | CPU_VNNI | CPU_AMX)->name, "avx512-vnni");
}

const char test_suite[] = "amx";
const struct test_case test_cases[] = {
    TEST(test_by_hand), TEST(test_sums), TEST(test_instructions), TEST(test_selection), TEST_END,
};
