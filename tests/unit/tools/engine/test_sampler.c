/* Choosing tokens and comparing distributions, compared with numbers computed by hand. */
#include "tests/lib/test.h"

#include "tools/engine/sampler.h"

#include <math.h>
#include <stddef.h>

static void test_greedy(void)
{
    const float logits[] = {-1.0f, 3.0f, 2.0f, 3.0f}, low[] = {-INFINITY, -5.0f};

    CU_ASSERT_EQUAL(sampler_greedy(logits, 4), 1); /* the first among equals */
    CU_ASSERT_EQUAL(sampler_greedy(logits, 1), 0);
    CU_ASSERT_EQUAL(sampler_greedy(low, 2), 1);
}

static void test_nll(void)
{
    const float even[4] = {7.0f, 7.0f, 7.0f, 7.0f};
    const float odds[2] = {(float) 1.0986122886681098, 0.0f}; /* ln 3: probabilities 3/4 and 1/4 */
    const float huge[2] = {1e30f, -1e30f};

    CU_ASSERT_DOUBLE_EQUAL(sampler_nll(even, 4, 2), log(4.0), 1e-12);
    CU_ASSERT_DOUBLE_EQUAL(sampler_nll(odds, 2, 0), log(4.0 / 3.0),
                           1e-7); /* the logit is a binary32 number */
    CU_ASSERT_DOUBLE_EQUAL(sampler_nll(odds, 2, 1), log(4.0), 1e-7);
    CU_ASSERT_EQUAL(sampler_nll(huge, 2, 0), 0.0);
}

static void test_kl(void)
{
    const float p[2] = {(float) 1.0986122886681098, 0.0f}, q[2] = {5.0f, 5.0f}, never[2] = {0.0f, -INFINITY};
    const float shifted[2] = {p[0] + 8.0f, p[1] + 8.0f};

    /* 3/4 ln(3/4 / 1/2) + 1/4 ln(1/4 / 1/2) */
    CU_ASSERT_DOUBLE_EQUAL(sampler_kl(p, q, 2), 0.75 * log(1.5) + 0.25 * log(0.5), 1e-7);
    CU_ASSERT_DOUBLE_EQUAL(sampler_kl(q, p, 2), 0.5 * log(2.0 / 3.0) + 0.5 * log(2.0), 1e-7);
    CU_ASSERT_DOUBLE_EQUAL(sampler_kl(p, shifted, 2), 0.0, 1e-6);
    CU_ASSERT_EQUAL(sampler_kl(p, p, 2), 0.0);
    CU_ASSERT_DOUBLE_EQUAL(sampler_kl(never, q, 2), log(2.0), 1e-12); /* 0 ln 0 = 0 */
}

/* 20000 draws: the standard deviation of a frequency is at most 0.0036; six of them. */
static void test_frequencies(void)
{
    const float logits[3] = {0.0f, 1.0f, 2.0f};
    struct sampler_state st;

    for (unsigned round = 0; round < 2; round++) {
        double t = round == 0 ? 1.0 : 0.5, sum = 1.0 + exp(1.0 / t) + exp(2.0 / t);
        unsigned n[3] = {0};

        sampler_seed(&st, 42);
        for (unsigned i = 0; i < 20000; i++)
            n[sampler_softmax(logits, 3, (float) t, &st)]++;
        for (unsigned i = 0; i < 3; i++)
            CU_ASSERT_DOUBLE_EQUAL(n[i] / 20000.0, exp(i / t) / sum, 6 * 0.0036);
    }
}

static void test_seeds(void)
{
    const float even[1000] = {0};
    struct sampler_state a, b, c;
    unsigned differ = 0;

    sampler_seed(&a, 1);
    sampler_seed(&b, 1);
    sampler_seed(&c, 2);
    for (unsigned i = 0; i < 50; i++) {
        uint32_t x = sampler_softmax(even, 1000, 1.0f, &a);

        CU_ASSERT_EQUAL(x, sampler_softmax(even, 1000, 1.0f, &b));
        differ += x != sampler_softmax(even, 1000, 1.0f, &c);
    }

    CU_ASSERT(differ > 40);
}

const struct test_case test_cases[] = {
    TEST(test_greedy), TEST(test_nll), TEST(test_kl), TEST(test_frequencies), TEST(test_seeds), TEST_END,
};
const char test_suite[] = "engine_sampler";
