/* See heap.h. */
#include "daemon/loop/heap.h"

#include <malloc.h>

/* The first value of glibc's, which would grow up to 32 MiB with the blocks that are freed. */
enum { HEAP_MMAP_BYTES = 128 << 10 };

void heap_init(void)
{
    (void) mallopt(M_MMAP_THRESHOLD, HEAP_MMAP_BYTES);
    (void) mallopt(M_TRIM_THRESHOLD, HEAP_TRIM_BYTES);
}

void heap_tick(struct heap *h, uint64_t now_ms)
{
    if (!heap_is_due(h) || now_ms - h->trimmed_ms < HEAP_TRIM_MS)
        return;

    (void) malloc_trim(0);
    *h = (struct heap){.freed_bytes = 0, .trimmed_ms = now_ms};
}
