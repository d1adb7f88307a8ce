/*
 * Core files of the services: none, or one without secrets. Pages, keys and what clients send are in the
 * memory of the process, and a core file is written to a disk, by another program perhaps.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>

/* No core file, whatever kills the process. For main(); child processes inherit it. */
void core_file_limit(void);

/* The same, and no other process of the same user may read this one's memory. */
void core_file_forbid(void);

/*
 * A core file, as large as the hard limit allows, with stacks and static data only: before a signal ends the
 * process, all other private memory is left out (MADV_DONTDUMP). Shared mappings have that from their start.
 */
void core_file_allow(void);

/*
 * Leaves a range of private memory out of core files, with what else is in its first and last page. For large
 * buffers with bytes of pages and messages. A kernel that refuses it changes nothing else.
 */
static inline void core_file_exclude(void *p, size_t bytes)
{
    const uintptr_t page = 4096;
    uintptr_t from = (uintptr_t) p & ~(page - 1), to = ((uintptr_t) p + bytes + page - 1) & ~(page - 1);

    (void) madvise((void *) from, to - from, MADV_DONTDUMP);
}
