/*
 * Lists the processes that use a GPU, with NVIDIA's management library, which is opened at run time: memory
 * of an exited process is reused only after the driver has stopped listing that process (DESIGN section 4).
 * Without the library nothing can be listed; the mover works nevertheless.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gpu/cuda/driver.h"

struct nvml;

/* Return: 0; -EOPNOTSUPP with a sentence: no library, a library without the functions used here, or one that
 * does not start. */
int nvml_open(struct nvml **ret_nvml, struct errmsg *e);
struct nvml *nvml_close(struct nvml *n);
static inline void nvml_closep(struct nvml **n)
{
    *n = nvml_close(*n);
}

/**
 * nvml_processes() - the processes that have a context on a device
 * @uuid:     of a device or of a MIG instance
 * @pids:     [max] borrowed
 *
 * Return: 0; -EOPNOTSUPP, with a sentence, if the list would be missing or wrong: an MPS server runs the work
 * of its clients; this process, which has a context on the device, is not in the list (another PID
 * namespace); there are more than @max processes; the library fails.
 */
int nvml_processes(struct nvml *n, const struct cu_uuid *uuid, uint32_t *pids, size_t max, size_t *ret_n,
                   struct errmsg *e);

/* Whether an MPS server has clients on the device. */
bool nvml_has_mps(struct nvml *n, const struct cu_uuid *uuid);
