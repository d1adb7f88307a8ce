/* A table built of random codecs, with the codecs beside it for comparison. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "alloc/quantiser/levels_normal.h"
#include "alloc/table/table_build.h"
#include "base/errmsg.h"
#include "tests/lib/test.h"

/*
 * One layer of one or two KV heads with equal widths, d = 36, so six half-tiles and a band of four. All
 * numbers of the spec are random. Head-sides are numbered 2 h + side.
 */
enum { D = 36, N_BANDS = 5, SIDES = 4 };

struct fixture {
    struct geometry g;
    enum prediction v_from;
    struct levels levels[2][TABLE_BITS_MAX + 1];
    struct band_spec bands[SIDES][N_BANDS];
    double mean[SIDES][D], enc[SIDES][D * D], dec[SIDES][D * D], predict[SIDES][D * 2 * D];
    /* of an encoder that is not the decoder's inverse */
    double enc_mean[SIDES][D], enc_predict[SIDES][D * 2 * D];
    struct codec_spec codecs[SIDES];
    uint8_t model[DIGEST_BYTES];
    const char *provenance;
};

static inline void fixture_init(struct fixture *f, const uint8_t bits[2][N_BANDS], enum prediction v_from)
{
    uint32_t n_kv = v_from == PREDICT_LAYER ? 2 : 1;

    *f = (struct fixture){
        .g = {.n_layers = 1,
              .n_heads = 2,
              .n_kv_heads = n_kv,
              .d = D,
              .n_rot = 4,
              .attn_scale = 0.25,
              .freq = {1, 0.1}},
        .v_from = v_from,
        .model = "model",
        .provenance = "{\"method\": \"none\"}",
    };
    for (unsigned side = 0; side < 2; side++)
        for (unsigned b = 1; b <= 8; b++)
            CU_ASSERT_EQUAL_FATAL(
                levels_normal(side ? QUANT_UNIFORM : QUANT_LLOYD_MAX, b, &f->levels[side][b]), 0);
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
            f->bands[hs][k] = (struct band_spec){
                .bits = bits[hs % 2][k],
                .n_coords = k == N_BANDS - 1 ? 4 : 8,
                .enc = f->enc[hs] + 8 * k * D,
                .dec = f->dec[hs] + 8 * k * D,
            };
        f->codecs[hs] = (struct codec_spec){.mean = f->mean[hs], .n_bands = N_BANDS, .bands = f->bands[hs]};
        if (hs % 2 == SIDE_V && v_from != PREDICT_NONE)
            f->codecs[hs].predict = f->predict[hs];
    }
}

/* Gives every head-side an encoder that is not its decoder's inverse. */
static inline void fixture_separate_encoders(struct fixture *f)
{
    for (unsigned hs = 0; hs < SIDES; hs++) {
        f->codecs[hs].enc_mean = f->enc_mean[hs];
        if (f->codecs[hs].predict)
            f->codecs[hs].enc_predict = f->enc_predict[hs];
    }
}

static inline int fixture_build(const struct fixture *f, void **ret_bytes, size_t *ret_n, struct errmsg *e)
{
    return table_build(&(struct table_spec){.geometry = &f->g,
                                            .model_digest = f->model,
                                            .n_sink = 4,
                                            .v_from = f->v_from,
                                            .levels = f->levels,
                                            .codecs = f->codecs,
                                            .provenance = f->provenance},
                       ret_bytes, ret_n, e);
}

static const uint8_t usual_bits[2][N_BANDS] = {{2, 0, 4, 2, 7}, {5, 3, 0, 1, 8}};

static inline struct table *build_usual(struct fixture *f, enum prediction v_from, void **ret_bytes,
                                        size_t *ret_n)
{
    struct table *t = NULL;
    struct errmsg e = {""};

    fixture_init(f, usual_bits, v_from);
    CU_ASSERT_EQUAL_FATAL(fixture_build(f, ret_bytes, ret_n, &e), 0);
    CU_ASSERT_EQUAL_FATAL(table_parse(*ret_bytes, *ret_n, &t, &e), 0);
    return t;
}
