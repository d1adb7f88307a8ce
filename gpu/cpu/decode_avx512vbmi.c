/* Decode steps with AVX-512 BW, VNNI and VBMI, which looks up bytes in tables of 64 and 128: books of
 * trellises. */
#include <immintrin.h>
#include <stdint.h>

static inline __attribute__((always_inline)) __m512i look_up_book(unsigned L, const int8_t *book,
                                                                  __m512i index)
{
    __m512i lower = _mm512_load_si512(book), upper;

    if (L == 6)
        return _mm512_permutexvar_epi8(index, lower);
    lower = _mm512_permutex2var_epi8(lower, index, _mm512_load_si512(book + 64));
    if (L == 7)
        return lower;
    upper = _mm512_permutex2var_epi8(_mm512_load_si512(book + 128), index, _mm512_load_si512(book + 192));
    return _mm512_mask_mov_epi8(lower, _mm512_movepi8_mask(index), upper);
}
#define look_up_book look_up_book

#include "gpu/cpu/decode_512.h"

const struct decode_ops decode_avx512vbmi = DECODE_OPS;
