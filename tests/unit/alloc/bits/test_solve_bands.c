#include "tests/lib/test.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/unit/alloc/bits/bands_exact.h"

enum { N_MAX = 8192 };

static double distortion[N_MAX * BANDS_OPTIONS];
static uint32_t coords[N_MAX], group[N_MAX];
static uint64_t floor_bits[N_MAX], ceil_bits[N_MAX];
static uint8_t bits[N_MAX], bits_exact[N_MAX];

static struct bands_problem problem(size_t n, uint64_t budget)
{
    for (size_t i = 0; i < n; i++)
        coords[i] = 8;
    return (struct bands_problem){
        .n_bands = n, .distortion = distortion, .coords = coords, .budget_bits = budget};
}

/* variance * 2^-2b, times noise: nearly convex with small noise, of any shape with large noise */
static void random_curves(size_t n, double noise)
{
    for (size_t i = 0; i < n; i++) {
        double var = exp(3 * test_rand_normal());

        for (unsigned b = 0; b < BANDS_OPTIONS; b++)
            distortion[i * BANDS_OPTIONS + b] = var * exp2(-2.0 * b) * (1 + noise * test_rand_uniform());
    }
}

/* Compares a solver's result with one recomputed from its bits. */
static void check_result(const struct bands_problem *p, const uint8_t *b, const struct bands_result *r)
{
    double sum = 0, scale = 0;
    uint64_t used = 0;

    for (size_t i = 0; i < p->n_bands; i++) {
        CU_ASSERT_FATAL(b[i] <= 8);
        sum += p->distortion[i * BANDS_OPTIONS + b[i]];
        scale += fabs(p->distortion[i * BANDS_OPTIONS + b[i]]);
        used += (uint64_t) b[i] * p->coords[i];
    }
    CU_ASSERT_DOUBLE_EQUAL(r->distortion, sum, 1e-12 * scale);
    CU_ASSERT_EQUAL(r->used_bits, used);
    CU_ASSERT(used <= p->budget_bits);
    for (size_t g = 0; p->group && g < p->n_groups; g++) {
        uint64_t u = 0;

        for (size_t i = 0; i < p->n_bands; i++)
            u += p->group[i] == g ? (uint64_t) b[i] * p->coords[i] : 0;
        CU_ASSERT(!p->floor_bits || u >= p->floor_bits[g]);
        CU_ASSERT(!p->ceil_bits || u <= p->ceil_bits[g]);
    }
}

/*
 * Two bands of 8 coordinates, so one more bit of width costs 8 bits.
 *     distortions  64, 16, 4, 1, .25  and  8, 2, .5, .125
 *     gains        48, 12, 3, .75     and  6, 1.5, .375
 * In the order of gain: 48, 12, 6, 3, 1.5, ... So 24 bits buy the widths {2, 1}: 4 + 2.
 */
static void test_known(void)
{
    struct bands_problem p = problem(2, 24);
    struct bands_result r;

    for (unsigned b = 0; b < BANDS_OPTIONS; b++) {
        distortion[b] = 64 * exp2(-2.0 * b);
        distortion[BANDS_OPTIONS + b] = 8 * exp2(-2.0 * b);
    }
    CU_ASSERT_EQUAL_FATAL(bands_solve(&p, bits, &r), 0);
    CU_ASSERT_EQUAL(bits[0], 2);
    CU_ASSERT_EQUAL(bits[1], 1);
    CU_ASSERT_EQUAL(r.distortion, 6.0);
    CU_ASSERT_EQUAL(r.used_bits, 24);
    CU_ASSERT_EQUAL(r.multiplier, 6.0 / 8);
    p.budget_bits = 31; /* not a multiple of 8: the same */
    CU_ASSERT_EQUAL_FATAL(bands_solve(&p, bits, &r), 0);
    CU_ASSERT_EQUAL(r.used_bits, 24);
    p.budget_bits = 0;
    CU_ASSERT_EQUAL_FATAL(bands_solve(&p, bits, &r), 0);
    CU_ASSERT_EQUAL(r.distortion, 72.0);
    CU_ASSERT_EQUAL(r.used_bits, 0);
    p.budget_bits = 1000000;
    CU_ASSERT_EQUAL_FATAL(bands_solve(&p, bits, &r), 0);
    CU_ASSERT_EQUAL(r.used_bits, 128);
}

/* Bits that lower no distortion are not spent: flat curve, rising curve. */
static void test_useless_bits(void)
{
    struct bands_problem p = problem(3, 1000);
    struct bands_result r;

    for (unsigned b = 0; b < BANDS_OPTIONS; b++) {
        distortion[b] = 5;
        distortion[9 + b] = 1 + b;
        distortion[18 + b] = b < 3 ? 9 - b : 7 + 0.1 * b; /* least at b = 2 */
    }
    CU_ASSERT_EQUAL_FATAL(bands_solve(&p, bits, &r), 0);
    CU_ASSERT_EQUAL(bits[0], 0);
    CU_ASSERT_EQUAL(bits[1], 0);
    CU_ASSERT_EQUAL(bits[2], 2);
}

static double brute(const struct bands_problem *p, size_t i, uint64_t left, uint64_t *used_by_group)
{
    double best = INFINITY;

    if (i == p->n_bands) {
        for (size_t g = 0; p->group && g < p->n_groups; g++)
            if (used_by_group[g] < p->floor_bits[g] || used_by_group[g] > p->ceil_bits[g])
                return INFINITY;
        return 0;
    }
    for (unsigned b = 0; b < BANDS_OPTIONS && (uint64_t) b * p->coords[i] <= left; b++) {
        size_t g = p->group ? p->group[i] : 0;

        used_by_group[g] += (uint64_t) b * p->coords[i];
        best = fmin(best, p->distortion[i * BANDS_OPTIONS + b] +
                              brute(p, i + 1, left - (uint64_t) b * p->coords[i], used_by_group));
        used_by_group[g] -= (uint64_t) b * p->coords[i];
    }
    return best;
}

static struct bands_problem random_grouped(size_t n, size_t n_groups, uint64_t budget)
{
    struct bands_problem p = problem(n, budget);

    p.group = group;
    p.n_groups = n_groups;
    p.floor_bits = floor_bits;
    p.ceil_bits = ceil_bits;
    for (size_t i = 0; i < n; i++) {
        group[i] = (uint32_t) test_rand_below(n_groups);
        coords[i] = test_rand_below(3) == 0 ? 4 : 8;
    }
    for (size_t g = 0; g < n_groups; g++) {
        floor_bits[g] = test_rand_below(2) ? test_rand_below(30) : 0;
        ceil_bits[g] = test_rand_below(2) ? floor_bits[g] + 4 + test_rand_below(60) : UINT64_MAX;
    }
    return p;
}

/* Oracle and solver against all 9^4 choices, with floors, ceilings and unequal bands. */
static void test_against_brute_force(void)
{
    for (unsigned round = 0; round < 150; round++) {
        struct bands_problem p = random_grouped(4, 2, test_rand_below(200));
        struct bands_result r = {0}, x = {0};
        uint64_t used[2] = {0};
        double best;
        int got, want;

        random_curves(4, round % 3 == 0 ? 20 : 1);
        best = brute(&p, 0, p.budget_bits, used);
        want = bands_solve_exact(&p, bits_exact, &x);
        got = bands_solve(&p, bits, &r);
        CU_ASSERT_EQUAL(got, want);
        CU_ASSERT_EQUAL(got == 0, isfinite(best));
        if (got == -ERANGE) {
            CU_ASSERT(r.used_bits > p.budget_bits);
            CU_ASSERT_EQUAL(r.used_bits, x.used_bits);
            p.budget_bits = r.used_bits; /* the smallest budget works, one bit less does not */
            CU_ASSERT_EQUAL(bands_solve(&p, bits, &r), 0);
            p.budget_bits--;
            CU_ASSERT_EQUAL(bands_solve(&p, bits, &r), -ERANGE);
        }
        if (got != 0)
            continue;
        check_result(&p, bits, &r);
        check_result(&p, bits_exact, &x);
        CU_ASSERT_DOUBLE_EQUAL(x.distortion, best, 1e-12 * best);
        CU_ASSERT_DOUBLE_EQUAL(r.distortion, best, 1e-9 * best); /* the remainder's programme is exact here */
    }
}

/* Larger problems: the contract is 1 %; unless the core is full, the remainder
 * is exact and the optimum the same. */
static void test_against_oracle(void)
{
    static const unsigned spreads[] = {30, 2, 0};

    for (unsigned round = 0; round < 30; round++) {
        bool grouped = round % 2;
        struct bands_problem p = grouped ? random_grouped(10, 3, 64 + test_rand_below(300))
                                         : problem(24, test_rand_below(24 * 64));
        struct bands_result r = {0}, x = {0};
        int got, want;

        random_curves(p.n_bands, spreads[round % 3]);
        want = bands_solve_exact(&p, bits_exact, &x);
        got = bands_solve(&p, bits, &r);
        CU_ASSERT_EQUAL_FATAL(got, want);
        if (got != 0)
            continue;
        check_result(&p, bits, &r);
        check_result(&p, bits_exact, &x);
        CU_ASSERT(r.distortion <= x.distortion * (1 + 1e-9));
        CU_ASSERT(r.distortion >= x.distortion * (1 - 1e-9));
    }
}

/* Greedy choices alone are not optimal: one unit is left, and only giving up a two-unit
 * step makes room for a three-unit step. */
static void test_remainder_by_exchange(void)
{
    struct bands_problem p = problem(3, 24);
    struct bands_result r;

    /* all or nothing at 2 bits (gain 20), at 3 bits (gain 27), and 1 bit (gain 1) */
    for (unsigned b = 0; b < BANDS_OPTIONS; b++) {
        distortion[b] = b < 2 ? 20 : 0;
        distortion[9 + b] = b < 3 ? 27 : 0;
        distortion[18 + b] = b < 1 ? 1 : 0;
    }
    /* gains per unit 10, 9, 1: greedy takes the first and the last, gaining 21; the second alone gains 27 */
    CU_ASSERT_EQUAL_FATAL(bands_solve(&p, bits, &r), 0);
    CU_ASSERT_EQUAL(bits[1], 3);
    CU_ASSERT_EQUAL(r.distortion, 21.0);
}

static void test_refused(void)
{
    struct bands_problem p = problem(2, 64);
    struct bands_result r = {.used_bits = 77};

    random_curves(2, 0);
    bits[0] = 99;
    distortion[3] = NAN;
    CU_ASSERT_EQUAL(bands_solve(&p, bits, &r), -EINVAL);
    random_curves(2, 0);
    coords[1] = 0;
    CU_ASSERT_EQUAL(bands_solve(&p, bits, &r), -EINVAL);
    coords[1] = BANDS_COORDS_MAX + 1;
    CU_ASSERT_EQUAL(bands_solve(&p, bits, &r), -EINVAL);
    coords[1] = 8;
    p.group = group;
    p.n_groups = 1;
    group[0] = 0;
    group[1] = 1;
    CU_ASSERT_EQUAL(bands_solve(&p, bits, &r), -EINVAL);
    group[1] = 0;
    p.floor_bits = floor_bits;
    p.ceil_bits = ceil_bits;
    floor_bits[0] = 9; /* no multiple of 8 between */
    ceil_bits[0] = 15;
    CU_ASSERT_EQUAL(bands_solve(&p, bits, &r), -EINVAL);
    CU_ASSERT_EQUAL(bands_solve_exact(&p, bits, &r), -EINVAL);
    floor_bits[0] = 129; /* more than everything at 8 bits */
    ceil_bits[0] = UINT64_MAX;
    CU_ASSERT_EQUAL(bands_solve(&p, bits, &r), -EINVAL);
    CU_ASSERT_EQUAL(r.used_bits, 77);
    floor_bits[0] = 65;
    CU_ASSERT_EQUAL(bands_solve(&p, bits, &r), -ERANGE);
    CU_ASSERT_EQUAL(r.used_bits, 72);
    CU_ASSERT_EQUAL(bits[0], 99);
    p = problem(0, 64);
    CU_ASSERT_EQUAL(bands_solve(&p, bits, &r), 0);
    CU_ASSERT_EQUAL(r.used_bits, 0);
}

/*
 * 256 heads, d = 128, K and V: never above the budget, the budget used, no better than the Lagrangian bound
 * allows (dual: min sum D + lambda c, minus lambda budget), and in far less than a second.
 */
static void test_large(void)
{
    struct bands_problem p = problem(N_MAX, 2 * 2 * 256 * 128);
    struct bands_result r;
    struct timespec a, b;
    double dual;

    random_curves(N_MAX, 0.5);
    for (size_t i = 0; i < N_MAX; i++)
        group[i] = (uint32_t) (i / 16);
    for (size_t g = 0; g < N_MAX / 16; g++) {
        floor_bits[g] = 64;
        ceil_bits[g] = 6 * 128;
    }
    for (unsigned grouped = 0; grouped < 2; grouped++) {
        p.group = grouped ? group : NULL;
        p.n_groups = grouped ? N_MAX / 16 : 0;
        p.floor_bits = grouped ? floor_bits : NULL;
        p.ceil_bits = grouped ? ceil_bits : NULL;
        (void) clock_gettime(CLOCK_THREAD_CPUTIME_ID, &a);
        CU_ASSERT_EQUAL_FATAL(bands_solve(&p, bits, &r), 0);
        (void) clock_gettime(CLOCK_THREAD_CPUTIME_ID, &b);
        CU_ASSERT((double) (b.tv_sec - a.tv_sec) + 1e-9 * (double) (b.tv_nsec - a.tv_nsec) < 1.0);
        check_result(&p, bits, &r);
        CU_ASSERT(r.used_bits > p.budget_bits - 64);
        dual = -r.multiplier * (double) p.budget_bits;
        for (size_t i = 0; i < N_MAX; i++) {
            double least = INFINITY;

            for (unsigned k = 0; k < BANDS_OPTIONS; k++)
                least = fmin(least, distortion[i * BANDS_OPTIONS + k] + r.multiplier * 8 * k);
            dual += least;
        }
        CU_ASSERT(r.distortion >= dual * (1 - 1e-9)); /* also holds with groups: they only add constraints */
        if (!grouped)
            CU_ASSERT(r.distortion <= dual + r.multiplier * 64);
    }
}

const struct test_case test_cases[] = {
    TEST(test_known),
    TEST(test_useless_bits),
    TEST(test_against_brute_force),
    TEST(test_against_oracle),
    TEST(test_remainder_by_exchange),
    TEST(test_refused),
    TEST(test_large),
    TEST_END,
};
const char test_suite[] = "solve_bands";
