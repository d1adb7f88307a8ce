/*
 * One product of each kind with tiles of gpu/cpu/amx.h, for test_amx.c: on instructions and on the model,
 * which are two compilations of amx_products.c.
 */
#pragma once

#include <stdint.h>

enum { PRODUCT_ROWS = 5, PRODUCT_BYTES = 24, PRODUCT_COLS = 7, PRODUCT_STRIDE = 67 };

struct product_data {
    uint8_t a[16 * PRODUCT_STRIDE], b[16 * PRODUCT_STRIDE]; /* rows of tiles, from byte 1 on */
    int32_t sums[2][PRODUCT_ROWS][PRODUCT_COLS]; /* are added to: unsigned by signed; signed by unsigned */
    int32_t zeros[PRODUCT_ROWS][PRODUCT_COLS];   /* what tile_zero leaves */
};

void products_native(struct product_data *d);
void products_model(struct product_data *d);
