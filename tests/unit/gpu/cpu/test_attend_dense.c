/* gpu/cpu/attend_dense.c against binary64 (attend_oracle.h): every rule of exactness, every variant. */
#include <stdlib.h>
#include <string.h>

#include "gpu/attend.h"
#include "gpu/cpu.h"
#include "gpu/cpu/ops.h"
#include "tests/lib/test.h"
#include "tests/unit/gpu/attend_oracle.h"
#include "tests/unit/gpu/memory_table.h"

struct attend_shape {
    uint32_t d, n_rot, group;
    size_t q_first, n_q;
    uint32_t n_sink;
    int32_t n_recent;
    size_t window;
};

static float *random_floats(size_t n)
{
    float *p = malloc((n + 1) * sizeof(*p));

    assert(p);
    for (size_t i = 0; i < n; i++)
        p[i] = (float) test_rand_normal();
    return p;
}

/* Runs @a on the variant of @mask; the scratch starts as NaN everywhere. */
static void check_variant(struct attend_dense_args *a, unsigned mask, size_t scratch_bytes)
{
    struct oracle_report r;

    memset(a->scratch, 0xff, scratch_bytes);
    attend_dense_with(a, ops_select(mask));
    r = oracle_dense(a);
    CU_ASSERT_TRUE(r.error <= r.tolerance);
    if (!(r.error <= r.tolerance))
        printf("    %s: d %u n_rot %u first %zu n_q %zu sinks %u recent %d: %g > %g\n",
               ops_select(mask)->name, a->geometry->d, a->geometry->n_rot, a->q_first, a->n_q, a->n_sink,
               a->n_recent, r.error, r.tolerance);
}

static void check(const struct attend_shape *s)
{
    static const unsigned masks[] = {0, CPU_AVX2, CPU_AVX2 | CPU_AVX512};
    struct geometry g = memory_table_geometry(1, s->group, 1, s->d, s->n_rot);
    size_t n = s->q_first + s->n_q, row_stride = s->d + 3, q_stride = (size_t) s->group * s->d + 1;
    size_t scratch_bytes = attend_dense_scratch_bytes(&g, n, s->n_q);
    float *rows[4], *q = random_floats(s->n_q * q_stride), *out = random_floats(s->n_q * q_stride);
    struct attend_dense_args a = {
        .geometry = &g,
        .row_stride = row_stride,
        .n_sink = s->n_sink,
        .n_recent = s->n_recent,
        .q = q,
        .q_stride = q_stride,
        .q_first = s->q_first,
        .n_q = s->n_q,
        .out = out,
        .out_stride = q_stride,
        .scratch = aligned_alloc(64, scratch_bytes),
        .window = s->window,
    };

    assert(a.scratch);
    for (int i = 0; i < 4; i++)
        rows[i] = random_floats(n * row_stride);
    a.exact_k = rows[0];
    a.exact_v = rows[1];
    a.decoded_k = rows[2];
    a.decoded_v = rows[3];
    for (size_t i = 0; i < sizeof(masks) / sizeof(masks[0]); i++)
        if ((masks[i] & ~cpu_capabilities()) == 0)
            check_variant(&a, masks[i], scratch_bytes);
    for (int i = 0; i < 4; i++)
        free(rows[i]);
    free(q);
    free(out);
    free(a.scratch);
}

/* Chunks become decoded at m + 1 = chunk end + 64: 127 tokens are all exact,
 * at 128 the first chunk is decoded. */
static void test_by_step(void)
{
    static const size_t firsts[] = {0, 100, 126, 127, 128, 191, 192, 255};

    for (size_t i = 0; i < sizeof(firsts) / sizeof(firsts[0]); i++)
        check(&(struct attend_shape){.d = 32,
                                     .n_rot = 32,
                                     .group = 3,
                                     .q_first = firsts[i],
                                     .n_q = 1 + i % 2 * 40,
                                     .n_sink = i % 3 * 2,
                                     .n_recent = EXACT_BY_STEP});
}

static void test_recent(void)
{
    static const int32_t recent[] = {0, 1, 2, 63, 64, 65, 100, 1000, INT32_MAX};

    for (size_t i = 0; i < sizeof(recent) / sizeof(recent[0]); i++)
        check(&(struct attend_shape){.d = 32,
                                     .n_rot = 16,
                                     .group = 1 + (uint32_t) i % 4,
                                     .q_first = i * 17,
                                     .n_q = 90,
                                     .n_sink = i % 2 * 4,
                                     .n_recent = recent[i]});
}

/* Sinks that fill a block, more than one block, or everything. */
static void test_sinks(void)
{
    static const uint32_t sinks[] = {1, 63, 64, 65, 200, UINT32_MAX};

    for (size_t i = 0; i < sizeof(sinks) / sizeof(sinks[0]); i++)
        check(&(struct attend_shape){
            .d = 32, .n_rot = 32, .group = 2, .q_first = 40, .n_q = 100, .n_sink = sinks[i]});
}

/* Windows narrower and wider than a block, whose rows cross their first and last blocks. */
static void test_windows(void)
{
    static const size_t windows[] = {1, 5, 64, 65, 130, 1000};

    for (size_t i = 0; i < sizeof(windows) / sizeof(windows[0]); i++)
        check(&(struct attend_shape){.d = 32,
                                     .n_rot = 32,
                                     .group = 3,
                                     .q_first = 130,
                                     .n_q = 1 + i % 2 * 100,
                                     .n_sink = 4,
                                     .n_recent = (int32_t) (i % 3) * 40,
                                     .window = windows[i]});
}

static void test_dimensions(void)
{
    static const uint32_t d[] = {32, 34, 64, 80, 128, 256};

    for (size_t i = 0; i < sizeof(d) / sizeof(d[0]); i++)
        for (uint32_t rot = 0; rot <= d[i]; rot += d[i] / 4 * 2)
            check(&(struct attend_shape){.d = d[i],
                                         .n_rot = rot,
                                         .group = 3,
                                         .q_first = 70,
                                         .n_q = 30,
                                         .n_sink = 4,
                                         .n_recent = (int32_t) i * 8});
}

const char test_suite[] = "attend_dense";
const struct test_case test_cases[] = {
    TEST(test_by_step), TEST(test_recent),     TEST(test_sinks),
    TEST(test_windows), TEST(test_dimensions), TEST_END,
};
