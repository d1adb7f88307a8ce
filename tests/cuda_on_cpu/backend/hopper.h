/*
 * The operations of gpu/cuda/kernels/hopper.h on the CPU, each as the PTX ISA describes it, not only as the
 * kernels use it.
 *
 * Operations that a GPU leaves undefined end the program, or give NaN, which every test notices:
 * - a copy fills its destination with 0xff at once, and delivers when no thread can continue;
 * - sums are NaN until products_wait(), which finds operands that were changed meanwhile;
 * - barriers refuse arrivals beyond their count, and bytes that were not announced when a phase ends;
 * - a block that ends with a copy in flight, or whose warps made different numbers of products, is refused.
 */
#pragma once

uint32_t shared_address(const void *at);

void barrier_init(uint64_t *b, unsigned n_arrivals);
void barriers_ready();
void barrier_arrive(uint64_t *b);
void barrier_expect(uint64_t *b, uint32_t bytes);
void barrier_wait(uint64_t *b, unsigned parity);
void threads_sync(unsigned id, unsigned n);
bool threads_any(unsigned id, unsigned n, bool value);

void bulk_copy(void *to, const void *from, uint32_t bytes, uint64_t *b);
void async_fence();

uint64_t value_of_lane(uint64_t x, unsigned lane);

/* Refuses a block whose threads hold more registers than they had at launch, and warps of a warpgroup that
 * request different numbers. */
void on_cpu_registers(unsigned n, unsigned has);

template <int N, int HAS> static inline void registers_give()
{
    static_assert(N % 8 == 0 && N >= 24 && N < HAS, "registers");
    on_cpu_registers(N, HAS);
}

template <int N, int HAS> static inline void registers_take()
{
    static_assert(N % 8 == 0 && N <= 240 && N > HAS, "registers");
    on_cpu_registers(N, HAS);
}

void products_begin();
void on_cpu_product(uint32_t *c, const uint32_t *a, uint64_t b, unsigned n, bool add);
void products_commit();
void on_cpu_products_wait(const uint32_t *c);

template <int N> static inline void product(uint32_t (&c)[N], const uint32_t (&a)[4], uint64_t b, bool add)
{
    on_cpu_product(c, a, b, 4 * N, add);
}

template <int N> static inline void products_wait(uint32_t (&c)[N])
{
    on_cpu_products_wait(c);
}
