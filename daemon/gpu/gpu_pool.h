/*
 * The part of a GPU's pool beside its store. The mover creates the extents (preallocated.h) and lists the
 * processes that use the device, so that memory of dead processes can be used again (quarantine.h). The
 * mover's answers arrive later, through the event loop.
 */
#pragma once

#include <stdint.h>
#include <sys/types.h>

#include "daemon/gpu/quarantine.h"
#include "daemon/store/pool.h"
#include "daemon/store/preallocated.h"

struct device;
struct errmsg;
struct gpus;

struct gpu_pool {
    struct device *device;
    struct pool_source source;
    struct preallocated preallocated;
    struct quarantine quarantine;
    uint64_t reuse_ms;
    uint64_t delay_until_ms; /* slots without a session are not used before; 0: no such slots */
};

enum {
    GPU_DEAD_PROCESSES_MAX = 256, /* in quarantine on one device; extents of further ones are retired */
    GPU_LIST_PATIENCE_MS = 30000, /* without a list of processes, before extents are retired */
    /* clearing an extent takes a millisecond; creating a context first takes seconds */
    GPU_CREATE_MS = 60000,
    GPU_LIST_MS = 10000,
};

/* @d: a GPU whose pool exists; sets its source. Return: 0; -ENOMEM. */
int gpu_pool_new(struct device *d, struct gpus *gpus, struct gpu_pool **ret, struct errmsg *e);

/*
 * No request to the mover is under way, and host_memory_deinit() was called. NULL is allowed; returns NULL.
 */
struct gpu_pool *gpu_pool_free(struct gpu_pool *g);

/*
 * Called when the process of @session is gone. Its reservations and holds stay until gpu_sessions.end(),
 * which this function or a tick calls.
 */
void gpu_pool_process_gone(struct gpu_pool *g, uint32_t session, pid_t pid);

/*
 * Called after a restart that found slots without a session. The mover of the earlier process may still write
 * to them. That mover ended with its process, so the slots are free after the same delay as slots of clients.
 */
void gpu_pool_delay_reuse(struct gpu_pool *g);

/*
 * Retires all extents in which @session reserved or holds a slot, because its process may write to them and
 * the end of its kernels cannot be observed.
 */
void gpu_pool_retire_session(struct gpu_pool *g, uint32_t session, const char *why);

/* At each tick: preallocates extents, asks for lists of processes, ends quarantines. */
void gpu_pool_tick(struct gpu_pool *g, uint64_t now_ms);

/* For STATUS: slots in quarantine, retired and preallocated extents. */
struct gpu_pool_metrics {
    uint64_t quarantined_slots;
    uint32_t retired_extents, spare_extents;
};
void gpu_pool_metrics(const struct gpu_pool *g, struct gpu_pool_metrics *ret);
