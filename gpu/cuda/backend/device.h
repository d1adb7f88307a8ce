/* The operations of gpu/cuda/kernels/device.h as instructions of a GPU. nvcc compiles the kernels with this
 * file; only kernels/device.h includes it, by include path. The tests put another file of the same name on
 * the include path, which computes the same on the CPU. */
#pragma once

#include <cuda_fp16.h>

#define DEVICE static __device__ __forceinline__
#define DEVICE_MEMBER __device__ __forceinline__ /* of a struct */
#define KERNEL extern "C" __global__
#define UNROLL _Pragma("unroll")          /* before a loop whose counter indexes registers */
#define NOT_UNROLLED _Pragma("unroll 1")  /* before a loop that would need too many registers */
#define PARAMETER const __grid_constant__ /* of a kernel: the address may be taken, nothing is copied */

extern __shared__ __align__(16) unsigned char dynamic_shared[];

DEVICE uint32_t pack_halves(float lo, float hi)
{
    __half2 h = __floats2half2_rn(lo, hi);

    return *reinterpret_cast<uint32_t *>(&h);
}

DEVICE float half_to_float(uint16_t h)
{
    return __half2float(__ushort_as_half(h));
}

DEVICE float bfloat_to_float(uint16_t h)
{
    return __uint_as_float((uint32_t) h << 16);
}

/* Round to nearest, ties to even; NaN stays NaN. */
DEVICE uint16_t float_to_bfloat(float x)
{
    uint32_t u = __float_as_uint(x);

    if ((u & 0x7fffffff) > 0x7f800000)
        return (uint16_t) (u >> 16 | 0x40);
    return (uint16_t) ((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

DEVICE float exp2_fast(float x)
{
    float y;

    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Cosine and sine of @revolutions. No reduction of large angles, which would use local memory. */
DEVICE void cos_sin_of_revolutions(float revolutions, float *ret_cosine, float *ret_sine)
{
    sincospif(2 * revolutions, ret_sine, ret_cosine);
}

/* Rounded separately, never fused: codes have the same bits on every device. */
DEVICE float mul_rounded(float x, float y)
{
    return __fmul_rn(x, y);
}

DEVICE float add_rounded(float x, float y)
{
    return __fadd_rn(x, y);
}

DEVICE void count(unsigned long long *at, unsigned n)
{
    atomicAdd(at, (unsigned long long) n);
}

DEVICE void raise(uint32_t *at, uint32_t bits)
{
    (void) atomicOr(at, bits);
}

DEVICE void xor_into(uint32_t *at, uint32_t x)
{
    (void) atomicXor(at, x);
}

/* Whether the other @n - 1 callers made this call before; if so, their earlier stores are visible. */
DEVICE bool is_last(uint32_t *n_done, uint32_t n)
{
    __threadfence();
    return atomicAdd(n_done, 1u) == n - 1;
}

/* @at is aligned to 8, in memory that no kernel writes at the same time. */
DEVICE struct floats2 load_floats2(const float *at)
{
    float2 v = __ldg((const float2 *) at);

    return {v.x, v.y};
}

/* c [16, 8] += a [16, 16] b [16, 8]: mma.m16n8k16, binary16 in, binary32 sums. */
DEVICE void mma_16x8x16(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* What lanes of the warp did to memory before comes before what they do after: shuffles alone do not order
 * memory. */
DEVICE void warp_sync()
{
    __syncwarp();
}

/* Over the @n lanes, 4 or 8, whose numbers differ only in the lowest bits. */
DEVICE float max_of(float x, int n)
{
    for (int i = 1; i < n; i *= 2)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, i));
    return x;
}

DEVICE float sum_of(float x, int n)
{
    for (int i = 1; i < n; i *= 2)
        x += __shfl_xor_sync(0xffffffffu, x, i);
    return x;
}

/* @at is aligned to 16, in memory that no kernel writes at the same time. */
DEVICE struct words4 load_16_bytes(const void *at)
{
    uint4 v = __ldg((const uint4 *) at);

    return {{v.x, v.y, v.z, v.w}};
}
