/*
 * gpu/cuda/kernels.c: attention through the driver, by the kernel that a launch picks for the GPU, and
 * by general kernels. The stand-in runs one shape of each, because test_attend.c and test_attend_80.c run the
 * kernels on the CPU in all shapes. A GPU runs all shapes that make a difference to the kernels.
 */
#include <stdlib.h>

#include "gpu/cuda/device_table.h"
#include "tests/lib/test.h"
#include "tests/unit/gpu/cuda/gpu_fixture.h"
#include "tests/unit/gpu/cuda/kernel_attend_check.h"

static struct gpu_fixture gpu;

/* The choice is limited to kernels of at most these compute capabilities. */
static const unsigned computes[] = {999, 0};

enum { COMPUTES = sizeof(computes) / sizeof(computes[0]) };

/* Copies what @seq points to into GPU memory. */
static cu_ptr put_sequence(const struct page_layout *l, const struct device_seq *seq)
{
    size_t tail = (size_t) l->shard.n_heads * seq->exact_ld * l->table->geometry.d * sizeof(uint16_t);
    struct device_seq on_gpu = *seq;
    cu_ptr *pages = calloc(seq->n_pages + 1, sizeof(*pages)), at;

    assert(pages);
    for (uint32_t i = 0; i < seq->n_pages; i++)
        pages[i] = gpu_fixture_put(&gpu, seq->payloads[i], l->payload_bytes[i == 0 ? PAGE_FIRST : PAGE_REST]);
    on_gpu.payloads =
        (uint8_t *const *) (uintptr_t) gpu_fixture_put(&gpu, pages, (seq->n_pages + 1) * sizeof(*pages));
    on_gpu.exact_k = (uint16_t *) (uintptr_t) gpu_fixture_put(&gpu, seq->exact_k, tail);
    on_gpu.exact_v = (uint16_t *) (uintptr_t) gpu_fixture_put(&gpu, seq->exact_v, tail);
    at = gpu_fixture_put(&gpu, &on_gpu, sizeof(on_gpu));
    free(pages);
    return at;
}

/* Launches a scene, whose pointers are those of the host, in GPU memory; @which: the compute capability
 * that limits the choice. */
static bool launch(const struct page_layout *l, const struct launch_attend *a, unsigned n_items,
                   unsigned which)
{
    const struct geometry *g = &l->table->geometry;
    size_t row = (size_t) l->shard.n_heads * geometry_group(g) * g->d * sizeof(float);
    size_t partial = LAUNCH_PARTIAL_FLOATS(device_table_columns_max(l), g->d) * sizeof(float);
    struct launch_attend on_gpu = *a;

    cuda_kernels_limit(gpu.kernels, (int) which);
    on_gpu.table = (const struct device_table *) (uintptr_t) gpu_fixture_put_table(&gpu, l);
    on_gpu.partials = (float *) (uintptr_t) gpu_fixture_put(
        &gpu, NULL,
        n_items * LAUNCH_TILES(geometry_group(g), a->n_q) * l->shard.n_heads * a->n_splits * partial);
    for (unsigned i = 0; i < n_items; i++) {
        on_gpu.items[i].seq = (const struct device_seq *) (uintptr_t) put_sequence(l, a->items[i].seq);
        on_gpu.items[i].q = (const float *) (uintptr_t) gpu_fixture_put(&gpu, a->items[i].q, a->n_q * row);
        on_gpu.items[i].out = (float *) (uintptr_t) gpu_fixture_put(&gpu, a->items[i].out, a->n_q * row);
    }
    gpu_fixture_ok(&gpu, cuda_attend(gpu.kernels, l, &on_gpu, n_items, NULL, &gpu.e));
    for (unsigned i = 0; i < n_items; i++)
        gpu_fixture_get(&gpu, a->items[i].out, (cu_ptr) (uintptr_t) on_gpu.items[i].out, a->n_q * row);
    return true;
}

/* For all kernels: those of attend_80.cu round most (test_attend_80.c). */
#define ROUNDINGS (3 + 2.5 + 2)

static void check(const struct attend_shape *shape, uint32_t n_splits)
{
    for (unsigned i = 0; i < COMPUTES; i++) {
        CU_ASSERT_TRUE_FATAL(gpu_fixture_init(&gpu, 1));
        CU_ASSERT_TRUE(kernel_attend_check(shape, n_splits, launch, computes[i], ROUNDINGS));
        CU_ASSERT_TRUE(gpu_fixture_deinit(&gpu));
    }
}

static void test_one_token(void)
{
    check(&(struct attend_shape){.d = 128,
                                 .n_rot = 128,
                                 .group = 4,
                                 .bits = -1,
                                 .n_sink = 4,
                                 .v_from = PREDICT_HEAD,
                                 .n_pages = 5,
                                 .n_exact = 70,
                                 .n_q = 1,
                                 .q_first = SIZE_MAX},
          2);
}

static void test_prompt(void)
{
    check(&(struct attend_shape){.d = 96,
                                 .n_rot = 96,
                                 .group = 3,
                                 .bits = 3,
                                 .n_sink = 4,
                                 .v_from = PREDICT_NONE,
                                 .n_pages = 2,
                                 .n_exact = 20,
                                 .n_q = 23,
                                 .q_first = SIZE_MAX},
          1);
}

static void test_batch(void)
{
    for (unsigned i = 0; i < COMPUTES; i++) {
        CU_ASSERT_TRUE_FATAL(gpu_fixture_init(&gpu, 1));
        CU_ASSERT_TRUE(kernel_attend_check_batch(64, 2, 0, launch, computes[i], ROUNDINGS));
        CU_ASSERT_TRUE(gpu_fixture_deinit(&gpu));
    }
}

/* Dimensions, groups, widths, predictions, numbers of queries, splits, windows: each value with the
 * neighbouring values of the others. */
static void test_all_shapes_on_a_gpu(void)
{
    static const uint32_t dims[] = {32, 64, 80, 96, 128, 256}, groups[] = {1, 4, 7, 8, 16};
    static const size_t queries[] = {1, 2, 5, 70}, windows[] = {0, 0, 100};

    if (!getenv("TEST_GPU"))
        return;
    for (unsigned n = 0; n < 60; n++)
        check(
            &(struct attend_shape){
                .d = dims[n % 6],
                .n_rot = n % 11 == 0 ? dims[n % 6] / 2 : dims[n % 6],
                .group = groups[n % 5],
                .bits = (int) (n % 10) - 1,
                .n_sink = n % 3 * 4,
                .v_from = (enum prediction)(n % 2),
                .n_pages = n % 13,
                .n_exact = 1 + n * 7 % 140,
                .n_q = queries[n % 4] <= n * 7 % 140 ? queries[n % 4] : 1,
                .q_first = SIZE_MAX,
                .window = windows[n % 3],
            },
            1 + n % 4);
}

const char test_suite[] = "cuda_kernels";
const struct test_case test_cases[] = {
    TEST(test_one_token), TEST(test_prompt), TEST(test_batch), TEST(test_all_shapes_on_a_gpu), TEST_END,
};
