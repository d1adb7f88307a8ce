/* The encoder of trellis.h for AVX2. */
#include <immintrin.h>

typedef __m256i vec;
enum { LANES = 16 };

#define vec_load(p) _mm256_loadu_si256((const void *) (p))
#define vec_store(p, x) _mm256_storeu_si256((void *) (p), x)
#define vec_set1(x) _mm256_set1_epi16(x)
#define vec_add(a, b) _mm256_add_epi16(a, b)
#define vec_sub(a, b) _mm256_sub_epi16(a, b)
#define vec_min(a, b) _mm256_min_epi16(a, b)
#define vec_abs(x) _mm256_abs_epi16(x)
#define vec_square(x) _mm256_mullo_epi16(x, x)
#define vec_down(x, n) _mm256_srli_epi16(x, n)
#define vec_choose(best, which, x, h)                                                                        \
    do {                                                                                                     \
        which = _mm256_blendv_epi8(which, vec_set1(h), _mm256_cmpgt_epi16(best, x));                         \
        best = vec_min(best, x);                                                                             \
    } while (0)
#define vec_store_bytes(p, x)                                                                                \
    _mm_storeu_si128((void *) (p),                                                                           \
                     _mm_packus_epi16(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1)))

#include "alloc/table/trellis_loops.h"

void trellis_encode_avx2(const struct levels *l, unsigned b, const int16_t *x, size_t n, size_t stride,
                         uint8_t *states, void *scratch)
{
    (void) trellis_encode_all(l, b, x, n, stride, states, scratch);
}
