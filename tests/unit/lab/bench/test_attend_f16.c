/*
 * The binary16 baseline of `kvcobra-lab bench attend`, compared with attention in binary64. A baseline that
 * omitted work would make the ratio of the bench wrong.
 */
#include "lab/bench/attend_f16.h"

#include <math.h>
#include <stdlib.h>

#include "base/half.h"
#include "gpu/cpu.h"
#include "tests/lib/test.h"

enum { BLOCK = 64 };

struct cache {
    struct attend_f16_args args;
    uint16_t *k, *v;
    float *q, *out;
};

static uint16_t *random_halves(size_t n)
{
    uint16_t *p = calloc(n, sizeof(*p));

    assert(p);
    for (size_t i = 0; i < n; i++)
        p[i] = f32_to_f16((float) test_rand_normal());
    return p;
}

static void cache_init(struct cache *c, size_t d, size_t group, size_t n_tokens, size_t n_blocks)
{
    c->k = random_halves(n_blocks * BLOCK * d);
    c->v = random_halves(n_blocks * BLOCK * d);
    c->q = calloc(n_tokens * group * d, sizeof(*c->q));
    c->out = calloc(n_tokens * group * d, sizeof(*c->out));
    assert(c->q && c->out);
    for (size_t i = 0; i < n_tokens * group * d; i++)
        c->q[i] = (float) (test_rand_normal() / sqrt((double) d));
    c->args = (struct attend_f16_args){
        .d = d,
        .group = group,
        .n_tokens = n_tokens,
        .n_blocks = n_blocks,
        .k = c->k,
        .v = c->v,
        .q = c->q,
        .out = c->out,
    };
}

static void cache_deinit(struct cache *c)
{
    free(c->k);
    free(c->v);
    free(c->q);
    free(c->out);
}

/* Key @n of the transposed blocks times a query. */
static double score(const struct cache *c, size_t n, const float *q)
{
    double sum = 0;

    for (size_t i = 0; i < c->args.d; i++)
        sum += (double) q[i] * (double) f16_to_f32(c->k[(n / BLOCK * c->args.d + i) * BLOCK + n % BLOCK]);
    return sum;
}

/* Largest error of one row's output. */
static double row_error(const struct cache *c, size_t row)
{
    size_t d = c->args.d, newer = c->args.n_tokens - 1 - row / c->args.group;
    size_t n_keys = c->args.n_blocks * BLOCK - newer;
    double *sum = calloc(d, sizeof(*sum)), total = 0, worst = 0;

    assert(sum);
    for (size_t n = 0; n < n_keys; n++) {
        double p = exp(score(c, n, c->q + row * d)); /* scores of about 1: nothing overflows */

        total += p;
        for (size_t i = 0; i < d; i++)
            sum[i] += p * (double) f16_to_f32(c->v[n * d + i]);
    }
    for (size_t i = 0; i < d; i++)
        worst = fmax(worst, fabs(sum[i] / total - (double) c->out[row * d + i]));
    free(sum);
    return worst;
}

/*
 * Sums of a few hundred terms of about 1 in binary32, rounded by 2^-24 each: 1e-5 allows a hundred such
 * errors. Omitting one key of 192 moves the output by 5e-3.
 */
static void test_against_binary64(void)
{
    static const unsigned masks[] = {CPU_AVX2, CPU_AVX2 | CPU_AVX512};
    static const size_t dims[] = {32, 64, 80, 128, 256};

    for (size_t m = 0; m < 2; m++)
        for (size_t i = 0; i < 5 && (masks[m] & ~cpu_capabilities()) == 0; i++)
            for (size_t group = 1; group <= ATTEND_F16_ROWS_MAX; group += group < 5 ? 1 : 11)
                for (size_t n = 1; n * group <= ATTEND_F16_ROWS_MAX; n *= 2) {
                    struct cache c;

                    cache_init(&c, dims[i], group, n, 1 + group % 3);
                    attend_f16_select(masks[m])->attend(&c.args);
                    for (size_t row = 0; row < n * group; row++)
                        CU_ASSERT(row_error(&c, row) < 1e-5);
                    cache_deinit(&c);
                }
}

static void test_selection(void)
{
    CU_ASSERT_PTR_NULL(attend_f16_select(0));
}

const char test_suite[] = "attend_f16";
const struct test_case test_cases[] = {TEST(test_against_binary64), TEST(test_selection), TEST_END};
