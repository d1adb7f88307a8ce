/* The softmax of gpu/cpu/decode.h, which makes weights of whole numbers, against binary64. */
#include <math.h>
#include <stdlib.h>

#include "tests/lib/test.h"
#include "tests/unit/gpu/cpu/decode_variants.h"

static const double EPSILON = 0x1p-22; /* a few roundings */

/* A page after one with smaller scores, and after one with larger scores; the first three keys are exact. */
static void test_softmax(void)
{
    for (size_t i = 0; i < N_VARIANTS; i++) {
        const struct decode_ops *ops = variant(i);
        struct softmax_row state[2] = {{.max = 1, .sum = 2}, {.max = 7, .sum = 3}};
        struct row_weights *w = aligned_alloc(64, 2 * sizeof(*w));
        float scores[2 * CHUNK_TOKENS], factor[DECODE_ROWS_MAX];

        assert(w);
        if (!ops) {
            free(w);
            continue;
        }
        for (size_t t = 0; t < 2 * CHUNK_TOKENS; t++)
            scores[t] = -INFINITY;
        for (size_t row = 0; row < 2; row++) {
            scores[row * CHUNK_TOKENS + 2] = 3;
            scores[row * CHUNK_TOKENS + 5] = 4;
        }
        ops->softmax(2, scores, state, 3, true, factor, w);
        for (size_t row = 0; row < 2; row++) {
            double top = row == 0 ? 4 : 7, old = row == 0 ? exp(-3) : 1;

            CU_ASSERT_DOUBLE_EQUAL((double) factor[row], old, EPSILON);
            CU_ASSERT_EQUAL(state[row].max, (float) top);
            CU_ASSERT_DOUBLE_EQUAL((double) state[row].sum,
                                   (row == 0 ? 2 : 3) * old + exp(4 - top) + exp(3 - top), 8 * EPSILON);
            CU_ASSERT_DOUBLE_EQUAL((double) w[row].step, exp(4 - top) / ops->weight_max, EPSILON);
            CU_ASSERT_DOUBLE_EQUAL((double) scores[row * CHUNK_TOKENS + 2], exp(3 - top), EPSILON);
            CU_ASSERT_EQUAL(scores[row * CHUNK_TOKENS], 0);
            for (size_t t = 0; t < CHUNK_TOKENS; t++) {
                CU_ASSERT_EQUAL(w[row].bytes[t], t == 5 ? ops->weight_max : 0);
                CU_ASSERT_EQUAL(w[row].whole[t], t == 5 ? WEIGHT_WIDE_MAX : 0);
            }
        }
        free(w);
    }
}

/* Sixty-three weights of 0.4 steps: rounded to nearest they would all vanish. */
static void test_small_weights(void)
{
    for (size_t i = 0; i < N_VARIANTS; i++) {
        const struct decode_ops *ops = variant(i);
        struct softmax_row state = {.max = -INFINITY};
        struct row_weights *w = aligned_alloc(64, sizeof(*w));
        float scores[CHUNK_TOKENS], factor[DECODE_ROWS_MAX];
        int sum = 0;

        assert(w);
        for (size_t t = 0; t < CHUNK_TOKENS; t++)
            scores[t] = ops && t > 0 ? logf(0.4f / (float) ops->weight_max) : 0;
        if (ops)
            ops->softmax(1, scores, &state, 0, false, factor, w);
        for (size_t t = 1; ops && t < CHUNK_TOKENS; t++)
            sum += w->bytes[t];
        CU_ASSERT_TRUE(!ops ||
                       (sum >= 24 && sum <= 26)); /* 63 * 0.4 = 25.2; the first token has the place of one */
        free(w);
    }
}

const char test_suite[] = "decode_softmax";
const struct test_case test_cases[] = {TEST(test_softmax), TEST(test_small_weights), TEST_END};
