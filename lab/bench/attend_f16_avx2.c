/* The binary16 baseline with AVX2, FMA and F16C. */
#include <immintrin.h>

#include "gpu/cpu/ops_x86.h"

typedef __m256 vec;

enum { VEC_LANES = 8, VEC_BLOCK = 2 }; /* 8 sums, 2 columns, 1 factor of 16 registers */

#define vec_load(p) _mm256_loadu_ps(p)
#define vec_store(p, x) _mm256_storeu_ps(p, x)
#define vec_set1(x) _mm256_set1_ps(x)
#define vec_fma(a, b, c) _mm256_fmadd_ps(a, b, c)
#define vec_half(p) _mm256_cvtph_ps(_mm_loadu_si128((const void *) (p)))
#define softmax(row, scores) ops_avx2.softmax(row, scores)

#include "lab/bench/attend_f16_simd.h"

extern const struct attend_f16 attend_f16_avx2;
const struct attend_f16 attend_f16_avx2 = {"avx2", attend};
