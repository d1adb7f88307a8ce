/*
 * The part of the binary interface of the CUDA driver that we use, so that everything but the kernels
 * builds without the toolkit. Names and layouts are those of the driver API (its reference manual, "Virtual
 * Memory Management"). Where the toolkit is installed, a test compares sizes, offsets and values with
 * cuda.h.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

typedef int cu_result; /* CUresult */
typedef int cu_device; /* CUdevice: an ordinal */
typedef struct cu_context *cu_context;
typedef struct cu_stream *cu_stream; /* NULL: the default stream */
typedef struct cu_module *cu_module;
typedef struct cu_function *cu_function;
typedef struct cu_event *cu_event;
typedef unsigned long long cu_ptr;    /* CUdeviceptr */
typedef unsigned long long cu_handle; /* CUmemGenericAllocationHandle */

enum {
    CU_SUCCESS = 0,
    CU_INVALID_VALUE = 1,
    CU_OUT_OF_MEMORY = 2,
    CU_NOT_INITIALIZED = 3,
    CU_STUB_LIBRARY = 34,
    CU_CALL_REQUIRES_NEWER_DRIVER = 36,
    CU_DEVICE_UNAVAILABLE = 46,
    CU_NO_DEVICE = 100,
    CU_INVALID_DEVICE = 101,
    CU_INVALID_IMAGE = 200,
    CU_INVALID_CONTEXT = 201,
    CU_NO_BINARY_FOR_GPU = 209,
    CU_ECC_UNCORRECTABLE = 214,
    CU_CONTAINED = 226,
    CU_SHARED_OBJECT_INIT_FAILED = 303,
    CU_OPERATING_SYSTEM = 304,
    CU_INVALID_HANDLE = 400,
    CU_NOT_FOUND = 500,
    CU_NOT_READY = 600,
    CU_ILLEGAL_ADDRESS = 700,
    CU_CONTEXT_IS_DESTROYED = 709,
    CU_LAUNCH_FAILED = 719,
    CU_NOT_PERMITTED = 800,
    CU_NOT_SUPPORTED = 801,
    CU_SYSTEM_NOT_READY = 802,
    CU_SYSTEM_DRIVER_MISMATCH = 803,
    CU_COMPAT_NOT_SUPPORTED = 804,
    CU_MPS_CONNECTION_FAILED = 805,
    CU_MPS_MAX_CONNECTIONS_REACHED = 809,
    CU_MPS_CLIENT_TERMINATED = 810,
    CU_CAPTURE_UNSUPPORTED = 900,
    CU_CAPTURE_WAS_INVALIDATED = 901,
    CU_CAPTURE_IMPLICIT = 906,
    CU_CAPTURED_EVENT = 907,
    CU_UNKNOWN = 999,
};

struct cu_uuid {
    uint8_t bytes[16];
};

enum { CU_LOCATION_DEVICE = 1, CU_ALLOCATION_PINNED = 1, CU_HANDLE_POSIX_FD = 1 };
enum { CU_ACCESS_NONE = 0, CU_ACCESS_READ = 1, CU_ACCESS_READ_WRITE = 3 };
enum { CU_GRANULARITY_MINIMUM = 0 };

struct cu_location {
    int type, id;
};

struct cu_allocation { /* CUmemAllocationProp */
    int type, handle_types;
    struct cu_location location;
    void *win32;
    struct {
        unsigned char compression, rdma;
        unsigned short usage;
        unsigned char reserved[4];
    } flags;
};

struct cu_access { /* CUmemAccessDesc */
    struct cu_location location;
    int flags;
};

enum { CU_FUNCTION_MAX_DYNAMIC_SHARED = 8 };

/* Attributes of a device. */
enum {
    CU_ATTRIBUTE_MULTIPROCESSORS = 16,
    CU_ATTRIBUTE_COMPUTE_MAJOR = 75,
    CU_ATTRIBUTE_COMPUTE_MINOR = 76,
    CU_ATTRIBUTE_VMM = 102,      /* VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED */
    CU_ATTRIBUTE_POSIX_FD = 103, /* HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED */
    CU_ATTRIBUTE_MPS = 133,      /* MPS_ENABLED; unknown to drivers before CUDA 12 */
};

enum {
    CU_STREAM_UNORDERED = 1
}; /* CU_STREAM_NON_BLOCKING: the stream and the default stream do not wait for each other */
enum { CU_EVENT_UNTIMED = 2 };                                                   /* CU_EVENT_DISABLE_TIMING */
enum { CU_CAPTURE_NONE = 0, CU_CAPTURE_ACTIVE = 1, CU_CAPTURE_INVALIDATED = 2 }; /* CUstreamCaptureStatus */

/* Attributes of a pointer; start and bytes are 8 bytes, the others are an int. */
enum {
    CU_POINTER_MEMORY_TYPE = 2,
    CU_POINTER_DEVICE = 9,
    CU_POINTER_RANGE_START = 11,
    CU_POINTER_RANGE_BYTES = 12
};

enum { CU_MEMORY_HOST = 1, CU_MEMORY_DEVICE = 2 }; /* CUmemorytype */
