/* Intervals of shares, of means over windows, and of differences on the same trials. */
#include "tests/lib/test.h"

#include <math.h>
#include <string.h>

#include "tools/eval/interval.h"

/* Published values: 81 of 263, 15 of 148 (Newcombe 1998, table I, method 3), and the ends. */
static void test_share(void)
{
    static const struct {
        size_t found, asked;
        double low, high;
    } cases[] = {
        {81, 263, 0.2553, 0.3662},
        {15, 148, 0.0624, 0.1605},
        {0, 20, 0, 0.1611},
        {29, 29, 0.8830, 1},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct interval v = interval_share(cases[i].found, cases[i].asked);

        CU_ASSERT_DOUBLE_EQUAL(v.low, cases[i].low, 5e-5);
        CU_ASSERT_DOUBLE_EQUAL(v.high, cases[i].high, 5e-5);
    }
}

static void test_mean(void)
{
    const double x[] = {1, 2, 6}, w[] = {2, 1, 1}, y[] = {10, 20};
    const struct interval_sample s[] = {{x, w, 3}, {y, NULL, 2}};

    CU_ASSERT_DOUBLE_EQUAL(interval_mean(s, 1), 2.5, 1e-12);
    CU_ASSERT_DOUBLE_EQUAL(interval_mean(s, 2), (2.5 + 15) / 2, 1e-12);
}

/* A normal number by twelve uniform ones. */
static double normal(void)
{
    double sum = -6;

    for (int i = 0; i < 12; i++)
        sum += (double) test_rand_below(1 << 24) / (1 << 24);
    return sum;
}

/*
 * 200 samples of 40 normal numbers: the interval of the mean is nearly +-1.96 sqrt(1/40), and contains 0 in
 * nearly 95 % of the samples. 200 Bernoulli trials of 0.94 have a deviation of 1.7 %: 4 of them are 7 %.
 */
static void test_bootstrap_coverage(void)
{
    double width = 0, x[40];
    size_t inside = 0;

    for (size_t run = 0; run < 200; run++) {
        const struct interval_sample s = {x, NULL, 40};
        struct interval v;

        for (size_t i = 0; i < 40; i++)
            x[i] = normal();
        v = interval_bootstrap(&s, 1, run);
        CU_ASSERT(v.low < interval_mean(&s, 1) && interval_mean(&s, 1) < v.high);
        inside += v.low < 0 && 0 < v.high;
        width += (v.high - v.low) / 200;
    }

    CU_ASSERT(inside >= 174 && inside <= 199);
    CU_ASSERT_DOUBLE_EQUAL(width, 2 * 1.96 / sqrt(40), 0.03);
}

/* Weights count, texts keep their weight of one, equal values have no spread, one value has no interval. */
static void test_bootstrap_forms(void)
{
    const double x[] = {1, 1, 1, 5}, tiny[] = {1, 1, 1, 1e-9}, same[] = {3, 3, 3}, one[] = {4};
    const struct interval_sample weighed = {x, tiny, 4}, flat = {x, NULL, 4}, equal = {same, NULL, 3},
                                 two[] = {{same, NULL, 3}, {x, NULL, 4}}, single[] = {{one, NULL, 1}, equal};
    struct interval a = interval_bootstrap(&flat, 1, 1), b = interval_bootstrap(two, 2, 1), c;
    char text[INTERVAL_BYTES];

    CU_ASSERT(a.low == 1 && a.high > 3);
    c = interval_bootstrap(&weighed, 1, 1); /* four draws of the light value alone: 1 of 256 */
    CU_ASSERT_DOUBLE_EQUAL(c.low, 1, 1e-6);
    CU_ASSERT_DOUBLE_EQUAL(c.high, 1, 1e-6);
    c = interval_bootstrap(&equal, 1, 1);
    CU_ASSERT(c.low == 3 && c.high == 3);
    CU_ASSERT_DOUBLE_EQUAL(b.low, (3 + 1) / 2.0, 1e-12);
    CU_ASSERT(b.high > 2.5 && b.high <= 4);
    c = interval_bootstrap(single, 2, 1);
    CU_ASSERT(isnan(c.low) && isnan(c.high));
    CU_ASSERT_STRING_EQUAL(interval_text(c, 3, text), "-");
    CU_ASSERT_STRING_EQUAL(interval_text((struct interval){0.5, 2}, 2, text), "0.50-2.00");
    CU_ASSERT_STRING_EQUAL(interval_text((struct interval){-0.5, 2}, 1, text), "-0.5 to 2.0");
    c = interval_bootstrap(&flat, 1, 1);
    CU_ASSERT(c.low == a.low && c.high == a.high);
}

/* Worked by a separate program from Newcombe's formulas (1998), method 10. The first one is the example of
 * Fagerland, Lydersen and Laake (2014): 0.026 to 0.507. */
static void test_difference_known(void)
{
    static const struct {
        struct interval_pairs p;
        double low, high;
    } cases[] = {
        {{1, 1, 7, 12}, 0.0256, 0.5069},     {{36, 12, 2, 0}, -0.3404, -0.0569},
        {{20, 12, 2, 16}, -0.3292, -0.0562}, {{36, 14, 0, 0}, -0.4167, -0.1528},
        {{53, 0, 1, 0}, -0.0496, 0.0977},    {{2, 43, 5, 0}, -0.8814, -0.5350},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct interval v = interval_difference(&cases[i].p);

        CU_ASSERT_DOUBLE_EQUAL(v.low, cases[i].low, 5e-5);
        CU_ASSERT_DOUBLE_EQUAL(v.high, cases[i].high, 5e-5);
    }
}

/* Drawn tables of 200 trials: the true difference is inside in about 95 %. 400 trials of 0.95 have a
 * deviation of 1.1 %. */
static void test_difference_coverage(void)
{
    static const double chance[][3] = {{0.75, 0.06, 0.03}, {0.4, 0.3, 0.1}, {0.9, 0.01, 0.01}};

    for (size_t i = 0; i < 3; i++) {
        size_t inside = 0;

        for (size_t run = 0; run < 400; run++) {
            struct interval_pairs p = {0};
            struct interval v;

            for (size_t trial = 0; trial < 200; trial++) {
                double u = (double) test_rand_below(1 << 24) / (1 << 24);

                if (u < chance[i][0])
                    p.both++;
                else if (u < chance[i][0] + chance[i][1])
                    p.lost++;
                else if (u < chance[i][0] + chance[i][1] + chance[i][2])
                    p.won++;
                else
                    p.neither++;
            }

            v = interval_difference(&p);
            inside += v.low <= chance[i][2] - chance[i][1] && chance[i][2] - chance[i][1] <= v.high;
        }

        CU_ASSERT(inside >= 365); /* 0.9125: four deviations below 0.95, less the method's own error */
    }
}

/* Binomial tails by hand: 5 against 0 is 2 / 32; 3 against 1 is 2 (1 + 4) / 16. */
static void test_mcnemar(void)
{
    CU_ASSERT_DOUBLE_EQUAL(interval_mcnemar(5, 0), 2.0 / 32, 1e-12);
    CU_ASSERT_DOUBLE_EQUAL(interval_mcnemar(0, 5), 2.0 / 32, 1e-12);
    CU_ASSERT_DOUBLE_EQUAL(interval_mcnemar(3, 1), 10.0 / 16, 1e-12);
    CU_ASSERT_EQUAL(interval_mcnemar(0, 0), 1);
    CU_ASSERT_EQUAL(interval_mcnemar(7, 7), 1);
    CU_ASSERT(interval_mcnemar(2000, 1500) > 0 && interval_mcnemar(2000, 1500) < 1e-15);
}

const struct test_case test_cases[] = {
    TEST(test_share),
    TEST(test_mean),
    TEST(test_bootstrap_coverage),
    TEST(test_bootstrap_forms),
    TEST(test_difference_known),
    TEST(test_difference_coverage),
    TEST(test_mcnemar),
    TEST_END,
};
const char test_suite[] = "interval";
