/* The encoder of trellis.h in plain C, and what chooses a variant. */
#include <stdint.h>

typedef int16_t vec;
enum { LANES = 1 };

#define vec_load(p) (*(p))
#define vec_store(p, x) (*(p) = (x))
#define vec_set1(x) ((vec) (x))
#define vec_add(a, b) ((vec) ((a) + (b)))
#define vec_sub(a, b) ((vec) ((a) - (b)))
#define vec_min(a, b) ((a) < (b) ? (a) : (b))
#define vec_abs(x) ((vec) ((x) < 0 ? -(x) : (x)))
#define vec_square(x) ((vec) (uint16_t) ((x) * (x)))
#define vec_down(x, n) ((vec) ((uint16_t) (x) >> (n)))
#define vec_choose(best, which, x, h)                                                                        \
    do {                                                                                                     \
        which = (x) < (best) ? (vec) (h) : which;                                                            \
        best = vec_min(best, x);                                                                             \
    } while (0)
#define vec_store_bytes(p, x) (*(p) = (uint8_t) (x))

#include "alloc/table/trellis_loops.h"

void trellis_encode_ref(const struct levels *l, unsigned b, const int16_t *x, size_t n, size_t stride,
                        uint8_t *states, void *scratch)
{
    (void) trellis_encode_all(l, b, x, n, stride, states, scratch);
}

trellis_encode_fn *trellis_encode_best(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512bw"))
        return trellis_encode_avx512;
    if (__builtin_cpu_supports("avx2"))
        return trellis_encode_avx2;
#endif
    return trellis_encode_ref;
}
