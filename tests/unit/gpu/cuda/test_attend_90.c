/*
 * The attention kernels for compute capability 9.0, run on the CPU with their instructions written out
 * (tests/cuda_on_cpu/backend/hopper.h), against attention in binary64 over the same pages.
 *
 * Tolerance: that of kernel_attend_check.h, with more roundings, in squares:
 *
 *     (n + 1) / 2    sums of keys, binary16 after every 16 coordinates: sum i of n has size sqrt(i / n) of
 *                    the last; one of these, that of the key itself, is already counted there
 *     1              cosines and sines of its rotation
 *     1/2            one of the two products
 *     1              their sum
 *     2              cosines and factors of the mean, where the mean is no larger than what the
 *                    codes add to it
 */
#include <string.h>

#include "gpu/cuda/device_table.h"
#include "gpu/cuda/select.h"
#include "tests/cuda_on_cpu/kernels.h"
#include "tests/lib/test.h"
#include "tests/unit/gpu/cuda/kernel_attend_check.h"

enum { SMALLEST = ATTEND_90_COUNT }; /* the kernel that select_attend_90() picks */

static bool launch(const struct page_layout *l, const struct launch_attend *a, unsigned n_items,
                   unsigned which)
{
    enum attend_90_kernel kernel =
        which == SMALLEST ? select_attend_90(l, a->n_q) : (enum attend_90_kernel) which;

    if (kernel == ATTEND_90_COUNT || !select_attend_90_takes(kernel, l, a->n_q))
        return false;
    on_cpu_attend_90(kernel, a, n_items, select_attend_90_shared_bytes(kernel, l),
                     device_table_merge_shared_bytes(l));
    return true;
}

static double roundings(uint32_t d)
{
    double steps = d / 16.0;

    return 3 + (steps + 1) / 2 - 1 + 2.5 + 2;
}

static bool taken(const struct attend_shape *shape, uint32_t n_splits, unsigned which)
{
    return kernel_attend_check(shape, n_splits, launch, which, roundings(shape->d));
}

static void check(const struct attend_shape *shape, uint32_t n_splits)
{
    CU_ASSERT_TRUE(taken(shape, n_splits, SMALLEST));
}

static void test_shapes(void)
{
    static const uint32_t dims[] = {64, 128, 256};
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

/* Every width that a half-tile can have, K and V, predicted and not; the random pages have all codes. */
static void test_every_width(void)
{
    for (int bits = 0; bits <= 8; bits++)
        check(&(struct attend_shape){.d = 64,
                                     .n_rot = 64,
                                     .group = 3,
                                     .bits = bits,
                                     .n_sink = 4,
                                     .v_from = bits % 2 ? PREDICT_HEAD : PREDICT_NONE,
                                     .n_pages = 2,
                                     .n_exact = 3,
                                     .n_q = 1,
                                     .q_first = SIZE_MAX},
              1);
    for (int bits = 1; bits <= 6; bits++)
        check(&(struct attend_shape){.d = 128,
                                     .n_rot = 128,
                                     .group = 4,
                                     .bits = bits,
                                     .n_sink = 0,
                                     .v_from = bits % 2 ? PREDICT_NONE : PREDICT_HEAD,
                                     .n_pages = 1,
                                     .n_exact = 1,
                                     .n_q = 1,
                                     .q_first = SIZE_MAX},
              1);
    check(&(struct attend_shape){.d = 256,
                                 .n_rot = 256,
                                 .group = 2,
                                 .bits = 4,
                                 .n_sink = 4,
                                 .v_from = PREDICT_HEAD,
                                 .n_pages = 1,
                                 .n_exact = 1,
                                 .n_q = 1,
                                 .q_first = SIZE_MAX},
          1);
}

static void test_batches(void)
{
    CU_ASSERT_TRUE(kernel_attend_check_batch(64, 1, 0, launch, SMALLEST, roundings(64)));
    CU_ASSERT_TRUE(kernel_attend_check_batch(64, 3, 100, launch, SMALLEST, roundings(64)));
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

/* More pages than the ring has stages, than a phase is advanced over (48), and
 * than addresses are fetched at once. */
static void test_many_pages(void)
{
    check(&(struct attend_shape){.d = 64,
                                 .n_rot = 64,
                                 .group = 3,
                                 .bits = 2,
                                 .n_sink = 4,
                                 .v_from = PREDICT_NONE,
                                 .n_pages = 60,
                                 .n_exact = 64,
                                 .n_q = 1,
                                 .q_first = SIZE_MAX},
          1);
}

/* A shape that several kernels of its dimension take, with 8 rows or 16. */
static void test_every_kernel(void)
{
    static const struct {
        uint32_t d, group;
        unsigned n_kernels;
    } cases[] = {{64, 4, 2}, {64, 12, 1}, {128, 8, 2}, {128, 16, 1}, {256, 2, 2}, {256, 9, 1}, {96, 2, 0}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        unsigned n_taken = 0;

        for (unsigned kernel = 0; kernel < ATTEND_90_COUNT; kernel++)
            n_taken += taken(&(struct attend_shape){.d = cases[i].d,
                                                    .n_rot = cases[i].d,
                                                    .group = cases[i].group,
                                                    .bits = 3,
                                                    .n_sink = 4,
                                                    .v_from = PREDICT_HEAD,
                                                    .n_pages = 2,
                                                    .n_exact = 9,
                                                    .n_q = 1,
                                                    .q_first = SIZE_MAX},
                             2, kernel);
        CU_ASSERT_EQUAL(n_taken, cases[i].n_kernels);
    }
}

static void test_queries(void)
{
    static const uint32_t dims[] = {64, 128, 256}, groups[] = {1, 3, 5, 16};
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

/* Queries inside packed pages see only earlier positions, sinks included, and no more than their window. */
static void test_queries_inside_pages(void)
{
    static const size_t firsts[] = {0, 2, 4, 62, 64, 127}, windows[] = {0, 1, 64, 65, 100};

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
        check(&(struct attend_shape){.d = 64,
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
    check(&(struct attend_shape){.d = 128,
                                 .n_rot = 128,
                                 .group = 8,
                                 .bits = 4,
                                 .n_sink = 4,
                                 .v_from = PREDICT_NONE,
                                 .mean_norm = 900,
                                 .n_pages = 2,
                                 .n_exact = 10,
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
    /* Exact keys that binary16 can just hold, many of which it could not hold after their rotation. */
    check(&(struct attend_shape){.d = 64,
                                 .n_rot = 64,
                                 .group = 3,
                                 .bits = 4,
                                 .n_sink = 0,
                                 .v_from = PREDICT_NONE,
                                 .q_size = 1e-3,
                                 .exact_size = 40000,
                                 .n_pages = 1,
                                 .n_exact = 127,
                                 .n_q = 1,
                                 .q_first = SIZE_MAX},
          1);
}

const char test_suite[] = "gpu attention for compute capability 9.0 on the CPU";
const struct test_case test_cases[] = {
    TEST(test_shapes),
    TEST(test_every_width),
    TEST(test_groups),
    TEST(test_batches),
    TEST(test_splits_and_windows),
    TEST(test_many_pages),
    TEST(test_every_kernel),
    TEST(test_queries),
    TEST(test_queries_inside_pages),
    TEST(test_extremes),
    TEST_END,
};
