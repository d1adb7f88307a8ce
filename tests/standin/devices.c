/*
 * A stand-in for libcuda.so.1: the driver calls that gpu/cuda/ uses, over memfds, with the rules of the
 * driver enforced. With it every machine can test how extents are made, passed, mapped, copied, lost and
 * closed. Kernels run on the CPU, at once, if the build has a C++ compiler (tests/cuda_on_cpu). Whatever
 * image is loaded, the kernels are those of gpu/cuda/kernels.
 *
 * Rules: sizes and addresses in granules; one mapping per address; unmapping and freeing exactly what was
 * mapped and reserved; no access without permission; a current context for copies; live streams; no waiting
 * while a stream captures; no call after fork(). A breach returns the error of the driver. Objects that a
 * process leaves open are counted (standin_left()).
 *
 * Environment, read at cuInit():
 *
 *     STANDIN_VERSION=N         version that cuDriverGetVersion returns (13000)
 *     STANDIN_DEVICES=N         number of devices (1); their UUIDs are 16 bytes of 0xc0 + ordinal
 *     STANDIN_COMPUTE=N         compute capability, 10 * major + minor (90)
 *     STANDIN_BYTES=N           memory of each device that one process may create (64 MiB)
 *     STANDIN_NO_FD=1           devices cannot export descriptors
 *     STANDIN_MPS=1             an MPS server stands between processes and devices; 2: only the driver says
 *                               so, 3: only the library nvml.c does
 *     STANDIN_LATE=1            work of streams that the default stream does not wait for runs only when a
 *                               call waits for it
 *     STANDIN_LOST=N            the GPU is lost after N launches: later calls return CU_LAUNCH_FAILED
 *     STANDIN_WRONG=KERNEL:HOW  launches of kernels with KERNEL in their name do nothing (skip) or leave
 *                               wrong bits (flip): wrong.c
 *     STANDIN_FAIL=CALL:N:E     the N-th call of CALL (a symbol), counted from 1, returns error E; all
 *                               later ones too if E < 0
 *
 * This file: start, errors, devices, contexts.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/standin/standin.h"

struct standin state;

static struct {
    char call[64];
    long at, count;
    int error;
} failure;

static int retained[DEVICES_MAX];
/* Mapped while there is a context: nvml.c finds the processes with a context by the name. */
static void *marks[DEVICES_MAX];
static _Thread_local int current[16], n_current; /* stack of contexts: device + 1 */

static long setting(const char *name, long otherwise)
{
    const char *text = getenv(name);

    return text && *text ? atol(text) : otherwise;
}

cu_result enter(const char *call)
{
    cu_result r = CU_SUCCESS;

    if (state.pid == 0 || state.pid != getpid())
        return CU_NOT_INITIALIZED;
    if (state.lost_after >= 0 && state.n_launches >= state.lost_after)
        return CU_LAUNCH_FAILED;
    if (strcmp(failure.call, call) == 0) {
        failure.count++;
        if (failure.count == failure.at || (failure.error < 0 && failure.count > failure.at))
            r = abs(failure.error);
    }
    return r;
}

static void read_failure(void)
{
    const char *text = getenv("STANDIN_FAIL");
    size_t n = text ? strcspn(text, ":") : 0;

    failure.call[0] = '\0';
    failure.count = 0;
    if (n == 0 || n >= sizeof(failure.call))
        return;
    memcpy(failure.call, text, n);
    failure.call[n] = '\0';
    (void) sscanf(text + n, ":%ld:%d", &failure.at, &failure.error);
}

API cu_result cuInit(unsigned flags)
{
    if (flags != 0)
        return CU_INVALID_VALUE;

    read_failure();
    read_wrong();
    if (strcmp(failure.call, "cuInit") == 0)
        return abs(failure.error);

    state.version = (int) setting("STANDIN_VERSION", 13000);
    state.n_devices = (int) setting("STANDIN_DEVICES", 1);
    state.device_bytes = (size_t) setting("STANDIN_BYTES", 64L << 20);
    state.no_fd = (int) setting("STANDIN_NO_FD", 0);
    state.mps = setting("STANDIN_MPS", 0) == 1 || setting("STANDIN_MPS", 0) == 2;
    state.compute = (int) setting("STANDIN_COMPUTE", 90);
    state.late = (int) setting("STANDIN_LATE", 0);
    state.lost_after = setting("STANDIN_LOST", -1);
    state.n_launches = 0;
    if (state.n_devices > DEVICES_MAX)
        return CU_INVALID_VALUE;

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
    *name = "CUDA_ERROR_STANDIN";
    if (error == CU_OUT_OF_MEMORY)
        *name = "CUDA_ERROR_OUT_OF_MEMORY";
    else if (error == CU_INVALID_VALUE)
        *name = "CUDA_ERROR_INVALID_VALUE";
    return CU_SUCCESS;
}

API cu_result cuGetErrorString(cu_result error, const char **text)
{
    (void) error;
    *text = "an error of the stand-in driver";
    return CU_SUCCESS;
}

/* ---- devices and contexts ---- */

API cu_result cuDeviceGetCount(int *n)
{
    ENTER();
    *n = state.n_devices;
    return CU_SUCCESS;
}

bool is_device(int device)
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

    switch (attribute) {
    case CU_ATTRIBUTE_COMPUTE_MAJOR:
        *value = state.compute / 10;
        break;
    case CU_ATTRIBUTE_COMPUTE_MINOR:
        *value = state.compute % 10;
        break;
    case CU_ATTRIBUTE_MULTIPROCESSORS:
        *value = 2;
        break;
    case CU_ATTRIBUTE_POSIX_FD:
        *value = !state.no_fd;
        break;
    case CU_ATTRIBUTE_MPS:
        *value = state.mps;
        break;
    default:
        *value = attribute == CU_ATTRIBUTE_VMM;
    }
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

static void mark(int device)
{
    char name[32];
    int fd;

    (void) snprintf(name, sizeof(name), STANDIN_CONTEXT "%d", device);
    fd = memfd_create(name, MFD_CLOEXEC);
    marks[device] = fd >= 0 ? mmap(NULL, 1, PROT_NONE, MAP_SHARED, fd, 0) : MAP_FAILED;
    if (marks[device] == MAP_FAILED)
        marks[device] = NULL;
    if (fd >= 0)
        (void) close(fd);
}

API cu_result cuDevicePrimaryCtxRetain(cu_context *context, cu_device device)
{
    ENTER();
    if (!is_device(device))
        return CU_INVALID_DEVICE;
    if (retained[device]++ == 0)
        mark(device);
    *context = (cu_context) (uintptr_t) (device + 1);
    return CU_SUCCESS;
}

API cu_result cuDevicePrimaryCtxRelease_v2(cu_device device)
{
    ENTER();
    if (!is_device(device) || retained[device] == 0)
        return CU_INVALID_CONTEXT;
    if (--retained[device] == 0 && marks[device])
        (void) munmap(marks[device], 1);
    return CU_SUCCESS;
}

API cu_result cuCtxPushCurrent_v2(cu_context context)
{
    int device = (int) (uintptr_t) context - 1;

    ENTER();
    if (!is_device(device) || retained[device] == 0 || n_current == 16)
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
    cu_result r;

    ENTER();
    if (n_current == 0)
        return CU_INVALID_CONTEXT;

    r = refuse_waits();
    if (r == CU_SUCCESS) {
        run_all_late();
        all_arrived();
    }
    return r == CU_CAPTURE_IMPLICIT ? CU_CAPTURE_UNSUPPORTED : r;
}

int current_device(void)
{
    return n_current > 0 ? current[n_current - 1] - 1 : -1;
}

/* ---- for tests ---- */

API struct standin_left standin_left(void)
{
    struct standin_left left = {.launches = state.n_launches};

    for (int i = 0; i < DEVICES_MAX; i++)
        left.contexts += retained[i];
    count_memory(&left);
    count_allocations(&left);
    count_streams(&left);
    count_modules(&left);
    count_events(&left);
    return left;
}
