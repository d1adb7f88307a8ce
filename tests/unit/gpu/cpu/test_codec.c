/* gpu/cpu/codec.c: codes and vectors of small codecs worked by hand; then random codecs against the
 * formulas of alloc/table/table.h in binary64. */
#include "gpu/codec.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/table/levels.h"
#include "tests/lib/test.h"
#include "tests/unit/gpu/one_head_codec.h"
#include "tests/unit/gpu/memory_table.h"

enum { D = 32, R = 16 };

/* ---- worked by hand ---- */

/*
 * One head, d = 32.
 *
 *     K: the encoder's mean is 1 everywhere, the decoder's 1.5. One half-tile of 2 bits reads dimensions 0..7
 *        at half scale, one is empty. Levels -3 -1 1 3 with step 0.5: thresholds -1, 0, 1 in units of z.
 *     V: mean 0, the same codec of dimensions 8..15. From its coordinate 0 the encoder subtracts K's level 0;
 *        the decoder adds twice that level to dimension 8, as if P were 2.
 */
struct by_hand {
    struct table table;
    struct codec codecs[2];
    float mean_k[D], mean_v[D], enc_k[R * D], enc_v[R * D], dec_k[D * R], dec_v[D * 2 * R];
    float enc_mean_k[D], enc_pred[R * R];
};

static void by_hand_init(struct by_hand *h)
{
    static const struct levels levels = {
        .value = {-3, -1, 1, 3},
        .threshold = {-1, 0, 1},
        .value_i8 = {-3, -1, 1, 3},
        .step = 0.5f,
    };

    *h = (struct by_hand){.table.geometry = memory_table_geometry(1, 1, 1, D, 0),
                          .table.v_from = PREDICT_HEAD};
    for (int side = SIDE_K; side <= SIDE_V; side++)
        h->table.levels[side][2] = levels;
    for (int i = 0; i < D; i++) {
        h->enc_mean_k[i] = 1;
        h->mean_k[i] = 1.5f;
    }
    for (int i = 0; i < 8; i++) {
        h->enc_k[i * D + i] = 0.5f; /* z = (x - 1) / 2 */
        h->dec_k[i * R + i] = 1;    /* x^ = 1 + level: 2 z with the step 0.5 folded in */
        h->enc_v[i * D + 8 + i] = 0.5f;
        h->dec_v[(8 + i) * 2 * R + R + i] = 1;
    }
    h->dec_v[8 * 2 * R] = 2;
    h->enc_pred[0] = 1;
    h->codecs[SIDE_K] = (struct codec){
        .n_half = 2,
        .r = R,
        .r_in = R,
        .code_bits = 16,
        .bits = {2},
        .enc_mean = h->enc_mean_k,
        .enc = h->enc_k,
        .mean = h->mean_k,
        .dec = h->dec_k,
    };
    h->codecs[SIDE_V] = (struct codec){
        .n_half = 2,
        .r = R,
        .n_pred = R,
        .r_in = 2 * R,
        .code_bits = 16,
        .bits = {2},
        .enc_mean = h->mean_v,
        .enc = h->enc_v,
        .enc_k = h->enc_pred,
        .mean = h->mean_v,
        .dec = h->dec_v,
    };
    h->table.codecs = h->codecs;
}

/*
 * K:  x0 = 4.2             z = 1.6                        code 3 (level 3)
 *     x1 = 1               z = 0, a tie with threshold 0  code 2, the upper one
 *     x2 = -1              z = -1, a tie                  code 1
 *     x3 = -1.5            z = -1.25                      code 0
 *     the others: 1 + 1    z = 0.5                        code 2
 * V:  x8 = 5, minus 2 * 3  z = -0.5                       code 1
 *     x9 = 0               z = 0, a tie                   code 2
 *     x10 = 9              z = 4.5                        code 3
 *     the others: -4       z = -2                         code 0
 */
static void test_codes_by_hand(void)
{
    static const uint8_t want_k[R] = {3, 2, 1, 0, 2, 2, 2, 2}, want_v[R] = {1, 2, 3, 0, 0, 0, 0, 0};
    float *scratch = malloc(codec_scratch_floats() * sizeof(*scratch)), k[D], v[D], back[2][D];
    struct encode_counts counts[2] = {{.coords = 100}, {.saturated = 7}};
    uint8_t codes[2][R];
    struct by_hand h;

    assert(scratch);
    by_hand_init(&h);
    for (int i = 0; i < D; i++) {
        k[i] = 2;
        v[i] = -4;
    }
    k[0] = 4.2f;
    k[1] = 1;
    k[2] = -1;
    k[3] = -1.5f;
    v[8] = 5;
    v[9] = 0;
    v[10] = 9;
    CU_ASSERT_EQUAL(
        one_head_encode(head_view(&h.table, 0, 0), k, v, D, 1, codes[0], codes[1], counts, scratch), 0);
    CU_ASSERT_EQUAL(memcmp(codes[0], want_k, R), 0);
    CU_ASSERT_EQUAL(memcmp(codes[1], want_v, R), 0);

    /* Counts are added. The outermost levels are +-1.5, the thresholds +-1: beyond +-2 a coordinate is
     * saturated, which is only 4.5. */
    CU_ASSERT_EQUAL(counts[SIDE_K].coords, 108);
    CU_ASSERT_EQUAL(counts[SIDE_K].saturated, 0);
    CU_ASSERT_EQUAL(counts[SIDE_V].coords, 8);
    CU_ASSERT_EQUAL(counts[SIDE_V].saturated, 8);

    one_head_decode(head_view(&h.table, 0, 0), codes[0], codes[1], 1, back[0], back[1], D, scratch);
    CU_ASSERT_EQUAL(back[0][0], 4.5f);  /* 1.5 + 3 */
    CU_ASSERT_EQUAL(back[0][1], 2.5f);  /* 1.5 + 1 */
    CU_ASSERT_EQUAL(back[0][2], 0.5f);  /* 1.5 - 1 */
    CU_ASSERT_EQUAL(back[0][3], -1.5f); /* 1.5 - 3 */
    CU_ASSERT_EQUAL(back[0][8], 1.5f);  /* no code reads it: the mean */
    CU_ASSERT_EQUAL(back[1][8], 5);     /* 2 * 3 - 1 */
    CU_ASSERT_EQUAL(back[1][9], 1);
    CU_ASSERT_EQUAL(back[1][10], 3);
    CU_ASSERT_EQUAL(back[1][11], -3);
    CU_ASSERT_EQUAL(back[1][0], 0);
    free(scratch);
}

/* ---- random codecs ---- */

struct run {
    struct memory_table memory;
    struct head_view head;
    size_t n, stride;
    float *k, *v, *back_k, *back_v, *scratch; /* of head 1 */
    uint8_t *codes_k, *codes_v, *codes_other; /* codes_other: K of head 0 */
    const uint8_t *keys[2];                   /* by head */
    struct encode_counts counts[2];
};

static void *need(size_t bytes)
{
    void *p = calloc(1, bytes + 1);

    assert(p);
    return p;
}

static void run_init(struct run *r, uint32_t d, int bits, enum prediction v_from, size_t n)
{
    struct memory_table_options o = {
        .geometry = memory_table_geometry(1, 2, 2, d, d),
        .bits = bits,
        .v_from = v_from,
    };

    *r = (struct run){.n = n, .stride = d + 7};
    memory_table_init(&r->memory, &o);
    r->head = head_view(&r->memory.table, 0, 1);
    r->k = need(n * r->stride * sizeof(float));
    r->v = need(n * r->stride * sizeof(float));
    r->back_k = need(n * r->stride * sizeof(float));
    r->back_v = need(n * r->stride * sizeof(float));
    r->scratch = need(codec_scratch_floats() * sizeof(float));
    r->codes_k = need(n * r->head.k->r);
    r->codes_v = need(n * r->head.v->r);
    r->keys[0] = r->codes_other = need(n * r->memory.codecs[0].r);
    r->keys[1] = r->codes_k;
    for (size_t i = 0; i < n * r->memory.codecs[0].r; i++)
        r->codes_other[i] =
            (uint8_t) test_rand_below(1u << r->memory.codecs[0].bits[i % r->memory.codecs[0].r / 8]);
    for (size_t i = 0; i < n * r->stride; i++) {
        r->k[i] = (float) test_rand_normal();
        r->v[i] = (float) test_rand_normal();
    }
}

static void run_deinit(struct run *r)
{
    free(r->k);
    free(r->v);
    free(r->back_k);
    free(r->back_v);
    free(r->scratch);
    free(r->codes_k);
    free(r->codes_v);
    free(r->codes_other);
    memory_table_deinit(&r->memory);
}

static double level(const struct run *r, enum side side, const struct codec *c, const uint8_t *codes,
                    size_t i)
{
    unsigned b = c->bits[i / 8];

    return b == 0 ? 0 : (double) r->memory.table.levels[side][b].value[codes[i]];
}

/* Level of column @j of [c ; c_V] of token @t, with c of as many heads as the table demands. */
static double input(const struct run *r, size_t t, size_t j)
{
    struct head_run run = table_predictors(&r->memory.table, r->head.head);

    for (uint32_t h = run.first; h < run.first + run.n; h++) {
        const struct codec *k = table_codec(&r->memory.table, 0, h, SIDE_K);

        if (j < k->r)
            return level(r, SIDE_K, k, r->keys[h] + t * k->r, j);
        j -= k->r;
    }
    return level(r, SIDE_V, r->head.v, r->codes_v + t * r->head.v->r, j);
}

/* dec c, or dec [c ; c_V], of token @t at dimension @i. */
static double decoded(const struct run *r, enum side side, size_t t, size_t i)
{
    const struct codec *c = side == SIDE_K ? r->head.k : r->head.v;
    double sum = 0;

    for (size_t j = 0; j < c->r_in; j++)
        sum += (double) c->dec[i * c->r_in + j] *
               (side == SIDE_K ? level(r, SIDE_K, c, r->codes_k + t * c->r, j) : input(r, t, j));
    return sum;
}

/*
 * z of each coordinate in binary64. The code must be that of z moved by at most the rounding of its sum: d
 * products of size |enc| |x|, each rounded by 2^-24 of the partial sum; with prediction n_pred more. Sizes
 * here are below 16, so the bound is (d + n_pred) 2^-24 16: below 1e-3 for d = 256, where cells are at
 * least 0.01 wide.
 */
static void check_codes(const struct run *r, enum side side)
{
    const struct codec *c = side == SIDE_K ? r->head.k : r->head.v;
    const float *x = side == SIDE_K ? r->k : r->v;
    const uint8_t *codes = side == SIDE_K ? r->codes_k : r->codes_v;
    size_t d = r->memory.table.geometry.d;
    double slack = (double) (d + c->n_pred) * 16 * 0x1p-24, u[GEOMETRY_DIM_MAX];

    for (size_t t = 0; t < r->n; t++) {
        for (size_t i = 0; i < d; i++)
            u[i] = (double) x[t * r->stride + i] - (double) c->enc_mean[i];
        for (size_t j = 0; j < c->r; j++) {
            unsigned b = c->bits[j / 8], code = codes[t * c->r + j];
            const struct levels *l = &r->memory.table.levels[side][b];
            double z = 0;

            for (size_t i = 0; i < d; i++)
                z += (double) c->enc[j * d + i] * u[i];
            for (size_t i = 0; i < c->n_pred; i++)
                z -= (double) c->enc_k[j * c->n_pred + i] * input(r, t, i);
            if (b == 0) {
                CU_ASSERT_EQUAL(code, 0);
                continue;
            }
            CU_ASSERT_TRUE(code < 1u << b);
            CU_ASSERT_TRUE(code >= levels_quantise(l, b, (float) (z - slack)));
            CU_ASSERT_TRUE(code <= levels_quantise(l, b, (float) (z + slack)));
        }
    }
}

/* Sums of up to 512 products of a few units: 1e-4 is a hundred times their
 * roundings and a thousandth of a cell. */
static void check_vectors(const struct run *r)
{
    size_t d = r->memory.table.geometry.d;

    for (size_t t = 0; t < r->n; t++)
        for (size_t i = 0; i < d; i++) {
            double k = (double) r->head.k->mean[i] + decoded(r, SIDE_K, t, i);
            double v = (double) r->head.v->mean[i] + decoded(r, SIDE_V, t, i);

            CU_ASSERT_DOUBLE_EQUAL((double) r->back_k[t * r->stride + i], k, 1e-4);
            CU_ASSERT_DOUBLE_EQUAL((double) r->back_v[t * r->stride + i], v, 1e-4);
        }
}

static void check(uint32_t d, int bits, enum prediction v_from, size_t n)
{
    struct run r;

    run_init(&r, d, bits, v_from, n);
    r.codes_k[n * r.head.k->r] = r.codes_v[n * r.head.v->r] = 0xee; /* one beyond the end */
    CU_ASSERT_EQUAL(codec_encode_keys(r.head, r.k, r.stride, n, r.codes_k, &r.counts[SIDE_K], r.scratch), 0);
    CU_ASSERT_EQUAL(
        codec_encode_values(r.head, r.v, r.stride, n, r.keys, r.codes_v, &r.counts[SIDE_V], r.scratch), 0);
    CU_ASSERT_EQUAL(r.codes_k[n * r.head.k->r], 0xee);
    CU_ASSERT_EQUAL(r.codes_v[n * r.head.v->r], 0xee);
    check_codes(&r, SIDE_K);
    check_codes(&r, SIDE_V);
    codec_decode_keys(r.head, r.codes_k, n, r.back_k, r.stride, r.scratch);
    codec_decode_values(r.head, r.keys, r.codes_v, n, r.back_v, r.stride, r.scratch);
    check_vectors(&r);
    run_deinit(&r);
}

static void test_dimensions(void)
{
    static const uint32_t dims[] = {32, 34, 64, 80, 128, 256};

    for (size_t i = 0; i < sizeof(dims) / sizeof(dims[0]); i++)
        for (int v_from = PREDICT_NONE; v_from <= PREDICT_LAYER; v_from++)
            check(dims[i], -1, (enum prediction) v_from, 21);
}

static void test_every_width(void)
{
    for (int bits = 0; bits <= 8; bits++)
        check(64, bits, PREDICT_HEAD, 5);
}

static void test_token_counts(void)
{
    static const size_t counts[] = {0, 1, 15, 16, 17, 64};

    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++)
        check(32, -1, PREDICT_LAYER, counts[i]);
}

/* The codes of a token do not depend on the other tokens of the call: published pages do not depend on how
 * a prompt was divided. */
static void test_codes_do_not_depend_on_neighbours(void)
{
    struct run r;

    run_init(&r, 64, -1, PREDICT_HEAD, 40);
    CU_ASSERT_EQUAL(
        one_head_encode(r.head, r.k, r.v, r.stride, 40, r.codes_k, r.codes_v, r.counts, r.scratch), 0);
    for (size_t t = 0; t < 40; t++) {
        uint8_t k[TABLE_RANK_MAX], v[TABLE_RANK_MAX];

        CU_ASSERT_EQUAL(one_head_encode(r.head, r.k + t * r.stride, r.v + t * r.stride, r.stride, 1, k, v,
                                        r.counts, r.scratch),
                        0);
        CU_ASSERT_EQUAL(memcmp(k, r.codes_k + t * r.head.k->r, r.head.k->r), 0);
        CU_ASSERT_EQUAL(memcmp(v, r.codes_v + t * r.head.v->r, r.head.v->r), 0);
    }
    run_deinit(&r);
}

static void test_one_side_only(void)
{
    struct run r;

    run_init(&r, 64, -1, PREDICT_NONE, 20);
    CU_ASSERT_EQUAL(
        one_head_encode(r.head, r.k, r.v, r.stride, 20, r.codes_k, r.codes_v, r.counts, r.scratch), 0);
    one_head_decode(r.head, r.codes_k, r.codes_v, 20, r.back_k, r.back_v, r.stride, r.scratch);
    one_head_decode(r.head, NULL, r.codes_v, 20, NULL, r.v, r.stride, r.scratch);
    one_head_decode(r.head, r.codes_k, NULL, 20, r.k, NULL, r.stride, r.scratch);
    for (size_t t = 0; t < 20; t++) {
        CU_ASSERT_EQUAL(memcmp(r.k + t * r.stride, r.back_k + t * r.stride, 64 * sizeof(float)), 0);
        CU_ASSERT_EQUAL(memcmp(r.v + t * r.stride, r.back_v + t * r.stride, 64 * sizeof(float)), 0);
    }
    run_deinit(&r);
}

static void test_not_finite(void)
{
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    struct run r;

    run_init(&r, 32, 4, PREDICT_HEAD, 20);
    for (size_t i = 0; i < 3; i++)
        for (size_t side = 0; side < 2; side++) {
            float *at = (side == SIDE_K ? r.k : r.v) + 19 * r.stride + 31, saved = *at;

            *at = bad[i];
            CU_ASSERT_EQUAL(
                one_head_encode(r.head, r.k, r.v, r.stride, 20, r.codes_k, r.codes_v, r.counts, r.scratch),
                -EINVAL);
            *at = saved;
        }
    CU_ASSERT_EQUAL(
        one_head_encode(r.head, r.k, r.v, r.stride, 20, r.codes_k, r.codes_v, r.counts, r.scratch), 0);
    r.k[0] = 3e38f; /* any finite number is a valid value */
    r.v[0] = -3e38f;
    CU_ASSERT_EQUAL(
        one_head_encode(r.head, r.k, r.v, r.stride, 20, r.codes_k, r.codes_v, r.counts, r.scratch), 0);
    run_deinit(&r);
}

/* A coordinate is saturated beyond the outermost threshold by more than twice the way to the outermost
 * level. */
static void test_saturation_limits(void)
{
    struct levels l = {.step = 0.5f, .value = {-6, -1, 2, 8}, .threshold = {-2, 0.25f, 3}};
    float low, high;

    levels_saturation_limits(&l, 2, &low, &high);
    CU_ASSERT_EQUAL(low, -4); /* level -3, threshold -2 */
    CU_ASSERT_EQUAL(high, 5); /* level 4, threshold 3 */

    l = (struct levels){.step = 2, .value = {-1, 1}, .threshold = {0.5f}};
    levels_saturation_limits(&l, 1, &low, &high);
    CU_ASSERT_EQUAL(low, -4.5f);
    CU_ASSERT_EQUAL(high, 3.5f);
}

const char test_suite[] = "codec";
const struct test_case test_cases[] = {
    TEST(test_codes_by_hand),
    TEST(test_dimensions),
    TEST(test_every_width),
    TEST(test_token_counts),
    TEST(test_codes_do_not_depend_on_neighbours),
    TEST(test_one_side_only),
    TEST(test_not_finite),
    TEST(test_saturation_limits),
    TEST_END,
};
