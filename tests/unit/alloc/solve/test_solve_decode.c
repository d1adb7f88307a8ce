/*
 * Least-squares decoders, and values predicted from all heads of a layer. Codes of the finished table are
 * recomputed in binary64 by the formulas of alloc/table/table_types.h; the normal equations show whether
 * another linear decoder of these codes would have a smaller error.
 */
#include <errno.h>

#include "alloc/quantiser/levels_normal.h"
#include "alloc/solve/curve.h"
#include "alloc/solve/solve.h"
#include "alloc/stats/stats_internal.h"
#include "alloc/stats/stats_sample.h"
#include "alloc/table/levels.h"
#include "alloc/table/table_format.h"
#include "base/cleanup.h"
#include "tests/unit/alloc/shapes.h"

enum { LAYERS = 1, HEADS = 2, D = 32, TOKENS = 1600, WINDOW = 200, CODES_MAX = HEADS * D + D };

/* Values are the keys of the *other* head plus noise; lengths vary, so that no direction is normal. */
static void draw(struct shape_data *x, const struct geometry *g, bool flat)
{
    size_t width = HEADS * D;

    shape_data_draw(x, g);
    for (size_t t = 0; t < x->n; t++) {
        float length = test_rand() >> 63 ? 1.6f : 0.4f;

        for (size_t i = 0; i < width; i++)
            x->k[t * width + i] *= length;
        for (size_t i = 0; i < width; i++)
            x->v[t * width + i] = 0.3f * x->v[t * width + i] + x->k[t * width + (i + D) % width];
        for (size_t i = 0; flat && i < D; i++) {
            x->k[t * width + i] = 0.5f;               /* head 0: K constant */
            x->v[t * width + D + i] *= i < 5 ? 1 : 0; /* head 1: V of rank 5 */
        }
    }
}

static struct stats *synthetic(const struct geometry *g, bool flat)
{
    struct stats_options o;
    struct stats *s = NULL;
    struct shape_data x;
    struct errmsg e = {""};

    stats_options_default(&o, g);
    o.n_samples = TOKENS;
    o.n_sink = 0;
    o.want_attention = false;
    CU_ASSERT_EQUAL_FATAL(stats_new(&o, &s, &e), 0);
    shape_data_init(&x, g, WINDOW);
    for (uint64_t doc = 0; doc < TOKENS / WINDOW; doc++)
        for (uint32_t l = 0; l < LAYERS; l++) {
            draw(&x, g, flat);
            CU_ASSERT_EQUAL(stats_add_layer(s, doc, 0, l, WINDOW, x.q, x.k, x.v, NULL, &e), 0);
        }
    CU_ASSERT_STRING_EQUAL(e.text, "");
    shape_data_deinit(&x);
    return s;
}

static struct solve_options options(double bpd, enum prediction v_from, enum decoder decoder)
{
    struct solve_options o;

    solve_options_default(&o, bpd);
    o.trellis_states = 0;
    solve_options_least_squares(&o);
    o.metric = METRIC_MSE;
    o.depth_weights = false;
    o.v_from = v_from;
    o.decoder = decoder;
    return o;
}

static struct table *solve(const struct stats *s, const struct solve_options *o, struct solve_report *ret)
{
    _cleanup_(freep) void *bytes = NULL;
    struct table *t = NULL;
    struct errmsg e = {""};
    size_t n;

    CU_ASSERT_EQUAL(solve_table(s, o, &bytes, &n, ret, &e), 0);
    CU_ASSERT_STRING_EQUAL(e.text, "");
    assert(bytes);
    CU_ASSERT_EQUAL_FATAL(table_parse(bytes, n, &t, &e), 0);
    return t;
}

/* ---- errors of a table ---- */

static void quantise(const struct table *t, const struct codec *c, enum side side, const double *z,
                     uint8_t *ret)
{
    for (unsigned i = 0; i < c->r; i++) {
        unsigned b = c->bits[i / 8];

        ret[i] = b > 0 ? levels_quantise(&t->levels[side][b], b, (float) z[i]) : 0;
    }
}

/* Decoded levels of all codes that V of @head reads, or of K's own codes. Returns their number. */
static size_t inputs(const struct table *t, uint32_t head, enum side side, const uint8_t *codes_k,
                     const uint8_t *codes_v, double *ret)
{
    struct head_run run = side == SIDE_V ? table_predictors(t, head) : (struct head_run){head, 1};
    size_t n = 0;

    for (uint32_t h = 0; h < HEADS; h++) {
        const struct codec *k = table_codec(t, 0, h, SIDE_K);

        for (unsigned i = 0; i < k->r; i++, codes_k++)
            if (h >= run.first && h < run.first + run.n)
                ret[n++] = (double) t->levels[SIDE_K][k->bits[i / 8]].value[*codes_k];
    }
    for (unsigned i = 0; side == SIDE_V && i < table_codec(t, 0, head, SIDE_V)->r; i++)
        ret[n++] = (double) t->levels[SIDE_V][table_codec(t, 0, head, SIDE_V)->bits[i / 8]].value[codes_v[i]];
    return n;
}

/* Sums over samples of one head-side: error e and inputs c of its decoder. */
struct normal {
    size_t n_c;
    double e[D], c[CODES_MAX], ee[D], cc[CODES_MAX], ec[D][CODES_MAX], distortion;
};

static void add(struct normal *s, const float *x, const struct table_sums *x_hat, const double *c, size_t n_c)
{
    s->n_c = n_c;
    for (size_t i = 0; i < D; i++) {
        double e = (double) x[i] - x_hat->x[i];

        s->e[i] += e / TOKENS;
        s->ee[i] += e * e / TOKENS;
        s->distortion += e * e / TOKENS;
        for (size_t j = 0; j < n_c; j++)
            s->ec[i][j] += e * c[j] / TOKENS;
    }
    for (size_t j = 0; j < n_c; j++) {
        s->c[j] += c[j] / TOKENS;
        s->cc[j] += c[j] * c[j] / TOKENS;
    }
}

static void measure(const struct stats *s, const struct table *t, struct normal ret[2 * HEADS])
{
    memset(ret, 0, 2 * HEADS * sizeof(*ret));
    for (size_t token = 0; token < TOKENS; token++) {
        uint8_t codes_k[HEADS * TABLE_RANK_MAX] = {0}, codes_v[TABLE_RANK_MAX];
        struct table_sums sums[2];
        size_t at = 0;

        for (unsigned pass = SIDE_K; pass <= SIDE_V; pass++)
            for (uint32_t h = 0; h < HEADS; h++) {
                float rows[2][D];
                const float *const x[2] = {rows[0], rows[1]};
                double c[CODES_MAX];
                size_t n_c;

                sample_code_get(s, 2 * h, token, rows[0]);
                sample_code_get(s, 2 * h + 1, token, rows[1]);
                table_encode_head(t, 0, h, codes_k, x, sums);
                if (pass == SIDE_K) {
                    quantise(t, table_codec(t, 0, h, SIDE_K), SIDE_K, sums[SIDE_K].x, codes_k + at);
                    at += table_codec(t, 0, h, SIDE_K)->r;
                    continue;
                }
                quantise(t, table_codec(t, 0, h, SIDE_V), SIDE_V, sums[SIDE_V].x, codes_v);
                table_decode_head(t, 0, h, codes_k, codes_v, sums);
                for (unsigned side = SIDE_K; side <= SIDE_V; side++) {
                    n_c = inputs(t, h, (enum side) side, codes_k, codes_v, c);
                    add(&ret[2 * h + side], x[side], &sums[side], c, n_c);
                }
            }
    }
}

/* Largest |correlation| of an error with a code that varies. */
static double largest_correlation(const struct normal *s)
{
    double largest = 0;

    for (size_t i = 0; i < D; i++)
        for (size_t j = 0; j < s->n_c; j++) {
            double var_c = s->cc[j] - s->c[j] * s->c[j], var_e = s->ee[i] - s->e[i] * s->e[i];

            if (var_c > 1e-6 && var_e > 1e-12) /* a padded coordinate has one code */
                largest = fmax(largest, fabs(s->ec[i][j] - s->e[i] * s->c[j]) / sqrt(var_c * var_e));
        }
    return largest;
}

/*
 * The normal equations: the error of a least-squares decoder is uncorrelated with its codes and has mean 0.
 * The ridge leaves l (G + l I)^-1 of the inverse's correlation, l = 1e-4 of G's mean variance: below 0.01, as
 * no eigenvalue of G here is below a fiftieth of the mean. binary32 flips a code in ten thousand. The inverse
 * leaves correlations of 0.05 and more: the gain of least squares.
 */
static void test_normal_equations(void)
{
    struct geometry g = shape(LAYERS, HEADS, HEADS, D, D);
    _cleanup_(stats_freep) struct stats *s = synthetic(&g, false);

    for (int v_from = PREDICT_NONE; v_from <= PREDICT_LAYER; v_from++) {
        struct normal sums[2][2 * HEADS];

        for (int decoder = DECODER_INVERSE; decoder <= DECODER_LEAST_SQUARES; decoder++) {
            struct solve_options o = options(2, (enum prediction) v_from, (enum decoder) decoder);
            struct solve_report report;
            _cleanup_(table_unrefp) struct table *t = solve(s, &o, &report);
            double distortion = 0;

            measure(s, t, sums[decoder]);
            for (unsigned hs = 0; hs < 2 * HEADS; hs++)
                distortion += sums[decoder][hs].distortion;
            /* the same table, computed in another way */
            CU_ASSERT_DOUBLE_EQUAL(report.distortion, distortion, 1e-3 * distortion);
        }
        for (unsigned hs = 0; hs < 2 * HEADS; hs++) {
            const struct normal *fitted = &sums[DECODER_LEAST_SQUARES][hs],
                                *inverse = &sums[DECODER_INVERSE][hs];

            CU_ASSERT(largest_correlation(fitted) < 0.01);
            CU_ASSERT(largest_correlation(inverse) > 0.05);
            CU_ASSERT(fitted->distortion < 0.998 * inverse->distortion);
            for (unsigned i = 0; i < D; i++)
                CU_ASSERT_DOUBLE_EQUAL(fitted->e[i], 0, 1e-3 * sqrt(fitted->ee[i]) + 1e-6);
        }
    }
}

/* The share of the variance of N(0,1) that levels of b bits lose; b = 0: all of it. */
static double normal_loss(unsigned b)
{
    struct levels l;

    CU_ASSERT_EQUAL_FATAL(levels_normal(QUANT_LLOYD_MAX, b, &l), 0);
    return levels_normal_mse(&l, b);
}

/* Contrast multiplies what is decoded from a head's own codes by 1 / (1 - loss), or a part of it;
 * predictions, codes and the mean of what is decoded stay. */
static void test_contrast(void)
{
    struct geometry g = shape(LAYERS, HEADS, HEADS, D, D);
    _cleanup_(stats_freep) struct stats *s = synthetic(&g, false);

    for (int decoder = DECODER_INVERSE; decoder <= DECODER_LEAST_SQUARES; decoder++) {
        struct solve_options o = options(2, PREDICT_HEAD, (enum decoder) decoder);
        struct solve_report report;
        _cleanup_(table_unrefp) struct table *plain = NULL, *stretched = NULL;
        struct normal sums[2 * HEADS];

        o.fit_levels = false;
        plain = solve(s, &o, &report);
        o.contrast[SIDE_K] = 1;
        o.contrast[SIDE_V] = 0.5;
        stretched = solve(s, &o, &report);
        measure(s, stretched, sums);
        for (unsigned hs = 0; hs < 2 * HEADS; hs++) {
            const struct codec *a = &plain->codecs[hs], *b = &stretched->codecs[hs];

            CU_ASSERT_EQUAL_FATAL(b->r, a->r);
            CU_ASSERT_EQUAL(memcmp(a->enc, b->enc, a->r * D * sizeof(float)), 0);
            for (unsigned i = 0; i < D; i++) {
                for (unsigned j = 0; j < a->r_in; j++) {
                    unsigned bits = j < a->n_pred ? 0 : a->bits[(j - a->n_pred) / 8];
                    double loss = bits > 0 ? normal_loss(bits) : 0,
                           want =
                               (double) codec_dec_row(a, i)[j] * (1 + o.contrast[hs % 2] * loss / (1 - loss));

                    CU_ASSERT_DOUBLE_EQUAL((double) codec_dec_row(b, i)[j], want, 2e-3 * fabs(want));
                }
                if (decoder == DECODER_LEAST_SQUARES)
                    CU_ASSERT_DOUBLE_EQUAL(sums[hs].e[i], 0, 1e-3 * sqrt(sums[hs].ee[i]) + 1e-6);
            }
        }
    }
}

/* Loading multiplies levels and thresholds of one side, those of one bit by their own, and no bit moves. */
static void test_loading(void)
{
    struct geometry g = shape(LAYERS, HEADS, HEADS, D, D);
    _cleanup_(stats_freep) struct stats *s = synthetic(&g, false);

    for (int fitted = 0; fitted < 2; fitted++) {
        struct solve_options o = options(4, PREDICT_NONE, DECODER_LEAST_SQUARES);
        struct solve_report narrow, wide;
        _cleanup_(table_unrefp) struct table *a = NULL, *b = NULL;

        o.fit_levels = fitted;
        a = solve(s, &o, &narrow);
        o.loading[SIDE_K] = 1.5;
        o.loading_narrow[SIDE_K] = 1.25;
        b = solve(s, &o, &wide);
        for (unsigned side = 0; side < 2; side++)
            for (unsigned bits = 1; bits <= TABLE_BITS_MAX; bits++) {
                const struct levels *l = &a->levels[side][bits], *w = &b->levels[side][bits];
                double factor = solve_loading(&o, side, bits);

                for (unsigned q = 0; q < 1u << bits; q++)
                    CU_ASSERT_DOUBLE_EQUAL(level_z(w, q), factor * level_z(l, q),
                                           1e-3 * (1 + fabs(level_z(w, q))));
                for (unsigned q = 0; q + 1 < 1u << bits; q++)
                    CU_ASSERT_DOUBLE_EQUAL((double) w->threshold[q], factor * (double) l->threshold[q],
                                           1e-3 * (1 + fabs((double) w->threshold[q])));
            }
        for (uint32_t hs = 0; hs < head_side_count(&g); hs++)
            CU_ASSERT_EQUAL(memcmp(a->codecs[hs].bits, b->codecs[hs].bits, a->codecs[hs].n_half), 0);
        CU_ASSERT(wide.distortion_k != narrow.distortion_k);
        CU_ASSERT_EQUAL(wide.distortion_v, narrow.distortion_v);
    }
}

/* Values that are the keys of the other head: their own head's keys predict nothing,
 * those of the layer almost everything. */
static void test_prediction_from_layer(void)
{
    struct geometry g = shape(LAYERS, HEADS, HEADS, D, D);
    _cleanup_(stats_freep) struct stats *s = synthetic(&g, false);
    double distortion[3];

    for (int v_from = PREDICT_NONE; v_from <= PREDICT_LAYER; v_from++) {
        struct solve_options o = options(0, (enum prediction) v_from, DECODER_LEAST_SQUARES);
        struct solve_report report;
        _cleanup_(table_unrefp) struct table *t = NULL;
        uint32_t n_pred = 0;

        o.k_bpd = 4;
        o.v_bpd = 1;
        t = solve(s, &o, &report);
        CU_ASSERT_EQUAL(t->v_from, v_from);
        if (v_from >= PREDICT_HEAD)
            n_pred += table_codec(t, 0, 1, SIDE_K)->r;
        if (v_from == PREDICT_LAYER)
            n_pred += table_codec(t, 0, 0, SIDE_K)->r;
        CU_ASSERT_EQUAL(table_codec(t, 0, 1, SIDE_V)->n_pred, n_pred);
        distortion[v_from] = report.distortion_v;
    }
    CU_ASSERT_DOUBLE_EQUAL(distortion[PREDICT_HEAD], distortion[PREDICT_NONE],
                           0.1 * distortion[PREDICT_NONE]);
    CU_ASSERT(distortion[PREDICT_LAYER] < 0.4 * distortion[PREDICT_HEAD]);
}

/* Constant keys, values of rank 5 and budgets that leave heads without codes give finite tables,
 * which are never worse than the inverse. */
static void test_degenerate(void)
{
    static const double bpds[] = {0.1, 0.5, 3};
    struct geometry g = shape(LAYERS, HEADS, HEADS, D, D);
    _cleanup_(stats_freep) struct stats *s = synthetic(&g, true);

    for (size_t i = 0; i < 3; i++)
        for (int v_from = PREDICT_NONE; v_from <= PREDICT_LAYER; v_from++) {
            struct solve_options fit = options(bpds[i], (enum prediction) v_from, DECODER_LEAST_SQUARES);
            struct solve_options invert = options(bpds[i], (enum prediction) v_from, DECODER_INVERSE);
            struct solve_report fitted, inverse;
            _cleanup_(table_unrefp) struct table *a = solve(s, &fit, &fitted),
                                                 *b = solve(s, &invert, &inverse);

            CU_ASSERT_EQUAL(table_codec(a, 0, 0, SIDE_K)->r, 0);
            CU_ASSERT_EQUAL(a->bpd_code, b->bpd_code);
            CU_ASSERT(fitted.distortion <= inverse.distortion * (1 + 1e-6));
            for (unsigned hs = 0; hs < 2 * HEADS; hs++) /* the encoder is the same: so are the codes */
                CU_ASSERT_EQUAL(memcmp(a->codecs[hs].enc_mean, b->codecs[hs].enc_mean, D * sizeof(float)), 0);
        }
}

static void test_refuses(void)
{
    struct geometry g = shape(LAYERS, HEADS, HEADS, D, D);
    _cleanup_(stats_freep) struct stats *s = synthetic(&g, false);
    struct solve_options o = options(2, PREDICT_NONE, DECODER_LEAST_SQUARES);
    struct solve_report report;
    struct errmsg e = {""};
    void *bytes = NULL;
    size_t n, held = s->n_held;

    s->n_held = 4 * D - 1;
    CU_ASSERT_EQUAL(solve_table(s, &o, &bytes, &n, &report, &e), -EINVAL);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "--decoder inverse"));
    s->n_held = 2 * 4 * D - 1;
    o.v_from = PREDICT_LAYER;
    CU_ASSERT_EQUAL(solve_table(s, &o, &bytes, &n, &report, &e), -EINVAL);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "--predict head"));
    s->n_held = held;
    solve_options_for(&o, METHOD_PAPER_KL, 2);
    o.decoder = DECODER_LEAST_SQUARES;
    CU_ASSERT_EQUAL(solve_table(s, &o, &bytes, &n, &report, &e), -EINVAL);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "paper-kl"));
    CU_ASSERT_PTR_NULL(bytes);
}

static void test_refuses_loading(void)
{
    static const struct {
        double loading, contrast;
        const char *words;
    } cases[] = {
        {0.9, 0, "loading 0.9"},    {2.1, 0, "loading 2.1"},  {NAN, 0, "1 <= loading <= 2"},
        {1, -0.1, "contrast -0.1"}, {1, 1.1, "contrast 1.1"}, {1, NAN, "0 <= contrast <= 1"},
    };
    struct geometry g = shape(LAYERS, HEADS, HEADS, D, D);
    _cleanup_(stats_freep) struct stats *s = synthetic(&g, false);
    struct solve_report report;
    struct solve_options o;
    void *bytes = NULL;
    size_t n;

    for (size_t i = 0; i < 2 * sizeof(cases) / sizeof(cases[0]); i++) {
        struct errmsg e = {""};

        o = options(2, PREDICT_NONE, DECODER_LEAST_SQUARES);
        o.loading[i % 2] = cases[i / 2].loading;
        o.contrast[i % 2] = cases[i / 2].contrast;
        CU_ASSERT_EQUAL(solve_table(s, &o, &bytes, &n, &report, &e), -EINVAL);
        CU_ASSERT_PTR_NOT_NULL(strstr(e.text, cases[i / 2].words));
    }
    for (unsigned i = 0; i < 4; i++) {
        struct errmsg e = {""};

        o = options(2, PREDICT_NONE, DECODER_LEAST_SQUARES);
        o.loading_narrow[i % 2] = 2.5;
        CU_ASSERT_EQUAL(solve_table(s, &o, &bytes, &n, &report, &e), -EINVAL);
        CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "loading 2.5"));
        solve_options_for(&o, METHOD_PAPER_KL, 2);
        *(i < 2 ? &o.contrast[i] : &o.loading_narrow[i - 2]) = 1.1;
        CU_ASSERT_EQUAL(solve_table(s, &o, &bytes, &n, &report, &e), -EINVAL);
        CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "no loading and no contrast"));
    }
    CU_ASSERT_PTR_NULL(bytes);
}

const struct test_case test_cases[] = {
    TEST(test_normal_equations), TEST(test_contrast),
    TEST(test_loading),          TEST(test_prediction_from_layer),
    TEST(test_degenerate),       TEST(test_refuses),
    TEST(test_refuses_loading),  TEST_END,
};
const char test_suite[] = "solve_decode";
