#include "tests/lib/test.h"

#include <math.h>
#include <stdlib.h>

#include "alloc/bits/solve_paper.h"

enum { D_MAX = 128, HEADS = 16 };

static double w[HEADS * D_MAX];

static struct paper_options options(double bpd)
{
    struct paper_options o;

    paper_options_default(&o, bpd);
    return o;
}

static void random_spectrum(double *s, unsigned d)
{
    double slope = test_rand_uniform() * 0.3, level = exp(3 * test_rand_normal());

    for (unsigned i = 0; i < d; i++)
        s[i] = i == 0 ? level : s[i - 1] * exp(-slope * test_rand_uniform());
}

static void test_bennett(void)
{
    CU_ASSERT_EQUAL(paper_bennett(0), 1.0 / 12);
    CU_ASSERT_EQUAL(paper_bennett(1), 1.0 / 48);
    CU_ASSERT_EQUAL(paper_bennett(4), 1.0 / 3072);
}

/*
 * By hand, d = 4, B = 8, so r is 2 (b = 4) or 4 (b = 2).
 *     w = 8 4 2 1:         r = 2: 3 + 12/3072 = 3.0039;    r = 4: 15/192 = 0.078125
 *     w = 100 100 .01 .01: r = 2: 0.02 + 200/3072 = 0.0851; r = 4: 200.02/192 = 1.0418
 */
static void test_c1_by_hand(void)
{
    static const double flat[4] = {8, 4, 2, 1}, steep[4] = {100, 100, 0.01, 0.01}, zero[4] = {0};
    struct paper_options o = options(2);
    struct paper_choice c = paper_c1(flat, 4, 8, &o);

    CU_ASSERT_EQUAL(c.r, 4);
    CU_ASSERT_EQUAL(c.b, 2);
    CU_ASSERT_DOUBLE_EQUAL(c.D, 0.078125, 1e-15);
    c = paper_c1(steep, 4, 8, &o);
    CU_ASSERT_EQUAL(c.r, 2);
    CU_ASSERT_EQUAL(c.b, 4);
    CU_ASSERT_DOUBLE_EQUAL(c.D, 0.02 + 200.0 / 3072, 1e-15);
    c = paper_c1(zero, 4, 8, &o); /* all r tie at D = 0: the smallest is chosen */
    CU_ASSERT_EQUAL(c.r, 2);
    c = paper_c1(flat, 4, 3.99, &o); /* r = 2 at 2 bits does not fit */
    CU_ASSERT_EQUAL(c.r, 0);
    CU_ASSERT_EQUAL(c.D, 15.0);
    c = paper_c1(flat, 4, 4, &o);
    CU_ASSERT_EQUAL(c.r, 2);
    CU_ASSERT_EQUAL(c.b, 2);
    c = paper_c1(flat, 4, 1000, &o); /* clipped to 8 bits, no rank beyond d */
    CU_ASSERT_EQUAL(c.r, 4);
    CU_ASSERT_EQUAL(c.b, 8);
}

/* round(B / r) with r = 4: 2.5 and 4.5 go down, 3.5 goes up; the sum r b
 * may then exceed B, as in the paper. */
static void test_c1_rounds_half_to_even(void)
{
    static const double flat[4] = {1, 1, 1, 1};
    static const struct {
        double B;
        uint32_t b;
    } cases[] = {{10, 2}, {14, 4}, {18, 4}, {22, 6}, {10.1, 3}};
    struct paper_options o = options(2);

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct paper_choice c = paper_c1(flat, 4, cases[i].B, &o);

        CU_ASSERT_EQUAL(c.r, 4);
        CU_ASSERT_EQUAL(c.b, cases[i].b);
    }
}

/* The paper's rule, implemented literally. Sums differ in order only: 128 roundings of 2^-53. */
static struct paper_choice literal_c1(const double *s, unsigned d, double B)
{
    struct paper_choice best = {.r = 0, .D = INFINITY};

    for (unsigned r = 2; r <= d && 2.0 * r <= B; r += 2) {
        double exact = B / r, b = floor(exact), D = 0;

        if (exact - b > 0.5 || (exact - b == 0.5 && fmod(b, 2) == 1))
            b += 1;
        b = fmin(fmax(b, 2), 8);
        for (unsigned i = 0; i < d; i++)
            D += i < r ? s[i] / (12 * pow(4, b)) : s[i];
        if (D < best.D * (1 - 1e-13))
            best = (struct paper_choice){r, (uint32_t) b, D};
    }
    return best;
}

static void test_c1_against_the_rule(void)
{
    static const unsigned dims[] = {2, 32, 64, 80, 128};

    for (unsigned round = 0; round < 500; round++) {
        unsigned d = dims[test_rand_below(5)];
        double B = round % 2 ? (double) test_rand_below(8 * d) : test_rand_uniform() * 9 * d;
        struct paper_options o = options(2);
        struct paper_choice got, want;

        random_spectrum(w, d);
        got = paper_c1(w, d, B, &o);
        want = literal_c1(w, d, B);
        CU_ASSERT_EQUAL(got.r, want.r);
        CU_ASSERT_EQUAL(got.b, want.b);
        if (want.r > 0)
            CU_ASSERT_DOUBLE_EQUAL(got.D, want.D, 1e-12 * want.D);
    }
}

/*
 * By hand: two heads, d = 2, 8 bpd, so both have r = 2, b = 8 and D = sum(w) q(8), with sums 9 and 1.
 * D_bar = 5 q: sqrt(9/5) = 1.3416408, sqrt(1/5) = 0.4472136. B = 16 + 0.3 * 16 * (0.3416408, -0.5527864)
 * = 17.6398758, 13.3466253, sum 30.9865010; times 32 / sum: 18.2168366, 13.7831634.
 */
static void test_c2_one_round_by_hand(void)
{
    static const double two[4] = {5, 4, 0.5, 0.5};
    struct paper_options o = options(8);
    struct paper_choice c[2];
    double B[2];

    o.rounds = 1;
    CU_ASSERT_EQUAL(paper_c2(two, 2, 2, &o, c, B), 0);
    CU_ASSERT_DOUBLE_EQUAL(B[0], 18.2168366, 1e-6);
    CU_ASSERT_DOUBLE_EQUAL(B[1], 13.7831634, 1e-6);
    CU_ASSERT_EQUAL(c[0].b, 8); /* C1 once more, with the new budgets: 9.1 clipped, 6.89 rounded */
    CU_ASSERT_EQUAL(c[1].b, 7);
}

/* B_min holds before the renormalisation: a head with no distortion falls to 8
 * bits and is then scaled with the rest. */
static void test_c2_minimum(void)
{
    struct paper_options o = options(1);
    struct paper_choice c[2];
    double B[2];

    o.eta = 10;
    o.rounds = 1;
    for (unsigned i = 0; i < 64; i++) {
        w[i] = 1;
        w[64 + i] = 0;
    }
    CU_ASSERT_EQUAL(paper_c2(w, 2, 64, &o, c, B), 0);
    /* D = (D, 0), D_bar = D / 2: 64 + 640 (sqrt 2 - 1) = 329.0967, and max(8, 64 - 640) = 8; sum to 128 */
    CU_ASSERT_DOUBLE_EQUAL(B[1], 8 * 128 / (8 + 64 + 640 * (M_SQRT2 - 1)), 1e-9);
    CU_ASSERT_DOUBLE_EQUAL(B[0] + B[1], 128, 1e-12);
}

/* The algorithm implemented from its statement, with the literal C1. */
static void test_c2_against_the_rule(void)
{
    for (unsigned round = 0; round < 40; round++) {
        double bpd = 0.5 + 3.5 * test_rand_uniform(), B[HEADS], got_B[HEADS], total = 0;
        unsigned d = round % 2 ? 64 : 128;
        struct paper_options o = options(bpd);
        struct paper_choice got[HEADS], c[HEADS];

        for (unsigned h = 0; h < HEADS; h++) {
            random_spectrum(w + h * d, d);
            B[h] = bpd * d;
        }
        for (unsigned k = 0; k <= 5; k++) {
            double mean = 0, sum = 0;

            for (unsigned h = 0; h < HEADS; h++) {
                c[h] = literal_c1(w + h * d, d, B[h]);
                mean += c[h].D / HEADS;
            }
            for (unsigned h = 0; h < HEADS && k < 5; h++) {
                B[h] += 0.3 * bpd * d * (sqrt(c[h].D / mean) - 1);
                B[h] = B[h] < 8 ? 8 : B[h];
                sum += B[h];
            }
            for (unsigned h = 0; h < HEADS && k < 5; h++)
                B[h] = B[h] * bpd * d * HEADS / sum;
        }
        CU_ASSERT_EQUAL_FATAL(paper_c2(w, HEADS, d, &o, got, got_B), 0);
        for (unsigned h = 0; h < HEADS; h++) {
            CU_ASSERT_DOUBLE_EQUAL(got_B[h], B[h], 1e-9 * B[h]);
            CU_ASSERT_EQUAL(got[h].r, c[h].r);
            CU_ASSERT_EQUAL(got[h].b, c[h].b);
            total += got_B[h];
        }
        CU_ASSERT_DOUBLE_EQUAL(total, bpd * d * HEADS, 1e-9 * total); /* the budget, exactly spent */
    }
}

/* Equal heads stay equal; heads without energy do not divide by zero. */
static void test_c2_degenerate(void)
{
    struct paper_options o = options(2);
    struct paper_choice c[4];
    double B[4];

    for (unsigned i = 0; i < 4 * 32; i++)
        w[i] = exp(-0.1 * (i % 32));
    CU_ASSERT_EQUAL(paper_c2(w, 4, 32, &o, c, B), 0);
    for (unsigned h = 0; h < 4; h++)
        CU_ASSERT_DOUBLE_EQUAL(B[h], 64, 1e-9);
    for (unsigned i = 0; i < 4 * 32; i++)
        w[i] = 0;
    CU_ASSERT_EQUAL(paper_c2(w, 4, 32, &o, c, NULL), 0);
    CU_ASSERT_EQUAL(c[3].r, 2);
    CU_ASSERT_EQUAL(c[3].D, 0.0);
}

const struct test_case test_cases[] = {
    TEST(test_bennett),
    TEST(test_c1_by_hand),
    TEST(test_c1_rounds_half_to_even),
    TEST(test_c1_against_the_rule),
    TEST(test_c2_one_round_by_hand),
    TEST(test_c2_minimum),
    TEST(test_c2_against_the_rule),
    TEST(test_c2_degenerate),
    TEST_END,
};
const char test_suite[] = "solve_paper";
