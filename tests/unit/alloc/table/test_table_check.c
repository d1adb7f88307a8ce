/* Refused tables: damaged, truncated, forged with a correct digest, or built of impossible parts. */
#include <errno.h>
#include <math.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/table/table_format.h"
#include "alloc/table/trellis.h"
#include "base/cleanup.h"
#include "tests/lib/random_book.h"
#include "tests/unit/alloc/table_fixture.h"

static void seal(void *bytes, size_t n)
{
    (void) crypto_hash_sha256((uint8_t *) bytes + n - DIGEST_BYTES, bytes, n - DIGEST_BYTES);
}

static void refused(const void *bytes, size_t n, const char *word)
{
    struct table *t = NULL;
    struct errmsg e = {""};

    CU_ASSERT_EQUAL(table_parse(bytes, n, &t, &e), -EBADMSG);
    CU_ASSERT_PTR_NULL(t);
    if (word && !strstr(e.text, word)) {
        CU_FAIL("wrong sentence");
        printf("    expected \"%s\", got \"%s\"\n", word, e.text);
    }
    CU_ASSERT_EQUAL(table_parse(bytes, n, &t, NULL), -EBADMSG);
}

static void test_damaged(void)
{
    _cleanup_(freep) void *bytes = NULL;
    _cleanup_(table_unrefp) struct table *t = NULL;
    struct fixture f;
    size_t n;

    t = build_usual(&f, PREDICT_NONE, &bytes, &n);
    for (size_t i = 0; i < n; i += i < 400 ? 1 : 97) {
        ((uint8_t *) bytes)[i] ^= 0x40;
        refused(bytes, n, NULL);
        ((uint8_t *) bytes)[i] ^= 0x40;
    }
    for (size_t i = 0; i < n; i += 61) {
        void *cut = malloc(i ? i : 1); /* of its exact size, so that a sanitizer sees one byte too many */

        memcpy(cut, bytes, i);
        if (i == 0)
            refused(cut, i, "empty");
        else
            refused(cut, i, i < 288 ? "too short" : "truncated");
        free(cut);
    }
}

/* A valid table and a copy that is damaged; the other pointers point into the copy. */
struct hostile {
    void *good;
    uint8_t *bad;
    size_t n;
    struct table_header *h;
    struct table_codec_entry *c;
    float *levels, *matrices;
    size_t at[2][CODEC_MATRICES]; /* floats from the start of the matrices */
};

static void hostile_init(struct hostile *x)
{
    _cleanup_(table_unrefp) struct table *t = NULL;
    struct fixture f;

    t = build_usual(&f, PREDICT_HEAD, &x->good, &x->n);
    x->bad = malloc(x->n);
    CU_ASSERT_PTR_NOT_NULL_FATAL(x->bad);
    memcpy(x->bad, x->good, x->n);
    x->h = (struct table_header *) (void *) x->bad;
    x->c = (void *) (x->bad + x->h->sections[SECTION_CODECS].off);
    x->levels = (void *) (x->bad + x->h->sections[SECTION_LEVELS].off);
    x->matrices = (void *) (x->bad + x->h->sections[SECTION_MATRICES].off);

    for (unsigned side = 0; side < 2; side++) {
        struct table_matrix all[CODEC_MATRICES];
        size_t off = x->c[side].matrices_off / sizeof(float);

        table_matrices(x->c[side].r, x->c[side].n_pred, D, MATRICES_SINGLE, all);
        for (unsigned m = 0; m < CODEC_MATRICES; m++) {
            x->at[side][m] = off;
            /* at multiples of 64 bytes */
            off = (off + table_matrix_bytes(all[m]) / sizeof(float) + 15) / 16 * 16;
        }
    }
}

static void hostile_deinit(struct hostile *x)
{
    free(x->good);
    free(x->bad);
}

/* Changes one thing in the copy and corrects the digest: another check must find the change. */
#define HOSTILE(change, word)                                                                                \
    do {                                                                                                     \
        memcpy(x.bad, x.good, x.n);                                                                          \
        change;                                                                                              \
        seal(x.bad, x.n);                                                                                    \
        refused(x.bad, x.n, word);                                                                           \
    } while (0)

static void test_hostile_header(void)
{
    _cleanup_(hostile_deinit) struct hostile x;

    hostile_init(&x);
    HOSTILE(x.h->magic[0] = 'X', "not an allocation table");
    HOSTILE(x.h->version = 1, "version 1");
    HOSTILE(x.h->version = 4, "version 4");
    HOSTILE(x.h->n_bytes++, "truncated");
    HOSTILE(x.h->v_from = 3, "predicts");
    HOSTILE(x.h->v_from = UINT32_MAX, "predicts");
    HOSTILE(x.h->matrix_form = 1, "fields");
    HOSTILE(x.h->reserved1[60] = 1, "fields");
    HOSTILE(x.h->n_sink = TABLE_SINKS_MAX + 1, "sinks");
    HOSTILE(x.h->n_golden = 1, "golden");
    HOSTILE(x.h->n_golden = UINT32_MAX, "golden");
    HOSTILE(x.h->n_layers = 0, "layers");
    HOSTILE(x.h->n_layers = 2, "directory");
    HOSTILE(x.h->n_layers = 1024; x.h->n_heads = x.h->n_kv_heads = 1024, "directory");
    HOSTILE(x.h->n_rot = 6, "frequencies");
    HOSTILE(x.h->n_rot = UINT32_MAX, "frequencies");
    HOSTILE(x.h->d = 34, "layer 0");
    HOSTILE(x.h->attn_scale = NAN, "scale");
    for (unsigned s = 0; s < SECTION_COUNT; s++) {
        HOSTILE(x.h->sections[s].off += 64, "where it must be");
        HOSTILE(x.h->sections[s].off = UINT64_MAX - 63, "where it must be");
        HOSTILE(x.h->sections[s].bytes = UINT64_MAX, NULL);
        HOSTILE(x.h->sections[s].bytes = UINT64_MAX - x.h->sections[s].off, NULL);
        HOSTILE(x.h->sections[s].bytes += 64, NULL);
        HOSTILE(x.h->sections[s].bytes = 0, NULL);
    }
}

static void test_hostile_levels(void)
{
    _cleanup_(hostile_deinit) struct hostile x;

    hostile_init(&x);
    /* a gap that is not zero */
    HOSTILE(x.bad[x.h->sections[SECTION_LEVELS].off - 1] = 1, "where it must be");
    HOSTILE(x.levels[0] = 0, "1-bit levels of side K");
    HOSTILE(x.levels[0] = NAN, "1-bit levels");
    HOSTILE(x.levels[1] = 127, "1-bit levels");
    HOSTILE(x.levels[1] = -126.5f, "1-bit levels");
    HOSTILE(x.levels[3] = nextafterf(x.levels[3], 9), "1-bit levels");
    /* between the first value and the last threshold of width 8 */
    HOSTILE(x.levels[510] = 0, "8-bit levels of side K");
}

static void test_hostile_codecs(void)
{
    _cleanup_(hostile_deinit) struct hostile x;

    hostile_init(&x);
    HOSTILE(x.c[0].n_half = 5, "bit widths");
    HOSTILE(x.c[0].n_half = 8, "bit widths");
    HOSTILE(x.c[0].n_half = UINT16_MAX, "bit widths");
    HOSTILE(x.c[0].bits[0] = 9; x.c[0].code_bits += 16, "bit widths");
    HOSTILE(x.c[0].bits[3] = 3; x.c[0].code_bits += 8, "bit widths");
    HOSTILE(x.c[0].bits[2] = x.c[0].bits[3] = 0; x.c[0].code_bits -= 32, "bit widths"); /* two empty ones */
    HOSTILE(x.c[0].bits[31] = 1, "bit widths");
    HOSTILE(x.c[0].code_bits += 8, "bit widths");
    HOSTILE(x.c[0].r -= 8, "bit widths");
    HOSTILE(x.c[1].n_pred -= 32, "number of predicting codes");
    HOSTILE(x.c[1].n_pred = UINT32_MAX, "number of predicting codes");
    HOSTILE(x.c[0].n_pred = 32, "number of predicting codes");
    HOSTILE(x.h->v_from = PREDICT_NONE, "number of predicting codes");
    HOSTILE(x.c[0].fast_planes = 1, "fields");
    HOSTILE(x.c[0].fast_halves = 1, "fields");
    HOSTILE(x.c[1].reserved2 = 1, "fields");
    HOSTILE(x.c[0].matrices_off = 64, "where they must be");
    HOSTILE(x.c[1].matrices_off = UINT64_MAX, "where they must be");
    HOSTILE(x.c[1].matrices_off += 4, "where they must be");
}

static void test_hostile_matrices(void)
{
    _cleanup_(hostile_deinit) struct hostile x;

    hostile_init(&x);
    for (unsigned m = 0; m < 5; m++) {
        HOSTILE(x.matrices[x.at[0][m]] = INFINITY, NULL); /* K has no enc_k: there, its mean comes first */
        HOSTILE(x.matrices[x.at[1][m]] = NAN, "not finite");
    }
    HOSTILE(x.bad[x.h->sections[SECTION_PROVENANCE].off + 3] = 0x1b, "control");
    HOSTILE(x.bad[x.h->sections[SECTION_PROVENANCE].off + 3] = 0x7f, "control");
    HOSTILE(x.bad[x.h->sections[SECTION_PROVENANCE].off + x.h->sections[SECTION_PROVENANCE].bytes - 1] = 'x',
            "terminated");
    HOSTILE(x.bad[x.h->sections[SECTION_GOLDEN].off] ^= 0x80, "widths"); /* first code has 7 bits */
    /* 1e-3 of one entry: 2^13 times the rounding of a term, in sums of some forty terms */
    HOSTILE(x.matrices[x.at[0][4]] *= 1.001f, "do not decode");
    HOSTILE(x.matrices[x.at[1][4] + 33] *= 1.001f, "do not decode"); /* V, a column of its own codes */
    HOSTILE(x.matrices[x.at[1][4] + 8] *= 1.001f, "do not decode");  /* V, a column of P */
    HOSTILE(x.matrices[x.at[0][0]] += 1, "do not encode");           /* enc_mean, enc, enc_k */
    HOSTILE(x.matrices[x.at[0][1]] *= 1.001f, "do not encode");
    HOSTILE(x.matrices[x.at[1][1] + 40] *= 1.001f, "do not encode");
    HOSTILE(x.matrices[x.at[1][2] + 33] *= 1.001f, "do not encode");
}

/* An empty half-tile must be zero: kernels multiply it without a check. */
/* A table with 64 bytes that no codec uses between its matrices and the section behind them. */
static void test_matrices_without_a_codec(void)
{
    _cleanup_(hostile_deinit) struct hostile x;
    const struct table_section_entry *matrices;
    struct table_header *h;
    size_t end;
    uint8_t *longer;

    hostile_init(&x);
    longer = calloc(1, x.n + 64);
    CU_ASSERT_PTR_NOT_NULL_FATAL(longer);
    matrices = &x.h->sections[SECTION_MATRICES];
    end = matrices->off + matrices->bytes;
    memcpy(longer, x.good, end);
    memcpy(longer + end + 64, (uint8_t *) x.good + end, x.n - end);
    h = (struct table_header *) (void *) longer;
    h->n_bytes += 64;
    h->sections[SECTION_MATRICES].bytes += 64;
    for (unsigned s = SECTION_MATRICES + 1; s < SECTION_COUNT; s++)
        h->sections[s].off += 64;
    seal(longer, x.n + 64);
    refused(longer, x.n + 64, "more than its codecs use");
    free(longer);
}

static void test_empty_half_tile(void)
{
    static const uint8_t odd[2][N_BANDS] = {{2, 0, 4, 2, 0}, {1, 0, 0, 0, 0}};
    _cleanup_(freep) void *bytes = NULL;
    _cleanup_(table_unrefp) struct table *t = NULL;
    const struct codec *k, *v;
    struct fixture f;
    size_t n, places[3];

    fixture_init(&f, odd, PREDICT_HEAD);
    CU_ASSERT_EQUAL_FATAL(fixture_build(&f, &bytes, &n, NULL), 0);
    CU_ASSERT_EQUAL_FATAL(table_parse(bytes, n, &t, NULL), 0);
    k = table_codec(t, 0, 0, SIDE_K);
    CU_ASSERT_EQUAL(k->n_half, 4);
    CU_ASSERT_EQUAL(k->bits[3], 0);
    CU_ASSERT_EQUAL(k->code_bits, 64);
    for (unsigned j = 0; j < D; j++) {
        CU_ASSERT_EQUAL(k->enc[24 * D + j], 0.0f);
        CU_ASSERT_EQUAL(k->dec[j * 32 + 31], 0.0f);
        CU_ASSERT_EQUAL(table_codec(t, 0, 0, SIDE_V)->dec[j * 48 + 31], 0.0f); /* P's column */
    }
    v = table_codec(t, 0, 0, SIDE_V);
    CU_ASSERT_EQUAL_FATAL(v->bits[1], 0);
    places[0] = (size_t) ((const uint8_t *) &k->enc[24 * D] - (const uint8_t *) t->bytes);
    places[1] = (size_t) ((const uint8_t *) &k->dec[5 * 32 + 24] - (const uint8_t *) t->bytes);
    places[2] = (size_t) ((const uint8_t *) &v->enc_k[9 * v->n_pred + 3] - (const uint8_t *) t->bytes);
    for (unsigned i = 0; i < 3; i++) {
        float one = 1;

        memcpy((uint8_t *) bytes + places[i], &one, sizeof(one));
        seal(bytes, n);
        refused(bytes, n, "empty half-tile");
        memset((uint8_t *) bytes + places[i], 0, sizeof(one));
    }
}

static void build_refused(const struct fixture *f, const char *word)
{
    struct errmsg e = {""};
    void *bytes = NULL;
    size_t n = 77;

    CU_ASSERT_EQUAL(fixture_build(f, &bytes, &n, &e), -EINVAL);
    CU_ASSERT_PTR_NULL(bytes);
    CU_ASSERT_EQUAL(n, 77);
    if (!strstr(e.text, word)) {
        CU_FAIL("wrong sentence");
        printf("    expected \"%s\", got \"%s\"\n", word, e.text);
    }
}

/* A table of format 3, whose levels of one side and width are damaged; @p: where they are. */
static struct table *build_trellis(struct fixture *f, void **ret_bytes, size_t *ret_n)
{
    struct table *t = NULL;
    struct errmsg e = {""};

    fixture_init(f, usual_bits, PREDICT_HEAD);
    for (unsigned side = 0; side < 2; side++)
        for (unsigned b = 1; b <= TRELLIS_BITS_MAX; b++)
            random_book(6 + (side + b) % 3, &f->levels[side][b]);
    CU_ASSERT_EQUAL_FATAL(fixture_build(f, ret_bytes, ret_n, &e), 0);
    CU_ASSERT_EQUAL_FATAL(table_parse(*ret_bytes, *ret_n, &t, &e), 0);
    return t;
}

static void test_trellis(void)
{
    _cleanup_(freep) void *bytes = NULL, *scalar = NULL;
    _cleanup_(table_unrefp) struct table *t = NULL, *without = NULL;
    struct fixture f, g;
    size_t n;

    t = build_trellis(&f, &bytes, &n);
    without = build_usual(&g, PREDICT_HEAD, &scalar, &n);
    CU_ASSERT_EQUAL(table_header(t)->version, 3);
    CU_ASSERT_EQUAL(table_header(without)->version, 2);
    CU_ASSERT_TRUE(table_has_trellis(t) && !table_has_trellis(without));
    for (unsigned side = 0; side < 2; side++)
        for (unsigned b = 1; b <= TABLE_BITS_MAX; b++)
            CU_ASSERT_EQUAL(memcmp(&t->levels[side][b], &f.levels[side][b], sizeof(f.levels[side][b])), 0);
}

static void test_hostile_trellis(void)
{
    _cleanup_(hostile_deinit) struct hostile x = {.good = NULL};
    _cleanup_(table_unrefp) struct table *t = NULL;
    struct table_levels_head *one, *two,
        *five; /* of K, of one bit: 128 states; of two bits: 256; of five: scalar */
    struct fixture f;

    t = build_trellis(&f, &x.good, &x.n);
    x.bad = malloc(x.n);
    CU_ASSERT_PTR_NOT_NULL_FATAL(x.bad);
    x.h = (struct table_header *) (void *) x.bad;
    one = (void *) (x.bad + table_header(t)->sections[SECTION_LEVELS].off);
    two = (void *) ((uint8_t *) (one + 1) + 128);
    five = (void *) ((uint8_t *) (two + 3) + 256 + 64 + 128);
    HOSTILE(one->state_bits = 5, "1-bit levels of side K");
    HOSTILE(one->state_bits = 0, "1-bit levels of side K");
    HOSTILE(one->state_bits = 9, "1-bit levels of side K");
    HOSTILE(one->state_bits = UINT32_MAX, "1-bit levels of side K");
    HOSTILE(one->step = 0, "1-bit levels of side K");
    HOSTILE(one->step = -1, "1-bit levels of side K");
    HOSTILE(one->step = NAN, "1-bit levels of side K");
    HOSTILE(one->step = 1e30f, "1-bit levels of side K");
    HOSTILE(two->normal_square = -1, "2-bit levels of side K");
    HOSTILE(two->normal_product = INFINITY, "2-bit levels of side K");
    HOSTILE(memset(two + 1, 0x80, 1), "2-bit levels of side K"); /* -128 */
    HOSTILE(memset(two + 1, 5, 256), "2-bit levels of side K");  /* none at 127 steps */
    HOSTILE(memset(two + 1, 0x7f, 256),
            "decode to the stored"); /* equal levels are a book, but another one */
    HOSTILE(five->state_bits = 6, "5-bit levels of side K");
    HOSTILE(five->step = 1, "5-bit levels of side K");
    HOSTILE(x.h->version = 2, "1-bit levels of side K");
    HOSTILE(x.h->sections[SECTION_LEVELS].bytes -= 4, "not where it must be");
}

static void test_build_refuses(void)
{
    struct fixture f;

#define REFUSED(change, word)                                                                                \
    do {                                                                                                     \
        fixture_init(&f, usual_bits, PREDICT_HEAD);                                                          \
        change;                                                                                              \
        build_refused(&f, word);                                                                             \
    } while (0)
    REFUSED(f.g.d = 37, "head dimension");
    REFUSED(f.mean[1][3] = NAN, "layer 0, head 0, side V");
    REFUSED(f.enc[0][0] = 1e39, "layer 0, head 0, side K");
    REFUSED(f.dec[1][0] = INFINITY, "side V");
    REFUSED(f.predict[1][0] = -1e300, "side V");
    REFUSED(f.codecs[0].predict = f.predict[0], "predicts no values");
    REFUSED(f.v_from = PREDICT_NONE, "predicts no values");
    /* finite entries, but the sum of 28 random levels of deviation 1 times them is not */
    REFUSED(for (unsigned j = 0; j < D * D; j++) f.dec[0][j] = 3e38, "golden vectors");
    REFUSED(f.bands[0][0].bits = 9, "impossible");
    REFUSED(f.bands[0][0].n_coords = 9, "impossible");
    REFUSED(f.bands[0][0].n_coords = 0, "impossible");
    REFUSED(f.codecs[0].n_bands = TABLE_HALF_TILES_MAX + 1, "half-tiles");
    REFUSED(f.levels[0][3].threshold[1] = 9, "3-bit levels of side K");
    REFUSED(f.provenance = "red \x1b[31m", "control");
#undef REFUSED
}

const struct test_case test_cases[] = {
    TEST(test_damaged),
    TEST(test_hostile_header),
    TEST(test_hostile_levels),
    TEST(test_hostile_codecs),
    TEST(test_hostile_matrices),
    TEST(test_matrices_without_a_codec),
    TEST(test_empty_half_tile),
    TEST(test_build_refuses),
    TEST(test_trellis),
    TEST(test_hostile_trellis),
    TEST_END,
};
const char test_suite[] = "table_check";
