/* The cache of a format, compared with binary64 attention that decides for every (query, token) pair whether
 * the query sees the token exactly. */
#include "tests/lib/test.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "tests/unit/lab/comparators/codec.h"
#include "lab/comparators/cache.h"

enum { N_MAX = 200, LAYERS = 2, HEADS = 4, KV = 2, D = 32, ROW = KV * D };

/* Test formats: every vector becomes the mean of its block plus a half, so that it shows which tokens were
 * coded together. Three bits per number and a hundred per call. */
static int code_mean(const struct comparator_codec *codec, uint32_t layer, enum side side, const float *x,
                     size_t n, float *ret_y, uint64_t *ret_bits)
{
    size_t block = codec->what->block_tokens;

    (void) layer;
    (void) side;
    *ret_bits = n * ROW * 3;
    for (size_t at = 0; at < n; at += block) {
        size_t rows = n - at < block ? n - at : block;

        *ret_bits += 100;
        for (size_t i = 0; i < ROW; i++) {
            float sum = 0;

            for (size_t t = at; t < at + rows; t++)
                sum += x[t * ROW + i];
            for (size_t t = at; t < at + rows; t++)
                ret_y[t * ROW + i] = sum / (float) rows + 0.5f;
        }
    }

    return 0;
}

static int code_huge(const struct comparator_codec *codec, uint32_t layer, enum side side, const float *x,
                     size_t n, float *ret_y, uint64_t *ret_bits)
{
    (void) codec, (void) layer, (void) side, (void) x;
    for (size_t i = 0; i < n * ROW; i++)
        ret_y[i] = INFINITY;
    *ret_bits = 0;
    return 0;
}

static struct geometry shape(void)
{
    struct geometry g = {
        .n_layers = LAYERS, .n_heads = HEADS, .n_kv_heads = KV, .d = D, .n_rot = 16, .attn_scale = 0.2};

    for (int i = 0; i < 8; i++)
        g.freq[i] = pow(10, -i / 4.0);
    return g;
}

struct fixture {
    struct comparator what;
    struct comparator_codec codec;
    struct comparator_cache_options o;
    float k[N_MAX * ROW], v[N_MAX * ROW], q[N_MAX * HEADS * D];
};

static struct fixture f;

static void begin(uint32_t block, bool post_rope, struct comparator_cache_options o)
{
    f.what = (struct comparator){
        .name = "mean", .bits = 3, .block_tokens = block, .post_rope = post_rope, .code = code_mean};
    f.codec = (struct comparator_codec){.what = &f.what, .geometry = shape()};
    f.o = o;
    for (int i = 0; i < N_MAX * ROW; i++) {
        f.k[i] = (float) test_rand_normal();
        f.v[i] = (float) test_rand_normal();
    }

    for (int i = 0; i < N_MAX * HEADS * D; i++)
        f.q[i] = (float) test_rand_normal();
}

/* ---- the oracle ---- */

static void turn(const float *x, size_t position, double sign, double *y)
{
    const struct geometry *g = &f.codec.geometry;

    for (int i = 0; i < D; i++)
        y[i] = (double) x[i];
    for (int i = 0; i < 8; i++) {
        double a = sign * (double) position * g->freq[i], lo = y[i], hi = y[i + 8];

        y[i] = lo * cos(a) - hi * sin(a);
        y[i + 8] = lo * sin(a) + hi * cos(a);
    }
}

/* Whether the query at m reads token n from codes, and where n's block ends for it. @end: tokens at that
 * time. */
static bool is_coded(size_t m, size_t n, size_t end, size_t *ret_block_end)
{
    size_t block = f.what.block_tokens, block_end = (n / block + 1) * block, from;

    *ret_block_end = block_end < end ? block_end : end;
    if (n < f.o.n_sink)
        return false;
    if (f.o.n_recent == 0)
        return true;
    if (f.o.n_recent > 0)
        from = m + 1 < (size_t) f.o.n_recent ? 0 : m + 1 - (size_t) f.o.n_recent; /* n > m - N is exact */
    else
        for (from = 0; from + 64 + 64 <= m + 1;) /* a chunk is coded when 64 newer tokens exist */
            from += 64;
    return block_end <= from;
}

/* Token n of one side as the query at m sees it, keys rotated. */
static void seen(size_t m, size_t n, size_t end, uint32_t head, enum side side, bool all_exact, double *y)
{
    const float *x = side == SIDE_K ? f.k : f.v;
    size_t block = f.what.block_tokens, first = n / block * block, block_end;
    bool rotated = side == SIDE_K && f.what.post_rope;

    if (all_exact || !is_coded(m, n, end, &block_end)) {
        turn(x + n * ROW + head * D, side == SIDE_K ? n : 0, 1, y);
        return;
    }

    first = first < f.o.n_sink ? f.o.n_sink : first;
    for (int i = 0; i < D; i++)
        y[i] = 0.5;
    for (size_t t = first; t < block_end; t++) {
        double z[D];

        turn(x + t * ROW + head * D, rotated ? t : 0, 1, z);
        for (int i = 0; i < D; i++)
            y[i] += z[i] / (double) (block_end - first);
    }

    if (side == SIDE_K && !rotated) {
        float z[D];

        for (int i = 0; i < D; i++)
            z[i] = (float) y[i];
        turn(z, n, 1, y);
    }
}

static void attend_oracle(size_t m, size_t end, uint32_t head, bool k_exact, bool v_exact, double *out)
{
    double q[D], weight[N_MAX], sum = 0, x[D];

    turn(f.q + (m * HEADS + head) * D, m, 1, q);
    for (size_t n = 0; n <= m; n++) {
        weight[n] = 0;
        seen(m, n, end, head / (HEADS / KV), SIDE_K, k_exact, x);
        for (int i = 0; i < D; i++)
            weight[n] += 0.2 * q[i] * x[i];
        weight[n] = exp(weight[n]);
        sum += weight[n];
    }

    for (int i = 0; i < D; i++)
        out[i] = 0;
    for (size_t n = 0; n <= m; n++) {
        seen(m, n, end, head / (HEADS / KV), SIDE_V, v_exact, x);
        for (int i = 0; i < D; i++)
            out[i] += weight[n] / sum * x[i];
    }
}

/* ---- cases ---- */

/* Tokens are appended in pieces that end at @ends. Binary32 sums of 200 terms of size 1: 200 x 2^-24 and
 * some, 1e-4 is ample; a token read wrongly moves the result by more than 1e-3. */
static void run(const size_t *ends, size_t n_ends, uint64_t *ret_bits, uint64_t *ret_numbers)
{
    _cleanup_(comparator_cache_freep) struct comparator_cache *c = NULL;
    struct errmsg e = {""};
    struct kv_cache ops;
    double worst = 0;

    CU_ASSERT_EQUAL_FATAL(comparator_cache_new(&f.codec, &f.o, N_MAX, &c, &e), 0);
    ops = comparator_cache_ops(c);
    for (size_t p = 0, at = 0; p < n_ends; at = ends[p++]) {
        size_t n = ends[p] - at;

        for (uint32_t layer = 0; layer < LAYERS; layer++) {
            bool here =
                layer >= f.o.first_layer && (f.o.n_layers == 0 || layer < f.o.first_layer + f.o.n_layers);
            bool k_exact = !here || (f.o.sides && !(f.o.sides & 1)),
                 v_exact = !here || (f.o.sides && !(f.o.sides & 2));
            static float out[N_MAX * HEADS * D];

            CU_ASSERT_EQUAL_FATAL(ops.append(ops.ctx, layer, f.k + at * ROW, f.v + at * ROW, n, &e), 0);
            CU_ASSERT_EQUAL_FATAL(ops.attend(ops.ctx, layer, f.q + at * HEADS * D, n, out, &e), 0);
            for (size_t m = at; m < ends[p]; m += 1 + n / 16)
                for (uint32_t h = 0; h < HEADS; h++) {
                    double want[D];

                    attend_oracle(m, ends[p], h, k_exact, v_exact, want);
                    for (int i = 0; i < D; i++)
                        worst = fmax(worst, fabs(want[i] - (double) out[((m - at) * HEADS + h) * D + i]));
                }
        }

        CU_ASSERT_EQUAL(ops.length(ops.ctx), ends[p]);
    }

    CU_ASSERT(worst < 1e-4);
    comparator_cache_usage(c, ret_bits, ret_numbers);
}

static void test_nothing_recent(void)
{
    static const size_t ends[] = {3, 70, 71, 72, 73, 160};
    uint64_t bits, numbers;

    begin(1, false, (struct comparator_cache_options){.n_sink = 4});
    run(ends, 6, &bits, &numbers);
    CU_ASSERT_EQUAL(numbers, (160 - 4) * ROW * 2 * LAYERS);
    CU_ASSERT_EQUAL(bits, (160 - 4) * (ROW * 3 + 100) * 2 * LAYERS);
    /* blocks of 32: the first without the sinks, the last is whole at 160; none was counted twice */
    begin(32, false, (struct comparator_cache_options){.n_sink = 4});
    run(ends, 6, &bits, &numbers);
    CU_ASSERT_EQUAL(numbers, (160 - 4) * ROW * 2 * LAYERS);
    CU_ASSERT_EQUAL(bits, ((160 - 4) * ROW * 3 + 5 * 100) * 2 * LAYERS);
    begin(32, true, (struct comparator_cache_options){.n_sink = 0});
    run(ends, 5, &bits, &numbers); /* 73: two blocks and 9 tokens of a third */
    CU_ASSERT_EQUAL(bits, (73 * ROW * 3 + 3 * 100) * 2 * LAYERS);
}

static void test_some_recent(void)
{
    static const size_t ends[] = {2, 100, 101, 150};
    uint64_t bits, numbers;

    begin(1, true, (struct comparator_cache_options){.n_sink = 4, .n_recent = 10});
    run(ends, 4, &bits, &numbers);
    CU_ASSERT_EQUAL(numbers, (150 - 10 - 4) * ROW * 2 * LAYERS);
    begin(32, false, (struct comparator_cache_options){.n_sink = 4, .n_recent = 10});
    run(ends, 4, &bits, &numbers);
    CU_ASSERT_EQUAL(numbers, (128 - 4) * ROW * 2 * LAYERS); /* whole blocks below 140 */
    CU_ASSERT_EQUAL(bits, (124 * ROW * 3 + 4 * 100) * 2 * LAYERS);
}

static void test_as_the_product(void)
{
    static const size_t ends[] = {190, 191, 192, 193};
    uint64_t bits, numbers;

    begin(1, false, (struct comparator_cache_options){.n_sink = 4, .n_recent = -1});
    run(ends, 2, &bits, &numbers);
    CU_ASSERT_EQUAL(numbers, (64 - 4) * ROW * 2 * LAYERS); /* 191: 127 newest are exact */
    run(ends, 4, &bits, &numbers);
    CU_ASSERT_EQUAL(numbers, (128 - 4) * ROW * 2 * LAYERS);
}

static void test_parts(void)
{
    static const size_t ends[] = {90};
    uint64_t bits, numbers;

    begin(32, true, (struct comparator_cache_options){.n_sink = 4, .sides = 1 << SIDE_K});
    run(ends, 1, &bits, &numbers);
    CU_ASSERT_EQUAL(numbers, 86 * ROW * LAYERS);
    begin(1, false,
          (struct comparator_cache_options){
              .n_sink = 4, .sides = 1 << SIDE_V, .first_layer = 1, .n_layers = 1});
    run(ends, 1, &bits, &numbers);
    CU_ASSERT_EQUAL(numbers, 86 * ROW);
}

static void test_failures(void)
{
    _cleanup_(comparator_cache_freep) struct comparator_cache *c = NULL;
    struct errmsg e = {""};
    struct kv_cache ops;
    float out[HEADS * D * 2];

    begin(1, false, (struct comparator_cache_options){.n_sink = 0});
    f.what.code = code_huge;
    CU_ASSERT_EQUAL_FATAL(comparator_cache_new(&f.codec, &f.o, 2, &c, &e), 0);
    ops = comparator_cache_ops(c);
    CU_ASSERT_EQUAL(ops.append(ops.ctx, 0, f.k, f.v, 3, &e), -ENOSPC);
    CU_ASSERT_EQUAL(ops.append(ops.ctx, 0, f.k, f.v, 2, &e), 0);
    CU_ASSERT_EQUAL(ops.attend(ops.ctx, 0, f.q, 2, out, &e), -ERANGE);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "keys of layer 0"));
}

const struct test_case test_cases[] = {
    TEST(test_nothing_recent), TEST(test_some_recent), TEST(test_as_the_product),
    TEST(test_parts),          TEST(test_failures),    TEST_END,
};
const char test_suite[] = "comparator_cache";
