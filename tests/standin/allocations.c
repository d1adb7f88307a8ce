/* cuMemAlloc() of the stand-in driver (devices.c). Bytes behind an allocation cannot be accessed. */
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/standin/standin.h"

enum { ALLOCATIONS_MAX = 4096, ALIGNMENT = 256 };

struct allocation {
    struct range range;
    char *map; /* pages, then one that cannot be accessed */
    size_t map_bytes;
};

static struct allocation allocations[ALLOCATIONS_MAX];

static size_t page_bytes(void)
{
    return (size_t) sysconf(_SC_PAGESIZE);
}

/* Maps pages for @bytes; the last page ends where the allocation ends. */
static bool map_pages(size_t bytes, struct allocation *ret)
{
    size_t page = page_bytes(), used = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    struct allocation a = {.map_bytes = (used + page - 1) / page * page};

    a.map = mmap(NULL, a.map_bytes + page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (a.map == MAP_FAILED)
        return false;
    if (mprotect(a.map, a.map_bytes, PROT_READ | PROT_WRITE) < 0) {
        (void) munmap(a.map, a.map_bytes + page);
        return false;
    }
    a.range = (struct range){(uintptr_t) a.map + a.map_bytes - used, bytes};
    *ret = a;
    return true;
}

API cu_result cuMemAlloc_v2(cu_ptr *ret, size_t bytes)
{
    ENTER();
    if (current_device() < 0)
        return CU_INVALID_CONTEXT;
    if (bytes == 0)
        return CU_INVALID_VALUE;
    if (refuse_unsafe() != CU_SUCCESS)
        return CU_CAPTURE_UNSUPPORTED;

    for (int i = 0; i < ALLOCATIONS_MAX; i++)
        if (allocations[i].range.bytes == 0) {
            struct allocation a;

            if (bytes > SIZE_MAX / 2 || !map_pages(bytes, &a))
                return CU_OUT_OF_MEMORY;

            memset((void *) (uintptr_t) a.range.base, 0xff, bytes); /* NaN in memory that was not written */
            allocations[i] = a;
            *ret = a.range.base;
            return CU_SUCCESS;
        }
    return CU_OUT_OF_MEMORY;
}

bool allocation_at(int i, struct range *ret)
{
    if (i < 0 || i >= ALLOCATIONS_MAX)
        return false;

    *ret = allocations[i].range;
    return true;
}

API cu_result cuMemFree_v2(cu_ptr at)
{
    ENTER();
    if (refuse_unsafe() != CU_SUCCESS)
        return CU_CAPTURE_UNSUPPORTED;

    for (int i = 0; i < ALLOCATIONS_MAX; i++) {
        struct allocation *a = &allocations[i];

        if (a->range.bytes > 0 && a->range.base == at) {
            (void) munmap(a->map, a->map_bytes + page_bytes());
            a->range.bytes = 0;
            return CU_SUCCESS;
        }
    }
    return CU_INVALID_VALUE;
}

static bool is_within(cu_ptr at, const struct range *r)
{
    return r->bytes > 0 && at >= r->base && at - r->base < r->bytes;
}

bool find_allocated(cu_ptr at, struct range *ret)
{
    for (int i = 0; i < ALLOCATIONS_MAX; i++) {
        if (is_within(at, &allocations[i].range)) {
            *ret = allocations[i].range;
            return true;
        }
    }
    return false;
}

void count_allocations(struct standin_left *left)
{
    for (int i = 0; i < ALLOCATIONS_MAX; i++)
        left->allocations += allocations[i].range.bytes > 0;
}
