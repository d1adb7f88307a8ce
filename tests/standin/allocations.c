/*
 * cuMemAlloc() of the stand-in driver (devices.c), and cuIpc*(), which shares its memory. All allocations
 * of a process are parts of one memfd, each at its own offset, which is never reused, so that a handle
 * names one allocation for ever. Bytes behind an allocation cannot be accessed. A freed allocation
 * also vanishes in processes that opened it; the driver leaves this undefined.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/standin/standin.h"

enum { ALLOCATIONS_MAX = 4096, OPENED_MAX = 64, ALIGNMENT = 256 };

struct allocation {
    struct range range;
    char *map;                /* pages, then one that cannot be accessed */
    size_t map_bytes, offset; /* in the heap */
    int device;
};

struct handle_bytes { /* what a struct cu_ipc_mem_handle holds */
    uint64_t magic;
    int64_t pid;
    uint64_t offset, map_bytes, at, bytes; /* at: offset of the allocation in its pages */
    int32_t fd, device;
};

struct opened {
    struct range range;
    char *map;
    struct handle_bytes of;
    unsigned n_opens;
};

static struct allocation allocations[ALLOCATIONS_MAX];
static struct opened opened[OPENED_MAX];
static int heap = -1;
static size_t heap_bytes;
static const uint64_t magic = 0x6970632d68656170; /* "ipc-heap" */

static size_t page_bytes(void)
{
    return (size_t) sysconf(_SC_PAGESIZE);
}

/* Adds pages to the heap for @bytes; the last page ends where the allocation ends. */
static bool grow_heap(size_t bytes, struct allocation *ret)
{
    size_t page = page_bytes(), used = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    struct allocation a = {.map_bytes = (used + page - 1) / page * page, .offset = heap_bytes};

    if (heap < 0)
        heap = memfd_create("standin-heap", MFD_CLOEXEC);
    if (heap < 0 || ftruncate(heap, (off_t) (heap_bytes + a.map_bytes)) < 0)
        return false;

    a.map = mmap(NULL, a.map_bytes + page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (a.map == MAP_FAILED)
        return false;
    if (mmap(a.map, a.map_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, heap, (off_t) a.offset) ==
        MAP_FAILED) {
        (void) munmap(a.map, a.map_bytes + page);
        return false;
    }
    heap_bytes += a.map_bytes;
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

            if (bytes > SIZE_MAX / 2 || !grow_heap(bytes, &a))
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

    for (int i = 0; i < ALLOCATIONS_MAX; i++) {
        struct allocation *a = &allocations[i];

        if (a->range.bytes > 0 && a->range.base == at) {
            (void) munmap(a->map, a->map_bytes + page_bytes());
            (void) fallocate(heap, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t) a->offset,
                             (off_t) a->map_bytes);
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

static struct allocation *find_own(cu_ptr at)
{
    for (int i = 0; i < ALLOCATIONS_MAX; i++)
        if (is_within(at, &allocations[i].range))
            return &allocations[i];
    return NULL;
}

static struct opened *find_opened(cu_ptr at)
{
    for (int i = 0; i < OPENED_MAX; i++)
        if (opened[i].n_opens > 0 && is_within(at, &opened[i].range))
            return &opened[i];
    return NULL;
}

enum origin find_allocated(cu_ptr at, struct range *ret)
{
    const struct allocation *a = find_own(at);
    const struct opened *o = a ? NULL : find_opened(at);

    if (!a && !o)
        return ORIGIN_NONE;

    *ret = a ? a->range : o->range;
    return a ? ORIGIN_OWN : ORIGIN_OPENED;
}

/* ---- attributes of pointers ---- */

static bool find_any(cu_ptr at, struct range *ret, enum origin *ret_origin)
{
    int access;

    *ret_origin = find_allocated(at, ret);
    return *ret_origin != ORIGIN_NONE || find_mapped(at, ret, &access);
}

API cu_result cuPointerGetAttribute(void *data, int attribute, cu_ptr at)
{
    enum origin origin;
    struct range r;
    int value;

    ENTER();
    if (!find_any(at, &r, &origin))
        return CU_INVALID_VALUE;

    switch (attribute) {
    case CU_POINTER_RANGE_START:
        memcpy(data, &r.base, sizeof(r.base));
        return CU_SUCCESS;
    case CU_POINTER_RANGE_BYTES:
        memcpy(data, &r.bytes, sizeof(r.bytes));
        return CU_SUCCESS;
    case CU_POINTER_LEGACY_IPC:
        value = origin == ORIGIN_OWN;
        memcpy(data, &value, sizeof(value));
        return CU_SUCCESS;
    case CU_POINTER_DEVICE: /* never queried for a mapping */
        if (origin == ORIGIN_NONE)
            return CU_INVALID_VALUE;

        value = origin == ORIGIN_OWN ? find_own(at)->device : find_opened(at)->of.device;
        memcpy(data, &value, sizeof(value));
        return CU_SUCCESS;
    default:
        return CU_INVALID_VALUE;
    }
}

API cu_result cuMemGetAddressRange_v2(cu_ptr *ret_base, size_t *ret_bytes, cu_ptr at)
{
    enum origin origin;
    struct range r;

    ENTER();
    if (!find_any(at, &r, &origin))
        return CU_NOT_FOUND;
    if (ret_base)
        *ret_base = r.base;
    if (ret_bytes)
        *ret_bytes = r.bytes;
    return CU_SUCCESS;
}

/* ---- sharing by handles ---- */

_Static_assert(sizeof(struct handle_bytes) <= sizeof(struct cu_ipc_mem_handle), "it travels in one");

API cu_result cuIpcGetMemHandle(struct cu_ipc_mem_handle *ret, cu_ptr at)
{
    const struct allocation *a = find_own(at);
    struct handle_bytes h;

    ENTER();
    if (!a)
        return CU_INVALID_VALUE; /* for mappings too: they have descriptors */
    h = (struct handle_bytes){
        .magic = magic,
        .pid = getpid(),
        .offset = a->offset,
        .map_bytes = a->map_bytes,
        .at = a->range.base - (uintptr_t) a->map,
        .bytes = a->range.bytes,
        .fd = heap,
        .device = a->device,
    };
    memset(ret, 0, sizeof(*ret));
    memcpy(ret->bytes, &h, sizeof(h));
    return CU_SUCCESS;
}

/* Opens the heap of the exporter, while that process lives. */
static int open_heap(const struct handle_bytes *h)
{
    static const char prefix[] = "/memfd:standin-heap";
    char path[64], target[64];
    ssize_t n;

    (void) snprintf(path, sizeof(path), "/proc/%lld/fd/%d", (long long) h->pid, h->fd);
    n = readlink(path, target, sizeof(target));
    if (n < (ssize_t) sizeof(prefix) - 1 || memcmp(target, prefix, sizeof(prefix) - 1) != 0)
        return -1;

    return open(path, O_RDWR | O_CLOEXEC);
}

API cu_result cuIpcOpenMemHandle_v2(cu_ptr *ret, struct cu_ipc_mem_handle handle, unsigned flags)
{
    struct handle_bytes h;
    struct opened *o = NULL;
    int fd;

    ENTER();
    memcpy(&h, handle.bytes, sizeof(h));
    if (current_device() < 0)
        return CU_INVALID_CONTEXT;
    if (flags != CU_IPC_LAZY_PEER_ACCESS || h.magic != magic || !is_device(h.device))
        return CU_INVALID_VALUE;
    if (h.pid == getpid())
        return CU_INVALID_CONTEXT; /* a process cannot open its own handle */
    if (refuse_unsafe() != CU_SUCCESS)
        return CU_CAPTURE_UNSUPPORTED;

    for (int i = 0; i < OPENED_MAX; i++) {
        if (opened[i].n_opens > 0 && memcmp(&opened[i].of, &h, sizeof(h)) == 0) {
            opened[i].n_opens++;
            *ret = opened[i].range.base;
            return CU_SUCCESS;
        }
        if (opened[i].n_opens == 0 && !o)
            o = &opened[i];
    }
    fd = o ? open_heap(&h) : -1;
    if (fd < 0)
        return o ? CU_INVALID_HANDLE : CU_OUT_OF_MEMORY;

    o->map = mmap(NULL, h.map_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t) h.offset);
    (void) close(fd);
    if (o->map == MAP_FAILED)
        return CU_INVALID_HANDLE;

    o->of = h;
    o->n_opens = 1;
    o->range = (struct range){(uintptr_t) o->map + h.at, h.bytes};
    *ret = o->range.base;
    return CU_SUCCESS;
}

API cu_result cuIpcCloseMemHandle(cu_ptr at)
{
    struct opened *o = find_opened(at);

    ENTER();
    if (!o || o->range.base != at)
        return CU_INVALID_VALUE;
    if (--o->n_opens == 0)
        (void) munmap(o->map, o->of.map_bytes);
    return CU_SUCCESS;
}

void count_allocations(struct standin_left *left)
{
    for (int i = 0; i < ALLOCATIONS_MAX; i++)
        left->allocations += allocations[i].range.bytes > 0;
    for (int i = 0; i < OPENED_MAX; i++)
        left->opened += opened[i].n_opens > 0;
}
