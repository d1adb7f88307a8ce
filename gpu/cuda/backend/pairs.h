/* The operations of gpu/cuda/kernels/pairs.h as instructions of GPUs of compute capability
 * 8.0 and later. See backend/device.h. */
#pragma once

/* Selects four bytes by the nibbles of @which: 0 .. 3 name bytes of @a, 4 .. 7 bytes of @b. */
DEVICE uint32_t pick_bytes(uint32_t a, uint32_t b, uint32_t which)
{
    uint32_t r;

    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(which));
    return r;
}

DEVICE __half2 as_halves(uint32_t x)
{
    return *reinterpret_cast<__half2 *>(&x);
}

DEVICE uint32_t as_word(__half2 x)
{
    return *reinterpret_cast<uint32_t *>(&x);
}

DEVICE uint32_t add_pairs(uint32_t x, uint32_t y)
{
    return as_word(__hadd2_rn(as_halves(x), as_halves(y)));
}

/* x y + z, rounded once; mul_pairs() rounds x y once. */
DEVICE uint32_t fma_pairs(uint32_t x, uint32_t y, uint32_t z)
{
    return as_word(__hfma2(as_halves(x), as_halves(y), as_halves(z)));
}

DEVICE uint32_t mul_pairs(uint32_t x, uint32_t y)
{
    return as_word(__hmul2_rn(as_halves(x), as_halves(y)));
}

DEVICE uint32_t negate_pair(uint32_t x)
{
    return as_word(__hneg2(as_halves(x)));
}

DEVICE uint32_t bits_of_float(float x)
{
    return __float_as_uint(x);
}

/* The value of the lane whose number differs from this one's by the bits @lanes. */
DEVICE float value_across(float x, unsigned lanes)
{
    return __shfl_xor_sync(0xffffffffu, x, lanes);
}

/* Transposes 8 x 8 half-words; each lane has a pair of a row. */
DEVICE uint32_t transpose_8x8(uint32_t pair)
{
    uint32_t r;

    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r) : "r"(pair));
    return r;
}

/* 16 bytes of shared memory, aligned to 16. */
DEVICE struct words4 words_at(const void *at)
{
    uint4 v = *(const uint4 *) at;

    return {{v.x, v.y, v.z, v.w}};
}

/* c [16, 8] += a [16, 32] b [32, 8]: a are signed bytes, b unsigned bytes, four per word; exact. */
DEVICE void mma_16x8x32(int32_t c[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.u8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};"
                 : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Begins to copy 16 bytes to shared memory for this thread; both addresses are aligned to 16. */
DEVICE void copy_begin(void *to, const void *from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((uint32_t) __cvta_generic_to_shared(to)),
                 "l"(__cvta_generic_to_global(from))
                 : "memory");
}

/* Makes a group of the copies begun since the last call. */
DEVICE void copies_group()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Waits until all groups of this thread except the newest @N have arrived.
 * Other threads see them after a barrier. */
template <int N> DEVICE void copies_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}
