/* Formats without statistics, on numbers whose codes can be computed by hand; and the list of all
 * formats. */
#include "tests/lib/test.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#include "alloc/math/rotation.h"
#include "alloc/solve/transform.h"
#include "base/cleanup.h"
#include "base/half.h"
#include "base/splitmix64.h"
#include "tests/unit/lab/comparators/codec.h"
#include "lab/comparators/low_rank.h"
#include "lab/comparators/outliers.h"
#include "lab/comparators/range.h"

/* ---- pieces ---- */

static void test_range(void)
{
    const float x[] = {0, 0.4f, 0.6f, 3}, apart[] = {5, 99, 7, 99, 6, 99}, flat[] = {2, 2};
    const float wide[] = {-1, 0.26f, 4};
    float y[6] = {0};

    CU_ASSERT_EQUAL(range_code(x, 4, 1, 2, y), 4 * 2 + 32); /* step 1 */
    CU_ASSERT(y[0] == 0 && y[1] == 0 && y[2] == 1 && y[3] == 3);
    CU_ASSERT_EQUAL(range_code(apart, 3, 2, 1, y),
                    3 + 32); /* step 2 from 5; 6 is half-way: to even, which is 0 */
    CU_ASSERT(y[0] == 5 && y[2] == 7 && y[4] == 5 && y[1] == 0);
    CU_ASSERT_EQUAL(range_code(flat, 2, 1, 4, y), 2 * 4 + 32);
    CU_ASSERT(y[0] == 2 && y[1] == 2);
    CU_ASSERT_EQUAL(range_code(wide, 3, 1, 1, y), 3 + 32); /* step 5: 0.26 is nearer to -1 */
    CU_ASSERT(y[0] == -1 && y[1] == -1 && y[2] == 4);
}

static void test_outliers(void)
{
    const float x[] = {3, 0, -9, 0, 3, 0, 8, 0, -9, 0};
    uint8_t mark[5];

    CU_ASSERT_EQUAL(outliers_find(x, 5, 2, 1, mark), 2);
    CU_ASSERT(memcmp(mark, (const uint8_t[]){0, 1, 0, 1, 0}, 5) == 0); /* of two smallest the first */
    CU_ASSERT_DOUBLE_EQUAL(outliers_rest_mean(x, 5, 2, mark), (3 + 3 - 9) / 3.0, 1e-6);
    CU_ASSERT_EQUAL(outliers_find(x, 5, 2, 3, mark), 5); /* fewer than six */
    CU_ASSERT_EQUAL(outliers_rest_mean(x, 5, 2, mark), 0);
    CU_ASSERT_EQUAL(outliers_each(0.02, 64), 1);
    CU_ASSERT_EQUAL(outliers_each(0.02, 192), 2);
    CU_ASSERT_EQUAL(outliers_each(0.02, 49), 0);
}

/* A matrix of rank 2 is reproduced up to binary16 (2^-11 of each of two factors, over terms no larger than
 * the sum of both). A matrix of rank 3 with singular values 8, 4, 1 loses the last component. */
static void test_low_rank(void)
{
    enum { N = 6, D = 8 };
    static const double sigma[2][3] = {{8, 4, 0}, {8, 4, 1}};
    double u[N * N], v[D * D];
    float x[N * D], y[N * D];

    rotation_matrix(N, 1, u);
    rotation_matrix(D, 2, v);
    for (int kind = 0; kind < 2; kind++) {
        double error = 0;

        for (int i = 0; i < N; i++)
            for (int j = 0; j < D; j++) {
                double sum = 0;

                for (int k = 0; k < 3; k++)
                    sum += sigma[kind][k] * u[k * N + i] * v[k * D + j];
                x[i * D + j] = (float) sum;
            }
        CU_ASSERT_EQUAL_FATAL(low_rank(x, N, D, 2, y), 0);
        for (int i = 0; i < N * D; i++)
            error += (double) (x[i] - y[i]) * (double) (x[i] - y[i]);
        if (kind == 0) {
            CU_ASSERT(error < (8 * 8 + 4 * 4) *
                                  pow(2, -20)); /* each factor off by 2^-11: (2 2^-11)^2 of the energy */
        } else {
            CU_ASSERT(error >= 1 - 1e-2 && error < 1.5); /* the best is 1; three rounds do not reach it */
        }
    }
}

/* ---- ggml ---- */

static void test_q8_0(void)
{
    struct comparator_source s = {.geometry = plain_geometry(1, 32)};
    _cleanup_(comparator_codec_freep) struct comparator_codec *codec = codec_of("q8_0", &s);
    float x[64] = {127, 0.4f, 0.6f, -3.5f}, y[64];

    x[32] = -254; /* the second token: scale 2 */
    x[33] = 2.9f;
    CU_ASSERT_EQUAL(coded(codec, SIDE_K, x, 2, y), 2 * (32 * 8 + 16));
    CU_ASSERT(y[0] == 127 && y[1] == 0 && y[2] == 1 && y[3] == -4 && y[4] == 0);
    CU_ASSERT(y[32] == -254 && y[33] == 2 && y[34] == 0);
}

static void test_q4_0(void)
{
    struct comparator_source s = {.geometry = plain_geometry(1, 32)};
    _cleanup_(comparator_codec_freep) struct comparator_codec *codec = codec_of("q4_0", &s);
    float x[64] = {-8, 7.9f, 3.4f, -0.6f, 0.4f}, y[64];

    x[32] = 4; /* largest is positive: scale -0.5, so 4 is code 0 and -4 is beyond 15 */
    x[33] = -4;
    x[34] = 1.2f;
    CU_ASSERT_EQUAL(coded(codec, SIDE_V, x, 2, y), 2 * (32 * 4 + 16));
    CU_ASSERT(y[0] == -8 && y[1] == 7 && y[2] == 3 && y[3] == -1 && y[4] == 0);
    CU_ASSERT(y[32] == 4 && y[33] == -3.5f && y[34] == 1);
}

/* The worst vector for q4_0-rot is one whose rotation is a single spike. The best vector has rotated
 * coordinates that are all levels; this case uses it. */
static void test_q4_0_rot(void)
{
    struct comparator_source s = {.geometry = plain_geometry(1, 32)};
    _cleanup_(comparator_codec_freep) struct comparator_codec *codec = codec_of("q4_0-rot", &s);
    double R[32 * 32];
    float x[32], y[32];

    rotation_matrix(32, 0, R);
    for (int i = 0; i < 32; i++) { /* x = R' z, z = -8, 7, 0, 0 … are levels of scale 1 */
        x[i] = (float) (-8 * R[0 * 32 + i] + 7 * R[1 * 32 + i]);
    }

    CU_ASSERT_EQUAL(coded(codec, SIDE_K, x, 1, y), 32 * 4 + 16);
    for (int i = 0; i < 32; i++)
        CU_ASSERT_DOUBLE_EQUAL(x[i], y[i], 1e-5);
    s.geometry = plain_geometry(1, 40);
    {
        struct comparator_codec *none = NULL;
        struct errmsg e = {""};

        CU_ASSERT_EQUAL(comparator_codec_new(comparator_find("q4_0-rot"), &s, &none, &e), -EINVAL);
        CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "40"));
        CU_ASSERT_PTR_NULL(none);
    }
}

/* ---- groups ---- */

/* Keys have a range per channel, values one per token: the best case of one is the worst of the other. */
static void test_kivi(void)
{
    enum { N = 40, HEADS = 2, D = 32, ROW = HEADS * D };
    struct comparator_source s = {.geometry = plain_geometry(HEADS, D)};
    _cleanup_(comparator_codec_freep) struct comparator_codec *codec = codec_of("kivi-2", &s);
    float k[N * ROW], v[N * ROW], y[N * ROW];
    double wrong = 0;

    for (int t = 0; t < N; t++)
        for (int i = 0; i < ROW; i++) {
            k[t * ROW + i] = (float) ((t % 4) * (1 + i));
            v[t * ROW + i] = (float) ((i % 4) * (1 + t));
        }
    /* 64 channels: a group of 32 tokens and one of 8 */
    CU_ASSERT_EQUAL(coded(codec, SIDE_K, k, N, y), ROW * (N * 2 + 2 * 32));
    CU_ASSERT(memcmp(k, y, sizeof(k)) == 0);
    CU_ASSERT_EQUAL(coded(codec, SIDE_V, v, N, y), N * (ROW * 2 + 2 * 32));
    CU_ASSERT(memcmp(v, y, sizeof(v)) == 0);
    (void) coded(codec, SIDE_V, k, N, y);
    for (int i = 0; i < N * ROW; i++)
        wrong += fabs((double) (k[i] - y[i]));
    CU_ASSERT(wrong > N * ROW);
}

/* An outlier is decoded in binary16 for any codes, and rank 2 restores the error of the codes. */
static void test_gear(void)
{
    enum { N = 64, D = 64 };
    struct comparator_source s = {.geometry = plain_geometry(1, D)};
    _cleanup_(comparator_codec_freep) struct comparator_codec *codec = codec_of("gear-2", &s);
    static float x[N * D], y[N * D];
    double energy = 0, plain = 0;

    for (int t = 0; t < N; t++) /* rank 1 and noise of a tenth */
        for (int i = 0; i < D; i++)
            x[t * D + i] = (float) (sin(t) * cos(3 * i) + 0.05 * test_rand_normal());
    x[7 * D + 5] = 1000;
    x[9 * D + 5] = -500;
    /* per channel 64 codes, a range, two outliers; then 2 x (64 + 64) numbers of 16 bits */
    CU_ASSERT_EQUAL(coded(codec, SIDE_K, x, N, y), D * (N * 2 + 32 + 2 * 32) + 2 * (N + D) * 16);
    CU_ASSERT(y[7 * D + 5] == 1000 && y[9 * D + 5] == -500);
    for (int i = 0; i < N * D; i++)
        energy += (double) (x[i] - y[i]) * (double) (x[i] - y[i]) / (N * D);
    for (int i = 0; i < D; i++) { /* the same codes without what GEAR adds, where there is no outlier */
        float z[N * D];

        (void) range_code(x + i, N, D, 2, z + i);
        for (int t = 0; t < N && i != 5; t++)
            plain +=
                (double) (x[t * D + i] - z[t * D + i]) * (double) (x[t * D + i] - z[t * D + i]) / (N * D);
    }

    /* A step of 2/3 alone gives 0.037. Most of that error is noise, but the smaller range reduces it too. */
    CU_ASSERT(energy < plain / 2);
    CU_ASSERT_EQUAL(coded(codec, SIDE_V, x, 3, y), 3 * (D * 2 + 32 + 2 * 32) + 2 * (3 + D) * 16);
}

/* ---- rotations ---- */

/* The definition, in binary64: rotate, code, rotate back. */
static void quarot_oracle(const float *x, size_t d, unsigned b, double *ret_y)
{
    double R[64 * 64], z[64], lo = 0, hi = 0, step, zero, top = (1 << b) - 1;

    rotation_matrix(d, 0, R);
    for (size_t i = 0; i < d; i++) {
        z[i] = 0;
        for (size_t j = 0; j < d; j++)
            z[i] += R[i * d + j] * (double) x[j];
        lo = fmin(lo, z[i]);
        hi = fmax(hi, z[i]);
    }

    step = (double) f16_to_f32(f32_to_f16((float) (0.95 * (hi - lo) / top)));
    zero = rint(-0.95 * lo / step);
    for (size_t i = 0; i < d; i++)
        z[i] = step * (fmin(fmax(rint(z[i] / step) + zero, 0), top) - zero);
    for (size_t i = 0; i < d; i++) {
        ret_y[i] = 0;
        for (size_t j = 0; j < d; j++)
            ret_y[i] += R[j * d + i] * z[j];
    }
}

static void test_quarot(void)
{
    enum { N = 5, HEADS = 3, D = 64 };
    struct comparator_source s = {.geometry = plain_geometry(HEADS, D)};
    static const char *const names[] = {"quarot-3", "quarot-4"};

    for (unsigned k = 0; k < 2; k++) {
        _cleanup_(comparator_codec_freep) struct comparator_codec *codec = codec_of(names[k], &s);
        static float x[N * HEADS * D], y[N * HEADS * D];

        for (int i = 0; i < N * HEADS * D; i++)
            x[i] = (float) (test_rand_normal() + 0.5);
        CU_ASSERT_EQUAL(coded(codec, SIDE_K, x, N, y), N * HEADS * (D * (3 + k) + 32));
        for (int v = 0; v < N * HEADS; v++) {
            double want[D], off = 0;

            quarot_oracle(x + v * D, D, 3 + k, want);
            for (int i = 0; i < D; i++)
                off = fmax(off, fabs(want[i] - (double) y[v * D + i]));
            /* a coordinate within 1e-6 of a threshold may take the other code: then everything moves by step
             * / 8; that one of 960 does is a chance of a thousandth */
            CU_ASSERT(off < 1e-4);
        }
    }
}

/* A vector whose rotation is all ones: each coordinate takes the level nearest to 1, so y is that multiple
 * of x. */
static void test_turboquant(void)
{
    enum { D = 64 };
    static const struct {
        const char *name;
        double level; /* of N(0,1), nearest to 1: thresholds 1.05 (0.756, 1.344), 1.10 (0.942, 1.256) */
        unsigned bits;
    } cases[] = {{"turboquant-2", 1.510418, 2}, {"turboquant-3", 0.756005, 3}, {"turboquant-4", 0.942340, 4}};
    struct comparator_source s = {.geometry = plain_geometry(1, D)};
    double R[D * D];
    float x[D], y[D], none[D] = {0};

    rotation_matrix(D, splitmix64_seed(1, D), R);
    for (int i = 0; i < D; i++) {
        double sum = 0;

        for (int j = 0; j < D; j++)
            sum += R[j * D + i];
        x[i] = (float) sum;
    }

    for (size_t k = 0; k < sizeof(cases) / sizeof(*cases); k++) {
        _cleanup_(comparator_codec_freep) struct comparator_codec *codec = codec_of(cases[k].name, &s);

        CU_ASSERT_EQUAL(coded(codec, SIDE_V, x, 1, y), D * cases[k].bits + 16);
        for (int i = 0; i < D; i++) /* int8 multiples of largest / 127: half of 2.73 / 127 */
            CU_ASSERT_DOUBLE_EQUAL(y[i], cases[k].level * (double) x[i], 0.011 * fabs((double) x[i]) + 1e-5);
        (void) coded(codec, SIDE_V, none, 1, y);
        for (int i = 0; i < D; i++)
            CU_ASSERT(y[i] == 0);
    }
}

/*
 * A tile whose rotation has the size a_token b_channel and signs like a chess board: balanced, all sizes are
 * equal, so the smallest and the largest number of each channel, and of each token, are all numbers, and two
 * bits keep them but for the rounding of three scales to binary16.
 */
static void test_kvarn(void)
{
    enum { N = 128, D = 64 };
    static const struct {
        const char *name;
        unsigned bits[2]; /* by side */
    } cases[] = {{"kvarn-2", {2, 2}}, {"kvarn-3", {4, 2}}, {"kvarn-4", {4, 4}}};
    struct comparator_source s = {.geometry = plain_geometry(1, D)};
    static double R[D * D];
    static float x[N * D], y[N * D];

    rotation_matrix(D, 0, R);
    for (int t = 0; t < N; t++)
        for (int i = 0; i < D; i++) {
            double sum = 0;

            for (int j = 0; j < D; j++)
                sum += R[j * D + i] * ((t + j) % 2 ? -1 : 1) * (4 + t % 3) * (j % 4 < 2 ? 4 : 5);
            x[t * D + i] = (float) sum;
        }
    for (size_t k = 0; k < sizeof(cases) / sizeof(*cases); k++) {
        _cleanup_(comparator_codec_freep) struct comparator_codec *codec = codec_of(cases[k].name, &s);

        CU_ASSERT_EQUAL(coded(codec, SIDE_K, x, N, y), N * D * cases[k].bits[0] + D * 32 + N * 16);
        for (int side = 0; side < 2; side++) {
            double error = 0, energy = 0;

            (void) coded(codec, (enum side) side, x, N, y);
            for (int i = 0; i < N * D; i++) {
                error += pow((double) x[i] - (double) y[i], 2);
                energy += pow((double) x[i], 2);
            }
            CU_ASSERT(error < pow(3 * 0x1p-11, 2) * energy);
        }
        CU_ASSERT_EQUAL(coded(codec, SIDE_V, x, 5, y), 5 * D * cases[k].bits[1] + 5 * 32 + D * 16);
    }
}

/* Normal vectors lose what a trellis of 256 states loses, 10.9 and 16.4 dB down, and less than scalar
 * levels. */
static void test_tcq(void)
{
    enum { N = 300, D = 128 };
    static const double most[] = {0.088, 0.0255}, scalar[] = {0.1175, 0.0345};
    struct comparator_source s = {.geometry = plain_geometry(1, D)};
    static float x[N * D], y[N * D];

    for (int i = 0; i < N * D; i++)
        x[i] = 3 * (float) test_rand_normal();
    memset(x, 0, D * sizeof(*x)); /* a vector of zeros */
    for (unsigned k = 0; k < 2; k++) {
        _cleanup_(comparator_codec_freep) struct comparator_codec *codec =
            codec_of(k == 0 ? "tcq-2" : "tcq-3", &s);
        double error = 0, energy = 0;

        CU_ASSERT_EQUAL(coded(codec, SIDE_K, x, N, y), N * (D * (2 + k) + 16));
        for (int i = 0; i < N * D; i++) {
            error += pow((double) x[i] - (double) y[i], 2);
            energy += pow((double) x[i], 2);
        }
        CU_ASSERT(error < most[k] * energy && error > 0.6 * scalar[k] * energy);
        for (int i = 0; i < D; i++)
            CU_ASSERT_EQUAL(y[i], 0);
    }
}

/* Every name is found once, with its description; KIVI, GEAR and TCQ refuse channels that their groups do
 * not divide. */
static void test_the_list(void)
{
    static const char *const refusing[] = {"kivi-2", "kivi-4", "gear-2", "tcq-2"};

    for (size_t i = 0; comparators[i]; i++) {
        CU_ASSERT_PTR_EQUAL(comparator_find(comparators[i]->name), comparators[i]);
        CU_ASSERT(strlen(comparators[i]->what) > 0 && strlen(comparators[i]->citation) > 0);
        CU_ASSERT(comparators[i]->block_tokens >= 1 && comparators[i]->code);
    }

    CU_ASSERT_PTR_NULL(comparator_find("kivi"));
    for (size_t i = 0; i < sizeof(refusing) / sizeof(*refusing); i++) {
        struct comparator_source s = {.geometry = plain_geometry(1, 80)};
        struct comparator_codec *codec = NULL;
        struct errmsg e = {""};

        CU_ASSERT_EQUAL(comparator_codec_new(comparator_find(refusing[i]), &s, &codec, &e), -EINVAL);
        CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "80"));
    }
}

const struct test_case test_cases[] = {
    TEST(test_range),    TEST(test_outliers), TEST(test_low_rank), TEST(test_q8_0),   TEST(test_q4_0),
    TEST(test_q4_0_rot), TEST(test_kivi),     TEST(test_gear),     TEST(test_quarot), TEST(test_turboquant),
    TEST(test_kvarn),    TEST(test_tcq),      TEST(test_the_list), TEST_END,
};
const char test_suite[] = "comparator_formats";
