/* Runs the threads of a block as contexts of one thread; see backend/device.h. */
#include "gpu/cuda/kernels/device.h" /* and with it backend/device.h of this folder */

#include <cassert>
#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <sys/mman.h>
#include <ucontext.h>

enum { THREADS_MAX = 1024, STACK_BYTES = 256 << 10, GIVEN_BYTES = 64 };

on_cpu_index threadIdx, blockIdx, gridDim;
unsigned char *dynamic_shared;

namespace
{

/* A place to resume at. There are millions of switches, and jumps of libc would make a system call for
 * signals at each: gcc's own do not. Those of clang lose registers of the function that calls leave(). */
#ifdef __clang__
typedef jmp_buf place;
#define PLACE_SET(here) _setjmp(here)
#define PLACE_JUMP(to) _longjmp(to, 1)
#else
typedef void *place[5];
#define PLACE_SET(here) __builtin_setjmp(here)
#define PLACE_JUMP(to) __builtin_longjmp(to, 1)
#endif

__attribute__((noinline)) void jump(place to)
{
    PLACE_JUMP(to);
}

__attribute__((noinline)) void leave(place here, place to)
{
    if (PLACE_SET(here) == 0)
        jump(to);
}

enum state { NEW, RUNNING, AT_BARRIER, GAVE, TOOK, DONE };

struct thread {
    ucontext_t context; /* where the thread begins */
    place resume;
    char *stack;
    enum state state;
    unsigned char given[GIVEN_BYTES];
};

struct {
    struct thread threads[THREADS_MAX];
    unsigned n, current, drawn;
    place scheduler;
    void (*kernel)(const void *arg);
    const void *arg;
} block;

/* Suspends the thread until all threads that it waits for are in @state too. */
void wait_in(enum state state)
{
    struct thread *t = &block.threads[block.current];

    t->state = state;
    leave(t->resume, block.scheduler);
}

void thread_main()
{
    block.kernel(block.arg);
    block.threads[block.current].state = DONE;
    jump(block.scheduler);
}

/* Runs the thread until it waits or is done. */
__attribute__((noinline)) void run_thread(unsigned i)
{
    struct thread *t = &block.threads[i];
    enum state state = t->state;

    block.current = i;
    threadIdx = {i, 0, 0};
    t->state = RUNNING;
    if (state == RUNNING)
        leave(block.scheduler, t->resume);
    else if (PLACE_SET(block.scheduler) == 0)
        (void) setcontext(&t->context);
}

void start(unsigned i)
{
    struct thread *t = &block.threads[i];

    if (!t->stack) { /* stacks are never freed: launches are many, and most of a stack is never touched */
        void *map = mmap(nullptr, STACK_BYTES, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

        if (map == MAP_FAILED)
            abort();
        t->stack = static_cast<char *>(map);
    }
    if (getcontext(&t->context) < 0)
        abort();
    t->context.uc_stack.ss_sp = t->stack;
    t->context.uc_stack.ss_size = STACK_BYTES;
    t->context.uc_link = nullptr; /* thread_main() does not return */
    t->state = NEW;
    makecontext(&t->context, thread_main, 0);
}

bool all_in(unsigned first, unsigned n, enum state state)
{
    for (unsigned i = first; i < first + n; i++)
        if (block.threads[i].state != state)
            return false;
    return true;
}

void release(unsigned first, unsigned n)
{
    for (unsigned i = first; i < first + n; i++)
        block.threads[i].state = RUNNING;
}

/* Resumes the threads that all wait together; false if there was none. */
bool release_waiting()
{
    bool any = false;

    for (unsigned first = 0; first < block.n; first += 32)
        for (enum state state : {GAVE, TOOK})
            if (all_in(first, 32, state)) {
                release(first, 32);
                any = true;
            }
    if (!any && all_in(0, block.n, AT_BARRIER)) {
        release(0, block.n);
        any = true;
    }
    return any;
}

bool can_run(unsigned i)
{
    return block.threads[i].state == NEW || block.threads[i].state == RUNNING;
}

/* A number below @n, the same in every run. */
unsigned draw(unsigned n)
{
    block.drawn = block.drawn * 1103515245 + 12345;
    return (block.drawn >> 16) % n;
}

/* Runs every warp once, beginning with a random one; some warps are skipped. So a kernel that relies on the
 * progress of another warp without waiting for it is found. False: no thread could continue. */
bool run_round()
{
    unsigned n_warps = block.n / 32, first = draw(n_warps);
    bool any = false;

    for (unsigned w = 0; w < n_warps; w++) {
        unsigned warp = (first + w) % n_warps;

        if (draw(4) == 0) {
            any = true; /* assumed: a skipped warp could run */
            continue;
        }
        for (unsigned i = 32 * warp; i < 32 * (warp + 1); i++)
            if (can_run(i)) {
                any = true;
                run_thread(i);
            }
    }
    return any;
}

void run_block()
{
    for (unsigned i = 0; i < block.n; i++)
        start(i);
    while (!all_in(0, block.n, DONE)) {
        bool any = run_round();

        if (!all_in(0, block.n, DONE) && !release_waiting() && !any) {
            fprintf(stderr, "cuda_on_cpu: threads of block (%u, %u, %u) wait for threads that never arrive\n",
                    blockIdx.x, blockIdx.y, blockIdx.z);
            abort();
        }
    }
}

} // namespace

void __syncthreads()
{
    wait_in(AT_BARRIER);
}

void on_cpu_give(const void *value, size_t bytes)
{
    assert(bytes <= GIVEN_BYTES);
    memcpy(block.threads[block.current].given, value, bytes);
    wait_in(GAVE);
}

const void *on_cpu_given(unsigned lane)
{
    return block.threads[block.current / 32 * 32 + lane].given;
}

void on_cpu_taken()
{
    wait_in(TOOK);
}

void on_cpu_run(on_cpu_index grid, unsigned n_threads, size_t shared_bytes, void (*kernel)(const void *arg),
                const void *arg)
{
    assert(n_threads % 32 == 0 && n_threads <= THREADS_MAX);
    block.n = n_threads;
    block.kernel = kernel;
    block.arg = arg;
    block.drawn = 1;
    gridDim = grid;
    dynamic_shared = static_cast<unsigned char *>(aligned_alloc(16, (shared_bytes + 15) / 16 * 16));
    assert(dynamic_shared);
    for (unsigned z = 0; z < grid.z; z++)
        for (unsigned y = 0; y < grid.y; y++)
            for (unsigned x = 0; x < grid.x; x++) {
                blockIdx = {x, y, z};
                memset(dynamic_shared, 0xff, shared_bytes); /* NaN in memory that was not written */
                run_block();
            }
    free(dynamic_shared);
}
