/* Statistics of keys after RoPE, against keys rotated one by one. */
#include <complex.h>
#include <errno.h>
#include <stdio.h>

#include "alloc/solve/solve.h"
#include "alloc/stats/stats_internal.h"
#include "alloc/stats/stats_rotate.h"
#include "alloc/table/table.h"
#include "tests/unit/alloc/shapes.h"

enum { WINDOW = 100, WINDOWS = 6 };

/* R(p) x as complex numbers. */
static void rotate_key(const struct geometry *g, uint64_t p, double *x)
{
    uint32_t half = g->n_rot / 2;

    for (uint32_t i = 0; i < half; i++) {
        double complex z = (x[i] + I * x[i + half]) * cexp(I * (double) p * g->freq[i]);

        x[i] = creal(z);
        x[i + half] = cimag(z);
    }
}

static double relative(const double *a, const double *b, size_t n)
{
    double error = 0, size = 0;

    for (size_t i = 0; i < n; i++) {
        error += (a[i] - b[i]) * (a[i] - b[i]);
        size += b[i] * b[i];
    }
    return sqrt(error / size);
}

/* Samples, mean and scatter are those of keys that are each rotated by its
 * position. Samples are binary32: 1e-6. */
static void test_keys(void)
{
    enum { D = 32 };
    struct geometry g = shape(2, 4, 2, D, 16);
    struct stats *s = shape_statistics(&g, WINDOW, WINDOWS), *r = NULL;
    struct errmsg e = {""};

    CU_ASSERT_EQUAL_FATAL(stats_rotated(s, &r, &e), 0);
    CU_ASSERT_EQUAL(stats_tokens(r), stats_tokens(s));
    CU_ASSERT_EQUAL(stats_samples(r), WINDOWS * (WINDOW - 4));
    for (uint32_t hs = SIDE_K; hs < head_side_count(&g); hs += 2) {
        double mean[D] = {0}, scatter[D * D] = {0}, n = (double) s->n_held;
        float *from = stats_sample_load(s, hs), *to = stats_sample_load(r, hs);

        CU_ASSERT_FATAL(from && to);

        for (int pass = 0; pass < 2; pass++) /* first the means */
            for (size_t t = 0; t < s->n_held; t++) {
                double x[D];

                for (size_t i = 0; i < D; i++)
                    x[i] = (double) from[t * D + i];
                rotate_key(&g, s->ids[t].position, x);
                for (size_t i = 0; pass == 0 && i < D; i++) {
                    /* binary16 of numbers below 8 from their mean: half a unit is 2^-11 of them */
                    CU_ASSERT(fabs((double) to[t * D + i] - x[i]) < 8 * 0x1p-11);
                    mean[i] += x[i] / n;
                }
                for (size_t i = 0; pass == 1 && i < D * D; i++)
                    scatter[i] += (x[i / D] - mean[i / D]) * (x[i % D] - mean[i % D]);
            }
        CU_ASSERT(relative(r->mean + hs * D, mean, D) < 1e-5);
        /* every token is a sample: no scaling */
        CU_ASSERT(relative(r->scatter + hs * D * D, scatter, D * D) < 1e-5);
        /* values are unchanged */
        CU_ASSERT_EQUAL(memcmp(r->scatter + (hs + 1) * D * D, s->scatter + (hs + 1) * D * D, sizeof(scatter)),
                        0);
        CU_ASSERT_EQUAL(memcmp(stats_sample_rows(r, hs + 1), stats_sample_rows(s, hs + 1),
                               s->n_held * D * sizeof(uint16_t)),
                        0);
        free(from);
        free(to);
    }
    (void) stats_free(s);
    (void) stats_free(r);
}

/*
 * Metrics: x' M_rotated x is the mean of (R(p)' x)' M (R(p)' x) over the positions that are averaged over:
 * here every second sample (576 of them, at most 512 positions). Symmetric, with the same trace; the metric
 * of values is unchanged.
 */
static void test_metrics(void)
{
    enum { D = 32 };
    struct geometry g = shape(1, 2, 1, D, 32);
    struct stats *s = shape_statistics(&g, WINDOW, WINDOWS), *r = NULL;
    struct errmsg e = {""};
    const double *from[2] = {s->query, s->metric}, *to[2];
    double x[D], trace[2] = {0};

    CU_ASSERT_EQUAL_FATAL(stats_rotated(s, &r, &e), 0);
    to[0] = r->query, to[1] = r->metric;
    for (int m = 0; m < 2; m++) {
        double got = 0, want = 0, n = 0;

        for (size_t i = 0; i < D; i++)
            x[i] = test_rand_normal();
        for (size_t i = 0; i < D; i++)
            for (size_t j = 0; j < D; j++) {
                got += x[i] * to[m][i * D + j] * x[j];
                CU_ASSERT_EQUAL(to[m][i * D + j], to[m][j * D + i]);
            }
        for (size_t t = 0; t < s->n_held; t += 2, n++) {
            struct geometry back = g;
            double y[D];

            memcpy(y, x, sizeof(y));
            for (uint32_t i = 0; i < g.n_rot / 2; i++)
                back.freq[i] = -g.freq[i]; /* R(p)' */
            rotate_key(&back, s->ids[t].position, y);
            for (size_t i = 0; i < D; i++)
                for (size_t j = 0; j < D; j++)
                    want += y[i] * from[m][i * D + j] * y[j];
        }
        CU_ASSERT_DOUBLE_EQUAL(got, want / n, 1e-9 * fabs(got));
        trace[0] = trace[1] = 0;
        for (size_t i = 0; i < D; i++) {
            trace[0] += from[m][i * D + i];
            trace[1] += to[m][i * D + i];
        }
        CU_ASSERT_DOUBLE_EQUAL(trace[1], trace[0], 1e-9 * trace[0]);
    }
    CU_ASSERT_EQUAL(memcmp(r->metric + D * D, s->metric + D * D, D * D * sizeof(double)), 0);
    (void) stats_free(s);
    (void) stats_free(r);
}

/* Without rotary dimensions, rotated keys equal the keys. */
static void test_without_rope(void)
{
    struct geometry g = shape(1, 2, 1, 32, 0);
    struct stats *s = shape_statistics(&g, WINDOW, WINDOWS), *r = NULL;
    struct errmsg e = {""};
    float *from, *to;

    CU_ASSERT_EQUAL_FATAL(stats_rotated(s, &r, &e), 0);
    from = stats_sample_load(s, 0);
    to = stats_sample_load(r, 0);
    CU_ASSERT_FATAL(from && to);
    for (size_t i = 0; i < s->n_held * 32; i++)
        CU_ASSERT_DOUBLE_EQUAL(to[i], from[i], 8 * 0x1p-11); /* rounded again, to another offset */
    free(from);
    free(to);
    /* of samples in binary16: each number of a product is off by 2^-11 at most */
    CU_ASSERT(relative(r->scatter, s->scatter, 32 * 32) < 0x1p-10);
    CU_ASSERT(relative(r->metric, s->metric, 32 * 32) < 1e-12);
    (void) stats_free(r);
    r = NULL;
    s->n_held = 0;
    CU_ASSERT_EQUAL(stats_rotated(s, &r, &e), -EINVAL);
    CU_ASSERT_PTR_NULL(r);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "no sampled tokens"));
    (void) stats_free(s);
}

/* A small source of which no token was sampled: its tokens count, and must not pull the mean to zero. */
static void test_source_without_samples(void)
{
    enum { D = 32 };
    struct geometry g = shape(1, 2, 1, D, 16);
    struct stats *s = shape_statistics(&g, WINDOW, WINDOWS), *r = NULL;
    const uint8_t digest[DIGEST_BYTES] = {1};
    struct errmsg e = {""};
    struct shape_data x;

    CU_ASSERT_EQUAL(stats_begin_source(s, SOURCE_TEXT, digest, &e), 0);
    shape_data_init(&x, &g, WINDOW);
    shape_data_draw(&x, &g);
    CU_ASSERT_EQUAL(stats_add_layer(s, WINDOWS, 0, 0, WINDOW, x.q, x.k, x.v, NULL, &e), 0);
    shape_data_deinit(&x);
    CU_ASSERT_EQUAL_FATAL(stats_domains(s), 2);
    memset(s->domain_of, 0, s->n_held); /* all samples are of the other source */
    CU_ASSERT_EQUAL_FATAL(stats_rotated(s, &r, &e), 0);
    CU_ASSERT(relative(r->mean, r->domains[0].mean, D) < 1e-9);
    for (size_t i = 0; i < D * D; i++)
        CU_ASSERT_DOUBLE_EQUAL(r->scatter[i] / (double) r->n_tokens,
                               r->domains[0].scatter[i] / (double) r->domains[0].n_tokens, 1e-9);
    (void) stats_free(s);
    (void) stats_free(r);
}

const struct test_case test_cases[] = {TEST(test_keys), TEST(test_metrics), TEST(test_without_rope),
                                       TEST(test_source_without_samples), TEST_END};
const char test_suite[] = "stats_rotate";
