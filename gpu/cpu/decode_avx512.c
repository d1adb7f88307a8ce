/* Decode steps with AVX-512 BW and VNNI. */
#include "gpu/cpu/decode_512.h"

const struct decode_ops decode_avx512 = DECODE_OPS;
