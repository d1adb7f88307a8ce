/* The stored form of levels and the search for a code. */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "alloc/quantiser/levels_normal.h"
#include "alloc/table/levels.h"
#include "tests/lib/test.h"

static void test_quantise_counts_thresholds(void)
{
    for (unsigned b = 1; b <= 8; b++) {
        struct levels l;

        CU_ASSERT_EQUAL_FATAL(levels_normal(QUANT_LLOYD_MAX, b, &l), 0);
        for (unsigned i = 0; i < 2000; i++) {
            float z = (float) test_rand_normal() * 2;
            unsigned want = 0;

            if (i < (1u << b) - 1) /* exactly on a threshold: the upper code */
                z = l.threshold[i];
            while (want < (1u << b) - 1 && l.threshold[want] <= z)
                want++;
            CU_ASSERT_EQUAL(levels_quantise(&l, b, z), want);
        }
        CU_ASSERT_EQUAL(levels_quantise(&l, b, NAN), 0);
        CU_ASSERT_EQUAL(levels_quantise(&l, b, -INFINITY), 0);
        CU_ASSERT_EQUAL(levels_quantise(&l, b, INFINITY), (1u << b) - 1);
    }
}

static void test_stored_form(void)
{
    double v[16] = {-1.0, 0.245, 0.5, 2.54};
    struct levels l, before;

    CU_ASSERT_EQUAL_FATAL(levels_from_values(v, 2, &l), 0);
    CU_ASSERT_EQUAL(l.step, (float) (2.54 / 127));
    CU_ASSERT_EQUAL(l.value_i8[0], -50);
    CU_ASSERT_EQUAL(l.value_i8[1], 12); /* 12.25 */
    CU_ASSERT_EQUAL(l.value_i8[2], 25);
    CU_ASSERT_EQUAL(l.value_i8[3], 127);
    CU_ASSERT_DOUBLE_EQUAL((double) l.threshold[2], (25 + 127) * 0.5 * 0.02, 1e-6);
    CU_ASSERT(levels_valid(&l, 2));

    before = l;
    v[1] = -0.999; /* rounds onto its neighbour */
    CU_ASSERT_EQUAL(levels_from_values(v, 2, &l), -EINVAL);
    v[1] = NAN;
    CU_ASSERT_EQUAL(levels_from_values(v, 2, &l), -EINVAL);
    memset(v, 0, sizeof(v));
    CU_ASSERT_EQUAL(levels_from_values(v, 2, &l), -EINVAL);
    v[0] = -1e300, v[1] = 0, v[2] = 1, v[3] = 1e300; /* the step is infinite in binary32 */
    CU_ASSERT_EQUAL(levels_from_values(v, 2, &l), -EINVAL);
    CU_ASSERT_EQUAL(memcmp(&before, &l, sizeof(l)), 0);

    l.threshold[1] = nextafterf(l.threshold[1], 9);
    CU_ASSERT_FALSE(levels_valid(&l, 2));
}

/* Two levels with their threshold, of a unit that must be a positive normal number. */
static void test_unit_of_levels(void)
{
    static const float bad[] = {-1, 0, 1e-40f, INFINITY, NAN};
    struct levels l = {.step = 0.5f, .value = {-1, 1}, .value_i8 = {-1, 1}};

    levels_set_thresholds(&l, 1);
    CU_ASSERT_TRUE(levels_valid(&l, 1));
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        l.step = bad[i];
        levels_set_thresholds(&l, 1);
        CU_ASSERT_FALSE(levels_valid(&l, 1));
    }
}

const struct test_case test_cases[] = {TEST(test_unit_of_levels), TEST(test_quantise_counts_thresholds),
                                       TEST(test_stored_form), TEST_END};
const char test_suite[] = "levels";
