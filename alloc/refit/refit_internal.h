/* The codecs of a table taken apart, for refit.c, which changes them, and refit_build.c, which takes them
 * from a table and builds the new one. Callers use refit.h. */
#pragma once

#include <stdint.h>

#include "alloc/table/table.h"

struct errmsg;
struct moments;
struct refit_report;

/* One head-side, in units of z: bands in stored order, 8 coordinates each, padding as zeros. */
struct refit_side {
    uint32_t n_bands, n; /* n = 8 n_bands */
    uint8_t bits[TABLE_HALF_TILES_MAX];
    uint32_t fast_planes, fast_halves;   /* as in struct codec */
    double *enc;                         /* [n, d] */
    double *dec;                         /* [n_bands][d, 8] */
    double *enc_mean;                    /* [d] of what is encoded: x, or x - P c */
    double *mean;                        /* [d] of what is decoded */
    double *predict;                     /* V: [d, codes of the keys that predict it], or NULL */
    double scaled[TABLE_HALF_TILES_MAX]; /* by band: the unit of z now, in units of z of the table */
};

struct refit {
    const struct table *t;
    const struct moments *m;
    const struct geometry *g;
    double share;             /* of the way from the table to what fits the moments */
    struct refit_side *sides; /* [n_sides], by head_side_index() */
    uint32_t n_sides;
    double *signal[2], *error[2]; /* [n_layers] by side, of normal vectors */
    double contrast[2];           /* of the first solve, by side */
};

/* Return: 0; -ENOMEM. refit_deinit() after a failure too. */
int refit_init(struct refit *f, const struct table *t, const struct moments *m, double share);
void refit_deinit(struct refit *f);

/* The prediction of values of @head from the codes of @run in the table: P' [codes, d], for codes of the
 * fitted keys. */
void refit_get_prediction(const struct refit *f, uint32_t layer, uint32_t head, struct head_run run,
                          double *ret);

/* The table of @f->sides. Return: as table_build(). */
int refit_build(const struct refit *f, const struct refit_report *report, void **ret_bytes,
                size_t *ret_n_bytes, struct errmsg *e);
