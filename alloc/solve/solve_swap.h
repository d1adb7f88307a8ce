/*
 * What of a table does not serve another text: a codec fitted to one source is measured on vectors of another
 * one, first as it is, then with one statistic of the other source in place of its own. The less distortion
 * is left, the worse that statistic served the other source. For `kvcobra solve --swap-report`; nothing here
 * makes a table.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct errmsg;
struct solve_options;
struct stats;

/* The statistics that can be exchanged, as bits of a set. */
enum swap_part {
    SWAP_MEAN = 1 << 0,       /* that the encoder subtracts */
    SWAP_COVARIANCE = 1 << 1, /* basis of each head-side; without the scales */
    SWAP_METRIC = 1 << 2,     /* of the basis */
    SWAP_SCALES = 1 << 3,     /* deviations of bands */
    SWAP_LEVELS = 1 << 4,     /* of quantisers */
    SWAP_BITS = 1 << 5,       /* of bands */
    SWAP_PREDICTION = 1 << 6, /* of values from keys */
    SWAP_DECODERS = 1 << 7,   /* least squares, with their offsets */
};

struct swap_row {
    const char *name;     /* what is taken from the other source; static */
    unsigned parts[2];    /* by side: set of enum swap_part */
    double distortion[2]; /* by side: e'Me under the metric of the other source, on vectors of it */
    double left;          /* distortion of both sides over that of the first row, which takes nothing */
};

#define SWAP_ROWS_MAX 16

/**
 * solve_swap() - the distortion of another source, by what is taken from it
 * @own:      statistics that the codec is fitted to
 * @other:    of the same model, with the metric that @o names; the first half of its sampled tokens, by
 *            document, is fitted to, and the other half is measured
 * @o:        method bands, with curves and levels as in a solve; nothing is left out
 * @n_layers: layers to measure, spread over the model; 0 or too many: all
 * @ret_rows: [SWAP_ROWS_MAX] rows that can differ under @o; the first takes nothing
 *
 * Return: 0; -EINVAL: another model, another method, or fewer than 64 sampled tokens; -ENOMEM.
 */
int solve_swap(const struct stats *own, const struct stats *other, const struct solve_options *o,
               uint32_t n_layers, struct swap_row *ret_rows, size_t *ret_n_rows, struct errmsg *e);
