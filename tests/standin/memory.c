/* Memory by cuMemCreate(), its descriptors and mappings, of the stand-in driver (devices.c). */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/standin/standin.h"

#define GRANULARITY ((size_t) 64 << 10)

enum { HANDLES_MAX = 256, RANGES_MAX = 64, MAPPINGS_MAX = 1024 };

struct handle {
    int fd;       /* memfd */
    size_t bytes; /* 0: free */
    int device;
};

struct mapping {
    cu_ptr at;
    size_t bytes; /* 0: free */
    int fd, access, device;
};

static struct handle handles[HANDLES_MAX];
static struct range ranges[RANGES_MAX];
static struct mapping mappings[MAPPINGS_MAX];

static bool is_allocation(const struct cu_allocation *prop)
{
    return prop->type == CU_ALLOCATION_PINNED && prop->location.type == CU_LOCATION_DEVICE &&
           is_device(prop->location.id);
}

API cu_result cuMemGetAllocationGranularity(size_t *bytes, const struct cu_allocation *prop, int option)
{
    ENTER();
    if (!is_allocation(prop) || option != CU_GRANULARITY_MINIMUM)
        return CU_INVALID_VALUE;

    *bytes = GRANULARITY;
    return CU_SUCCESS;
}

static cu_result new_handle(int fd, size_t bytes, int device, cu_handle *ret)
{
    for (int i = 0; i < HANDLES_MAX; i++)
        if (handles[i].bytes == 0) {
            handles[i] = (struct handle){fd, bytes, device};
            *ret = (cu_handle) i + 1;
            return CU_SUCCESS;
        }
    (void) close(fd);
    return CU_OUT_OF_MEMORY;
}

static struct handle *find_handle(cu_handle handle)
{
    return handle >= 1 && handle <= HANDLES_MAX && handles[handle - 1].bytes > 0 ? &handles[handle - 1]
                                                                                 : NULL;
}

/* Fills new memory as another process might have left it: contents are undefined. */
static bool leave_remains(int fd, size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    if (p == MAP_FAILED)
        return false;

    memset(p, 0xa5, bytes);
    return munmap(p, bytes) == 0;
}

/* Memory is freed with the last descriptor and mapping of a memfd. The
 * limit counts what one process created. */
API cu_result cuMemCreate(cu_handle *handle, size_t bytes, const struct cu_allocation *prop,
                          unsigned long long flags)
{
    char name[64];
    int fd;

    ENTER();
    if (refuse_unsafe() != CU_SUCCESS)
        return CU_CAPTURE_UNSUPPORTED;
    if (flags != 0 || !is_allocation(prop) || bytes == 0 || bytes % GRANULARITY != 0)
        return CU_INVALID_VALUE;
    if (state.no_fd && (prop->handle_types & CU_HANDLE_POSIX_FD))
        return CU_NOT_SUPPORTED;
    if (bytes > state.device_bytes - state.used[prop->location.id])
        return CU_OUT_OF_MEMORY;

    (void) snprintf(name, sizeof(name), "standin-gpu-%d", prop->location.id);
    fd = memfd_create(name, 0); /* not close-on-exec, as the descriptors of the driver */
    if (fd < 0)
        return CU_OPERATING_SYSTEM;
    if (ftruncate(fd, (off_t) bytes) < 0 || !leave_remains(fd, bytes)) {
        (void) close(fd);
        return CU_OUT_OF_MEMORY;
    }

    state.used[prop->location.id] += bytes;
    return new_handle(fd, bytes, prop->location.id, handle);
}

API cu_result cuMemRelease(cu_handle handle)
{
    struct handle *h = find_handle(handle);

    ENTER();
    if (!h)
        return CU_INVALID_VALUE;

    (void) close(h->fd);
    h->bytes = 0;
    return CU_SUCCESS;
}

API cu_result cuMemExportToShareableHandle(void *ret, cu_handle handle, int type, unsigned long long flags)
{
    struct handle *h = find_handle(handle);
    int fd;

    ENTER();
    if (!h || type != CU_HANDLE_POSIX_FD || flags != 0)
        return CU_INVALID_VALUE;

    fd = dup(h->fd);
    if (fd < 0)
        return CU_OPERATING_SYSTEM;

    memcpy(ret, &fd, sizeof(fd));
    return CU_SUCCESS;
}

/* The device whose memory a descriptor is, by the name of the memfd; -1: not our memory. */
static int device_of(int fd)
{
    static const char prefix[] = "/memfd:standin-gpu-";
    char path[64], target[128];
    ssize_t n;

    (void) snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    n = readlink(path, target, sizeof(target) - 1);
    if (n < 0 || strncmp(target, prefix, sizeof(prefix) - 1) != 0)
        return -1;

    target[n] = '\0';
    return atoi(target + sizeof(prefix) - 1);
}

API cu_result cuMemImportFromShareableHandle(cu_handle *ret, void *os_handle, int type)
{
    int fd = (int) (uintptr_t) os_handle, device, copy;
    struct stat st;

    ENTER();
    if (type != CU_HANDLE_POSIX_FD)
        return CU_INVALID_VALUE;

    device = device_of(fd);
    if (device < 0 || fstat(fd, &st) < 0)
        return CU_OPERATING_SYSTEM;
    if (!is_device(device))
        return CU_INVALID_DEVICE;

    copy = fcntl(fd, F_DUPFD_CLOEXEC, 0); /* the caller may close its own descriptor at once */
    return copy < 0 ? CU_OPERATING_SYSTEM : new_handle(copy, (size_t) st.st_size, device, ret);
}

API cu_result cuMemAddressReserve(cu_ptr *ret, size_t bytes, size_t alignment, cu_ptr wish,
                                  unsigned long long flags)
{
    ENTER();
    if (flags != 0 || wish != 0 || bytes == 0 || bytes % GRANULARITY != 0 ||
        (alignment & (alignment - 1)) != 0)
        return CU_INVALID_VALUE;
    for (int i = 0; i < RANGES_MAX; i++)
        if (ranges[i].bytes == 0) {
            char *at = mmap(NULL, bytes + GRANULARITY, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                            -1, 0);
            uintptr_t base = ((uintptr_t) at + GRANULARITY - 1) & ~(uintptr_t) (GRANULARITY - 1);

            if (at == MAP_FAILED)
                return CU_OUT_OF_MEMORY;

            (void) munmap(at, base - (uintptr_t) at);
            (void) munmap((char *) base + bytes, GRANULARITY - (base - (uintptr_t) at));
            ranges[i] = (struct range){base, bytes};
            *ret = base;
            return CU_SUCCESS;
        }
    return CU_OUT_OF_MEMORY;
}

static struct mapping *find_overlap(cu_ptr at, size_t bytes)
{
    for (int i = 0; i < MAPPINGS_MAX; i++)
        if (mappings[i].bytes > 0 && at < mappings[i].at + mappings[i].bytes && mappings[i].at < at + bytes)
            return &mappings[i];
    return NULL;
}

API cu_result cuMemAddressFree(cu_ptr at, size_t bytes)
{
    ENTER();
    for (int i = 0; i < RANGES_MAX; i++)
        if (ranges[i].bytes == bytes && bytes > 0 && ranges[i].base == at) {
            if (find_overlap(at, bytes))
                return CU_INVALID_VALUE;

            (void) munmap((void *) (uintptr_t) at, bytes);
            ranges[i].bytes = 0;
            return CU_SUCCESS;
        }
    return CU_INVALID_VALUE;
}

static bool is_reserved(cu_ptr at, size_t bytes)
{
    for (int i = 0; i < RANGES_MAX; i++)
        if (ranges[i].bytes > 0 && at >= ranges[i].base && bytes <= ranges[i].bytes &&
            at - ranges[i].base <= ranges[i].bytes - bytes)
            return true;
    return false;
}

API cu_result cuMemMap(cu_ptr at, size_t bytes, size_t offset, cu_handle handle, unsigned long long flags)
{
    struct handle *h = find_handle(handle);

    ENTER();
    if (refuse_unsafe() != CU_SUCCESS)
        return CU_CAPTURE_UNSUPPORTED;
    if (!h || flags != 0 || offset != 0 || bytes == 0 || bytes % GRANULARITY != 0 || at % GRANULARITY != 0 ||
        bytes > h->bytes || !is_reserved(at, bytes) || find_overlap(at, bytes))
        return CU_INVALID_VALUE;
    for (int i = 0; i < MAPPINGS_MAX; i++)
        if (mappings[i].bytes == 0) {
            int fd = fcntl(h->fd, F_DUPFD_CLOEXEC, 0);

            if (fd < 0 ||
                mmap((void *) (uintptr_t) at, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED)
                return CU_OPERATING_SYSTEM;
            mappings[i] = (struct mapping){at, bytes, fd, CU_ACCESS_NONE, h->device};
            return CU_SUCCESS;
        }
    return CU_OUT_OF_MEMORY;
}

static struct mapping *find_mapping(cu_ptr at, size_t bytes)
{
    for (int i = 0; i < MAPPINGS_MAX; i++)
        if (mappings[i].bytes > 0 && mappings[i].at == at && mappings[i].bytes == bytes)
            return &mappings[i];
    return NULL;
}

API cu_result cuMemUnmap(cu_ptr at, size_t bytes)
{
    struct mapping *m = find_mapping(at, bytes);

    ENTER();
    if (!m)
        return CU_INVALID_VALUE;

    if (is_arriving(at, bytes))
        state.lost_after =
            state.n_launches; /* bytes arrive where no memory is: the next call returns the fault */
    (void) mmap((void *) (uintptr_t) at, bytes, PROT_NONE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    (void) close(m->fd);
    m->bytes = 0;
    return CU_SUCCESS;
}

API cu_result cuMemSetAccess(cu_ptr at, size_t bytes, const struct cu_access *access, size_t n)
{
    struct mapping *m = find_mapping(at, bytes);
    int prot = PROT_NONE;

    ENTER();
    if (!m || n != 1 || access->location.type != CU_LOCATION_DEVICE || !is_device(access->location.id))
        return CU_INVALID_VALUE;
    if (access->flags == CU_ACCESS_READ_WRITE)
        prot = PROT_READ | PROT_WRITE;
    else if (access->flags == CU_ACCESS_READ)
        prot = PROT_READ;
    if (mprotect((void *) (uintptr_t) at, bytes, prot) < 0)
        return CU_OPERATING_SYSTEM;

    m->access = access->flags;
    return CU_SUCCESS;
}

bool find_mapped(cu_ptr at, struct range *ret, int *ret_access)
{
    struct mapping *m = find_overlap(at, 1);

    if (!m)
        return false;

    *ret = (struct range){m->at, m->bytes};
    *ret_access = m->access;
    return true;
}

cu_result check_touch(cu_ptr at, size_t bytes, int access)
{
    struct range r;
    int given = CU_ACCESS_READ_WRITE;

    if (current_device() < 0)
        return CU_INVALID_CONTEXT;
    if (!find_allocated(at, &r) && !find_mapped(at, &r, &given))
        return CU_INVALID_VALUE;
    if (bytes > r.bytes || at - r.base > r.bytes - bytes)
        return CU_INVALID_VALUE;

    return (given & access) == access ? CU_SUCCESS : CU_ILLEGAL_ADDRESS;
}

void count_memory(struct standin_left *left)
{
    for (int i = 0; i < HANDLES_MAX; i++)
        left->handles += handles[i].bytes > 0;
    for (int i = 0; i < RANGES_MAX; i++)
        left->ranges += ranges[i].bytes > 0;
    for (int i = 0; i < MAPPINGS_MAX; i++)
        left->mappings += mappings[i].bytes > 0;
}
