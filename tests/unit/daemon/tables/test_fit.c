/* Reports of clients: impossible ones are refused, and none counts for more than its tokens. */
#include "tests/lib/test.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/table/table_expected.h"
#include "base/errmsg.h"
#include "daemon/tables/fit.h"

const char test_suite[] = "fit";

enum { LAYERS = 3 };

struct honest {
    Kvcobra__Report r;
    Kvcobra__LayerSums sums[LAYERS + 1], *pointers[LAYERS + 1];
};

/* A report with ratios set by hand: K 1/4 in every layer, V 1/2; in the shadow 1/8 and 1. */
static void make(struct honest *h, uint64_t tokens, double scale)
{
    kvcobra__report__init(&h->r);
    for (unsigned i = 0; i <= LAYERS; i++) {
        kvcobra__layer_sums__init(&h->sums[i]);
        h->sums[i].signal_k = 8 * scale;
        h->sums[i].error_k = 2 * scale;
        h->sums[i].shadow_k = scale;
        h->sums[i].signal_v = 4 * scale;
        h->sums[i].error_v = 2 * scale;
        h->sums[i].shadow_v = 4 * scale;
        h->pointers[i] = &h->sums[i];
    }
    h->r.tokens = tokens;
    h->r.layers = h->pointers;
    h->r.n_layers = LAYERS;
    h->r.coded_k = h->r.coded_v = 100;
    h->r.saturated_k = 7;
}

static void test_refused(void)
{
    static const double bad[] = {-1, NAN, INFINITY, -INFINITY};
    struct honest h;
    struct errmsg e;

    make(&h, FIT_TOKENS_MAX, 1);
    CU_ASSERT_EQUAL(fit_check(&h.r, LAYERS, &e), 0);
    h.r.tokens = FIT_TOKENS_MAX + 1;
    CU_ASSERT_EQUAL(fit_check(&h.r, LAYERS, &e), -EINVAL);
    make(&h, 64, 1);
    CU_ASSERT_EQUAL(fit_check(&h.r, LAYERS + 1, &e), -EINVAL);
    CU_ASSERT_EQUAL(fit_check(&h.r, LAYERS - 1, &e), -EINVAL);
    h.r.n_layers = 0;
    CU_ASSERT_EQUAL(fit_check(&h.r, LAYERS, &e), 0); /* a report of counts only */
    make(&h, 0, 1);
    CU_ASSERT_EQUAL(fit_check(&h.r, LAYERS, &e), -EINVAL);
    make(&h, 64, 1);
    h.r.saturated_k = 101;
    CU_ASSERT_EQUAL(fit_check(&h.r, LAYERS, &e), -EINVAL);
    make(&h, 64, 1);
    h.r.coded_v = FIT_COORDS_MAX + 1;
    CU_ASSERT_EQUAL(fit_check(&h.r, LAYERS, &e), -EINVAL);
    for (unsigned i = 0; i < 4; i++)
        for (unsigned field = 0; field < 6; field++) {
            make(&h, 64, 1);
            (&h.sums[1].signal_k)[field] = bad[i];
            CU_ASSERT_EQUAL(fit_check(&h.r, LAYERS, &e), -EINVAL);
        }
}

static void test_means(void)
{
    struct fit *f = fit_new(LAYERS), *shadow = fit_new(LAYERS);
    Kvcobra__LayerSums live, both;
    Kvcobra__Fit got;
    struct honest h;

    CU_ASSERT_FATAL(f && shadow);
    fit_fill(NULL, &got);
    CU_ASSERT(got.tokens == 0 && got.error_k == 0);
    make(&h, 64, 1);
    fit_add(f, shadow, &h.r);
    make(&h, 64, 1e300); /* any scale is allowed: errors are ratios */
    fit_add(f, shadow, &h.r);
    fit_fill(f, &got);
    CU_ASSERT(got.reports == 2 && got.tokens == 128 && got.coded_k == 200 && got.saturated_k == 14);
    CU_ASSERT_DOUBLE_EQUAL(got.error_k, 0.25, 1e-12);
    CU_ASSERT_DOUBLE_EQUAL(got.error_v, 0.5, 1e-12);
    CU_ASSERT_EQUAL(got.shadow_tokens, 0);
    fit_fill(shadow, &got);
    CU_ASSERT_EQUAL(got.shadow_tokens, 128);
    CU_ASSERT_DOUBLE_EQUAL(got.active_error_k, 0.25, 1e-12);
    CU_ASSERT_DOUBLE_EQUAL(got.shadow_error_k, 0.125, 1e-12);
    CU_ASSERT_DOUBLE_EQUAL(got.shadow_error_v, 1, 1e-12);
    fit_fill_layer(shadow, 1, &live, &both);
    CU_ASSERT(live.signal_k == 0 && both.signal_k == 1);
    CU_ASSERT_DOUBLE_EQUAL(both.shadow_k, 0.125, 1e-12);
    fit_forget_shadow(shadow);
    fit_fill(shadow, &got);
    CU_ASSERT(got.shadow_tokens == 0 && got.shadow_error_k == 0);
    (void) fit_free(f);
    (void) fit_free(shadow);
}

/* 64 tokens shift the mean of 64 others by at most half the way to TABLE_ERROR_MAX. */
static void test_largest_shift_of_the_mean(void)
{
    struct fit *f = fit_new(LAYERS);
    Kvcobra__Fit got;
    struct honest h;

    CU_ASSERT_PTR_NOT_NULL_FATAL(f);
    make(&h, 64, 1);
    fit_add(f, NULL, &h.r);
    for (unsigned i = 0; i < LAYERS; i++)
        h.sums[i].error_k = 1e308;
    fit_add(f, NULL, &h.r);
    fit_fill(f, &got);
    CU_ASSERT_DOUBLE_EQUAL(got.error_k, (0.25 + TABLE_ERROR_MAX) / 2, 1e-12);
    CU_ASSERT_DOUBLE_EQUAL(got.error_v, 0.5, 1e-12);
    (void) fit_free(f);
}

const struct test_case test_cases[] = {TEST(test_refused), TEST(test_means),
                                       TEST(test_largest_shift_of_the_mean), TEST_END};
