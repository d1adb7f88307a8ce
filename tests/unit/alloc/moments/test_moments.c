/* Moments against two passes in binary64: added in blocks, merged in any order, by ranges of heads, and
 * through a file. */
#include <errno.h>
#include <float.h>
#include <math.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/moments/moments_format.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tests/unit/alloc/shapes.h"

enum { LAYERS = 2, HEADS = 3, D = 34, WIDTH = HEADS * D, TOKENS = 150 };

static struct moments_options options(void)
{
    struct moments_options o = {
        .geometry = shape(LAYERS, HEADS, HEADS, D, D), .model_name = "tiny", .n_sink = 4};

    memset(o.model_digest, 7, sizeof(o.model_digest));
    return o;
}

static struct moments *make(void)
{
    struct moments_options o = options();
    struct moments *m = NULL;
    struct errmsg e = {""};

    CU_ASSERT_EQUAL_FATAL(moments_new(&o, &m, &e), 0);
    return m;
}

/* Keys with a mean of 900, and values that depend on them: [layer][side]. */
static float *draw(void)
{
    float *x = calloc((size_t) LAYERS * 2 * TOKENS * WIDTH, sizeof(*x));

    assert(x);
    for (size_t l = 0; l < LAYERS; l++)
        for (size_t i = 0; i < TOKENS * WIDTH; i++) {
            float *k = x + l * 2 * TOKENS * WIDTH, *v = k + TOKENS * WIDTH;

            k[i] = (float) test_rand_normal() + (i % D == 3 ? 900.0f : 0.5f);
            v[i] = 0.3f * k[i] + (float) test_rand_normal();
        }
    return x;
}

static const float *side_of(const float *x, size_t layer, int side)
{
    return x + (layer * 2 + (size_t) side) * TOKENS * WIDTH;
}

static void add_all(struct moments *m, const float *x, size_t first, size_t end)
{
    struct errmsg e = {""};

    for (uint32_t l = 0; l < LAYERS; l++)
        CU_ASSERT_EQUAL(moments_add(m, l, 0, HEADS, end - first, side_of(x, l, 0) + first * WIDTH,
                                    side_of(x, l, 1) + first * WIDTH, &e),
                        0);
}

static double element(const float *x, size_t layer, size_t head, size_t t, size_t i)
{
    return (double) side_of(x, layer, i >= D)[t * WIDTH + head * D + i % D];
}

/* Means and scatters of tokens [first, end), textbook. Binary64 sums of 150 terms of squares up to 900^2 in
 * the mean and of about 1 in the scatter: 1e-10 is far above their rounding and far below one token. */
static void check(const struct moments *m, const float *x, size_t layer, size_t head, size_t first,
                  size_t end)
{
    const double *got = moments_scatter(m, (uint32_t) layer, (uint32_t) head);
    double mean[2 * D] = {0};

    CU_ASSERT_EQUAL(moments_count(m, (uint32_t) layer, (uint32_t) head), end - first);
    for (size_t i = 0; i < 2 * D; i++) {
        for (size_t t = first; t < end; t++)
            mean[i] += element(x, layer, head, t, i) / (double) (end - first);
        CU_ASSERT_DOUBLE_EQUAL(moments_mean(m, (uint32_t) layer, (uint32_t) head)[i], mean[i], 1e-10);
    }
    for (size_t i = 0; i < 2 * D; i++)
        for (size_t j = 0; j <= i; j++) {
            double want = 0;

            for (size_t t = first; t < end; t++)
                want += (element(x, layer, head, t, i) - mean[i]) * (element(x, layer, head, t, j) - mean[j]);
            CU_ASSERT_DOUBLE_EQUAL(got[i * (i + 1) / 2 + j], want, 1e-9);
        }
}

static void test_against_two_passes(void)
{
    _cleanup_(moments_freep) struct moments *m = make();
    _cleanup_(freep) float *x = draw();
    size_t cuts[] = {0, 1, 2, 66, 130, TOKENS}; /* single tokens, a whole block, a part of one */

    for (size_t i = 0; i + 1 < sizeof(cuts) / sizeof(*cuts); i++)
        add_all(m, x, cuts[i], cuts[i + 1]);
    for (size_t l = 0; l < LAYERS; l++)
        for (size_t h = 0; h < HEADS; h++)
            check(m, x, l, h, 0, TOKENS);
    add_all(m, x, 5, 5); /* no tokens: nothing changes */
    check(m, x, 1, 2, 0, TOKENS);
}

/* Scatters between heads, textbook, of tokens [0, end). */
static void check_joint(const struct moments *m, const float *x, size_t layer, size_t end)
{
    double mean[HEADS][2 * D] = {{0}};

    for (size_t h = 0; h < HEADS; h++)
        for (size_t i = 0; i < 2 * D; i++)
            for (size_t t = 0; t < end; t++)
                mean[h][i] += element(x, layer, h, t, i) / (double) end;
    for (uint32_t a = 0; a < HEADS; a++)
        for (uint32_t b = 0; b < HEADS; b++)
            for (size_t i = 0; i < D && a != b; i++)
                for (size_t j = 0; j < D; j++) {
                    double kk = 0, vk = 0;

                    for (size_t t = 0; t < end; t++) {
                        double key = element(x, layer, b, t, j) - mean[b][j];

                        kk += (element(x, layer, a, t, i) - mean[a][i]) * key;
                        vk += (element(x, layer, a, t, D + i) - mean[a][D + i]) * key;
                    }
                    if (a > b)
                        CU_ASSERT_DOUBLE_EQUAL(moments_key_scatter(m, (uint32_t) layer, a, b)[i * D + j], kk,
                                               1e-9);
                    CU_ASSERT_DOUBLE_EQUAL(moments_value_scatter(m, (uint32_t) layer, a, b)[i * D + j], vk,
                                           1e-9);
                }
}

static struct moments *make_joint(void)
{
    struct moments_options o = options();
    struct moments *m = NULL;
    struct errmsg e = {""};

    o.joint = true;
    CU_ASSERT_EQUAL_FATAL(moments_new(&o, &m, &e), 0);
    return m;
}

/* Joint moments added in blocks, merged, through a file, and reduced to moments of single heads. */
static void test_joint(void)
{
    _cleanup_(moments_freep) struct moments *m = make_joint(), *other = make_joint(), *read = NULL,
                                            *single = make();
    size_t n = moments_bytes(&m->o.geometry, true);
    _cleanup_(freep) uint8_t *image = malloc(n);
    _cleanup_(freep) float *x = draw();
    struct errmsg e = {""};

    assert(image);
    CU_ASSERT(n > moments_bytes(&m->o.geometry, false));
    add_all(m, x, 0, 1);
    add_all(m, x, 1, 70);
    add_all(other, x, 70, TOKENS);
    check_joint(m, x, 1, 70);
    CU_ASSERT_EQUAL(moments_merge(m, other, &e), 0);
    moments_write(m, image);
    CU_ASSERT_EQUAL_FATAL(moments_parse(image, n, &read, &e), 0);
    CU_ASSERT(read->o.joint);
    for (size_t l = 0; l < LAYERS; l++) {
        check_joint(read, x, l, TOKENS);
        for (size_t h = 0; h < HEADS; h++)
            check(read, x, l, h, 0, TOKENS);
    }
    CU_ASSERT_EQUAL(moments_merge(single, read, &e), 0);
    check(single, x, 1, 2, 0, TOKENS);
    CU_ASSERT_EQUAL(moments_merge(read, single, &e), -EINVAL);
    CU_ASSERT_EQUAL(moments_add(m, 0, 0, HEADS - 1, 1, x, x, &e), -EINVAL); /* not all heads */
}

/* A file whose scatter between heads no tokens can have, and one whose heads have different tokens. */
static void test_impossible_joint(void)
{
    _cleanup_(moments_freep) struct moments *m = make_joint(), *read = NULL;
    size_t n = moments_bytes(&m->o.geometry, true);
    _cleanup_(freep) uint8_t *image = malloc(n);
    _cleanup_(freep) float *x = draw();
    struct errmsg e = {""};
    double good;

    assert(image);
    add_all(m, x, 0, TOKENS);
    good = m->joint[5];
    m->joint[5] = 1e9;
    moments_write(m, image);
    CU_ASSERT_EQUAL(moments_parse(image, n, &read, &e), -EBADMSG);
    m->joint[5] = good;
    m->count[1]++;
    moments_write(m, image);
    CU_ASSERT_EQUAL(moments_parse(image, n, &read, &e), -EBADMSG);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "different tokens"));
    m->count[1]--;
    moments_write(m, image);
    CU_ASSERT_EQUAL(moments_parse(image, n, &read, &e), 0);
}

/* Parts merge in any order and grouping, with an empty part. */
static void test_merge(void)
{
    static const int orders[][4] = {{0, 1, 2, 3}, {3, 2, 1, 0}, {2, 0, 3, 1}};
    _cleanup_(freep) float *x = draw();
    struct errmsg e = {""};

    for (size_t o = 0; o < 3; o++) {
        size_t cuts[] = {0, 40, 40, 99, TOKENS};
        struct moments *part[4];

        for (size_t i = 0; i < 4; i++) {
            part[i] = make();
            add_all(part[i], x, cuts[i], cuts[i + 1]);
        }
        CU_ASSERT_EQUAL(moments_merge(part[orders[o][0]], part[orders[o][1]], &e), 0);
        CU_ASSERT_EQUAL(moments_merge(part[orders[o][2]], part[orders[o][3]], &e), 0);
        CU_ASSERT_EQUAL(moments_merge(part[orders[o][0]], part[orders[o][2]], &e), 0);
        check(part[orders[o][0]], x, 1, 1, 0, TOKENS);
        for (size_t i = 0; i < 4; i++)
            (void) moments_free(part[i]);
    }
}

/* Moments of two processes with different heads merge to those of all heads; heads without tokens count 0. */
static void test_ranges_of_heads(void)
{
    _cleanup_(moments_freep) struct moments *a = make(), *b = make();
    _cleanup_(freep) float *x = draw(), *some = calloc((size_t) TOKENS * 2 * WIDTH, sizeof(float));
    struct errmsg e = {""};

    assert(some);
    /* heads 1 and 2 of layer 0 side by side, like in the process that holds them */
    for (size_t t = 0; t < TOKENS; t++)
        for (size_t i = 0; i < 2 * D; i++) {
            some[t * 2 * D + i] = side_of(x, 0, 0)[t * WIDTH + D + i];
            some[(TOKENS + t) * 2 * D + i] = side_of(x, 0, 1)[t * WIDTH + D + i];
        }
    CU_ASSERT_EQUAL(moments_add(a, 0, 1, 2, TOKENS, some, some + TOKENS * 2 * D, &e), 0);
    CU_ASSERT_EQUAL(moments_count(a, 0, 0), 0);
    CU_ASSERT_EQUAL(moments_merge(b, a, &e), 0);
    check(b, x, 0, 1, 0, TOKENS);
    check(b, x, 0, 2, 0, TOKENS);
    CU_ASSERT_EQUAL(moments_add(a, 0, 1, 3, 1, some, some, &e), -EINVAL);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "2 layers of 3 KV heads"));
    CU_ASSERT_EQUAL(moments_add(a, LAYERS, 0, 1, 1, some, some, &e), -EINVAL);
    CU_ASSERT_EQUAL(moments_add(a, 0, UINT32_MAX, 2, 1, some, some, &e), -EINVAL);
    some[3 * 2 * D + D] = NAN; /* head 2 of token 3 */
    CU_ASSERT_EQUAL(moments_add(a, 0, 1, 2, TOKENS, some, some + TOKENS * 2 * D, &e), -EINVAL);
    CU_ASSERT_STRING_EQUAL(e.text, "a key of layer 0 head 2 is not finite");
    check(a, x, 0, 1, 0, TOKENS);
}

static void test_merge_refuses(void)
{
    _cleanup_(moments_freep) struct moments *a = make(), *b = make();
    struct errmsg e = {""};

    b->o.model_digest[5] ^= 1;
    CU_ASSERT_EQUAL(moments_merge(a, b, &e), -EINVAL);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "different models"));
    b->o.model_digest[5] ^= 1;
    b->o.geometry.freq[1] *= 2;
    CU_ASSERT_EQUAL(moments_merge(a, b, &e), -EINVAL);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "different geometries"));
    b->o.geometry.freq[1] /= 2;
    b->o.n_sink = 0;
    CU_ASSERT_EQUAL(moments_merge(a, b, &e), -EINVAL);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, "different sinks: 4 and 0"));
    b->o.n_sink = 4;
    a->count[2] = MOMENTS_COUNT_MAX;
    b->count[2] = 1;
    CU_ASSERT_EQUAL(moments_merge(a, b, &e), -EINVAL);
    CU_ASSERT_EQUAL(moments_merge(a, a, &e), -EINVAL);
}

static void test_file(void)
{
    _cleanup_(moments_freep) struct moments *m = make(), *back = NULL;
    _cleanup_(freep) float *x = draw();
    struct errmsg e = {""};
    size_t n = moments_bytes(&m->o.geometry, m->o.joint);
    _cleanup_(freep) uint8_t *bytes = malloc(n), *again = malloc(n);

    add_all(m, x, 0, TOKENS);
    moments_write(m, bytes);
    /* 256 of header, 17 frequencies, 6 counts, 6 means of 68, 6 triangles of 34 * 69, to 64, digest */
    CU_ASSERT_EQUAL(n, ((256 + 8 * (17 + 6 + 6 * 68 + 6 * 34 * 69) + 63) / 64) * 64 + 32);
    CU_ASSERT_EQUAL_FATAL(moments_parse(bytes, n, &back, &e), 0);
    moments_write(back, again);
    CU_ASSERT_EQUAL(memcmp(bytes, again, n), 0);
    check(back, x, 0, 2, 0, TOKENS);
    CU_ASSERT_STRING_EQUAL(moments_get_options(back)->model_name, "tiny");
    CU_ASSERT(moments_recognise(bytes, n) && !moments_recognise("KVCSTATS", 8) &&
              !moments_recognise(bytes, 7));
}

/* Changes one binary64 number of an image, corrects the digest and parses. */
static int parse_with(const uint8_t *bytes, size_t n, size_t at, double value, struct errmsg *e)
{
    _cleanup_(moments_freep) struct moments *m = NULL;
    _cleanup_(freep) uint8_t *copy = malloc(n);

    memcpy(copy, bytes, n);
    memcpy(copy + at, &value, sizeof(value));
    (void) crypto_hash_sha256(copy + n - DIGEST_BYTES, copy, n - DIGEST_BYTES);
    return moments_parse(copy, n, &m, e);
}

static void test_hostile_file(void)
{
    _cleanup_(moments_freep) struct moments *m = make(), *back = NULL;
    _cleanup_(freep) float *x = draw();
    struct errmsg e = {""};
    size_t n = moments_bytes(&m->o.geometry, m->o.joint), mean = 256 + 8 * (17 + 6),
           scatter = mean + 8 * 6 * 68;
    _cleanup_(freep) uint8_t *bytes = malloc(n);

    add_all(m, x, 0, TOKENS);
    moments_write(m, bytes);
    for (size_t i = 0; i < n; i += i < 300 ? 1 : 331) {
        bytes[i] ^= 0x10;
        CU_ASSERT_EQUAL(moments_parse(bytes, n, &back, &e), -EBADMSG);
        bytes[i] ^= 0x10;
    }
    for (size_t cut = 0; cut < n; cut += 1 + cut / 8)
        CU_ASSERT_EQUAL(moments_parse(bytes, cut, &back, &e), -EBADMSG);
    CU_ASSERT_EQUAL(parse_with(bytes, n, mean + 8, 3.25, &e), 0);
    CU_ASSERT_EQUAL(parse_with(bytes, n, mean + 8, NAN, &e), -EBADMSG);
    CU_ASSERT_EQUAL(parse_with(bytes, n, mean + 8, (double) FLT_MAX, &e), 0);
    CU_ASSERT_EQUAL(parse_with(bytes, n, mean + 8, 1.7e308, &e), -EBADMSG); /* no number of binary32 */
    CU_ASSERT_EQUAL(parse_with(bytes, n, scatter, 1e300, &e), -EBADMSG);
    CU_ASSERT_EQUAL(parse_with(bytes, n, scatter, -1, &e), -EBADMSG); /* a variance */
    /* a covariance above its variances */
    CU_ASSERT_EQUAL(parse_with(bytes, n, scatter + 8, 1e6, &e), -EBADMSG);
    CU_ASSERT_STRING_EQUAL(e.text, "moments file: no tokens have the moments of layer 0, head 0");
    CU_ASSERT_EQUAL(parse_with(bytes, n, scatter + 8, INFINITY, &e), -EBADMSG);
    CU_ASSERT_EQUAL(parse_with(bytes, n, n - DIGEST_BYTES - 8, 1, &e), -EBADMSG); /* padding */
    CU_ASSERT_EQUAL(parse_with(bytes, n, 256 + 8 * 17, 0, &e), -EBADMSG);         /* moments without tokens */
}

/* The largest and smallest numbers that tokens can have: sums of their moments stay finite. */
static void test_merge_of_extremes(void)
{
    _cleanup_(moments_freep) struct moments *low = make(), *high = make();
    _cleanup_(freep) float *x = draw();
    size_t n = (size_t) LAYERS * 2 * TOKENS * WIDTH;
    const double *mean, *scatter;

    for (size_t i = 0; i < n; i++)
        x[i] = FLT_MAX;
    add_all(high, x, 0, TOKENS);
    for (size_t i = 0; i < n; i++)
        x[i] = -FLT_MAX;
    add_all(low, x, 0, TOKENS);
    for (unsigned i = 0; i < 3; i++)
        CU_ASSERT_EQUAL(moments_merge(low, high, NULL), 0);
    mean = moments_mean(low, 0, 0);
    scatter = moments_scatter(low, 0, 0);
    CU_ASSERT(isfinite(mean[0]) && isfinite(scatter[0]) && scatter[0] > 0);
}

const struct test_case test_cases[] = {
    TEST(test_against_two_passes),
    TEST(test_merge),
    TEST(test_ranges_of_heads),
    TEST(test_merge_refuses),
    TEST(test_file),
    TEST(test_hostile_file),
    TEST(test_merge_of_extremes),
    TEST(test_joint),
    TEST(test_impossible_joint),
    TEST_END,
};
const char test_suite[] = "moments";
