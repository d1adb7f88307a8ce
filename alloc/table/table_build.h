/*
 * From solved codecs to a table file: ordering and padding of half-tiles, folding of steps, golden vectors,
 * digest. Solvers and tests call it; it chooses no bits and fits nothing.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "alloc/table/table.h"

/* One solved band of a head-side: up to 8 coordinates that share a width; rows of enc, columns of dec. */
struct band_spec {
    uint8_t bits;      /* 0..8; 0: not stored */
    uint8_t n_coords;  /* 1..8; fewer than 8: padded with zero rows and columns, charged */
    const double *enc; /* [n_coords, d] to z of unit variance */
    const double *dec; /* [d, n_coords] from z */
    bool fast;         /* of the fast planes of the codec */
};

struct codec_spec {
    const double *mean; /* [d] */
    uint32_t n_bands;
    const struct band_spec *bands;
    /* V from K: [d, n_coords of the stored bands of the heads it is predicted from, each in its stored
     * order], from K's z; NULL: no prediction. K: NULL. */
    const double *predict;
    const double *enc_mean;    /* [d] subtracted by the encoder; NULL: mean */
    const double *enc_predict; /* like predict, subtracted by the encoder; NULL: predict */
    /* K: planes 0 .. fast_planes - 1 have bands of their own, marked in @bands: no other band reads or gives
     * a number of their dimensions, and they no other. 0: any band may */
    uint32_t fast_planes;
};

struct table_spec {
    const struct geometry *geometry;
    const uint8_t *model_digest; /* [DIGEST_BYTES] */
    uint32_t n_sink;
    enum prediction v_from;
    const struct levels (*levels)[TABLE_BITS_MAX + 1]; /* [2][9] by side and b */
    const struct codec_spec *codecs;                   /* [head_side_count] */
    const char *provenance; /* JSON text without times, paths or host names: same inputs, same digest */
};

/**
 * table_band_order() - the stored order of a head-side's bands: descending bits, stable; bands without bits
 * left out
 * @ret_order: [n_bands], indices of stored bands first
 * Return: number of stored bands.
 */
uint32_t table_band_order(const struct codec_spec *c, uint32_t *ret_order);

/**
 * table_build() - the canonical bytes of a table
 * @ret_bytes: malloc'ed, caller frees. table_parse() accepts them: building ends with it.
 * Return: 0; -EINVAL: a matrix not finite in binary32, or one that mixes the blocks of its codec, naming
 * layer, head, side; -ENOMEM.
 */
int table_build(const struct table_spec *s, void **ret_bytes, size_t *ret_n_bytes, struct errmsg *e);
