/* Decode steps with AVX2 and FMA. vpmaddubsw adds two products in 16 bits and would
 * saturate, so the factor of a level plus 128 is at most 63, and a weight at most 127: 2 *
 * 255 * 63 and 2 * 127 * 127 are below 2^15. */
#include <immintrin.h>
#include <string.h>

#define inline_always inline __attribute__((always_inline))

typedef __m256i ivec;

enum { NARROW_MAX = 63, WEIGHT_MAX = 127 };

static inline_always ivec dot4(ivec sum, ivec u, ivec s)
{
    return _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(u, s), _mm256_set1_epi16(1)));
}

static inline_always ivec dot2(ivec sum, ivec a, ivec b)
{
    return _mm256_add_epi32(sum, _mm256_madd_epi16(a, b));
}

#include "gpu/cpu/decode_256.h"

const struct decode_ops decode_avx2 = DECODE_OPS;
