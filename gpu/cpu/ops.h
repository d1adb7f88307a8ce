/*
 * The inner loops of encoding, decoding and attention, and of conversions, once per instruction set.
 * Everything around them (order of work, masks, layout) is common code, so a new instruction set is one file:
 * ops_ref.c, ops_avx2.c, ops_avx512.c; ops.c selects.
 *
 * Matrices are row-major binary32 with a row stride in floats (lda, ldb, ldc). No operation allocates, and
 * none needs more alignment than a float has.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "alloc/table/trellis.h"
#include "gpu/page_layout.h"

#define OPS_LANES 16 /* numbers of columns of a product are multiples of this */

/* State of one softmax row over blocks of 64 keys. */
struct softmax_row {
    float max;     /* largest score so far; -INFINITY before the first */
    float sum;     /* of exp(score - max) */
    float skipped; /* part of sum whose values were not added: attend_rows.c, not the loops */
};

struct matrix_in {
    const float *p;
    size_t ld;
};

struct matrix_out {
    float *p;
    size_t ld;
};

/* Numbers below low or above high are outside. */
struct quantise_limits {
    float low, high;
};

struct decode_ops;

struct ops {
    const char *name;

    /* Loops for packed pages and few query rows, gpu/cpu/decode.h; NULL: use the common ones. */
    const struct decode_ops *decode;

    /* C [m, n] += A [m, k] B [k, n]; n a multiple of OPS_LANES. Sums in any order, FMA allowed: for
     * attention. A row of C has the same bits for every m (attend_args.repeatable). */
    void (*matmul)(size_t m, size_t n, size_t k, struct matrix_in a, struct matrix_in b, struct matrix_out c);

    /* The same product, but each element of C is the sum over k = 0, 1, 2 ..., started at +0, every product
     * and every sum rounded to binary32, and added to C at the end. The same bits on every machine: codes
     * depend on it. */
    void (*matmul_ordered)(size_t m, size_t n, size_t k, struct matrix_in a, struct matrix_in b,
                           struct matrix_out c);

    /* ret[i] = l->value[codes[i]], codes below 2^b, b = levels_index_bits(); n a multiple of OPS_LANES. */
    void (*lookup)(const struct levels *l, unsigned b, const uint8_t *codes, size_t n, float *ret);

    /* lo, hi [n] := lo cos - hi sin, hi cos + lo sin; n a multiple of OPS_LANES. */
    void (*rotate)(float *lo, float *hi, const float *cos, const float *sin, size_t n);

    /* [n] binary16 of any alignment to binary32. */
    void (*from_half)(const void *x, size_t n, float *ret);

    /* One row over 64 keys: scores in, exp(score - new max) out. -INFINITY marks a key that is
     * not seen and gives 0. At least one score is finite. Returns exp(old max - new max), the
     * factor that rescales earlier sums. */
    float (*softmax)(struct softmax_row *row, float scores[CHUNK_TOKENS]);

    /* ---- conversion: the same bits in every variant, except which NaN a NaN becomes ---- */

    /* codes[i] = levels_quantise(l, b, z[i]) for z [n/16][16 tokens]; n a multiple of OPS_LANES. Returns how
     * many numbers of the first @lanes tokens are outside @limits. */
    size_t (*quantise)(const struct levels *l, unsigned b, struct quantise_limits limits, const float *z,
                       size_t n, size_t lanes, uint8_t *codes);

    /* Strings of trellis-coded levels. */
    trellis_encode_fn *trellis;

    /* ret [16][16] := x transposed; row strides in floats */
    void (*transpose)(const float *x, size_t stride, float *ret, size_t ret_stride);

    /* x [n][16], row i minus mean[i]. Returns false if a result is not finite. */
    bool (*centre)(const float *mean, size_t n, float *x);

    /* [n] bfloat16 of any alignment to binary32, and back, rounded to nearest even. */
    void (*from_brain)(const void *x, size_t n, float *ret);
    void (*to_brain)(const float *x, size_t n, void *ret);

    /* [n] binary32 to binary16 of any alignment, rounded to nearest even. Returns false if a result is NaN or
     * infinite. */
    bool (*to_half)(const float *x, size_t n, void *ret);

    /* lo, hi [n] := lo cos - hi s, hi cos + lo s, s = sign sin; every product and every sum rounded. */
    void (*turn)(float *restrict lo, float *restrict hi, const float *restrict cos, const float *restrict sin,
                 float sign, size_t n);
};

extern const struct ops ops_ref;

/* The best variant for the capabilities in @mask (gpu/cpu.h); 0 gives the reference. */
const struct ops *ops_select(unsigned mask);

/* The best variant for this machine, chosen once; thread-safe. */
const struct ops *ops_best(void);
