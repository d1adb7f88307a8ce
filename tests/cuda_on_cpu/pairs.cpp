/* Copies that arrive only when a thread waits for them; see backend/pairs.h. Until then their destination
 * holds 0xff for all threads. */
#include "gpu/cuda/kernels/pairs.h" /* and with it backend/pairs.h of this folder */

#include <cstdlib>
#include <deque>
#include <vector>

enum { COPY_BYTES = 16, THREADS_MAX = 1024 };

namespace
{

struct copy {
    unsigned char *to;
    const unsigned char *from;
};

struct thread {
    std::vector<copy> begun; /* not in a group yet */
    std::deque<std::vector<copy>> groups;
} threads[THREADS_MAX];

} // namespace

void copy_begin(void *to, const void *from)
{
    if ((uintptr_t) to % COPY_BYTES != 0 || (uintptr_t) from % COPY_BYTES != 0)
        abort(); /* a GPU raises a fault */
    memset(to, 0xff, COPY_BYTES);
    threads[threadIdx.x].begun.push_back(
        {static_cast<unsigned char *>(to), static_cast<const unsigned char *>(from)});
}

void copies_group()
{
    struct thread *t = &threads[threadIdx.x];

    t->groups.push_back(std::move(t->begun));
    t->begun.clear();
}

void on_cpu_copies_wait(unsigned n)
{
    struct thread *t = &threads[threadIdx.x];

    for (; t->groups.size() > n; t->groups.pop_front())
        for (const copy &c : t->groups.front())
            memcpy(c.to, c.from, COPY_BYTES);
}
