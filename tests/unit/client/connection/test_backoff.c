/* Waits between attempts: bounds, growth, spread. */
#include "client/connection/backoff.h"
#include "tests/lib/test.h"

const char test_suite[] = "backoff";

/* 100, 200, ... 6400, then 10000: half of it for the smallest random number, all of it for the largest. */
static void test_bounds(void)
{
    static const int64_t longest[] = {100, 200, 400, 800, 1600, 3200, 6400, 10000, 10000, 10000};

    for (uint32_t i = 0; i < sizeof(longest) / sizeof(*longest); i++) {
        int64_t half = longest[i] / 2;

        CU_ASSERT_EQUAL(backoff_wait_ms(i + 1, 0), half);
        CU_ASSERT_EQUAL(backoff_wait_ms(i + 1, (uint32_t) half), longest[i]);
        CU_ASSERT_EQUAL(backoff_wait_ms(i + 1, (uint32_t) half + 1), half); /* and around again */
    }
    CU_ASSERT_EQUAL(backoff_wait_ms(UINT32_MAX, 0), 5000);
}

static void test_life(void)
{
    struct backoff b = {0};

    CU_ASSERT(backoff_is_over(&b, 0));
    for (uint32_t n = 1; n <= 20; n++) {
        backoff_failed(&b, 1000);
        CU_ASSERT_EQUAL(b.n_failed, n);
        CU_ASSERT(b.next_ms >= 1050 && b.next_ms <= 11000);
        CU_ASSERT_FALSE(backoff_is_over(&b, b.next_ms - 1));
        CU_ASSERT(backoff_is_over(&b, b.next_ms));
    }
    b.n_failed = UINT32_MAX;
    backoff_failed(&b, 1000);
    CU_ASSERT_EQUAL(b.n_failed, UINT32_MAX);
}

/* Clients that lost the same daemon at the same time do not connect again at the same time. */
static void test_spread(void)
{
    bool differ = false;
    int64_t first = 0;

    for (int i = 0; i < 64; i++) { /* all equal by chance: 51 values, 51^-63 */
        struct backoff b = {0};

        backoff_failed(&b, 1000);
        if (i == 0)
            first = b.next_ms;
        differ |= b.next_ms != first;
    }
    CU_ASSERT(differ);
}

const struct test_case test_cases[] = {TEST(test_bounds), TEST(test_life), TEST(test_spread), TEST_END};
