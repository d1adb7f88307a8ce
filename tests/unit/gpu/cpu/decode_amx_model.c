/* gpu/cpu/decode_amx.c on the model of tiles: the same loops on processors
 * with AVX-512 VNNI and without AMX. */
#define AMX_MODEL "tests/unit/gpu/cpu/amx_model.h"
#define decode_amx decode_amx_model

#include "gpu/cpu/decode_amx.c"
