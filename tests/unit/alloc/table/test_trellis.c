/*
 * Trellis-coded levels: every variant chooses the same strings, strings are circular and the best that pass
 * through their seam, and books lose less than scalar levels.
 */
#include "alloc/table/trellis.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/quantiser/levels_normal.h"
#include "alloc/quantiser/trellis_fit.h"
#include "alloc/table/levels.h"
#include "gpu/cpu.h"
#include "tests/lib/random_book.h"
#include "tests/lib/test.h"

enum { STRINGS = 80, STRIDE = STRINGS + 3 };

struct strings {
    int16_t x[TRELLIS_TOKENS * STRIDE];
    uint8_t states[TRELLIS_TOKENS * STRIDE];
    _Alignas(64) uint8_t scratch[TRELLIS_SCRATCH];
};

static struct strings a, other;

/* Normal numbers, silence, numbers beyond all levels, one number again and again, and alternating extremes.
 * */
static void draw(const struct levels *l)
{
    for (unsigned t = 0; t < TRELLIS_TOKENS; t++)
        for (unsigned i = 0; i < STRIDE; i++) {
            float z = (float) test_rand_normal();

            if (i % 8 == 5)
                z = 0;
            if (i % 16 == 6)
                z = 1e30f;
            if (i % 16 == 14)
                z = t % 2 ? 100 : -100;
            if (i % 8 == 7)
                z = 0.7f;
            a.x[t * STRIDE + i] = trellis_steps(z, 1 / l->step);
        }
    memset(a.states, 0xee, sizeof(a.states));
    other = a;
}

/* Squared distance as the encoder rounds it. */
static unsigned cost(unsigned b, int x, int level)
{
    static const int shift[] = {0, 5, 4, 2, 1}, clip[] = {0, 255, 255, 127, 90};
    int e = abs(x - level);

    e = e < clip[b] ? e : clip[b];
    return (unsigned) (e * e) >> shift[b];
}

/* The least cost of a string that begins and ends in @seam, in wide sums. */
static unsigned best_cost(const struct levels *l, unsigned b, const int16_t *x, unsigned seam)
{
    unsigned n = 1u << l->state_bits, now[1 << TABLE_BITS_MAX], next[1 << TABLE_BITS_MAX];

    for (unsigned s = 0; s < n; s++)
        now[s] = s == seam ? 0 : 1u << 30;
    for (unsigned place = 0; place < TRELLIS_TOKENS; place++) {
        unsigned token = place % 8 * 8 + place / 8;

        memset(next, 0xff, sizeof(next));
        for (unsigned s = 0; s < n; s++)
            for (unsigned code = 0; code < 1u << b; code++) {
                unsigned to = s >> b | code << (l->state_bits - b);
                unsigned sum = now[s] + cost(b, x[token * STRIDE], (int) l->value[to]);

                next[to] = sum < next[to] ? sum : next[to];
            }
        memcpy(now, next, sizeof(now));
    }
    return now[seam];
}

static void check_string(const struct levels *l, unsigned b, unsigned i)
{
    unsigned sum = 0, seam = a.states[63 * STRIDE + i]; /* of the last place: token 63 */

    for (unsigned place = 0, before = seam; place < TRELLIS_TOKENS; place++) {
        unsigned token = place % 8 * 8 + place / 8, state = a.states[token * STRIDE + i];

        CU_ASSERT_EQUAL(state & ((1u << (l->state_bits - b)) - 1), before >> b);
        sum += cost(b, a.x[token * STRIDE + i], (int) l->value[state]);
        before = state;
    }
    CU_ASSERT_EQUAL(sum, best_cost(l, b, a.x + i, seam));
}

static void test_strings_are_circular_and_best(void)
{
    for (unsigned b = 1; b <= TRELLIS_BITS_MAX; b++)
        for (unsigned state_bits = TRELLIS_STATE_BITS_MIN; state_bits <= TRELLIS_STATE_BITS_MAX;
             state_bits++) {
            struct levels l;

            random_book(state_bits, &l);
            draw(&l);
            trellis_encode_best()(&l, b, a.x, STRINGS, STRIDE, a.states, a.scratch);
            for (unsigned i = 0; i < STRINGS; i += 5)
                check_string(&l, b, i);
            for (unsigned t = 0; t < TRELLIS_TOKENS; t++) /* nothing is written behind the strings */
                CU_ASSERT_EQUAL(a.states[t * STRIDE + STRINGS], 0xee);
        }
}

/* A book whose levels are all equal says nothing, and every string costs the same: still a circle, with the
 * same bits on every instruction set. */
static void test_equal_levels(void)
{
    for (unsigned state_bits = TRELLIS_STATE_BITS_MIN; state_bits <= TRELLIS_STATE_BITS_MAX; state_bits++)
        for (unsigned b = 1; b <= TRELLIS_BITS_MAX; b++) {
            struct levels l;

            random_book(state_bits, &l);
            for (unsigned s = 0; s < 1u << state_bits; s++)
                l.value[s] = 127;
            CU_ASSERT_TRUE(levels_valid(&l, b));
            draw(&l);
            trellis_encode_ref(&l, b, a.x, STRINGS, STRIDE, a.states, a.scratch);
            trellis_encode_best()(&l, b, other.x, STRINGS, STRIDE, other.states, other.scratch);
            CU_ASSERT_EQUAL(memcmp(a.states, other.states, sizeof(a.states)), 0);
            for (unsigned i = 0; i < STRINGS; i += 7)
                check_string(&l, b, i);
        }
}

static void test_variants_have_the_same_bits(void)
{
    for (unsigned b = 1; b <= TRELLIS_BITS_MAX; b++)
        for (unsigned state_bits = TRELLIS_STATE_BITS_MIN; state_bits <= TRELLIS_STATE_BITS_MAX;
             state_bits++) {
            struct levels l;

            random_book(state_bits, &l);
            draw(&l);
            trellis_encode_ref(&l, b, a.x, STRINGS, STRIDE, a.states, a.scratch);
#if defined(__x86_64__)
            if (cpu_capabilities() & CPU_AVX2) {
                trellis_encode_avx2(&l, b, other.x, STRINGS, STRIDE, other.states, other.scratch);
                CU_ASSERT_EQUAL(memcmp(a.states, other.states, sizeof(a.states)), 0);
            }
            if (cpu_capabilities() & CPU_AVX512) {
                trellis_encode_avx512(&l, b, other.x, STRINGS, STRIDE, other.states, other.scratch);
                CU_ASSERT_EQUAL(memcmp(a.states, other.states, sizeof(a.states)), 0);
            }
#endif
        }
}

static void test_steps_round_and_clip(void)
{
    CU_ASSERT_EQUAL(trellis_steps(0.5f, 1), 0); /* ties to even */
    CU_ASSERT_EQUAL(trellis_steps(1.5f, 1), 2);
    CU_ASSERT_EQUAL(trellis_steps(-2.5f, 1), -2);
    CU_ASSERT_EQUAL(trellis_steps(100.6f, 1), 101);
    CU_ASSERT_EQUAL(trellis_steps(3e38f, 3), TRELLIS_LIMIT);
    CU_ASSERT_EQUAL(trellis_steps(-INFINITY, 1), -TRELLIS_LIMIT);
}

/* At least 1.1, 1.2, 1.1, 0.4 dB with 64 states, and no less with 256 against scalar levels of Lloyd and
 * Max. */
static void test_books_lose_less_than_scalar_levels(void)
{
    static const double most[] = {0, 0.86, 0.77, 0.78, 0.92};

    for (unsigned b = 1; b <= TRELLIS_BITS_MAX; b++) {
        struct levels scalar, book, large;
        double mse, less;

        CU_ASSERT_EQUAL_FATAL(levels_normal(QUANT_LLOYD_MAX, b, &scalar), 0);
        CU_ASSERT_EQUAL_FATAL(trellis_normal(b, 6, &book, &mse), 0);
        CU_ASSERT_EQUAL_FATAL(trellis_normal(b, 8, &large, &less), 0);
        CU_ASSERT_TRUE(mse < most[b] * levels_normal_mse(&scalar, b));
        CU_ASSERT_TRUE(less < mse);
        CU_ASSERT_TRUE(levels_valid(&book, b) && levels_valid(&large, b));
        /* centroids, which the rounds come near to: E c z = E c^2 = 1 - error */
        CU_ASSERT_DOUBLE_EQUAL((double) book.normal_product, 1 - mse, 0.015);
        CU_ASSERT_DOUBLE_EQUAL((double) book.normal_square, 1 - mse, 0.015);
    }
}

/* A book that is scaled has the moments of its codes, not scaled ones: cells grow, numbers do not. */
static void test_scaled_books(void)
{
    struct levels normal, wide;
    double mse;

    CU_ASSERT_EQUAL_FATAL(trellis_normal(2, 6, &normal, &mse), 0);
    CU_ASSERT_EQUAL_FATAL(trellis_scale(&normal, 2, 1.2, &wide), 0);
    CU_ASSERT_DOUBLE_EQUAL((double) wide.step, 1.2 * (double) normal.step, 1e-6);
    CU_ASSERT_DOUBLE_EQUAL((double) wide.normal_product, (double) normal.normal_product, 0.05);
    CU_ASSERT_TRUE(wide.normal_square > normal.normal_square);
    CU_ASSERT_TRUE((double) wide.normal_square < 1.1 * (double) normal.normal_square);
}

/* Numbers of another distribution, of half the deviation: the fitted book is better on them than that of
 * N(0,1). */
static void test_fit_follows_the_samples(void)
{
    enum { N = 64 * 640 };
    float *z = malloc(N * sizeof(*z));
    struct levels normal, fitted;
    double mse;

    assert(z);
    for (size_t i = 0; i < N; i++)
        z[i] = 0.5f * (float) test_rand_normal();
    CU_ASSERT_EQUAL_FATAL(trellis_normal(2, 6, &normal, &mse), 0);
    fitted = normal;
    CU_ASSERT_EQUAL_FATAL(trellis_fit(z, TRELLIS_FIT_MIN - 1, 2, &fitted), 0);
    CU_ASSERT_EQUAL(fitted.step, normal.step); /* too few */
    CU_ASSERT_EQUAL_FATAL(trellis_fit(z, N, 2, &fitted), 0);
    CU_ASSERT_TRUE(fitted.step < 0.7f * normal.step);
    CU_ASSERT_TRUE(fitted.normal_product < normal.normal_product);
    for (size_t i = 0; i < N; i++)
        z[i] = 0;
    fitted = normal;
    CU_ASSERT_EQUAL(trellis_fit(z, N, 2, &fitted), 0); /* silence has no book: N(0,1)'s stays */
    CU_ASSERT_EQUAL(fitted.step, normal.step);
    free(z);
}

static void test_books_are_checked(void)
{
    double book[1 << TABLE_BITS_MAX] = {0};
    struct levels l, twice;

    CU_ASSERT_EQUAL(levels_from_book(book, 6, 0, 0, &l), -EINVAL);
    book[3] = NAN;
    CU_ASSERT_EQUAL(levels_from_book(book, 6, 0, 0, &l), -EINVAL);
    random_book(7, &l);
    CU_ASSERT_EQUAL_FATAL(trellis_scale(&l, 3, 2, &twice), 0);
    for (unsigned s = 0; s < 128; s++)
        CU_ASSERT_EQUAL(twice.value[s], l.value[s]);
    CU_ASSERT_EQUAL(twice.step, 2 * l.step);
    CU_ASSERT_TRUE(levels_valid(&l, 4) && !levels_valid(&l, 5));
    l.value[9] = 0.5f;
    CU_ASSERT_FALSE(levels_valid(&l, 3));
    l.value[9] = -128;
    CU_ASSERT_FALSE(levels_valid(&l, 3));
    l.value[9] = NAN;
    CU_ASSERT_FALSE(levels_valid(&l, 3));
    l.value[9] = 0;
    l.state_bits = 9;
    CU_ASSERT_FALSE(levels_valid(&l, 3));
}

const struct test_case test_cases[] = {
    TEST(test_strings_are_circular_and_best),
    TEST(test_equal_levels),
    TEST(test_variants_have_the_same_bits),
    TEST(test_steps_round_and_clip),
    TEST(test_books_lose_less_than_scalar_levels),
    TEST(test_scaled_books),
    TEST(test_fit_follows_the_samples),
    TEST(test_books_are_checked),
    TEST_END,
};
const char test_suite[] = "trellis";
