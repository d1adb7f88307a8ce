/* Bits that tables charge, and comparison of two tables, worked out by hand on codecs of a few rows. */
#include "tests/lib/test.h"

#include <math.h>
#include <string.h>

#include "alloc/table/table_account.h"

enum { D = 32, LAYERS = 4, N = LAYERS * 2 };

static float rows[32 * D]; /* an encoder whose first rows are not zero, and one whose rows all are */

/* A codec of @rank coordinates at widths as given for each half-tile; its encoder ends with @rank rows. */
static struct codec codec(unsigned rank, const char *bits)
{
    struct codec c = {.n_half = (uint16_t) strlen(bits), .r = (uint16_t) (8 * strlen(bits))};

    for (unsigned i = 0; bits[i]; i++) {
        c.bits[i] = (uint8_t) (bits[i] - '0');
        c.code_bits = (uint16_t) (c.code_bits + 8 * c.bits[i]);
    }
    c.r_in = c.r;
    /* rows are ones up to row 16 of the array: the window that starts at 16 - rank has @rank of them */
    c.enc = rows + (16 - rank) * D;
    return c;
}

static void begin(void)
{
    for (unsigned i = 0; i < 32 * D; i++)
        rows[i] = i < 16 * D ? 1 : 0;
}

static struct table table_of(const struct codec *codecs)
{
    struct table t = {.geometry = {.n_layers = LAYERS, .n_heads = 1, .n_kv_heads = 1, .d = D},
                      .codecs = codecs};

    return t;
}

static void test_rank(void)
{
    struct codec full, padded, none;

    begin();
    full = codec(16, "43");
    padded = codec(10, "22");
    none = codec(0, "");
    CU_ASSERT_EQUAL(table_codec_rank(&full, D), 16);
    CU_ASSERT_EQUAL(table_codec_nominal_bits(&full, D), 8 * 4 + 8 * 3);
    CU_ASSERT_EQUAL(table_codec_rank(&padded, D), 10);
    CU_ASSERT_EQUAL(table_codec_nominal_bits(&padded, D), 20);
    CU_ASSERT_EQUAL(table_codec_rank(&none, D), 0);
    CU_ASSERT_EQUAL(table_codec_nominal_bits(&none, D), 0);
}

/* K: 10 coordinates at 2 bits in two half-tiles, 20 nominal and 32 stored bits of 32 numbers; V: nothing. */
static void test_account(void)
{
    struct codec codecs[N];
    struct table t;
    struct table_account a;

    begin();
    for (unsigned i = 0; i < N; i++)
        codecs[i] = i % 2 ? codec(0, "") : codec(10, "22");
    t = table_of(codecs);
    table_account(&t, &a);
    CU_ASSERT_DOUBLE_EQUAL(a.nominal_bpd[SIDE_K], 20.0 / 32, 1e-12);
    CU_ASSERT_DOUBLE_EQUAL(a.code_bpd[SIDE_K], 1, 1e-12);
    CU_ASSERT_EQUAL(a.nominal_bpd[SIDE_V], 0);
    CU_ASSERT_DOUBLE_EQUAL(a.nominal, 10.0 / 32, 1e-12);
    CU_ASSERT_DOUBLE_EQUAL(a.code, 0.5, 1e-12);
    /* two means of 8 head-sides, and 16 rows and 16 columns for each K */
    CU_ASSERT_EQUAL(a.fixed_bytes, sizeof(t.levels) + 2 * 8 * 32 * 4 + 4 * (16 + 16) * 32 * 4);
    CU_ASSERT_DOUBLE_EQUAL(table_account_fixed_bpd(&t, &a, 1024),
                           8.0 * (double) a.fixed_bytes / (8 * 32 * 1024), 1e-12);
}

/*
 * Keys: budgets 32 16 48 64 against 32 32 48 64. Means 40 and 44; deviations -8 -24 8 24 and -12 -12 4 20;
 * sums xx = 1280, yy = 704, xy = 96 + 288 + 32 + 480 = 896: r = 896 / sqrt(1280 * 704) = 0.943880.
 * Widths 4 2 3 4 against 4 2 3 4 where ranks are 8 8 16 16 against 8 16 16 16. Values: all equal.
 */
static void test_compare_by_hand(void)
{
    struct codec a[N], b[N];
    struct table x, y;
    struct table_comparison c[2];

    begin();
    for (unsigned i = 1; i < N; i += 2)
        a[i] = b[i] = codec(16, "33");
    a[0] = b[0] = codec(8, "40");
    a[2] = codec(8, "20"), b[2] = codec(16, "22");
    a[4] = b[4] = codec(16, "33");
    a[6] = b[6] = codec(16, "44");
    x = table_of(a);
    y = table_of(b);
    table_compare(&x, &y, c);
    CU_ASSERT_EQUAL(c[SIDE_K].n_heads, 4);
    CU_ASSERT_DOUBLE_EQUAL(c[SIDE_K].budget_correlation, 0.943880, 1e-5);
    CU_ASSERT_DOUBLE_EQUAL(c[SIDE_K].same_width, 1, 1e-12);
    CU_ASSERT_DOUBLE_EQUAL(c[SIDE_K].rank_difference, 2, 1e-12);
    CU_ASSERT_DOUBLE_EQUAL(c[SIDE_K].same_half_tiles, 6.0 / 7, 1e-12); /* 1 + 1 of 2 + 2 + 2 */
    CU_ASSERT(isnan(c[SIDE_V].budget_correlation));
    CU_ASSERT_DOUBLE_EQUAL(c[SIDE_V].same_half_tiles, 1, 1e-12);
    CU_ASSERT_EQUAL(c[SIDE_V].rank_difference, 0);
    CU_ASSERT_DOUBLE_EQUAL(c[SIDE_K].bpd[0][1], 0.5, 1e-12); /* one layer in each quartile */
    CU_ASSERT_DOUBLE_EQUAL(c[SIDE_K].bpd[1][1], 1, 1e-12);
    CU_ASSERT_DOUBLE_EQUAL(c[SIDE_K].bpd[0][3], 2, 1e-12);
    b[0] = codec(8, "50");
    table_compare(&x, &y, c);
    CU_ASSERT_DOUBLE_EQUAL(c[SIDE_K].same_width, 0.75, 1e-12);
    b[0] = codec(0, ""); /* rank 0 against 8 */
    table_compare(&x, &y, c);
    CU_ASSERT_DOUBLE_EQUAL(c[SIDE_K].same_width, 0.75, 1e-12);
    CU_ASSERT_DOUBLE_EQUAL(c[SIDE_K].rank_difference, 4, 1e-12);
}

/* Fewer layers than quartiles: empty quartiles are 0. */
static void test_few_layers(void)
{
    struct codec a[2];
    struct table x;
    struct table_comparison c[2];

    begin();
    a[0] = a[1] = codec(16, "33");
    x = table_of(a);
    x.geometry.n_layers = 1;
    table_compare(&x, &x, c);
    CU_ASSERT_DOUBLE_EQUAL(c[SIDE_K].bpd[0][0], 1.5, 1e-12);
    CU_ASSERT_EQUAL(c[SIDE_K].bpd[0][1], 0);
    CU_ASSERT_EQUAL(c[SIDE_K].same_width, 1);
}

const struct test_case test_cases[] = {
    TEST(test_rank), TEST(test_account), TEST(test_compare_by_hand), TEST(test_few_layers), TEST_END,
};
const char test_suite[] = "table_account";
