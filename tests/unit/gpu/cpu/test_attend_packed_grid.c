/* Packed attention over the whole grid of shapes, drawn at random: dimensions, ranks, widths, group sizes,
 * lengths, kinds of RoPE, prediction, windows; and edge cases of inputs. KVC_TEST_SEED draws other shapes.
 * Every case is a meson test of its own. */
#include <string.h>

#include "alloc/table/trellis.h"
#include "tests/lib/test.h"
#include "tests/unit/gpu/attend_oracle.h"
#include "tests/unit/gpu/attend_scene.h"

enum { N_DRAWS = 10 };

static size_t draw(size_t low, size_t high)
{
    return low + test_rand_below(high - low + 1);
}

/* Lengths 1..1000 in pages and exact rows, as sequences have them: up to 127 exact rows behind pages. */
static struct attend_shape draw_shape(uint32_t d)
{
    size_t length = draw(1, 1000), n_pages = length < 128 ? 0 : length / 64 - 1;
    struct attend_shape s = {
        .d = d,
        .n_rot = (uint32_t) draw(0, d / 4) * 4,
        .group = (uint32_t) draw(1, 16),
        .bits = -1,
        .state_bits = draw(0, 1) ? (unsigned) draw(TRELLIS_STATE_BITS_MIN, TRELLIS_STATE_BITS_MAX) : 0,
        .n_sink = (uint32_t) draw(0, 4),
        .v_from = (enum prediction) draw(0, 2),
        .n_pages = n_pages,
        .n_exact = length - 64 * n_pages,
        .n_q = draw(0, 3) == 0 ? draw(1, 80) : draw(1, 2),
        .q_first = SIZE_MAX,
        .mean_norm = draw(0, 4) == 0 ? 900 : 0,
        .window = draw(0, 4) == 0 ? draw(1, 1100) : 0,
    };

    if (s.n_q > length)
        s.n_q = length;
    if (s.n_rot > 0 && draw(0, 1)) /* bases in two blocks; the second is not empty */
        s.fast_planes = (uint32_t) draw(1, s.n_rot < d ? s.n_rot / 2 : s.n_rot / 2 - 1);
    return s;
}

static void draw_many(uint32_t d)
{
    for (int i = 0; i < N_DRAWS; i++) {
        struct attend_shape s = draw_shape(d);

        if (d > 128 && i % 3 != 0) /* the oracle is slow for these */
            continue;
        attend_scene_check(&s);
    }
}

static void test_64(void)
{
    draw_many(64);
}

static void test_80(void)
{
    draw_many(80);
}

static void test_96(void)
{
    draw_many(96);
}

static void test_128(void)
{
    draw_many(128);
}

static void test_256(void)
{
    draw_many(256);
}

/* Bases in two blocks: more fast planes than would be formed with one block, as many, and fewer; ranks of one
 * block alone; values predicted from all heads; enough rows that nothing is folded. */
static void test_blocks(void)
{
    static const uint32_t planes[] = {1, 4, 8, 12, 16, 31};

    for (unsigned i = 0; i < 6; i++)
        for (unsigned j = 0; j < 4; j++)
            attend_scene_check(&(struct attend_shape){.d = 64,
                                                      .n_rot = 64,
                                                      .group = j == 3 ? 12 : 3,
                                                      .bits = j == 1 ? 3 : -1,
                                                      .key_rank = j == 2 ? 16 : 0,
                                                      .fast_planes = planes[i],
                                                      .state_bits = i % 2 == 0 ? 6 : 0,
                                                      .n_sink = 4,
                                                      .v_from = i < 3 ? PREDICT_LAYER : PREDICT_HEAD,
                                                      .n_pages = 4,
                                                      .n_exact = 70,
                                                      .n_q = 1,
                                                      .q_first = SIZE_MAX});
}

/* All pages equal and one query after all of them: without RoPE all keys
 * of one token have the same weight. */
static void test_equal_keys(void)
{
    struct attend_shape shape = {.d = 64,
                                 .n_rot = 0,
                                 .group = 4,
                                 .bits = 4,
                                 .n_sink = 0,
                                 .v_from = PREDICT_HEAD,
                                 .n_pages = 9,
                                 .n_exact = 64,
                                 .n_q = 1,
                                 .q_first = SIZE_MAX};
    const struct ops *ops[ATTEND_SCENE_VARIANTS];
    size_t n_ops = attend_scene_variants(ops);
    struct attend_scene s;

    attend_scene_init(&s, &shape);
    for (size_t i = 0; i < shape.n_pages; i++) /* code 7 everywhere */
        memset(s.pages[i].data, 0x77, s.layout.payload_bytes[i == 0 ? PAGE_FIRST : PAGE_REST]);
    for (size_t i = 0; i < n_ops; i++) {
        struct oracle_report r;

        memset(s.scratch.data, 0xff, attend_scratch_bytes(&s.layout, 1));
        attend_with(&s.args, ops[i]);
        r = oracle_packed(&s.args, ops[i]->decode);
        CU_ASSERT_TRUE(r.error <= r.tolerance);
    }
    attend_scene_deinit(&s);
}

/* A query that can see a single token returns the value of that token, whatever the scores. */
static void test_one_token(void)
{
    for (uint32_t group = 1; group <= 16; group *= 2)
        attend_scene_check(&(struct attend_shape){.d = 96,
                                                  .n_rot = 96,
                                                  .group = group,
                                                  .bits = -1,
                                                  .n_sink = 4,
                                                  .n_pages = 0,
                                                  .n_exact = 1,
                                                  .n_q = 1,
                                                  .q_first = SIZE_MAX,
                                                  .q_size = 1e4});
}

/* Every group size with one and two queries: numbers of rows below and
 * above the limit of the decode loops. */
static void test_groups(void)
{
    for (uint32_t group = 1; group <= 16; group++)
        for (size_t n_q = 1; n_q <= 2; n_q++)
            attend_scene_check(&(struct attend_shape){.d = 128,
                                                      .n_rot = 128,
                                                      .group = group,
                                                      .bits = -1,
                                                      .n_sink = 4,
                                                      .v_from = PREDICT_HEAD,
                                                      .n_pages = 2,
                                                      .n_exact = 66,
                                                      .n_q = n_q,
                                                      .q_first = SIZE_MAX});
}

/* The shape of models with 256 dimensions, 64 of them rotated, and 6 query heads per KV head. With few rows
 * the planes without rotation are folded, so at most 32 of 128 are formed. */
static void test_partly_rotated(void)
{
    for (unsigned i = 0; i < 6; i++) {
        struct attend_shape shape = {.d = 256,
                                     .n_rot = 64,
                                     .group = 6,
                                     .bits = i == 5 ? -1 : (int) (2 + i % 3),
                                     .state_bits = i < 3 ? 0 : 6,
                                     .n_sink = 4,
                                     .v_from = i % 2 == 0 ? PREDICT_NONE : PREDICT_HEAD,
                                     .n_pages = 2,
                                     .n_exact = 3,
                                     .n_q = 1 + i / 4,
                                     .q_first = SIZE_MAX};
        const struct ops *ops[ATTEND_SCENE_VARIANTS];
        size_t n_ops = attend_scene_variants(ops);
        struct attend_scene s;

        attend_scene_check(&shape);
        shape.n_q = 1;
        attend_scene_init(&s, &shape);
        for (size_t v = 0; v < n_ops; v++) {
            struct attend_folding folding;

            attend_folding_with(&s.args, ops[v], &folding);
            CU_ASSERT_EQUAL(folding.planes, 128);
            CU_ASSERT_TRUE(ops[v]->decode ? folding.formed <= 32 : folding.formed == 128);
        }
        attend_scene_deinit(&s);
    }
}

const char test_suite[] = "attend_packed_grid";
const struct test_case test_cases[] = {
    TEST(test_64),
    TEST(test_80),
    TEST(test_96),
    TEST(test_128),
    TEST(test_256),
    TEST(test_equal_keys),
    TEST(test_one_token),
    TEST(test_groups),
    TEST(test_blocks),
    TEST(test_partly_rotated),
    TEST_END,
};
