/*
 * Refitting a table to other vectors: what stays, what improves, and by how much it misses the least squares
 * of the codes that the new table really gives to these vectors.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/math/linalg.h"
#include "alloc/moments/moments.h"
#include "alloc/refit/refit.h"
#include "alloc/solve/solve.h"
#include "alloc/stats/stats.h"
#include "alloc/table/levels.h"
#include "alloc/table/table.h"
#include "alloc/table/table_half.h"
#include "alloc/table/table_expected.h"
#include "alloc/table/table_format.h"
#include "base/cleanup.h"
#include "tests/unit/alloc/shapes.h"

enum { HEADS = 2, D = 32, WIDTH = HEADS * D, TOKENS = 4000, WINDOW = 500 };

/* Normal vectors [TOKENS, WIDTH] of one layer. Values depend on the keys of both heads. */
struct vectors {
    float *x[2]; /* by side */
};

static void vectors_deinit(struct vectors *v)
{
    free(v->x[0]);
    free(v->x[1]);
}

/* @drifted: another mean, other scales, and other values of the same keys */
static void vectors_draw(struct vectors *v, bool drifted)
{
    v->x[0] = malloc(TOKENS * WIDTH * sizeof(float));
    v->x[1] = malloc(TOKENS * WIDTH * sizeof(float));
    assert(v->x[0] && v->x[1]);
    fill_normal(v->x[0], TOKENS, WIDTH, D, drifted ? 0.8 : 0.3);
    for (size_t t = 0; t < TOKENS; t++)
        for (size_t i = 0; i < WIDTH; i++) {
            float *k = v->x[0] + t * WIDTH, *to = v->x[1] + t * WIDTH;
            size_t other = (i + D) % WIDTH;

            if (drifted && i % 3 == 0)
                k[i] *= 2.5f;
            to[i] = 0.3f * (float) test_rand_normal() +
                    (drifted ? 0.5f - k[i] + 0.7f * k[other] : k[i] + 0.5f * k[other]);
        }
}

static struct geometry tiny(void)
{
    return shape(1, HEADS, HEADS, D, D);
}

static struct moments *moments_of(const struct vectors *v, size_t n, bool joint)
{
    struct moments_options o = {.geometry = tiny(), .joint = joint};
    struct moments *m = NULL;
    struct errmsg e = {""};

    CU_ASSERT_EQUAL_FATAL(moments_new(&o, &m, &e), 0);
    CU_ASSERT_EQUAL_FATAL(moments_add(m, 0, 0, HEADS, n, v->x[0], v->x[1], &e), 0);
    return m;
}

/* A table that was solved from vectors. */
static struct table *solved_with(const struct vectors *v, enum prediction from, double contrast,
                                 uint32_t states, bool blocks)
{
    _cleanup_(stats_freep) struct stats *s = NULL;
    _cleanup_(freep) void *bytes = NULL;
    struct geometry g = tiny();
    struct solve_report report;
    struct solve_options o;
    struct stats_options so;
    struct table *t = NULL;
    struct errmsg e = {""};
    size_t n;

    stats_options_default(&so, &g);
    so.n_samples = TOKENS;
    so.n_sink = 0;
    so.want_attention = so.want_output = false;
    CU_ASSERT_EQUAL_FATAL(stats_new(&so, &s, &e), 0);
    for (uint64_t at = 0; at < TOKENS; at += WINDOW)
        CU_ASSERT_EQUAL(
            stats_add_layer(s, at, 0, 0, WINDOW, NULL, v->x[0] + at * WIDTH, v->x[1] + at * WIDTH, NULL, &e),
            0);
    solve_options_default(&o, 2.5);
    o.trellis_states = states;
    o.blocks = blocks;
    o.metric = METRIC_MSE;
    o.depth_weights = false;
    o.v_from = from;
    o.contrast[SIDE_K] = o.contrast[SIDE_V] = contrast;
    CU_ASSERT_EQUAL(solve_table(s, &o, &bytes, &n, &report, &e), 0);
    CU_ASSERT_STRING_EQUAL(e.text, "");
    assert(bytes);
    CU_ASSERT_EQUAL_FATAL(table_parse(bytes, n, &t, &e), 0);
    return t;
}

static struct table *solved(const struct vectors *v, enum prediction from)
{
    return solved_with(v, from, 0, 0, false);
}

static struct table *refitted_by(const struct table *t, const struct moments *m, double share,
                                 struct refit_report *ret_report)
{
    _cleanup_(freep) void *bytes = NULL;
    struct table *to = NULL;
    struct errmsg e = {""};
    size_t n = 0;

    CU_ASSERT_EQUAL(refit_table(t, m, share, &bytes, &n, ret_report, &e), 0);
    CU_ASSERT_STRING_EQUAL(e.text, "");
    assert(bytes);
    CU_ASSERT_EQUAL_FATAL(table_parse(bytes, n, &to, &e), 0);
    return to;
}

static struct table *refitted(const struct table *t, const struct moments *m, struct refit_report *ret_report)
{
    return refitted_by(t, m, 1, ret_report);
}

/* ---- codes and errors of vectors ---- */

static void quantise(const struct table *t, const struct codec *c, enum side side, const double *z,
                     uint8_t *ret)
{
    for (size_t i = 0; i < c->r; i++)
        ret[i] = c->bits[i / 8]
                     ? levels_quantise(&t->levels[side][c->bits[i / 8]], c->bits[i / 8], (float) z[i])
                     : 0;
}

/* Codes of one token: K of all heads, then V of each head. */
static void encode(const struct table *t, const struct vectors *v, size_t token, uint8_t *keys,
                   uint8_t values[HEADS][TABLE_RANK_MAX])
{
    struct table_sums z[2];

    for (unsigned pass = 0; pass < 2; pass++)
        for (uint32_t h = 0, at = 0; h < HEADS; h++) {
            const float *const x[2] = {v->x[0] + token * WIDTH + h * D, v->x[1] + token * WIDTH + h * D};
            const struct codec *k = table_codec(t, 0, h, SIDE_K);

            table_encode_head(t, 0, h, keys, x, z);
            if (pass == 0)
                quantise(t, k, SIDE_K, z[SIDE_K].x, keys + at);
            else
                quantise(t, table_codec(t, 0, h, SIDE_V), SIDE_V, z[SIDE_V].x, values[h]);
            at += k->r;
        }
}

/* |x - decoded|^2 / |x - mean|^2 by side. */
static void errors(const struct table *t, const struct vectors *v, double ret[2])
{
    double error[2] = {0}, signal[2] = {0}, mean[2][WIDTH] = {{0}};
    uint8_t keys[HEADS * TABLE_RANK_MAX] = {0}, values[HEADS][TABLE_RANK_MAX] = {{0}};
    struct table_sums x[2];

    for (size_t i = 0; i < TOKENS * WIDTH; i++)
        for (unsigned side = 0; side < 2; side++)
            mean[side][i % WIDTH] += (double) v->x[side][i] / TOKENS;
    for (size_t token = 0; token < TOKENS; token++) {
        encode(t, v, token, keys, values);
        for (uint32_t h = 0; h < HEADS; h++) {
            table_decode_head(t, 0, h, keys, values[h], x);
            for (unsigned side = 0; side < 2; side++)
                for (size_t i = 0; i < D; i++) {
                    double true_x = (double) v->x[side][token * WIDTH + h * D + i];

                    error[side] += pow(true_x - x[side].x[i], 2);
                    signal[side] += pow(true_x - mean[side][h * D + i], 2);
                }
        }
    }
    for (unsigned side = 0; side < 2; side++)
        ret[side] = error[side] / signal[side];
}

/* The error of values that the least squares of all codes of the table would leave, and of a constant. */
static double least_error(const struct table *t, const struct vectors *v)
{
    size_t n_keys = table_layer_codes(t, 0), n = 1;
    uint8_t keys[HEADS * TABLE_RANK_MAX] = {0}, values[HEADS][TABLE_RANK_MAX] = {{0}};
    double left = 0, signal = 0;

    for (uint32_t h = 0; h < HEADS; h++) {
        const struct codec *k = table_codec(t, 0, h, SIDE_K), *c = table_codec(t, 0, h, SIDE_V);
        size_t first = t->v_from == PREDICT_LAYER ? 0 : h * table_codec(t, 0, 0, SIDE_K)->r;
        size_t m = 1 + (t->v_from == PREDICT_LAYER ? n_keys : k->r) + c->r;
        double *G = calloc(m * m, sizeof(*G)), *X = calloc(2 * m * D, sizeof(*X)),
               *row = calloc(m, sizeof(*row));
        double squares = 0, mean[D] = {0};

        assert(G && X && row);
        for (size_t token = 0; token < TOKENS; token++) {
            const float *x = v->x[1] + token * WIDTH + h * D;

            encode(t, v, token, keys, values);
            row[0] = 1;
            n = 1;
            for (size_t i = first; n + c->r < m; i++)
                row[n++] = keys[i];
            for (size_t i = 0; i < c->r; i++)
                row[n++] = values[h][i];
            for (size_t i = 0; i < m; i++) {
                for (size_t j = 0; j < m; j++)
                    G[i * m + j] += row[i] * row[j];
                for (size_t j = 0; j < D; j++)
                    X[i * D + j] += row[i] * (double) x[j];
            }
            for (size_t j = 0; j < D; j++) {
                squares += pow((double) x[j], 2);
                mean[j] += (double) x[j] / TOKENS;
            }
        }
        for (size_t i = 0; i < m; i++) /* padding has one code; a ridge far below the others' variance */
            G[i * m + i] += 1e-6 * TOKENS;
        memcpy(X + m * D, X, m * D * sizeof(*X));
        CU_ASSERT_EQUAL(linalg_solve(m, D, G, X), 0);
        for (size_t i = 0; i < m * D; i++)
            left -= X[i] * X[m * D + i];
        left += squares;
        for (size_t j = 0; j < D; j++)
            squares -= TOKENS * mean[j] * mean[j];
        signal += squares;
        free(G);
        free(X);
        free(row);
    }
    return left / signal;
}

/* ---- cases ---- */

/* Bits, levels and, but for a factor per band, encoders are those of the first table. */
static void check_kept(const struct table *a, const struct table *b)
{
    CU_ASSERT_EQUAL(memcmp(a->levels, b->levels, sizeof(a->levels)), 0);
    CU_ASSERT_EQUAL(a->v_from, b->v_from);
    CU_ASSERT_DOUBLE_EQUAL(a->bpd_code, b->bpd_code, 0);
    for (uint32_t hs = 0; hs < 2 * HEADS; hs++) {
        const struct codec *x = &a->codecs[hs], *y = &b->codecs[hs];

        CU_ASSERT_EQUAL_FATAL(x->r, y->r);
        CU_ASSERT_EQUAL(memcmp(x->bits, y->bits, sizeof(x->bits)), 0);
        for (size_t i = 0; i < x->r; i++) {
            const float *p = x->enc + i * D, *q = y->enc + i * D;
            double pq = 0, pp = 0, qq = 0;

            for (size_t j = 0; j < D; j++) {
                pq += (double) p[j] * (double) q[j];
                pp += (double) p[j] * (double) p[j];
                qq += (double) q[j] * (double) q[j];
            }
            CU_ASSERT_DOUBLE_EQUAL(pq, sqrt(pp * qq), 1e-5 * (pq + 1));
        }
    }
}

static void check_refit(enum prediction from)
{
    _cleanup_(vectors_deinit) struct vectors old = {{NULL}}, now = {{NULL}};
    _cleanup_(moments_freep) struct moments *m = NULL;
    _cleanup_(table_unrefp) struct table *t = NULL, *new = NULL;
    struct table_expected expected;
    double before[2], after[2];
    struct refit_report report = {{0}};

    vectors_draw(&old, false);
    vectors_draw(&now, true);
    t = solved(&old, from);
    m = moments_of(&now, TOKENS, true);
    new = refitted(t, m, &report);
    check_kept(t, new);
    errors(t, &now, before);
    errors(new, &now, after);
    /* means moved by a deviation, scales by 2.5: most of the error of the old table was that */
    CU_ASSERT(after[0] < 0.5 * before[0]);
    CU_ASSERT(after[1] < 0.5 * before[1]);
    /* the normal model takes the noises of two codes as uncorrelated: some percent at these bits */
    CU_ASSERT_DOUBLE_EQUAL(report.error[0], after[0], 0.05 * after[0]);
    CU_ASSERT_DOUBLE_EQUAL(report.error[1], after[1], 0.05 * after[1]);
    CU_ASSERT_EQUAL(table_expected_read(new->provenance, &expected), 0);
    CU_ASSERT_DOUBLE_EQUAL(expected.error[1], report.error[1], 1e-5);
    CU_ASSERT_EQUAL(expected.saturated[0], -1); /* moments have no coordinates */
    /* codes as numbers are not levels, but the levels of a width are about equidistant */
    CU_ASSERT(after[1] < 1.1 * least_error(new, &now));
}

static void test_own_head(void)
{
    check_refit(PREDICT_HEAD);
}

static void test_whole_layer(void)
{
    check_refit(PREDICT_LAYER);
}

static void test_without_prediction(void)
{
    _cleanup_(vectors_deinit) struct vectors old = {{NULL}}, now = {{NULL}};
    _cleanup_(moments_freep) struct moments *m = NULL;
    _cleanup_(table_unrefp) struct table *t = NULL, *new = NULL;
    double before[2], after[2];
    struct refit_report report;

    vectors_draw(&old, false);
    vectors_draw(&now, true);
    t = solved(&old, PREDICT_NONE);
    m = moments_of(&now, TOKENS, false);
    new = refitted(t, m, &report);
    check_kept(t, new);
    errors(t, &now, before);
    errors(new, &now, after);
    CU_ASSERT(after[0] < 0.5 * before[0]);
    CU_ASSERT(after[1] < 0.7 * before[1]);
}

/* Without drift a refit is about as good as the least squares of the solve. */
static void test_no_drift(void)
{
    _cleanup_(vectors_deinit) struct vectors v = {{NULL}};
    _cleanup_(moments_freep) struct moments *m = NULL;
    _cleanup_(table_unrefp) struct table *t = NULL, *new = NULL;
    double before[2], after[2];
    struct refit_report report;

    vectors_draw(&v, false);
    t = solved(&v, PREDICT_LAYER);
    m = moments_of(&v, TOKENS, true);
    new = refitted(t, m, &report);
    errors(t, &v, before);
    errors(new, &v, after);
    CU_ASSERT(after[0] < 1.03 * before[0]);
    CU_ASSERT(after[1] < 1.03 * before[1]);
}

/*
 * Half of the way: on other traffic the error is between those of the table and of the whole refit, and so it
 * is on the traffic of the first solve, the other way round.
 */
static void check_half_way(enum prediction from)
{
    _cleanup_(vectors_deinit) struct vectors old = {{NULL}}, now = {{NULL}};
    _cleanup_(moments_freep) struct moments *m = NULL;
    _cleanup_(table_unrefp) struct table *t = NULL, *half = NULL, *whole = NULL;
    double error[3][2][2]; /* [table, half, whole][on old, now][side] */
    struct refit_report report;

    vectors_draw(&old, false);
    vectors_draw(&now, true);
    t = solved(&old, from);
    m = moments_of(&now, TOKENS, true);
    half = refitted_by(t, m, 0.5, &report);
    whole = refitted(t, m, &report);
    check_kept(t, half);
    CU_ASSERT(refit_was_from(half, m));
    CU_ASSERT_FALSE(refit_was_from(t, m));
    for (unsigned i = 0; i < 3; i++) {
        const struct table *const tables[] = {t, half, whole};

        errors(tables[i], &old, error[i][0]);
        errors(tables[i], &now, error[i][1]);
    }
    for (unsigned side = 0; side < 2; side++) {
        CU_ASSERT(error[0][0][side] < 0.9 * error[1][0][side]);
        CU_ASSERT(error[1][0][side] < 0.9 * error[2][0][side]);
        CU_ASSERT(error[2][1][side] < 0.9 * error[1][1][side]);
        CU_ASSERT(error[1][1][side] < 0.9 * error[0][1][side]);
    }
    for (uint32_t hs = 0; hs < 2 * HEADS; hs += 2) /* means of keys: just half way */
        for (size_t i = 0; i < D; i++)
            CU_ASSERT_DOUBLE_EQUAL(half->codecs[hs].enc_mean[i],
                                   (t->codecs[hs].enc_mean[i] + whole->codecs[hs].enc_mean[i]) / 2, 1e-5);
}

static void test_half_way(void)
{
    check_half_way(PREDICT_NONE);
    check_half_way(PREDICT_HEAD);
    check_half_way(PREDICT_LAYER);
}

/* A refitted table keeps the contrast of the first one: what it decodes is stretched about as much. */
static void test_contrast(void)
{
    _cleanup_(vectors_deinit) struct vectors v = {{NULL}};
    _cleanup_(moments_freep) struct moments *m = NULL;
    struct table *t[2], *new[2];
    struct refit_report report;

    vectors_draw(&v, false);
    m = moments_of(&v, TOKENS, false);
    for (int i = 0; i < 2; i++) {
        t[i] = solved_with(&v, PREDICT_NONE, i, 0, false);
        new[i] = refitted(t[i], m, &report);
    }
    for (uint32_t hs = 0; hs < head_side_count(&t[0]->geometry); hs++) {
        double solved_norms[2] = {0, 0}, norms[2] = {0, 0};

        for (int i = 0; i < 2; i++)
            for (size_t j = 0; j < (size_t) t[0]->codecs[hs].r * D; j++) {
                solved_norms[i] += pow((double) t[i]->codecs[hs].dec[j], 2);
                norms[i] += pow((double) new[i]->codecs[hs].dec[j], 2);
            }
        CU_ASSERT(solved_norms[1] > 1.02 * solved_norms[0]);
        CU_ASSERT_DOUBLE_EQUAL(norms[1] / norms[0], solved_norms[1] / solved_norms[0], 0.02);
    }
    for (int i = 0; i < 2; i++) {
        (void) table_unref(t[i]);
        (void) table_unref(new[i]);
    }
}

static void test_refusals(void)
{
    _cleanup_(vectors_deinit) struct vectors v = {{NULL}};
    _cleanup_(moments_freep) struct moments *single = NULL, *few = NULL, *other = NULL;
    _cleanup_(table_unrefp) struct table *t = NULL;
    struct moments_options o = {.geometry = tiny(), .joint = true, .n_sink = 1};
    struct refit_report report = {{-1, -1}};
    void *bytes = &report;
    struct errmsg e = {""};
    size_t n = 7;

    vectors_draw(&v, false);
    t = solved(&v, PREDICT_LAYER);
    single = moments_of(&v, TOKENS, false);
    few = moments_of(&v, 4 * WIDTH - 1, true);
    CU_ASSERT_EQUAL_FATAL(moments_new(&o, &other, &e), 0);
    CU_ASSERT_EQUAL(refit_table(t, single, 1, &bytes, &n, &report, &e), -EOPNOTSUPP);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "between heads"));
    CU_ASSERT_EQUAL(refit_table(t, few, 1, &bytes, &n, &report, &e), -EINVAL);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "255 tokens"));
    CU_ASSERT_EQUAL(refit_table(t, other, 1, &bytes, &n, &report, &e), -EINVAL); /* other sinks */
    CU_ASSERT_PTR_EQUAL(bytes, &report);
    CU_ASSERT_EQUAL(n, 7);
    CU_ASSERT_DOUBLE_EQUAL(report.error[0], -1, 0);
}

/* A table with matrices of binary16 becomes one with such matrices. */
static void test_matrices(void)
{
    _cleanup_(vectors_deinit) struct vectors v = {{NULL}};
    _cleanup_(moments_freep) struct moments *m = NULL;
    _cleanup_(table_unrefp) struct table *t = NULL, *to = NULL;
    struct refit_report report;

    vectors_draw(&v, false);
    t = solved_with(&v, PREDICT_HEAD, 0, 64, false);
    m = moments_of(&v, TOKENS, false);
    to = refitted(t, m, &report);
    CU_ASSERT(table_has_half_matrices(t) && table_has_half_matrices(to));
    CU_ASSERT_EQUAL(to->n_bytes / 1000, t->n_bytes / 1000); /* provenances differ */
}

/* Keys in two blocks stay in two blocks, which parsing checks, and the refit lowers the error by as much. */
static void test_blocks(void)
{
    _cleanup_(vectors_deinit) struct vectors v = {{NULL}}, drifted = {{NULL}};
    _cleanup_(moments_freep) struct moments *m = NULL;
    _cleanup_(table_unrefp) struct table *t = NULL, *to = NULL;
    double before[2], after[2];
    struct refit_report report;

    vectors_draw(&v, false);
    vectors_draw(&drifted, true);
    t = solved_with(&v, PREDICT_HEAD, 0, 0, true);
    m = moments_of(&drifted, TOKENS, false);
    to = refitted(t, m, &report);
    CU_ASSERT(t->codecs[0].fast_planes > 0 && t->codecs[0].fast_halves != 0);
    for (uint32_t hs = 0; hs < 2 * HEADS; hs++) {
        CU_ASSERT_EQUAL(to->codecs[hs].fast_planes, t->codecs[hs].fast_planes);
        CU_ASSERT_EQUAL(to->codecs[hs].fast_halves, t->codecs[hs].fast_halves);
    }
    errors(t, &drifted, before);
    errors(to, &drifted, after);
    CU_ASSERT(after[SIDE_K] < 0.9 * before[SIDE_K]);
    CU_ASSERT(after[SIDE_V] < 0.9 * before[SIDE_V]);
}

const struct test_case test_cases[] = {
    TEST(test_own_head),
    TEST(test_whole_layer),
    TEST(test_without_prediction),
    TEST(test_no_drift),
    TEST(test_contrast),
    TEST(test_half_way),
    TEST(test_refusals),
    TEST(test_matrices),
    TEST(test_blocks),
    TEST_END,
};
const char test_suite[] = "refit";
