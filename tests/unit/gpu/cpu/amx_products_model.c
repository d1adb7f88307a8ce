/* amx_products.c on the model of tiles. */
#define AMX_MODEL "tests/unit/gpu/cpu/amx_model.h"
#define AMX_PRODUCTS products_model

#include "tests/unit/gpu/cpu/amx_products.c"
