/* One product of each kind with tiles of gpu/cpu/amx.h, for test_amx.c: amx_products.c is compiled for the
 * instructions and for the model. */
#pragma once

#include <stdint.h>

enum { PRODUCT_ROWS = 5, PRODUCT_BYTES = 24, PRODUCT_COLS = 7, PRODUCT_STRIDE = 67 };

struct product_data {
    uint8_t a[16 * PRODUCT_STRIDE], b[16 * PRODUCT_STRIDE]; /* rows of tiles, from byte 1 on */
    /* added to: products of unsigned by signed bytes, then of signed by unsigned bytes */
    int32_t sums[2][PRODUCT_ROWS][PRODUCT_COLS];
    int32_t zeros[PRODUCT_ROWS][PRODUCT_COLS]; /* the result of tile_zero */
};

void products_native(struct product_data *d);
void products_model(struct product_data *d);
