/*
 * A stand-in for libnvidia-ml.so.1, beside that of the driver. It lists the processes that have a context on
 * one of its devices; a mapping of such a process has the name of the device.
 *
 * Environment, read at each call:
 *
 *     STANDIN_DEVICES=N, STANDIN_MPS=N   as for the driver (devices.c)
 *     STANDIN_ALSO_LISTED=FILE           pids, one per line, that are listed too, as if still held
 *     STANDIN_SERVER_PID=N               this process has the name of an MPS server
 *     STANDIN_OTHER_NAMESPACE=1          lists other process numbers than those of this namespace
 *     STANDIN_NO_LIST=1                  refuses to list
 *     STANDIN_MIG=1                      devices are partitions of one: "MIG-" here, "GPU-" for the driver
 */
#include <ctype.h>
#include <dirent.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/standin/libcuda.h"

#define API __attribute__((visibility("default")))

enum { SUCCESS = 0, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, NO_PERMISSION = 4 };

typedef struct nvml_device *nvml_device; /* its ordinal + 1 */

struct nvml_process {
    unsigned pid;
    unsigned long long bytes;
    unsigned gpu_instance, compute_instance;
};

API int nvmlInit_v2(void);
API int nvmlShutdown(void);
API const char *nvmlErrorString(int error);
API int nvmlDeviceGetHandleByUUID(const char *uuid, nvml_device *ret);
API int nvmlDeviceGetComputeRunningProcesses_v3(nvml_device device, unsigned *count,
                                                struct nvml_process *list);
API int nvmlDeviceGetMPSComputeRunningProcesses_v3(nvml_device device, unsigned *count,
                                                   struct nvml_process *list);
API int nvmlSystemGetProcessName(unsigned pid, char *name, unsigned size);

static long setting(const char *name, long otherwise)
{
    const char *text = getenv(name);

    return text && *text ? atol(text) : otherwise;
}

int nvmlInit_v2(void)
{
    return SUCCESS;
}

int nvmlShutdown(void)
{
    return SUCCESS;
}

const char *nvmlErrorString(int error)
{
    return error == NO_PERMISSION ? "the stand-in refuses" : "an error of the stand-in library";
}

int nvmlDeviceGetHandleByUUID(const char *uuid, nvml_device *ret)
{
    for (uintptr_t i = 0; i < (uintptr_t) setting("STANDIN_DEVICES", 1); i++) {
        char text[64];
        unsigned b = 0xc0 + (unsigned) i;

        (void) snprintf(
            text, sizeof(text), "%s-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
            setting("STANDIN_MIG", 0) ? "MIG" : "GPU", b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b);
        if (strcmp(uuid, text) == 0) {
            *ret = (nvml_device) (i + 1);
            return SUCCESS;
        }
    }
    return NOT_FOUND;
}

struct found {
    struct nvml_process *list; /* [max] */
    unsigned n, max;
};

static void add(struct found *f, unsigned pid)
{
    if (f->n < f->max)
        f->list[f->n] = (struct nvml_process){.pid = pid};
    f->n++;
}

static bool has_context(const char *pid, uintptr_t device)
{
    char path[300], line[512], name[64];
    bool found = false;
    FILE *maps;

    (void) snprintf(path, sizeof(path), "/proc/%s/maps", pid);
    (void) snprintf(name, sizeof(name), "memfd:" STANDIN_CONTEXT "%lu ", (unsigned long) device);
    maps = fopen(path, "re");
    while (maps && !found && fgets(line, sizeof(line), maps))
        found = strstr(line, name);
    if (maps)
        (void) fclose(maps);
    return found;
}

int nvmlDeviceGetComputeRunningProcesses_v3(nvml_device device, unsigned *count, struct nvml_process *list)
{
    struct found f = {.list = list, .max = *count};
    unsigned shift = setting("STANDIN_OTHER_NAMESPACE", 0) ? 4000000 : 0;
    const char *path = getenv("STANDIN_ALSO_LISTED");
    FILE *also = path && *path ? fopen(path, "re") : NULL;
    DIR *proc = opendir("/proc");
    struct dirent *entry;
    unsigned pid;

    while (proc && (entry = readdir(proc)))
        if (isdigit((unsigned char) entry->d_name[0]) && has_context(entry->d_name, (uintptr_t) device - 1))
            add(&f, (unsigned) atol(entry->d_name) + shift);
    if (proc)
        (void) closedir(proc);
    while (also && fscanf(also, "%u", &pid) == 1)
        add(&f, pid);
    if (also)
        (void) fclose(also);
    if (setting("STANDIN_NO_LIST", 0))
        return NO_PERMISSION;

    *count = f.n;
    return f.n > f.max ? INSUFFICIENT_SIZE : SUCCESS;
}

int nvmlDeviceGetMPSComputeRunningProcesses_v3(nvml_device device, unsigned *count, struct nvml_process *list)
{
    unsigned n = setting("STANDIN_MPS", 0) == 1 || setting("STANDIN_MPS", 0) == 3, max = *count;

    (void) device;
    (void) list;
    *count = n;
    return n > max ? INSUFFICIENT_SIZE : SUCCESS;
}

/* A name that is too long is cut without its NUL, as a library that keeps no promise may do. */
int nvmlSystemGetProcessName(unsigned pid, char *name, unsigned size)
{
    static const char server[] = "/usr/bin/nvidia-cuda-mps-server";

    memset(name, 'x', size);
    if ((long) pid == setting("STANDIN_SERVER_PID", 0) && sizeof(server) <= size)
        memcpy(name, server, sizeof(server));
    return SUCCESS;
}
