/*
 * A stand-in for libcuda.so.1: the driver calls that gpu/cuda/ uses, over memfds, with the driver's rules enforced. It lets
 * every machine test how extents are made, passed, mapped, copied, lost and closed. Kernels run on the CPU, at once, where the
 * build has a C++ compiler (tests/cuda_on_cpu); whatever image is loaded, they are those of gpu/cuda/kernels.
 *
 * Rules: sizes and addresses in granules; one mapping per address; unmapping and freeing exactly what was mapped and
 * reserved; no touch without access; a current context for copies; nothing after fork(). A breach is the error that the
 * driver gives. What a process leaves open is counted (standin_left()).
 *
 * Environment, read at cuInit():
 *     STANDIN_VERSION=N       what cuDriverGetVersion says (13000)
 *     STANDIN_DEVICES=N       (1); UUIDs are 16 bytes of 0xc0 + ordinal
 *     STANDIN_BYTES=N         memory of each device that one process may create (64 MiB)
 *     STANDIN_NO_FD=1         devices cannot export descriptors
 *     STANDIN_FAIL=CALL:N:E   the N-th call of CALL (a symbol), counted from 1, returns error E; from then on too if E < 0
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "gpu/cuda/driver.h"
#include "tests/cuda_on_cpu/kernels.h"
#include "tests/standin/libcuda.h"

#define API __attribute__((visibility("default")))

/* The prototypes are those that gpu/cuda/ calls: a stand-in of other types does not build. */
#define PROTOTYPE(member, symbol, arguments) API cu_result symbol arguments;
CUDA_CALLS(PROTOTYPE)
#undef PROTOTYPE

#define GRANULARITY ((size_t) 64 << 10)

enum { ALLOCATIONS_MAX = 256, HANDLES_MAX = 256, RANGES_MAX = 64, MAPPINGS_MAX = 1024, DEVICES_MAX = 4 };

struct handle {
    int fd;              /* memfd; -1: free */
    size_t bytes;
    int device;
};

struct range {
    cu_ptr base;
    size_t bytes;        /* 0: free */
};

struct mapping {
    cu_ptr at;
    size_t bytes;        /* 0: free */
    int fd, access, device;
};

static struct {
    pid_t pid;           /* of cuInit(); 0: not called */
    int n_devices, version, no_fd;
    size_t device_bytes, used[DEVICES_MAX];
    struct handle handles[HANDLES_MAX];
    struct range ranges[RANGES_MAX];
    struct mapping mappings[MAPPINGS_MAX];
    struct range allocations[ALLOCATIONS_MAX]; /* cuMemAlloc() */
    int retained[DEVICES_MAX], modules;
    unsigned shared_bytes[32];                 /* by function: what cuFuncSetAttribute() allowed */
    char fail_call[64];
    long fail_at, fail_count;
    int fail_error;
} state;

static _Thread_local int current[16], n_current; /* stack of contexts: device + 1 */

static long setting(const char *name, long otherwise)
{
    const char *text = getenv(name);

    return text && *text ? atol(text) : otherwise;
}

/* What every call begins with: CU_SUCCESS, or why it must not go on. */
static cu_result enter(const char *call)
{
    cu_result r = CU_SUCCESS;

    if (state.pid == 0 || state.pid != getpid())
        return CU_NOT_INITIALIZED;
    if (strcmp(state.fail_call, call) == 0) {
        state.fail_count++;
        if (state.fail_count == state.fail_at || (state.fail_error < 0 && state.fail_count > state.fail_at))
            r = abs(state.fail_error);
    }
    return r;
}

#define ENTER()                          \
    do {                                 \
        cu_result _r = enter(__func__);  \
        if (_r != CU_SUCCESS)            \
            return _r;                   \
    } while (0)

static void read_failure(void)
{
    const char *text = getenv("STANDIN_FAIL");
    size_t n = text ? strcspn(text, ":") : 0;

    state.fail_call[0] = '\0';
    state.fail_count = 0;
    if (n == 0 || n >= sizeof(state.fail_call))
        return;
    memcpy(state.fail_call, text, n);
    state.fail_call[n] = '\0';
    (void) sscanf(text + n, ":%ld:%d", &state.fail_at, &state.fail_error);
}

API cu_result cuInit(unsigned flags)
{
    if (flags != 0)
        return CU_INVALID_VALUE;
    read_failure();
    if (strcmp(state.fail_call, "cuInit") == 0)
        return abs(state.fail_error);
    state.version = (int) setting("STANDIN_VERSION", 13000);
    state.n_devices = (int) setting("STANDIN_DEVICES", 1);
    state.device_bytes = (size_t) setting("STANDIN_BYTES", 64L << 20);
    state.no_fd = (int) setting("STANDIN_NO_FD", 0);
    if (state.n_devices > DEVICES_MAX)
        return CU_INVALID_VALUE;
    if (state.pid == 0)
        for (int i = 0; i < HANDLES_MAX; i++)
            state.handles[i].fd = -1;
    state.pid = getpid();
    return state.n_devices == 0 ? CU_NO_DEVICE : CU_SUCCESS;
}

API cu_result cuDriverGetVersion(int *version)
{
    *version = state.version;
    return CU_SUCCESS;
}

API cu_result cuGetErrorName(cu_result error, const char **name)
{
    *name = error == CU_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : error == CU_INVALID_VALUE ? "CUDA_ERROR_INVALID_VALUE"
                                                                                               : "CUDA_ERROR_STANDIN";
    return CU_SUCCESS;
}

API cu_result cuGetErrorString(cu_result error, const char **text)
{
    (void) error;
    *text = "the stand-in driver says so";
    return CU_SUCCESS;
}

/* ---- devices and contexts ---------------------------------------------------------------------------------------- */

API cu_result cuDeviceGetCount(int *n)
{
    ENTER();
    *n = state.n_devices;
    return CU_SUCCESS;
}

static bool is_device(int device)
{
    return device >= 0 && device < state.n_devices;
}

API cu_result cuDeviceGet(cu_device *device, int ordinal)
{
    ENTER();
    if (!is_device(ordinal))
        return CU_INVALID_DEVICE;
    *device = ordinal;
    return CU_SUCCESS;
}

API cu_result cuDeviceGetName(char *name, int bytes, cu_device device)
{
    ENTER();
    if (!is_device(device))
        return CU_INVALID_DEVICE;
    (void) snprintf(name, (size_t) bytes, "stand-in GPU %d", device);
    return CU_SUCCESS;
}

API cu_result cuDeviceGetUuid_v2(struct cu_uuid *uuid, cu_device device)
{
    ENTER();
    if (!is_device(device))
        return CU_INVALID_DEVICE;
    memset(uuid, 0xc0 + device, sizeof(*uuid));
    return CU_SUCCESS;
}

API cu_result cuDeviceGetAttribute(int *value, int attribute, cu_device device)
{
    ENTER();
    if (!is_device(device))
        return CU_INVALID_DEVICE;
    *value = attribute == CU_ATTRIBUTE_COMPUTE_MAJOR ? 9 : attribute == CU_ATTRIBUTE_COMPUTE_MINOR ? 0
             : attribute == CU_ATTRIBUTE_MULTIPROCESSORS ? 2 : attribute == CU_ATTRIBUTE_POSIX_FD ? !state.no_fd : attribute == CU_ATTRIBUTE_VMM;
    return CU_SUCCESS;
}

API cu_result cuDeviceTotalMem_v2(size_t *bytes, cu_device device)
{
    ENTER();
    if (!is_device(device))
        return CU_INVALID_DEVICE;
    *bytes = state.device_bytes;
    return CU_SUCCESS;
}

API cu_result cuDevicePrimaryCtxRetain(cu_context *context, cu_device device)
{
    ENTER();
    if (!is_device(device))
        return CU_INVALID_DEVICE;
    state.retained[device]++;
    *context = (cu_context) (uintptr_t) (device + 1);
    return CU_SUCCESS;
}

API cu_result cuDevicePrimaryCtxRelease_v2(cu_device device)
{
    ENTER();
    if (!is_device(device) || state.retained[device] == 0)
        return CU_INVALID_CONTEXT;
    state.retained[device]--;
    return CU_SUCCESS;
}

API cu_result cuCtxPushCurrent_v2(cu_context context)
{
    int device = (int) (uintptr_t) context - 1;

    ENTER();
    if (!is_device(device) || state.retained[device] == 0 || n_current == 16)
        return CU_INVALID_CONTEXT;
    current[n_current++] = device + 1;
    return CU_SUCCESS;
}

API cu_result cuCtxPopCurrent_v2(cu_context *context)
{
    ENTER();
    if (n_current == 0)
        return CU_INVALID_CONTEXT;
    *context = (cu_context) (uintptr_t) current[--n_current];
    return CU_SUCCESS;
}

API cu_result cuCtxSynchronize(void)
{
    ENTER();
    return n_current > 0 ? CU_SUCCESS : CU_INVALID_CONTEXT;
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static bool is_allocation(const struct cu_allocation *prop)
{
    return prop->type == CU_ALLOCATION_PINNED && prop->location.type == CU_LOCATION_DEVICE && is_device(prop->location.id);
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
        if (state.handles[i].fd < 0) {
            state.handles[i] = (struct handle) { fd, bytes, device };
            *ret = (cu_handle) i + 1;
            return CU_SUCCESS;
        }
    (void) close(fd);
    return CU_OUT_OF_MEMORY;
}

static struct handle *find_handle(cu_handle handle)
{
    return handle >= 1 && handle <= HANDLES_MAX && state.handles[handle - 1].fd >= 0 ? &state.handles[handle - 1] : NULL;
}

/* Memory goes back when the last descriptor and mapping of a memfd is gone; here, what one process created is counted. */
API cu_result cuMemCreate(cu_handle *handle, size_t bytes, const struct cu_allocation *prop, unsigned long long flags)
{
    char name[64];
    int fd;

    ENTER();
    if (flags != 0 || !is_allocation(prop) || bytes == 0 || bytes % GRANULARITY != 0)
        return CU_INVALID_VALUE;
    if (state.no_fd && (prop->handle_types & CU_HANDLE_POSIX_FD))
        return CU_NOT_SUPPORTED;
    if (bytes > state.device_bytes - state.used[prop->location.id])
        return CU_OUT_OF_MEMORY;
    (void) snprintf(name, sizeof(name), "standin-gpu-%d", prop->location.id);
    fd = memfd_create(name, 0); /* not close-on-exec: the driver's descriptors are not either */
    if (fd < 0)
        return CU_OPERATING_SYSTEM;
    if (ftruncate(fd, (off_t) bytes) < 0) {
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
    h->fd = -1;
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

/* The device that a descriptor is memory of, by the memfd's name; -1: no memory of ours. */
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
    copy = fcntl(fd, F_DUPFD_CLOEXEC, 0); /* the caller may close its own at once */
    return copy < 0 ? CU_OPERATING_SYSTEM : new_handle(copy, (size_t) st.st_size, device, ret);
}

API cu_result cuMemAddressReserve(cu_ptr *ret, size_t bytes, size_t alignment, cu_ptr wish, unsigned long long flags)
{
    ENTER();
    if (flags != 0 || wish != 0 || bytes == 0 || bytes % GRANULARITY != 0 || (alignment & (alignment - 1)) != 0)
        return CU_INVALID_VALUE;
    for (int i = 0; i < RANGES_MAX; i++)
        if (state.ranges[i].bytes == 0) {
            char *at = mmap(NULL, bytes + GRANULARITY, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
            uintptr_t base = ((uintptr_t) at + GRANULARITY - 1) & ~(uintptr_t) (GRANULARITY - 1);

            if (at == MAP_FAILED)
                return CU_OUT_OF_MEMORY;
            (void) munmap(at, base - (uintptr_t) at);
            (void) munmap((char *) base + bytes, GRANULARITY - (base - (uintptr_t) at));
            state.ranges[i] = (struct range) { base, bytes };
            *ret = base;
            return CU_SUCCESS;
        }
    return CU_OUT_OF_MEMORY;
}

static struct mapping *find_overlap(cu_ptr at, size_t bytes)
{
    for (int i = 0; i < MAPPINGS_MAX; i++)
        if (state.mappings[i].bytes > 0 && at < state.mappings[i].at + state.mappings[i].bytes &&
            state.mappings[i].at < at + bytes)
            return &state.mappings[i];
    return NULL;
}

API cu_result cuMemAddressFree(cu_ptr at, size_t bytes)
{
    ENTER();
    for (int i = 0; i < RANGES_MAX; i++)
        if (state.ranges[i].bytes == bytes && bytes > 0 && state.ranges[i].base == at) {
            if (find_overlap(at, bytes))
                return CU_INVALID_VALUE;
            (void) munmap((void *) (uintptr_t) at, bytes);
            state.ranges[i].bytes = 0;
            return CU_SUCCESS;
        }
    return CU_INVALID_VALUE;
}

static bool is_reserved(cu_ptr at, size_t bytes)
{
    for (int i = 0; i < RANGES_MAX; i++)
        if (state.ranges[i].bytes > 0 && at >= state.ranges[i].base && bytes <= state.ranges[i].bytes &&
            at - state.ranges[i].base <= state.ranges[i].bytes - bytes)
            return true;
    return false;
}

API cu_result cuMemMap(cu_ptr at, size_t bytes, size_t offset, cu_handle handle, unsigned long long flags)
{
    struct handle *h = find_handle(handle);

    ENTER();
    if (!h || flags != 0 || offset != 0 || bytes == 0 || bytes % GRANULARITY != 0 || at % GRANULARITY != 0 ||
        bytes > h->bytes || !is_reserved(at, bytes) || find_overlap(at, bytes))
        return CU_INVALID_VALUE;
    for (int i = 0; i < MAPPINGS_MAX; i++)
        if (state.mappings[i].bytes == 0) {
            int fd = fcntl(h->fd, F_DUPFD_CLOEXEC, 0);

            if (fd < 0 || mmap((void *) (uintptr_t) at, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED)
                return CU_OPERATING_SYSTEM;
            state.mappings[i] = (struct mapping) { at, bytes, fd, CU_ACCESS_NONE, h->device };
            return CU_SUCCESS;
        }
    return CU_OUT_OF_MEMORY;
}

static struct mapping *find_mapping(cu_ptr at, size_t bytes)
{
    for (int i = 0; i < MAPPINGS_MAX; i++)
        if (state.mappings[i].bytes > 0 && state.mappings[i].at == at && state.mappings[i].bytes == bytes)
            return &state.mappings[i];
    return NULL;
}

API cu_result cuMemUnmap(cu_ptr at, size_t bytes)
{
    struct mapping *m = find_mapping(at, bytes);

    ENTER();
    if (!m)
        return CU_INVALID_VALUE;
    (void) mmap((void *) (uintptr_t) at, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    (void) close(m->fd);
    m->bytes = 0;
    return CU_SUCCESS;
}

API cu_result cuMemSetAccess(cu_ptr at, size_t bytes, const struct cu_access *access, size_t n)
{
    struct mapping *m = find_mapping(at, bytes);
    int prot;

    ENTER();
    if (!m || n != 1 || access->location.type != CU_LOCATION_DEVICE || !is_device(access->location.id))
        return CU_INVALID_VALUE;
    prot = access->flags == CU_ACCESS_READ_WRITE ? PROT_READ | PROT_WRITE : access->flags == CU_ACCESS_READ ? PROT_READ
                                                                                                            : PROT_NONE;
    if (mprotect((void *) (uintptr_t) at, bytes, prot) < 0)
        return CU_OPERATING_SYSTEM;
    m->access = access->flags;
    return CU_SUCCESS;
}

API cu_result cuMemAlloc_v2(cu_ptr *ret, size_t bytes)
{
    ENTER();
    if (n_current == 0)
        return CU_INVALID_CONTEXT;
    if (bytes == 0)
        return CU_INVALID_VALUE;
    for (int i = 0; i < ALLOCATIONS_MAX; i++)
        if (state.allocations[i].bytes == 0) {
            void *p = aligned_alloc(256, (bytes + 255) / 256 * 256);

            if (!p)
                return CU_OUT_OF_MEMORY;
            memset(p, 0xff, bytes); /* NaN where nothing was written */
            state.allocations[i] = (struct range) { (uintptr_t) p, bytes };
            *ret = (uintptr_t) p;
            return CU_SUCCESS;
        }
    return CU_OUT_OF_MEMORY;
}

API cu_result cuMemFree_v2(cu_ptr at)
{
    ENTER();
    for (int i = 0; i < ALLOCATIONS_MAX; i++)
        if (state.allocations[i].bytes > 0 && state.allocations[i].base == at) {
            free((void *) (uintptr_t) at);
            state.allocations[i].bytes = 0;
            return CU_SUCCESS;
        }
    return CU_INVALID_VALUE;
}

static bool is_allocated(cu_ptr at, size_t bytes)
{
    for (int i = 0; i < ALLOCATIONS_MAX; i++) {
        const struct range *r = &state.allocations[i];

        if (r->bytes > 0 && at >= r->base && bytes <= r->bytes && at - r->base <= r->bytes - bytes)
            return true;
    }
    return false;
}

/* A copy touches bytes of one allocation, or of one mapping with the access it needs, from a thread that has a context. */
static cu_result check_copy(cu_ptr at, size_t bytes, int access)
{
    struct mapping *m = find_overlap(at, 1);

    if (n_current == 0)
        return CU_INVALID_CONTEXT;
    if (is_allocated(at, bytes))
        return CU_SUCCESS;
    if (!m || bytes > m->bytes || at - m->at > m->bytes - bytes)
        return CU_INVALID_VALUE;
    return (m->access & access) == access ? CU_SUCCESS : CU_ILLEGAL_ADDRESS;
}

API cu_result cuMemcpyDtoH_v2(void *to, cu_ptr from, size_t bytes)
{
    cu_result r;

    ENTER();
    r = check_copy(from, bytes, CU_ACCESS_READ);
    if (r == CU_SUCCESS)
        memcpy(to, (const void *) (uintptr_t) from, bytes);
    return r;
}

API cu_result cuMemcpyHtoD_v2(cu_ptr to, const void *from, size_t bytes)
{
    cu_result r;

    ENTER();
    r = check_copy(to, bytes, CU_ACCESS_READ_WRITE);
    if (r == CU_SUCCESS)
        memcpy((void *) (uintptr_t) to, from, bytes);
    return r;
}

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

static const char *const functions[] = {
#define NAME(kernel, n_key_coords, n_columns, n_rows) #kernel,
    PLAN_ATTEND_KERNELS(NAME)
#undef NAME
    "kvc_merge", "kvc_encode_keys", "kvc_encode_values", "kvc_decode",
    "kvc_f16_64", "kvc_f16_128", "kvc_f16_256", "kvc_f16_merge",
};

enum { FUNCTIONS = sizeof(functions) / sizeof(functions[0]), SHARED_FREE = 48 << 10, SHARED_MOST = 227 << 10 };

API cu_result cuModuleLoadData(cu_module *ret, const void *image)
{
    ENTER();
    if (n_current == 0)
        return CU_INVALID_CONTEXT;
    if (!image)
        return CU_INVALID_IMAGE;
    *ret = (cu_module) (uintptr_t) 1;
    state.modules++;
    return CU_SUCCESS;
}

API cu_result cuModuleUnload(cu_module module)
{
    ENTER();
    if (!module || state.modules == 0)
        return CU_INVALID_HANDLE;
    state.modules--;
    return CU_SUCCESS;
}

API cu_result cuModuleGetFunction(cu_function *ret, cu_module module, const char *name)
{
    ENTER();
    for (uintptr_t i = 0; module && i < FUNCTIONS; i++)
        if (strcmp(functions[i], name) == 0) {
            *ret = (cu_function) (i + 1);
            return CU_SUCCESS;
        }
    return CU_INVALID_HANDLE;
}

static bool is_function(cu_function f)
{
    return (uintptr_t) f >= 1 && (uintptr_t) f <= FUNCTIONS;
}

API cu_result cuFuncSetAttribute(cu_function f, int attribute, int value)
{
    ENTER();
    if (!is_function(f) || attribute != CU_FUNCTION_MAX_DYNAMIC_SHARED || value < 0 || value > SHARED_MOST)
        return CU_INVALID_VALUE;
    state.shared_bytes[(uintptr_t) f - 1] = (unsigned) value;
    return CU_SUCCESS;
}

API cu_result cuLaunchKernel(cu_function f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                             unsigned shared, cu_stream stream, void **arguments, void **extra)
{
    unsigned allowed;

    ENTER();
    if (!is_function(f))
        return CU_INVALID_HANDLE;
    allowed = state.shared_bytes[(uintptr_t) f - 1];
    if (n_current == 0)
        return CU_INVALID_CONTEXT;
    if (stream || extra || gx == 0 || gy == 0 || gz == 0 || gy > 65535 || gz > 65535 || bx % 32 != 0 || by != 1 || bz != 1 ||
        shared > (allowed > SHARED_FREE ? allowed : SHARED_FREE))
        return CU_INVALID_VALUE;
#ifdef KERNELS_ON_CPU
    on_cpu_launch(functions[(uintptr_t) f - 1], gx, gy, gz, bx, shared, *(const void **) arguments[0]);
    return CU_SUCCESS;
#else
    (void) arguments;
    return CU_NOT_SUPPORTED;
#endif
}

API cu_result cuStreamSynchronize(cu_stream stream)
{
    ENTER();
    return stream ? CU_INVALID_HANDLE : CU_SUCCESS;
}

API cu_result cuEventCreate(cu_event *ret, unsigned flags)
{
    ENTER();
    if (flags != 0)
        return CU_INVALID_VALUE;
    *ret = calloc(1, sizeof(struct timespec));
    return *ret ? CU_SUCCESS : CU_OUT_OF_MEMORY;
}

API cu_result cuEventDestroy_v2(cu_event event)
{
    ENTER();
    free(event);
    return CU_SUCCESS;
}

API cu_result cuEventRecord(cu_event event, cu_stream stream)
{
    ENTER();
    if (stream || clock_gettime(CLOCK_MONOTONIC, (struct timespec *) event) < 0)
        return CU_INVALID_HANDLE;
    return CU_SUCCESS;
}

API cu_result cuEventSynchronize(cu_event event)
{
    ENTER();
    return event ? CU_SUCCESS : CU_INVALID_HANDLE;
}

API cu_result cuEventElapsedTime(float *ret, cu_event from, cu_event to)
{
    const struct timespec *a = (const struct timespec *) from, *b = (const struct timespec *) to;

    ENTER();
    *ret = (float) ((double) (b->tv_sec - a->tv_sec) * 1e3 + (double) (b->tv_nsec - a->tv_nsec) * 1e-6);
    return CU_SUCCESS;
}

/* ---- for tests --------------------------------------------------------------------------------------------------- */

API struct standin_left standin_left(void)
{
    struct standin_left left = { 0 };

    for (int i = 0; i < HANDLES_MAX; i++)
        left.handles += state.pid != 0 && state.handles[i].fd >= 0;
    for (int i = 0; i < RANGES_MAX; i++)
        left.ranges += state.ranges[i].bytes > 0;
    for (int i = 0; i < MAPPINGS_MAX; i++)
        left.mappings += state.mappings[i].bytes > 0;
    for (int i = 0; i < DEVICES_MAX; i++)
        left.contexts += state.retained[i];
    for (int i = 0; i < ALLOCATIONS_MAX; i++)
        left.allocations += state.allocations[i].bytes > 0;
    left.modules = state.modules;
    return left;
}
