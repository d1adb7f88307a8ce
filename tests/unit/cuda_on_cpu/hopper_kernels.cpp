/* See hopper_kernels.h. */
#include "tests/unit/cuda_on_cpu/hopper_kernels.h"

#include "gpu/cuda/kernels/hopper.h"

namespace
{

enum { THREADS = 128, SHARED_BYTES = 8192, B_AT = 1024 };

const on_cpu_index ONE = {1, 1, 1};

/* The descriptor of operand B. */
uint64_t b_at(uint32_t from)
{
    return describe_blocks(shared_address(dynamic_shared + from), 0x400, 0x80);
}

void clear_b(uint32_t offset)
{
    for (unsigned i = threadIdx.x; i < 0x800 / 4; i += THREADS)
        ((uint32_t *) (dynamic_shared + B_AT))[i] = 0;
    __syncthreads();
    if (threadIdx.x == 0)
        *(uint16_t *) (dynamic_shared + B_AT + offset) = 0x4000; /* 2 */
    async_fence();
    __syncthreads();
}

/* Rows g and g + 8 of the 16 rows of a warp, columns 2t, 2t + 1, then 2t
 * + 8, 2t + 9: ones on the diagonal. */
void diagonal(uint32_t a[4])
{
    unsigned lane = threadIdx.x % 32, g = lane / 4, k = lane % 4 * 2;

    a[0] = a[1] = a[2] = a[3] = 0;
    if (g == k || g == k + 1)
        a[0] = a[3] = g == k ? 0x3c00 : 0x3c000000;
}

void product_kernel(const void *arg)
{
    const hopper_case *c = static_cast<const hopper_case *>(arg);
    uint32_t a[4], sums[16];

    clear_b(c->offset);
    diagonal(a);
    products_begin();
    product(sums, a, b_at(B_AT), false);
    products_commit();
    products_wait(sums);
    memcpy(c->out + 16 * threadIdx.x, sums, sizeof(sums));
}

void transpose_kernel(const void *arg)
{
    const hopper_case *c = static_cast<const hopper_case *>(arg);

    c->out[threadIdx.x] = transpose_8x8(2 * threadIdx.x | (2 * threadIdx.x + 1) << 16);
}

void copy_kernel(const void *arg)
{
    const hopper_case *c = static_cast<const hopper_case *>(arg);
    uint64_t *barrier = (uint64_t *) dynamic_shared;
    uint32_t *to = (uint32_t *) (dynamic_shared + B_AT);
    bool nobody, somebody;

    if (threadIdx.x == 0) {
        barrier_init(barrier, 1);
        barriers_ready();
    }
    __syncthreads();
    barrier_wait(barrier, 1); /* of the phase before the first, which has ended */
    if (threadIdx.x == 0) {
        to[3] = 7;
        barrier_expect(barrier, 32);
        bulk_copy(to, c->from, 16, barrier);
        bulk_copy(to + 4, (const char *) c->from + 16, 16, barrier);
        c->out[0] = to[3];
    }
    barrier_wait(barrier, 0);
    if (threadIdx.x == THREADS - 1)
        c->out[1] = to[5];
    nobody = threads_any(1, THREADS, false);
    somebody = threads_any(1, THREADS, threadIdx.x == 77);
    if (threadIdx.x == 0) {
        c->out[2] = nobody;
        c->out[3] = somebody;
    }
}

/* ---- mistakes ---- */

void barrier_mistake(enum hopper_mistake which, uint64_t *barrier)
{
    alignas(16) static const char from[64] = "";
    char *to = (char *) dynamic_shared + B_AT;

    if (which == HOPPER_NO_ARRIVAL)
        barrier_wait(barrier, 0);
    if (which == HOPPER_EXTRA_ARRIVAL) {
        barrier_expect(barrier, 16);
        barrier_arrive(barrier);
    }
    if (which == HOPPER_UNEXPECTED_BYTES) {
        barrier_expect(barrier, 16);
        bulk_copy(to, from, 32, barrier);
        barrier_wait(barrier, 0);
    }
    if (which == HOPPER_TOO_FEW_BYTES)
        barrier_expect(barrier, 16);
    if (which == HOPPER_UNALIGNED_COPY)
        bulk_copy(to + 8, from, 16, barrier);
    if (which == HOPPER_COPY_LEFT)
        bulk_copy(to, from, 16, barrier);
}

void product_mistake(enum hopper_mistake which)
{
    uint64_t b = which == HOPPER_OUTSIDE ? describe_blocks(0, 0x400, 0x80)
                                         : b_at(B_AT) | (uint64_t) (which == HOPPER_SWIZZLE) << 62;
    uint32_t a[4], sums[16];

    if (which != HOPPER_NO_FENCE)
        clear_b(0);
    diagonal(a);
    if (which == HOPPER_ONE_WARP && threadIdx.x >= 32)
        return;
    if (which != HOPPER_NO_BEGIN)
        products_begin();
    product(sums, a, b, false);
    if (which != HOPPER_NOT_COMMITTED)
        products_commit();
    if (which == HOPPER_OPERAND_CHANGED)
        a[1] ^= 1;
    if (which != HOPPER_NOT_WAITED)
        products_wait(sums);
}

void mistake_kernel(const void *arg)
{
    enum hopper_mistake which = *static_cast<const enum hopper_mistake *>(arg);
    uint64_t *barrier = (uint64_t *) dynamic_shared;

    if (which <= HOPPER_COPY_LEFT && threadIdx.x == 0) {
        barrier_init(barrier, 1);
        barrier_mistake(which, barrier);
    }
    if (which >= HOPPER_NO_BEGIN && which <= HOPPER_OUTSIDE)
        product_mistake(which);
    if (which == HOPPER_HIGH_NIBBLE)
        (void) pick_bytes(0, 0, 0x8000);
    if (which == HOPPER_ONE_LANE && threadIdx.x == 0)
        (void) transpose_8x8(0);
    if (which == HOPPER_REGISTERS)
        registers_take<240, 128>();
}

} // namespace

void hopper_product(const struct hopper_case *c)
{
    on_cpu_run(ONE, THREADS, SHARED_BYTES, product_kernel, c);
}

void hopper_transpose(const struct hopper_case *c)
{
    on_cpu_run(ONE, 32, SHARED_BYTES, transpose_kernel, c);
}

void hopper_copy(const struct hopper_case *c)
{
    on_cpu_run(ONE, THREADS, SHARED_BYTES, copy_kernel, c);
}

void hopper_mistake(enum hopper_mistake which)
{
    on_cpu_run(ONE, THREADS, SHARED_BYTES, mistake_kernel, &which);
}
