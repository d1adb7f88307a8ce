/*
 * Runs kernels of gpu/cuda/kernels on the CPU, to test what does not depend on a GPU: indices, fragments,
 * barriers, softmax. The threads of a block are contexts of one thread, which switches between them at
 * barriers and at operations of a warp; the order of warps, and which warps are skipped, is random. Blocks
 * run one after the other. A barrier that not all threads reach, and a warp operation that not all lanes
 * reach, end the program.
 *
 * gpu/cuda/kernels/device.h finds this file by the include path of the tests, as it finds
 * gpu/cuda/backend/device.h with nvcc.
 */
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "base/half.h"

#define DEVICE static inline
#define DEVICE_MEMBER inline
#define KERNEL static
#define UNROLL
#define NOT_UNROLLED
#define PARAMETER const
#define __launch_bounds__(...)

struct on_cpu_index {
    unsigned x, y, z;
};

extern on_cpu_index threadIdx, blockIdx, gridDim;
extern unsigned char *dynamic_shared; /* aligned to 16; filled with 0xff before each block */

void __syncthreads();

/* Passes a value of this lane to its warp; then reads the value of any lane; then ends the exchange. No
 * lane reads before all have passed their values. */
void on_cpu_give(const void *value, size_t bytes);
const void *on_cpu_given(unsigned lane);
void on_cpu_taken();

/* Runs a grid of blocks of @n_threads with @shared_bytes each. */
void on_cpu_run(on_cpu_index grid, unsigned n_threads, size_t shared_bytes, void (*kernel)(const void *arg),
                const void *arg);

static inline float half_to_float(uint16_t h)
{
    return f16_to_f32(h);
}

static inline float bfloat_to_float(uint16_t h)
{
    return bf16_to_f32(h);
}

static inline uint16_t float_to_bfloat(float x)
{
    return f32_to_bf16(x);
}

static inline uint32_t pack_halves(float lo, float hi)
{
    return f32_to_f16(lo) | (uint32_t) f32_to_f16(hi) << 16;
}

static inline float exp2_fast(float x)
{
    return exp2f(x);
}

static inline void cos_sin_of_revolutions(float revolutions, float *ret_cosine, float *ret_sine)
{
    double angle = (double) revolutions * 6.283185307179586;

    *ret_cosine = (float) cos(angle);
    *ret_sine = (float) sin(angle);
}

static inline float mul_rounded(float x, float y)
{
    return x * y; /* built without contraction */
}

static inline float add_rounded(float x, float y)
{
    return x + y;
}

static inline void count(unsigned long long *at, unsigned n)
{
    *at += n;
}

static inline void raise(uint32_t *at, uint32_t bits)
{
    *at |= bits;
}

static inline void xor_into(uint32_t *at, uint32_t x)
{
    *at ^= x;
}

static inline bool is_last(uint32_t *n_done, uint32_t n)
{
    return (*n_done)++ == n - 1;
}

static inline struct floats2 load_floats2(const float *at)
{
    struct floats2 v;

    if ((uintptr_t) at % 8 != 0)
        abort(); /* a GPU raises a fault */
    memcpy(&v, at, sizeof(v));
    return v;
}

/* The instruction as its manual draws it: row g = lane / 4, column pair t = lane % 4. Lanes pass numbers,
 * not pairs, because each is read often. */
static inline void mma_16x8x16(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    const uint32_t pairs[6] = {a[0], a[1], a[2], a[3], b0, b1};
    unsigned lane = threadIdx.x % 32;
    float mine[6][2], sums[4];

    for (unsigned i = 0; i < 6; i++) {
        mine[i][0] = f16_to_f32((uint16_t) pairs[i]);
        mine[i][1] = f16_to_f32((uint16_t) (pairs[i] >> 16));
    }
    on_cpu_give(mine, sizeof(mine));
    for (unsigned i = 0; i < 4; i++) {
        unsigned row = lane / 4 + (i >> 1) * 8, col = 2 * (lane % 4) + (i & 1);
        float sum = 0;

        for (unsigned k = 0; k < 16; k++) {
            const float *left = (const float *) on_cpu_given(4 * (row % 8) + k % 8 / 2);
            const float *right = (const float *) on_cpu_given(4 * col + k % 8 / 2);

            sum += left[2 * (row / 8 + k / 8 * 2) + (k & 1)] * right[2 * (4 + k / 8) + (k & 1)];
        }
        sums[i] = sum;
    }
    on_cpu_taken();
    for (unsigned i = 0; i < 4; i++)
        c[i] += sums[i];
}

static inline void warp_sync()
{
    on_cpu_give("", 1);
    on_cpu_taken();
}

static inline float max_of(float x, int n)
{
    unsigned first = threadIdx.x % 32 / (unsigned) n * (unsigned) n;

    on_cpu_give(&x, sizeof(x));
    for (unsigned i = 0; i < (unsigned) n; i++)
        x = fmaxf(x, *(const float *) on_cpu_given(first + i));
    on_cpu_taken();
    return x;
}

static inline float sum_of(float x, int n)
{
    unsigned first = threadIdx.x % 32 / (unsigned) n * (unsigned) n;
    float sum = 0;

    on_cpu_give(&x, sizeof(x));
    for (unsigned i = 0; i < (unsigned) n; i++)
        sum += *(const float *) on_cpu_given(first + i);
    on_cpu_taken();
    return sum;
}

static inline struct words4 load_16_bytes(const void *at)
{
    struct words4 w;

    if ((uintptr_t) at % 16 != 0)
        abort(); /* a GPU raises a fault */
    memcpy(&w, at, sizeof(w));
    return w;
}
