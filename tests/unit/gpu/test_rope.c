/* Angles by row: against the C library in long double, at positions up to 2^20, and kept between calls. */
#include "gpu/rope.h"

#include <math.h>
#include <string.h>

#include "tests/lib/random_table.h"
#include "tests/lib/test.h"

enum { PLANES = 32 };

/* The angle in binary64 is wrong by at most 2^-53 of itself, 2^-33 at 2^20 radians; the cosine is then
 * rounded to binary32, by 2^-25 of 1. */
static void test_rows(void)
{
    static const size_t firsts[] = {0, 1, 63, 4096, 65535, (1 << 20) - 3};
    struct geometry g = random_table_geometry(1, 1, 1, 2 * PLANES);
    float cos[3 * PLANES], sin[3 * PLANES];

    for (size_t i = 0; i < sizeof(firsts) / sizeof(firsts[0]); i++) {
        rope_rows(&g, firsts[i], 3, cos, sin);
        for (size_t x = 0; x < 3 * PLANES; x++) {
            long double angle = (long double) (firsts[i] + x / PLANES) * (long double) g.freq[x % PLANES];

            CU_ASSERT(fabsl((long double) cos[x] - cosl(angle)) <= 0x1p-25L + 0x1p-33L);
            CU_ASSERT(fabsl((long double) sin[x] - sinl(angle)) <= 0x1p-25L + 0x1p-33L);
        }
    }
}

/* Whatever was covered before, the rows are those of rope_rows(). */
static void test_table(void)
{
    static const size_t ranges[][2] = {{0, 10},    {3, 5},   {0, 10},  {10, 1}, {9, 3},
                                       {500, 300}, {799, 1}, {799, 2}, {0, 0}};
    struct geometry g = random_table_geometry(1, 1, 1, 2 * PLANES);
    struct rope_table t = {0};
    float cos[300 * PLANES], sin[300 * PLANES];

    for (size_t i = 0; i < sizeof(ranges) / sizeof(ranges[0]); i++) {
        size_t first = ranges[i][0], n = ranges[i][1], off;

        CU_ASSERT_EQUAL_FATAL(rope_table_cover(&t, &g, first, n), 0);
        CU_ASSERT_FATAL(t.first <= first && first + n <= t.first + t.n);
        rope_rows(&g, first, n, cos, sin);
        off = (first - t.first) * PLANES;
        CU_ASSERT(n == 0 || memcmp(t.cos + off, cos, n * PLANES * sizeof(*cos)) == 0);
        CU_ASSERT(n == 0 || memcmp(t.sin + off, sin, n * PLANES * sizeof(*sin)) == 0);
    }
    rope_table_deinit(&t);
    CU_ASSERT_PTR_NULL(t.cos);
}

const struct test_case test_cases[] = {TEST(test_rows), TEST(test_table), TEST_END};
const char test_suite[] = "rope";
