/* Which rows need the values of a block, by numbers; and attention that skips values, in one share and in
 * eight, against the same attention that adds all. */
#include "gpu/cpu/attend_rows.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/chunk.h"
#include "tests/lib/test.h"
#include "tests/unit/gpu/attend_scene.h"

/* ---- the choice ---- */

/* One row whose sum is 1 (all powers of two, so that nothing is rounded). Returns whether it needs values of
 * weight @weights after it has skipped @skipped. */
static bool needs(float skipped, float weights)
{
    struct softmax_row state = {.sum = 1, .skipped = skipped};
    struct attend_rows rows = {.n = 1, .state = &state};
    size_t first, n = rows_needing_values(&rows, 0, 1, &weights, &first);

    CU_ASSERT_EQUAL(rows.n_skipped, 1 - n);
    CU_ASSERT_EQUAL(state.skipped, n == 1 ? skipped : skipped + weights);
    return n == 1;
}

static void test_limits(void)
{
    CU_ASSERT_TRUE(needs(0, 1));
    CU_ASSERT_TRUE(needs(0, 0x1p-24f));
    CU_ASSERT_FALSE(needs(0, 0x1p-25f));
    CU_ASSERT_FALSE(needs(0, 0));
    CU_ASSERT_FALSE(needs(0x1.dp-21f, 0x1p-25f)); /* 29/32 + 1/32 of the limit */
    CU_ASSERT_TRUE(needs(0x1.fp-21f, 0x1p-25f));  /* 31/32 + 1/32 */
    CU_ASSERT_TRUE(needs(0, NAN));
}

/* A row that misses 2^-25 of its sum in every block can skip 31 blocks. When its sum doubles, it can skip
 * as much again. */
static void test_total(void)
{
    struct softmax_row state = {.sum = 1};
    struct attend_rows rows = {.n = 1, .state = &state};
    float weights = 0x1p-25f;
    size_t first;

    for (size_t i = 0; i < 100; i++)
        (void) rows_needing_values(&rows, 0, 1, &weights, &first);
    CU_ASSERT_EQUAL(rows.n_skipped, 31);
    state.sum = 2;
    for (size_t i = 0; i < 100; i++)
        (void) rows_needing_values(&rows, 0, 1, &weights, &first);
    CU_ASSERT_EQUAL(rows.n_skipped, 63);
}

/* The rows between two that need the values get them too, and have skipped nothing. */
static void test_range(void)
{
    static const float tiny = 0x1p-30f, weights[] = {tiny, tiny, 1, tiny, 1, tiny};
    struct softmax_row state[8];
    struct attend_rows rows = {.n = 8, .state = state};
    size_t first;

    for (size_t i = 0; i < 8; i++)
        state[i] = (struct softmax_row){.sum = 1};
    CU_ASSERT_EQUAL(rows_needing_values(&rows, 1, 6, weights, &first), 3);
    CU_ASSERT_EQUAL(first, 2);
    CU_ASSERT_EQUAL(rows.n_skipped, 3);
    for (size_t i = 0; i < 8; i++)
        CU_ASSERT_EQUAL(state[i].skipped, i == 1 || i == 2 || i == 6 ? tiny : 0);
    rows.all_values = true;
    CU_ASSERT_EQUAL(rows_needing_values(&rows, 1, 6, weights, &first), 6);
    CU_ASSERT_EQUAL(first, 0);
    CU_ASSERT_EQUAL(rows.n_skipped, 3);
}

/* ---- attention ---- */

enum { N_PAGES = 24, SHARES_MAX = 8 };

static struct attend_shape shape(uint32_t group, size_t n_q, enum prediction v_from, double q_size)
{
    return (struct attend_shape){.d = 64,
                                 .n_rot = 64,
                                 .group = group,
                                 .bits = -1,
                                 .n_sink = 4,
                                 .v_from = v_from,
                                 .q_size = q_size,
                                 .n_pages = N_PAGES,
                                 .n_exact = 10,
                                 .n_q = n_q,
                                 .q_first = SIZE_MAX};
}

/* Largest |v - mean| of a packed value of the scene. */
static double largest_value(const struct attend_scene *s)
{
    const struct table *t = &s->memory.table;
    size_t d = t->geometry.d;
    uint32_t head = s->layout.shard.first_head + s->args.head;
    const float *mean = table_codec(t, LAYER, head, SIDE_V)->mean;
    struct chunk_work work = {0};
    float v[CHUNK_TOKENS * GEOMETRY_DIM_MAX];
    double ret = 0;

    assert(chunk_work_init(&work, &t->geometry, s->layout.shard) == 0);
    for (size_t page = 0; page < s->args.n_pages; page++) {
        chunk_decode(&s->layout, s->args.payloads[page], LAYER, s->args.head, SIDE_V, v, d, &work);
        for (size_t n = 0; n < CHUNK_TOKENS; n++) {
            double square = 0;

            for (size_t i = 0; i < d; i++)
                square += pow((double) v[n * d + i] - (double) mean[i], 2);
            ret = fmax(ret, sqrt(square));
        }
    }
    chunk_work_deinit(&work);
    return ret;
}

/* Attends in @n_shares; @partials: their sums. */
static void attend_shares(struct attend_scene *s, const struct ops *ops, bool all_values, size_t n_shares,
                          float *partials)
{
    size_t n = attend_partial_floats(&s->layout, s->args.n_q), pages = N_PAGES / n_shares;

    s->args.all_values = all_values;
    memset(partials, 0, n_shares * n * sizeof(*partials));
    for (size_t i = 0; i < n_shares; i++) {
        memset(s->scratch.data, 0xff, attend_scratch_bytes(&s->layout, s->args.n_q)); /* NaN everywhere */
        attend_share_with(&s->args, ops, i * pages, (i + 1) * pages, i + 1 == n_shares, partials + i * n);
    }
    attend_merge_with(&s->args, ops, partials, n_shares);
}

/* Largest distance between a row of @a and the same row of @b, outputs of the scene. */
static double largest_distance(const struct attend_scene *s, const float *a, const float *b)
{
    const struct geometry *g = &s->memory.table.geometry;
    size_t group = geometry_group(g);
    double ret = 0;

    for (size_t i = 0; i < s->args.n_q * group; i++) {
        size_t at = i / group * s->args.out_stride + i % group * g->d;
        double square = 0;

        for (size_t c = 0; c < g->d; c++)
            square += pow((double) a[at + c] - (double) b[at + c], 2);
        ret = fmax(ret, sqrt(square));
    }
    return ret;
}

/*
 * A row misses less than 2^-20 of its weights. Whole numbers (gpu/cpu/decode.h) round weights up by a step
 * at most, so 64 weights by up to half of the largest one: 1.5 times 2^-20 of the largest value. The other
 * pages are added to sums that differ by this, so each of 24 sums can be rounded differently: 24 times 2^-24,
 * which is 1.5 times 2^-20 again. Returns whether any sum differs: what is skipped can be too small for that.
 */
static bool check_shares(struct attend_scene *s, const struct ops *ops, size_t n_shares)
{
    size_t n_out = s->args.n_q * s->args.out_stride, n = attend_partial_floats(&s->layout, s->args.n_q);
    float *all = calloc(n_out, sizeof(*all)), *partials = calloc(2 * SHARES_MAX * n, sizeof(*partials));
    bool differs;

    assert(all && partials);
    attend_shares(s, ops, true, n_shares, partials);
    memcpy(all, s->args.out, (n_out - 5) * sizeof(*all)); /* the last row has no padding */
    attend_shares(s, ops, false, n_shares, partials + n_shares * n);
    differs = memcmp(partials, partials + n_shares * n, n_shares * n * sizeof(*partials)) != 0;
    CU_ASSERT_TRUE(largest_distance(s, all, s->args.out) <= 3 * 0x1p-20 * largest_value(s));
    free(all);
    free(partials);
    return differs;
}

/* Rows of whole numbers, the most of these, and rows in binary32. */
static void check_attention(double q_size, bool skips)
{
    static const uint32_t groups[] = {1, 4, 3}, n_qs[] = {1, 4, 20};
    const struct ops *ops[ATTEND_SCENE_VARIANTS];
    size_t n_ops = attend_scene_variants(ops);
    bool differs[2] = {false, false}; /* of one share, of many */

    for (unsigned i = 0; i < 3; i++) {
        struct attend_shape of_scene = shape(groups[i], n_qs[i], (enum prediction) i, q_size);
        size_t rows_and_pages = (size_t) N_PAGES * groups[i] * n_qs[i];
        struct attend_scene s;

        attend_scene_init(&s, &of_scene);
        for (size_t v = 0; v < n_ops; v++) {
            size_t n;

            s.args.all_values = false;
            n = attend_skips_with(&s.args, ops[v]);
            CU_ASSERT_EQUAL(n > 0, skips);
            CU_ASSERT_TRUE(n < rows_and_pages);
            s.args.all_values = true;
            CU_ASSERT_EQUAL(attend_skips_with(&s.args, ops[v]), 0);
            differs[0] |= check_shares(&s, ops[v], 1);
            differs[1] |= check_shares(&s, ops[v], SHARES_MAX);
        }
        attend_scene_deinit(&s);
    }
    CU_ASSERT_EQUAL(differs[0], skips);
    CU_ASSERT_EQUAL(differs[1], skips);
}

/* Scores with a standard deviation of about 30: most pages have no weight beside the largest score. */
static void test_skipping(void)
{
    check_attention(30, true);
}

/* Scores of about 1: every page has a few thousandths of the weights. */
static void test_no_skipping(void)
{
    check_attention(1, false);
}

/* Bits of repeatable attention do not depend on other queries, so values are never skipped. */
static void test_repeatable(void)
{
    const struct ops *ops[ATTEND_SCENE_VARIANTS];
    size_t n_ops = attend_scene_variants(ops);
    struct attend_shape of_scene = shape(3, 2, PREDICT_HEAD, 30);
    struct attend_scene s;

    attend_scene_init(&s, &of_scene);
    s.args.repeatable = true;
    for (size_t v = 0; v < n_ops; v++)
        CU_ASSERT_EQUAL(attend_skips_with(&s.args, ops[v]), 0);
    attend_scene_deinit(&s);
}

const char test_suite[] = "attend_rows";
const struct test_case test_cases[] = {
    TEST(test_limits),      TEST(test_total),      TEST(test_range), TEST(test_skipping),
    TEST(test_no_skipping), TEST(test_repeatable), TEST_END,
};
