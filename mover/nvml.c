/* libnvidia-ml by dlopen; see nvml.h. Names and layouts are NVML's
 * (its reference manual, "Device Queries"). */
#include "mover/nvml.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/errmsg.h"

enum { NVML_SUCCESS = 0, PROCESSES_MAX = 4096, NAME_CHARS = 256 };

typedef struct nvml_device *nvml_device;

struct nvml_process { /* nvmlProcessInfo_t since driver 470 */
    unsigned pid;
    unsigned long long bytes;
    unsigned gpu_instance, compute_instance;
};

typedef int (*list_call)(nvml_device, unsigned *, struct nvml_process *);

struct nvml {
    void *library;
    bool started;
    int (*init)(void);
    int (*shutdown)(void);
    const char *(*error)(int);
    int (*by_uuid)(const char *, nvml_device *);
    list_call processes;
    list_call mps_processes;                         /* NULL: missing in the library */
    int (*process_name)(unsigned, char *, unsigned); /* NULL: missing in the library */
};

struct nvml *nvml_close(struct nvml *n)
{
    if (!n)
        return NULL;
    if (n->started)
        (void) n->shutdown();
    if (n->library)
        (void) dlclose(n->library);
    free(n);
    return NULL;
}

static bool nvml_find(const struct nvml *n, const char *symbol, void *to)
{
    void *address = dlsym(n->library, symbol);

    memcpy(to, &address, sizeof(address)); /* POSIX: data and function pointers have one size */
    return address;
}

int nvml_open(struct nvml **ret_nvml, struct errmsg *e)
{
    _cleanup_(nvml_closep) struct nvml *n = calloc(1, sizeof(*n));
    int r;

    if (!n)
        return fail(e, -ENOMEM, "out of memory");

    n->library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!n->library)
        return fail(e, -EOPNOTSUPP, "processes on a GPU cannot be listed: %s", dlerror());
    if (!nvml_find(n, "nvmlInit_v2", &n->init) || !nvml_find(n, "nvmlShutdown", &n->shutdown) ||
        !nvml_find(n, "nvmlErrorString", &n->error) ||
        !nvml_find(n, "nvmlDeviceGetHandleByUUID", &n->by_uuid) ||
        (!nvml_find(n, "nvmlDeviceGetComputeRunningProcesses_v3", &n->processes) &&
         !nvml_find(n, "nvmlDeviceGetComputeRunningProcesses_v2", &n->processes)))
        return fail(e, -EOPNOTSUPP, "processes on a GPU cannot be listed: libnvidia-ml is too old");
    if (!nvml_find(n, "nvmlDeviceGetMPSComputeRunningProcesses_v3", &n->mps_processes))
        (void) nvml_find(n, "nvmlDeviceGetMPSComputeRunningProcesses_v2", &n->mps_processes);
    (void) nvml_find(n, "nvmlSystemGetProcessName", &n->process_name);
    r = n->init();
    if (r != NVML_SUCCESS)
        return fail(e, -EOPNOTSUPP, "processes on a GPU cannot be listed: libnvidia-ml does not start: %s",
                    n->error(r));

    n->started = true;
    *ret_nvml = take_ptr(n);
    return 0;
}

/* UUIDs of MIG instances begin with "GPU-" in the driver and with "MIG-" in this library. */
static int nvml_find_device(const struct nvml *n, const struct cu_uuid *uuid, nvml_device *ret)
{
    char text[CUDA_UUID_CHARS], instance[CUDA_UUID_CHARS];
    int r;

    cuda_uuid_format(uuid, text);
    r = n->by_uuid(text, ret);
    if (r == NVML_SUCCESS)
        return r;

    (void) snprintf(instance, sizeof(instance), "MIG%s", text + 3);
    return n->by_uuid(instance, ret) == NVML_SUCCESS ? NVML_SUCCESS : r;
}

bool nvml_has_mps(struct nvml *n, const struct cu_uuid *uuid)
{
    nvml_device device;
    unsigned count = 0;

    if (!n->mps_processes || nvml_find_device(n, uuid, &device) != NVML_SUCCESS)
        return false;

    /* without room for entries, the call fails if there are processes, and sets count */
    return n->mps_processes(device, &count, NULL) != NVML_SUCCESS && count > 0;
}

/* The MPS server is a process with a context. */
static bool nvml_is_mps_server(const struct nvml *n, unsigned pid)
{
    static const char server[] = "nvidia-cuda-mps-server";
    char name[NAME_CHARS] = "";
    const char *base;

    if (!n->process_name || n->process_name(pid, name, sizeof(name)) != NVML_SUCCESS)
        return false;

    name[sizeof(name) - 1] = '\0';
    base = strrchr(name, '/');
    return strncmp(base ? base + 1 : name, server, sizeof(server) - 1) == 0;
}

static int nvml_check_list(const struct nvml *n, const struct nvml_process *list, unsigned count,
                           struct errmsg *e)
{
    bool has_us = false;

    for (unsigned i = 0; i < count; i++) {
        if (nvml_is_mps_server(n, list[i].pid))
            return fail(e, -EOPNOTSUPP,
                        "processes on a GPU cannot be listed: an MPS server runs the work of its clients");

        has_us |= list[i].pid == (unsigned) getpid();
    }

    if (!has_us)
        return fail(
            e, -EOPNOTSUPP,
            "processes on a GPU cannot be listed: the driver counts processes in another PID namespace");

    return 0;
}

int nvml_processes(struct nvml *n, const struct cu_uuid *uuid, uint32_t *pids, size_t max, size_t *ret_n,
                   struct errmsg *e)
{
    static struct nvml_process list[PROCESSES_MAX];
    unsigned count = PROCESSES_MAX;
    nvml_device device;
    int r = nvml_find_device(n, uuid, &device);

    if (r == NVML_SUCCESS)
        r = n->processes(device, &count, list);
    if (r != NVML_SUCCESS)
        return fail(e, -EOPNOTSUPP, "the processes on a GPU cannot be listed: %s", n->error(r));
    if (nvml_has_mps(n, uuid))
        return fail(e, -EOPNOTSUPP,
                    "processes on a GPU cannot be listed: an MPS server runs the work of its clients");

    r = nvml_check_list(n, list, count, e);
    if (r < 0)
        return r;
    if (count > max)
        return fail(e, -EOPNOTSUPP, "processes on a GPU cannot be listed: there are %u, more than %zu", count,
                    max);

    for (unsigned i = 0; i < count; i++)
        pids[i] = list[i].pid;
    *ret_n = count;
    return 0;
}
