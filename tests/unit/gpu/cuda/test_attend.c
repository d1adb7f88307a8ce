/* The general attention kernels (gpu/cuda/kernels/attend.cu), run on the CPU, against attention in binary64
 * over the same pages: the scenes are those of tests/unit/gpu/cpu/test_attend_packed.c, for one query and
 * for many, divided among any number of splits. kernel_attend_check.h derives the tolerance. */
#include <errno.h>
#include <string.h>

#include "base/errmsg.h"
#include "gpu/cuda/device_table.h"
#include "gpu/cuda/select.h"
#include "tests/cuda_on_cpu/kernels.h"
#include "tests/lib/test.h"
#include "tests/unit/gpu/cuda/kernel_attend_check.h"

enum { SMALLEST = ATTEND_COUNT }; /* the kernel that select_attend() picks */

static bool launch(const struct page_layout *l, const struct launch_attend *a, unsigned n_items,
                   unsigned which)
{
    enum attend_kernel kernel = which == SMALLEST ? select_attend(l, a->n_q) : (enum attend_kernel) which;

    if (!select_attend_takes(kernel, l, a->n_q))
        return false;
    on_cpu_attend(kernel, a, n_items, device_table_attend_shared_bytes(l),
                  device_table_merge_shared_bytes(l));
    return true;
}

static void check(const struct attend_shape *shape, uint32_t n_splits)
{
    CU_ASSERT_TRUE(kernel_attend_check(shape, n_splits, launch, SMALLEST, 3));
}

/* Exact rows are drawn for one head only, so the other heads of the model have no results to compare. */
static void test_shapes(void)
{
    static const uint32_t dims[] = {32, 64, 80, 96, 128, 256};
    unsigned n = 0;

    for (size_t i = 0; i < sizeof(dims) / sizeof(dims[0]); i++)
        for (uint32_t rot = 0; rot <= 2; rot++, n++)
            check(
                &(struct attend_shape){
                    .d = dims[i],
                    .n_rot = rot * dims[i] / 2,
                    .group = 1 + n % 4,
                    .bits = -1,
                    .n_sink = n % 2 * 4,
                    .v_from = (enum prediction)(n % 2),
                    .n_pages = 1 + n % 3,
                    .n_exact = 1 + n * 7,
                    .n_q = 1,
                    .q_first = SIZE_MAX,
                },
                1 + n % 2);
}

static void test_every_width(void)
{
    for (int bits = 0; bits <= 8; bits++)
        check(&(struct attend_shape){.d = 64,
                                     .n_rot = 64,
                                     .group = 3,
                                     .bits = bits,
                                     .n_sink = 4,
                                     .v_from = PREDICT_HEAD,
                                     .n_pages = 2,
                                     .n_exact = 3,
                                     .n_q = 1,
                                     .q_first = SIZE_MAX},
              1);
}

static void test_groups(void)
{
    for (uint32_t group = 1; group <= 16; group += group < 4 ? 1 : 4)
        check(&(struct attend_shape){.d = 64,
                                     .n_rot = 64,
                                     .group = group,
                                     .bits = -1,
                                     .n_sink = 4,
                                     .v_from = PREDICT_HEAD,
                                     .n_pages = 2,
                                     .n_exact = 70,
                                     .n_q = 1,
                                     .q_first = SIZE_MAX},
              2);
}

/* V predicted from all heads of the layer: small ranks, so that their sum
 * stays within the limit of the kernels. */
static void test_layer_prediction(void)
{
    check(&(struct attend_shape){.d = 32,
                                 .n_rot = 32,
                                 .group = 3,
                                 .bits = 3,
                                 .n_sink = 4,
                                 .v_from = PREDICT_LAYER,
                                 .n_pages = 2,
                                 .n_exact = 20,
                                 .n_q = 1,
                                 .q_first = SIZE_MAX},
          2);
    check(&(struct attend_shape){.d = 64,
                                 .n_rot = 64,
                                 .group = 2,
                                 .bits = -1,
                                 .n_sink = 0,
                                 .v_from = PREDICT_LAYER,
                                 .n_pages = 3,
                                 .n_exact = 5,
                                 .n_q = 1,
                                 .q_first = SIZE_MAX},
          1);
}

static void test_splits_and_windows(void)
{
    static const size_t windows[] = {0, 1, 64, 150, 400};

    for (uint32_t splits = 1; splits <= 8; splits += splits == 1 ? 2 : 5)
        for (size_t i = 0; i < sizeof(windows) / sizeof(windows[0]); i++)
            check(&(struct attend_shape){.d = 64,
                                         .n_rot = 32,
                                         .group = 4,
                                         .bits = -1,
                                         .n_sink = 4,
                                         .v_from = PREDICT_HEAD,
                                         .n_pages = 5,
                                         .n_exact = 66,
                                         .n_q = 1,
                                         .q_first = SIZE_MAX,
                                         .window = windows[i]},
                  splits);
}

/* A shape that all kernels take, and shapes that only some take: all of them give the same result. */
static void test_every_kernel(void)
{
    static const struct {
        uint32_t d, group;
        unsigned n_kernels;
    } cases[] = {{64, 4, 6}, {64, 12, 3}, {128, 8, 4}, {256, 2, 2}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        unsigned taken = 0;

        for (unsigned kernel = 0; kernel < ATTEND_COUNT; kernel++)
            taken += kernel_attend_check(&(struct attend_shape){.d = cases[i].d,
                                                                .n_rot = cases[i].d,
                                                                .group = cases[i].group,
                                                                .bits = 3,
                                                                .n_sink = 4,
                                                                .v_from = PREDICT_HEAD,
                                                                .n_pages = 2,
                                                                .n_exact = 9,
                                                                .n_q = 1,
                                                                .q_first = SIZE_MAX},
                                         2, launch, kernel, 3);
        CU_ASSERT_EQUAL(taken, cases[i].n_kernels);
    }
}

/* Many queries: every d and RoPE, tiles that end inside, groups that leave
 * rows unused, with and without sinks. */
static void test_queries(void)
{
    static const uint32_t dims[] = {32, 80, 128, 256}, groups[] = {1, 3, 5, 16};
    static const size_t n_qs[] = {2, 3, 9};
    unsigned n = 0;

    for (size_t i = 0; i < sizeof(dims) / sizeof(dims[0]); i++)
        for (size_t j = 0; j < sizeof(n_qs) / sizeof(n_qs[0]); j++, n++)
            check(
                &(struct attend_shape){
                    .d = dims[i],
                    .n_rot = n % 3 * dims[i] / 2,
                    .group = groups[n % 4],
                    .bits = -1,
                    .n_sink = n % 2 * 4,
                    .v_from = (enum prediction)(n % 2),
                    .n_pages = n % 3,
                    .n_exact = 20 + n * 7,
                    .n_q = n_qs[j],
                    .q_first = SIZE_MAX,
                },
                1 + n % 2);
}

/* More queries than exact rows: the first ones are inside packed pages and see only
 * earlier positions, sinks included. */
static void test_queries_inside_pages(void)
{
    static const size_t exact[] = {20, 1, 0}, from_page[] = {2, 62, 64}, windows[] = {0, 1, 64, 65, 100};
    static const size_t firsts[] = {0, 2, 4, 62, 64, 127}; /* with newer tokens behind the queries */

    for (size_t i = 0; i < sizeof(exact) / sizeof(exact[0]); i++)
        check(&(struct attend_shape){.d = 64,
                                     .n_rot = 32,
                                     .group = 3,
                                     .bits = -1,
                                     .n_sink = 4,
                                     .v_from = PREDICT_HEAD,
                                     .n_pages = 1 + i % 2,
                                     .n_exact = exact[i],
                                     .n_q = exact[i] + from_page[i],
                                     .q_first = SIZE_MAX},
              1 + i % 3);
    for (size_t i = 0; i < sizeof(firsts) / sizeof(firsts[0]); i++)
        check(&(struct attend_shape){.d = 64,
                                     .n_rot = 32,
                                     .group = 3,
                                     .bits = -1,
                                     .n_sink = 4,
                                     .v_from = PREDICT_HEAD,
                                     .n_pages = 3,
                                     .n_exact = 20,
                                     .n_q = 26,
                                     .q_first = firsts[i]},
              1 + i % 3);
    for (size_t i = 0; i < sizeof(windows) / sizeof(windows[0]); i++)
        check(&(struct attend_shape){.d = 32,
                                     .n_rot = 32,
                                     .group = 4,
                                     .bits = -1,
                                     .n_sink = 4,
                                     .v_from = PREDICT_HEAD,
                                     .n_pages = 3,
                                     .n_exact = 68,
                                     .n_q = 41,
                                     .q_first = SIZE_MAX,
                                     .window = windows[i]},
              2);
}

static void test_batches(void)
{
    CU_ASSERT_TRUE(kernel_attend_check_batch(32, 1, 0, launch, SMALLEST, 3));
    CU_ASSERT_TRUE(kernel_attend_check_batch(32, 3, 0, launch, SMALLEST, 3));
    CU_ASSERT_TRUE(kernel_attend_check_batch(32, 2, 100, launch, SMALLEST, 3));
}

static void test_extremes(void)
{
    check(&(struct attend_shape){.d = 64,
                                 .n_rot = 64,
                                 .group = 3,
                                 .bits = -1,
                                 .n_sink = 4,
                                 .v_from = PREDICT_HEAD,
                                 .mean_norm = 900,
                                 .n_pages = 2,
                                 .n_exact = 40,
                                 .n_q = 1,
                                 .q_first = SIZE_MAX},
          1);
    check(&(struct attend_shape){.d = 64,
                                 .n_rot = 64,
                                 .group = 3,
                                 .bits = -1,
                                 .n_sink = 4,
                                 .v_from = PREDICT_HEAD,
                                 .q_size = 30,
                                 .n_pages = 3,
                                 .n_exact = 40,
                                 .n_q = 1,
                                 .q_first = SIZE_MAX},
          2);
    check(&(struct attend_shape){.d = 64,
                                 .n_rot = 64,
                                 .group = 3,
                                 .bits = -1,
                                 .n_sink = 4,
                                 .n_pages = 0,
                                 .n_exact = 1,
                                 .n_q = 1,
                                 .q_first = SIZE_MAX},
          3); /* no packed page */
}

/* Tables that the kernels do not take are refused with the reason before anything runs. */
static void test_what_is_refused(void)
{
    struct attend_shape shape = {.d = 32,
                                 .n_rot = 32,
                                 .group = 17,
                                 .bits = 2,
                                 .n_pages = 0,
                                 .n_exact = 1,
                                 .n_q = 1,
                                 .q_first = SIZE_MAX};
    struct errmsg e = {""};
    struct attend_scene s;

    attend_scene_init(&s, &shape);
    CU_ASSERT_EQUAL(device_table_check(&s.layout, &e), -EOPNOTSUPP);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "17"));
    attend_scene_deinit(&s);
    shape = (struct attend_shape){.d = 256,
                                  .n_rot = 256,
                                  .group = 1,
                                  .bits = 2,
                                  .v_from = PREDICT_LAYER,
                                  .n_exact = 1,
                                  .n_q = 1,
                                  .q_first = SIZE_MAX};
    attend_scene_init(&s, &shape);
    CU_ASSERT_EQUAL(device_table_check(&s.layout, &e), -EOPNOTSUPP);
    attend_scene_deinit(&s);
}

const char test_suite[] = "cuda_attend";
const struct test_case test_cases[] = {
    TEST(test_shapes),           TEST(test_every_width),          TEST(test_groups),
    TEST(test_layer_prediction), TEST(test_splits_and_windows),   TEST(test_every_kernel),
    TEST(test_queries),          TEST(test_queries_inside_pages), TEST(test_batches),
    TEST(test_extremes),         TEST(test_what_is_refused),      TEST_END,
};
