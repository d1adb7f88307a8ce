/* The encoder of trellis.h for AVX-512 BW. */
#include <immintrin.h>

typedef __m512i vec;
enum { LANES = 32 };

#define vec_load(p) _mm512_loadu_si512(p)
#define vec_store(p, x) _mm512_storeu_si512(p, x)
#define vec_set1(x) _mm512_set1_epi16(x)
#define vec_add(a, b) _mm512_add_epi16(a, b)
#define vec_sub(a, b) _mm512_sub_epi16(a, b)
#define vec_min(a, b) _mm512_min_epi16(a, b)
#define vec_abs(x) _mm512_abs_epi16(x)
#define vec_square(x) _mm512_mullo_epi16(x, x)
#define vec_down(x, n) _mm512_srli_epi16(x, n)
#define vec_choose(best, which, x, h)                                                                        \
    do {                                                                                                     \
        which = _mm512_mask_mov_epi16(which, _mm512_cmplt_epi16_mask(x, best), vec_set1(h));                 \
        best = vec_min(best, x);                                                                             \
    } while (0)
#define vec_store_bytes(p, x) _mm256_storeu_si256((void *) (p), _mm512_cvtepi16_epi8(x))

#include "alloc/table/trellis_loops.h"

void trellis_encode_avx512(const struct levels *l, unsigned b, const int16_t *x, size_t n, size_t stride,
                           uint8_t *states, void *scratch)
{
    size_t done = trellis_encode_all(l, b, x, n, stride, states, scratch);

    if (done < n)
        trellis_encode_avx2(l, b, x + done, n - done, stride, states + done, scratch);
}
