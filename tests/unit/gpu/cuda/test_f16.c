/*
 * The binary16 baseline of the GPU benches, run on the CPU, against attention in binary64 over the same
 * binary16 keys and values: a baseline that left out work would make packed attention look better.
 *
 * Tolerance. Queries of about 1 per coordinate times scale, and weights below 1, are rounded to binary16,
 * by 2^-12 of themselves in the mean. They move
 *
 *     2^-12         scores of about 1
 *     2 x 2^-12     weights: by the scores, and by their own rounding
 *     3 x 2^-12     the output, an average of numbers of about 1: less than this in the mean
 *
 * The largest of thousands of coordinates is compared: four times that. Leaving out one key of 200 would
 * move it by 5e-3, and most tests have fewer keys.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/half.h"
#include "tests/cuda_on_cpu/kernels.h"
#include "tests/lib/test.h"

#define LIMIT (3 * 4 * 0x1p-12)

static void *need(size_t bytes)
{
    void *p = aligned_alloc(16, (bytes + 15) / 16 * 16);

    assert(p);
    memset(p, 0xff, bytes); /* NaN in all types */
    return p;
}

/* Draws the first @n_keys of each @ld rows; the others stay NaN. */
static uint16_t *draw_rows(size_t n_heads, size_t n_keys, size_t ld, size_t d)
{
    uint16_t *p = need(n_heads * ld * d * sizeof(*p));

    for (size_t h = 0; h < n_heads; h++)
        for (size_t i = 0; i < n_keys * d; i++)
            p[h * ld * d + i] = f32_to_f16((float) test_rand_normal());
    return p;
}

/* Largest error of one output row. */
static double row_error(const struct f16_attend *a, size_t kv, size_t row)
{
    const float *q = a->q + (kv * a->group + row) * a->d, *out = a->out + (kv * a->group + row) * a->d;
    const uint16_t *k = a->k + kv * a->ld * a->d, *v = a->v + kv * a->ld * a->d;
    double *sum = calloc(a->d, sizeof(*sum)), total = 0, worst = 0;

    assert(sum);
    for (size_t n = 0; n < a->n_keys; n++) {
        double score = 0, p;

        for (size_t i = 0; i < a->d; i++)
            score += (double) q[i] * (double) f16_to_f32(k[n * a->d + i]);
        p = exp(score * (double) a->scale);
        total += p;
        for (size_t i = 0; i < a->d; i++)
            sum[i] += p * (double) f16_to_f32(v[n * a->d + i]);
    }
    for (size_t i = 0; i < a->d; i++) {
        double error = fabs(sum[i] / total - (double) out[i]);

        worst = error <= worst ? worst : error; /* NaN stays */
    }
    free(sum);
    return worst;
}

static void check(uint32_t d, uint32_t group, uint32_t n_keys, uint32_t n_splits)
{
    enum { SEQS = 2, HEADS = 2 };
    uint32_t ld = n_keys + 3;
    float *q = need((size_t) SEQS * HEADS * group * d * sizeof(float));
    struct f16_attend a = {
        .d = d,
        .group = group,
        .n_kv_heads = HEADS,
        .n_keys = n_keys,
        .ld = ld,
        .n_splits = n_splits,
        .scale = 1 / sqrtf((float) d),
        .k = draw_rows(SEQS * HEADS, n_keys, ld, d),
        .v = draw_rows(SEQS * HEADS, n_keys, ld, d),
        .q = q,
        .out = need((size_t) SEQS * HEADS * group * d * sizeof(float)),
        .partials =
            need((size_t) SEQS * HEADS * n_splits * F16_WARPS * F16_PARTIAL_FLOATS(d) * sizeof(float)),
    };

    for (size_t i = 0; i < (size_t) SEQS * HEADS * group * d; i++)
        q[i] = (float) test_rand_normal();
    on_cpu_f16(&a, SEQS);
    for (size_t kv = 0; kv < SEQS * HEADS; kv++)
        for (size_t row = 0; row < group; row++) {
            double error = row_error(&a, kv, row);

            CU_ASSERT_TRUE(error <= LIMIT);
            if (!(error <= LIMIT))
                printf("    d %u group %u keys %u splits %u: %g\n", d, group, n_keys, n_splits, error);
        }
    free((void *) a.k);
    free((void *) a.v);
    free(q);
    free(a.out);
    free(a.partials);
}

static void test_dimensions_and_groups(void)
{
    static const uint32_t dims[] = {64, 128, 256}, groups[] = {1, 4, 7, 8, 16};

    for (size_t i = 0; i < 3; i++)
        for (size_t j = 0; j < 5; j++)
            check(dims[i], groups[j], 100 + 13 * (uint32_t) j, 1 + (uint32_t) j % 2);
}

/* Tiles that end inside, shares without keys, one key. */
static void test_lengths_and_splits(void)
{
    static const uint32_t lengths[] = {1, 15, 16, 17, 63, 64, 130};

    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++)
        for (uint32_t splits = 1; splits <= 3; splits++)
            check(64, 3, lengths[i], splits);
}

const char test_suite[] = "cuda_f16";
const struct test_case test_cases[] = {TEST(test_dimensions_and_groups), TEST(test_lengths_and_splits),
                                       TEST_END};
