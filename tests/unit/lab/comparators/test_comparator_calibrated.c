/* Calibrated formats: from statistics of a known distribution, and of a small random model. */
#include "tests/lib/test.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "alloc/math/linalg.h"
#include "alloc/stats/stats.h"
#include "alloc/stats/stats_view.h"
#include "base/cleanup.h"
#include "tests/lib/tiny_gguf.h"
#include "tests/unit/lab/comparators/codec.h"
#include "tools/engine/engine.h"

enum { HEADS = 2, D = 32, ROW = HEADS * D, TOKENS = 2000 };

/* Keys and values that deviate by 1 + i / 8 in channel i around i. */
static void draw(float *x, size_t n)
{
    for (size_t t = 0; t < n; t++)
        for (size_t i = 0; i < ROW; i++)
            x[t * ROW + i] = (float) ((double) (i % D) + (1 + (double) (i % D) / 8) * test_rand_normal());
}

static struct stats *made_up(void)
{
    struct geometry g = plain_geometry(HEADS, D);
    struct stats_options o;
    struct stats *s = NULL;
    struct errmsg e = {""};
    static float k[TOKENS * ROW], v[TOKENS * ROW];

    stats_options_default(&o, &g);
    o.want_attention = false;
    o.n_sink = 0;
    draw(k, TOKENS);
    draw(v, TOKENS);
    CU_ASSERT_EQUAL_FATAL(stats_new(&o, &s, &e), 0);
    CU_ASSERT_EQUAL_FATAL(stats_add_layer(s, 1, 0, 0, TOKENS, NULL, k, v, NULL, &e), 0);
    return s;
}

static void test_moments(void)
{
    _cleanup_(stats_freep) struct stats *s = made_up();
    double S[D * D];

    CU_ASSERT_EQUAL_FATAL(stats_samples(s), TOKENS);
    for (uint32_t hs = 0; hs < 2 * HEADS; hs++) {
        const double *mean = stats_mean(s, hs);
        _cleanup_(freep) float *x = stats_sampled(s, hs);

        stats_covariance(s, hs, S);
        for (int i = 0; i < D; i += 7) { /* every token is sampled, so the statistics have their moments */
            double sum = 0, square = 0;

            for (int t = 0; t < TOKENS; t++)
                sum += (double) x[t * D + i] / TOKENS;
            for (int t = 0; t < TOKENS; t++)
                square += ((double) x[t * D + i] - sum) * ((double) x[t * D + i] - sum) / TOKENS;
            /* samples are binary16: a number of a few deviations is off by 2^-11 of it at most */
            CU_ASSERT_DOUBLE_EQUAL(mean[i], sum, 4 * 0x1p-11 * sqrt(square));
            CU_ASSERT_DOUBLE_EQUAL(S[i * D + i], square, 4 * 0x1p-11 * square);
        }
    }

    CU_ASSERT_EQUAL(stats_query_moment(s, 0, 0, S), -ENODATA);
}

/* A key far outside takes 32 bits and is decoded exactly; others are within half a cell of [lo, hi]. */
static void test_kvquant(void)
{
    enum { N = 50 };
    _cleanup_(stats_freep) struct stats *stats = made_up();
    struct comparator_source s = {.geometry = plain_geometry(HEADS, D), .stats = stats};
    _cleanup_(comparator_codec_freep) struct comparator_codec *codec = codec_of("kvquant-3", &s);
    static float x[N * ROW], y[N * ROW];
    uint64_t bits, beside;
    double error = 0, energy = 0;

    draw(x, N);
    x[3 * ROW + 1] = 100;
    x[4 * ROW + 2] = -100;
    bits = coded(codec, SIDE_K, x, N, y);
    CU_ASSERT(y[3 * ROW + 1] == 100 && y[4 * ROW + 2] == -100);
    CU_ASSERT(bits >= N * ROW * 3 + 2 * 32);
    beside = (bits - N * ROW * 3) / 32; /* 1 % of 3200 numbers: 32, sd 6, and the two */
    CU_ASSERT((bits - N * ROW * 3) % 32 == 0 && beside > 34 - 30 && beside < 34 + 36);
    for (int i = 0; i < N * ROW; i++) {
        double deviation = 1 + (double) (i % D) / 8, off = ((double) x[i] - (double) y[i]) / deviation;

        error += off * off;
        energy += 1;
    }

    /* 8 levels of N(0,1) leave 0.0345. These levels are fitted without tails: less. */
    CU_ASSERT(error / energy < 0.04 && error / energy > 0.01);

    /* values: a row of 64 has no outliers (0.32 on each side), 3 bits and a range in 32 */
    CU_ASSERT_EQUAL(coded(codec, SIDE_V, x, 1, y), ROW * 3 + 32);
}

/* The schedule's mean is 2 bits; the first eighth of the directions is nearly exact, the last three are the
 * mean. */
static void test_svdq(void)
{
    enum { N = 200 };
    _cleanup_(stats_freep) struct stats *stats = made_up();
    struct comparator_source s = {.geometry = plain_geometry(HEADS, D), .stats = stats};
    _cleanup_(comparator_codec_freep) struct comparator_codec *codec = codec_of("svdq-2", &s);
    static float x[N * ROW], y[N * ROW];
    double by_channel[D] = {0};

    draw(x, N);
    CU_ASSERT_EQUAL(coded(codec, SIDE_K, x, N, y), N * ROW * 2);
    for (int i = 0; i < N * ROW; i++)
        by_channel[i % D] += pow((double) (x[i] - y[i]) / (1 + (i % D) / 8.0), 2) / (N * HEADS);
    /* Each direction is nearly one channel, the channel of the largest variance first. 8 bits over about 7
     * deviations leave 1e-4, mixing with neighbours leaves more, channels without bits leave everything. */
    CU_ASSERT(by_channel[D - 1] < 0.1);
    CU_ASSERT(by_channel[0] > 0.8 && by_channel[0] < 1.3);
    CU_ASSERT_EQUAL(coded(codec, SIDE_V, x, N, y), N * ROW * 16);
    for (int i = 0; i < N * ROW; i++)
        CU_ASSERT(fabsf(x[i] - y[i]) <= fabsf(x[i]) * 0x1p-11f + 1e-7f);
    {
        struct comparator_codec *none = NULL;
        struct errmsg e = {""};

        s.stats = NULL;
        CU_ASSERT_EQUAL(comparator_codec_new(comparator_find("svdq-2"), &s, &none, &e), -EINVAL);
        CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "--stats"));
    }
}

/* ---- a model ---- */

static char path[] = "/tmp/kvc-kqsvd-XXXXXX";

static struct engine *tiny_engine(void)
{
    struct tiny_gguf_options o = {.n_layers = 1, .n_heads = 4, .n_kv_heads = HEADS, .d = D};
    _cleanup_(tiny_gguf_freep) struct tiny_gguf *t = tiny_gguf_new(&o);
    const struct engine_options eo = {.n_threads = 1};
    struct engine *en = NULL;
    struct errmsg e = {""};
    int fd;

    (void) memcpy(path + sizeof(path) - 7, "XXXXXX", 6);
    fd = mkstemp(path);
    CU_ASSERT_FATAL(fd >= 0);
    (void) close(fd);
    CU_ASSERT_EQUAL_FATAL(tiny_gguf_write(t, path), 0);
    CU_ASSERT_EQUAL_FATAL(engine_open(path, &eo, &en, &e), 0);
    (void) unlink(path);
    return en;
}

/* Statistics with queries that are a hundred times larger in channels 0 to 7. */
static struct stats *asked_for_eight(const struct engine *en)
{
    const struct geometry *g = engine_geometry(en);
    struct stats_options o;
    struct stats *s = NULL;
    struct errmsg e = {""};
    enum { N = 300 };
    static float q[N * 4 * D], k[N * ROW], v[N * ROW];
    float *wo = calloc((size_t) engine_info(en)->n_embd * 4 * D, sizeof(*wo));

    stats_options_default(&o, g);
    o.n_sink = 0;
    draw(k, N);
    draw(v, N);
    for (size_t i = 0; i < N * 4 * D; i++)
        q[i] = (float) (test_rand_normal() * (i % D < 8 ? 1 : 0.001));
    CU_ASSERT_PTR_NOT_NULL_FATAL(wo);
    CU_ASSERT_EQUAL_FATAL(stats_new(&o, &s, &e), 0);
    CU_ASSERT_EQUAL_FATAL(stats_set_output_projection(s, 0, wo, engine_info(en)->n_embd, &e), 0);
    CU_ASSERT_EQUAL_FATAL(stats_add_layer(s, 1, 0, 0, N, q, k, v, NULL, &e), 0);
    free(wo);
    return s;
}

/*
 * Rank 8 of 32 at "4 bits": the channels of large queries are kept although their variance is the smallest;
 * a second projection changes nothing; values are not 0.
 */
static void test_kqsvd(void)
{
    enum { N = 20 };
    _cleanup_(engine_freep) struct engine *en = tiny_engine();
    _cleanup_(stats_freep) struct stats *stats = asked_for_eight(en);
    struct comparator_source s = {
        .geometry = *engine_geometry(en),
        .stats = stats,
        .rotated = stats,
        .engine = en,
    };
    _cleanup_(comparator_codec_freep) struct comparator_codec *codec = codec_of("kqsvd-4", &s);
    static float x[N * ROW], y[N * ROW], again[N * ROW];
    double asked = 0, other = 0, twice = 0;

    draw(x, N);
    CU_ASSERT_EQUAL(coded(codec, SIDE_K, x, N, y), N * HEADS * 8 * 16);
    (void) coded(codec, SIDE_K, y, N, again);
    for (int i = 0; i < N * ROW; i++) {
        *(i % D < 8 ? &asked : &other) += pow((double) (x[i] - y[i]), 2) / (N * HEADS);
        twice = fmax(twice, fabs((double) (y[i] - again[i])) / (1 + fabs((double) y[i])));
    }

    CU_ASSERT(asked / 8 < 0.01); /* of variances from 1 to 3.5 */
    CU_ASSERT(other / 24 > 1);
    CU_ASSERT(twice < 0.02); /* binary16 coordinates, eight of them, some multiplied by ten */
    CU_ASSERT_EQUAL(coded(codec, SIDE_V, x, N, y), N * HEADS * 8 * 16);
    twice = 0;
    (void) coded(codec, SIDE_V, y, N, again);
    for (int i = 0; i < N * ROW; i++) {
        CU_ASSERT(isfinite(y[i]));
        twice = fmax(twice, fabs((double) (y[i] - again[i])) / (1 + fabs((double) y[i])));
    }

    CU_ASSERT(twice < 0.02);
}

/* OSCAR's rotation from the mean @C [D, D] of its matrices: R[j] is the direction of coordinate j. */
static void rotation_of(double *C, double R[D][D])
{
    double w[D];

    CU_ASSERT_EQUAL_FATAL(linalg_eigen(D, C, w), 0);
    for (unsigned i = 0; i < D; i++) {
        unsigned place = 0, column = D - 1 - i; /* of the i-th largest eigenvalue; they ascend in U */

        for (unsigned bit = 0; bit < 5; bit++)
            place |= (i >> bit & 1) << (4 - bit);
        for (unsigned j = 0; j < D; j++) {
            R[place][j] = 0;
            for (unsigned k = 0; k < D; k++) /* C has the largest first: vector k is row D - 1 - k */
                R[place][j] +=
                    (__builtin_parity(k & column) ? -1 : 1) / sqrt(D) * C[(size_t) (D - 1 - k) * D + j];
        }
    }
}

/* x = R' z is decoded exactly if z has only the four levels, and as if z were cut at its percentile. */
static void check_oscar_row(const struct comparator_codec *codec, enum side side, double R[D][D])
{
    static const double levels[] = {-3, -1, 1, 3};
    float x[ROW] = {0}, y[ROW];

    for (int cut = 0; cut < 2; cut++) {
        double z[D], error = 0;

        for (int j = 0; j < D; j++)
            z[j] = levels[j % 4];
        for (int i = 0; i < D; i++) {
            double sum = 0;

            for (int j = 0; j < D; j++)
                sum += R[j][i] * (cut && j == 3 ? 50 : z[j]); /* 50 is above the percentile, which is 3 */
            x[i] = x[D + i] = (float) sum;
        }
        CU_ASSERT_EQUAL(coded(codec, side, x, 1, y), HEADS * (D * 2 + 32));
        for (int i = 0; i < D; i++) {
            double sum = 0;

            for (int j = 0; j < D; j++)
                sum += R[j][i] * z[j];
            error = fmax(error, fmax(fabs(sum - (double) y[i]), fabs(sum - (double) y[D + i])));
        }
        CU_ASSERT(error < 0.01); /* of about 2 per number; a wrong code would be off by 2 / sqrt(32) */
    }
}

static void test_oscar(void)
{
    _cleanup_(engine_freep) struct engine *en = tiny_engine();
    _cleanup_(stats_freep) struct stats *stats = asked_for_eight(en);
    struct comparator_source s = {
        .geometry = *engine_geometry(en),
        .stats = stats,
        .rotated = stats,
        .engine = en,
    };
    _cleanup_(comparator_codec_freep) struct comparator_codec *codec = codec_of("oscar-2", &s);
    double queries[D * D] = {0}, attended[D * D] = {0}, one[D * D], R[D][D];

    for (uint32_t head = 0; head < HEADS; head++) {
        _cleanup_(freep) float *k = stats_sampled(stats, 2 * head), *v = stats_sampled(stats, 2 * head + 1);
        double all = 0;

        CU_ASSERT_EQUAL_FATAL(stats_query_moment(stats, 0, head, one), 0);
        for (size_t t = 0; t < 2 * stats_samples(stats); t++) { /* the sum of weights, then their use */
            const float *key = k + t % stats_samples(stats) * D, *value = v + t % stats_samples(stats) * D;
            double w = 0;

            for (size_t i = 0; i < D * D; i++)
                w += one[i] * (double) key[i / D] * (double) key[i % D];
            all += t < stats_samples(stats) ? w : 0;
            for (size_t i = 0; i < D * D && t >= stats_samples(stats); i++)
                attended[i] += w / all * (double) value[i / D] * (double) value[i % D];
        }
        for (size_t i = 0; i < D * D; i++)
            queries[i] += one[i];
    }
    rotation_of(queries, R);
    check_oscar_row(codec, SIDE_K, R);
    rotation_of(attended, R);
    check_oscar_row(codec, SIDE_V, R);
}

/* Heads that Hadamard matrices of powers of two do not fit, and statistics without queries. */
static void test_oscar_refused(void)
{
    _cleanup_(stats_freep) struct stats *stats = made_up();
    struct comparator_source s = {.geometry = plain_geometry(HEADS, D), .stats = stats, .rotated = stats};
    struct comparator_codec *none = NULL;
    struct errmsg e = {""};

    CU_ASSERT_EQUAL(comparator_codec_new(comparator_find("oscar-2"), &s, &none, &e), -ENODATA);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "needs statistics with queries"));
    s.geometry.d = 24;
    CU_ASSERT_EQUAL(comparator_codec_new(comparator_find("oscar-2"), &s, &none, &e), -EOPNOTSUPP);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "24 dimensions"));
}

const struct test_case test_cases[] = {
    TEST(test_moments), TEST(test_kvquant),       TEST(test_svdq), TEST(test_kqsvd),
    TEST(test_oscar),   TEST(test_oscar_refused), TEST_END,
};
const char test_suite[] = "comparator_calibrated";
