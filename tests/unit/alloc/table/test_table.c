#include "tests/lib/test.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <sodium.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/table/table_build.h"
#include "alloc/table/table_format.h"
#include "base/atomic_file.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tests/unit/alloc/table_fixture.h"

static void test_stored_order(void)
{
    struct fixture f;
    uint32_t order[N_BANDS];

    fixture_init(&f, usual_bits, PREDICT_NONE);
    CU_ASSERT_EQUAL(table_band_order(&f.codecs[SIDE_K], order), 4);
    static const uint32_t want[N_BANDS] = {4, 2, 0, 3, 1}; /* 7, 4, 2, 2, then the empty one */
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
        CU_ASSERT_EQUAL(k->enc_mean[j], (float) f.mean[0][j]); /* the spec has no other mean */
        /* the short band is first */
        CU_ASSERT_EQUAL(k->enc[3 * D + j], (float) f.bands[0][4].enc[3 * D + j]);
        CU_ASSERT_EQUAL(k->enc[4 * D + j], 0.0f); /* its padding */
        CU_ASSERT_EQUAL(k->dec[j * 32 + 4], 0.0f);
        CU_ASSERT_EQUAL(k->enc[(8 + 7) * D + j], (float) f.bands[0][2].enc[7 * D + j]); /* then 4 bits */
        CU_ASSERT_EQUAL(k->dec[j * 32 + 8],
                        (float) (f.bands[0][2].dec[j * 8] * (double) f.levels[0][4].step));
    }
}

/* Random codes of a codec and their values in units of z, without padding.
 * Returns the number of coordinates. */
static unsigned random_codes(const struct fixture *f, unsigned hs, uint8_t *ret_codes, double *ret_z)
{
    uint32_t order[N_BANDS], stored = table_band_order(&f->codecs[hs], order);
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

/* mean + sum over stored bands of dec z, from the spec's own matrices; + predict
 * c for V, @n coordinates of c */
static void spec_decode(const struct fixture *f, unsigned hs, const double *z, const double *c, unsigned n_c,
                        double *ret_x)
{
    uint32_t order[N_BANDS], stored = table_band_order(&f->codecs[hs], order);

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
static double spec_encode(const struct fixture *f, unsigned hs, unsigned k, unsigned row, const float *x,
                          const double *c, unsigned n_c)
{
    const struct codec_spec *spec = &f->codecs[hs];
    const double *mean = spec->enc_mean ? spec->enc_mean : spec->mean,
                 *P = spec->enc_predict ? spec->enc_predict : spec->predict;
    uint32_t order[N_BANDS];
    double z = 0;

    (void) table_band_order(spec, order);
    for (unsigned i = 0; i < D && row < spec->bands[order[k]].n_coords; i++) {
        double u = (double) x[i] - mean[i];

        for (unsigned j = 0; j < n_c; j++)
            u -= P[i * n_c + j] * c[j];
        z += spec->bands[order[k]].enc[row * D + i] * u;
    }
    return z;
}

/*
 * The formulas of table_types.h, computed from the spec, against the view. Matrix entries are rounded to
 * binary32 after steps are folded in (2^-24 of each term, and of the mean): 2^-23 of the magnitudes. Encoding
 * multiplies enc and P in binary64 beforehand, which is the same sum in another order. Its magnitude does not
 * include the terms that cancel inside enc P: 2^-20.
 */
static void check_formulas(enum prediction v_from, bool apart)
{
    _cleanup_(freep) void *bytes = NULL;
    _cleanup_(table_unrefp) struct table *t = NULL;
    struct fixture f;
    size_t n, at = 0;
    uint8_t codes_k[2 * TABLE_RANK_MAX] = {0}, codes_v[TABLE_RANK_MAX] = {0};
    double c[2 * D], z[2][D], want[D];
    struct table_sums got[2];
    unsigned n_c = 0;

    fixture_init(&f, usual_bits, v_from);
    if (apart)
        fixture_separate_encoders(&f);
    CU_ASSERT_EQUAL_FATAL(fixture_build(&f, &bytes, &n, NULL), 0);
    CU_ASSERT_EQUAL_FATAL(table_parse(bytes, n, &t, NULL), 0);
    CU_ASSERT_EQUAL(t->v_from, v_from);
    /* none, one head, two heads */
    CU_ASSERT_EQUAL(table_codec(t, 0, 0, SIDE_V)->n_pred, 32 * (unsigned) v_from);
    for (unsigned head = 0; head < f.g.n_kv_heads; head++) {
        unsigned first = n_c;

        n_c += random_codes(&f, 2 * head, codes_k + at, c + n_c);
        /* of the last head, which is checked below */
        memcpy(z[SIDE_K], c + first, (n_c - first) * sizeof(*c));
        at += 32;
    }
    CU_ASSERT_EQUAL(n_c, 28 * f.g.n_kv_heads);
    n_c = v_from == PREDICT_NONE ? 0 : n_c;
    for (unsigned side = 0; side < 2; side++) {
        unsigned head = f.g.n_kv_heads - 1, hs = 2 * head + side;
        float x[2][D];
        const float *const p[2] = {x[0], x[1]};

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
            CU_ASSERT_DOUBLE_EQUAL(got[side].x[row],
                                   spec_encode(&f, hs, row / 8, row % 8, x[side], c, side ? n_c : 0),
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
    static const uint8_t none[2][N_BANDS] = {{0}};
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

/* The same inputs give the same bytes; the digest is the SHA-256 of all other bytes;
 * other inputs give another digest. */
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

/* ---- files and references ---- */

static void test_load(void)
{
    _cleanup_(freep) void *bytes = NULL;
    _cleanup_(table_unrefp) struct table *t = NULL;
    _cleanup_(table_unrefp) struct table *loaded = NULL;
    struct table *none = NULL;
    struct errmsg e = {""};
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

/* Threads share and release one table; the last one frees it. The sanitizer finds leaks and double frees. */
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
    TEST(test_stored_order), TEST(test_view), TEST(test_formulas),   TEST(test_rank_zero),
    TEST(test_identity),     TEST(test_load), TEST(test_references), TEST_END,
};
const char test_suite[] = "table";
