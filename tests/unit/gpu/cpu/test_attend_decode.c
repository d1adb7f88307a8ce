/*
 * What attention of few rows prepares from a table and a query: the matrix of K and the folded planes in
 * whole numbers, each the nearest one, and the choice of the planes that are folded, within the bound that
 * kvcobra.h states. The comparison with the oracle (attend_scene.h) cannot replace these: its tolerance is
 * wider than a step.
 */
#include "gpu/cpu/attend_decode.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/test.h"
#include "tests/unit/gpu/attend_scene.h"

/* A call of one token's rows that decode_begin() has prepared. */
struct prepared {
    struct attend_scene scene;
    struct attend_rows rows;
    struct rope_phase frame;
    struct decode decode;
    void *memory;
};

static const struct attend_shape SHAPE = {
    .d = 128, .n_rot = 128, .group = 4, .bits = -1, .n_pages = 2, .n_sink = 4, .n_q = 1, .q_first = 127};

static void carve(struct prepared *p, struct scratch_cursor *s)
{
    const struct geometry *g = p->rows.geometry;

    p->rows.q = attend_rows_take(s, p->rows.n * g->d, sizeof(float));
    p->rows.acc = attend_rows_take(s, p->rows.n * p->rows.acc_cols, sizeof(float));
    p->rows.state = attend_rows_take(s, p->rows.n, sizeof(struct softmax_row));
    decode_carve(&p->decode, s, &p->scene.layout, p->rows.n);
}

static void prepare(struct prepared *p, const struct attend_shape *shape, const struct ops *ops)
{
    const struct attend_args *a = &p->scene.args;
    struct scratch_cursor s = {0};
    size_t bytes;

    memset(p, 0, sizeof(*p));
    attend_scene_init(&p->scene, shape);
    p->rows = (struct attend_rows){.geometry = &p->scene.memory.table.geometry,
                                   .n = shape->group,
                                   .group = shape->group,
                                   .first = a->q_first,
                                   .acc_cols = shape->d + p->scene.layout.r_in_max};
    carve(p, &s);
    bytes = (s.bytes + 63) & ~(size_t) 63;
    p->memory = aligned_alloc(64, bytes);
    assert(p->memory);
    memset(p->memory, 0, bytes);
    s = (struct scratch_cursor){.base = p->memory};
    carve(p, &s);
    rows_load(&p->rows, a->q, a->q_stride, (double) a->q_first);
    rope_phase_at(p->rows.geometry, (double) a->q_first, &p->frame);
    p->decode.ops = ops;
    p->decode.args = a;
    p->decode.rows = &p->rows;
    p->decode.head = (struct head_view){.table = &p->scene.memory.table,
                                        .layer = LAYER,
                                        .head = HEAD,
                                        .k = table_codec(&p->scene.memory.table, LAYER, HEAD, SIDE_K),
                                        .v = table_codec(&p->scene.memory.table, LAYER, HEAD, SIDE_V)};
    decode_begin(&p->decode, 0, &p->frame);
}

static void release(struct prepared *p)
{
    free(p->memory);
    attend_scene_deinit(&p->scene);
}

/* Calls @check with the prepared call of every variant that has the loops. */
static void each(const struct attend_shape *shape, void (*check)(struct prepared *p))
{
    const struct ops *ops[ATTEND_SCENE_VARIANTS];
    size_t n = attend_scene_variants(ops), n_checked = 0;

    for (size_t i = 0; i < n; i++) {
        struct prepared p;

        if (!ops[i]->decode)
            continue;
        test_rand_restart();
        prepare(&p, shape, ops[i]);
        check(&p);
        release(&p);
        n_checked++;
    }
    if (n_checked == 0)
        test_skip("this machine has no variant with the loops of decode.h");
}

/* The nearest whole number errs by half a step, and by the rounding of a product in binary32; fold_nearest()
 * adds 2^16 in binary32, which rounds to 2^-8 of a step. */
static bool is_nearest(double whole, double step, double x)
{
    return fabs(whole * step - x) <= step / 2 * (1 + 0x1p-6) + fabs(x) * 4 * FLT_EPSILON;
}

/* Row @row of @keys, in columns @first .. of half-tile @half; returns how many numbers are wrong. */
static size_t wrong_in_row(const struct prepared *p, const struct key_rows *keys, size_t row, size_t dim,
                           size_t half, bool wide, size_t first, size_t n_cols)
{
    const struct codec *k = p->decode.head.k;
    double unit = p->scene.layout.constants->levels[SIDE_K][k->bits[half]].unit;
    size_t n_wrong = 0;

    for (size_t c = 0; c < 8; c++) {
        double x = k->dec[dim * k->r_in + 8 * half + c] * unit;

        if (wide)
            n_wrong += !is_nearest(keys->wide[row * n_cols + first + c], keys->wide_step[row], x);
        else
            n_wrong += !is_nearest(keys->narrow[row * n_cols + first + c], keys->narrow_step[row], x);
    }
    return n_wrong;
}

/* Rows of each block have the columns of this block alone, in the order of half-tiles, wide ones apart. */
static void check_keys(struct prepared *p)
{
    const struct decode *d = &p->decode;
    const struct codec *k = d->head.k;
    size_t n_half[2][2] = {{0}}, n_wrong = 0,
           n_planes[2] = {d->keys.n_planes, 0}; /* by block; wide or narrow */

    if (k->fast_planes > 0)
        n_planes[1] = d->fast_keys.n_planes;
    CU_ASSERT_TRUE_FATAL(d->keys.n_planes > 0 && d->k.n_wide > 0 && d->k.n_narrow > 0);
    CU_ASSERT_EQUAL(n_planes[1], k->fast_planes);
    CU_ASSERT_EQUAL(n_planes[0] + n_planes[1], d->n_fast);
    for (size_t half = 0; half < d->k.n_wide + d->k.n_narrow; half++)
        n_half[codec_half_is_fast(k, half)][half >= d->k.n_wide]++;
    for (unsigned fast = 0; fast < 2; fast++)
        for (size_t row = 0; row < 2 * n_planes[fast]; row++) {
            size_t plane = row / 2 + (fast ? 0 : n_planes[1]), at[2] = {0};

            for (size_t half = 0; half < d->k.n_wide + d->k.n_narrow; half++) {
                bool narrow = half >= d->k.n_wide;

                if (codec_half_is_fast(k, half) != fast)
                    continue;
                n_wrong += wrong_in_row(p, fast ? &d->fast_keys : &d->keys, row,
                                        plane_dim(p->rows.geometry, plane, row % 2), half, !narrow,
                                        at[narrow], 8 * n_half[fast][narrow]);
                at[narrow] += 8;
            }
        }
    CU_ASSERT_EQUAL(n_wrong, 0);
}

static void test_keys_are_the_nearest_whole_numbers(void)
{
    struct attend_shape blocks = SHAPE;

    each(&SHAPE, check_keys);
    blocks.fast_planes = 12;
    each(&blocks, check_keys);
}

static void check_folded(struct prepared *p)
{
    const struct fold *f = &p->decode.fold;
    size_t n = f->finest.n, cols = f->finest.cols, n_wrong = 0;

    CU_ASSERT_TRUE_FATAL(n > 0 && cols > 0);
    for (size_t i = 0; i < n; i++)
        for (size_t c = 0; c < cols; c++) {
            double step = f->finest.step[c] * 32767.0; /* .step is that of a product with a rotation */
            const int16_t *pair = f->finest.pairs + (i * cols + c) * 2;

            n_wrong += !is_nearest(pair[0], step, f->planes[i * f->cols + c]) ||
                       !is_nearest(pair[1], step, f->planes[(n + i) * f->cols + c]);
        }
    CU_ASSERT_EQUAL(n_wrong, 0);
}

static void test_folded_planes_are_the_nearest_whole_numbers(void)
{
    struct attend_shape blocks = SHAPE;

    each(&SHAPE, check_folded);
    blocks.fast_planes = 30; /* more than would be formed with one block */
    each(&blocks, check_folded);
}

/* kvcobra.h promises that folding changes a score by 2^-11 of the size of the row's scores, at most. Queries
 * of this size are typical: larger ones are limited by their absolute error. */
static void test_folding_stays_within_its_bound(void)
{
    struct attend_shape shape = SHAPE;
    const struct ops *ops[ATTEND_SCENE_VARIANTS];
    size_t n = attend_scene_variants(ops);

    for (size_t i = 0; i < 6 * n; i++) {
        struct attend_folding folding;
        struct attend_scene s;

        shape.q_size = ldexp(1, (int) (i / n) - 3);
        attend_scene_init(&s, &shape);
        attend_folding_with(&s.args, ops[i % n], &folding);
        CU_ASSERT_EQUAL(folding.planes, shape.d / 2);
        if (ops[i % n]->decode) {
            CU_ASSERT_TRUE(folding.formed < folding.planes || shape.q_size > 1);
            CU_ASSERT_EQUAL(folding.bound > 0, folding.formed < folding.planes);
            CU_ASSERT_TRUE(folding.bound <= 0x1p-11 * (1 + 0x1p-10));
        } else {
            CU_ASSERT_EQUAL(folding.formed, folding.planes);
            CU_ASSERT_EQUAL(folding.bound, 0);
        }
        s.args.exact_rope = true;
        attend_folding_with(&s.args, ops[i % n], &folding);
        CU_ASSERT_EQUAL(folding.formed, folding.planes);
        CU_ASSERT_EQUAL(folding.bound, 0);
        attend_scene_deinit(&s);
    }
}

/* The bound holds for a score's absolute error too: 2^-10, however large the scores are. */
static void test_folding_of_large_queries(void)
{
    struct attend_shape shape = SHAPE;
    const struct ops *ops[ATTEND_SCENE_VARIANTS];
    size_t n = attend_scene_variants(ops), few = 0, many = 0;

    for (size_t i = 0; i < n; i++) {
        struct attend_folding small, large;
        struct attend_scene s;

        if (!ops[i]->decode)
            continue;
        attend_scene_init(&s, &shape);
        attend_folding_with(&s.args, ops[i], &small);
        for (size_t x = 0; x < shape.group * shape.d; x++)
            ((float *) s.q.data)[x] *= 4096;
        attend_folding_with(&s.args, ops[i], &large);
        few += small.formed;
        many += large.formed;
        CU_ASSERT_TRUE(large.bound < small.bound);
        attend_scene_deinit(&s);
    }
    CU_ASSERT_TRUE(many > few || n == 0);
}

const char test_suite[] = "attend_decode";
const struct test_case test_cases[] = {
    TEST(test_keys_are_the_nearest_whole_numbers),
    TEST(test_folded_planes_are_the_nearest_whole_numbers),
    TEST(test_folding_stays_within_its_bound),
    TEST(test_folding_of_large_queries),
    TEST_END,
};
