/* Packed keys beside binary16 values, run on the CPU, against attention in binary64 over pages whose values
 * decode to those values. Tolerance: that of test_attend_80.c, with one more rounding of values by 2^-12. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/half.h"
#include "gpu/chunk.h"
#include "lab/cuda/konly.h"
#include "gpu/cuda/device_table.h"
#include "tests/cuda_on_cpu/kernels.h"
#include "tests/lib/test.h"
#include "tests/unit/gpu/cuda/kernel_attend_check.h"
#include "tests/unit/gpu/attend_oracle.h"

#define ROUNDINGS (3 + 2.5 + 2)

static void *need(size_t bytes)
{
    void *p = aligned_alloc(128, (bytes + 127) / 128 * 128);

    assert(p);
    memset(p, 0xff, bytes); /* NaN in all types */
    return p;
}

/* Values of the scene's head, decoded from its pages; those of other heads stay NaN. */
static uint16_t *decode_values(const struct attend_scene *s, size_t ld)
{
    const struct attend_args *a = &s->args;
    size_t n_heads = s->layout.shard.n_heads;
    uint16_t *v = need(n_heads * ld * KONLY_D * sizeof(*v)), *to = v + a->head * ld * KONLY_D;
    float rows[CHUNK_TOKENS * KONLY_D];
    struct chunk_work work;

    assert(chunk_work_init(&work, &s->layout.table->geometry, s->layout.shard) == 0);
    for (size_t page = 0; page < a->n_pages; page++) {
        chunk_decode(&s->layout, a->payloads[page], a->layer, a->head, SIDE_V, rows, KONLY_D, &work);
        for (size_t i = 0; i < CHUNK_TOKENS * KONLY_D; i++)
            to[page * CHUNK_TOKENS * KONLY_D + i] = f32_to_f16(rows[i]);
    }
    chunk_work_deinit(&work);
    return v;
}

static void check(uint32_t group, uint32_t key_rank, int bits, size_t n_pages, uint32_t n_splits)
{
    const struct attend_shape shape = {.d = KONLY_D,
                                       .n_rot = KONLY_D,
                                       .group = group,
                                       .bits = bits,
                                       .key_rank = key_rank,
                                       .n_pages = n_pages,
                                       .n_q = 1,
                                       .q_first = SIZE_MAX};
    static const char *const names[] = {
#define NAME(name, n_key_coords) #name,
        KONLY_ATTEND_KERNELS(NAME)
#undef NAME
    };
    struct kernel_attend_inputs d;
    struct konly_attend k;
    struct oracle_report r;
    struct attend_scene s;
    double limit;
    uint16_t *v;
    float *partials;

    attend_scene_init(&s, &shape);
    kernel_attend_inputs_init(&d, &s, n_splits, 1, &k.attend);
    k.ld = (uint32_t) (n_pages + 1) * CHUNK_TOKENS;
    k.v = v = decode_values(&s, k.ld);
    k.attend.partials = partials =
        need((size_t) s.layout.shard.n_heads * n_splits * KONLY_PARTIAL_FLOATS * sizeof(float));
    on_cpu_launch(names[konly_kernel(&s.layout)], s.layout.shard.n_heads, n_splits, 1, LAUNCH_THREADS,
                  konly_shared_bytes(&s.layout), &k);
    on_cpu_launch("kvc_konly_merge", group, s.layout.shard.n_heads, 1, LAUNCH_THREADS, 16, &k);
    memcpy(s.args.out, d.out + s.args.head * group * KONLY_D, group * KONLY_D * sizeof(float));
    r = oracle_packed(&s.args, NULL);
    limit = r.tolerance + 1.5 * sqrt(ROUNDINGS * pow(r.score_rounding, 2) + 2 * pow(r.weight_rounding, 2));
    CU_ASSERT_TRUE(r.error <= limit); /* false for NaN */
    if (!(r.error <= limit))
        printf("    g %u rank %u bits %d pages %zu splits %u: %g > %g\n", group, key_rank, bits, n_pages,
               n_splits, r.error, limit);
    free(v);
    free(partials);
    kernel_attend_inputs_deinit(&d);
    attend_scene_deinit(&s);
}

static void test_ranks_and_groups(void)
{
    static const uint32_t ranks[] = {16, 32, 64, 128};

    for (uint32_t i = 0; i < 4; i++)
        for (uint32_t group = 1 + i % 2; group <= 4; group += 2)
            check(group, ranks[i], i == 2 ? 2 : 4, 1 + i, 1 + i % 3);
    check(4, 128, -1, 3, 2);
}

/* More pairs than are in flight, splits without pages. */
static void test_lengths(void)
{
    for (size_t n = 5; n <= 8; n++)
        check(4, 16, 2, n, n == 5 ? 6 : 1);
}

static void test_what_is_refused(void)
{
    struct attend_scene s;

    attend_scene_init(
        &s, &(struct attend_shape){
                .d = 128, .n_rot = 128, .group = 5, .bits = 2, .n_exact = 1, .n_q = 1, .q_first = SIZE_MAX});
    CU_ASSERT_EQUAL(konly_kernel(&s.layout), KONLY_ATTEND_COUNT);
    attend_scene_deinit(&s);
}

const char test_suite[] = "packed keys beside binary16 values on the CPU";
const struct test_case test_cases[] = {TEST(test_ranks_and_groups), TEST(test_lengths),
                                       TEST(test_what_is_refused), TEST_END};
