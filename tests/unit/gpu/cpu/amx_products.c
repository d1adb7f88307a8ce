/* See amx_products.h; amx_products_model.c compiles this file for the model. */
#include "tests/unit/gpu/cpu/amx_products.h"

#include "gpu/cpu/amx.h"

#ifndef AMX_PRODUCTS
#define AMX_PRODUCTS products_native
#endif

void AMX_PRODUCTS(struct product_data *d)
{
    struct tile_config config = {
        .palette = 1,
        .rows = {[0] = PRODUCT_ROWS, [1] = PRODUCT_ROWS, [2] = PRODUCT_BYTES / 4, [7] = PRODUCT_ROWS},
        .row_bytes =
            {[0] = PRODUCT_COLS * 4, [1] = PRODUCT_BYTES, [2] = PRODUCT_COLS * 4, [7] = PRODUCT_COLS * 4},
    };

    tiles_configure(&config);
    tile_load(1, d->a + 1, PRODUCT_STRIDE);
    tile_load(2, d->b + 1, PRODUCT_STRIDE);
    tile_load(0, d->sums[0], sizeof(d->sums[0][0]));
    tile_load(7, d->sums[1], sizeof(d->sums[1][0]));
    tile_dot_us(0, 1, 2);
    tile_dot_su(7, 1, 2);
    tile_store(0, d->sums[0], sizeof(d->sums[0][0]));
    tile_store(7, d->sums[1], sizeof(d->sums[1][0]));
    tile_zero(7);
    tile_store(7, d->zeros, sizeof(d->zeros[0]));
    tiles_release();
}
