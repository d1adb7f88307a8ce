/* Distinct keys, counted by HyperLogLog. */
#include "daemon/store/distinct.h"

#include <math.h>
#include <string.h>

#include "tests/lib/test.h"

const char test_suite[] = "distinct";

/* The standard error of 4096 registers is 1.04 / 64. Of 40 counts one in 10^7 runs is beyond six of them. */
#define ERROR_MAX (6 * 1.04 / 64)

static struct distinct one, two, both;

static void setup(void)
{
    memset(&one, 0, sizeof(one));
    memset(&two, 0, sizeof(two));
    memset(&both, 0, sizeof(both));
}

static void test_empty(void)
{
    setup();
    CU_ASSERT_EQUAL(distinct_count(&one), 0);
}

static void test_counts(void)
{
    uint64_t n = 0;

    setup();
    for (uint64_t end = 1; end <= 2000000; end = end * 3 / 2 + 1) {
        double bound = ERROR_MAX * (double) end;

        while (n < end) {
            distinct_add(&one, test_rand());
            n++;
        }
        CU_ASSERT(fabs(distinct_count(&one) - (double) end) <= (bound > 0.5 ? bound : 0.5));
    }
}

static void test_keys_count_once(void)
{
    uint64_t keys[1000];

    setup();
    for (int i = 0; i < 1000; i++)
        keys[i] = test_rand();
    for (int round = 0; round < 50; round++)
        for (int i = 0; i < 1000; i++)
            distinct_add(&one, keys[i]);
    CU_ASSERT(fabs(distinct_count(&one) - 1000) <= 1000 * ERROR_MAX);
}

static void test_merge_is_the_union(void)
{
    setup();
    for (int i = 0; i < 30000; i++) {
        uint64_t key = test_rand();

        if (i < 20000)
            distinct_add(&one, key);
        if (i >= 10000)
            distinct_add(&two, key);
        distinct_add(&both, key);
    }
    distinct_merge(&one, &two);
    CU_ASSERT_EQUAL(memcmp(&one, &both, sizeof(one)), 0);
}

/* Hashes at the ends of their range stay inside the registers. */
static void test_extreme_hashes(void)
{
    setup();
    distinct_add(&one, 0);
    distinct_add(&one, UINT64_MAX);
    distinct_add(&one, UINT64_C(1) << 63);
    CU_ASSERT_EQUAL(one.registers[0], 64 - DISTINCT_BITS + 1);
    CU_ASSERT_EQUAL(one.registers[DISTINCT_REGISTERS - 1], 1);
    for (unsigned i = 0; i < DISTINCT_REGISTERS; i++) /* all keys of all registers at the largest rank */
        distinct_add(&two, i);
    CU_ASSERT(isinf(distinct_count(&two)) || distinct_count(&two) > 0x1p60);
}

const struct test_case test_cases[] = {
    TEST(test_empty),          TEST(test_counts), TEST(test_keys_count_once), TEST(test_merge_is_the_union),
    TEST(test_extreme_hashes), TEST_END,
};
