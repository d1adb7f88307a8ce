/*
 * The attention kernels for compute capability 8.0 and later, run on the CPU with their instructions
 * written out (tests/cuda_on_cpu/backend/pairs.h), against attention in binary64 over the same pages.
 *
 * Tolerance: that of kernel_attend_check.h, with more roundings:
 *
 *     0      the key as it is computed; already counted there
 *     1      cosines and sines of its rotation
 *     1/2    one of the two products
 *     1      their sum
 *     2      cosines and factors of the mean, where the mean is no larger than what the codes add to it
 *
 * Elsewhere the part of the mean is three products of numbers with 22 bits each: two roundings by 2^-24 and
 * a product that is left out, below 2^-24, less than the oracle allows for sums. Weights are 16 bits of the
 * largest of 128.
 */
#include <string.h>

#include "gpu/cuda/device_table.h"
#include "gpu/cuda/select.h"
#include "tests/cuda_on_cpu/kernels.h"
#include "tests/lib/test.h"
#include "tests/unit/gpu/cuda/kernel_attend_check.h"

enum { SMALLEST = ATTEND_80_COUNT }; /* the kernel that select_attend_80() picks */

#define ROUNDINGS (3 + 2.5 + 2)

static bool launch(const struct page_layout *l, const struct launch_attend *a, unsigned n_items,
                   unsigned which)
{
    enum attend_80_kernel kernel =
        which == SMALLEST ? select_attend_80(l, a->n_q) : (enum attend_80_kernel) which;

    if (kernel == ATTEND_80_COUNT || !select_attend_80_takes(kernel, l, a->n_q))
        return false;
    on_cpu_attend_80(kernel, a, n_items, select_attend_80_shared_bytes(kernel, l),
                     device_table_merge_shared_bytes(l));
    return true;
}

static bool taken(const struct attend_shape *shape, uint32_t n_splits, unsigned which)
{
    return kernel_attend_check(shape, n_splits, launch, which, ROUNDINGS);
}

static void check(const struct attend_shape *shape, uint32_t n_splits)
{
    CU_ASSERT_TRUE(taken(shape, n_splits, SMALLEST));
}

/* Everything that the kernels distinguish: odd numbers of pages, more of
 * them than are in flight, widths, rows. */
static void test_shapes(void)
{
    static const struct {
        uint32_t d, key_rank;
    } dims[] = {{64, 0}, {128, 32}, {128, 64}, {128, 0}, {256, 64}};
    static const uint32_t groups[] = {1, 4, 3, 8, 5};
    static const int bits[] = {4, -1, 2, 3, 1};
    unsigned n = 0;

    for (size_t i = 0; i < sizeof(dims) / sizeof(dims[0]); i++)
        for (size_t j = 0; j < 4; j++, n++)
            check(
                &(struct attend_shape){
                    .d = dims[i].d,
                    .key_rank = dims[i].key_rank,
                    .n_rot = dims[i].d / (1 + n % 2),
                    .group = groups[n % 5],
                    .bits = dims[i].d * (dims[i].key_rank == 0) == 128 ? 3 : bits[n / 2 % 5],
                    .n_sink = n % 3 * 2,
                    .v_from = n % 2 ? PREDICT_HEAD : PREDICT_NONE,
                    .n_pages = 1 + n * 5 % 9,
                    .n_exact = 1 + n * 11 % 60,
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
                                     .v_from = bits % 2 ? PREDICT_HEAD : PREDICT_NONE,
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

/* Keys of other heads are not prefetched. */
static void test_layer_prediction(void)
{
    check(&(struct attend_shape){.d = 64,
                                 .n_rot = 64,
                                 .group = 2,
                                 .bits = -1,
                                 .key_rank = 16,
                                 .n_sink = 0,
                                 .v_from = PREDICT_LAYER,
                                 .n_pages = 3,
                                 .n_exact = 5,
                                 .n_q = 1,
                                 .q_first = SIZE_MAX},
          1);
    check(&(struct attend_shape){.d = 128,
                                 .n_rot = 128,
                                 .group = 6,
                                 .bits = 3,
                                 .key_rank = 32,
                                 .n_sink = 4,
                                 .v_from = PREDICT_LAYER,
                                 .n_pages = 2,
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
                                         .bits = 3,
                                         .n_sink = 4,
                                         .v_from = PREDICT_HEAD,
                                         .n_pages = 5,
                                         .n_exact = 66,
                                         .n_q = 1,
                                         .q_first = SIZE_MAX,
                                         .window = windows[i]},
                  splits);
}

/* Shapes that some or all kernels take: all of them give the same result. */
static void test_every_kernel(void)
{
    static const struct {
        uint32_t d, key_rank, group;
        unsigned n_kernels;
    } cases[] = {{64, 0, 4, 3},   {64, 32, 12, 1}, {80, 0, 3, 0},  {128, 0, 8, 1},
                 {128, 64, 4, 5}, {256, 0, 2, 0},  {256, 32, 4, 2}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        unsigned n = 0;

        for (unsigned kernel = 0; kernel < ATTEND_80_COUNT; kernel++)
            n += taken(&(struct attend_shape){.d = cases[i].d,
                                              .n_rot = cases[i].d,
                                              .group = cases[i].group,
                                              .bits = 3,
                                              .key_rank = cases[i].key_rank,
                                              .n_sink = 4,
                                              .v_from = PREDICT_HEAD,
                                              .n_pages = 2,
                                              .n_exact = 9,
                                              .n_q = 1,
                                              .q_first = SIZE_MAX},
                       2, kernel);
        CU_ASSERT_EQUAL(n, cases[i].n_kernels);
    }
}

/* Queries are rotated from page to page, and computed anew every ROTATIONS_MAX pages. */
static void test_many_pages(void)
{
    check(&(struct attend_shape){.d = 64,
                                 .n_rot = 64,
                                 .group = 1,
                                 .bits = 2,
                                 .key_rank = 16,
                                 .n_pages = 131,
                                 .n_exact = 1,
                                 .n_q = 1,
                                 .q_first = SIZE_MAX},
          1);
}

/* Queries of a prompt, at its end and inside packed pages. */
static void test_queries(void)
{
    static const size_t firsts[] = {0, 2, 62, 64, 127}, windows[] = {1, 64, 65};

    for (size_t i = 0; i < sizeof(firsts) / sizeof(firsts[0]); i++)
        check(&(struct attend_shape){.d = 64,
                                     .n_rot = 32,
                                     .group = 3,
                                     .bits = 4,
                                     .n_sink = 4,
                                     .v_from = PREDICT_HEAD,
                                     .n_pages = 3,
                                     .n_exact = 20,
                                     .n_q = 11,
                                     .q_first = firsts[i]},
              1 + i % 3);
    for (size_t i = 0; i < sizeof(windows) / sizeof(windows[0]); i++)
        check(&(struct attend_shape){.d = 64,
                                     .n_rot = 64,
                                     .group = 4,
                                     .bits = 2,
                                     .n_sink = 4,
                                     .v_from = PREDICT_HEAD,
                                     .n_pages = 3,
                                     .n_exact = 68,
                                     .n_q = 21,
                                     .q_first = SIZE_MAX,
                                     .window = windows[i]},
              2);
}

/* Means of norm 900. Where queries are large, one key has all the weight; where they are small, many keys
 * have some, and a mean whose angles had lost half of their bits would be seen. */
static void test_extremes(void)
{
    static const double q_sizes[] = {0, 0.2, 0.3};

    for (size_t i = 0; i < sizeof(q_sizes) / sizeof(q_sizes[0]); i++)
        for (uint32_t group = 3; group <= 8; group += 5)
            check(&(struct attend_shape){.d = 64,
                                         .n_rot = 64,
                                         .group = group,
                                         .bits = 4,
                                         .n_sink = 4,
                                         .v_from = PREDICT_HEAD,
                                         .mean_norm = 900,
                                         .q_size = q_sizes[i],
                                         .n_pages = 4,
                                         .n_exact = 4,
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

static void test_batch(void)
{
    CU_ASSERT_TRUE(kernel_attend_check_batch(64, 3, 0, launch, SMALLEST, ROUNDINGS));
    CU_ASSERT_TRUE(kernel_attend_check_batch(128, 2, 100, launch, SMALLEST, ROUNDINGS));
}

const char test_suite[] = "gpu kernels of 8.0 on the CPU";
const struct test_case test_cases[] = {
    TEST(test_shapes),
    TEST(test_every_width),
    TEST(test_groups),
    TEST(test_layer_prediction),
    TEST(test_splits_and_windows),
    TEST(test_every_kernel),
    TEST(test_many_pages),
    TEST(test_queries),
    TEST(test_extremes),
    TEST(test_batch),
    TEST_END,
};
