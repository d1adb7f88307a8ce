#include "tests/lib/test.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <sodium.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/quant.h"
#include "alloc/table_build.h"
#include "alloc/table_format.h"
#include "base/atomic_file.h"
#include "base/cleanup.h"
#include "base/errmsg.h"

/*
 * One layer, one KV head or two alike in widths, d = 36 (so six half-tiles and a band of four): everything about the
 * spec is random, and kept so that the table can be compared with it. Head-side 2 h + side.
 */
enum { D = 36, N_BANDS = 5, SIDES = 4 };

struct fixture {
    struct geometry g;
    enum prediction v_from;
    struct levels levels[2][TABLE_BITS_MAX + 1];
    struct band_spec bands[SIDES][N_BANDS];
    double mean[SIDES][D], enc[SIDES][D * D], dec[SIDES][D * D], predict[SIDES][D * 2 * D];
    double enc_mean[SIDES][D], enc_predict[SIDES][D * 2 * D]; /* of a decoder apart */
    struct codec_spec codecs[SIDES];
    uint8_t model[DIGEST_BYTES];
    const char *provenance;
};

static void fixture_init(struct fixture *f, const uint8_t bits[2][N_BANDS], enum prediction v_from)
{
    uint32_t n_kv = v_from == PREDICT_LAYER ? 2 : 1;

    *f = (struct fixture) {
        .g = { .n_layers = 1, .n_heads = 2, .n_kv_heads = n_kv, .d = D, .n_rot = 4, .attn_scale = 0.25, .freq = { 1, 0.1 } },
        .v_from = v_from,
        .model = "model",
        .provenance = "{\"method\": \"none\"}",
    };
    for (unsigned side = 0; side < 2; side++)
        for (unsigned b = 1; b <= 8; b++)
            CU_ASSERT_EQUAL_FATAL(levels_normal(side ? QUANT_UNIFORM : QUANT_LLOYD_MAX, b, &f->levels[side][b]), 0);
    for (unsigned hs = 0; hs < SIDES; hs++) {
        for (unsigned i = 0; i < D * D; i++) {
            f->enc[hs][i] = test_rand_normal();
            f->dec[hs][i] = test_rand_normal();
        }
        for (unsigned i = 0; i < D * 2 * D; i++) {
            f->predict[hs][i] = test_rand_normal();
            f->enc_predict[hs][i] = test_rand_normal();
        }
        for (unsigned i = 0; i < D; i++) {
            f->mean[hs][i] = 10 * test_rand_normal();
            f->enc_mean[hs][i] = 10 * test_rand_normal();
        }
        for (unsigned k = 0; k < N_BANDS; k++)
            f->bands[hs][k] = (struct band_spec) {
                .bits = bits[hs % 2][k],
                .n_coords = k == N_BANDS - 1 ? 4 : 8,
                .enc = f->enc[hs] + 8 * k * D,
                .dec = f->dec[hs] + 8 * k * D,
            };
        f->codecs[hs] = (struct codec_spec) { .mean = f->mean[hs], .n_bands = N_BANDS, .bands = f->bands[hs] };
        if (hs % 2 == SIDE_V && v_from != PREDICT_NONE)
            f->codecs[hs].predict = f->predict[hs];
    }
}

/* Encoders of their own for all head-sides. */
static void fixture_part(struct fixture *f)
{
    for (unsigned hs = 0; hs < SIDES; hs++) {
        f->codecs[hs].enc_mean = f->enc_mean[hs];
        if (f->codecs[hs].predict)
            f->codecs[hs].enc_predict = f->enc_predict[hs];
    }
}

static int fixture_build(const struct fixture *f, void **ret_bytes, size_t *ret_n, struct errmsg *e)
{
    return table_build(&(struct table_spec) { .geometry = &f->g, .model_digest = f->model, .n_sink = 4,
                                              .v_from = f->v_from, .levels = f->levels, .codecs = f->codecs,
                                              .provenance = f->provenance },
                       ret_bytes, ret_n, e);
}

static const uint8_t usual_bits[2][N_BANDS] = { { 2, 0, 4, 2, 7 }, { 5, 3, 0, 1, 8 } };

static struct table *build_usual(struct fixture *f, enum prediction v_from, void **ret_bytes, size_t *ret_n)
{
    struct table *t = NULL;
    struct errmsg e = { "" };

    fixture_init(f, usual_bits, v_from);
    CU_ASSERT_EQUAL_FATAL(fixture_build(f, ret_bytes, ret_n, &e), 0);
    CU_ASSERT_EQUAL_FATAL(table_parse(*ret_bytes, *ret_n, &t, &e), 0);
    return t;
}

static void test_band_order(void)
{
    struct fixture f;
    uint32_t order[N_BANDS];

    fixture_init(&f, usual_bits, PREDICT_NONE);
    CU_ASSERT_EQUAL(band_order(&f.codecs[SIDE_K], order), 4);
    static const uint32_t want[N_BANDS] = { 4, 2, 0, 3, 1 }; /* 7, 4, 2, 2, then the empty one */
    CU_ASSERT_EQUAL(memcmp(order, want, sizeof(want)), 0);
}

static void test_view(void)
{
    _cleanup_(freep) void *bytes = NULL;
    _cleanup_(table_unrefp) struct table *t = NULL;
    struct fixture f;
    size_t n;

    t = build_usual(&f, PREDICT_NONE, &bytes, &n);
    CU_ASSERT_EQUAL(t->n_bytes, n);
    CU_ASSERT_EQUAL(t->n_sink, 4);
    CU_ASSERT_EQUAL(t->v_from, PREDICT_NONE);
    CU_ASSERT_EQUAL(memcmp(t->model_digest, f.model, DIGEST_BYTES), 0);
    CU_ASSERT_EQUAL(memcmp(&t->geometry, &f.g, sizeof(f.g)), 0);
    CU_ASSERT_STRING_EQUAL(t->provenance, f.provenance);
    for (unsigned side = 0; side < 2; side++)
        for (unsigned b = 1; b <= 8; b++)
            CU_ASSERT_EQUAL(memcmp(&t->levels[side][b], &f.levels[side][b], sizeof(struct levels)), 0);
    /* K: 8 (7 + 4 + 2 + 2) = 120 bits; V: 8 (8 + 5 + 3 + 1) = 136 bits; over 72 numbers */
    const struct codec *k = table_codec(t, 0, 0, SIDE_K), *v = table_codec(t, 0, 0, SIDE_V);

    CU_ASSERT_EQUAL(k->code_bits, 120);
    CU_ASSERT_EQUAL(v->code_bits, 136);
    CU_ASSERT_DOUBLE_EQUAL(t->bpd_code, 256.0 / 72, 1e-15);
    CU_ASSERT_EQUAL(k->n_half, 4);
    CU_ASSERT_EQUAL(k->r, 32);
    CU_ASSERT_EQUAL(k->r_in, 32);
    CU_ASSERT_EQUAL(v->r_in, 32);
    for (unsigned j = 0; j < D; j++) {
        CU_ASSERT_EQUAL(k->mean[j], (float) f.mean[0][j]);
        CU_ASSERT_EQUAL(k->enc_mean[j], (float) f.mean[0][j]); /* the spec names no other */
        CU_ASSERT_EQUAL(k->enc[3 * D + j], (float) f.bands[0][4].enc[3 * D + j]);      /* the short band came first */
        CU_ASSERT_EQUAL(k->enc[4 * D + j], 0.0f);                                      /* its padding */
        CU_ASSERT_EQUAL(k->dec[j * 32 + 4], 0.0f);
        CU_ASSERT_EQUAL(k->enc[(8 + 7) * D + j], (float) f.bands[0][2].enc[7 * D + j]); /* then 4 bits */
        CU_ASSERT_EQUAL(k->dec[j * 32 + 8],
                        (float) (f.bands[0][2].dec[j * 8] * (double) f.levels[0][4].step));
    }
}

/* Random codes of a codec and what they mean in units of z, without padding; returns the number of coordinates. */
static unsigned random_codes(const struct fixture *f, unsigned hs, uint8_t *ret_codes, double *ret_z)
{
    uint32_t order[N_BANDS], stored = band_order(&f->codecs[hs], order);
    unsigned n = 0;

    for (unsigned k = 0; k < stored; k++)
        for (unsigned j = 0; j < 8; j++) {
            const struct band_spec *b = &f->bands[hs][order[k]];

            ret_codes[8 * k + j] = (uint8_t) test_rand_below(1u << b->bits);
            if (j < b->n_coords)
                ret_z[n++] = level_z(&f->levels[hs % 2][b->bits], ret_codes[8 * k + j]);
        }
    return n;
}

/* mean + sum over stored bands of dec z, from the spec's own matrices; + predict c for V, @n coordinates of c */
static void spec_decode(const struct fixture *f, unsigned hs, const double *z, const double *c, unsigned n_c, double *ret_x)
{
    uint32_t order[N_BANDS], stored = band_order(&f->codecs[hs], order);

    for (unsigned i = 0; i < D; i++) {
        unsigned n = 0;

        ret_x[i] = f->mean[hs][i];
        for (unsigned k = 0; k < stored; k++) {
            const struct band_spec *b = &f->bands[hs][order[k]];

            for (unsigned j = 0; j < b->n_coords; j++)
                ret_x[i] += b->dec[i * b->n_coords + j] * z[n++];
        }
        for (unsigned j = 0; j < n_c; j++)
            ret_x[i] += f->predict[hs][i * n_c + j] * c[j];
    }
}

/* Coordinate @row of stored band @k: enc (x - enc_mean - P c), in the spec's own matrices. */
static double spec_encode(const struct fixture *f, unsigned hs, unsigned k, unsigned row, const float *x, const double *c,
                          unsigned n_c)
{
    const struct codec_spec *spec = &f->codecs[hs];
    const double *mean = spec->enc_mean ? spec->enc_mean : spec->mean, *P = spec->enc_predict ? spec->enc_predict : spec->predict;
    uint32_t order[N_BANDS];
    double z = 0;

    (void) band_order(spec, order);
    for (unsigned i = 0; i < D && row < spec->bands[order[k]].n_coords; i++) {
        double u = (double) x[i] - mean[i];

        for (unsigned j = 0; j < n_c; j++)
            u -= P[i * n_c + j] * c[j];
        z += spec->bands[order[k]].enc[row * D + i] * u;
    }
    return z;
}

/*
 * The formulas of table.h in the spec's own terms against the view's. Matrix entries are rounded to binary32 after steps
 * are folded in (2^-24 of each term, and of the mean): 2^-23 of the magnitudes. Encoding multiplies enc and P in
 * binary64 beforehand, which is the same sum in another order; its magnitude lacks what cancels inside enc P: 2^-20.
 */
static void check_formulas(enum prediction v_from, bool apart)
{
    _cleanup_(freep) void *bytes = NULL;
    _cleanup_(table_unrefp) struct table *t = NULL;
    struct fixture f;
    size_t n, at = 0;
    uint8_t codes_k[2 * TABLE_RANK_MAX] = { 0 }, codes_v[TABLE_RANK_MAX] = { 0 };
    double c[2 * D], z[2][D], want[D];
    struct table_sums got[2];
    unsigned n_c = 0;

    fixture_init(&f, usual_bits, v_from);
    if (apart)
        fixture_part(&f);
    CU_ASSERT_EQUAL_FATAL(fixture_build(&f, &bytes, &n, NULL), 0);
    CU_ASSERT_EQUAL_FATAL(table_parse(bytes, n, &t, NULL), 0);
    CU_ASSERT_EQUAL(t->v_from, v_from);
    CU_ASSERT_EQUAL(table_codec(t, 0, 0, SIDE_V)->n_pred, 32 * (unsigned) v_from); /* none, one head, two heads */
    for (unsigned head = 0; head < f.g.n_kv_heads; head++) {
        unsigned first = n_c;

        n_c += random_codes(&f, 2 * head, codes_k + at, c + n_c);
        memcpy(z[SIDE_K], c + first, (n_c - first) * sizeof(*c)); /* of the last head, which is looked at below */
        at += 32;
    }
    CU_ASSERT_EQUAL(n_c, 28 * f.g.n_kv_heads);
    n_c = v_from == PREDICT_NONE ? 0 : n_c;
    for (unsigned side = 0; side < 2; side++) {
        unsigned head = f.g.n_kv_heads - 1, hs = 2 * head + side;
        float x[2][D];
        const float *const p[2] = { x[0], x[1] };

        if (side == SIDE_V)
            (void) random_codes(&f, hs, codes_v, z[SIDE_V]);
        spec_decode(&f, hs, z[side], c, side ? n_c : 0, want);
        table_decode_head(t, 0, head, codes_k, codes_v, got);
        for (unsigned i = 0; i < D; i++) {
            CU_ASSERT_DOUBLE_EQUAL(got[side].x[i], want[i], 0x1p-23 * got[side].magnitude[i]);
            x[0][i] = x[1][i] = (float) (10 * test_rand_normal());
        }
        table_encode_head(t, 0, head, codes_k, p, got);
        for (unsigned row = 0; row < 32; row++)
            CU_ASSERT_DOUBLE_EQUAL(got[side].x[row], spec_encode(&f, hs, row / 8, row % 8, x[side], c, side ? n_c : 0),
                                   0x1p-20 * got[side].magnitude[row]);
    }
}

static void test_formulas(void)
{
    for (int v_from = PREDICT_NONE; v_from <= PREDICT_LAYER; v_from++)
        for (unsigned apart = 0; apart < 2; apart++)
            check_formulas((enum prediction) v_from, apart);
}

static void test_rank_zero(void)
{
    static const uint8_t none[2][N_BANDS] = { { 0 } };
    _cleanup_(freep) void *bytes = NULL;
    _cleanup_(table_unrefp) struct table *t = NULL;
    struct fixture f;
    size_t n;

    fixture_init(&f, none, PREDICT_NONE);
    CU_ASSERT_EQUAL_FATAL(fixture_build(&f, &bytes, &n, NULL), 0);
    CU_ASSERT_EQUAL_FATAL(table_parse(bytes, n, &t, NULL), 0);
    CU_ASSERT_EQUAL(t->bpd_code, 0.0);
    CU_ASSERT_EQUAL(table_codec(t, 0, 0, SIDE_V)->n_half, 0);
    CU_ASSERT_PTR_NULL(table_codec(t, 0, 0, SIDE_V)->enc);
    CU_ASSERT_PTR_NULL(table_codec(t, 0, 0, SIDE_V)->dec);
    CU_ASSERT_EQUAL(table_codec(t, 0, 0, SIDE_V)->mean[5], (float) f.mean[1][5]);
}

/* Same inputs, same bytes; the name is the SHA-256 of all but itself; anything else has another name. */
static void test_identity(void)
{
    _cleanup_(freep) void *a = NULL;
    _cleanup_(freep) void *b = NULL;
    _cleanup_(freep) void *c = NULL;
    _cleanup_(table_unrefp) struct table *t = NULL;
    uint8_t digest[DIGEST_BYTES];
    struct fixture f;
    size_t n, n_b, n_c;

    t = build_usual(&f, PREDICT_HEAD, &a, &n);
    CU_ASSERT_EQUAL_FATAL(fixture_build(&f, &b, &n_b, NULL), 0);
    CU_ASSERT_EQUAL_FATAL(n, n_b);
    CU_ASSERT_EQUAL(memcmp(a, b, n), 0);
    (void) crypto_hash_sha256(digest, a, n - DIGEST_BYTES);
    CU_ASSERT_EQUAL(memcmp(digest, t->digest, DIGEST_BYTES), 0);
    CU_ASSERT_EQUAL(memcmp((uint8_t *) a + n - DIGEST_BYTES, t->digest, DIGEST_BYTES), 0);
    f.mean[0][7] += 1;
    CU_ASSERT_EQUAL_FATAL(fixture_build(&f, &c, &n_c, NULL), 0);
    CU_ASSERT_NOT_EQUAL(memcmp((uint8_t *) c + n_c - DIGEST_BYTES, t->digest, DIGEST_BYTES), 0);
}

/* ---- hostile bytes ------------------------------------------------------------------------------------------- */

static void seal(void *bytes, size_t n)
{
    (void) crypto_hash_sha256((uint8_t *) bytes + n - DIGEST_BYTES, bytes, n - DIGEST_BYTES);
}

static void refused(const void *bytes, size_t n, const char *word)
{
    struct table *t = NULL;
    struct errmsg e = { "" };

    CU_ASSERT_EQUAL(table_parse(bytes, n, &t, &e), -EBADMSG);
    CU_ASSERT_PTR_NULL(t);
    if (word && !strstr(e.text, word)) {
        CU_FAIL("wrong sentence");
        printf("    wanted \"%s\", got \"%s\"\n", word, e.text);
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
        refused(cut, i, i < 288 ? "too short" : "cut short");
        free(cut);
    }
}

/* Every line changes one thing and signs the table again: the digest alone must not be what protects us. */
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
#define HOSTILE(change, word)   \
    do {                        \
        memcpy(bad, good, n);   \
        change;                 \
        seal(bad, n);           \
        refused(bad, n, word);  \
    } while (0)
    HOSTILE(h->magic[0] = 'X', "not an allocation table");
    HOSTILE(h->version = 1, "version 1");
    HOSTILE(h->version = 3, "version 3");
    HOSTILE(h->n_bytes++, "cut short");
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
    HOSTILE(levels[510] = 0, "8-bit levels of side K"); /* between the first value and the last threshold of width 8 */
    HOSTILE(c[0].n_half = 5, "bit widths");
    HOSTILE(c[0].n_half = 8, "bit widths");
    HOSTILE(c[0].n_half = UINT16_MAX, "bit widths");
    HOSTILE(c[0].bits[0] = 9; c[0].code_bits += 16, "bit widths");
    HOSTILE(c[0].bits[3] = 3; c[0].code_bits += 8, "bit widths");
    HOSTILE(c[0].bits[2] = c[0].bits[3] = 0; c[0].code_bits -= 32, "bit widths"); /* two empty ones */
    HOSTILE(c[0].bits[31] = 1, "bit widths");
    HOSTILE(c[0].code_bits += 8, "bit widths");
    HOSTILE(c[0].r -= 8, "bit widths");
    HOSTILE(c[1].n_pred -= 32, "number of codes");
    HOSTILE(c[1].n_pred = UINT32_MAX, "number of codes");
    HOSTILE(c[0].n_pred = 32, "number of codes");
    HOSTILE(h->v_from = PREDICT_NONE, "number of codes");
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
    HOSTILE(bad[h->sections[SECTION_PROVENANCE].off + h->sections[SECTION_PROVENANCE].bytes - 1] = 'x', "terminated");
    HOSTILE(bad[h->sections[SECTION_GOLDEN].off] ^= 0x80, "widths"); /* first code has 7 bits */
    /* 1e-3 of one entry: 2^13 times what rounding explains of a term, in sums of some forty terms */
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

/* An empty half-tile must be zero: kernels multiply it without looking. */
static void test_empty_half_tile(void)
{
    static const uint8_t odd[2][N_BANDS] = { { 2, 0, 4, 2, 0 }, { 1, 0, 0, 0, 0 } };
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
    struct errmsg e = { "" };
    void *bytes = NULL;
    size_t n = 77;

    CU_ASSERT_EQUAL(fixture_build(f, &bytes, &n, &e), -EINVAL);
    CU_ASSERT_PTR_NULL(bytes);
    CU_ASSERT_EQUAL(n, 77);
    if (!strstr(e.text, word)) {
        CU_FAIL("wrong sentence");
        printf("    wanted \"%s\", got \"%s\"\n", word, e.text);
    }
}

static void test_build_refuses(void)
{
    struct fixture f;

#define REFUSED(change, word)                 \
    do {                                      \
        fixture_init(&f, usual_bits, PREDICT_HEAD);   \
        change;                               \
        build_refused(&f, word);              \
    } while (0)
    REFUSED(f.g.d = 37, "head dimension");
    REFUSED(f.mean[1][3] = NAN, "layer 0, head 0, side V");
    REFUSED(f.enc[0][0] = 1e39, "layer 0, head 0, side K");
    REFUSED(f.dec[1][0] = INFINITY, "side V");
    REFUSED(f.predict[1][0] = -1e300, "side V");
    REFUSED(f.codecs[0].predict = f.predict[0], "announce");
    REFUSED(f.v_from = PREDICT_NONE, "announce");
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

/* ---- files and references ------------------------------------------------------------------------------------ */

static void test_load(void)
{
    _cleanup_(freep) void *bytes = NULL;
    _cleanup_(table_unrefp) struct table *t = NULL;
    _cleanup_(table_unrefp) struct table *loaded = NULL;
    struct table *none = NULL;
    struct errmsg e = { "" };
    char dir[] = "/tmp/kvc-test-XXXXXX", path[64];
    struct fixture f;
    size_t n;

    t = build_usual(&f, PREDICT_HEAD, &bytes, &n);
    CU_ASSERT_PTR_NOT_NULL_FATAL(mkdtemp(dir));
    (void) snprintf(path, sizeof(path), "%s/table", dir);
    CU_ASSERT_EQUAL(table_load(path, &none, &e), -ENOENT);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, path));
    CU_ASSERT_EQUAL_FATAL(atomic_file_write(path, bytes, n, &e), 0);
    CU_ASSERT_EQUAL_FATAL(table_load(path, &loaded, &e), 0);
    CU_ASSERT_EQUAL(memcmp(loaded->digest, t->digest, DIGEST_BYTES), 0);
    CU_ASSERT_EQUAL_FATAL(atomic_file_write(path, bytes, n - 1, &e), 0);
    CU_ASSERT_EQUAL(table_load(path, &none, &e), -EBADMSG);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, path));
    CU_ASSERT_PTR_NULL(none);
    (void) unlink(path);
    (void) rmdir(dir);
}

static void *use_table(void *arg)
{
    struct table *t = arg;

    for (unsigned i = 0; i < 20000; i++)
        (void) table_unref(table_ref(t));
    return table_unref(t);
}

/* Threads share and drop one table; the last one frees it (leaks and double frees are the sanitizer's to find). */
static void test_references(void)
{
    _cleanup_(freep) void *bytes = NULL;
    struct fixture f;
    struct table *t;
    pthread_t threads[4];
    size_t n;

    CU_ASSERT_PTR_NULL(table_unref(NULL));
    t = build_usual(&f, PREDICT_NONE, &bytes, &n);
    for (unsigned i = 0; i < 4; i++)
        CU_ASSERT_EQUAL_FATAL(pthread_create(&threads[i], NULL, use_table, table_ref(t)), 0);
    (void) table_unref(t);
    for (unsigned i = 0; i < 4; i++)
        CU_ASSERT_EQUAL(pthread_join(threads[i], NULL), 0);
}

const struct test_case test_cases[] = {
    TEST(test_band_order),
    TEST(test_view),
    TEST(test_formulas),
    TEST(test_rank_zero),
    TEST(test_identity),
    TEST(test_damaged),
    TEST(test_hostile),
    TEST(test_empty_half_tile),
    TEST(test_build_refuses),
    TEST(test_load),
    TEST(test_references),
    TEST_END,
};
const char test_suite[] = "table";
