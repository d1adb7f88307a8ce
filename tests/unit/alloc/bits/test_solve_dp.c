/* The exact programme over one (r, b) per head: by hand, against every combination,
 * against the textbook programme. */
#include "tests/lib/test.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/bits/solve_dp.h"

enum { HEADS_MAX = 300, OPTIONS_MAX = 20000 };

static struct dp_option options[OPTIONS_MAX];
static size_t first[HEADS_MAX + 1];
static uint32_t choice[HEADS_MAX];

static struct dp_problem problem(size_t n_heads, uint64_t budget)
{
    return (struct dp_problem){n_heads, options, first, budget};
}

static uint64_t cost_of(const struct dp_problem *p, const uint32_t *c)
{
    uint64_t sum = 0;

    for (size_t h = 0; h < p->n_heads; h++)
        sum += p->options[p->first[h] + c[h]].cost;
    return sum;
}

static double distortion_of(const struct dp_problem *p, const uint32_t *c)
{
    double sum = 0;

    for (size_t h = 0; h < p->n_heads; h++)
        sum += p->options[p->first[h] + c[h]].D;
    return sum;
}

/* The best of all combinations. INFINITY: none fits. */
static double try_all(const struct dp_problem *p)
{
    uint32_t c[8] = {0};
    double best = INFINITY;

    assert(p->n_heads <= 8);
    for (;;) {
        size_t h = 0;

        if (cost_of(p, c) <= p->budget_bits)
            best = fmin(best, distortion_of(p, c));
        while (h < p->n_heads && ++c[h] == p->first[h + 1] - p->first[h])
            c[h++] = 0;
        if (h == p->n_heads)
            return best;
    }
}

/* The textbook: least D of the first heads at every exact budget, bit by bit. */
static double textbook(const struct dp_problem *p)
{
    size_t n = (size_t) p->budget_bits + 1;
    double *now = calloc(n, sizeof(*now)), *next = malloc(n * sizeof(*next)), best, *swap;

    assert(now && next); /* before the first head 0 everywhere: a budget need not be used up */
    for (size_t h = 0; h < p->n_heads; h++) {
        for (size_t x = 0; x < n; x++) {
            next[x] = INFINITY;
            for (size_t i = p->first[h]; i < p->first[h + 1]; i++)
                if (p->options[i].cost <= x)
                    next[x] = fmin(next[x], now[x - p->options[i].cost] + p->options[i].D);
        }
        swap = now, now = next, next = swap;
    }
    best = now[n - 1];
    free(now);
    free(next);
    return best;
}

/* Checks that the choice is within the budget, has the stated cost and is above the bound; returns its D. */
static double solved(const struct dp_problem *p)
{
    struct dp_result r;

    memset(choice, 0xff, sizeof(choice));
    CU_ASSERT_EQUAL_FATAL(dp_solve(p, choice, &r), 0);
    for (size_t h = 0; h < p->n_heads; h++)
        CU_ASSERT_FATAL(choice[h] < p->first[h + 1] - p->first[h]);
    CU_ASSERT_EQUAL(r.used_bits, cost_of(p, choice));
    CU_ASSERT(r.used_bits <= p->budget_bits);
    CU_ASSERT_DOUBLE_EQUAL(r.D, distortion_of(p, choice), 1e-12 * (1 + r.D));
    CU_ASSERT(r.lower_bound <= r.D * (1 + 1e-9) + 1e-300);
    return r.D;
}

/*
 * Two heads, by hand. Distortion by cost:
 *           nothing  4 bits  6 bits
 *     A       10       9       1
 *     B        8       3       2
 * Budget 4: B takes 4; total 13.
 * Budget 6: A takes 6; total 9 (greedy by gain per bit agrees: 9/6 > 5/4).
 * Budget 8: 4 + 4 gives 12, A alone gives 9.
 * Budget 10: A takes 6 and B takes 4; total 4.
 * Budget 12: both take 6; total 3.
 * The option of 4 bits of A is above the hull and never of use here.
 */
static void test_by_hand(void)
{
    static const struct dp_option two[] = {
        {0, 0, 0, 10}, {4, 2, 2, 9}, {6, 2, 3, 1}, {0, 0, 0, 8}, {4, 2, 2, 3}, {6, 2, 3, 2},
    };
    static const struct {
        uint64_t budget;
        double D;
    } want[] = {{0, 18}, {3, 18}, {4, 13}, {6, 9}, {9, 9}, {10, 4}, {11, 4}, {12, 3}, {99, 3}};

    memcpy(options, two, sizeof(two));
    first[0] = 0, first[1] = 3, first[2] = 6;
    for (size_t i = 0; i < sizeof(want) / sizeof(want[0]); i++) {
        struct dp_problem p = problem(2, want[i].budget);

        CU_ASSERT_EQUAL(solved(&p), want[i].D);
        CU_ASSERT_EQUAL(try_all(&p), want[i].D);
    }
}

/*
 * A case where greedy choices fail. Three heads, 10 bits for the best of each, 6 bits for nearly all of it:
 * 12 bits buy 6 + 6 (two heads at 1), while the hull's steep first step is the 10-bit one of the third head.
 */
static void test_not_greedy(void)
{
    static const struct dp_option three[] = {
        {0, 0, 0, 10}, {6, 3, 2, 1}, {0, 0, 0, 10}, {6, 3, 2, 1}, {0, 0, 0, 18}, {10, 5, 2, 1},
    };
    struct dp_problem p = problem(3, 12);

    memcpy(options, three, sizeof(three));
    first[0] = 0, first[1] = 2, first[2] = 4, first[3] = 6;
    CU_ASSERT_EQUAL(solved(&p), 20); /* 1 + 1 + 18; the greedy choice is 10 + 10 + 1 = 21 */
    p.budget_bits = 16;
    CU_ASSERT_EQUAL(solved(&p), 12);
    p.budget_bits = 22;
    CU_ASSERT_EQUAL(solved(&p), 3);
}

/* Random costs and distortions, not convex, many of them dominated or equal. */
static void draw(size_t n_heads, size_t n_options, unsigned cost_max, unsigned D_levels)
{
    size_t n = 0;

    for (size_t h = 0; h < n_heads; h++) {
        size_t count = 1 + test_rand_below(n_options);

        first[h] = n;
        for (size_t i = 0; i < count; i++)
            options[n++] = (struct dp_option){
                .cost = i == 0 ? (uint32_t) test_rand_below(4) : (uint32_t) test_rand_below(cost_max),
                .D = D_levels ? (double) test_rand_below(D_levels) : exp(2 * test_rand_normal()),
            };
        assert(n < OPTIONS_MAX);
    }
    first[n_heads] = n;
}

static void test_against_all_combinations(void)
{
    for (unsigned round = 0; round < 1500; round++) {
        size_t n_heads = 1 + test_rand_below(5);
        struct dp_problem p;
        double want;

        draw(n_heads, 7, 30, round % 3 == 0 ? 4 : 0);
        p = problem(n_heads, test_rand_below(40 * n_heads / 2 + 1));
        want = try_all(&p);
        if (isinf(want)) {
            struct dp_result r = {.D = -1};

            CU_ASSERT_EQUAL(dp_solve(&p, choice, &r), -ERANGE);
            CU_ASSERT(r.used_bits > p.budget_bits);
            CU_ASSERT_EQUAL(r.D, -1);
            continue;
        }
        CU_ASSERT_DOUBLE_EQUAL(solved(&p), want, 1e-12 * (1 + want)); /* the oracle sums in another order */
    }
}

static void test_against_the_textbook(void)
{
    for (unsigned round = 0; round < 60; round++) {
        size_t n_heads = 5 + test_rand_below(25);
        struct dp_problem p;
        double want;

        draw(n_heads, 40, 60, round % 3 == 0 ? 6 : 0);
        p = problem(n_heads, 4 * n_heads + test_rand_below(40 * n_heads));
        want = textbook(&p);
        CU_ASSERT_DOUBLE_EQUAL(solved(&p), want, 1e-12 * (1 + want));
    }
}

/* Realistic curves: spectra and q(b) with the noise of measuring, and equal
 * heads, whose hulls tie everywhere. */
static void test_real_curves(void)
{
    enum { D = 32, N = 24 };
    struct paper_options o;
    double q[9], w[D], curve[(D / 2 + 1) * 7];

    paper_options_default(&o, 1);
    for (unsigned b = 0; b <= 8; b++)
        q[b] = paper_bennett(b);
    for (unsigned round = 0; round < 12; round++) {
        size_t n = 0;
        struct dp_problem p;
        double want;

        for (size_t h = 0; h < N; h++) {
            double decay = round % 4 == 3 ? 0.1 : 0.3 * test_rand_uniform();
            double largest = round % 4 == 3 ? 1 : exp(test_rand_normal());

            for (unsigned i = 0; i < D; i++)
                w[i] = i == 0 ? largest : w[i - 1] * exp(-decay);
            dp_curve(w, D, q, &o, curve);
            for (size_t i = 7; round % 4 == 2 && i < sizeof(curve) / sizeof(*curve); i++)
                curve[i] *= 1 + 0.02 * test_rand_uniform();
            first[h] = n;
            n += dp_head_options(curve, D, &o, options + n);
        }
        first[N] = n;
        p = problem(N, (uint64_t) ((0.3 + 3 * test_rand_uniform()) * N * D));
        want = textbook(&p);
        CU_ASSERT_DOUBLE_EQUAL(solved(&p), want, 1e-12 * (1 + want));
    }
}

/*
 * D(r, b) by hand, d = 4, w = 8 4 2 1: rank 0: 15; (2, 2): 3 + 12/192; (4, 3): 15/768. B_min = 8 charges (2,
 * 2) as 8.
 */
static void test_options_of_a_head(void)
{
    static const double w[4] = {8, 4, 2, 1};
    struct paper_options o;
    struct dp_option got[32];
    double q[4] = {1, 1.0 / 48, 1.0 / 192, 1.0 / 768}, curve[3 * 2];

    paper_options_default(&o, 1);
    o.b_max = 3;
    CU_ASSERT_EQUAL(dp_options_max(4, &o), 5);
    dp_curve(w, 4, q, &o, curve);
    CU_ASSERT_EQUAL_FATAL(dp_head_options(curve, 4, &o, got), 5);
    CU_ASSERT(got[0].r == 0 && got[0].cost == 8 && got[0].D == 15);
    CU_ASSERT(got[1].r == 2 && got[1].b == 2 && got[1].cost == 8);
    CU_ASSERT_DOUBLE_EQUAL(got[1].D, 3 + 12.0 / 192, 1e-15);
    CU_ASSERT(got[2].r == 2 && got[2].b == 3 && got[2].cost == 8);
    CU_ASSERT(got[4].r == 4 && got[4].b == 3 && got[4].cost == 12);
    CU_ASSERT_DOUBLE_EQUAL(got[4].D, 15.0 / 768, 1e-15);
    o.rank_step = 3; /* 3 of 4: the rank above is not on the grid */
    o.B_min = 0;
    CU_ASSERT_EQUAL(dp_options_max(4, &o), 3);
    dp_curve(w, 4, q, &o, curve);
    CU_ASSERT_EQUAL_FATAL(dp_head_options(curve, 4, &o, got), 3);
    CU_ASSERT(got[0].cost == 0 && got[1].r == 3 && got[1].cost == 6 && got[2].cost == 9);
    CU_ASSERT_DOUBLE_EQUAL(got[1].D, 1 + 14.0 / 192, 1e-15);
}

/* dp_solve() is never worse than C1 and C2 at the bits that they spend, on the model that both use. */
static void test_never_worse_than_c2(void)
{
    enum { D = 64, N = 32 };
    static double w[N * D];
    struct paper_choice c2[N];
    struct paper_options o;
    double q[9], curve[(D / 2 + 1) * 7];

    for (unsigned b = 0; b <= 8; b++)
        q[b] = paper_bennett(b);
    for (unsigned round = 0; round < 8; round++) {
        double theirs = 0;
        uint64_t spent = 0;
        struct dp_problem p;
        size_t n = 0;

        paper_options_default(&o, 0.5 + round * 0.5);
        o.B_min = 0; /* C2 renormalises after its maximum, so it may leave a head less */
        for (size_t h = 0; h < N; h++) {
            for (unsigned i = 0; i < D; i++)
                w[h * D + i] =
                    i == 0 ? exp(test_rand_normal()) : w[h * D + i - 1] * exp(-0.2 * test_rand_uniform());
            dp_curve(w + h * D, D, q, &o, curve);
            first[h] = n;
            n += dp_head_options(curve, D, &o, options + n);
        }
        first[N] = n;
        CU_ASSERT_EQUAL(paper_c2(w, N, D, &o, c2, NULL), 0);
        for (size_t h = 0; h < N; h++) {
            theirs += c2[h].D;
            spent += c2[h].r * c2[h].b;
        }
        p = problem(N, spent);
        CU_ASSERT(solved(&p) <= theirs * (1 + 1e-12));
    }
}

static void test_refusals(void)
{
    struct dp_problem p = problem(1, 10);
    struct dp_result r = {.D = -1};

    first[0] = 0, first[1] = 1;
    options[0] = (struct dp_option){.cost = 11, .D = 1};
    choice[0] = 77;
    CU_ASSERT_EQUAL(dp_solve(&p, choice, &r), -ERANGE);
    CU_ASSERT_EQUAL(r.used_bits, 11);
    options[0] = (struct dp_option){.cost = 1, .D = NAN};
    CU_ASSERT_EQUAL(dp_solve(&p, choice, &r), -EINVAL);
    options[0].D = INFINITY;
    CU_ASSERT_EQUAL(dp_solve(&p, choice, &r), -EINVAL);
    options[0].D = -1;
    CU_ASSERT_EQUAL(dp_solve(&p, choice, &r), -EINVAL);
    first[1] = 0; /* no options */
    CU_ASSERT_EQUAL(dp_solve(&p, choice, &r), -EINVAL);
    CU_ASSERT_EQUAL(choice[0], 77);
    p.n_heads = 0;
    CU_ASSERT_EQUAL(dp_solve(&p, choice, &r), 0);
    CU_ASSERT_EQUAL(r.D, 0);
}

const struct test_case test_cases[] = {
    TEST(test_by_hand),
    TEST(test_not_greedy),
    TEST(test_against_all_combinations),
    TEST(test_against_the_textbook),
    TEST(test_real_curves),
    TEST(test_options_of_a_head),
    TEST(test_never_worse_than_c2),
    TEST(test_refusals),
    TEST_END,
};
const char test_suite[] = "solve_dp";
