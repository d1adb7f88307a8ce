/* Statistics of keys after RoPE, against keys rotated one by one; and how a table was solved, read back from
 * it. */
#include <complex.h>
#include <errno.h>
#include <stdio.h>

#include "alloc/solve.h"
#include "alloc/stats_internal.h"
#include "alloc/stats_rotate.h"
#include "alloc/table.h"
#include "tests/unit/alloc/shapes.h"

enum { WINDOW = 100, WINDOWS = 6 };

static struct stats *synthetic(const struct geometry *g)
{
    struct stats_options o;
    struct stats *s = NULL;
    struct shape_data x;
    struct errmsg e = {""};

    stats_options_default(&o, g);
    o.n_samples = WINDOW * WINDOWS; /* every token but the sinks */
    CU_ASSERT_EQUAL_FATAL(stats_new(&o, &s, &e), 0);
    shape_data_init(&x, g, WINDOW);
    shape_data_draw(&x, g);
    for (uint32_t l = 0; l < g->n_layers; l++)
        CU_ASSERT_EQUAL(stats_set_output_projection(s, l, x.wo, x.n_embd, &e), 0);
    for (uint64_t doc = 0; doc < WINDOWS; doc++)
        for (uint32_t l = 0; l < g->n_layers; l++) {
            shape_data_draw(&x, g);
            CU_ASSERT_EQUAL(stats_add_layer(s, doc, 0, l, WINDOW, x.q, x.k, x.v, NULL, &e), 0);
        }
    CU_ASSERT_STRING_EQUAL(e.text, "");
    shape_data_deinit(&x);
    return s;
}

/* R(p) x as complex numbers. */
static void turn(const struct geometry *g, uint64_t p, double *x)
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

/* Samples, mean and scatter of rotated keys: each sample turned by its position. binary32 samples: 1e-6. */
static void test_keys(void)
{
    enum { D = 32 };
    struct geometry g = shape(2, 4, 2, D, 16);
    struct stats *s = synthetic(&g), *r = NULL;
    struct errmsg e = {""};

    CU_ASSERT_EQUAL_FATAL(stats_rotated(s, &r, &e), 0);
    CU_ASSERT_EQUAL(stats_tokens(r), stats_tokens(s));
    CU_ASSERT_EQUAL(stats_samples(r), WINDOWS * (WINDOW - 4));
    for (uint32_t hs = SIDE_K; hs < head_side_count(&g); hs += 2) {
        double mean[D] = {0}, scatter[D * D] = {0}, n = (double) s->n_held;

        for (int pass = 0; pass < 2; pass++) /* means first */
            for (size_t t = 0; t < s->n_held; t++) {
                double x[D];

                for (size_t i = 0; i < D; i++)
                    x[i] = (double) stats_sample_rows(s, hs)[t * D + i];
                turn(&g, s->ids[t].position, x);
                for (size_t i = 0; pass == 0 && i < D; i++) {
                    CU_ASSERT(fabs((double) stats_sample_rows(r, hs)[t * D + i] - x[i]) < 1e-5);
                    mean[i] += x[i] / n;
                }
                for (size_t i = 0; pass == 1 && i < D * D; i++)
                    scatter[i] += (x[i / D] - mean[i / D]) * (x[i % D] - mean[i % D]);
            }
        CU_ASSERT(relative(r->mean + hs * D, mean, D) < 1e-5);
        CU_ASSERT(relative(r->scatter + hs * D * D, scatter, D * D) <
                  1e-5); /* every token is a sample: no scaling */
        /* values stay */
        CU_ASSERT_EQUAL(memcmp(r->scatter + (hs + 1) * D * D, s->scatter + (hs + 1) * D * D, sizeof(scatter)),
                        0);
        CU_ASSERT_EQUAL(
            memcmp(stats_sample_rows(r, hs + 1), stats_sample_rows(s, hs + 1), s->n_held * D * sizeof(float)),
            0);
    }
    (void) stats_free(s);
    (void) stats_free(r);
}

/*
 * Metrics: x' M_rotated x is the mean of (R(p)' x)' M (R(p)' x) over the positions that are averaged over:
 * here every second sample (576 of them, at most 512 positions). Symmetric, the same trace, and values'
 * metric as it was.
 */
static void test_metrics(void)
{
    enum { D = 32 };
    struct geometry g = shape(1, 2, 1, D, 32);
    struct stats *s = synthetic(&g), *r = NULL;
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
            turn(&back, s->ids[t].position, y);
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

/* No rotary dimensions: rotated keys are the keys. The table of the copy is the same but for what it was made
 * of. */
static void test_without_rope(void)
{
    struct geometry g = shape(1, 2, 1, 32, 0);
    struct stats *s = synthetic(&g), *r = NULL;
    struct errmsg e = {""};

    CU_ASSERT_EQUAL_FATAL(stats_rotated(s, &r, &e), 0);
    CU_ASSERT_EQUAL(memcmp(stats_sample_rows(r, 0), stats_sample_rows(s, 0), s->n_held * 32 * sizeof(float)),
                    0);
    CU_ASSERT(relative(r->scatter, s->scatter, 32 * 32) < 1e-5);
    CU_ASSERT(relative(r->metric, s->metric, 32 * 32) < 1e-12);
    (void) stats_free(r);
    r = NULL;
    s->n_held = 0;
    CU_ASSERT_EQUAL(stats_rotated(s, &r, &e), -EINVAL);
    CU_ASSERT_PTR_NULL(r);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "no sampled tokens"));
    (void) stats_free(s);
}

/* Solving again with what a table says of itself gives the same table, for every method and some odd options.
 */
static void test_options_read_back(void)
{
    struct geometry g = shape(1, 4, 2, 32, 32);
    struct stats *s = synthetic(&g);

    for (int i = 0; i < 6; i++) {
        uint8_t of[DIGEST_BYTES], digest[DIGEST_BYTES], first[DIGEST_BYTES];
        struct solve_options o, again;
        struct solve_report report;
        struct table *t = NULL;
        struct errmsg e = {""};
        void *bytes = NULL;
        size_t n;

        solve_options_for(&o, (enum method)(i % 4), 1.7);
        o.seed = i * 0x123456789abcdefu;
        if (i == 4) {
            o.floor_bpd = 0.5, o.ceil_bpd = 6, o.v_from = PREDICT_NONE, o.quantiser = QUANT_UNIFORM,
            o.fit_levels = false;
            o.k_bpd = 2.1, o.v_bpd = 3.3;
        }
        if (i == 5) {
            o.paper.rank_step = 4, o.paper.b_min = 1, o.paper.b_max = 5, o.paper.eta = 0.1,
            o.paper.rounds = 3;
            o.paper.B_min = 12.5;
        }
        for (int pass = 0; pass < 2; pass++) {
            CU_ASSERT_EQUAL_FATAL(solve_table(s, pass ? &again : &o, &bytes, &n, &report, &e), 0);
            CU_ASSERT_EQUAL_FATAL(table_parse(bytes, n, &t, &e), 0);
            CU_ASSERT_EQUAL(solve_options_read(t->provenance, &again, of, &e), 0);
            if (pass == 0)
                memcpy(first, t->digest, sizeof(first));
            else
                CU_ASSERT_EQUAL(memcmp(first, t->digest, sizeof(first)), 0);
            (void) table_unref(t);
            free(bytes);
        }
        CU_ASSERT_EQUAL(stats_digest(s, digest, &e), 0);
        CU_ASSERT_EQUAL(memcmp(of, digest, sizeof(of)), 0);
    }
    (void) stats_free(s);
}

static void test_options_that_cannot_be_read(void)
{
#define MADE_OF                                                                                              \
    "\"statistics\":{\"sha256\":\"00000000000000000000000000000000"                                          \
    "00000000000000000000000000000000\"}"
    static const struct {
        const char *provenance, *words;
    } cases[] = {
        {"", "does not say from which"},
        {"not JSON", "does not say from which"},
        {"{\"made_by\":\"hand\"}", "does not say from which"},
        {"{\"options\":{},\"statistics\":{\"sha256\":\"00\"}}", "does not say from which"},
        {"{\"options\":{},\"statistics\":{\"sha256\":\"xyz\"}}", "does not say from which"},
        {"{\"options\":{}," MADE_OF "}", "method is missing"},
        {"{\"options\":[]," MADE_OF "}", "method is missing"},
        {"{\"options\":{\"method\":\"magic\"}," MADE_OF "}", "method is missing, or unknown"},
        {"{\"options\":{\"method\":3}," MADE_OF "}", "method is missing, or unknown"},
        {"{\"options\":{\"method\":\"bands\",\"metric\":\"mse\"}," MADE_OF "}", "curve is missing"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct solve_options o = {.bpd = 77};
        uint8_t of[DIGEST_BYTES] = {99};
        struct errmsg e = {""};

        CU_ASSERT_EQUAL(solve_options_read(cases[i].provenance, &o, of, &e), -ENODATA);
        CU_ASSERT_PTR_NOT_NULL(strstr(e.text, cases[i].words));
        CU_ASSERT(o.bpd == 77 && of[0] == 99);
    }
}

const struct test_case test_cases[] = {
    TEST(test_keys),
    TEST(test_metrics),
    TEST(test_without_rope),
    TEST(test_options_read_back),
    TEST(test_options_that_cannot_be_read),
    TEST_END,
};
const char test_suite[] = "stats_rotate";
