/*
 * The loops of gpu/cpu/decode.h one by one, on given whole numbers, against sums in binary64 over codes
 * read one at a time (half_tile_get()). No number is rounded to whole numbers in between, so results have
 * the accuracy of binary32: sums of whole numbers below 2^24 are exact, a few operations on them err by
 * 2^-22 of their size.
 */
#include "gpu/cpu/decode.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/quantiser/levels_normal.h"
#include "gpu/half_tile.h"
#include "tests/lib/random_book.h"
#include "tests/lib/test.h"
#include "tests/unit/gpu/cpu/decode_variants.h"
#include "tests/unit/gpu/attend_scene.h"

enum { HALVES = 11, COLS = 8 * HALVES, ROWS = 7 };

static const double EPSILON = 0x1p-22;

/* Half-tiles of a page with random codes, of widths from @widest down, and the results of the loops. */
struct page {
    struct level_table levels[TABLE_BITS_MAX + 1];
    uint8_t bits[HALVES], bytes[HALVES * 512 + 1];
    struct coded coded;
    _Alignas(64) int16_t wide[COLS * CHUNK_TOKENS];
    _Alignas(64) uint8_t narrow[COLS * CHUNK_TOKENS];
    struct key_codes codes;
};

static void page_init(struct page *p, unsigned widest, unsigned state_bits)
{
    *p = (struct page){.coded = {.at = p->bytes + 1, .bits = p->bits, .levels = p->levels}};
    for (unsigned b = 1; b <= TABLE_BITS_MAX; b++) {
        struct levels l;

        if (state_bits > 0 && b <= TRELLIS_BITS_MAX)
            random_book(state_bits, &l);
        else
            assert(levels_normal(QUANT_LLOYD_MAX, b, &l) == 0);
        page_level_table_init(&p->levels[b], &l, b);
    }
    for (unsigned half = 0; half < HALVES; half++) {
        unsigned b = widest > half / 2 ? widest - half / 2 : 1;

        p->bits[half] = (uint8_t) b;
        if (b > 4)
            p->coded.n_wide++;
        else
            p->coded.n_narrow++;
    }
    for (size_t i = 0; i < sizeof(p->bytes); i++)
        p->bytes[i] = (uint8_t) test_rand();
    p->codes.wide = p->wide;
    p->codes.narrow = p->narrow;
}

/* The level of a coordinate as a whole number. */
static int level(const struct page *p, enum side side, unsigned token, unsigned col)
{
    const uint8_t *at = p->coded.at;
    unsigned b = p->bits[col / 8];

    for (unsigned half = 0; half < col / 8; half++)
        at += 64 * p->bits[half];
    return p->levels[b].value[random_book_index(
        &(struct levels){.state_bits = (uint8_t) p->levels[b].state_bits}, at, b, side, token, col % 8)];
}

static size_t wide_cols(const struct page *p)
{
    return 8 * p->coded.n_wide;
}

/* Calls @check with a page of each widest width, with scalar levels and trellises, for each variant. */
static void each(void (*check)(const struct decode_ops *ops, struct page *p))
{
    struct page *p = aligned_alloc(64, (sizeof(*p) + 63) / 64 * 64);

    assert(p);
    for (size_t i = 0; i < N_VARIANTS; i++)
        for (unsigned j = 0; variant(i) && j < 4 * TABLE_BITS_MAX; j++) {
            static const unsigned state_bits[] = {0, 6, 7, 8};

            page_init(p, j / 4 + 1, state_bits[j % 4]);
            variant(i)->unpack_keys(&p->coded, &p->codes);
            check(variant(i), p);
        }
    free(p);
}

static void check_unpack(const struct decode_ops *ops, struct page *p)
{
    unsigned wrong = 0;

    (void) ops;
    for (unsigned token = 0; token < CHUNK_TOKENS; token++)
        for (unsigned col = 0; col < COLS; col++) {
            size_t at = col - wide_cols(p);

            if (col < wide_cols(p))
                wrong +=
                    p->wide[(col / 2 * CHUNK_TOKENS + token) * 2 + col % 2] != level(p, SIDE_K, token, col);
            else
                wrong += p->narrow[(at / 4 * CHUNK_TOKENS + token) * 4 + at % 4] !=
                         level(p, SIDE_K, token, col) + 128;
        }
    CU_ASSERT_EQUAL(wrong, 0);
}

static void test_unpack(void)
{
    each(check_unpack);
}

static int random_whole(int largest)
{
    return (int) test_rand_below((uint32_t) (2 * largest + 1)) - largest;
}

/* Eleven planes, the last of them without rotation. */
enum { PLANES = 11, ROTATED = 10, KT_PLANES = 13 }; /* kt has room for planes of another block */

struct dec {
    int16_t wide[2 * PLANES * COLS];
    int8_t narrow[2 * PLANES * COLS];
    int32_t start[2 * PLANES];
    float wide_step[2 * PLANES], narrow_step[2 * PLANES], mean[2 * PLANES];
    float cos[ROTATED * CHUNK_TOKENS], sin[ROTATED * CHUNK_TOKENS];
};

static struct key_rows fill_dec(const struct decode_ops *ops, const struct page *p, struct dec *d)
{
    size_t n_wide = wide_cols(p), n_narrow = COLS - n_wide;

    *d = (struct dec){0};
    for (size_t i = 0; i < 2 * PLANES * n_wide; i++)
        d->wide[i] = (int16_t) random_whole(WIDE_MAX);
    for (size_t i = 0; i < 2 * PLANES * n_narrow; i++) { /* some rows have the largest number everywhere */
        d->narrow[i] = (int8_t) (i / n_narrow % 5 == 0 ? ops->narrow_max : random_whole(ops->narrow_max));
        d->start[i / n_narrow] -= 128 * d->narrow[i];
    }
    for (size_t i = 0; i < 2 * PLANES; i++) {
        d->wide_step[i] = (float) test_rand_normal() * 0x1p-20f;
        d->narrow_step[i] = (float) test_rand_normal() * 0x1p-12f;
        d->mean[i] = (float) test_rand_normal();
    }
    for (size_t i = 0; i < ROTATED * CHUNK_TOKENS; i++) {
        double angle = 10 * test_rand_normal();

        d->cos[i] = (float) cos(angle);
        d->sin[i] = (float) sin(angle);
    }
    return (struct key_rows){
        .n_planes = PLANES,
        .n_rot = ROTATED,
        .kt_planes = KT_PLANES,
        .wide = d->wide,
        .narrow = d->narrow,
        .start = d->start,
        .wide_step = d->wide_step,
        .narrow_step = d->narrow_step,
        .mean = d->mean,
        .cos = d->cos,
        .sin = d->sin,
    };
}

static void check_keys(const struct decode_ops *ops, struct page *p)
{
    float kt[2 * KT_PLANES * CHUNK_TOKENS];
    size_t n_wide = wide_cols(p), n_narrow = COLS - n_wide;
    struct dec dec;
    struct key_rows m = fill_dec(ops, p, &dec);

    ops->keys(&p->codes, &m, kt);
    for (unsigned token = 0; token < CHUNK_TOKENS; token++)
        for (size_t plane = 0; plane < PLANES; plane++) {
            double x[2], size = 0, c = 1, s = 0;

            for (size_t hi = 0; hi < 2; hi++) {
                size_t row = 2 * plane + hi;

                x[hi] = (double) m.mean[row];
                size += fabs(x[hi]);
                for (unsigned col = 0; col < COLS; col++) {
                    double factor =
                        col < n_wide
                            ? (double) m.wide[row * n_wide + col] * (double) m.wide_step[row]
                            : (double) m.narrow[row * n_narrow + col - n_wide] * (double) m.narrow_step[row];

                    x[hi] += factor * level(p, SIDE_K, token, col);
                    size += fabs(factor * level(p, SIDE_K, token, col));
                }
            }
            if (plane < ROTATED) {
                c = (double) m.cos[plane * CHUNK_TOKENS + token];
                s = (double) m.sin[plane * CHUNK_TOKENS + token];
            }
            CU_ASSERT_DOUBLE_EQUAL((double) kt[plane * CHUNK_TOKENS + token], c * x[0] - s * x[1],
                                   EPSILON * size);
            CU_ASSERT_DOUBLE_EQUAL((double) kt[(KT_PLANES + plane) * CHUNK_TOKENS + token],
                                   c * x[1] + s * x[0], EPSILON * size);
        }
}

/* Half-tiles at places of the caller: the same bytes as in their order. */
static void check_places(const struct decode_ops *ops, struct page *p)
{
    static int16_t wide[COLS * CHUNK_TOKENS];
    static uint8_t narrow[COLS * CHUNK_TOKENS];
    size_t n_wide = p->coded.n_wide, n = 8 * CHUNK_TOKENS;
    uint8_t place[HALVES];

    memcpy(wide, p->wide, sizeof(wide));
    memcpy(narrow, p->narrow, sizeof(narrow));
    for (size_t half = 0; half < HALVES; half++)
        place[half] = (uint8_t) (half < n_wide ? n_wide - 1 - half : HALVES - 1 - half);
    p->coded.place = place;
    memset(p->wide, 0, sizeof(p->wide));
    memset(p->narrow, 0, sizeof(p->narrow));
    ops->unpack_keys(&p->coded, &p->codes);
    p->coded.place = NULL;
    for (size_t half = 0; half < n_wide; half++)
        CU_ASSERT_EQUAL(memcmp(p->wide + place[half] * n, wide + half * n, n * sizeof(*wide)), 0);
    for (size_t half = n_wide; half < HALVES; half++)
        CU_ASSERT_EQUAL(memcmp(p->narrow + place[half] * n, narrow + (half - n_wide) * n, n), 0);
}

static void test_places(void)
{
    each(check_places);
}

static void test_keys(void)
{
    each(check_keys);
}

struct ring {
    int16_t wide[FOLD_RING * ROWS * TABLE_RANK_MAX];
    int8_t narrow[FOLD_RING * ROWS * TABLE_RANK_MAX];
    int32_t start[FOLD_RING * ROWS];
    float wide_step[FOLD_RING * ROWS], narrow_step[FOLD_RING * ROWS], offset[FOLD_RING * ROWS];
};

static struct fold_codes ring_codes(struct ring *r, const struct page *p)
{
    return (struct fold_codes){
        .n_rows = ROWS,
        .n_wide = wide_cols(p),
        .n_narrow = COLS - wide_cols(p),
        .wide = r->wide,
        .narrow = r->narrow,
        .start = r->start,
        .wide_step = r->wide_step,
        .narrow_step = r->narrow_step,
        .offset = r->offset,
    };
}

/* The value of column @col in the row of a node. */
static double node(const struct fold_codes *c, size_t at, unsigned col)
{
    if (col < c->n_wide)
        return (double) c->wide[at * TABLE_RANK_MAX + col] * (double) c->wide_step[at];
    return (double) c->narrow[at * TABLE_RANK_MAX + col - c->n_wide] * (double) c->narrow_step[at];
}

static void fill_ring(const struct decode_ops *ops, const struct page *p, struct ring *r)
{
    for (size_t at = 0; at < FOLD_RING * ROWS; at++) {
        r->start[at] = 0;
        for (size_t c = 0; c < TABLE_RANK_MAX; c++) {
            r->wide[at * TABLE_RANK_MAX + c] = (int16_t) random_whole(WIDE_MAX);
            r->narrow[at * TABLE_RANK_MAX + c] = (int8_t) random_whole(ops->narrow_max);
            if (c < COLS - wide_cols(p))
                r->start[at] -= 128 * r->narrow[at * TABLE_RANK_MAX + c];
        }
        r->wide_step[at] = (float) test_rand_normal() * 0x1p-20f;
        r->narrow_step[at] = (float) test_rand_normal() * 0x1p-12f;
        r->offset[at] = (float) test_rand_normal();
    }
}

/* Rows 1 .. 6 of seven, the ring wrapping around. */
static void check_fold(const struct decode_ops *ops, struct page *p)
{
    enum { FIRST_NODE = 13, FIRST_ROW = 1, N = 6 };
    struct ring *r = malloc(sizeof(*r));
    float basis[FOLD_NODES][FOLD_SPACING], scores[N * CHUNK_TOKENS], before[N * CHUNK_TOKENS];
    struct fold_codes c;

    assert(r);
    fill_ring(ops, p, r);
    c = ring_codes(r, p);
    for (size_t i = 0; i < FOLD_NODES * FOLD_SPACING; i++)
        basis[i / FOLD_SPACING][i % FOLD_SPACING] = (float) test_rand_normal();
    for (size_t i = 0; i < N * CHUNK_TOKENS; i++)
        before[i] = scores[i] = (float) test_rand_normal();
    ops->fold(&p->codes, &c, FIRST_NODE, FIRST_ROW, N, (const float(*)[FOLD_SPACING]) basis, scores);
    for (unsigned token = 0; token < CHUNK_TOKENS; token++)
        for (size_t row = 0; row < N; row++) {
            double sum = (double) before[row * CHUNK_TOKENS + token], size = fabs(sum);

            for (size_t j = 0; j < FOLD_NODES; j++) {
                size_t at = (FIRST_NODE + token / 16 + j) % FOLD_RING * ROWS + FIRST_ROW + row;
                double weight = (double) basis[j][token % 16], part = (double) r->offset[at],
                       large = fabs(part);

                for (unsigned col = 0; col < COLS; col++) {
                    part += node(&c, at, col) * level(p, SIDE_K, token, col);
                    large += fabs(node(&c, at, col) * level(p, SIDE_K, token, col));
                }
                sum += weight * part;
                size += fabs(weight) * large;
            }
            CU_ASSERT_DOUBLE_EQUAL((double) scores[row * CHUNK_TOKENS + token], sum, EPSILON * size);
        }
    free(r);
}

static void test_fold(void)
{
    each(check_fold);
}

/* Nodes are rounded to whole numbers here: to half a step, where a step is the
 * largest / narrow_max or / WIDE_MAX. */
static void check_nodes(const struct decode_ops *ops, struct page *p)
{
    enum { N = 5, SLOT = 8, R = 96 }; /* rows have space for more columns than have levels */
    struct ring *r = calloc(1, sizeof(*r));
    int16_t pairs[N * ROWS * R * 2], rotations[FOLD_RATIO * N * 2];
    uint32_t both[FOLD_RATIO * N];
    float step[ROWS * R], above[FOLD_NODES][ROWS * R], weights[FOLD_RATIO][FOLD_NODES];
    struct fold_codes c = ring_codes(r, p);
    struct fold_planes planes = {
        .n = N,
        .cols = ROWS * R,
        .pairs = pairs,
        .step = step,
        .rotations = both,
        .weights = (const float(*)[FOLD_NODES]) weights,
    };

    assert(r);
    for (size_t i = 0; i < N * ROWS * R * 2; i++)
        pairs[i] = (int16_t) random_whole(PAIRS_MAX / (2 * N));
    for (size_t i = 0; i < FOLD_RATIO * N * 2; i++)
        rotations[i] = (int16_t) random_whole(32767);
    memcpy(both, rotations, sizeof(both));
    for (size_t i = 0; i < FOLD_NODES * ROWS * R; i++)
        above[i / (ROWS * R)][i % (ROWS * R)] = (float) test_rand_normal();
    for (size_t i = 0; i < ROWS * R; i++)
        step[i] = 0x1p-28f * (float) (1 + test_rand_below(9));
    for (size_t i = 0; i < FOLD_RATIO * FOLD_NODES; i++)
        weights[i / FOLD_NODES][i % FOLD_NODES] = (float) test_rand_normal();
    for (size_t k = 0; k < FOLD_NODES; k++)
        planes.above[k] = above[k];
    ops->nodes(&planes, &c, SLOT);
    for (size_t j = 0; j < FOLD_RATIO; j++)
        for (size_t row = 0; row < ROWS; row++) {
            size_t at = (SLOT + j) * ROWS + row;
            int32_t start = 0;

            for (unsigned col = 0; col < COLS; col++) {
                double sum = 0, half = (double) (col < c.n_wide ? c.wide_step[at] : c.narrow_step[at]) / 2;

                for (size_t i = 0; i < N; i++)
                    for (size_t h = 0; h < 2; h++)
                        sum += (double) pairs[(i * ROWS * R + row * R + col) * 2 + h] *
                               (double) rotations[(j * N + i) * 2 + h] * (double) step[row * R + col];
                for (size_t k = 0; k < FOLD_NODES; k++)
                    sum += (double) weights[j][k] * (double) above[k][row * R + col];
                CU_ASSERT_DOUBLE_EQUAL(node(&c, at, col), sum, half * 1.001);
                start -= col < c.n_wide ? 0 : 128 * c.narrow[at * TABLE_RANK_MAX + col - c.n_wide];
            }
            CU_ASSERT_EQUAL(c.start[at], start);
        }
    free(r);
}

static void test_nodes(void)
{
    each(check_nodes);
}

/* Weights worked by hand: softmax() makes the loops' orders of them from scores whose exp are whole steps. */
static void make_weights(const struct decode_ops *ops, int whole[ROWS][CHUNK_TOKENS], struct row_weights *w)
{
    float scores[ROWS * CHUNK_TOKENS], factor[DECODE_ROWS_MAX];
    struct softmax_row state[ROWS];

    for (size_t row = 0; row < ROWS; row++) {
        state[row] = (struct softmax_row){.max = -INFINITY};
        for (size_t t = 0; t < CHUNK_TOKENS; t++) {
            whole[row][t] =
                t == row * 9 ? ops->weight_max : (int) test_rand_below((uint32_t) ops->weight_max);
            scores[row * CHUNK_TOKENS + t] = logf((float) whole[row][t] / (float) ops->weight_max);
        }
    }
    ops->softmax(ROWS, scores, state, 0, true, factor, w);
    for (size_t row = 0; row < ROWS; row++) {
        double sum = 0;

        for (size_t t = 0; t < CHUNK_TOKENS; t++) {
            CU_ASSERT_EQUAL(w[row].bytes[t], whole[row][t]);
            CU_ASSERT_DOUBLE_EQUAL(w[row].whole[t],
                                   (double) WEIGHT_WIDE_MAX * whole[row][t] / ops->weight_max, 0.6);
            sum += (double) whole[row][t] / ops->weight_max;
        }
        CU_ASSERT_EQUAL(factor[row], 0); /* there are no earlier sums */
        CU_ASSERT_EQUAL(state[row].max, 0);
        CU_ASSERT_DOUBLE_EQUAL((double) state[row].sum, sum, 64 * EPSILON);
        CU_ASSERT_DOUBLE_EQUAL((double) w[row].sum, sum, 64 * EPSILON);
        CU_ASSERT_DOUBLE_EQUAL((double) w[row].step, 1.0 / ops->weight_max, EPSILON);
    }
}

/* Weights times the levels of @col, and the sum of sizes. */
static double weighted(const struct page *p, enum side side, const struct row_weights *w, unsigned col,
                       double *ret_size)
{
    double sum = 0;

    *ret_size = 0;
    for (unsigned t = 0; t < CHUNK_TOKENS; t++) {
        double x = col < wide_cols(p) ? w->whole[t] * (double) w->whole_step : w->bytes[t] * (double) w->step;

        sum += x * level(p, side, t, col);
        *ret_size += fabs(x * level(p, side, t, col));
    }
    return sum;
}

/* Sums of @n_rows rows; nothing is added to the others. */
static void check_rows(const struct decode_ops *ops, struct page *p, size_t n_rows,
                       const struct row_weights *w)
{
    enum { LD = COLS * 8 };
    float *sums = calloc(2 * ROWS * LD, sizeof(*sums)), *of_keys = sums + ROWS * LD;
    size_t lanes = ops->lanes, n_wide = wide_cols(p);

    assert(sums);
    for (int twice = 0; twice < 2; twice++) { /* the second time adds to the sums */
        ops->values(&p->coded, n_rows, w, sums, LD);
        ops->key_values(&p->codes, n_rows, w, of_keys, LD);
    }
    for (size_t row = 0; row < n_rows; row++)
        for (unsigned col = 0; col < COLS; col++) {
            double size, expected = 2 * weighted(p, SIDE_V, &w[row], col, &size), sum = 0;
            const float *at = of_keys + row * LD;

            for (size_t part = 0; part < DECODE_PARTS; part++)
                sum += (double) sums[row * LD + col * DECODE_PARTS + part];
            CU_ASSERT_DOUBLE_EQUAL(sum, expected, 2 * EPSILON * size);
            expected = 2 * weighted(p, SIDE_K, &w[row], col, &size);
            sum = 0;
            for (size_t l = 0; l < lanes; l++)
                if (col < n_wide)
                    sum += l % 4 / 2 == col % 2 ? (double) at[col / 2 * lanes + l] : 0;
                else
                    sum += l % 4 == col % 4 ? (double) at[n_wide / 2 * lanes + (col - n_wide) / 4 * lanes + l]
                                            : 0;
            CU_ASSERT_DOUBLE_EQUAL(sum, expected, 2 * EPSILON * size);
        }
    for (size_t i = n_rows * LD; i < ROWS * LD; i++)
        CU_ASSERT(sums[i] == 0 && of_keys[i] == 0);
    free(sums);
}

/* Loops differ by how many rows share the levels. */
static void check_values(const struct decode_ops *ops, struct page *p)
{
    int whole[ROWS][CHUNK_TOKENS];
    struct row_weights *w = aligned_alloc(64, ROWS * sizeof(*w));

    assert(w);
    make_weights(ops, whole, w);
    check_rows(ops, p, 1 + test_rand_below(ROWS), w); /* of the many pages, each number gets some */
    free(w);
}

static void test_values(void)
{
    each(check_values);
}

const char test_suite[] = "decode";
const struct test_case test_cases[] = {
    TEST(test_unpack), TEST(test_places), TEST(test_keys), TEST(test_fold),
    TEST(test_nodes),  TEST(test_values), TEST_END,
};
