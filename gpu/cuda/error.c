/* Converts errors of the driver to errno; no other file does. See driver.h. */
#include <errno.h>

#include "base/errmsg.h"
#include "gpu/cuda/driver.h"

static const struct {
    cu_result result;
    int err;
    const char *advice; /* NULL: the sentence of the driver is enough */
} meanings[] = {
    {CU_INVALID_VALUE, -EINVAL, NULL},
    {CU_OUT_OF_MEMORY, -ENOMEM, "free GPU memory, or configure a smaller pool"},
    {CU_STUB_LIBRARY, -EOPNOTSUPP, "libcuda.so.1 is the toolkit's stub: install the driver itself"},
    {CU_CALL_REQUIRES_NEWER_DRIVER, -EOPNOTSUPP, "update the NVIDIA driver"},
    {CU_DEVICE_UNAVAILABLE, -EBUSY,
     "another process uses the GPU exclusively (see the compute mode in nvidia-smi)"},
    {CU_NO_DEVICE, -ENODEV, NULL},
    {CU_INVALID_DEVICE, -ENODEV, NULL},
    {CU_INVALID_IMAGE, -EOPNOTSUPP,
     "this build has no GPU kernels, or none for this driver: build it where nvcc is installed"},
    {CU_INVALID_CONTEXT, -EINVAL, NULL},
    {CU_NO_BINARY_FOR_GPU, -EOPNOTSUPP, "no kernels were built for this GPU"},
    {CU_ECC_UNCORRECTABLE, -EIO, "the GPU has a memory fault; end this process, and reset the GPU"},
    {CU_CONTAINED, -EIO, "a memory fault hit this process alone; start it again"},
    {CU_SHARED_OBJECT_INIT_FAILED, -EOPNOTSUPP, NULL},
    {CU_OPERATING_SYSTEM, -EBADMSG, "is the descriptor an allocation of this GPU, and is a descriptor left?"},
    {CU_INVALID_HANDLE, -EBADMSG, NULL},
    {CU_ILLEGAL_ADDRESS, -EIO, "the GPU work of this process is lost; start it again"},
    {CU_CONTEXT_IS_DESTROYED, -EIO, "the GPU work of this process is lost; start it again"},
    {CU_LAUNCH_FAILED, -EIO, "the GPU work of this process is lost; start it again"},
    {CU_NOT_PERMITTED, -EPERM, NULL},
    {CU_NOT_SUPPORTED, -EOPNOTSUPP, NULL},
    {CU_SYSTEM_NOT_READY, -EBUSY, "is nvidia-fabricmanager or nvidia-persistenced running?"},
    {CU_SYSTEM_DRIVER_MISMATCH, -EOPNOTSUPP,
     "kernel module and libcuda differ in version: reboot after the update"},
    {CU_COMPAT_NOT_SUPPORTED, -EOPNOTSUPP,
     "the forward-compatibility libcuda is not for this GPU: use the driver's"},
    {CU_MPS_CONNECTION_FAILED, -EBUSY, "the MPS server refuses"},
    {CU_MPS_MAX_CONNECTIONS_REACHED, -EBUSY, "the MPS server is full"},
    {CU_NOT_FOUND, -EINVAL, NULL},
    {CU_CAPTURE_UNSUPPORTED, -EBUSY, "a stream is capturing: end that first"},
    {CU_CAPTURE_WAS_INVALIDATED, -EBUSY, "end the capture and begin it again"},
    {CU_CAPTURE_IMPLICIT, -EBUSY, "a stream is capturing: end that first"},
    {CU_MPS_CLIENT_TERMINATED, -EIO, "a client of the same MPS server failed; start this process again"},
};

static const char *error_name_of(const struct cuda_driver *d, cu_result result)
{
    const char *name = NULL;

    return d->error_name && d->error_name(result, &name) == CU_SUCCESS && name ? name : "unknown CUDA error";
}

static const char *error_sentence_of(const struct cuda_driver *d, cu_result result)
{
    const char *text = NULL;

    return d->error_string && d->error_string(result, &text) == CU_SUCCESS && text ? text : "no description";
}

int cuda_fail(const struct cuda_driver *d, cu_result result, struct errmsg *e, const char *what)
{
    int err = -EIO; /* after an unknown error the memory must not be trusted */
    const char *advice = NULL;

    for (size_t i = 0; i < sizeof(meanings) / sizeof(meanings[0]); i++)
        if (meanings[i].result == result) {
            err = meanings[i].err;
            advice = meanings[i].advice;
        }
    return fail(e, err, "%s: %s (%s, %d)%s%s", what, error_sentence_of(d, result), error_name_of(d, result),
                result, advice ? "; " : "", advice ? advice : "");
}

bool cuda_is_fatal(cu_result result)
{
    /* 700 to 720 are exceptions of a kernel, which end the context; "peer access" and "host memory
     * registered" are not */
    if (result >= CU_ILLEGAL_ADDRESS && result <= 720)
        return result < 704 || result > 713 || result == CU_CONTEXT_IS_DESTROYED || result == 710;

    return result == CU_ECC_UNCORRECTABLE || result == CU_CONTAINED || result == CU_MPS_CLIENT_TERMINATED ||
           result == CU_UNKNOWN;
}
