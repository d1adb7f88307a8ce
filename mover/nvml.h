/*
 * Which processes use a GPU, by NVIDIA's management library, opened at run time: memory that a dead process
 * could reach is used again only when the driver does not list it any more (DESIGN section 4). Without the
 * library nothing can be listed, which is no error of the mover's.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gpu/cuda/driver.h"

struct nvml;

/* Return: 0; -EOPNOTSUPP with a sentence: no library, one without what we need, or it does not start. */
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
 * Return: 0; -EOPNOTSUPP, with a sentence, where there is no answer or it would not be the truth: an MPS
 * server works in the name of others, this process, which has a context there, is not among them (another PID
 * namespace), there are more than
 * @max, or the library fails.
 */
int nvml_processes(struct nvml *n, const struct cu_uuid *uuid, uint32_t *pids, size_t max, size_t *ret_n,
                   struct errmsg *e);

/* Whether an MPS server has clients on the device. */
bool nvml_has_mps(struct nvml *n, const struct cu_uuid *uuid);
