/* Barriers, copies and products of compute capability 9.0; see backend/hopper.h. */
#include "gpu/cuda/kernels/hopper.h" /* and with it backend/hopper.h of this folder */

#include <cstdio>
#include <map>
#include <vector>

#include "tests/cuda_on_cpu/block.h"

namespace
{

/* The window of shared memory has 256 KiB, and that of a block does not begin at 0. */
enum { SHARED_FROM = 1024, SHARED_END = 256 << 10, NAMED_BARRIERS = 16, WARPGROUP = 128 };

struct barrier {
    unsigned n_arrivals, pending;
    int64_t bytes; /* expected minus arrived */
    unsigned phase;
};

struct named {
    unsigned n, arrived, phase;
    bool any, result;
};

struct copy {
    void *to;
    const void *from;
    uint32_t bytes;
    uint64_t *barrier;
};

struct pending_product {
    uint32_t *c;
    const uint32_t *a;
    uint32_t was[4];
    uint64_t b;
    unsigned n;
    bool add;
};

struct thread_state {
    bool begun, fenced, committed;
    unsigned n_products;
    int more; /* registers beyond those at launch */
    std::vector<pending_product> products;
    std::vector<uint32_t> sums; /* the sums that the first of them adds to */
};

struct {
    std::map<const uint64_t *, barrier> barriers;
    named names[NAMED_BARRIERS];
    std::vector<copy> copies;
    std::vector<thread_state> threads;
} block;

[[noreturn]] void refuse(const char *what)
{
    fprintf(stderr, "cuda_on_cpu: block (%u, %u, %u), thread %u: %s\n", blockIdx.x, blockIdx.y, blockIdx.z,
            threadIdx.x, what);
    abort();
}

thread_state &mine()
{
    return block.threads[threadIdx.x];
}

float low_half(uint32_t x)
{
    return f16_to_f32((uint16_t) x);
}

float high_half(uint32_t x)
{
    return f16_to_f32((uint16_t) (x >> 16));
}

uint32_t pair(double lo, double hi)
{
    return f32_to_f16((float) lo) | (uint32_t) f32_to_f16((float) hi) << 16;
}

} // namespace

/* ---- a block ---- */

void hopper_block_begin(unsigned n_threads)
{
    block.barriers.clear();
    block.copies.clear();
    block.threads.assign(n_threads, thread_state());
    for (named &n : block.names)
        n = named();
}

void hopper_block_end()
{
    int more = 0;

    if (!block.copies.empty())
        refuse("the block ended with a copy in flight");
    for (const auto &b : block.barriers)
        if (b.second.bytes != 0)
            refuse("the block ended with bytes expected");
    for (size_t i = 0; i < block.threads.size(); i++) {
        const thread_state &t = block.threads[i], &first = block.threads[i / WARPGROUP * WARPGROUP];

        if (!t.products.empty())
            refuse("a thread ended without waiting for its products");
        if (t.n_products != first.n_products || t.more != first.more)
            refuse("the warps of a warpgroup made different numbers of products");
        more += t.more;
    }
    if (more > 0)
        refuse("more registers were taken than given");
}

void on_cpu_registers(unsigned n, unsigned has)
{
    if (mine().more != 0)
        refuse("registers given or taken twice");
    mine().more = (int) n - (int) has;
}

/* ---- barriers ---- */

namespace
{

barrier &barrier_at(const uint64_t *b)
{
    auto at = block.barriers.find(b);

    if (at == block.barriers.end())
        refuse("a barrier that was not initialised");
    return at->second;
}

void end_phase(barrier &b)
{
    if (b.pending > 0 || b.bytes != 0)
        return;
    b.pending = b.n_arrivals;
    b.phase++;
}

struct awaited {
    const uint64_t *barrier;
    unsigned parity;
};

bool phase_ended(const void *what)
{
    const awaited *w = static_cast<const awaited *>(what);

    return (barrier_at(w->barrier).phase & 1) != w->parity;
}

} // namespace

void barrier_init(uint64_t *b, unsigned n_arrivals)
{
    if (shared_address(b) % 8 != 0 || n_arrivals == 0 || block.barriers.count(b) > 0)
        refuse("a barrier that is not aligned, has no arrivals, or was initialised before");
    block.barriers[b] = {n_arrivals, n_arrivals, 0, 0};
}

void barriers_ready()
{
}

void barrier_arrive(uint64_t *b)
{
    barrier_expect(b, 0);
}

void barrier_expect(uint64_t *b, uint32_t bytes)
{
    barrier &at = barrier_at(b);

    if (at.pending == 0)
        refuse("one arrival too many at a barrier whose bytes have not arrived");
    at.bytes += bytes;
    at.pending--;
    end_phase(at);
}

void barrier_wait(uint64_t *b, unsigned parity)
{
    struct awaited w = {b, parity};

    if (parity > 1)
        refuse("a parity that is none");
    on_cpu_wait_until(phase_ended, &w);
}

namespace
{

struct phase {
    const named *at;
    unsigned number;
};

bool phase_over(const void *what)
{
    const phase *t = static_cast<const phase *>(what);

    return t->at->phase != t->number;
}

} // namespace

bool threads_any(unsigned id, unsigned n, bool value)
{
    if (id == 0 || id >= NAMED_BARRIERS || n % 32 != 0)
        refuse("no such barrier");
    named &at = block.names[id];
    phase t = {&at, at.phase};

    if (at.arrived > 0 && at.n != n)
        refuse("a barrier with different numbers of threads");
    at.n = n;
    at.any = (at.arrived > 0 && at.any) || value;
    if (++at.arrived == n) {
        at.arrived = 0;
        at.result = at.any;
        at.phase++;
    } else {
        on_cpu_wait_until(phase_over, &t);
    }
    return at.result; /* the next phase cannot end before this thread arrives at it */
}

void threads_sync(unsigned id, unsigned n)
{
    (void) threads_any(id, n, false);
}

/* ---- copies ---- */

uint32_t shared_address(const void *at)
{
    uintptr_t offset = (uintptr_t) at - (uintptr_t) dynamic_shared;

    if (offset >= SHARED_END - SHARED_FROM)
        refuse("an address that is not in shared memory");
    return (uint32_t) (SHARED_FROM + offset);
}

void bulk_copy(void *to, const void *from, uint32_t bytes, uint64_t *b)
{
    if (shared_address(to) % 16 != 0 || (uintptr_t) from % 16 != 0 || bytes % 16 != 0 || bytes == 0)
        refuse("a copy that is not aligned");
    for (const copy &c : block.copies)
        if ((uintptr_t) to < (uintptr_t) c.to + c.bytes && (uintptr_t) c.to < (uintptr_t) to + bytes)
            refuse("a copy to the destination of another copy in flight");
    (void) barrier_at(b);
    memset(to, 0xff, bytes);
    block.copies.push_back({to, from, bytes, b});
}

bool hopper_deliver()
{
    if (block.copies.empty())
        return false;
    copy c = block.copies.back();
    barrier &b = barrier_at(c.barrier);

    block.copies.pop_back();
    memcpy(c.to, c.from, c.bytes);
    b.bytes -= c.bytes;
    if (b.bytes < 0)
        refuse("bytes that no arrival announced");
    end_phase(b);
    return true;
}

void async_fence()
{
    mine().fenced = true;
}

/* ---- single instructions ---- */

uint64_t value_of_lane(uint64_t x, unsigned lane)
{
    on_cpu_give(&x, sizeof(x));
    memcpy(&x, on_cpu_given(lane), sizeof(x));
    on_cpu_taken();
    return x;
}

/* ---- products ---- */

void products_begin()
{
    mine().begun = true;
}

/* Sums are @n / 4 words, NaN until products_wait(). */
void on_cpu_product(uint32_t *c, const uint32_t *a, uint64_t b, unsigned n, bool add)
{
    thread_state &t = mine();

    if (!t.begun)
        refuse("a product without products_begin() after registers were written");
    if (!t.fenced)
        refuse("a product of what this thread wrote without async_fence()");
    if (!t.products.empty() && (t.products.back().c != c || t.products.back().n != n))
        refuse("products in flight with different sums"); /* allowed, but not modelled */
    if (t.products.empty())
        t.sums.assign(c, c + n / 4);
    t.products.push_back({c, a, {a[0], a[1], a[2], a[3]}, b, n, add});
    t.n_products++;
    t.committed = false;
    memset(c, 0xff, n);
}

void products_commit()
{
    mine().committed = true;
}

namespace
{

/* Element (n, k) of operand B, K-major without swizzle: ((8, n), (8, 2)) : ((8,
 * SBO), (1, LBO)) halves; PTX ISA 9.7.15. */
uint16_t element_of_b(uint64_t descriptor, unsigned n, unsigned k)
{
    uint32_t start = (uint32_t) (descriptor & 0x3fff) << 4, leading = (uint32_t) (descriptor >> 16 & 0x3fff)
                                                                      << 4;
    uint32_t stride = (uint32_t) (descriptor >> 32 & 0x3fff) << 4;
    uint32_t at = start + n % 8 * 16 + n / 8 * stride + k % 8 * 2 + k / 8 * leading;
    uint16_t h;

    if (descriptor >> 46 != 0 || (descriptor >> 14 & 3) != 0 || (descriptor >> 30 & 3) != 0)
        refuse("a descriptor with a swizzle, an offset or unknown bits");
    if (at < SHARED_FROM)
        refuse("a descriptor of memory that is not the block's");
    memcpy(&h, dynamic_shared + (at - SHARED_FROM), sizeof(h));
    return h;
}

/* One product: the rows of this lane in the 16 of its warp, two columns of
 * each eight. Sums are rounded once. */
void multiply(const pending_product &p, uint32_t *sums)
{
    unsigned lane = threadIdx.x % 32, row = lane / 4, col = lane % 4 * 2;

    on_cpu_give(p.was, sizeof(p.was));
    float a[2][16];
    for (unsigned i = 0; i < 2; i++)
        for (unsigned k = 0; k < 16; k++) { /* register k / 8 * 2 + i of lane (row, k % 8 / 2) */
            uint32_t words[4];

            memcpy(words, on_cpu_given(4 * row + k % 8 / 2), sizeof(words));
            uint32_t word = words[k / 8 * 2 + i];
            a[i][k] = k & 1 ? high_half(word) : low_half(word);
        }
    on_cpu_taken();
    for (unsigned tile = 0; tile < p.n / 8; tile++)
        for (unsigned i = 0; i < 2; i++) {
            uint32_t before = sums[2 * tile + i];
            double sum[2] = {p.add ? low_half(before) : 0.0, p.add ? high_half(before) : 0.0};

            for (unsigned c = 0; c < 2; c++)
                for (unsigned k = 0; k < 16; k++)
                    sum[c] += (double) a[i][k] * f16_to_f32(element_of_b(p.b, 8 * tile + col + c, k));
            sums[2 * tile + i] = pair(sum[0], sum[1]);
        }
}

} // namespace

void on_cpu_products_wait(const uint32_t *c)
{
    thread_state &t = mine();
    std::vector<pending_product> products;

    products.swap(t.products);
    t.begun = false;
    if (!t.committed && !products.empty())
        refuse("products that were not committed");
    for (const pending_product &p : products) {
        if (p.c != c || memcmp(p.a, p.was, sizeof(p.was)) != 0)
            refuse("registers of a product were changed before it ended");
        multiply(p, t.sums.data());
    }
    if (!products.empty())
        memcpy(products[0].c, t.sums.data(), products[0].n);
}
