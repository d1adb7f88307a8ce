/* Pages of tables that were parsed from file bytes: encode, pack into blocks, unpack, decode. alloc/ and
 * gpu/ together, on the tables of tests/lib/random_table.h; the error must fit the number of bits. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "base/half.h"
#include "gpu/codec.h"
#include "tests/lib/random_table.h"
#include "tests/lib/test.h"
#include "tests/unit/gpu/one_head_codec.h"

static struct table *make_table(const struct geometry *g, uint64_t seed, double bpd, bool v_from_k,
                                unsigned state_bits)
{
    _cleanup_(freep) void *bytes = NULL;
    struct table *t = NULL;
    struct errmsg e = {0};
    size_t n;

    CU_ASSERT_EQUAL_FATAL(state_bits > 0
                              ? random_table_bytes_trellis(g, seed, bpd, v_from_k, state_bits, &bytes, &n)
                              : random_table_bytes(g, seed, bpd, v_from_k, &bytes, &n),
                          0);
    CU_ASSERT_EQUAL_FATAL(table_parse(bytes, n, &t, &e), 0);
    return t;
}

/* White noise about the mean. */
static void fill(const float *mean, size_t d, float *x)
{
    for (size_t t = 0; t < CHUNK_TOKENS; t++)
        for (size_t i = 0; i < d; i++)
            x[t * d + i] = mean[i] + (float) test_rand_normal();
}

enum { N = CHUNK_TOKENS * GEOMETRY_DIM_MAX };

/* Encodes, packs, unpacks and decodes a page [CHUNK_TOKENS, d] of keys and values, in place. */
static void page_round_trip(struct head_view h, size_t d, float *k, float *v)
{
    size_t block_bytes = ((size_t) h.k->code_bits + h.v->code_bits) * CHUNK_TOKENS / 8;
    _cleanup_(freep) float *scratch = calloc(codec_scratch_floats(), sizeof(*scratch));
    _cleanup_(freep) uint8_t *codes = calloc(4, N), *block = calloc(1, block_bytes + 1);
    struct encode_counts counts[2] = {0};

    assert(scratch && codes && block);
    CU_ASSERT_EQUAL(one_head_encode(h, k, v, d, CHUNK_TOKENS, codes, codes + N, counts, scratch), 0);
    block_pack(h, codes, codes + N, block);
    block_unpack(h, block, codes + 2 * N, codes + 3 * N);
    CU_ASSERT_EQUAL(memcmp(codes, codes + 2 * N, (size_t) h.k->r * CHUNK_TOKENS), 0);
    CU_ASSERT_EQUAL(memcmp(codes + N, codes + 3 * N, (size_t) h.v->r * CHUNK_TOKENS), 0);
    one_head_decode(h, codes + 2 * N, codes + 3 * N, CHUNK_TOKENS, k, v, d, scratch);
}

/* Mean squared error of a page's K, relative to the variance of the input. */
static double page_error(const struct table *t, uint32_t head)
{
    struct head_view h = head_view(t, 0, head);
    size_t d = t->geometry.d;
    _cleanup_(freep) float *k = calloc(N, sizeof(*k)), *v = calloc(N, sizeof(*v)),
                           *back = calloc(N, sizeof(*back));
    double error = 0, size = 0;

    assert(k && v && back);
    fill(h.k->mean, d, k);
    fill(h.v->mean, d, v);
    memcpy(back, k, N * sizeof(*back));
    page_round_trip(h, d, back, v);
    for (size_t i = 0; i < CHUNK_TOKENS * d; i++) {
        error += pow((double) k[i] - (double) back[i], 2);
        size += pow((double) k[i] - (double) h.k->mean[i % d], 2);
    }
    return error / size;
}

/* White input on a table made for a falling spectrum: so the test only demands that more bits reduce the
 * error, and that without bits it is the variance. */
static void test_page(void)
{
    static const uint32_t dims[] = {32, 64, 80, 128, 256};

    for (size_t i = 0; i < sizeof(dims) / sizeof(dims[0]); i++)
        for (int v_from_k = 0; v_from_k <= 1; v_from_k++) {
            struct geometry g = random_table_geometry(1, 4, 2, dims[i]);
            double last = INFINITY;

            for (double bpd = 0; bpd <= 4; bpd += 2) {
                _cleanup_(table_unrefp) struct table *t = make_table(&g, 7, bpd, v_from_k, 0);
                _cleanup_(table_unrefp) struct table *strings = make_table(&g, 7, bpd, v_from_k, 6 + i % 3);
                double error = page_error(t, 1);

                CU_ASSERT_TRUE(bpd == 0 || page_error(strings, 1) < last);

                CU_ASSERT_EQUAL(memcmp(t->model_digest, random_table_model_digest, DIGEST_BYTES), 0);
                CU_ASSERT_TRUE(error < last || error == 0);
                if (bpd == 0)
                    CU_ASSERT_DOUBLE_EQUAL(error, 1, 1e-6);
                last = error;
            }
        }
}

/* ---- pages that no text gives ---- */

enum kind { SILENCE, ONE_TOKEN, LOUD_TOKEN, RANDOM_BYTES, N_KINDS };

/* Silence is the zero vector, which is far from the mean; random bytes are numbers of binary16. */
static void draw_page(enum kind kind, const float *mean, size_t d, float *x)
{
    fill(mean, d, x);
    for (size_t i = 0; i < CHUNK_TOKENS * d; i++) {
        uint16_t half = (uint16_t) test_rand();

        if (kind == SILENCE)
            x[i] = 0;
        if (kind == ONE_TOKEN)
            x[i] = x[i % d];
        if (kind == LOUD_TOKEN && i / d == 17)
            x[i] *= 1000;
        if (kind == RANDOM_BYTES)
            x[i] = f16_to_f32((half & 0x7c00) == 0x7c00 ? half & 0xbfff : half);
    }
}

enum { PAGES = 8 };

static float bad_pages[PAGES][2 * N]; /* keys, then values */

/* Squared errors of keys and values of these pages. */
static double bad_error(const struct table *t)
{
    struct head_view h = head_view(t, 0, 0);
    _cleanup_(freep) float *back = malloc(sizeof(bad_pages[0]));
    double error = 0;

    assert(back);
    for (unsigned page = 0; page < PAGES; page++) {
        memcpy(back, bad_pages[page], sizeof(bad_pages[page]));
        page_round_trip(h, t->geometry.d, back, back + N);
        for (size_t i = 0; i < 2 * N; i++) {
            CU_ASSERT_FATAL(isfinite(back[i]));
            error += pow((double) bad_pages[page][i] - (double) back[i], 2);
        }
    }
    return error;
}

/* Silence, one token again and again, one loud token, random bytes: finite, and at most twice the error of
 * scalar levels. */
static void check_bad_pages(enum kind kind)
{
    struct geometry g = random_table_geometry(1, 2, 1, 64);

    for (double bpd = 1; bpd <= 4; bpd++) {
        _cleanup_(table_unrefp) struct table *scalar = make_table(&g, 7, bpd, true, 0);
        struct head_view h = head_view(scalar, 0, 0);
        double most;

        for (unsigned page = 0; page < PAGES; page++) {
            draw_page(kind, h.k->mean, g.d, bad_pages[page]);
            draw_page(kind, h.v->mean, g.d, bad_pages[page] + N);
        }
        most = 2 * bad_error(scalar);

        for (unsigned state_bits = 6; state_bits <= 8; state_bits++) {
            _cleanup_(table_unrefp) struct table *strings = make_table(&g, 7, bpd, true, state_bits);

            CU_ASSERT(bad_error(strings) <= most);
        }
    }
}

static void test_silence(void)
{
    check_bad_pages(SILENCE);
}

static void test_one_token_repeated(void)
{
    check_bad_pages(ONE_TOKEN);
}

static void test_loud_token(void)
{
    check_bad_pages(LOUD_TOKEN);
}

static void test_random_bytes(void)
{
    check_bad_pages(RANDOM_BYTES);
}

/* A multiple of eight dimensions needs no padding in pairs of half-tiles if the number of bands is even. */
static void test_budget(void)
{
    struct geometry g = random_table_geometry(2, 4, 2, 64);

    for (double bpd = 0; bpd <= 8; bpd++) {
        _cleanup_(table_unrefp) struct table *t = make_table(&g, 7, bpd, true, 0);

        CU_ASSERT_DOUBLE_EQUAL(t->bpd_code, bpd, 1e-12);
    }
}

static void test_seeds(void)
{
    struct geometry g = random_table_geometry(2, 4, 2, 32);
    _cleanup_(table_unrefp) struct table *a = make_table(&g, 1, 3, true, 0),
                                         *b = make_table(&g, 1, 3, true, 0);
    _cleanup_(table_unrefp) struct table *c = make_table(&g, 2, 3, true, 0);

    CU_ASSERT_EQUAL(memcmp(a->digest, b->digest, DIGEST_BYTES), 0);
    CU_ASSERT_NOT_EQUAL(memcmp(a->digest, c->digest, DIGEST_BYTES), 0);
}

const char test_suite[] = "block";
const struct test_case test_cases[] = {TEST(test_page),
                                       TEST(test_budget),
                                       TEST(test_seeds),
                                       TEST(test_silence),
                                       TEST(test_one_token_repeated),
                                       TEST(test_loud_token),
                                       TEST(test_random_bytes),
                                       TEST_END};
