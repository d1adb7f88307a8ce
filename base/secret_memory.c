/* See secret_memory.h. */
#include "base/secret_memory.h"

#include <string.h>
#include <sys/mman.h>

void *secret_memory_new(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (p == MAP_FAILED)
        return NULL;
    if (madvise(p, bytes, MADV_DONTDUMP) < 0 || madvise(p, bytes, MADV_DONTFORK) < 0) {
        (void) munmap(p, bytes);
        return NULL;
    }

    (void) mlock(p, bytes); /* a limit may forbid it */
    return p;
}

void *secret_memory_free(void *p, size_t bytes)
{
    if (p) {
        explicit_bzero(p, bytes);
        (void) munmap(p, bytes);
    }
    return NULL;
}
