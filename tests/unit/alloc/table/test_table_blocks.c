/* Tables whose bases of keys are in two blocks, fast and slow RoPE planes: what a reader sees and refuses. */
#include <errno.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/table/table_format.h"
#include "alloc/table/table_half.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tests/lib/random_table.h"
#include "tests/lib/test.h"

enum { PLANES = 4, DIM = 44 }; /* a short last band */

static void *blocks(unsigned state_bits, size_t *ret_n)
{
    struct geometry g = random_table_geometry(1, 2, 2, DIM);
    void *bytes = NULL;

    CU_ASSERT_EQUAL_FATAL(
        random_table_bytes_blocks(&g, 7, 3, PREDICT_HEAD, state_bits, PLANES, &bytes, ret_n), 0);
    return bytes;
}

/* Every number of a block is zero where the other block's dimensions and coordinates meet. */
static void check_codec(const struct table *t, const struct codec *k)
{
    unsigned n_fast = 0;

    CU_ASSERT_EQUAL(k->fast_planes, PLANES);
    for (uint32_t i = 0; i < k->r; i++)
        for (uint32_t j = 0; j < DIM; j++) {
            bool plane = j < PLANES || (j >= DIM / 2 && j < DIM / 2 + PLANES);

            CU_ASSERT_EQUAL(geometry_in_planes(&t->geometry, PLANES, j), plane);
            if (codec_half_is_fast(k, i / 8) != plane) {
                CU_ASSERT_EQUAL(k->enc[i * DIM + j], 0);
                CU_ASSERT_EQUAL(codec_dec_row(k, j)[i], 0);
            }
        }
    for (uint32_t half = 0; half < k->n_half; half++)
        n_fast += codec_half_is_fast(k, half);
    CU_ASSERT_EQUAL(n_fast, 2 * PLANES / 8);
}

/* With scalar levels and with trellises, with matrices of binary32 and of binary16. */
static void test_reading(void)
{
    for (unsigned i = 0; i < 4; i++) {
        _cleanup_(table_unrefp) struct table *t = NULL;
        _cleanup_(freep) void *bytes = NULL, *single = NULL;
        struct errmsg e = {""};
        size_t n, n_single;

        single = blocks(i / 2 * 6, &n_single);
        if (i % 2 == 1)
            CU_ASSERT_EQUAL_FATAL(table_half_convert(single, n_single, &bytes, &n, &e), 0);
        CU_ASSERT_EQUAL_FATAL(
            i % 2 == 1 ? table_parse(bytes, n, &t, &e) : table_parse(single, n_single, &t, &e), 0);
        CU_ASSERT_EQUAL(table_header(t)->version, TABLE_VERSION);
        for (uint32_t head = 0; head < 2; head++) {
            check_codec(t, table_codec(t, 0, head, SIDE_K));
            CU_ASSERT_EQUAL(table_codec(t, 0, head, SIDE_V)->fast_planes, 0);
            CU_ASSERT_EQUAL(table_codec(t, 0, head, SIDE_V)->fast_halves, 0);
        }
    }
}

struct forged {
    uint8_t *bytes;
    size_t n;
    struct table_codec_entry *c;
    float *matrices;
};

static void forged_init(struct forged *x)
{
    const struct table_header *h;

    x->bytes = blocks(0, &x->n);
    h = (const void *) x->bytes;
    x->c = (void *) (x->bytes + h->sections[SECTION_CODECS].off);
    x->matrices = (void *) (x->bytes + h->sections[SECTION_MATRICES].off);
}

/* Where matrix @m of the first codec starts. */
static float *forged_matrix(const struct forged *x, unsigned m)
{
    struct table_matrix all[CODEC_MATRICES];
    size_t at = 0;

    table_matrices(x->c[0].r, 0, DIM, MATRICES_SINGLE, all);
    for (unsigned i = 0; i < m; i++)
        at += (table_matrix_bytes(all[i]) / sizeof(float) + 15) / 16 * 16;
    return x->matrices + at;
}

static void refused(struct forged *x, const char *words)
{
    struct table *t = NULL;
    struct errmsg e = {""};

    (void) crypto_hash_sha256(x->bytes + x->n - DIGEST_BYTES, x->bytes, x->n - DIGEST_BYTES);
    CU_ASSERT_EQUAL(table_parse(x->bytes, x->n, &t, &e), -EBADMSG);
    if (!strstr(e.text, words)) {
        CU_FAIL("wrong sentence");
        printf("    expected \"%s\", got \"%s\"\n", words, e.text);
    }
    free(x->bytes);
    forged_init(x);
}

/* The first column of dec, or row of enc, whose half-tile is one of the fast planes or not. */
static uint32_t coordinate(const struct forged *x, bool fast)
{
    uint32_t half = 0;

    while ((x->c[0].fast_halves >> half & 1) != fast)
        half++;
    return 8 * half;
}

static void test_forged(void)
{
    struct forged x;

    forged_init(&x);
    for (unsigned fast = 0; fast < 2; fast++) {
        uint32_t i = coordinate(&x, fast), j = fast ? PLANES : DIM / 2; /* a dimension of the other block */

        forged_matrix(&x, 1)[i * DIM + j] = 0x1p-100f;
        refused(&x, "layer 0, head 0, side K: its bases are in two blocks");
        forged_matrix(&x, 4)[j * x.c[0].r + i] = 0x1p-100f;
        refused(&x, "mix both");
    }
    x.c[0].fast_halves ^= 3; /* another half-tile is said to be fast */
    refused(&x, "mix both");
    x.c[0].fast_planes--;
    refused(&x, "mix both");
    x.c[0].fast_planes = DIM / 2; /* all dimensions */
    refused(&x, "impossible");
    x.c[0].fast_planes = UINT16_MAX;
    refused(&x, "impossible");
    x.c[0].fast_planes = 0;
    refused(&x, "impossible");
    x.c[0].fast_halves |= 1u << x.c[0].n_half;
    refused(&x, "impossible");
    x.c[1].fast_planes = PLANES;
    refused(&x, "side V: its blocks");
    x.c[0].fast_planes = x.c[2].fast_planes = 0;
    x.c[0].fast_halves = x.c[2].fast_halves = 0;
    refused(&x, "must be 2");
    free(x.bytes);
}

const struct test_case test_cases[] = {TEST(test_reading), TEST(test_forged), TEST_END};
const char test_suite[] = "table_blocks";
