/* One budget for several statistics, which are the groups of layers of a model. */
#include "alloc/solve/solve_groups.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/solve/solve.h"
#include "alloc/stats/stats.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tests/lib/test.h"
#include "tests/unit/alloc/shapes.h"

enum { D = 32, WINDOW = 512, WINDOWS = 4 };

/* A model of two layers, the second of which has vectors six times as large, and the same as two groups. */
struct model {
    struct stats *whole, *layers[2];
    bool flat; /* values of the second layer are 0 */
};

static struct stats *statistics(uint32_t n_layers)
{
    struct geometry g = shape(n_layers, 2, 2, D, D);
    struct stats_options o;
    struct stats *s = NULL;
    struct errmsg e = {""};

    stats_options_default(&o, &g);
    o.n_samples = WINDOW * WINDOWS;
    o.want_attention = o.want_output = false; /* squared error */
    CU_ASSERT_EQUAL_FATAL(stats_new(&o, &s, &e), 0);
    return s;
}

static void draw(struct model *m, bool flat)
{
    struct geometry g = shape(1, 2, 2, D, D);
    struct shape_data x;
    struct errmsg e = {""};
    size_t n = (size_t) WINDOW * g.n_kv_heads * D;

    *m = (struct model){statistics(2), {statistics(1), statistics(1)}, flat};
    shape_data_init(&x, &g, WINDOW);
    for (uint64_t doc = 0; doc < WINDOWS; doc++)
        for (uint32_t l = 0; l < 2; l++) {
            shape_data_draw(&x, &g);
            for (size_t i = 0; i < n && l == 1; i++) {
                x.k[i] *= 6;
                x.v[i] *= flat ? 0 : 6;
            }
            CU_ASSERT_EQUAL(stats_add_layer(m->whole, doc, 0, l, WINDOW, NULL, x.k, x.v, NULL, &e), 0);
            CU_ASSERT_EQUAL(stats_add_layer(m->layers[l], doc, 0, 0, WINDOW, NULL, x.k, x.v, NULL, &e), 0);
        }
    CU_ASSERT_STRING_EQUAL(e.text, "");
    shape_data_deinit(&x);
}

static void free_model(struct model *m)
{
    (void) stats_free(m->whole);
    (void) stats_free(m->layers[0]);
    (void) stats_free(m->layers[1]);
}

static void options(struct solve_options *o, double bpd)
{
    solve_options_default(o, bpd);
    o->metric = METRIC_MSE;
    o->trellis_states = 0;
}

static double distortion(const struct stats *s, double bpd)
{
    _cleanup_(freep) void *bytes = NULL;
    struct solve_report report;
    struct solve_options o;
    struct errmsg e = {""};
    size_t n;

    options(&o, bpd);
    CU_ASSERT_EQUAL_FATAL(solve_table(s, &o, &bytes, &n, &report, &e), 0);
    return report.distortion;
}

static void collect(const struct model *m, double bpd, struct solve_group ret[2])
{
    struct solve_options o;
    struct errmsg e = {""};

    options(&o, bpd);
    for (unsigned i = 0; i < 2; i++)
        CU_ASSERT_EQUAL_FATAL(solve_group_collect(m->layers[i], &o, &ret[i], &e), 0);
    CU_ASSERT_STRING_EQUAL(e.text, "");
}

/* Two groups with one budget lose as much as one table of both, and far less than with the same bits each. */
static void test_as_one_table(void)
{
    struct solve_group groups[2];
    struct model m;

    draw(&m, false);
    for (unsigned i = 2; i <= 4; i++) {
        double bpd[2], apart = 0, together = 0, one = distortion(m.whole, i);
        struct errmsg e = {""};

        collect(&m, i, groups);
        CU_ASSERT_EQUAL(groups[0].numbers, 4 * D);
        CU_ASSERT_EQUAL(groups[0].coded, 4 * D);
        CU_ASSERT_EQUAL(solve_groups_divide(groups, 2, i, bpd, &e), 0);
        CU_ASSERT(bpd[1] > bpd[0] + 0.5);
        CU_ASSERT(bpd[0] + bpd[1] <= 2.0 * i + 1e-9);
        CU_ASSERT(bpd[0] + bpd[1] > 2.0 * i - 0.2);
        for (unsigned l = 0; l < 2; l++) {
            apart += distortion(m.layers[l], i);
            together += distortion(m.layers[l], bpd[l]);
            solve_group_deinit(&groups[l]);
        }
        CU_ASSERT(together < 0.85 * apart);
        CU_ASSERT_DOUBLE_EQUAL(together, one, 0.05 * one);
    }
    free_model(&m);
}

/* A group alone has the budget; values that are always 0 are no numbers of it. */
static void test_numbers(void)
{
    struct solve_group groups[2];
    struct errmsg e = {""};
    struct model m;
    double bpd[2];

    draw(&m, true);
    collect(&m, 3, groups);
    CU_ASSERT_EQUAL(groups[1].numbers, 2 * D);
    CU_ASSERT_EQUAL(groups[1].coded, 4 * D);
    CU_ASSERT_EQUAL(solve_groups_divide(groups, 1, 3, bpd, &e), 0);
    CU_ASSERT_DOUBLE_EQUAL(bpd[0], 3, 0.1);
    CU_ASSERT_EQUAL(solve_groups_divide(groups + 1, 1, 3, bpd, &e), 0);
    CU_ASSERT_DOUBLE_EQUAL(bpd[0], 1.5, 0.1); /* 3 for each number of a key */
    CU_ASSERT_EQUAL(solve_groups_divide(groups, 2, 3, bpd, &e), 0);
    CU_ASSERT_DOUBLE_EQUAL(bpd[0] * groups[0].coded + bpd[1] * groups[1].coded, 3 * 6 * D, 16);
    solve_group_deinit(&groups[0]);
    solve_group_deinit(&groups[1]);
    free_model(&m);
}

static void test_shares(void)
{
    CU_ASSERT_EQUAL(solve_group_share(0), SOLVE_GROUP_WHOLE);
    CU_ASSERT_EQUAL(solve_group_share(4096), SOLVE_GROUP_WHOLE);
    CU_ASSERT_EQUAL(solve_group_share(UINT32_MAX), SOLVE_GROUP_WHOLE);
    CU_ASSERT_EQUAL(solve_group_share(4095), SOLVE_GROUP_WHOLE);
    CU_ASSERT_EQUAL(solve_group_share(1024), SOLVE_GROUP_WHOLE / 4);
    CU_ASSERT_EQUAL(solve_group_share(128), SOLVE_GROUP_WHOLE / 32);
    CU_ASSERT_EQUAL(solve_group_share(1), 1);
}

/* A group that counts a quarter gets more bits, the budget holds by shares, and what a prompt's bits lose is
 * less than with the division that counts both wholly. */
static void test_window(void)
{
    struct solve_group groups[2];
    struct errmsg e = {""};
    struct model m;

    draw(&m, false);
    for (unsigned windowed = 0; windowed < 2; windowed++) {
        double whole[2], bpd[2], counted[2] = {1, 1}, budget, lost = 0, lost_whole = 0;

        collect(&m, 3, groups);
        CU_ASSERT_EQUAL(solve_groups_divide(groups, 2, 3, whole, &e), 0);
        groups[windowed].share = solve_group_share(1024);
        counted[windowed] = 0.25;
        budget = (counted[0] * whole[0] + counted[1] * whole[1]) / 1.25; /* of a prompt, by that division */
        CU_ASSERT_EQUAL(solve_groups_divide(groups, 2, budget, bpd, &e), 0);
        CU_ASSERT(bpd[windowed] > whole[windowed] + 0.2);
        CU_ASSERT(counted[0] * bpd[0] + counted[1] * bpd[1] <= 1.25 * budget + 1e-9);
        CU_ASSERT(counted[0] * bpd[0] + counted[1] * bpd[1] > 1.25 * budget - 0.2);
        for (unsigned l = 0; l < 2; l++) {
            lost += distortion(m.layers[l], bpd[l]);
            lost_whole += distortion(m.layers[l], whole[l]);
            solve_group_deinit(&groups[l]);
        }
        CU_ASSERT(lost < 0.97 * lost_whole);
    }
    free_model(&m);
}

static void test_floors(void)
{
    struct solve_group groups[2];
    struct solve_options o;
    struct errmsg e = {""};
    struct model m;
    double bpd[2];

    draw(&m, false);
    options(&o, 3);
    o.floor_bpd = 2;
    for (unsigned i = 0; i < 2; i++)
        CU_ASSERT_EQUAL_FATAL(solve_group_collect(m.layers[i], &o, &groups[i], &e), 0);
    CU_ASSERT_EQUAL(solve_groups_divide(groups, 2, 2.5, bpd, &e), 0);
    CU_ASSERT(bpd[0] >= 2 - 1e-9 && bpd[1] >= 2 - 1e-9);
    CU_ASSERT_EQUAL(solve_groups_divide(groups, 2, 1.5, bpd, &e), -ERANGE);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "the smallest possible budget is 2.0000"));
    groups[0].share = solve_group_share(1000); /* floors are of each group's own numbers */
    CU_ASSERT_EQUAL(solve_groups_divide(groups, 2, 2.5, bpd, &e), 0);
    CU_ASSERT(bpd[0] >= 2 - 1e-9 && bpd[1] >= 2 - 1e-9);
    solve_group_deinit(&groups[0]);
    solve_group_deinit(&groups[1]);
    free_model(&m);
}

const struct test_case test_cases[] = {TEST(test_as_one_table), TEST(test_numbers), TEST(test_shares),
                                       TEST(test_window),       TEST(test_floors),  TEST_END};
const char test_suite[] = "solve_groups";
