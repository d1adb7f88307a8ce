/* cuMemAlloc() and cuMemHostAlloc() of the stand-in driver (devices.c), and attributes of pointers. Bytes
 * behind an allocation of the device cannot be accessed. */
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/standin/standin.h"

enum { ALLOCATIONS_MAX = 4096, PINNED_MAX = 64, ALIGNMENT = 256 };

struct allocation {
    struct range range;
    char *map; /* pages, then one that cannot be accessed */
    size_t map_bytes;
    int device;
};

static struct allocation allocations[ALLOCATIONS_MAX];
static struct range pinned[PINNED_MAX];

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

            a.device = current_device();
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

    run_all_late();
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

/* ---- memory of the host ---- */

API cu_result cuMemHostAlloc(void **ret, size_t bytes, unsigned flags)
{
    void *p;

    ENTER();
    if (current_device() < 0)
        return CU_INVALID_CONTEXT;
    if (bytes == 0 || flags != 0)
        return CU_INVALID_VALUE;
    if (refuse_unsafe() != CU_SUCCESS)
        return CU_CAPTURE_UNSUPPORTED;

    for (int i = 0; i < PINNED_MAX; i++)
        if (pinned[i].bytes == 0) {
            p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
            if (p == MAP_FAILED)
                return CU_OUT_OF_MEMORY;

            pinned[i] = (struct range){(uintptr_t) p, bytes};
            *ret = p;
            return CU_SUCCESS;
        }
    return CU_OUT_OF_MEMORY;
}

API cu_result cuMemFreeHost(void *at)
{
    ENTER();
    for (int i = 0; at && i < PINNED_MAX; i++)
        if (pinned[i].bytes > 0 && pinned[i].base == (uintptr_t) at) {
            run_all_late();
            (void) munmap(at, pinned[i].bytes);
            pinned[i].bytes = 0;
            return CU_SUCCESS;
        }
    return CU_INVALID_VALUE;
}

/* ---- attributes of pointers ---- */

static bool is_pinned(cu_ptr at)
{
    for (int i = 0; i < PINNED_MAX; i++)
        if (is_within(at, &pinned[i]))
            return true;
    return false;
}

static int device_of(cu_ptr at)
{
    for (int i = 0; i < ALLOCATIONS_MAX; i++)
        if (is_within(at, &allocations[i].range))
            return allocations[i].device;
    return 0;
}

API cu_result cuPointerGetAttribute(void *data, int attribute, cu_ptr at)
{
    struct range r = {0};
    int value = CU_MEMORY_HOST, access;

    ENTER();
    if (is_pinned(at) && attribute == CU_POINTER_MEMORY_TYPE) {
        memcpy(data, &value, sizeof(value));
        return CU_SUCCESS;
    }
    if (!find_allocated(at, &r) && !find_mapped(at, &r, &access))
        return CU_INVALID_VALUE;

    switch (attribute) {
    case CU_POINTER_MEMORY_TYPE:
        value = CU_MEMORY_DEVICE;
        memcpy(data, &value, sizeof(value));
        return CU_SUCCESS;
    case CU_POINTER_DEVICE:
        value = device_of(at);
        memcpy(data, &value, sizeof(value));
        return CU_SUCCESS;
    case CU_POINTER_RANGE_START:
        memcpy(data, &r.base, sizeof(r.base));
        return CU_SUCCESS;
    case CU_POINTER_RANGE_BYTES:
        memcpy(data, &r.bytes, sizeof(r.bytes));
        return CU_SUCCESS;
    default:
        return CU_INVALID_VALUE;
    }
}

void count_allocations(struct standin_left *left)
{
    for (int i = 0; i < ALLOCATIONS_MAX; i++)
        left->allocations += allocations[i].range.bytes > 0;
    for (int i = 0; i < PINNED_MAX; i++)
        left->pinned += pinned[i].bytes > 0;
}
