/* The variants for x86-64, each in a static library with its own flags.
 * Only they and ops.c include this file. */
#pragma once

#include "gpu/cpu/decode.h"
#include "gpu/cpu/ops.h"

#define EXP_LOWEST (-87.0f) /* their exp is 0 below this; e^-87 = 2^-125.5 is still a normal number */

#if defined(__x86_64__)
extern const struct ops ops_avx2;
extern const struct ops ops_avx2_vnni; /* ops_avx2 with decode_avxvnni */
extern const struct ops ops_avx512;
extern const struct ops ops_avx512_vnni; /* ops_avx512 with decode_avx512 */
extern const struct ops ops_avx512_vbmi; /* ops_avx512 with decode_avx512vbmi */
extern const struct decode_ops decode_avx2, decode_avxvnni, decode_avx512, decode_avx512vbmi;
#endif
