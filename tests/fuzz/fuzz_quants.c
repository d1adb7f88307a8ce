/*
 * Rows of quantised numbers of every type that the engine reads, of arbitrary bytes. A row is decoded the
 * same alone and among others. Products with it stay inside its bytes; they are 0 for a vector of zeros if
 * all its numbers are finite. The first byte chooses the type, the second one the row.
 */
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "tools/engine/linear.h"
#include "tools/engine/matvec.h"
#include "tools/engine/quants.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { COLS = 512, ROWS_MAX = 4 };

static void check(bool ok)
{
    if (!ok)
        abort();
}

/* @y: products of @n rows with zeros; @w: [n, COLS]. NaN comes from infinite scales only. */
static void check_products(const float *y, const float *w, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        bool finite = true;

        for (size_t j = 0; j < COLS; j++)
            finite &= isfinite(w[i * COLS + j]) != 0;
        check(!finite || y[i] == 0.0f);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const float zeros[COLS], zero_sums[COLS / MATVEC_SUM_RUN];
    static float all[ROWS_MAX * COLS], one[COLS], x[COLS], sums[COLS / MATVEC_SUM_RUN], y[ROWS_MAX];
    const struct matvec_ops *ops[3];
    const struct quant_type *t = size > 2 ? quant_type_of(data[0] % (QUANT_BF16 + 1)) : NULL;
    size_t row_bytes = t ? COLS / t->block_weights * (size_t) t->block_bytes : 0, n_rows, row;
    _cleanup_(freep) uint8_t *bytes = NULL;
    struct matrix w;

    if (!t || size - 2 < row_bytes)
        return 0;
    n_rows = (size - 2) / row_bytes;
    n_rows = n_rows < ROWS_MAX ? n_rows : ROWS_MAX;
    row = data[1] % n_rows;
    bytes = malloc(n_rows * row_bytes); /* of exactly this size: a sanitizer finds reads beyond it */
    check(bytes != NULL);
    memcpy(bytes, data + 2, n_rows * row_bytes);
    w = (struct matrix){.data = bytes, .type = t, .n_rows = n_rows, .n_cols = COLS, .row_bytes = row_bytes};
    linear_rows(&w, 0, n_rows, all);
    t->decode(bytes + row * row_bytes, COLS / t->block_weights, one);
    check(memcmp(one, all + row * COLS, sizeof(one)) == 0);

    for (size_t i = 0; i < COLS; i++)
        x[i] = (float) (i % 7) - 3;
    matvec_sums(x, COLS, sums);
    for (size_t i = 0, n = matvec_runnable(ops); i < n; i++) {
        ops[i]->rows(&w, row, n_rows - row, x, sums, y);
        ops[i]->rows(&w, 0, n_rows, zeros, zero_sums, y);
        check_products(y, all, n_rows);
    }
    return 0;
}
