/* The operations of gpu/cuda/kernels/hopper.h as instructions (PTX ISA, sm_90a). See backend/device.h. */
#pragma once

DEVICE uint32_t shared_address(const void *at)
{
    return (uint32_t) __cvta_generic_to_shared(at);
}

/* ---- barriers ---- */

/* A phase ends after @n_arrivals arrivals and after the bytes that
 * barrier_expect() announced have arrived. */
DEVICE void barrier_init(uint64_t *b, unsigned n_arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(b)), "r"(n_arrivals)
                 : "memory");
}

/* Called by the thread that initialised barriers, before the barrier of
 * the block after which they are used. */
DEVICE void barriers_ready()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

DEVICE void barrier_arrive(uint64_t *b)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(b)) : "memory");
}

/* Arrives and makes the phase wait for @bytes of bulk copies. */
DEVICE void barrier_expect(uint64_t *b, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(b)), "r"(bytes)
                 : "memory");
}

/* Waits until the phase of @parity has ended: 0 for the first, third ... phase of a barrier. 1 returns at
 * once before the first phase has ended. */
DEVICE void barrier_wait(uint64_t *b, unsigned parity)
{
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra again;\n"
                 "}" ::"r"(shared_address(b)),
                 "r"(parity)
                 : "memory");
}

/* Barrier of @n threads, whole warps, that share number @id > 0. */
DEVICE void threads_sync(unsigned id, unsigned n)
{
    asm volatile("barrier.cta.sync %0, %1;" ::"r"(id), "r"(n) : "memory");
}

/* threads_sync() that returns whether @value is true in any of the threads. */
DEVICE bool threads_any(unsigned id, unsigned n, bool value)
{
    uint32_t any;

    asm volatile("{\n"
                 ".reg .pred mine, all;\n"
                 "setp.ne.u32 mine, %3, 0;\n"
                 "barrier.cta.red.or.pred all, %1, %2, mine;\n"
                 "selp.u32 %0, 1, 0, all;\n"
                 "}"
                 : "=r"(any)
                 : "r"(id), "r"(n), "r"((uint32_t) value)
                 : "memory");
    return any != 0;
}

/* ---- copies ---- */

/* Queued by one thread; @b counts the bytes as they arrive. */
DEVICE void bulk_copy(void *to, const void *from, uint32_t bytes, uint64_t *b)
{
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
            shared_address(to)),
        "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(shared_address(b))
        : "memory");
}

DEVICE void async_fence()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* ---- registers ---- */

/* Called once by all threads of a warpgroup, which then has @N registers per thread, 24 .. 240 in steps of
 * 8. registers_give() for fewer than the @HAS at launch, registers_take() for more. */
template <int N, int HAS> DEVICE void registers_give()
{
    static_assert(N % 8 == 0 && N >= 24 && N < HAS, "registers");
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

template <int N, int HAS> DEVICE void registers_take()
{
    static_assert(N % 8 == 0 && N <= 240 && N > HAS, "registers");
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

DEVICE uint64_t value_of_lane(uint64_t x, unsigned lane)
{
    return __shfl_sync(0xffffffffu, x, lane);
}

/* ---- products of a warpgroup ---- */

DEVICE void products_begin()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

/* c [64, n] = a [64, 16] b [16, n], or c += if @add, by four warps with 16 rows each: a as in
 * mma_16x8x16(), c [n / 8][2] are the pairs of rows g and g + 8. Sums are binary16, rounded once per
 * product. One overload for each n: 64, 128, 256. */

#define C8(i)                                                                                                \
    "+r"(c[i]), "+r"(c[i + 1]), "+r"(c[i + 2]), "+r"(c[i + 3]), "+r"(c[i + 4]), "+r"(c[i + 5]),              \
        "+r"(c[i + 6]), "+r"(c[i + 7])
#define PRODUCT(n, sums, a_and_b, add_at)                                                                    \
    "{\n.reg .pred add;\nsetp.ne.b32 add, " add_at ", 0;\n"                                                  \
    "wgmma.mma_async.sync.aligned.m64n" #n "k16.f16.f16.f16 {" sums "}, " a_and_b ", add, 1, 1, 0;\n}"
#define AND_OPERANDS "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((uint32_t) add)

DEVICE void product(uint32_t (&c)[16], const uint32_t (&a)[4], uint64_t b, bool add)
{
    asm volatile(
        PRODUCT(64, "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15", "{%16,%17,%18,%19}, %20", "%21")
        : C8(0), C8(8)
        : AND_OPERANDS);
}

DEVICE void product(uint32_t (&c)[32], const uint32_t (&a)[4], uint64_t b, bool add)
{
    asm volatile(PRODUCT(128,
                         "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                         "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31",
                         "{%32,%33,%34,%35}, %36", "%37")
                 : C8(0), C8(8), C8(16), C8(24)
                 : AND_OPERANDS);
}

DEVICE void product(uint32_t (&c)[64], const uint32_t (&a)[4], uint64_t b, bool add)
{
    asm volatile(PRODUCT(256,
                         "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                         "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
                         "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
                         "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63",
                         "{%64,%65,%66,%67}, %68", "%69")
                 : C8(0), C8(8), C8(16), C8(24), C8(32), C8(40), C8(48), C8(56)
                 : AND_OPERANDS);
}

#undef C8
#undef PRODUCT
#undef AND_OPERANDS

DEVICE void products_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* Waits until all products have ended; @c are their sums. */
template <int N> DEVICE void products_wait(uint32_t (&c)[N])
{
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    UNROLL
    for (int i = 0; i < N; i++) /* so that the compiler reads none of them earlier */
        asm volatile("" : "+r"(c[i])::"memory");
}
