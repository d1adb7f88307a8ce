/* Pages of tables that were parsed from file bytes: encode, pack into blocks, unpack, decode. alloc/ and
 * gpu/ together, on the tables of tests/lib/random_table.h; the error must fit the number of bits. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
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

/* Mean squared error of a page's K, relative to the variance of the input,
 * after encode, pack, unpack, decode. */
static double page_error(const struct table *t, uint32_t head)
{
    enum { N = CHUNK_TOKENS * GEOMETRY_DIM_MAX };
    struct head_view h = head_view(t, 0, head);
    size_t d = t->geometry.d, block_bytes = ((size_t) h.k->code_bits + h.v->code_bits) * CHUNK_TOKENS / 8;
    _cleanup_(freep) float *k = calloc(N, sizeof(*k)), *v = calloc(N, sizeof(*v)),
                           *back = calloc(N, sizeof(*back));
    _cleanup_(freep) float *back_v = calloc(N, sizeof(*back_v));
    _cleanup_(freep) float *scratch = calloc(codec_scratch_floats(), sizeof(*scratch));
    _cleanup_(freep) uint8_t *codes = calloc(4, N), *block = calloc(1, block_bytes + 1);
    struct encode_counts counts[2] = {0};
    double error = 0, size = 0;

    assert(k && v && back && back_v && scratch && codes && block);
    fill(h.k->mean, d, k);
    fill(h.v->mean, d, v);
    CU_ASSERT_EQUAL(one_head_encode(h, k, v, d, CHUNK_TOKENS, codes, codes + N, counts, scratch), 0);
    block_pack(h, codes, codes + N, block);
    block_unpack(h, block, codes + 2 * N, codes + 3 * N);
    CU_ASSERT_EQUAL(memcmp(codes, codes + 2 * N, (size_t) h.k->r * CHUNK_TOKENS), 0);
    CU_ASSERT_EQUAL(memcmp(codes + N, codes + 3 * N, (size_t) h.v->r * CHUNK_TOKENS), 0);
    one_head_decode(h, codes + 2 * N, codes + 3 * N, CHUNK_TOKENS, back, back_v, d, scratch);
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
const struct test_case test_cases[] = {TEST(test_page), TEST(test_budget), TEST(test_seeds), TEST_END};
