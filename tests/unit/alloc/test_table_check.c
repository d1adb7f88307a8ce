/* Refused tables: damaged, truncated, forged with a correct digest, or built of impossible parts. */
#include <errno.h>
#include <math.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/table_format.h"
#include "base/cleanup.h"
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
        refused(cut, i, i < 288 ? "too short" : "truncated");
        free(cut);
    }
}

/* Each line changes one thing and corrects the digest: other checks must find the change. */
static void test_hostile(void)
{
    _cleanup_(freep) void *good = NULL;
    _cleanup_(freep) uint8_t *bad = NULL;
    _cleanup_(table_unrefp) struct table *t = NULL;
    struct table_header *h;
    struct table_codec_entry *c;
    float *levels, *matrices;
    size_t at[2][CODEC_MATRICES]; /* floats from the start of the matrices */
    struct fixture f;
    size_t n;

    t = build_usual(&f, PREDICT_HEAD, &good, &n);
    bad = malloc(n);
    CU_ASSERT_PTR_NOT_NULL_FATAL(bad);
    h = (struct table_header *) (void *) bad;
    memcpy(bad, good, n);
    c = (void *) (bad + h->sections[SECTION_CODECS].off);
    levels = (void *) (bad + h->sections[SECTION_LEVELS].off);
    matrices = (void *) (bad + h->sections[SECTION_MATRICES].off);
    for (unsigned side = 0; side < 2; side++) {
        size_t floats[CODEC_MATRICES], off = c[side].matrices_off / sizeof(float);

        table_matrix_floats(c[side].r, c[side].n_pred, D, floats);
        for (unsigned m = 0; m < CODEC_MATRICES; m++) {
            at[side][m] = off;
            off = (off + floats[m] + 15) / 16 * 16; /* at multiples of 64 bytes */
        }
    }
#define HOSTILE(change, word)                                                                                \
    do {                                                                                                     \
        memcpy(bad, good, n);                                                                                \
        change;                                                                                              \
        seal(bad, n);                                                                                        \
        refused(bad, n, word);                                                                               \
    } while (0)
    HOSTILE(h->magic[0] = 'X', "not an allocation table");
    HOSTILE(h->version = 1, "version 1");
    HOSTILE(h->version = 3, "version 3");
    HOSTILE(h->n_bytes++, "truncated");
    HOSTILE(h->v_from = 3, "predicts");
    HOSTILE(h->v_from = UINT32_MAX, "predicts");
    HOSTILE(h->reserved0 = 1, "fields");
    HOSTILE(h->reserved1[63] = 1, "fields");
    HOSTILE(h->n_sink = TABLE_SINKS_MAX + 1, "sinks");
    HOSTILE(h->n_golden = 1, "golden");
    HOSTILE(h->n_golden = UINT32_MAX, "golden");
    HOSTILE(h->n_layers = 0, "layers");
    HOSTILE(h->n_layers = 2, "directory");
    HOSTILE(h->n_layers = 1024; h->n_heads = h->n_kv_heads = 1024, "directory");
    HOSTILE(h->n_rot = 6, "frequencies");
    HOSTILE(h->n_rot = UINT32_MAX, "frequencies");
    HOSTILE(h->d = 34, "layer 0");
    HOSTILE(h->attn_scale = NAN, "scale");
    for (unsigned s = 0; s < SECTION_COUNT; s++) {
        HOSTILE(h->sections[s].off += 64, "where it must be");
        HOSTILE(h->sections[s].off = UINT64_MAX - 63, "where it must be");
        HOSTILE(h->sections[s].bytes = UINT64_MAX, NULL);
        HOSTILE(h->sections[s].bytes = UINT64_MAX - h->sections[s].off, NULL);
        HOSTILE(h->sections[s].bytes += 64, NULL);
        HOSTILE(h->sections[s].bytes = 0, NULL);
    }
    HOSTILE(bad[h->sections[SECTION_LEVELS].off - 1] = 1, "where it must be"); /* a gap that is not zero */
    HOSTILE(levels[0] = 0, "1-bit levels of side K");
    HOSTILE(levels[0] = NAN, "1-bit levels");
    HOSTILE(levels[1] = 127, "1-bit levels");
    HOSTILE(levels[1] = -126.5f, "1-bit levels");
    HOSTILE(levels[3] = nextafterf(levels[3], 9), "1-bit levels");
    HOSTILE(levels[510] = 0,
            "8-bit levels of side K"); /* between the first value and the last threshold of width 8 */
    HOSTILE(c[0].n_half = 5, "bit widths");
    HOSTILE(c[0].n_half = 8, "bit widths");
    HOSTILE(c[0].n_half = UINT16_MAX, "bit widths");
    HOSTILE(c[0].bits[0] = 9; c[0].code_bits += 16, "bit widths");
    HOSTILE(c[0].bits[3] = 3; c[0].code_bits += 8, "bit widths");
    HOSTILE(c[0].bits[2] = c[0].bits[3] = 0; c[0].code_bits -= 32, "bit widths"); /* two empty ones */
    HOSTILE(c[0].bits[31] = 1, "bit widths");
    HOSTILE(c[0].code_bits += 8, "bit widths");
    HOSTILE(c[0].r -= 8, "bit widths");
    HOSTILE(c[1].n_pred -= 32, "number of predicting codes");
    HOSTILE(c[1].n_pred = UINT32_MAX, "number of predicting codes");
    HOSTILE(c[0].n_pred = 32, "number of predicting codes");
    HOSTILE(h->v_from = PREDICT_NONE, "number of predicting codes");
    HOSTILE(c[0].reserved0 = 1, "fields");
    HOSTILE(c[0].reserved1 = 1, "fields");
    HOSTILE(c[1].reserved2 = 1, "fields");
    HOSTILE(c[0].matrices_off = 64, "where they must be");
    HOSTILE(c[1].matrices_off = UINT64_MAX, "where they must be");
    HOSTILE(c[1].matrices_off += 4, "where they must be");
    for (unsigned m = 0; m < 5; m++) {
        HOSTILE(matrices[at[0][m]] = INFINITY, NULL); /* K has no enc_k: there, its mean comes first */
        HOSTILE(matrices[at[1][m]] = NAN, "not finite");
    }
    HOSTILE(bad[h->sections[SECTION_PROVENANCE].off + 3] = 0x1b, "control");
    HOSTILE(bad[h->sections[SECTION_PROVENANCE].off + h->sections[SECTION_PROVENANCE].bytes - 1] = 'x',
            "terminated");
    HOSTILE(bad[h->sections[SECTION_GOLDEN].off] ^= 0x80, "widths"); /* first code has 7 bits */
    /* 1e-3 of one entry: 2^13 times the rounding of a term, in sums of some forty terms */
    HOSTILE(matrices[at[0][4]] *= 1.001f, "do not decode");
    HOSTILE(matrices[at[1][4] + 33] *= 1.001f, "do not decode"); /* V, a column of its own codes */
    HOSTILE(matrices[at[1][4] + 8] *= 1.001f, "do not decode");  /* V, a column of P */
    HOSTILE(matrices[at[0][0]] += 1, "do not encode");           /* enc_mean, enc, enc_k */
    HOSTILE(matrices[at[0][1]] *= 1.001f, "do not encode");
    HOSTILE(matrices[at[1][1] + 40] *= 1.001f, "do not encode");
    HOSTILE(matrices[at[1][2] + 33] *= 1.001f, "do not encode");
#undef HOSTILE
    CU_ASSERT_EQUAL(c[0].n_half, 4);
}

/* An empty half-tile must be zero: kernels multiply it without a check. */
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
    TEST(test_damaged), TEST(test_hostile), TEST(test_empty_half_tile), TEST(test_build_refuses), TEST_END,
};
const char test_suite[] = "table_check";
