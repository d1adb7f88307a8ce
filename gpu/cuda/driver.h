/* The CUDA driver, opened at run time: one binary runs with and without a GPU, and nothing links libcuda.
 * Only a process that uses a GPU opens it; kvcobrad never does. */
#pragma once

#include <stdbool.h>

#include "gpu/cuda/abi.h"

struct errmsg;

/* X(member, symbol, arguments) of every call that we use. A driver without one of them is too old. */
#define CUDA_CALLS(X)                                                                                        \
    X(init, cuInit, (unsigned) )                                                                             \
    X(driver_version, cuDriverGetVersion, (int *) )                                                          \
    X(error_name, cuGetErrorName, (cu_result, const char **) )                                               \
    X(error_string, cuGetErrorString, (cu_result, const char **) )                                           \
    X(device_count, cuDeviceGetCount, (int *) )                                                              \
    X(device_get, cuDeviceGet, (cu_device *, int) )                                                          \
    X(device_name, cuDeviceGetName, (char *, int, cu_device))                                                \
    X(device_uuid, cuDeviceGetUuid_v2, (struct cu_uuid *, cu_device))                                        \
    X(device_attribute, cuDeviceGetAttribute, (int *, int, cu_device))                                       \
    X(device_bytes, cuDeviceTotalMem_v2, (size_t *, cu_device))                                              \
    X(context_retain, cuDevicePrimaryCtxRetain, (cu_context *, cu_device))                                   \
    X(context_release, cuDevicePrimaryCtxRelease_v2, (cu_device))                                            \
    X(context_push, cuCtxPushCurrent_v2, (cu_context))                                                       \
    X(context_pop, cuCtxPopCurrent_v2, (cu_context *) )                                                      \
    X(context_synchronize, cuCtxSynchronize, (void) )                                                        \
    X(granularity, cuMemGetAllocationGranularity, (size_t *, const struct cu_allocation *, int) )            \
    X(mem_create, cuMemCreate, (cu_handle *, size_t, const struct cu_allocation *, unsigned long long) )     \
    X(mem_release, cuMemRelease, (cu_handle))                                                                \
    X(mem_export, cuMemExportToShareableHandle, (void *, cu_handle, int, unsigned long long) )               \
    X(mem_import, cuMemImportFromShareableHandle, (cu_handle *, void *, int) )                               \
    X(address_reserve, cuMemAddressReserve, (cu_ptr *, size_t, size_t, cu_ptr, unsigned long long) )         \
    X(address_free, cuMemAddressFree, (cu_ptr, size_t))                                                      \
    X(mem_map, cuMemMap, (cu_ptr, size_t, size_t, cu_handle, unsigned long long) )                           \
    X(mem_unmap, cuMemUnmap, (cu_ptr, size_t))                                                               \
    X(set_access, cuMemSetAccess, (cu_ptr, size_t, const struct cu_access *, size_t))                        \
    X(copy_to_host, cuMemcpyDtoH_v2, (void *, cu_ptr, size_t))                                               \
    X(copy_to_device, cuMemcpyHtoD_v2, (cu_ptr, const void *, size_t))                                       \
    X(copy_async, cuMemcpyDtoDAsync_v2, (cu_ptr, cu_ptr, size_t, cu_stream))                                 \
    X(copy_to_host_async, cuMemcpyDtoHAsync_v2, (void *, cu_ptr, size_t, cu_stream))                         \
    X(copy_to_device_async, cuMemcpyHtoDAsync_v2, (cu_ptr, const void *, size_t, cu_stream))                 \
    X(fill, cuMemsetD8_v2, (cu_ptr, unsigned char, size_t))                                                  \
    X(fill_async, cuMemsetD8Async, (cu_ptr, unsigned char, size_t, cu_stream))                               \
    X(mem_alloc, cuMemAlloc_v2, (cu_ptr *, size_t))                                                          \
    X(host_alloc, cuMemHostAlloc, (void **, size_t, unsigned) )                                              \
    X(host_free, cuMemFreeHost, (void *) )                                                                   \
    X(mem_free, cuMemFree_v2, (cu_ptr))                                                                      \
    X(pointer_attribute, cuPointerGetAttribute, (void *, int, cu_ptr))                                       \
    X(module_load, cuModuleLoadData, (cu_module *, const void *) )                                           \
    X(module_unload, cuModuleUnload, (cu_module))                                                            \
    X(module_function, cuModuleGetFunction, (cu_function *, cu_module, const char *) )                       \
    X(function_set, cuFuncSetAttribute, (cu_function, int, int) )                                            \
    X(launch, cuLaunchKernel,                                                                                \
      (cu_function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, cu_stream,         \
       void **, void **) )                                                                                   \
    X(stream_synchronize, cuStreamSynchronize, (cu_stream))                                                  \
    X(stream_create, cuStreamCreate, (cu_stream *, unsigned) )                                               \
    X(stream_destroy, cuStreamDestroy_v2, (cu_stream))                                                       \
    X(stream_wait_event, cuStreamWaitEvent, (cu_stream, cu_event, unsigned) )                                \
    X(stream_is_capturing, cuStreamIsCapturing, (cu_stream, int *) )                                         \
    X(event_create, cuEventCreate, (cu_event *, unsigned) )                                                  \
    X(event_destroy, cuEventDestroy_v2, (cu_event))                                                          \
    X(event_record, cuEventRecord, (cu_event, cu_stream))                                                    \
    X(event_query, cuEventQuery, (cu_event))                                                                 \
    X(event_synchronize, cuEventSynchronize, (cu_event))                                                     \
    X(event_elapsed, cuEventElapsedTime, (float *, cu_event, cu_event))

struct cuda_driver {
    void *library;
    int version; /* 1000 * major + 10 * minor */
#define CUDA_MEMBER(member, symbol, arguments) cu_result(*member) arguments;
    CUDA_CALLS(CUDA_MEMBER)
#undef CUDA_MEMBER
};

/**
 * cuda_driver_open() - load libcuda.so.1 and initialise it
 *
 * Costs some hundred milliseconds, and threads and mappings of the driver in this process: call
 * it only for a GPU pool. Do not call it after fork() in a child of a process that called it:
 * the driver does not survive fork().
 *
 * Return: 0; -EOPNOTSUPP: no driver, or one that lacks a function, with its name; -ENODEV: no GPU; else as
 * cuda_fail(). A failure leaves the process unchanged and the CPU device usable.
 */
int cuda_driver_open(struct cuda_driver **ret_driver, struct errmsg *e);
struct cuda_driver *cuda_driver_close(struct cuda_driver *d);
static inline void cuda_driver_closep(struct cuda_driver **d)
{
    *d = cuda_driver_close(*d);
}

/**
 * cuda_fail() - convert an error of the driver to errno; no other function does
 * @what: the failed operation and its object: "cannot map extent 7"
 *
 * Writes "WHAT: DRIVER'S SENTENCE (CUDA_ERROR_NAME)" and, where the user can do something about it, advice.
 *
 * Return: a negative errno: -ENOMEM, -ENODEV (absent or lost), -EIO (the context is gone: every later call
 * of this process fails too), -EPERM, -EBADMSG (the descriptor is not such an allocation), -EBUSY (MPS or
 * MIG refuses), -EOPNOTSUPP, -EINVAL (our mistake).
 */
int cuda_fail(const struct cuda_driver *d, cu_result result, struct errmsg *e, const char *what);

/* Whether this process can use no GPU after @result. A new process may. */
bool cuda_is_fatal(cu_result result);

struct cuda_device_info {
    cu_device ordinal; /* in this process: depends on CUDA_VISIBLE_DEVICES, which the UUID does not */
    struct cu_uuid uuid;
    char name[96];
    size_t bytes;
    int compute;         /* 10 * major + minor: 80, 90 */
    int multiprocessors; /* blocks are distributed over them */
    size_t granularity;  /* of extents: sizes of mappings are multiples of it */
};

/**
 * cuda_device_find() - find a device by its UUID
 * @uuid: such as "GPU-6ac6e8b0-..." (32 hexadecimal digits, hyphens anywhere), or "MIG-..."; NULL: the
 *        first device
 *
 * Return: 0; -ENODEV: no such device, with the UUIDs of those present; -EINVAL: not a UUID; -EOPNOTSUPP:
 * the device cannot share memory by descriptors.
 */
int cuda_device_find(const struct cuda_driver *d, const char *uuid, struct cuda_device_info *ret_info,
                     struct errmsg *e);

#define CUDA_UUID_CHARS 41 /* "GPU-8-4-4-4-12" and the NUL */
void cuda_uuid_format(const struct cu_uuid *uuid, char ret[static CUDA_UUID_CHARS]);
