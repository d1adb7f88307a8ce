/* The binary16 baseline with AVX-512. */
#include <immintrin.h>

#include "gpu/cpu/ops_x86.h"

typedef __m512 vec;

enum { VEC_LANES = 16, VEC_BLOCK = 4 };

#define vec_load(p) _mm512_loadu_ps(p)
#define vec_store(p, x) _mm512_storeu_ps(p, x)
#define vec_set1(x) _mm512_set1_ps(x)
#define vec_fma(a, b, c) _mm512_fmadd_ps(a, b, c)
#define vec_half(p) _mm512_cvtph_ps(_mm256_loadu_si256((const void *) (p)))
#define softmax(row, scores) ops_avx512.softmax(row, scores)

#include "lab/bench/attend_f16_simd.h"

extern const struct attend_f16 attend_f16_avx512;
const struct attend_f16 attend_f16_avx512 = {"avx512", attend};
