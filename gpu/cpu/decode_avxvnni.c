/* Decode steps with AVX2, FMA and AVX-VNNI, whose products of bytes are added in 32 bits. */
#include <immintrin.h>
#include <string.h>

#define inline_always inline __attribute__((always_inline))

typedef __m256i ivec;

enum { NARROW_MAX = 127, WEIGHT_MAX = 255 };

/* Inline assembly instead of intrinsics, for the reason in decode_512.h. */
static inline_always ivec dot4(ivec sum, ivec u, ivec s)
{
    __asm__("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(u), "x"(s));
    return sum;
}

static inline_always ivec dot2(ivec sum, ivec a, ivec b)
{
    __asm__("%{vex%} vpdpwssd %2, %1, %0" : "+x"(sum) : "x"(a), "x"(b));
    return sum;
}

#include "gpu/cpu/decode_256.h"

const struct decode_ops decode_avxvnni = DECODE_OPS;
