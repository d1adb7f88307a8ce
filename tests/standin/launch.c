/* Modules, kernels and launches of the stand-in driver (devices.c). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/cuda_on_cpu/kernels.h"
#include "tests/standin/standin.h"

enum { FUNCTIONS_MAX = 96, SHARED_FREE = 48 << 10, SHARED_MOST = 227 << 10 };

/* The kernels of tests/cuda_on_cpu that were looked up, for any loaded image. */
static struct function {
    char name[64];
    size_t param_bytes;    /* of its one parameter */
    unsigned shared_bytes; /* that cuFuncSetAttribute() allowed */
} functions[FUNCTIONS_MAX];
static size_t n_functions;
static int n_modules;

static struct function *find_function(cu_function f)
{
    return (uintptr_t) f >= 1 && (uintptr_t) f <= n_functions ? &functions[(uintptr_t) f - 1] : NULL;
}

API cu_result cuModuleLoadData(cu_module *ret, const void *image)
{
    ENTER();
    if (current_device() < 0)
        return CU_INVALID_CONTEXT;
    if (!image)
        return CU_INVALID_IMAGE;
    if (refuse_unsafe() != CU_SUCCESS)
        return CU_CAPTURE_UNSUPPORTED;

    *ret = (cu_module) (uintptr_t) 1;
    n_modules++;
    return CU_SUCCESS;
}

API cu_result cuModuleUnload(cu_module module)
{
    ENTER();
    if (!module || n_modules == 0)
        return CU_INVALID_HANDLE;

    n_modules--;
    return CU_SUCCESS;
}

API cu_result cuModuleGetFunction(cu_function *ret, cu_module module, const char *name)
{
    size_t param_bytes = 0;

    ENTER();
    if (!module)
        return CU_INVALID_HANDLE;

    for (size_t i = 0; i < n_functions; i++)
        if (strcmp(functions[i].name, name) == 0) {
            *ret = (cu_function) (uintptr_t) (i + 1);
            return CU_SUCCESS;
        }
#ifdef KERNELS_ON_CPU
    param_bytes = on_cpu_param_bytes(name);
#endif
    if (param_bytes == 0 || param_bytes > PARAM_BYTES_MAX || strlen(name) >= sizeof(functions[0].name))
        return CU_NOT_FOUND;
    if (n_functions == FUNCTIONS_MAX)
        return CU_OUT_OF_MEMORY;

    functions[n_functions].param_bytes = param_bytes;
    strcpy(functions[n_functions].name, name);
    *ret = (cu_function) (uintptr_t) ++n_functions;
    return CU_SUCCESS;
}

API cu_result cuFuncSetAttribute(cu_function f, int attribute, int value)
{
    struct function *function = find_function(f);

    ENTER();
    if (!function || attribute != CU_FUNCTION_MAX_DYNAMIC_SHARED || value < 0 || value > SHARED_MOST)
        return CU_INVALID_VALUE;

    function->shared_bytes = (unsigned) value;
    return CU_SUCCESS;
}

API cu_result cuLaunchKernel(cu_function f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                             unsigned bz, unsigned shared, cu_stream stream, void **arguments, void **extra)
{
    const struct function *function = find_function(f);
    struct work w = {.kind = WORK_LAUNCH, .grid = {gx, gy, gz}, .n_threads = bx, .shared = shared};

    ENTER();
    if (!function)
        return CU_INVALID_HANDLE;
    if (current_device() < 0)
        return CU_INVALID_CONTEXT;
    if (extra || gx == 0 || gy == 0 || gz == 0 || gy > 65535 || gz > 65535 || bx == 0 || bx > 1024 ||
        bx % 32 != 0 || by != 1 || bz != 1 ||
        shared > (function->shared_bytes > SHARED_FREE ? function->shared_bytes : SHARED_FREE))
        return CU_INVALID_VALUE;
    w.kernel = function->name;
    w.param_bytes = function->param_bytes;
    memcpy(w.params, arguments[0], w.param_bytes);
    return submit(stream, &w);
}

void count_modules(struct standin_left *left)
{
    left->modules = n_modules;
}
