/* Regression from moments by source: against sums over rows, without a source, and the choice of a ridge. */
#include <math.h>
#include <string.h>

#include "alloc/solve/solve_regression.h"
#include "tests/lib/test.h"

enum { M = 5, D = 3, ROWS = 600, SOURCES = 3 };

struct data {
    double c[ROWS * M], x[ROWS * D], P[SOURCES][D * M];
    uint8_t source_of[ROWS];
};

/* x = P_s c + s + noise. @apart: how far the P of sources are from each other. */
static void draw(struct data *t, double apart)
{
    for (uint32_t s = 0; s < SOURCES; s++)
        for (size_t i = 0; i < D * M; i++)
            t->P[s][i] = (double) (i % 4) - 1 + apart * test_rand_normal();
    for (size_t t_ = 0; t_ < ROWS; t_++) {
        uint32_t s = t->source_of[t_] = (uint8_t) (t_ % SOURCES);

        for (size_t j = 0; j < M; j++)
            t->c[t_ * M + j] = test_rand_normal();
        for (size_t i = 0; i < D; i++) {
            t->x[t_ * D + i] = s + 0.1 * test_rand_normal();
            for (size_t j = 0; j < M; j++)
                t->x[t_ * D + i] += t->P[s][i * M + j] * t->c[t_ * M + j];
        }
    }
}

/* Without source 1: P minimises the error of the rows of 0 and 2, which are exactly those that count. */
static void test_without_a_source(void)
{
    static struct data t;
    struct regression r;
    double P[D * M], mean[D], E[D * D], S[D * D];

    draw(&t, 0);
    for (size_t row = 0; row < ROWS; row++) /* a source that would ruin every fit */
        for (size_t i = 0; t.source_of[row] == 1 && i < D; i++)
            t.x[row * D + i] = 1000 * test_rand_normal();
    CU_ASSERT_EQUAL_FATAL(regression_init(&r, t.c, M, t.x, D, ROWS, t.source_of, SOURCES), 0);
    CU_ASSERT_EQUAL(regression_fit(&r, 1, 1e-9, P, mean), 0);
    for (size_t i = 0; i < D * M;
         i++) /* errors of 0.1 and means apart by 2 over 400 rows: 0.05, five times */
        CU_ASSERT_DOUBLE_EQUAL(P[i], t.P[0][i], 0.25);
    for (size_t i = 0; i < D; i++)
        CU_ASSERT_DOUBLE_EQUAL(mean[i], 1, 0.25); /* of sources 0 and 2 */

    CU_ASSERT_EQUAL(regression_second_moment(&r, 1, P, mean, E), 0);
    CU_ASSERT_EQUAL(regression_covariance(&r, 1, P, S), 0);
    for (size_t i = 0; i < D; i++)
        for (size_t j = 0; j < D; j++) {
            double second = 0, n = 0, both[2] = {0}, product = 0, n_rest = 0;

            for (size_t row = 0; row < ROWS; row++) {
                double u[2] = {t.x[row * D + i], t.x[row * D + j]};

                for (size_t k = 0; k < M; k++) {
                    u[0] -= P[i * M + k] * t.c[row * M + k];
                    u[1] -= P[j * M + k] * t.c[row * M + k];
                }
                if (t.source_of[row] == 1) {
                    second += (u[0] - mean[i]) * (u[1] - mean[j]);
                    n++;
                } else {
                    both[0] += u[0];
                    both[1] += u[1];
                    product += u[0] * u[1];
                    n_rest++;
                }
            }
            CU_ASSERT_DOUBLE_EQUAL(E[i * D + j], second / n, 1e-9 * 1e6);
            CU_ASSERT_DOUBLE_EQUAL(S[i * D + j], product / n_rest - both[0] * both[1] / n_rest / n_rest,
                                   1e-9);
        }
    regression_deinit(&r);
}

/* Sources that agree want hardly any ridge; sources whose predictions contradict each other want none at all.
 * */
static void test_choice(void)
{
    static const double ridges[] = {1e-3, 1, REGRESSION_NONE}, share[] = {1.0 / 3, 1.0 / 3, 1.0 / 3};
    static struct data t;
    double weight[D * D] = {1, 0, 0, 0, 1, 0, 0, 0, 1}, ridge = 0, P[D * M], mean[D];
    struct regression r;

    draw(&t, 0.01);
    CU_ASSERT_EQUAL_FATAL(regression_init(&r, t.c, M, t.x, D, ROWS, t.source_of, SOURCES), 0);
    CU_ASSERT_EQUAL(regression_choose_ridge(&r, ridges, 3, weight, share, &ridge), 0);
    CU_ASSERT_EQUAL(ridge, 1e-3);
    regression_deinit(&r);

    draw(&t, 0);
    for (size_t row = 0; row < ROWS; row++)
        for (size_t i = 0; i < D; i++) { /* x = +-10 c_i: what two sources say is wrong for the third */
            double sign = t.source_of[row] == 0 ? 2 : -1;

            t.x[row * D + i] = sign * 10 * t.c[row * M + i];
        }
    CU_ASSERT_EQUAL_FATAL(regression_init(&r, t.c, M, t.x, D, ROWS, t.source_of, SOURCES), 0);
    CU_ASSERT_EQUAL(regression_choose_ridge(&r, ridges, 3, weight, share, &ridge), 0);
    CU_ASSERT(isinf(ridge));
    CU_ASSERT_EQUAL(regression_fit(&r, REGRESSION_ALL, ridge, P, mean), 0);
    for (size_t i = 0; i < D * M; i++)
        CU_ASSERT_EQUAL(P[i], 0);
    regression_deinit(&r);
}

/* A source without rows, and codes that do not vary. */
static void test_nothing_to_fit(void)
{
    static struct data t;
    double P[D * M], mean[D], E[D * D];
    struct regression r;

    draw(&t, 0);
    memset(t.c, 0, sizeof(t.c));
    memset(t.source_of, 0, sizeof(t.source_of));
    CU_ASSERT_EQUAL_FATAL(regression_init(&r, t.c, M, t.x, D, ROWS, t.source_of, SOURCES), 0);
    CU_ASSERT_EQUAL(regression_fit(&r, REGRESSION_ALL, 1e-3, P, mean), 0);
    for (size_t i = 0; i < D * M; i++)
        CU_ASSERT_EQUAL(P[i], 0);
    CU_ASSERT_EQUAL(regression_fit(&r, 0, 1e-3, P, mean), 0); /* nothing is left */
    for (size_t i = 0; i < D; i++)
        CU_ASSERT_EQUAL(mean[i], 0);

    CU_ASSERT_EQUAL(regression_fit(&r, 1, 1e-3, P, mean), 0);
    CU_ASSERT(mean[0] != 0);
    CU_ASSERT_EQUAL(regression_second_moment(&r, 1, P, mean, E), 0); /* no rows have no energy */
    for (size_t i = 0; i < D * D; i++)
        CU_ASSERT_EQUAL(E[i], 0);
    regression_deinit(&r);
}

const struct test_case test_cases[] = {
    TEST(test_without_a_source),
    TEST(test_choice),
    TEST(test_nothing_to_fit),
    TEST_END,
};
const char test_suite[] = "solve_regression";
